//! Waiters are served in the order in which they asked.
//!
//! Of two waiters of a lock, the one that asked later is not granted while the one that asked earlier goes on waiting. Since requests
//! and answers take time, the later one must have asked more than a margin (`Margins::order_us`) later, and the earlier one must
//! wait for more than that margin after the later one was granted. Judged are Mutexes, re-entrant locks, `RwLock`s, Semaphores and
//! Elections, and of these:
//!
//! - only calls that wait: one with a limit of 0 does not stand in a queue;
//! - two calls of different processes only if neither process had another call at this lock when it asked, because a library may queue
//!   once per process, and hand the lock from task to task there; calls of one process among themselves, except for those of one owner;
//! - no calls while a fault disturbs a process that uses this lock, from when the earlier one asked: a process that is cut off
//!   loses its place.
//!
//! A store that promises no order, such as a quorum, says so in the settings of `began`: `"order": "none"`. Then nothing is judged.

use super::{Findings, violation};
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Call, Lock, Timeline};

pub(super) fn check(timeline: &Timeline<'_>, margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    if timeline.begin.settings.get("order").is_some_and(|order| order == "none") {
        findings.note = Some("this store promises no order".to_owned());
        return findings;
    }
    for lock in timeline.locks.iter().filter(|lock| lock.is_held_and_waited_for()) {
        let mut grants: Vec<(u64, usize)> = lock
            .calls
            .iter()
            .filter(|&&call| timeline.calls[call].waits())
            .filter_map(|&call| timeline.calls[call].granted_us().map(|granted| (granted, call)))
            .collect();
        grants.sort_unstable();
        // Calls that may be open at a grant, in the order in which they asked; those that are answered are dropped as time goes on.
        let (mut next, mut open) = (0, Vec::new());
        for (granted_us, call) in grants {
            while next < lock.calls.len() && timeline.calls[lock.calls[next]].asked_us < granted_us {
                open.push(lock.calls[next]);
                next += 1;
            }
            open.retain(|&it| present_until_us(timeline, it) >= granted_us);
            judge_grant(timeline, margins, lock, &open, call, &mut findings);
        }
    }
    findings
}

/// Until when a call waits or its hold is there.
fn present_until_us(timeline: &Timeline<'_>, call: usize) -> u64 {
    let call = &timeline.calls[call];
    let exited_us = timeline.exited_us(call).unwrap_or(timeline.end_us);
    match call.granted_us() {
        Some(_) => call.releases.last().map_or(exited_us, |(at, _)| *at),
        None => timeline.waits_until_us(call),
    }
}

fn judge_grant(
    timeline: &Timeline<'_>,
    margins: &Margins,
    lock: &Lock<'_>,
    open: &[usize],
    call: usize,
    findings: &mut Findings,
) {
    let later = &timeline.calls[call];
    let granted_us = later.granted_us().unwrap_or_default();
    let mut is_compared = false;
    let mut passed = None;
    for &other in open {
        let earlier = &timeline.calls[other];
        let waits_until_us = timeline.waits_until_us(earlier);
        let is_waiting = other != call && earlier.waits() && waits_until_us > granted_us;
        if !is_waiting || earlier.has_owner_of(later) || !is_comparable(timeline, call, other) {
            continue;
        }
        is_compared = true;
        let is_earlier = earlier.asked_us.saturating_add(margins.order_us) < later.asked_us;
        let goes_on = waits_until_us > granted_us.saturating_add(margins.order_us);
        if is_earlier && goes_on && passed.is_none() {
            passed = Some(other);
        }
    }
    if !is_compared {
        return;
    }
    let since_us = passed.map_or(later.asked_us, |other| timeline.calls[other].asked_us);
    if lock.disturbed.overlaps(since_us, granted_us.saturating_add(margins.order_us)) {
        findings.excused += 1;
        return;
    }
    findings.judged += 1;
    let Some(other) = passed else { return };
    let earlier = &timeline.calls[other];
    let what = format!(
        "`{}` was granted out of order: {} had waited since {} and went on waiting, while {} asked {} later and was granted it at {}.",
        lock.spec.name,
        timeline.process_name(earlier),
        seconds(earlier.asked_us),
        timeline.process_name(later),
        duration(later.asked_us - earlier.asked_us),
        seconds(granted_us)
    );
    findings.violations.push(violation(timeline, lock, (granted_us, None), &[other, call], what));
}

/// Whether the order of two calls is the lock's: they are of one process, or each is the first one of its process.
fn is_comparable(timeline: &Timeline<'_>, one: usize, other: usize) -> bool {
    let process = |call: usize| timeline.calls[call].process;
    process(one) == process(other) || (is_first(timeline, one) && is_first(timeline, other))
}

/// Whether its process had no call at this lock when it was asked.
fn is_first(timeline: &Timeline<'_>, call: usize) -> bool {
    let Call { process, lock, asked_us, .. } = timeline.calls[call];
    let calls = &timeline.locks[lock].calls;
    // Indices grow with the time at which the calls were asked.
    let before = calls[..calls.partition_point(|&it| it < call)].iter().rev().take(RECENT);
    let mut same_process = before.filter(|&&it| timeline.calls[it].process == process);
    !same_process.any(|&it| present_until_us(timeline, it) >= asked_us)
}

/// How many calls before one are looked at for another of its process. Between two calls of a process are about as many as there are
/// processes.
const RECENT: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::fixture::{Script, found};
    use crate::event::{Answer, FaultKind, LockKind, Mode, What};

    const MS: u64 = 1000;

    /// A holder until 1 s, and two waiters, of which the second is served first.
    fn out_of_order() -> (Script, u64, u64) {
        let mut script = Script::of(LockKind::Mutex);
        script.hold(3, Mode::Exclusive, 1, MS..1000 * MS);
        let first = script.asked(1, Mode::Exclusive, 100 * MS);
        let second = script.asked(2, Mode::Exclusive, 500 * MS);
        script.answer(1001 * MS, second, Some(2));
        script.finish(second, 1400 * MS);
        script.answer(1401 * MS, first, Some(3));
        script.finish(first, 1500 * MS);
        (script, first, second)
    }

    #[test]
    fn first_come_first_served_is_in_order() {
        let mut script = Script::of(LockKind::Mutex);
        script.hold(3, Mode::Exclusive, 1, MS..1000 * MS);
        let first = script.asked(1, Mode::Exclusive, 100 * MS);
        let second = script.asked(2, Mode::Exclusive, 500 * MS);
        script.answer(1001 * MS, first, Some(2));
        script.finish(first, 1400 * MS);
        script.answer(1401 * MS, second, Some(3));
        script.finish(second, 1500 * MS);
        assert_eq!(script.outcome("order"), (1, 0));
    }

    #[test]
    fn a_waiter_that_passes_another_is_found() {
        let (script, first, second) = out_of_order();
        let violations = found(&script.history(), "order");
        let [violation] = &violations[..] else { panic!("{violations:?}") };
        assert_eq!(violation.calls.iter().map(|call| call.call).collect::<Vec<_>>(), [first, second]);
    }

    #[test]
    fn faults_and_stores_without_an_order_are_left_out() {
        let (mut script, ..) = out_of_order();
        script.fault(FaultKind::Cut, Some(2), 300 * MS..400 * MS);
        assert_eq!(script.outcome("order"), (0, 0));
        let (mut script, ..) = out_of_order();
        let What::Began { settings, .. } = &mut script.events[0].what else { panic!("began") };
        settings.insert("order".to_owned(), "none".to_owned());
        assert_eq!(script.outcome("order"), (0, 0));
    }

    #[test]
    fn processes_with_several_calls_are_compared_only_among_themselves() {
        let (mut script, ..) = out_of_order();
        // Now the process of the later waiter waits already when it asks, until 0.6 s.
        let call = script.asked(2, Mode::Exclusive, 450 * MS);
        script.push(600 * MS, 2, What::Answered { call, answer: Answer::NotGranted });
        assert_eq!(script.outcome("order"), (0, 0));
    }
}
