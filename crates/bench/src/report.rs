//! Figures over several rounds, and how a scenario prints and draws them.

use crate::chart::{Chart, Spread};
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;

/// Where a scenario shows its figures.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Output {
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw charts of the figures into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    draw: Option<PathBuf>,
}

impl Output {
    /// Prints a report, as a JSON object or as a sentence.
    pub(crate) fn print(&self, report: &impl Serialize, sentence: impl FnOnce() -> String) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            println!("{}", sentence());
        }
        Ok(())
    }

    /// Draws a chart if a directory was given.
    pub(crate) fn draw(&self, name: &str, chart: impl FnOnce() -> Chart) -> Result<()> {
        match &self.draw {
            Some(directory) => chart().draw(directory, name),
            None => Ok(()),
        }
    }
}

impl Spread {
    /// Of one figure of each round; NaN without a round.
    pub(crate) fn of(values: &[f64]) -> Self {
        let [least, most] = spread(values);
        Self { median: median(values), least, most }
    }

    /// Of a figure of each round.
    pub(crate) fn over<T>(rounds: &[T], figure: impl FnMut(&T) -> f64) -> Self {
        Self::of(&rounds.iter().map(figure).collect::<Vec<_>>())
    }

    /// The smallest and the greatest value.
    pub(crate) fn ends(self) -> [f64; 2] {
        [self.least, self.most]
    }
}

/// The `share` quantile of times in nanoseconds, in microseconds; 0 without a value.
pub(crate) fn quantile_us(values: &[u64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into thousands of samples, and microseconds of a day"
    )]
    sorted
        .get(((sorted.len().saturating_sub(1)) as f64 * share).round() as usize)
        .map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// The mean of times in nanoseconds, in microseconds; NaN without a value.
pub(crate) fn mean_us(values: &[u64]) -> f64 {
    per(values.iter().sum(), values.len() as u64) / 1000.0
}

/// The median; NaN without a value.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The smallest and the greatest value; NaN without a value.
pub(crate) fn spread(values: &[f64]) -> [f64; 2] {
    let pick = |which: fn(f64, f64) -> f64| values.iter().copied().reduce(which).unwrap_or(f64::NAN);
    [pick(f64::min), pick(f64::max)]
}

/// The ratio of two counts; NaN if both are 0.
#[allow(clippy::cast_precision_loss, reason = "a ratio needs no more than the leading bits")]
pub(crate) fn per(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

/// The rate of a count in so many nanoseconds, per second.
pub(crate) fn per_s(count: u64, took_ns: u64) -> f64 {
    per(count, took_ns) * 1e9
}
