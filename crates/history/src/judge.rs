//! Runs all checks over a history.

use crate::checks;
use crate::history::History;
use crate::margins::Margins;
use crate::measure::measure;
use crate::timeline::Timeline;
use crate::verdict::Verdict;

/// Judges a history by all checks, with the default margins.
pub fn judge(history: &History) -> Verdict {
    judge_with(history, &Margins::default())
}

/// Judges a history by all checks.
pub fn judge_with(history: &History, margins: &Margins) -> Verdict {
    let timeline = Timeline::of(history, margins);
    let (checks, violations) = checks::run(&timeline, margins);
    Verdict { violations, checks, measured: measure(history, &timeline) }
}
