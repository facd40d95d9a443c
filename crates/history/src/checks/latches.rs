//! A latch opens after all arrivals, and not before.
//!
//! - A wait that is granted returns after `permits` count-downs of this latch were asked. A count-down that failed may have been
//!   counted, so it counts. No fault excuses a latch that opens too early.
//! - Once so many count-downs were granted, each wait returns within a bound (`Margins::wake_up_us`), unless a fault disturbs a process
//!   that uses the latch, or the store. A wait whose limit ends sooner is not judged by this.
//!
//! A name is for one latch: a history does not say when a latch is shut again.

use super::{Findings, violation};
use crate::event::{LockKind, Mode};
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Lock, Timeline};

pub(super) fn check(timeline: &Timeline<'_>, margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in timeline.locks.iter().filter(|lock| lock.spec.kind == LockKind::Latch) {
        let count = lock.spec.permits.unwrap_or_default() as usize;
        let arrivals: Vec<usize> =
            lock.calls.iter().copied().filter(|&call| timeline.calls[call].mode == Mode::CountDown).collect();
        let mut granted: Vec<u64> =
            arrivals.iter().filter_map(|&call| timeline.calls[call].granted_us()).collect();
        granted.sort_unstable();
        let opened_us = count.checked_sub(1).map_or(Some(0), |last| granted.get(last).copied());
        for &index in lock.calls.iter().filter(|&&call| timeline.calls[call].mode == Mode::Wait) {
            let call = &timeline.calls[index];
            findings.judged += 1;
            if let Some(granted_us) = call.granted_us() {
                let asked = arrivals.iter().filter(|&&it| timeline.calls[it].asked_us <= granted_us).count();
                if asked < count {
                    let what = format!(
                        "`{}` let {} pass at {}, after {asked} of {count} arrivals.",
                        lock.spec.name,
                        timeline.process_name(call),
                        seconds(granted_us)
                    );
                    let calls: Vec<usize> = arrivals.iter().copied().chain([index]).collect();
                    findings.violations.push(violation(timeline, lock, (granted_us, None), &calls, what));
                }
            }
            if let Some(opened_us) = opened_us
                && let Some(late) = waits_on(timeline, margins, lock, index, opened_us)
            {
                findings.violations.push(late);
            }
        }
    }
    findings
}

/// Whether a wait goes on although the latch is open.
fn waits_on(
    timeline: &Timeline<'_>,
    margins: &Margins,
    lock: &Lock<'_>,
    index: usize,
    opened_us: u64,
) -> Option<crate::Violation> {
    let call = &timeline.calls[index];
    let (from_us, until_us) = (opened_us.max(call.asked_us), timeline.waits_until_us(call));
    let waited_us = until_us.saturating_sub(from_us);
    let first_us = lock.calls.first().map_or(from_us, |&first| timeline.calls[first].asked_us);
    if waited_us <= margins.wake_up_us || lock.disturbed.overlaps(first_us, until_us) {
        return None;
    }
    let what = format!(
        "{} waited at `{}` for {} after all arrivals.",
        timeline.process_name(call),
        lock.spec.name,
        duration(waited_us)
    );
    Some(violation(timeline, lock, (from_us, Some(until_us)), &[index], what))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Script;
    use crate::event::{FaultKind, LockKind, Mode};

    const MS: u64 = 1000;

    /// A latch of two, with arrivals and a wait at these times.
    fn latch(arrivals_ms: [u64; 2], opened_ms: u64) -> Script {
        let mut script = Script::with(LockKind::Latch, Some(2), None);
        let wait = script.asked(3, Mode::Wait, MS);
        for (process, at) in [1, 2].into_iter().zip(arrivals_ms) {
            let call = script.asked(process, Mode::CountDown, at * MS);
            script.answer(at * MS + 100, call, None);
        }
        script.answer(opened_ms * MS, wait, None);
        script
    }

    #[test]
    fn a_latch_that_opens_after_all_arrivals_is_in_order() {
        assert_eq!(latch([10, 20], 21).outcome("latches"), (1, 0));
    }

    #[test]
    fn one_that_opens_too_early_or_too_late_is_found() {
        assert_eq!(latch([10, 30], 21).outcome("latches"), (1, 1));
        assert_eq!(latch([10, 30], 5_000).outcome("latches"), (1, 1));
        let mut script = latch([10, 30], 5_000);
        script.fault(FaultKind::Cut, Some(3), 20 * MS..4_000 * MS);
        assert_eq!(script.outcome("latches"), (1, 0), "it was cut off");
    }
}
