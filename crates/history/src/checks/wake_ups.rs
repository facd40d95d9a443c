//! A lock that is free, or whose holder died, goes to a waiter in time.
//!
//! Judged are Mutexes, re-entrant locks, `RwLock`s, Semaphores and Elections.
//!
//! 1. While a process waits, the lock is not without any hold for longer than a bound (`Margins::wake_up_us`).
//! 2. At the end of the workload, no call without a limit is open whose process lives.
//!
//! A hold counts from its grant until its release has returned. What faults may leave at the store counts as a hold, too: a process
//! that was hit, and that holds the lock or waits for it, may be granted it until the fault is over, its lease and its session have
//! ended, and it had time to recover (`Margins::recovery_us`). So after a kill of a holder the next waiter has the lock within the lease or
//! session, the time to recover and the bound. The same holds for a call that failed, for a hold that was lost, and for a
//! release without a clear answer. A fault that hits the store disturbs all locks.

use super::{Findings, violation};
use crate::event::Answer;
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Lock, Spans, Timeline};

pub(super) fn check(timeline: &Timeline<'_>, margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in timeline.locks.iter().filter(|lock| lock.is_held_and_waited_for()) {
        let occupied = occupied(timeline, lock);
        // The waiters that waited longest at a free lock come first, so that each stretch is reported once.
        let mut reported = Spans::default();
        for &index in &lock.calls {
            let call = &timeline.calls[index];
            if !call.waits() {
                continue;
            }
            let until_us = timeline.waits_until_us(call);
            let is_open = timeline.has_ended && call.answers.is_empty() && timeline.exited_us(call).is_none();
            let free = occupied.gaps(call.asked_us, until_us);
            if free.is_empty() && !is_open {
                findings.excused += u64::from(lock.disturbed.overlaps(call.asked_us, until_us));
                continue;
            }
            findings.judged += 1;
            let longest = free.into_iter().max_by_key(|(from, to)| to - from);
            if let Some((from, to)) = longest.filter(|(from, to)| to - from > margins.wake_up_us) {
                if !reported.overlaps(from, to) {
                    reported.add(from, to);
                    reported.merge();
                    findings.violations.push(idle(timeline, lock, index, (from, to)));
                }
            } else if is_open && call.limit_us.is_none() && !is_excused_at_end(timeline, margins, lock, index)
            {
                let what = format!(
                    "{} waits for `{}` since {} without a limit, and was not served by the end of the workload.",
                    timeline.process_name(call),
                    lock.spec.name,
                    seconds(call.asked_us)
                );
                let span = (timeline.end_us, None);
                findings.violations.push(violation(timeline, lock, span, &[index], what));
            }
        }
    }
    findings
}

/// When the lock is held, or something of a fault may stand in the way.
fn occupied(timeline: &Timeline<'_>, lock: &Lock<'_>) -> Spans {
    let mut occupied = lock.disturbed.clone();
    for &call in &lock.calls {
        let call = &timeline.calls[call];
        if let Some((granted_us, Answer::Granted { .. })) = call.answers.first() {
            let until_us = call.releases.last().map(|(at, _)| *at).or(timeline.exited_us(call));
            occupied.add(*granted_us, until_us.unwrap_or(timeline.end_us));
        }
    }
    occupied.merge();
    occupied
}

/// Whether a call that is open at the end may be: a fault is the reason, or it was asked only just before.
fn is_excused_at_end(timeline: &Timeline<'_>, margins: &Margins, lock: &Lock<'_>, call: usize) -> bool {
    let since_us = timeline.end_us.saturating_sub(margins.wake_up_us);
    timeline.calls[call].asked_us > since_us || lock.disturbed.overlaps(since_us, timeline.end_us)
}

fn idle(timeline: &Timeline<'_>, lock: &Lock<'_>, index: usize, (from, to): (u64, u64)) -> crate::Violation {
    let call = &timeline.calls[index];
    // The hold whose end should have woken the waiter, however it ended.
    let granted = lock.calls.iter().filter_map(|&it| timeline.calls[it].granted_us().map(|at| (at, it)));
    let before = granted.filter(|(at, _)| *at <= from).max().map(|(_, it)| it);
    let ending = match call.answered_us() {
        Some(_) if call.granted_us().is_some() => "only then was it granted",
        Some(_) => "then it gave up",
        None => "then the history ends",
    };
    let what = format!(
        "`{}` was free for {} from {}, while {} waited for it since {}; {ending}.",
        lock.spec.name,
        duration(to - from),
        seconds(from),
        timeline.process_name(call),
        seconds(call.asked_us)
    );
    let calls: Vec<usize> = before.into_iter().filter(|&it| it != index).chain([index]).collect();
    violation(timeline, lock, (from, Some(to)), &calls, what)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Script, found};
    use crate::event::{FaultKind, LockKind, Mode, What};

    const MS: u64 = 1000;

    #[test]
    fn a_waiter_that_gets_the_lock_soon_is_in_order() {
        let mut script = Script::of(LockKind::Mutex);
        script.hold(1, Mode::Exclusive, 1, MS..1000 * MS);
        let waiter = script.asked(2, Mode::Exclusive, 100 * MS);
        script.answer(1003 * MS, waiter, Some(2));
        script.finish(waiter, 1100 * MS);
        script.push(9000 * MS, 0, What::Ended);
        // The holder had the lock at once: there was no time in which it was free.
        assert_eq!(script.outcome("wake_ups"), (1, 0));
    }

    #[test]
    fn a_wake_up_that_was_lost_is_found() {
        let mut script = Script::of(LockKind::Mutex);
        let holder = script.hold(1, Mode::Exclusive, 1, MS..1000 * MS);
        let waiter = script.asked(2, Mode::Exclusive, 100 * MS);
        script.answer(4000 * MS, waiter, Some(2));
        script.finish(waiter, 4100 * MS);
        let violations = found(&script.history(), "wake_ups");
        let [violation] = &violations[..] else { panic!("{violations:?}") };
        assert_eq!(violation.calls.iter().map(|call| call.call).collect::<Vec<_>>(), [holder, waiter]);
        assert_eq!((violation.at_us, violation.until_us), (1000 * MS, Some(4000 * MS)));
    }

    #[test]
    fn a_dead_holder_is_replaced_within_its_lease_and_the_bound() {
        for (granted_ms, violations) in [(7_000, 0), (8_100, 1)] {
            let mut script = Script::of(LockKind::Mutex);
            let holder = script.granted(1, Mode::Exclusive, 1, MS);
            script.check(900 * MS, holder, true);
            let waiter = script.asked(2, Mode::Exclusive, 100 * MS);
            script.fault(FaultKind::Kill, Some(1), 1000 * MS..1010 * MS);
            script.push(1010 * MS, 0, What::Exited { worker: 1, how: "killed".to_owned() });
            script.answer(granted_ms * MS, waiter, Some(2));
            script.finish(waiter, granted_ms * MS + 10);
            // Lease and session 3 s, 2 s to recover, 2 s to be woken.
            assert_eq!(script.outcome("wake_ups").1, violations, "{granted_ms} ms");
        }
    }

    #[test]
    fn a_call_without_a_limit_is_not_open_at_the_end() {
        let mut script = Script::of(LockKind::Mutex);
        let holder = script.granted(1, Mode::Exclusive, 1, MS);
        script.asked_without_limit(2, 100 * MS);
        script.push(9000 * MS, 0, What::Ended);
        assert_eq!(script.outcome("wake_ups"), (1, 1));
        script.finish(holder, 8_900 * MS);
        script.push(8_950 * MS, 0, What::Exited { worker: 2, how: "0".to_owned() });
        assert_eq!(script.outcome("wake_ups").1, 0, "its process has ended");
    }
}
