//! A period has one turn at most.
//!
//! Of two turns of a `OncePer`, the second is granted at least a period after the first was asked: a turn counts from its start at the
//! store, which is not before its request, and a release finishes a turn without ending its period. A thousandth of the period is
//! allowed for clocks of different speed. No fault excuses a second turn, since a turn belongs to no session; a clock of the store that
//! is set forward ends a period early, and is reported. A `OncePer` without `period_ms` is not judged.

use super::{Findings, violation};
use crate::event::LockKind;
use crate::fencing::duration;
use crate::margins::Margins;
use crate::timeline::Timeline;

pub(super) fn check(timeline: &Timeline<'_>, _margins: &Margins) -> Findings {
    let mut findings = Findings::default();
    for lock in timeline.locks.iter().filter(|lock| lock.spec.kind == LockKind::OncePer) {
        let Some(period_us) = lock.spec.period_ms.map(|ms| ms.saturating_mul(1000)) else {
            findings.note = Some(format!("the history does not say the period of `{}`", lock.spec.name));
            continue;
        };
        let mut turns: Vec<(u64, usize)> = lock
            .calls
            .iter()
            .filter_map(|&call| timeline.calls[call].granted_us().map(|granted| (granted, call)))
            .collect();
        turns.sort_unstable();
        findings.judged += turns.len() as u64;
        for pair in turns.windows(2) {
            let (first, (granted_us, second)) = (pair[0].1, pair[1]);
            let apart = granted_us.saturating_sub(timeline.calls[first].asked_us);
            if apart >= period_us - period_us / 1000 {
                continue;
            }
            let what = format!(
                "`{}` had two turns in one period: {} and {} began theirs at most {} apart, and the period is {}.",
                lock.spec.name,
                timeline.process_name(&timeline.calls[first]),
                timeline.process_name(&timeline.calls[second]),
                duration(apart),
                duration(period_us)
            );
            let calls = [first, second];
            findings.violations.push(violation(timeline, lock, (granted_us, None), &calls, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Script;
    use crate::event::{LockKind, Mode};

    #[test]
    fn turns_a_period_apart_are_in_order_and_closer_ones_are_not() {
        let mut script = Script::with(LockKind::OncePer, None, Some(100));
        script.hold(1, Mode::Exclusive, 1, 1_000..2_000);
        script.hold(2, Mode::Exclusive, 2, 101_000..102_000);
        assert_eq!(script.outcome("periods"), (2, 0));
        script.hold(1, Mode::Exclusive, 3, 180_000..181_000);
        assert_eq!(script.outcome("periods"), (3, 1));
    }

    #[test]
    fn without_a_period_nothing_is_judged() {
        let mut script = Script::with(LockKind::OncePer, None, None);
        script.hold(1, Mode::Exclusive, 1, 1_000..2_000);
        assert_eq!(script.outcome("periods"), (0, 0));
    }
}
