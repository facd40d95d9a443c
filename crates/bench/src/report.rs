//! Figures of several rounds, and how a scenario shows them.

use crate::chart::{Chart, Spread};
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;

/// How a scenario shows what it measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Output {
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw pictures of the figures into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    draw: Option<PathBuf>,
}

impl Output {
    /// Prints what was measured: an object a line for programs, a sentence for people.
    pub(crate) fn print(&self, report: &impl Serialize, sentence: impl FnOnce() -> String) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            println!("{}", sentence());
        }
        Ok(())
    }

    /// Draws a picture if pictures are wanted.
    pub(crate) fn draw(&self, name: &str, chart: impl FnOnce() -> Chart) -> Result<()> {
        match &self.draw {
            Some(directory) => chart().draw(directory, name),
            None => Ok(()),
        }
    }
}

impl Spread {
    /// Of one figure of each round; NaN of nothing.
    pub(crate) fn of(values: &[f64]) -> Self {
        let [least, most] = spread(values);
        Self { median: median(values), least, most }
    }

    /// Of what a figure is in each of some rounds.
    pub(crate) fn over<T>(rounds: &[T], figure: impl FnMut(&T) -> f64) -> Self {
        Self::of(&rounds.iter().map(figure).collect::<Vec<_>>())
    }

    /// The smallest and the greatest.
    pub(crate) fn ends(self) -> [f64; 2] {
        [self.least, self.most]
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

/// The mean of some nanoseconds, in microseconds; NaN of nothing.
pub(crate) fn mean_us(values: &[u64]) -> f64 {
    per(values.iter().sum(), values.len() as u64) / 1000.0
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

/// So many in so many nanoseconds, a second.
pub(crate) fn per_s(count: u64, took_ns: u64) -> f64 {
    per(count, took_ns) * 1e9
}
