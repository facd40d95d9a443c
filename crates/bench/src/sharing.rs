//! What it brings to be side by side: `rwlock`, whose readers are, and `semaphore`, of whose permits there are several.
//!
//! Each is compared with a Mutex under which the same tasks do the same for as long, one after the other.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::crowd::{Lap, Side, Span, alternate, posts};
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
    /// How many seconds each lock of a round is watched.
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
    end: End,
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
    end: End,
}

/// The figures that both have.
#[derive(Debug, Serialize)]
struct Common {
    /// Sections a second, to those of the Mutex.
    ratio: f64,
    requests_per_section: f64,
    ratio_spread: [f64; 2],
    requests_per_section_spread: [f64; 2],
    sections_per_s: f64,
    mutex_sections_per_s: f64,
    mutex_requests_per_section: f64,
    /// The server's time in scripts, in microseconds a section.
    script_us: f64,
    mutex_script_us: f64,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
struct End {
    hold_us: u64,
    tasks: u32,
    processes: u32,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// One lock in one round.
struct Turn {
    each_s: f64,
    requests: f64,
    script_us: f64,
    longest_ms: f64,
    mean_ms: f64,
    longest_alone_ms: f64,
    longest_beside_ms: f64,
}

/// Runs `rwlock`.
pub(crate) fn rwlock(options: &Options, reads: &[u8]) -> Result<()> {
    ensure!(reads.iter().all(|reads| *reads <= 100), "of a hundred sections");
    let sought = reads.iter().map(|reads| format!("rwlock:{reads}"));
    let (turns, end) = measure(options, sought)?;
    let [mutex, mixes @ ..] = &turns[..] else { return Ok(()) };
    for (reads, mix) in reads.iter().zip(mixes) {
        let report = RwLockReport {
            scenario: "rwlock",
            common: Common::new(mix, mutex),
            longest_read_wait_ms: Spread::over(mix, |turn| turn.longest_beside_ms).median,
            longest_write_wait_ms: Spread::over(mix, |turn| turn.longest_alone_ms).median,
            reads: *reads,
            end: end.clone(),
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
    options.output.draw("rwlock", || chart("Readers side by side, 64 tasks", groups, mutex, mixes, &end))
}

/// Runs `semaphore`.
pub(crate) fn semaphore(options: &Options, permits: &[u32]) -> Result<()> {
    let sought = permits.iter().map(|permits| format!("semaphore:{permits}"));
    let (turns, end) = measure(options, sought)?;
    let [mutex, counts @ ..] = &turns[..] else { return Ok(()) };
    for (permits, count) in permits.iter().zip(counts) {
        let report = SemaphoreReport {
            scenario: "semaphore",
            common: Common::new(count, mutex),
            longest_to_mean_wait: Spread::over(count, |turn| turn.longest_ms / turn.mean_ms).median,
            longest_wait_ms: Spread::over(count, |turn| turn.longest_ms).median,
            permits: *permits,
            end: end.clone(),
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
    options.output.draw("semaphore", || chart("Several permits, 64 tasks", groups, mutex, counts, &end))
}

/// The Mutex, and then the others.
fn measure(options: &Options, sought: impl Iterator<Item = String>) -> Result<(Vec<Vec<Turn>>, End)> {
    let Options { rounds, seconds, hold_us, .. } = *options;
    let side = |sought: String| Side {
        sought,
        posts: posts(TASKS, PROCESSES, hold_us),
        warm_up: Span::of(Duration::from_millis(500)),
        span: Span::of(Duration::from_secs(seconds)),
    };
    let sides: Vec<_> = std::iter::once("mutex".to_owned()).chain(sought).map(side).collect();
    let (turns, machine) = alternate(&sides, rounds, |_, lap| Turn::of(lap))?;
    Ok((turns, End { hold_us, tasks: TASKS, processes: PROCESSES, rounds, machine }))
}

impl Turn {
    fn of(lap: &Lap) -> Self {
        let (longest_ms, mean_ms) = lap.waits_ms(|_| true);
        Self {
            each_s: lap.each_s(),
            requests: lap.requests_each(),
            script_us: per(lap.served.scripts_us, lap.count()),
            longest_ms,
            mean_ms,
            longest_alone_ms: lap.waits_ms(|section| section.alone).0,
            longest_beside_ms: lap.waits_ms(|section| !section.alone).0,
        }
    }
}

impl Common {
    fn new(turns: &[Turn], mutex: &[Turn]) -> Self {
        let ratios = ratios(turns, mutex);
        let requests = Spread::over(turns, |turn| turn.requests);
        Self {
            ratio: ratios.median,
            requests_per_section: requests.median,
            ratio_spread: ratios.ends(),
            requests_per_section_spread: requests.ends(),
            sections_per_s: Spread::over(turns, |turn| turn.each_s).median,
            mutex_sections_per_s: Spread::over(mutex, |turn| turn.each_s).median,
            mutex_requests_per_section: Spread::over(mutex, |turn| turn.requests).median,
            script_us: Spread::over(turns, |turn| turn.script_us).median,
            mutex_script_us: Spread::over(mutex, |turn| turn.script_us).median,
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

/// Sections a second, to those of the Mutex in the same round.
fn ratios(turns: &[Turn], mutex: &[Turn]) -> Spread {
    Spread::of(&turns.iter().zip(mutex).map(|(turn, mutex)| turn.each_s / mutex.each_s).collect::<Vec<_>>())
}

fn chart(title: &str, groups: Vec<String>, mutex: &[Turn], turns: &[Vec<Turn>], end: &End) -> Chart {
    let values = turns.iter().map(|turns| ratios(turns, mutex)).collect();
    Chart {
        title: title.to_owned(),
        note: end.machine.to_string(),
        y: Axis { label: "sections a second, times those of a Mutex".to_owned(), log: true },
        kind: Kind::Bars { groups, series: vec![Series { name: "side by side".to_owned(), values }] },
        limits: vec![Limit { at: 1.0, label: "a Mutex".to_owned() }],
    }
}
