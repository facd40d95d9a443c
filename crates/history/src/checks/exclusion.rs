//! No two holders that exclude each other believe at the same time that they hold the lock.
//!
//! A hold is believed as [`Timeline`] defines it. Two of these exclude each other:
//!
//! - on a Mutex, an Election and a `OncePer`: any two;
//! - on a re-entrant lock: any two of different owners; a call without an owner is its own;
//! - on an RwLock: a write and anything else, if not of one owner;
//! - on a Semaphore: as many as have more permits together than there are.
//!
//! Beliefs that meet in one microsecond do not overlap. A hold of which no check was valid is not believed. No fault excuses an
//! overlap: this is what a lock is for. There is one violation for each hold that begins while another is believed.

use super::{Findings, violation, with_fencing};
use crate::event::{LockKind, Mode};
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Call, Lock, Timeline};

pub(super) fn check(timeline: &Timeline<'_>, _margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in &timeline.locks {
        if matches!(lock.spec.kind, LockKind::Latch | LockKind::Barrier) {
            continue;
        }
        let mut holds: Vec<(u64, u64, usize)> = lock
            .calls
            .iter()
            .filter_map(|&call| timeline.calls[call].belief().map(|(from, to)| (from, to, call)))
            .collect();
        holds.sort_unstable();
        findings.judged += holds.len() as u64;
        let mut believed: Vec<(u64, usize)> = Vec::new();
        for (from, to, call) in holds {
            believed.retain(|(until, _)| *until > from);
            believed.push((to, call));
            if let Some(overlap) = overlap(timeline, lock, &believed) {
                findings.violations.push(report(timeline, lock, from, &overlap));
            }
        }
    }
    findings
}

/// The holds that must not be there together, the last of them the one that came last, and until when they overlap.
struct Overlap {
    calls: Vec<usize>,
    until_us: u64,
    permits: Option<u64>,
}

/// Whether the last of these holds must not be there beside the others.
fn overlap(timeline: &Timeline<'_>, lock: &Lock<'_>, believed: &[(u64, usize)]) -> Option<Overlap> {
    let (&(last_until, last), others) = believed.split_last()?;
    if lock.spec.kind == LockKind::Semaphore {
        let limit = u64::from(lock.spec.permits?);
        let sum: u64 = believed.iter().map(|(_, call)| permits(&timeline.calls[*call])).sum();
        let until_us = believed.iter().map(|(until, _)| *until).min().unwrap_or(last_until);
        let calls = believed.iter().map(|(_, call)| *call).collect();
        return (sum > limit).then_some(Overlap { calls, until_us, permits: Some(sum) });
    }
    let exclude =
        |call: &&(u64, usize)| excludes(lock.spec.kind, &timeline.calls[call.1], &timeline.calls[last]);
    let &(until, first) = others.iter().filter(exclude).max()?;
    Some(Overlap { calls: vec![first, last], until_us: until.min(last_until), permits: None })
}

fn excludes(kind: LockKind, one: &Call<'_>, other: &Call<'_>) -> bool {
    let is_shared = kind == LockKind::RwLock && one.mode == Mode::Read && other.mode == Mode::Read;
    !is_shared && !one.has_owner_of(other)
}

fn permits(call: &Call<'_>) -> u64 {
    match call.mode {
        Mode::Permits(permits) => u64::from(permits),
        _ => 1,
    }
}

fn report(timeline: &Timeline<'_>, lock: &Lock<'_>, at_us: u64, overlap: &Overlap) -> crate::Violation {
    let Overlap { calls, until_us, permits } = overlap;
    let name = &lock.spec.name;
    let length = duration(until_us - at_us);
    let what = if let (Some(permits), Some(limit)) = (permits, lock.spec.permits) {
        format!(
            "{} holders believed for {length} to have {permits} permits of `{name}`, of which there are {limit}.",
            calls.len()
        )
    } else {
        let (first, last) = (&timeline.calls[calls[0]], &timeline.calls[calls[calls.len() - 1]]);
        format!(
            "`{name}` had two holders for {length}: {} still believed to hold it at {}, and {} was granted it at {}.",
            timeline.process_name(first),
            seconds(first.believed_until_us().unwrap_or(at_us)),
            timeline.process_name(last),
            seconds(at_us)
        )
    };
    with_fencing(timeline, lock, calls, violation(timeline, lock, (at_us, Some(*until_us)), calls, what))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Script, found};
    use crate::event::{LockKind, Mode};

    const MS: u64 = 1000;

    #[test]
    fn holders_one_after_the_other_are_in_order() {
        let mut script = Script::of(LockKind::Mutex);
        script.hold(1, Mode::Exclusive, 1, 10 * MS..30 * MS);
        script.hold(2, Mode::Exclusive, 2, 30 * MS..50 * MS);
        assert_eq!(script.outcome("exclusion"), (2, 0));
    }

    #[test]
    fn two_holders_of_a_mutex_are_found_and_the_refused_write_is_named() {
        let mut script = Script::of(LockKind::Mutex);
        let first = script.hold(1, Mode::Exclusive, 1, 10 * MS..40 * MS);
        let second = script.hold(2, Mode::Exclusive, 2, 20 * MS..30 * MS);
        script.write(25 * MS, second, 2, (0, 0), true);
        script.write(35 * MS, first, 1, (0, 1), false);
        let violations = found(&script.history(), "exclusion");
        let [violation] = &violations[..] else { panic!("one violation: {violations:?}") };
        assert_eq!(violation.at_us, 20 * MS);
        assert_eq!(violation.until_us, Some(30 * MS - 1));
        assert_eq!(violation.calls.iter().map(|call| call.call).collect::<Vec<_>>(), [first, second]);
        assert_eq!(violation.refused.len(), 1);
        assert_eq!((violation.refused[0].fence, violation.refused[0].after_fence), (1, 2));
        assert!(violation.fencing.as_deref().is_some_and(|text| text.contains("process 1 (pid 1001)")));
    }

    #[test]
    fn a_hold_that_was_never_valid_and_a_stopped_holder_exclude_no_other() {
        let mut script = Script::of(LockKind::Mutex);
        // Stopped after its check at 19 ms; it goes on at 60 ms, and its next check is not valid.
        let stopped = script.granted(1, Mode::Exclusive, 1, 10 * MS);
        script.check(19 * MS, stopped, true);
        script.hold(2, Mode::Exclusive, 2, 20 * MS..50 * MS);
        script.check(60 * MS, stopped, false);
        script.release(61 * MS, stopped, false);
        script.granted(3, Mode::Exclusive, 3, 45 * MS);
        assert_eq!(script.outcome("exclusion"), (2, 0));
    }

    #[test]
    fn owners_exclude_each_other_and_not_themselves() {
        let mut script = Script::of(LockKind::Reentrant);
        script.hold_as(1, Some(7), 1, 10 * MS..40 * MS);
        script.hold_as(2, Some(7), 1, 20 * MS..30 * MS);
        assert_eq!(script.outcome("exclusion"), (2, 0));
        script.hold_as(3, None, 2, 35 * MS..36 * MS);
        script.hold_as(3, None, 3, 35 * MS..37 * MS);
        assert_eq!(script.outcome("exclusion"), (4, 2));
    }

    #[test]
    fn readers_share_and_a_writer_does_not() {
        let mut script = Script::of(LockKind::RwLock);
        script.hold(1, Mode::Read, 1, 10 * MS..40 * MS);
        script.hold(2, Mode::Read, 2, 20 * MS..30 * MS);
        assert_eq!(script.outcome("exclusion"), (2, 0));
        script.hold(3, Mode::Write, 3, 39 * MS..50 * MS);
        assert_eq!(script.outcome("exclusion"), (3, 1));
    }

    #[test]
    fn permits_are_summed() {
        let mut script = Script::with(LockKind::Semaphore, Some(3), None);
        script.hold(1, Mode::Permits(2), 1, 10 * MS..40 * MS);
        script.hold(2, Mode::Permits(1), 2, 20 * MS..30 * MS);
        assert_eq!(script.outcome("exclusion"), (2, 0));
        script.hold(3, Mode::Permits(1), 3, 29 * MS..35 * MS);
        let violations = found(&script.history(), "exclusion");
        assert_eq!(violations.len(), 1);
        assert!(violations[0].what.contains("have 4 permits"), "{}", violations[0].what);
    }
}
