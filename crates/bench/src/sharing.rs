//! What many holders of one lock cost the next: readers of an `RwLock`, and holders of permits of a `Semaphore`.
//!
//! Each request is measured by itself, as the server counts it. Numbers of holders are compared with the fewest in
//! alternating rounds, each with a server and a process of its own.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::Machine;
use crate::report::{Output, median};
use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use std::time::Duration;

/// The shared locks, as the worker calls them.
const LOCKS: [&str; 2] = ["rwlock", "semaphore"];
/// How long many holders may take to acquire the lock.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1800);

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many hold the lock; the first is what the others are compared with.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 10_000])]
    holders: Vec<u64>,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many times each request is measured in a round.
    #[arg(long, default_value_t = 200)]
    samples: usize,
}

/// What one number of holders measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct SharingReport {
    scenario: &'static str,
    lock: &'static str,
    /// The server's time in a request, relative to that with the fewest holders.
    acquire_ratio: f64,
    extend_ratio: f64,
    release_ratio: f64,
    acquire_ratio_spread: [f64; 2],
    extend_ratio_spread: [f64; 2],
    release_ratio_spread: [f64; 2],
    acquire_us: f64,
    extend_us: f64,
    release_us: f64,
    holders: u64,
    compared_with: u64,
    rounds: usize,
    samples: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// The server's time in an acquire, an extend and a release: medians of one round, in microseconds.
type Sample = [f64; 3];

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.samples > 0, "nothing to measure");
    let few = *options.holders.first().context("no number of holders")?;
    let machine = Machine::with(&start_server()?)?;
    let mut all = Vec::new();
    for lock in LOCKS {
        let mut samples: Vec<Vec<Sample>> = options.holders.iter().map(|_| Vec::new()).collect();
        for round in 0..options.rounds {
            let mut order: Vec<_> = options.holders.iter().zip(&mut samples).collect();
            // Each is as early as it is late.
            if round % 2 == 1 {
                order.reverse();
            }
            for (holders, samples) in order {
                samples.push(measure(lock, *holders, options.samples)?);
            }
        }
        for (holders, rounds) in options.holders.iter().zip(&samples) {
            let report =
                SharingReport::new(lock, *holders, few, [rounds, &samples[0]], options, machine.clone());
            options.output.print(&report, || report.sentence())?;
        }
        all.push((lock, samples));
    }
    options.output.draw("sharing", || chart(options, &all, &machine))
}

/// Measures requests about a lock that so many hold.
fn measure(lock: &str, holders: u64, samples: usize) -> Result<Sample> {
    let server = start_server()?;
    let (url, holders) = (server.url(), holders.to_string());
    let mut worker = start_worker(&["share", "--url", &url, "--kind", lock, "--holders", &holders])?;
    worker.expect("ready", REPLY_TIMEOUT)?;
    worker.send("hold")?;
    worker.expect("held", HOLD_TIMEOUT)?;
    let mut all: [Vec<f64>; 3] = Default::default();
    for _ in 0..samples {
        worker.send("measure")?;
        let line = worker.line(REPLY_TIMEOUT)?;
        let times = line.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        let times =
            <[f64; 3]>::try_from(times).map_err(|_| anyhow!("three numbers were expected: {line}"))?;
        for (all, time) in all.iter_mut().zip(times) {
            all.push(time);
        }
    }
    worker.send("stop")?;
    let ended = worker.wait(REPLY_TIMEOUT)?;
    ensure!(ended.success(), "a hold was lost");
    Ok(all.map(|times| median(&times)))
}

impl SharingReport {
    fn new(
        lock: &'static str,
        holders: u64,
        compared_with: u64,
        [rounds, few]: [&[Sample]; 2],
        options: &Options,
        machine: Machine,
    ) -> Self {
        let [acquire, extend, release] = [0, 1, 2].map(|request| ratio(rounds, few, request));
        let [acquire_us, extend_us, release_us] =
            [0, 1, 2].map(|request| Spread::over(rounds, |sample| sample[request]).median);
        Self {
            scenario: "sharing",
            lock,
            acquire_ratio: acquire.median,
            extend_ratio: extend.median,
            release_ratio: release.median,
            acquire_ratio_spread: acquire.ends(),
            extend_ratio_spread: extend.ends(),
            release_ratio_spread: release.ends(),
            acquire_us,
            extend_us,
            release_us,
            holders,
            compared_with,
            rounds: rounds.len(),
            samples: options.samples,
            machine,
        }
    }

    fn sentence(&self) -> String {
        format!(
            "sharing, {} with {} holders: the server takes {:.0} us to acquire, {:.2} x that with {}; {:.0} us to extend, {:.2} x; \
             {:.0} us to release, {:.2} x",
            self.lock,
            self.holders,
            self.acquire_us,
            self.acquire_ratio,
            self.compared_with,
            self.extend_us,
            self.extend_ratio,
            self.release_us,
            self.release_ratio,
        )
    }
}

/// The ratio of a request's time to that with the fewest holders in the same round.
fn ratio(rounds: &[Sample], few: &[Sample], request: usize) -> Spread {
    Spread::of(&rounds.iter().zip(few).map(|(many, few)| many[request] / few[request]).collect::<Vec<_>>())
}

fn chart(options: &Options, all: &[(&str, Vec<Vec<Sample>>)], machine: &Machine) -> Chart {
    let line = |lock: &str, samples: &[Vec<Sample>], name: &str, request: usize| {
        #[allow(clippy::cast_precision_loss, reason = "a place on an axis")]
        let point = |(holders, rounds): (&u64, &Vec<Sample>)| {
            (*holders as f64, Spread::over(rounds, |sample| sample[request]))
        };
        Series {
            name: format!("{lock}: {name}"),
            values: options.holders.iter().zip(samples).map(point).collect(),
        }
    };
    let lines = |(lock, samples): &(&str, Vec<Vec<Sample>>)| {
        [("acquire", 0), ("extend", 1), ("release", 2)]
            .map(|(name, request)| line(lock, samples, name, request))
    };
    Chart {
        title: "Requests about a lock that many hold".to_owned(),
        note: machine.to_string(),
        y: Axis { label: "microseconds of the server".to_owned(), log: true },
        kind: Kind::Lines {
            x: Axis { label: "holders".to_owned(), log: true },
            series: all.iter().flat_map(lines).collect(),
        },
        limits: Vec::new(),
    }
}
