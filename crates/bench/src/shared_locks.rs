//! The gain of several concurrent holders: `rwlock` with its readers, and `semaphore` with several permits.
//!
//! Each is compared with a Mutex under which the same tasks do the same, one after the other.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::contention::{Measurement, Variant, Window, measure_alternating, spread_tasks};
use crate::launch::Topology;
use crate::meter::Machine;
use crate::report::{Output, per};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::Duration;

const TASKS: u32 = 64;
const PROCESSES: u32 = 8;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many seconds each lock of a round is measured.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How long each section takes; timers are no finer than a millisecond.
    #[arg(long, default_value_t = 1000)]
    hold_us: u64,
}

/// What one mix of readers and writers measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct RwLockReport {
    scenario: &'static str,
    #[serde(flatten)]
    common: Common,
    longest_read_wait_ms: f64,
    longest_write_wait_ms: f64,
    /// Of a hundred sections.
    reads: u8,
    #[serde(flatten)]
    setup: Setup,
}

/// What one count of permits measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct SemaphoreReport {
    scenario: &'static str,
    #[serde(flatten)]
    common: Common,
    longest_to_mean_wait: f64,
    longest_wait_ms: f64,
    permits: u32,
    #[serde(flatten)]
    setup: Setup,
}

/// The figures of both reports.
#[derive(Debug, Serialize)]
struct Common {
    /// Sections per second, relative to those of the Mutex.
    ratio: f64,
    requests_per_section: f64,
    ratio_spread: [f64; 2],
    requests_per_section_spread: [f64; 2],
    sections_per_s: f64,
    mutex_sections_per_s: f64,
    mutex_requests_per_section: f64,
    /// The server's time in scripts for a section, in microseconds.
    script_us: f64,
    mutex_script_us: f64,
}

/// How it was measured.
#[derive(Debug, Clone, Serialize)]
struct Setup {
    hold_us: u64,
    tasks: u32,
    processes: u32,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// One lock in one round.
struct Sample {
    sections_per_s: f64,
    requests: f64,
    script_us: f64,
    longest_ms: f64,
    mean_ms: f64,
    longest_exclusive_ms: f64,
    longest_shared_ms: f64,
}

/// Runs `rwlock`.
pub(crate) fn rwlock(options: &Options, reads: &[u8]) -> Result<()> {
    ensure!(reads.iter().all(|reads| *reads <= 100), "at most 100 of 100 sections read");
    let locks = reads.iter().map(|reads| format!("rwlock:{reads}"));
    let (samples, setup) = measure(options, locks)?;
    let [mutex, mixes @ ..] = &samples[..] else { return Ok(()) };
    for (reads, mix) in reads.iter().zip(mixes) {
        let report = RwLockReport {
            scenario: "rwlock",
            common: Common::new(mix, mutex),
            longest_read_wait_ms: Spread::over(mix, |sample| sample.longest_shared_ms).median,
            longest_write_wait_ms: Spread::over(mix, |sample| sample.longest_exclusive_ms).median,
            reads: *reads,
            setup: setup.clone(),
        };
        options.output.print(&report, || {
            let lock = format!("rwlock, {} of 100 sections read", report.reads);
            let waits = format!(
                "longest wait to read {:.1} ms, to write {:.1} ms",
                report.longest_read_wait_ms, report.longest_write_wait_ms
            );
            report.common.sentence(&lock, &waits)
        })?;
    }
    let groups = reads.iter().map(|reads| format!("{reads} % reads")).collect();
    options.output.draw("rwlock", || chart("Concurrent readers, 64 tasks", groups, mutex, mixes, &setup))
}

/// Runs `semaphore`.
pub(crate) fn semaphore(options: &Options, permits: &[u32]) -> Result<()> {
    let locks = permits.iter().map(|permits| format!("semaphore:{permits}"));
    let (samples, setup) = measure(options, locks)?;
    let [mutex, counts @ ..] = &samples[..] else { return Ok(()) };
    for (permits, count) in permits.iter().zip(counts) {
        let report = SemaphoreReport {
            scenario: "semaphore",
            common: Common::new(count, mutex),
            longest_to_mean_wait: Spread::over(count, |sample| sample.longest_ms / sample.mean_ms).median,
            longest_wait_ms: Spread::over(count, |sample| sample.longest_ms).median,
            permits: *permits,
            setup: setup.clone(),
        };
        options.output.print(&report, || {
            let waits = format!(
                "longest wait {:.1} ms, {:.2} x the mean",
                report.longest_wait_ms, report.longest_to_mean_wait
            );
            report.common.sentence(&format!("semaphore, {} permits", report.permits), &waits)
        })?;
    }
    let groups = permits.iter().map(|permits| format!("{permits} permits")).collect();
    options.output.draw("semaphore", || chart("Several permits, 64 tasks", groups, mutex, counts, &setup))
}

/// Measures the Mutex, and then the other locks.
fn measure(options: &Options, locks: impl Iterator<Item = String>) -> Result<(Vec<Vec<Sample>>, Setup)> {
    let Options { rounds, seconds, hold_us, .. } = *options;
    let variant = |lock: String| Variant {
        topology: Topology::Single,
        lock,
        processes: spread_tasks(TASKS, PROCESSES, hold_us),
        warm_up: Window::of(Duration::from_millis(500)),
        window: Window::of(Duration::from_secs(seconds)),
    };
    let variants: Vec<_> = std::iter::once("mutex".to_owned()).chain(locks).map(variant).collect();
    let (samples, machine) =
        measure_alternating(&variants, rounds, |_, measurement| Sample::of(measurement))?;
    Ok((samples, Setup { hold_us, tasks: TASKS, processes: PROCESSES, rounds, machine }))
}

impl Sample {
    fn of(measurement: &Measurement) -> Self {
        let (longest_ms, mean_ms) = measurement.waits_ms(|_| true);
        Self {
            sections_per_s: measurement.sections_per_s(),
            requests: measurement.requests_per_section(),
            script_us: per(measurement.server.scripts_us, measurement.count()),
            longest_ms,
            mean_ms,
            longest_exclusive_ms: measurement.waits_ms(|section| section.exclusive).0,
            longest_shared_ms: measurement.waits_ms(|section| !section.exclusive).0,
        }
    }
}

impl Common {
    fn new(samples: &[Sample], mutex: &[Sample]) -> Self {
        let ratios = ratios(samples, mutex);
        let requests = Spread::over(samples, |sample| sample.requests);
        Self {
            ratio: ratios.median,
            requests_per_section: requests.median,
            ratio_spread: ratios.ends(),
            requests_per_section_spread: requests.ends(),
            sections_per_s: Spread::over(samples, |sample| sample.sections_per_s).median,
            mutex_sections_per_s: Spread::over(mutex, |sample| sample.sections_per_s).median,
            mutex_requests_per_section: Spread::over(mutex, |sample| sample.requests).median,
            script_us: Spread::over(samples, |sample| sample.script_us).median,
            mutex_script_us: Spread::over(mutex, |sample| sample.script_us).median,
        }
    }

    fn sentence(&self, lock: &str, waits: &str) -> String {
        format!(
            "{lock}: {:.2} x the sections of a Mutex ({:.0} and {:.0} a second); {:.3} requests and {:.0} us in scripts a \
             section (the Mutex {:.3} and {:.0}); {waits}",
            self.ratio,
            self.sections_per_s,
            self.mutex_sections_per_s,
            self.requests_per_section,
            self.script_us,
            self.mutex_requests_per_section,
            self.mutex_script_us,
        )
    }
}

/// Sections per second, relative to those of the Mutex in the same round.
fn ratios(samples: &[Sample], mutex: &[Sample]) -> Spread {
    Spread::of(
        &samples
            .iter()
            .zip(mutex)
            .map(|(sample, mutex)| sample.sections_per_s / mutex.sections_per_s)
            .collect::<Vec<_>>(),
    )
}

fn chart(
    title: &str,
    groups: Vec<String>,
    mutex: &[Sample],
    samples: &[Vec<Sample>],
    setup: &Setup,
) -> Chart {
    let values = samples.iter().map(|samples| ratios(samples, mutex)).collect();
    Chart {
        title: title.to_owned(),
        note: setup.machine.to_string(),
        y: Axis { label: "sections a second, relative to a Mutex".to_owned(), log: true },
        kind: Kind::Bars { groups, series: vec![Series { name: "several holders".to_owned(), values }] },
        limits: vec![Limit { at: 1.0, label: "a Mutex".to_owned() }],
    }
}
