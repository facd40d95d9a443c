//! The workload on `once_per`: starts a period, works, then finishes, gives up or drops the guard.
//!
//! It does not check anything: it records events, which the checks evaluate.

use crate::config::Period;
use crate::event::{Event, PeriodEvent};
use crate::workload::dropped::DroppedAfter;
use crate::workload::runner::TaskRunner;
use futures_util::future::{Either, select};
use leasehold::{Attempt, PeriodGuard};
use std::pin::pin;
use std::time::Duration;

impl TaskRunner {
    /// Tries once to start the period, and uses the guard.
    pub(crate) async fn run_period(&self, period: Period) {
        let Period { lock, length, at_most } = period;
        let Some(name) = self.sim.locks.get(usize::from(lock.0)).map(|lock| lock.name.clone()) else {
            return;
        };
        let Some(once) = self.sim.expect("workload", self.client.once_per(name, length)) else { return };
        let once = once.max_duration(at_most);
        let starting = Box::pin(async move { once.try_start().await });
        let Some(Ok(Attempt::Granted(period_guard))) = self.maybe_dropped(starting).await else { return };
        let (fence, until) = (period_guard.fencing_token(), self.world.shows_at(period_guard.valid_until()));
        let note = |what| self.sim.record(&Event::Period(self.task, lock, what));
        note(PeriodEvent::Started { fence, until, period: length });
        self.work_in_period(&period_guard, length.max(at_most)).await;
        if period_guard.check().is_ok() != (self.world.now() < period_guard.valid_until()) {
            self.sim
                .fail("workload", format!("the check of {}'s period disagrees with its deadline", self.task));
        }
        let dropped = self.random.chance(self.sim.config.drops_future);
        let polls = if dropped { self.random.between(1, 3) } else { u64::MAX };
        let how = self.random.below(10);
        note(PeriodEvent::Releasing { fence, finishes: how < 6 && !dropped });
        // The outcome does not matter: the store shows it.
        match how {
            0..6 => drop(DroppedAfter { inner: Box::pin(period_guard.finish()), polls }.await),
            6..8 => drop(DroppedAfter { inner: Box::pin(period_guard.fail()), polls }.await),
            _ => drop(period_guard),
        }
    }

    /// Works for a part of the period, or for too long.
    async fn work_in_period(&self, period_guard: &PeriodGuard, lasts: Duration) {
        let longest = if self.random.chance(200) { lasts * 3 / 2 } else { lasts / 3 };
        let work = self.pause(longest);
        if let Either::Left((lost, _)) = select(pin!(period_guard.lost()), pin!(work)).await
            && period_guard.check().is_ok()
        {
            self.sim.fail(
                "workload",
                format!("the check of {} succeeds after a reported loss: {lost}", self.task),
            );
        }
    }
}
