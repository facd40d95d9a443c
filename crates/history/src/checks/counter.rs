//! No update of a guarded counter by a valid hold is lost or refused.
//!
//! The coordinator keeps a counter for each lock. A holder reads it, and later sends a write with its token. A write that the fencing
//! check accepts changes the counter, a refused one does not. Of the locks with one holder, and of writers of an RwLock:
//!
//! - A hold that is believed when its write arrives found the value that it had read, or an update is lost.
//! - Such a write is not refused.
//! - A write that arrives after its holder's belief was over is *late*, and no violation: a process may stop between its check and its
//!   write. The fencing check refuses it once a greater token has written. Until then it passes, and the valid holder that read
//!   before finds another value; that is no violation either. Both are counted in `Measured`.
//!
//! No fault excuses a lost update.

use super::{Findings, violation, with_fencing};
use crate::event::LockKind;
use crate::fencing::seconds;
use crate::margins::Margins;
use crate::timeline::{Lock, Timeline, Write};

pub(super) fn check(timeline: &Timeline<'_>, _margins: &Margins) -> Findings {
    let (mut findings, mut late) = (Findings::default(), 0_u64);
    for lock in timeline.locks.iter().filter(|lock| lock.spec.kind != LockKind::Semaphore) {
        let mut greatest: Option<Write> = None;
        for (index, write) in lock.writes.iter().enumerate() {
            let is_believed = timeline.calls[write.call].believes_at(write.at_us);
            findings.judged += u64::from(is_believed);
            late += u64::from(!is_believed);
            if is_believed && !write.fenced {
                findings.violations.push(refused(timeline, lock, write, greatest.as_ref()));
            } else if is_believed && write.read != write.found {
                match between(timeline, &lock.writes[..index], write) {
                    Between::Late => findings.excused += 1,
                    Between::Valid(other) => {
                        findings.violations.push(lost(timeline, lock, write, Some(other)));
                    }
                    Between::Nothing => findings.violations.push(lost(timeline, lock, write, None)),
                }
            }
            if greatest.is_none_or(|greatest| greatest.fence < write.fence) {
                greatest = Some(*write);
            }
        }
    }
    if findings.judged == 0 && late > 0 {
        findings.note = Some(format!(
            "after none of the {late} writes the holder found its hold valid: it must check again when its write was answered"
        ));
    }
    findings
}

/// What changed the counter between the read of a write and its arrival.
enum Between<'t> {
    /// Only late writes.
    Late,
    /// A write of a hold that was believed.
    Valid(&'t Write),
    /// The value that was read never stood there.
    Nothing,
}

fn between<'t>(timeline: &Timeline<'_>, before: &'t [Write], write: &Write) -> Between<'t> {
    let (mut found, mut valid) = (write.found, None);
    for earlier in before.iter().rev() {
        let is_change = earlier.found != found;
        if is_change && timeline.calls[earlier.call].believes_at(earlier.at_us) {
            valid = valid.or(Some(earlier));
        }
        found = earlier.found;
        if found == write.read {
            return valid.map_or(Between::Late, Between::Valid);
        }
    }
    Between::Nothing
}

fn lost(timeline: &Timeline<'_>, lock: &Lock<'_>, write: &Write, other: Option<&Write>) -> crate::Violation {
    let holder = timeline.process_name(&timeline.calls[write.call]);
    let (name, at) = (&lock.spec.name, seconds(write.at_us));
    let (read, found) = (write.read, write.found);
    let what = match other {
        Some(other) => format!(
            "An update of the counter of `{name}` is lost: {holder} held the lock, had read {read}, and found {found} when it wrote at {at}; {} had written at {}, also with a valid hold.",
            timeline.process_name(&timeline.calls[other.call]),
            seconds(other.at_us)
        ),
        None => format!(
            "An update of the counter of `{name}` is lost: {holder} held the lock, had read {read}, which never stood there, and found {found} when it wrote at {at}."
        ),
    };
    report(timeline, lock, other, write, what)
}

fn refused(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    write: &Write,
    greatest: Option<&Write>,
) -> crate::Violation {
    let what = format!(
        "A write to the counter of `{}` by {} at {} was refused, although its hold was valid: its token {} is smaller than {}, which had written before.",
        lock.spec.name,
        timeline.process_name(&timeline.calls[write.call]),
        seconds(write.at_us),
        write.fence,
        greatest.map_or(0, |greatest| greatest.fence)
    );
    report(timeline, lock, greatest, write, what)
}

fn report(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    other: Option<&Write>,
    write: &Write,
    what: String,
) -> crate::Violation {
    let mut holds: Vec<usize> = other.into_iter().chain([write]).map(|write| write.call).collect();
    holds.sort_by_key(|&hold| timeline.calls[hold].granted_us());
    holds.dedup();
    let found = violation(timeline, lock, (write.at_us, None), &holds, what);
    with_fencing(timeline, lock, &holds, found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Script, found};
    use crate::event::{LockKind, Mode};
    use crate::judge::judge;

    #[test]
    fn updates_one_after_the_other_are_in_order() {
        let mut script = Script::of(LockKind::Mutex);
        for hold in 0..4_u64 {
            let call = script.hold(1, Mode::Exclusive, hold + 1, hold * 1000 + 500..hold * 1000 + 900);
            script.write(hold * 1000 + 600, call, hold + 1, (hold, hold), true);
        }
        assert_eq!(script.outcome("counter"), (4, 0));
    }

    #[test]
    fn an_update_that_another_holder_overtook_is_lost() {
        let mut script = Script::of(LockKind::Mutex);
        let one = script.hold(1, Mode::Exclusive, 1, 500..900);
        let other = script.hold(2, Mode::Exclusive, 2, 500..900);
        script.write(600, one, 1, (0, 0), true);
        script.write(700, other, 2, (0, 1), true);
        let violations = found(&script.history(), "counter");
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].calls.len(), 2);
    }

    #[test]
    fn a_value_that_never_stood_there_and_a_refused_valid_write_are_found() {
        let mut script = Script::of(LockKind::Mutex);
        let one = script.hold(1, Mode::Exclusive, 2, 500..900);
        script.write(600, one, 2, (5, 0), true);
        assert_eq!(script.outcome("counter"), (1, 1));
        let two = script.hold(2, Mode::Exclusive, 1, 1500..1900);
        script.write(1600, two, 1, (6, 6), false);
        assert_eq!(script.outcome("counter"), (2, 2));
    }

    #[test]
    fn late_writes_are_no_violation_neither_refused_nor_in_time_to_disturb() {
        let mut script = Script::of(LockKind::Mutex);
        let stopped = script.hold(1, Mode::Exclusive, 1, 500..900);
        let next = script.hold(2, Mode::Exclusive, 2, 1500..1900);
        // The next holder has read 0 when the late write arrives.
        script.write(1600, stopped, 1, (0, 0), true);
        script.write(1700, next, 2, (0, 1), true);
        script.write(1800, stopped, 1, (0, 1), false);
        assert_eq!(script.outcome("counter"), (1, 0));
    }

    #[test]
    fn writes_after_which_no_holder_checks_show_nothing() {
        let mut script = Script::of(LockKind::Mutex);
        let call = script.hold(1, Mode::Exclusive, 1, 500..900);
        script.write(899, call, 1, (0, 0), true);
        assert_eq!(script.outcome("counter"), (1, 0), "its last check is at this time");
        let mut script = Script::of(LockKind::Mutex);
        let call = script.hold(1, Mode::Exclusive, 1, 500..900);
        script.write(901, call, 1, (0, 0), true);
        let verdict = judge(&script.history());
        let outcome = verdict.checks.iter().find(|outcome| outcome.name == "counter").expect("a check");
        assert!(outcome.judged == 0 && outcome.note.as_deref().is_some_and(|note| note.contains("1 writes")));
    }
}
