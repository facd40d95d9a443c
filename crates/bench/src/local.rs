//! The cost of a hand-off within a process: 64 tasks and one lock, beside tokio's mutex in the same process and rounds.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, Metered};
use crate::report::{Output, per, per_s};
use anyhow::{Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The lowest ratio to tokio's hand-offs that is acceptable.
const RATIO_LIMIT: f64 = 0.1;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many tasks contend.
    #[arg(long, default_value_t = 64)]
    tasks: u32,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each side of a round runs.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct LocalReport {
    scenario: &'static str,
    /// Hand-offs per second, relative to those of tokio's mutex.
    ratio: f64,
    /// The same for hand-offs in a second of processor time.
    cpu_ratio: f64,
    requests_per_handover: f64,
    ratio_spread: [f64; 2],
    cpu_ratio_spread: [f64; 2],
    requests_per_handover_spread: [f64; 2],
    handovers_per_s: f64,
    handovers_per_s_spread: [f64; 2],
    tokio_handovers_per_s: f64,
    /// Processor time of the process for a hand-off.
    client_us: f64,
    tokio_client_us: f64,
    tasks: u32,
    rounds: usize,
    round_ms: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
struct Sample {
    per_s: f64,
    requests: f64,
    client_us: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let server = start_server()?;
    let mut worker = start_worker(&["local", "--url", &server.url(), "--tasks", &options.tasks.to_string()])?;
    worker.expect("ready", REPLY_TIMEOUT)?;
    for side in ["ours", "tokio"] {
        measure(&server, &mut worker, side, options.round_ms / 3 + 1)?;
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let ours = measure(&server, &mut worker, "ours", options.round_ms)?;
        rounds.push([ours, measure(&server, &mut worker, "tokio", options.round_ms)?]);
    }
    worker.send("stop")?;
    let report = report(options, &rounds, Machine::with(&server)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("local", || report.chart(&rounds))
}

fn measure(server: &RedisServer, worker: &mut Worker, side: &str, ms: u64) -> Result<Sample> {
    let metered = Metered::request(server, worker, &format!("{side} {ms}"))?;
    let [handovers, took_ns] = metered.numbers()?;
    ensure!(handovers > 0, "nothing was handed off by {side}");
    Ok(Sample {
        per_s: per_s(handovers, took_ns),
        requests: per(metered.server.requests, handovers),
        client_us: per(metered.client.cpu_ns, handovers) / 1000.0,
    })
}

fn report(options: &Options, rounds: &[[Sample; 2]], machine: Machine) -> LocalReport {
    let ratio = Spread::over(rounds, |[ours, tokio]| ours.per_s / tokio.per_s);
    let cpu = Spread::over(rounds, |[ours, tokio]| tokio.client_us / ours.client_us);
    let requests = Spread::over(rounds, |[ours, _]| ours.requests);
    let handovers = Spread::over(rounds, |[ours, _]| ours.per_s);
    LocalReport {
        scenario: "local",
        ratio: ratio.median,
        cpu_ratio: cpu.median,
        requests_per_handover: requests.median,
        ratio_spread: ratio.ends(),
        cpu_ratio_spread: cpu.ends(),
        requests_per_handover_spread: requests.ends(),
        handovers_per_s: handovers.median,
        handovers_per_s_spread: handovers.ends(),
        tokio_handovers_per_s: Spread::over(rounds, |[_, tokio]| tokio.per_s).median,
        client_us: Spread::over(rounds, |[ours, _]| ours.client_us).median,
        tokio_client_us: Spread::over(rounds, |[_, tokio]| tokio.client_us).median,
        tasks: options.tasks,
        rounds: rounds.len(),
        round_ms: options.round_ms,
        machine,
    }
}

impl LocalReport {
    fn sentence(&self) -> String {
        format!(
            "local: {:.3} x the hand-offs of tokio's mutex ({:.0} and {:.0} a second), {:.3} x by processor time \
             ({:.2} and {:.2} us each); \
             {:.4} requests a hand-off; {} tasks",
            self.ratio,
            self.handovers_per_s,
            self.tokio_handovers_per_s,
            self.cpu_ratio,
            self.client_us,
            self.tokio_client_us,
            self.requests_per_handover,
            self.tasks,
        )
    }

    fn chart(&self, rounds: &[[Sample; 2]]) -> Chart {
        let [ours, tokio] = [0, 1].map(|side: usize| Spread::over(rounds, |round| round[side].per_s));
        let series = |name: &str, spread| Series { name: name.to_owned(), values: vec![spread] };
        Chart {
            title: format!("One lock and {} tasks of one process", self.tasks),
            note: self.machine.to_string(),
            y: Axis { label: "hand-offs a second".to_owned(), log: true },
            kind: Kind::Bars {
                groups: vec![String::new()],
                series: vec![series("Leasehold, on Redis", ours), series("tokio::sync::Mutex", tokio)],
            },
            limits: vec![Limit { at: tokio.median * RATIO_LIMIT, label: "a tenth of tokio's".to_owned() }],
        }
    }
}
