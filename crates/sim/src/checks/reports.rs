//! What clients report, whichever server they are at.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, LockId, PeriodEvent, TaskEvent};
use crate::world::time::Instant;
use leasehold_core::FencingToken;
use std::collections::BTreeMap;

/// By what tasks report alone: with one holder at a time, its fencing token is greater than that of any earlier guard; and no
/// task starts a period before the last one is over, unless that start was given up. Tokens are the microseconds of the
/// store's clock, so that they tell when a period was started, which the store counts in milliseconds. For two primaries, of which neither knows all.
#[derive(Debug, Default)]
pub struct Reports {
    /// The greatest token of a guard.
    last_token: BTreeMap<LockId, FencingToken>,
    /// The starts that were not given up, and until which millisecond each blocks others.
    periods: BTreeMap<(LockId, FencingToken), u64>,
}

impl Reports {
    fn acquired(&mut self, lock: LockId, fence: FencingToken) -> CheckResult {
        match self.last_token.insert(lock, fence) {
            Some(last) if last >= fence => Err(format!("a task has {fence} of {lock} after {last}")),
            _ => Ok(()),
        }
    }

    fn period(&mut self, lock: LockId, event: PeriodEvent) -> CheckResult {
        match event {
            PeriodEvent::Started { fence, period, .. } => {
                let at_ms = fence.as_u64() / 1000;
                let blocks =
                    |((of, _), until): &(&(LockId, FencingToken), &u64)| *of == lock && at_ms < **until;
                if let Some(((_, first), _)) = self.periods.iter().find(blocks) {
                    return Err(format!("a period of {lock} was started at {first} and at {fence}"));
                }
                let length_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
                self.periods.insert((lock, fence), at_ms.saturating_add(length_ms));
            }
            PeriodEvent::Releasing { fence, finishes: false } => {
                self.periods.remove(&(lock, fence));
            }
            PeriodEvent::Releasing { .. } => {}
        }
        Ok(())
    }
}

impl Check for Reports {
    fn name(&self) -> &'static str {
        "reports"
    }

    fn observe(&mut self, _at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Task(_, lock, TaskEvent::Acquired(_, new_guard))
                if !context.is_shared(lock) && !context.is_reentrant(lock) =>
            {
                self.acquired(lock, new_guard.fence)
            }
            Event::Period(_, lock, event) => self.period(lock, event),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::LOCK;
    use std::time::Duration;

    fn start(reports: &mut Reports, at_us: u64) -> CheckResult {
        let (fence, until) = (FencingToken::new(at_us), Instant(0));
        reports.period(LOCK, PeriodEvent::Started { fence, until, period: Duration::from_millis(100) })
    }

    #[test]
    fn a_period_is_started_once_unless_it_was_given_up() {
        for (finishes, next, allowed) in [(true, 100_999, false), (true, 101_000, true), (false, 2_000, true)]
        {
            let mut reports = Reports::default();
            start(&mut reports, 1_900).expect("the first");
            let fence = FencingToken::new(1_900);
            reports.period(LOCK, PeriodEvent::Releasing { fence, finishes }).expect("no start");
            assert_eq!(start(&mut reports, next).is_ok(), allowed, "finishes {finishes}, {next}");
        }
        let mut reports = Reports::default();
        start(&mut reports, 1_000).expect("the first");
        start(&mut reports, 50_000).expect_err("the first goes on");
    }

    #[test]
    fn tokens_grow() {
        let mut reports = Reports::default();
        for (token, allowed) in [(5, true), (7, true), (7, false), (6, false)] {
            assert_eq!(reports.acquired(LOCK, FencingToken::new(token)).is_ok(), allowed, "{token}");
        }
    }
}
