//! The cost of acquiring and releasing a lock that the process keeps: one task and a sticky lock.
//!
//! Beside it, in the same process and rounds: a lock that is not sticky, which sends requests each time; and tokio's mutex.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, Metered};
use crate::report::{Output, per};
use crate::worker::local::BATCH;
use anyhow::{Result, bail};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The sides, as the worker calls them.
const SIDES: [&str; 3] = ["sticky", "plain", "tokio-pair"];

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each side of a round runs.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct StickyReport {
    scenario: &'static str,
    /// The time of a pair, relative to one of tokio's mutex, and to one that sends requests.
    ratio_tokio: f64,
    ratio_plain: f64,
    requests_per_pair: f64,
    ratio_tokio_spread: [f64; 2],
    ratio_plain_spread: [f64; 2],
    requests_per_pair_spread: [f64; 2],
    /// The median over batches, in nanoseconds a pair.
    pair_ns: f64,
    pair_ns_spread: [f64; 2],
    /// The mean, with everything between the batches.
    pair_mean_ns: f64,
    pair_mean_ns_spread: [f64; 2],
    pair_p99_ns: f64,
    /// Processor time of the process a pair, in nanoseconds.
    pair_cpu_ns: f64,
    tokio_pair_ns: f64,
    plain_pair_ns: f64,
    rounds: usize,
    round_ms: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
struct Sample {
    median_ns: f64,
    mean_ns: f64,
    p99_ns: f64,
    cpu_ns: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let server = start_server()?;
    let mut worker = start_worker(&["local", "--url", &server.url(), "--tasks", "1"])?;
    worker.expect("ready", REPLY_TIMEOUT)?;
    for side in SIDES {
        measure(&server, &mut worker, side, options.round_ms / 3 + 1)?;
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let mut samples = Vec::new();
        for side in SIDES {
            samples.push(measure(&server, &mut worker, side, options.round_ms)?);
        }
        let Ok(samples) = <[Sample; 3]>::try_from(samples) else { bail!("a side was not measured") };
        rounds.push(samples);
    }
    worker.send("stop")?;
    let report = report(options, &rounds, Machine::with(&server)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("sticky", || report.chart(&rounds))
}

fn measure(server: &RedisServer, worker: &mut Worker, side: &str, ms: u64) -> Result<Sample> {
    let metered = Metered::request(server, worker, &format!("{side} {ms}"))?;
    let [batches, took_ns, median_ns, p99_ns] = metered.numbers()?;
    let pairs = batches * BATCH;
    Ok(Sample {
        median_ns: per(median_ns, BATCH),
        mean_ns: per(took_ns, pairs),
        p99_ns: per(p99_ns, BATCH),
        cpu_ns: per(metered.client.cpu_ns, pairs),
        requests: per(metered.server.requests, pairs),
    })
}

fn report(options: &Options, rounds: &[[Sample; 3]], machine: Machine) -> StickyReport {
    let tokio = Spread::over(rounds, |[sticky, _, tokio]| sticky.median_ns / tokio.median_ns);
    let plain = Spread::over(rounds, |[sticky, plain, _]| sticky.median_ns / plain.median_ns);
    let requests = Spread::over(rounds, |[sticky, ..]| sticky.requests);
    let pair = Spread::over(rounds, |[sticky, ..]| sticky.median_ns);
    let mean = Spread::over(rounds, |[sticky, ..]| sticky.mean_ns);
    StickyReport {
        scenario: "sticky",
        ratio_tokio: tokio.median,
        ratio_plain: plain.median,
        requests_per_pair: requests.median,
        ratio_tokio_spread: tokio.ends(),
        ratio_plain_spread: plain.ends(),
        requests_per_pair_spread: requests.ends(),
        pair_ns: pair.median,
        pair_ns_spread: pair.ends(),
        pair_mean_ns: mean.median,
        pair_mean_ns_spread: mean.ends(),
        pair_p99_ns: Spread::over(rounds, |[sticky, ..]| sticky.p99_ns).median,
        pair_cpu_ns: Spread::over(rounds, |[sticky, ..]| sticky.cpu_ns).median,
        tokio_pair_ns: Spread::over(rounds, |[_, _, tokio]| tokio.median_ns).median,
        plain_pair_ns: Spread::over(rounds, |[_, plain, _]| plain.median_ns).median,
        rounds: rounds.len(),
        round_ms: options.round_ms,
        machine,
    }
}

impl StickyReport {
    fn sentence(&self) -> String {
        format!(
            "sticky: {:.0} ns a pair (mean {:.0}, 99th percentile {:.0}, {:.0} of the processor), {:.1} x tokio's mutex ({:.0} ns), {:.5} x a pair that \
             sends requests ({:.0} ns); {:.5} requests a pair",
            self.pair_ns,
            self.pair_mean_ns,
            self.pair_p99_ns,
            self.pair_cpu_ns,
            self.ratio_tokio,
            self.tokio_pair_ns,
            self.ratio_plain,
            self.plain_pair_ns,
            self.requests_per_pair,
        )
    }

    fn chart(&self, rounds: &[[Sample; 3]]) -> Chart {
        let names = ["sticky", "not sticky", "tokio::sync::Mutex"];
        let series = names.iter().enumerate().map(|(side, name)| {
            let median = Spread::over(rounds, |round| round[side].median_ns);
            let mean = Spread::over(rounds, |round| round[side].mean_ns);
            Series { name: (*name).to_owned(), values: vec![median, mean] }
        });
        Chart {
            title: "One task acquires and releases a lock".to_owned(),
            note: self.machine.to_string(),
            y: Axis { label: "nanoseconds a pair".to_owned(), log: true },
            kind: Kind::Bars {
                groups: vec!["median".to_owned(), "mean".to_owned()],
                series: series.collect(),
            },
            limits: vec![Limit { at: 1000.0, label: "a microsecond".to_owned() }],
        }
    }
}
