//! Figures, and how they are printed.

use serde::Serialize;

/// What one scenario measured. Every field is documented in docs/benchmarks.md.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Which scenario.
    pub(crate) scenario: &'static str,
    /// Median hand-over to median bare message, the median over rounds.
    pub(crate) p50_ratio: f64,
    /// 99th percentile of the hand-over to that of the bare message, the median over rounds.
    pub(crate) p99_ratio: f64,
    /// Commands and scripts that the server got from clients, a critical section.
    pub(crate) requests_per_section: f64,
    /// Hand-overs a second.
    pub(crate) handoffs_per_s: f64,
    /// The longest that any task waited for the lock.
    pub(crate) longest_wait_ms: f64,
    /// The longest wait to the mean wait.
    pub(crate) longest_to_mean_wait: f64,
    /// How many sections were measured.
    pub(crate) sections: usize,
    /// Median and 99th percentile of a hand-over, in microseconds.
    pub(crate) handoff_p50_us: f64,
    /// See `handoff_p50_us`.
    pub(crate) handoff_p99_us: f64,
    /// Median of a bare message, in microseconds.
    pub(crate) bare_p50_us: f64,
    /// 99th percentile of a bare message, in microseconds.
    pub(crate) bare_p99_us: f64,
    /// Smallest and greatest `p50_ratio` of the rounds.
    pub(crate) p50_ratio_spread: [f64; 2],
    /// How many processes and tasks took part.
    pub(crate) processes: u32,
    /// See `processes`.
    pub(crate) tasks: u32,
    /// The server's own words of what it is.
    pub(crate) server: String,
}

impl Report {
    pub(crate) fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).unwrap_or_default());
            return;
        }
        println!(
            "{}: p50 {:.2} x and p99 {:.2} x a bare message ({:.0} and {:.0} us; bare {:.0} and {:.0} us); \
             {:.3} requests a section; {:.0} hand-overs a second; longest wait {:.1} ms; \
             {} sections, {} tasks in {} processes",
            self.scenario,
            self.p50_ratio,
            self.p99_ratio,
            self.handoff_p50_us,
            self.handoff_p99_us,
            self.bare_p50_us,
            self.bare_p99_us,
            self.requests_per_section,
            self.handoffs_per_s,
            self.longest_wait_ms,
            self.sections,
            self.tasks,
            self.processes,
        );
    }
}

/// The `share` quantile of some nanoseconds, in microseconds; 0 of nothing.
pub(crate) fn quantile_us(values: &[u64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into some thousand samples, and microseconds of a day"
    )]
    sorted
        .get(((sorted.len().saturating_sub(1)) as f64 * share).round() as usize)
        .map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// The median of some ratios; NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The smallest and the greatest of some ratios; NaN of nothing.
pub(crate) fn spread(values: &[f64]) -> [f64; 2] {
    let pick = |which: fn(f64, f64) -> f64| values.iter().copied().reduce(which).unwrap_or(f64::NAN);
    [pick(f64::min), pick(f64::max)]
}

/// One count to another; NaN of nothing.
#[allow(clippy::cast_precision_loss, reason = "a ratio needs no more than the leading bits")]
pub(crate) fn per(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

/// Prints what a scenario measured: an object a line for programs, a sentence for people.
pub(crate) fn print(
    report: &impl Serialize,
    json: bool,
    sentence: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        println!("{}", sentence());
    }
    Ok(())
}
