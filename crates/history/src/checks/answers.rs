//! Every call returns within its limit, once, and what it says is true.
//!
//! 1. A call returns within its limit and a margin (`Margins::answer_us`). Time in which its process is stopped does not count.
//!    While a fault disturbs its process or the store, the margin is `Margins::answer_in_fault_us`.
//! 2. A call that gives up does not do so before its limit, less 50 ms; judged of locks that are waited for, outside of faults.
//! 3. No call fails outside of faults.
//! 4. No call is answered twice, and no release.
//! 5. A release returns before the end of the workload, if it began so long before as a call may take after its limit.
//! 6. A release that begins within 20 ms of a valid check never finds that the hold had ended, unless a fault disturbed the process of the
//!    holder or the store since the hold was asked for.
//!
//! A call without an answer is excused if its process has ended, or if the history ends before it is due.

use super::{Findings, violation};
use crate::event::{Answer, FaultKind, ReleaseAnswer};
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Call, Lock, Timeline};

/// How much before its limit a call may give up: clocks differ, and limits are rounded.
const EARLY_US: u64 = 50_000;

/// How long before a release a valid check still says that the hold is there when the release begins.
const FRESH_US: u64 = 20_000;

pub(super) fn check(timeline: &Timeline<'_>, margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for (index, call) in timeline.calls.iter().enumerate() {
        let lock = &timeline.locks[call.lock];
        for answers in [&call.answers.iter().map(|it| it.0).collect::<Vec<_>>(), &releases(call)] {
            findings.judged += answers.len() as u64;
            if let [_, second, ..] = answers[..] {
                let what = format!(
                    "A call of {} at `{}` was answered twice.",
                    timeline.process_name(call),
                    lock.spec.name
                );
                findings.violations.push(violation(timeline, lock, (second, None), &[index], what));
            }
        }
        let found = [
            is_late(timeline, margins, lock, call),
            is_early(timeline, lock, call),
            has_failed(timeline, lock, call),
            has_no_end(timeline, margins, lock, call),
            is_denied(timeline, lock, call),
        ];
        for (at_us, what) in found.into_iter().flatten() {
            findings.violations.push(violation(timeline, lock, (at_us, None), &[index], what));
        }
    }
    findings
}

fn releases(call: &Call<'_>) -> Vec<u64> {
    call.releases.iter().map(|(at, _)| *at).collect()
}

/// When a violation is, and what it is.
type Found = Option<(u64, String)>;

fn is_late(timeline: &Timeline<'_>, margins: &Margins, lock: &Lock<'_>, call: &Call<'_>) -> Found {
    let limit_us = call.limit_us?;
    if call.answers.is_empty() && timeline.exited_us(call).is_some() {
        return None;
    }
    let until_us = timeline.waits_until_us(call);
    let stopped_us: u64 = timeline
        .faults_at(call.process, call.asked_us, until_us)
        .filter(|fault| fault.kind == FaultKind::Stop)
        .map(|fault| fault.to_us.min(until_us) - fault.from_us.max(call.asked_us))
        .sum();
    let margin_us = if timeline.is_disturbed(call.process, call.asked_us, until_us) {
        margins.answer_in_fault_us
    } else {
        margins.answer_us
    };
    let taken_us = (until_us - call.asked_us).saturating_sub(stopped_us);
    if taken_us <= limit_us.saturating_add(margin_us) {
        return None;
    }
    let end = if call.answers.is_empty() { "has no answer after" } else { "took" };
    let what = format!(
        "A call of {} at `{}` with a limit of {} {end} {}.",
        timeline.process_name(call),
        lock.spec.name,
        duration(limit_us),
        duration(taken_us)
    );
    Some((until_us, what))
}

fn is_early(timeline: &Timeline<'_>, lock: &Lock<'_>, call: &Call<'_>) -> Found {
    let Some((at_us, Answer::NotGranted)) = call.answers.first() else { return None };
    let taken_us = at_us - call.asked_us;
    let is_early = match call.limit_us {
        Some(limit_us) => taken_us.saturating_add(EARLY_US) < limit_us,
        None => true,
    };
    if !lock.is_held_and_waited_for()
        || !is_early
        || timeline.is_disturbed(call.process, call.asked_us, *at_us)
    {
        return None;
    }
    let what = format!(
        "A call of {} at `{}` gave up after {}, before its limit{}.",
        timeline.process_name(call),
        lock.spec.name,
        duration(taken_us),
        call.limit_us
            .map_or_else(|| ", of which it has none".to_owned(), |us| format!(" of {}", duration(us)))
    );
    Some((*at_us, what))
}

fn has_failed(timeline: &Timeline<'_>, lock: &Lock<'_>, call: &Call<'_>) -> Found {
    let asked = call.answers.first().map(|(at, answer)| (call.asked_us, *at, *answer));
    let failed = asked.and_then(|(from, at, answer)| match answer {
        Answer::Failed { error } => Some((from, at, "call", error)),
        _ => None,
    });
    let failed = failed.or_else(|| match call.releases.first() {
        Some((at, ReleaseAnswer::Failed { error })) => {
            Some((call.release_asked_us.unwrap_or(*at), *at, "release", error))
        }
        _ => None,
    });
    let (from_us, at_us, which, error) = failed?;
    if timeline.is_disturbed(call.process, from_us, at_us) {
        return None;
    }
    let what = format!(
        "A {which} of {} at `{}` failed, although no fault was going on: {error}",
        timeline.process_name(call),
        lock.spec.name
    );
    Some((at_us, what))
}

fn has_no_end(timeline: &Timeline<'_>, margins: &Margins, lock: &Lock<'_>, call: &Call<'_>) -> Found {
    let release_us = call.release_asked_us.filter(|_| call.releases.is_empty())?;
    if !timeline.has_ended || timeline.exited_us(call).is_some() {
        return None;
    }
    let is_disturbed = timeline.is_disturbed(call.process, release_us, timeline.end_us);
    let margin_us = if is_disturbed { margins.answer_in_fault_us } else { margins.answer_us };
    if timeline.end_us - release_us <= margin_us {
        return None;
    }
    let what = format!(
        "{} released `{}` at {}, and the release has not returned by the end of the workload.",
        timeline.process_name(call),
        lock.spec.name,
        seconds(release_us)
    );
    Some((timeline.end_us, what))
}

fn is_denied(timeline: &Timeline<'_>, lock: &Lock<'_>, call: &Call<'_>) -> Found {
    let Some((at_us, ReleaseAnswer::NotHeld)) = call.releases.first() else { return None };
    let release_us = call.release_asked_us.unwrap_or(*at_us);
    let (_, until_us) = call.belief()?;
    let is_invalid = call.checks.iter().any(|check| !check.valid && check.at_us <= release_us);
    let is_lost = call.lost.is_some_and(|(lost, _)| lost <= release_us);
    let is_fresh = release_us - until_us <= FRESH_US && !is_invalid && !is_lost;
    if !is_fresh || timeline.is_disturbed(call.process, call.asked_us, *at_us) {
        return None;
    }
    let what = format!(
        "{} released `{}` at {}, {} after its hold was valid, and was answered that it did not hold it.",
        timeline.process_name(call),
        lock.spec.name,
        seconds(release_us),
        duration(release_us - until_us)
    );
    Some((*at_us, what))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Script;
    use crate::event::{Answer, FaultKind, LockKind, Mode, ReleaseAnswer, What};

    const MS: u64 = 1000;

    /// A call that gives up after so long; its limit is 10 s.
    fn given_up(after_ms: u64) -> Script {
        let mut script = Script::of(LockKind::Mutex);
        let call = script.asked(1, Mode::Exclusive, 0);
        script.push(after_ms * MS, 1, What::Answered { call, answer: Answer::NotGranted });
        script
    }

    #[test]
    fn a_call_returns_at_its_limit_and_a_hold_is_released() {
        assert_eq!(given_up(10_010).outcome("answers"), (1, 0));
        let mut script = Script::of(LockKind::Mutex);
        script.hold(1, Mode::Exclusive, 1, MS..100 * MS);
        assert_eq!(script.outcome("answers"), (2, 0));
    }

    #[test]
    fn late_early_and_missing_answers_are_found() {
        assert_eq!(given_up(12_000).outcome("answers"), (1, 1));
        assert_eq!(given_up(9_000).outcome("answers"), (1, 1));
        let mut script = Script::of(LockKind::Mutex);
        script.asked(1, Mode::Exclusive, 0);
        script.push(10_900 * MS, 0, What::Ended);
        assert_eq!(script.outcome("answers").1, 0, "it is not due");
        script.push(12_000 * MS, 0, What::Ended);
        assert_eq!(script.outcome("answers").1, 1);
        script.push(12_100 * MS, 0, What::Exited { worker: 1, how: "killed".to_owned() });
        assert_eq!(script.outcome("answers").1, 0, "its process has ended");
    }

    #[test]
    fn stops_do_not_count_and_faults_give_more_time() {
        let mut script = given_up(40_000);
        script.fault(FaultKind::Stop, Some(1), 5_000 * MS..35_000 * MS);
        assert_eq!(script.outcome("answers").1, 0);
        let mut script = given_up(19_000);
        script.fault(FaultKind::Partition, Some(1), 5_000 * MS..18_000 * MS);
        assert_eq!(script.outcome("answers").1, 0);
        let mut script = given_up(19_000);
        script.fault(FaultKind::Partition, Some(2), 5_000 * MS..18_000 * MS);
        assert_eq!(script.outcome("answers").1, 1, "the fault hits another process");
    }

    #[test]
    fn what_is_answered_twice_is_found() {
        let mut script = Script::of(LockKind::Mutex);
        let call = script.hold(1, Mode::Exclusive, 1, MS..100 * MS);
        script.answer(90 * MS, call, Some(1));
        script.release(110 * MS, call, true);
        assert_eq!(script.outcome("answers"), (4, 2));
    }

    #[test]
    fn a_release_that_never_returns_is_found() {
        let mut script = Script::of(LockKind::Mutex);
        let call = script.granted(1, Mode::Exclusive, 1, MS);
        script.check(9 * MS, call, true);
        script.push(10 * MS, 1, What::ReleaseAsked { call });
        script.push(900 * MS, 0, What::Ended);
        assert_eq!(script.outcome("answers").1, 0, "it is not due");
        script.push(1_100 * MS, 0, What::Ended);
        assert_eq!(script.outcome("answers").1, 1);
    }

    #[test]
    fn a_failure_and_a_denied_release_need_a_fault() {
        let script = |fault: bool| {
            let mut script = Script::of(LockKind::Mutex);
            let call = script.asked(1, Mode::Exclusive, MS);
            let answer = Answer::Failed { error: "no".to_owned() };
            script.push(2 * MS, 1, What::Answered { call, answer });
            let call = script.granted(1, Mode::Exclusive, 1, 10 * MS);
            script.check(20 * MS, call, true);
            script.push(21 * MS, 1, What::ReleaseAsked { call });
            script.push(22 * MS, 1, What::Released { call, answer: ReleaseAnswer::NotHeld });
            if fault {
                script.fault(FaultKind::Restart, None, MS..12 * MS);
            }
            script.outcome("answers").1
        };
        assert_eq!((script(false), script(true)), (2, 0));
    }
}
