//! A later hold has a greater fencing token, and no two holds share one.
//!
//! - On a Mutex, a re-entrant lock, an Election and a `OncePer`: a hold that was asked after another one was granted has a greater
//!   token, since it is granted after the other has ended.
//! - On an RwLock and a Semaphore: a hold that was asked after another one had ended (its release was asked, or its belief was over)
//!   has a greater token.
//! - Holds of one owner may share a token; others do not.
//!
//! No fault excuses a token that does not grow: then fencing fails just when it is needed.

use super::{Findings, violation, with_fencing};
use crate::event::LockKind;
use crate::fencing::{grows, seconds};
use crate::margins::Margins;
use crate::timeline::{Lock, Timeline};
use std::collections::BTreeMap;

pub(super) fn check(timeline: &Timeline<'_>, _margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in &timeline.locks {
        let held: Vec<usize> =
            lock.calls.iter().copied().filter(|&call| timeline.calls[call].fence().is_some()).collect();
        findings.judged += held.len() as u64;
        growth(timeline, lock, &held, &mut findings);
        shared(timeline, lock, &held, &mut findings);
    }
    findings
}

/// When a hold must have a smaller token than every hold that is asked from then on.
fn surpassed_us(timeline: &Timeline<'_>, lock: &Lock<'_>, call: usize) -> Option<u64> {
    let call = &timeline.calls[call];
    match lock.spec.kind {
        LockKind::RwLock | LockKind::Semaphore => call.ended_us(),
        _ => call.granted_us(),
    }
}

fn growth(timeline: &Timeline<'_>, lock: &Lock<'_>, held: &[usize], findings: &mut Findings) {
    let mut surpassed: Vec<(u64, usize)> =
        held.iter().filter_map(|&call| surpassed_us(timeline, lock, call).map(|at| (at, call))).collect();
    surpassed.sort_unstable();
    let mut surpassed = surpassed.into_iter().peekable();
    // The two greatest tokens so far, of different owners.
    let mut greatest: Vec<usize> = Vec::new();
    for &call in held {
        let asked_us = timeline.calls[call].asked_us;
        while let Some((_, before)) = surpassed.next_if(|(at, _)| *at < asked_us) {
            add_greatest(timeline, &mut greatest, before);
        }
        let after = &timeline.calls[call];
        let broken = greatest.iter().find(|&&before| !grows(&timeline.calls[before], after));
        if let Some(&before) = broken {
            let first = &timeline.calls[before];
            let what = format!(
                "The token of `{}` did not grow: {} had {}, and {}, which asked at {}, after that, got {}.",
                lock.spec.name,
                timeline.process_name(first),
                first.fence().unwrap_or_default(),
                timeline.process_name(after),
                seconds(asked_us),
                after.fence().unwrap_or_default()
            );
            findings.violations.push(report(timeline, lock, before, call, what));
        }
    }
}

/// Keeps the greatest token, and the greatest of the other owners.
fn add_greatest(timeline: &Timeline<'_>, greatest: &mut Vec<usize>, call: usize) {
    greatest.push(call);
    greatest.sort_by_key(|&it| std::cmp::Reverse(timeline.calls[it].fence()));
    let first = greatest[0];
    let mut others =
        greatest[1..].iter().filter(|&&it| !timeline.calls[it].has_owner_of(&timeline.calls[first]));
    let second = others.next().copied();
    *greatest = [first].into_iter().chain(second).collect();
}

/// Two holds with one token that overlap or that were asked at the same time, which [`growth`] does not compare.
fn shared(timeline: &Timeline<'_>, lock: &Lock<'_>, held: &[usize], findings: &mut Findings) {
    let mut by_fence: BTreeMap<u64, usize> = BTreeMap::new();
    for &call in held {
        let after = &timeline.calls[call];
        let Some(fence) = after.fence() else { continue };
        let Some(&before) = by_fence.get(&fence) else {
            by_fence.insert(fence, call);
            continue;
        };
        let is_compared = surpassed_us(timeline, lock, before).is_some_and(|at| at < after.asked_us);
        if timeline.calls[before].has_owner_of(after) || is_compared {
            continue;
        }
        let what = format!(
            "Two holds of `{}` have the token {fence}: one of {}, and one of {}.",
            lock.spec.name,
            timeline.process_name(&timeline.calls[before]),
            timeline.process_name(after)
        );
        findings.violations.push(report(timeline, lock, before, call, what));
    }
}

fn report(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    before: usize,
    after: usize,
    what: String,
) -> crate::Violation {
    let at_us = timeline.calls[after].granted_us().unwrap_or_default();
    let holds = [before, after];
    with_fencing(timeline, lock, &holds, violation(timeline, lock, (at_us, None), &holds, what))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Script, found};
    use crate::event::{LockKind, Mode};

    #[test]
    fn tokens_that_grow_are_in_order() {
        let mut script = Script::of(LockKind::Mutex);
        for hold in 1..=5_u64 {
            script.hold(1, Mode::Exclusive, hold * 10, hold * 1000..hold * 1000 + 500);
        }
        assert_eq!(script.outcome("tokens"), (5, 0));
    }

    #[test]
    fn a_smaller_token_and_one_that_is_given_again_are_found() {
        for fence in [9, 10] {
            let mut script = Script::of(LockKind::Mutex);
            script.hold(1, Mode::Exclusive, 10, 1000..1500);
            script.hold(2, Mode::Exclusive, fence, 2000..2500);
            let violations = found(&script.history(), "tokens");
            assert_eq!(violations.len(), 1, "{violations:?}");
            let fencing = violations[0].fencing.as_deref().unwrap_or_default();
            assert!(fencing.starts_with("The tokens do not grow"), "{fencing}");
        }
    }

    #[test]
    fn two_holds_at_once_do_not_share_a_token_unless_of_one_owner() {
        let mut script = Script::of(LockKind::RwLock);
        script.hold(1, Mode::Read, 10, 1000..2500);
        script.hold(2, Mode::Read, 10, 1200..2000);
        assert_eq!(script.outcome("tokens"), (2, 1));
        let mut script = Script::of(LockKind::Reentrant);
        script.hold_as(1, Some(3), 10, 1000..2500);
        script.hold_as(2, Some(3), 10, 1200..2000);
        script.hold_as(2, Some(4), 10, 3200..4000);
        assert_eq!(script.outcome("tokens"), (3, 1));
    }

    #[test]
    fn readers_that_overlap_may_get_tokens_in_any_order() {
        let mut script = Script::of(LockKind::RwLock);
        script.hold(1, Mode::Read, 11, 1000..2500);
        script.hold(2, Mode::Read, 10, 1200..2000);
        assert_eq!(script.outcome("tokens"), (2, 0));
    }
}
