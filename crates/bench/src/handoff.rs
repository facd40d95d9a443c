//! From the release in one process to the next holder in another.
//!
//! Two processes hand the lock over, and in alternating trials one publishes a bare message to the other: the same
//! processes, client library, runtime and pauses.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::critical_section::CriticalSection;
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker, tell_all};
use crate::meter::{Machine, ServerStats};
use crate::report::{Output, per, quantile_us};
use anyhow::Result;
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The pause before each trial, on both sides of the ratio.
const PAUSE_US: u64 = 1500;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds of hand-offs and bare messages alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many trials a round has, of each kind.
    #[arg(long, default_value_t = 400)]
    trials: u32,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct HandoffReport {
    scenario: &'static str,
    /// The time of a hand-off relative to a bare message, by their medians and by their 99th percentiles.
    p50_ratio: f64,
    p99_ratio: f64,
    /// Commands and scripts that clients send.
    requests_per_handover: f64,
    p50_ratio_spread: [f64; 2],
    p99_ratio_spread: [f64; 2],
    handover_p50_us: f64,
    handover_p99_us: f64,
    bare_p50_us: f64,
    bare_p99_us: f64,
    longest_wait_ms: f64,
    handovers: usize,
    rounds: usize,
    processes: u32,
    #[serde(flatten)]
    machine: Machine,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let server = start_server()?;
    let mut pair = Pair::start(&server)?;
    // A warm-up.
    pair.round(options.trials / 4 + 1, &mut RoundTimes::default())?;
    let mut rounds = Vec::new();
    let before = ServerStats::read(&server)?;
    for _ in 0..options.rounds {
        let mut times = RoundTimes::default();
        pair.round(options.trials, &mut times)?;
        rounds.push(times);
    }
    let served = ServerStats::read(&server)?.since(before);
    pair.stop()?;
    let report = report(&rounds, served.requests, Machine::with(&server)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("handoff", || report.chart(&rounds))
}

/// What one round measured, in nanoseconds.
#[derive(Default)]
struct RoundTimes {
    /// From the call of the release to the holder in the other process.
    lock: Vec<u64>,
    /// From the call of PUBLISH to the waiting task in the other process.
    bare: Vec<u64>,
    /// Each wait for the lock.
    waits: Vec<u64>,
}

/// Two processes that hand over a lock, or a message.
struct Pair {
    workers: [Worker; 2],
}

impl Pair {
    fn start(server: &RedisServer) -> Result<Self> {
        let start = |process: u32| -> Result<Worker> {
            let process = process.to_string();
            start_worker(&["handoff", "--url", &server.url(), "--process", &process])
        };
        let mut workers = [start(0)?, start(1)?];
        for worker in &mut workers {
            worker.expect("ready", REPLY_TIMEOUT)?;
        }
        Ok(Self { workers })
    }

    /// Alternates trials with the lock and with the bare message, so that both meet the same load.
    fn round(&mut self, trials: u32, times: &mut RoundTimes) -> Result<()> {
        let [a, b] = &mut self.workers;
        acquire(a)?;
        for trial in 0..trials {
            let (holder, waiter) = if trial % 2 == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            waiter.send("acquire")?;
            holder.send(&format!("release {PAUSE_US}"))?;
            // The reply to the release is read first: if it failed, that is the error to report.
            let released_ns: u64 = holder.line(REPLY_TIMEOUT)?.parse()?;
            let section: CriticalSection = waiter.line(REPLY_TIMEOUT)?.parse()?;
            times.lock.push(section.acquired_ns.saturating_sub(released_ns));
            times.waits.push(section.wait_ns());

            let to = (trial + 1) % 2;
            let (publisher, subscriber) = (holder, waiter);
            subscriber.send("listen")?;
            publisher.send(&format!("publish {PAUSE_US} {to}"))?;
            let received_ns: u64 = subscriber.line(REPLY_TIMEOUT)?.parse()?;
            let sent_ns: u64 = publisher.line(REPLY_TIMEOUT)?.parse()?;
            times.bare.push(received_ns.saturating_sub(sent_ns));
        }
        let last = if trials.is_multiple_of(2) { a } else { b };
        last.send("release 0")?;
        last.line(REPLY_TIMEOUT)?;
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        tell_all(&mut self.workers, "stop")
    }
}

fn acquire(worker: &mut Worker) -> Result<CriticalSection> {
    worker.send("acquire")?;
    worker.line(REPLY_TIMEOUT)?.parse()
}

fn report(rounds: &[RoundTimes], requests: u64, machine: Machine) -> HandoffReport {
    let all =
        |which: fn(&RoundTimes) -> &Vec<u64>| rounds.iter().flat_map(which).copied().collect::<Vec<u64>>();
    let (lock, bare, waits) = (all(|round| &round.lock), all(|round| &round.bare), all(|round| &round.waits));
    let ratio = |share: f64| {
        Spread::over(rounds, |round| quantile_us(&round.lock, share) / quantile_us(&round.bare, share))
    };
    let (p50, p99) = (ratio(0.5), ratio(0.99));
    HandoffReport {
        scenario: "handoff",
        p50_ratio: p50.median,
        p99_ratio: p99.median,
        // The first section of a round is not handed off.
        requests_per_handover: per(requests, (lock.len() + rounds.len()) as u64),
        p50_ratio_spread: p50.ends(),
        p99_ratio_spread: p99.ends(),
        handover_p50_us: quantile_us(&lock, 0.5),
        handover_p99_us: quantile_us(&lock, 0.99),
        bare_p50_us: quantile_us(&bare, 0.5),
        bare_p99_us: quantile_us(&bare, 0.99),
        longest_wait_ms: quantile_us(&waits, 1.0) / 1000.0,
        handovers: lock.len(),
        rounds: rounds.len(),
        processes: 2,
        machine,
    }
}

impl HandoffReport {
    fn sentence(&self) -> String {
        format!(
            "handoff: p50 {:.2} x and p99 {:.2} x a bare message ({:.0} and {:.0} us; bare {:.0} and {:.0} us); {:.3} \
             requests a hand-off; {} hand-offs between 2 processes",
            self.p50_ratio,
            self.p99_ratio,
            self.handover_p50_us,
            self.handover_p99_us,
            self.bare_p50_us,
            self.bare_p99_us,
            self.requests_per_handover,
            self.handovers,
        )
    }

    fn chart(&self, rounds: &[RoundTimes]) -> Chart {
        let series = |name: &str, which: fn(&RoundTimes) -> &Vec<u64>| {
            let at = |share| Spread::over(rounds, |round| quantile_us(which(round), share));
            Series { name: name.to_owned(), values: vec![at(0.5), at(0.99)] }
        };
        Chart {
            title: "A lock from one process to another".to_owned(),
            note: self.machine.to_string(),
            y: Axis { label: "microseconds".to_owned(), log: false },
            kind: Kind::Bars {
                groups: vec!["median".to_owned(), "99th percentile".to_owned()],
                series: vec![
                    series("from release to the next holder", |round| &round.lock),
                    series("a bare message", |round| &round.bare),
                ],
            },
            limits: Vec::new(),
        }
    }
}
