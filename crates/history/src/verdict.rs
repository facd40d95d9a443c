//! What the checks found in a history, and what was measured.

use crate::event::{FaultKind, Mode};
use serde::Serialize;
use std::collections::BTreeMap;

/// The judgement of a history. Serialized, it is the `--json` of `leasehold verify`.
///
/// ```
/// use leasehold_history::Verdict;
///
/// assert!(!Verdict::default().passed(), "a history in which nothing was looked at shows nothing");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// What must not happen and did, in order of time.
    pub violations: Vec<Violation>,
    /// Each check, with how much it looked at.
    pub checks: Vec<CheckOutcome>,
    /// What was measured.
    pub measured: Measured,
}

impl Verdict {
    /// Whether there is no violation, and at least one check looked at something.
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.checks.iter().any(|check| check.judged > 0)
    }

    /// The checks that looked at nothing: of what they check, the history shows nothing.
    pub fn not_judged(&self) -> impl Iterator<Item = &CheckOutcome> {
        self.checks.iter().filter(|check| check.judged == 0)
    }
}

/// What a check looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckOutcome {
    /// Its name, such as `exclusion`.
    pub name: &'static str,
    /// What it checks, in a sentence.
    pub checks: &'static str,
    /// What it counts in `judged`, in the plural, such as `pairs of holds`.
    pub counts: &'static str,
    /// How many things it looked at. 0: the history shows nothing of it.
    pub judged: u64,
    /// How many it left out because of a fault, for which it makes an exception.
    pub excused: u64,
    /// How many violations it found.
    pub violations: u64,
    /// Why it judged nothing, or what else a reader needs to know.
    pub note: Option<String>,
}

/// Something that must not happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The check that found it.
    pub check: &'static str,
    /// The lock. None: it belongs to no single lock.
    pub lock: Option<String>,
    /// When, in microseconds since the run began.
    pub at_us: u64,
    /// Until when, if it lasted.
    pub until_us: Option<u64>,
    /// What happened, in plain sentences.
    pub what: String,
    /// The calls that are involved, and the holds that they acquired.
    pub calls: Vec<CallRecord>,
    /// The faults that went on at this time, or whose effects may have lasted until then.
    pub faults: Vec<FaultRecord>,
    /// The writes of these holds that a fencing check at the resource refuses.
    pub refused: Vec<RefusedWrite>,
    /// What a fencing check at the resource does about this violation, in plain sentences. None: it has nothing to do with writes.
    pub fencing: Option<String>,
}

/// A call of acquire, and the hold that it acquired. Times are in microseconds since the run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallRecord {
    /// The number of the call.
    pub call: u64,
    /// The number of the process.
    pub process: u32,
    /// Its process id.
    pub pid: Option<u32>,
    /// The lock.
    pub lock: String,
    /// How it was to be held.
    pub mode: Mode,
    /// For which owner.
    pub owner: Option<u64>,
    /// When acquire was called.
    pub asked_us: u64,
    /// When it returned.
    pub answered_us: Option<u64>,
    /// Whether it was granted.
    pub granted: bool,
    /// The fencing token.
    pub fence: Option<u64>,
    /// The holder believes to have the lock from `answered_us` to this time, at which it was last valid.
    pub believed_until_us: Option<u64>,
    /// When the library reported the loss of the hold.
    pub lost_us: Option<u64>,
    /// When the holder began to release it.
    pub release_asked_us: Option<u64>,
    /// When the release returned.
    pub released_us: Option<u64>,
    /// When its process ended, if that was before the end of the run.
    pub exited_us: Option<u64>,
}

/// A fault. Times are in microseconds since the run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FaultRecord {
    /// The number of the fault.
    pub fault: u64,
    /// Which fault.
    pub kind: FaultKind,
    /// The worker that it hits. None: all, or the store.
    pub worker: Option<u32>,
    /// What it is, for a person.
    pub detail: String,
    /// When it began.
    pub from_us: u64,
    /// When it ended.
    pub to_us: u64,
}

/// A write that a fencing check at the resource refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedWrite {
    /// The call that acquired the hold under which the holder wrote.
    pub call: u64,
    /// The token of that hold.
    pub fence: u64,
    /// When the write arrived, in microseconds since the run began.
    pub at_us: u64,
    /// The greatest token that wrote before.
    pub after_fence: u64,
}

/// What was measured. Times are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Measured {
    /// The length of the history.
    pub length_us: u64,
    /// Calls of acquire.
    pub calls: u64,
    /// Holds that were granted.
    pub holds: u64,
    /// Calls that ended with an error.
    pub failed_calls: u64,
    /// Writes to guarded counters.
    pub writes: u64,
    /// Writes after the holder's belief was over that the fencing check refused.
    pub late_writes_refused: u64,
    /// Writes after the holder's belief was over that the fencing check let pass, since no greater token had written yet.
    pub late_writes_accepted: u64,
    /// From a question to the store until its answer.
    pub round_trip: Option<Percentiles>,
    /// From a call of acquire until it is granted, outside of faults.
    pub wait: Option<Percentiles>,
    /// From the beginning of a release until the next waiter has the lock, outside of faults.
    pub hand_off: Option<Percentiles>,
    /// From the kill of a holder until the next waiter has the lock.
    pub take_over: Option<Percentiles>,
    /// The clocks of the store's nodes.
    pub clocks: Vec<NodeClock>,
    /// How many faults of each kind there were.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The part of the run in which at least one fault was going on, 0 to 1.
    pub share_in_faults: f64,
}

/// How a duration is distributed, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// The median.
    pub p50_us: u64,
    /// 90 % are not longer.
    pub p90_us: u64,
    /// 99 % are not longer.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Percentiles {
    /// Of all values; None if there is none.
    pub(crate) fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let max_us = *values.last()?;
        // The smallest value that so many are not greater than.
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).saturating_sub(1)];
        Some(Self { count: values.len() as u64, p50_us: at(50), p90_us: at(90), p99_us: at(99), max_us })
    }
}

/// The clock of a node of the store, beside the monotonic one of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeClock {
    /// The node.
    pub node: u32,
    /// How often it was asked.
    pub samples: u64,
    /// The steps that neither the round trips nor an ordinary drift explain.
    pub steps: Vec<ClockStep>,
}

/// A step of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClockStep {
    /// When it was seen, in microseconds since the run began.
    pub at_us: u64,
    /// By how much, in microseconds; negative if the clock was set back.
    pub by_us: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let all = Percentiles::of((1..=100).rev().collect()).expect("values");
        assert_eq!((all.count, all.p50_us, all.p90_us, all.p99_us, all.max_us), (100, 50, 90, 99, 100));
        let one = Percentiles::of(vec![7]).expect("a value");
        assert_eq!((one.p50_us, one.p99_us, one.max_us), (7, 7, 7));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }
}
