//! The workload on `once_per`: starts a period, works, then finishes, gives up or drops the guard.
//!
//! It deliberately judges nothing: it records what it does, and the checks do the rest.

use crate::config::Period;
use crate::event::{Event, PeriodEvent};
use crate::workload::dropped::DroppedAfter;
use crate::workload::runner::TaskRunner;
use futures_util::future::{Either, select};
use leasehold::{Attempt, PeriodGuard};
use std::pin::pin;
use std::time::Duration;

impl TaskRunner {
    /// Tries once to have the turn, and uses it.
    pub(crate) async fn take_turn(&self, period: Period) {
        let Period { lock, length, at_most } = period;
        let Some(name) = self.sim.locks.get(usize::from(lock.0)).map(|lock| lock.name.clone()) else {
            return;
        };
        let Some(once) = self.sim.expect("workload", self.client.once_per(name, length)) else { return };
        let once = once.max_duration(at_most);
        let starting = Box::pin(async move { once.try_start().await });
        let Some(Ok(Attempt::Granted(turn))) = self.unless_dropped(starting).await else { return };
        let (fence, until) = (turn.fencing_token(), self.world.shows_at(turn.valid_until()));
        let note = |what| self.sim.note(&Event::Period(self.task, lock, what));
        note(PeriodEvent::Has { fence, until, period: length });
        self.work_in_turn(&turn, length.max(at_most)).await;
        if turn.check().is_ok() != (self.world.now() < turn.valid_until()) {
            self.sim.fail(
                "workload",
                format!("the check of {}'s turn does not say what its time says", self.task),
            );
        }
        note(PeriodEvent::Releasing(fence));
        let dropped = self.chance.chance(self.sim.config.drops);
        let polls = if dropped { self.chance.between(1, 3) } else { u64::MAX };
        // The outcome does not matter: the store shows it.
        match self.chance.below(10) {
            0..6 => drop(DroppedAfter { inner: Box::pin(turn.finish()), polls }.await),
            6..8 => drop(DroppedAfter { inner: Box::pin(turn.release()), polls }.await),
            _ => drop(turn),
        }
    }

    /// Works for some part of the time that it has, or for too long.
    async fn work_in_turn(&self, turn: &PeriodGuard, lasts: Duration) {
        let longest = if self.chance.chance(200) { lasts * 3 / 2 } else { lasts / 3 };
        let work = self.pause(longest);
        if let Either::Left((lost, _)) = select(pin!(turn.lost()), pin!(work)).await
            && turn.check().is_ok()
        {
            self.sim.fail("workload", format!("{} was told {lost}, and its check succeeds", self.task));
        }
    }
}
