//! What it costs to take and release a lock that stays where it was: one task and a sticky lock.
//!
//! Beside it, in the same process and rounds: the same lock without that, for which the server is asked each time; and tokio's
//! own mutex, of which one process is all there is.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::handoff::{PATIENCE, worker};
use crate::inside::BATCH;
use crate::meter::{Machine, Served, Threads};
use crate::report::{Output, per};
use anyhow::{Context, Result, bail};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The sides, as the worker calls them.
const SIDES: [&str; 3] = ["sticky", "plain", "alone"];

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each side of a round takes.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct StickyReport {
    scenario: &'static str,
    /// A pair, to one of tokio's mutex, and to one that asks the server.
    ratio_tokio: f64,
    ratio_plain: f64,
    requests_per_pair: f64,
    ratio_tokio_spread: [f64; 2],
    ratio_plain_spread: [f64; 2],
    requests_per_pair_spread: [f64; 2],
    /// The median over batches, in nanoseconds a pair.
    pair_ns: f64,
    pair_ns_spread: [f64; 2],
    /// The mean, with all that comes between.
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
struct Turn {
    median_ns: f64,
    mean_ns: f64,
    p99_ns: f64,
    cpu_ns: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
    let mut worker = worker(&["inside", "--url", &server.url(), "--tasks", "1"])?;
    worker.expect("ready", PATIENCE)?;
    for side in SIDES {
        turn(&server, &mut worker, side, options.round_ms / 3 + 1)?;
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let mut turns = Vec::new();
        for side in SIDES {
            turns.push(turn(&server, &mut worker, side, options.round_ms)?);
        }
        let Ok(turns) = <[Turn; 3]>::try_from(turns) else { bail!("a side had no turn") };
        rounds.push(turns);
    }
    worker.send("stop")?;
    let report = report(options, &rounds, Machine::with(&server)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("sticky", || report.chart(&rounds))
}

fn turn(server: &RedisServer, worker: &mut Worker, side: &str, ms: u64) -> Result<Turn> {
    let (served, client) = (Served::of(server)?, Threads::of(worker.pid(), None)?);
    worker.send(&format!("{side} {ms}"))?;
    let line = worker.line(PATIENCE)?;
    let (served, client) =
        (Served::of(server)?.since(served), Threads::of(worker.pid(), None)?.since(client));
    let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let [batches, took_ns, median_ns, p99_ns] = numbers[..] else { bail!("four numbers, not {line}") };
    let pairs = batches * BATCH;
    Ok(Turn {
        median_ns: per(median_ns, BATCH),
        mean_ns: per(took_ns, pairs),
        p99_ns: per(p99_ns, BATCH),
        cpu_ns: per(client.cpu_ns, pairs),
        requests: per(served.requests, pairs),
    })
}

fn report(options: &Options, rounds: &[[Turn; 3]], machine: Machine) -> StickyReport {
    let tokio = Spread::over(rounds, |[sticky, _, alone]| sticky.median_ns / alone.median_ns);
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
        tokio_pair_ns: Spread::over(rounds, |[_, _, alone]| alone.median_ns).median,
        plain_pair_ns: Spread::over(rounds, |[_, plain, _]| plain.median_ns).median,
        rounds: rounds.len(),
        round_ms: options.round_ms,
        machine,
    }
}

impl StickyReport {
    fn sentence(&self) -> String {
        format!(
            "sticky: {:.0} ns a pair (mean {:.0}, 99th percentile {:.0}, {:.0} of the processor), {:.1} x tokio's mutex ({:.0} ns), {:.5} x a pair that asks \
             the server ({:.0} ns); {:.5} requests a pair",
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

    fn chart(&self, rounds: &[[Turn; 3]]) -> Chart {
        let names = ["sticky", "not sticky", "tokio::sync::Mutex"];
        let series = names.iter().enumerate().map(|(side, name)| {
            let median = Spread::over(rounds, |round| round[side].median_ns);
            let mean = Spread::over(rounds, |round| round[side].mean_ns);
            Series { name: (*name).to_owned(), values: vec![median, mean] }
        });
        Chart {
            title: "One task takes and releases a lock".to_owned(),
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
