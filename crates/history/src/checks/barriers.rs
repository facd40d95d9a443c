//! A barrier admits full rounds, and at once.
//!
//! 1. When so many waits were granted, enough had been asked to fill their rounds: of a barrier for `n`, the `k`th grant comes after
//!    `n` times `k / n`, rounded up, waits were asked. A wait during which a fault disturbs its process or the store may count
//!    twice: if the session lapses, the process counts as dead, in the round that it may have filled, and arrives again.
//! 2. Each wait that is granted was waiting at some time together with `n - 1` others. One that may have arrived twice counts as two
//!    from the fault on. A wait that ended without a grant may have been counted until a request that takes it back has arrived, so
//!    it counts for the lease or session and the time to recover longer.
//! 3. As many waits as fill a round are not left waiting for longer than a bound (`Margins::wake_up_us`), unless a fault disturbs a
//!    process that uses the barrier, or the store.
//!
//! A fault of a process that does not wait excuses no round that is not full.

use super::{Findings, violation};
use crate::event::{LockKind, Mode};
use crate::fencing::{duration, seconds};
use crate::margins::Margins;
use crate::timeline::{Lock, Timeline};

pub(super) fn check(timeline: &Timeline<'_>, margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in timeline.locks.iter().filter(|lock| lock.spec.kind == LockKind::Barrier) {
        let parties = lock.spec.permits.unwrap_or(1).max(1) as usize;
        let waits: Vec<usize> =
            lock.calls.iter().copied().filter(|&call| timeline.calls[call].mode == Mode::Wait).collect();
        findings.judged += waits.len() as u64;
        let found = rounds(timeline, lock, parties, &waits)
            .or_else(|| company(timeline, lock, parties, &waits))
            .or_else(|| held_back(timeline, margins, lock, parties, &waits));
        findings.violations.extend(found);
    }
    findings
}

fn rounds(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    parties: usize,
    waits: &[usize],
) -> Option<crate::Violation> {
    let mut grants: Vec<(u64, usize)> =
        waits.iter().filter_map(|&call| timeline.calls[call].granted_us().map(|at| (at, call))).collect();
    grants.sort_unstable();
    for (index, &(granted_us, call)) in grants.iter().enumerate() {
        let needed = (index / parties + 1) * parties;
        // `waits` is in the order in which they were asked.
        let asked = waits.partition_point(|&it| timeline.calls[it].asked_us <= granted_us);
        // Those may have arrived twice.
        let disturbed = waits[..asked]
            .iter()
            .filter_map(|&it| timeline.wait_is_disturbed_from_us(&timeline.calls[it]))
            .filter(|&from_us| from_us <= granted_us);
        if asked + disturbed.count() < needed {
            let what = format!(
                "`{}`, a barrier for {parties}, admitted {} at {} as the {}th, when only {asked} had arrived: its round was not full.",
                lock.spec.name,
                timeline.process_name(&timeline.calls[call]),
                seconds(granted_us),
                index + 1
            );
            return Some(violation(timeline, lock, (granted_us, None), &[call], what));
        }
    }
    None
}

/// The times at which the number of arrivals changes, each from one time to another, and by how much.
fn changes(arrivals_us: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, i64)> {
    let mut changes: Vec<(u64, i64)> = arrivals_us
        .flat_map(|(from_us, until_us)| [(from_us, 1), (until_us.saturating_add(1), -1)])
        .collect();
    changes.sort_unstable_by_key(|&(at, by)| (at, -by));
    changes
}

fn company(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    parties: usize,
    waits: &[usize],
) -> Option<crate::Violation> {
    let ends_us = |call: usize| {
        let until_us = timeline.waits_until_us(&timeline.calls[call]);
        if let Some(granted_us) = timeline.calls[call].granted_us() {
            return granted_us;
        }
        let disturbed_us = timeline.disturbed_until_us(timeline.calls[call].process, until_us);
        until_us.saturating_add(timeline.settle_us).max(disturbed_us)
    };
    let (mut full, mut count, mut since_us) = (crate::timeline::Spans::default(), 0_i64, None);
    let parties_signed = i64::try_from(parties).unwrap_or(i64::MAX);
    let arrivals = waits.iter().flat_map(|&it| {
        let (wait, until_us) = (&timeline.calls[it], ends_us(it));
        let again_us = timeline.wait_is_disturbed_from_us(wait);
        [Some(wait.asked_us), again_us].into_iter().flatten().map(move |from_us| (from_us, until_us))
    });
    for (at_us, by) in changes(arrivals) {
        count += by;
        match since_us {
            None if count >= parties_signed => since_us = Some(at_us),
            Some(since) if count < parties_signed => {
                full.add(since, at_us - 1);
                since_us = None;
            }
            _ => {}
        }
    }
    full.merge();
    let alone = waits.iter().copied().find(|&call| {
        let call = &timeline.calls[call];
        call.granted_us().is_some_and(|granted_us| !full.overlaps(call.asked_us, granted_us))
    })?;
    let call = &timeline.calls[alone];
    let granted_us = call.granted_us()?;
    let what = format!(
        "`{}`, a barrier for {parties}, admitted {} at {}, although so many never waited together with it.",
        lock.spec.name,
        timeline.process_name(call),
        seconds(granted_us)
    );
    Some(violation(timeline, lock, (granted_us, None), &[alone], what))
}

fn held_back(
    timeline: &Timeline<'_>,
    margins: &Margins,
    lock: &Lock<'_>,
    parties: usize,
    waits: &[usize],
) -> Option<crate::Violation> {
    let parties = i64::try_from(parties).unwrap_or(i64::MAX);
    let until_us = |call: usize| timeline.waits_until_us(&timeline.calls[call]);
    let (mut count, mut since_us) = (0_i64, None);
    for (at_us, by) in changes(waits.iter().map(|&call| (timeline.calls[call].asked_us, until_us(call)))) {
        if let Some(since) = since_us
            && at_us - since > margins.wake_up_us
            && !lock.disturbed.overlaps(since, at_us)
        {
            let open: Vec<usize> = waits
                .iter()
                .copied()
                .filter(|&call| timeline.calls[call].asked_us <= since && until_us(call) >= at_us - 1)
                .collect();
            let what = format!(
                "`{}`, a barrier for {parties}, left {count} waiting for {} from {}.",
                lock.spec.name,
                duration(at_us - since),
                seconds(since)
            );
            return Some(violation(timeline, lock, (since, Some(at_us)), &open, what));
        }
        count += by;
        // Those that are left when one was admitted may be of its round, so time counts anew.
        since_us = match (count >= parties, by) {
            (false, _) => None,
            (true, -1) => Some(at_us),
            (true, _) => since_us.or(Some(at_us)),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Script;
    use crate::event::{Answer, FaultKind, LockKind, Mode, What};

    const MS: u64 = 1000;

    /// A barrier for two, and waits from one time to another.
    fn barrier(waits_ms: &[(u64, Option<u64>)]) -> (u64, u64) {
        let mut script = Script::with(LockKind::Barrier, Some(2), None);
        for (process, (asked, granted)) in (1..).zip(waits_ms) {
            let call = script.asked(process, Mode::Wait, asked * MS);
            if let Some(granted) = granted {
                script.answer(granted * MS, call, None);
            }
        }
        script.outcome("barriers")
    }

    #[test]
    fn full_rounds_are_in_order() {
        assert_eq!(
            barrier(&[(1, Some(11)), (10, Some(12)), (20, Some(31)), (30, Some(31)), (40, None)]),
            (5, 0)
        );
    }

    #[test]
    fn rounds_that_are_not_full_are_found() {
        assert_eq!(barrier(&[(1, Some(11)), (10, Some(12)), (20, Some(31))]), (3, 1), "one too many");
        assert_eq!(barrier(&[(1, Some(5)), (10, Some(12))]), (2, 1), "too early");
        let alone = [(1, Some(11)), (2, Some(11)), (3, None), (7_000, Some(7_005)), (7_010, None)];
        assert_eq!(barrier(&alone), (5, 0), "it may have met the one that waits since 3 ms");
        let alone = [(1, Some(11)), (10, Some(12)), (20, Some(30)), (40, Some(50))];
        assert_eq!(barrier(&alone), (4, 1), "two that never waited together");
    }

    #[test]
    fn a_wait_of_a_process_without_a_network_may_count_twice() {
        for (fault, found) in [(2..500, 0), (300..500, 1)] {
            let mut script = Script::with(LockKind::Barrier, Some(3), None);
            // It gives up and does not know that it was admitted.
            let partitioned = script.asked(1, Mode::Wait, MS);
            for (process, asked, granted) in [(2, 10, 20), (3, 19, 20), (4, 30, 40), (5, 39, 40)] {
                let call = script.asked(process, Mode::Wait, asked * MS);
                script.answer(granted * MS, call, None);
            }
            script.push(200 * MS, 1, What::Answered { call: partitioned, answer: Answer::NotGranted });
            script.fault(FaultKind::Partition, Some(1), fault.start * MS..fault.end * MS);
            assert_eq!(script.outcome("barriers").1, found, "{fault:?}");
        }
    }

    /// Its session lapses in the partition, so it counts as dead and arrives again: with one other, a round of three is full.
    #[test]
    fn a_wait_that_arrives_twice_may_be_two_of_the_company_of_another() {
        // The last ones: the other is gone before the fault, and both are.
        for (fault, granted, found) in
            [(2..7_480, 14_494, 0), (15_000..16_000, 20_000, 1), (20_000..20_100, 14_494, 1)]
        {
            let mut script = Script::with(LockKind::Barrier, Some(3), None);
            // So that enough have been asked for the round to be full.
            let earlier = script.asked(3, Mode::Wait, MS);
            script.push(2 * MS, 3, What::Answered { call: earlier, answer: Answer::NotGranted });
            let (partitioned, other) =
                (script.asked(1, Mode::Wait, 7_000 * MS), script.asked(2, Mode::Wait, 14_481 * MS));
            script.answer(14_494 * MS, other, None);
            script.answer(granted * MS, partitioned, None);
            script.fault(FaultKind::Partition, Some(1), fault.start * MS..fault.end * MS);
            assert_eq!(script.outcome("barriers").1, found, "{fault:?}");
        }
    }

    #[test]
    fn a_full_round_that_is_left_waiting_is_found() {
        assert_eq!(barrier(&[(1, Some(5_000)), (10, Some(5_000))]), (2, 1));
    }
}
