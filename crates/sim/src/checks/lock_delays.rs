//! After a loss, no other client is granted the lock within the lock delay.

use super::sharing::excludes;
use super::{Check, CheckContext, CheckResult, GuardRecord};
use crate::event::{Event, Execution, GuardId, Held, LockId, NewGuard, TaskEvent};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, Kind, LockMode};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A guard with a lock delay that becomes invalid before its release begins is lost. From its deadline on, in true time, the
/// store grants the lock to no other owner before the delay is over, nor more permits than those of the lost guards leave,
/// also if the process has crashed. A release in time and a forced release end the delay.
#[derive(Debug, Default)]
pub struct LockDelays {
    /// The guards with a delay that were not released in time.
    guards: BTreeMap<GuardId, DelayedGuard>,
    /// Holds that were released by force. Their processes may learn of the grant only afterwards.
    force_released: BTreeSet<(LockId, FencingToken)>,
    /// The holds at the store.
    held: BTreeMap<LockId, Vec<(HoldId, FencingToken)>>,
}

#[derive(Debug, Clone, Copy)]
struct DelayedGuard {
    lock: LockId,
    /// Until when its task relies on it.
    until: Instant,
    lock_delay: Duration,
}

impl DelayedGuard {
    fn keeps_the_lock(&self, lock: LockId, at: Instant) -> bool {
        self.lock == lock && self.until <= at && at < self.until + self.lock_delay
    }
}

impl LockDelays {
    /// The guards whose delay keeps a lock taken.
    fn lost<'a>(
        &'a self,
        at: Instant,
        lock: LockId,
        context: &'a CheckContext,
    ) -> impl Iterator<Item = (&'a DelayedGuard, &'a GuardRecord)> {
        let lost = self.guards.iter().filter(move |(_, guard)| guard.keeps_the_lock(lock, at));
        let known = lost.filter_map(|(guard_id, guard)| Some((guard, context.guards.get(*guard_id)?)));
        known.filter(move |(_, known)| !self.force_released.contains(&(lock, known.hold_token)))
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        if let Some(Some(fence)) = done.force_released() {
            self.force_released.insert((done.lock, fence));
        }
        let holds = done.holds(at);
        let all = holds.iter().map(|held| (held.hold, held.fence)).collect();
        let before = self.held.insert(done.lock, all).unwrap_or_default();
        let is_new = |held: &&Held| !before.contains(&(held.hold, held.fence));
        let new: Vec<_> = holds.iter().filter(is_new).collect();
        if new.is_empty() || !context.promises.exclusion {
            return Ok(());
        }
        let mut permits: u64 = holds.iter().map(|held| u64::from(held.mode.count())).sum();
        for (guard, lost) in self.lost(at, done.lock, context) {
            let owner = lost.owner.and_then(|owner| context.guards.owner(owner));
            let clashes = |held: &&&Held| {
                let is_same =
                    owner.is_some() && owner == held.owner.as_ref().map(leasehold::OwnValue::as_str);
                Some(held.hold) != lost.hold && excludes(lost.mode, held.mode, is_same)
            };
            if let Some(other) = new.iter().find(clashes) {
                return Err(format!("{} was granted to {other:?} in the lock delay of {guard:?}", done.lock));
            }
            if let LockMode::Permits { count, .. } = lost.mode
                && holds.iter().all(|held| Some(held.hold) != lost.hold)
            {
                permits += u64::from(count);
            }
        }
        let record = done.state.record.as_ref().filter(|_| done.state.kind == Kind::Semaphore);
        match record.and_then(|record| record.limit).map(u64::from) {
            Some(limit) if permits > limit => Err(format!(
                "{} has {limit} permits, and {permits} are held or in their lock delay: {new:?}",
                done.lock
            )),
            _ => Ok(()),
        }
    }

    fn task(&mut self, at: Instant, lock: LockId, what: TaskEvent) {
        match what {
            TaskEvent::Acquired(guard_id, NewGuard { validity, lock_delay, .. }) if !lock_delay.is_zero() => {
                self.guards.insert(guard_id, DelayedGuard { lock, until: validity.until, lock_delay });
            }
            TaskEvent::ValidityChanged(guard_id, validity) => {
                if let Some(guard) = self.guards.get_mut(&guard_id) {
                    // A guard that is known to be lost is valid until the past.
                    guard.until = if validity.until > at { validity.until } else { guard.until.min(at) };
                }
            }
            TaskEvent::Releasing(guard_id, _) => {
                self.guards.retain(|other, guard| *other != guard_id || guard.until <= at);
            }
            // A conversion is not visible until it has ended.
            TaskEvent::Converting(guard_id) => drop(self.guards.remove(&guard_id)),
            _ => {}
        }
    }
}

impl Check for LockDelays {
    fn name(&self) -> &'static str {
        "lock_delays"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.executed(at, done, context),
            Event::Foreign(lock, Some(_)) if context.promises.exclusion => {
                let mut lost = self.lost(at, lock, context);
                if let Some((guard, _)) = lost.next() {
                    return Err(format!("a foreign client acquired {lock} in the lock delay of {guard:?}"));
                }
            }
            Event::Task(_, lock, what) => self.task(at, lock, what),
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, _context: &CheckContext) -> CheckResult {
        self.guards.retain(|_, guard| at < guard.until + guard.lock_delay);
        Ok(())
    }
}
