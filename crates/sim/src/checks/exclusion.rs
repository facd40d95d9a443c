//! No two valid guards exclude each other.

use super::sharing::excludes;
use super::{Check, CheckContext, CheckResult, GuardRecord};
use crate::event::{Event, Execution, GuardId, HostEvent, LockId, NewGuard, OwnerId, TaskEvent, TaskId};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, Kind, LockMode};
use std::collections::{BTreeMap, BTreeSet};

/// At no point in true time are two guards valid that exclude each other. The holds of one owner do not, nor do
/// readers, nor permits up to the limit. Foreign holds count. A hold that was ended by force does not count, though
/// its holder may not know yet.
#[derive(Debug, Default)]
pub struct Exclusion {
    valid_guards: BTreeMap<LockId, Vec<ValidGuard>>,
    /// When a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// The total numbers of permits, and since when each applied.
    limits: BTreeMap<LockId, Vec<(Instant, u32)>>,
    /// Holds that were ended by force.
    force_released: BTreeSet<(LockId, FencingToken)>,
}

#[derive(Debug, Clone, Copy)]
struct ValidGuard {
    /// `None` for a foreign hold.
    guard: Option<(TaskId, GuardId, FencingToken)>,
    /// For which owner, of a ReentrantMutex or an RwLock.
    owner: Option<OwnerId>,
    /// The lock mode.
    mode: LockMode,
    until: Instant,
}

impl ValidGuard {
    fn guard_id(&self) -> Option<GuardId> {
        self.guard.map(|(_, guard_id, _)| guard_id)
    }

    /// Whether the two exclude each other.
    fn excludes(&self, other: &Self) -> bool {
        let is_same = self.owner.is_some() && self.owner == other.owner;
        self.guard_id() != other.guard_id() && excludes(self.mode, other.mode, is_same)
    }
}

impl Exclusion {
    fn add_guard(
        &mut self,
        at: Instant,
        lock: LockId,
        new: ValidGuard,
        context: &CheckContext,
    ) -> CheckResult {
        self.remove_guard(lock, new.guard_id());
        let valid_guards = self.valid_guards.entry(lock).or_default();
        let other = valid_guards.iter().find(|other| other.excludes(&new) && other.until > at).copied();
        valid_guards.push(new);
        match other {
            Some(other) if new.until > at => {
                Err(format!("two guards of {lock} are valid: {new:?}, and {other:?}"))
            }
            _ => self.check_permits(at, lock, context),
        }
    }

    /// The valid guards have no more permits than there were at any time since the first of them was granted.
    fn check_permits(&self, at: Instant, lock: LockId, context: &CheckContext) -> CheckResult {
        let valid_guards =
            self.valid_guards.get(&lock).into_iter().flatten().filter(|other| other.until > at);
        let permits = valid_guards.filter(|other| matches!(other.mode, LockMode::Permits { .. }));
        let permits: Vec<_> = permits.collect();
        let sum: u64 = permits.iter().map(|other| u64::from(other.mode.count())).sum();
        let hold = |other: &&ValidGuard| self.granted.get(&context.guards.hold(other.guard_id()?)?).copied();
        let since = permits.iter().copied().filter_map(|other| hold(&other)).min().unwrap_or_default();
        let limits = self.limits.get(&lock).map(Vec::as_slice).unwrap_or_default();
        // The limit at the time of the first grant, and the later ones.
        let first = limits.partition_point(|(at, _)| *at <= since).saturating_sub(1);
        match limits[first..].iter().map(|(_, limit)| u64::from(*limit)).max() {
            Some(limit) if sum > limit => {
                Err(format!("{lock} has {limit} permits, and valid guards have {sum}: {permits:?}"))
            }
            _ => Ok(()),
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        if let Some(fence) = done.force_released() {
            self.force_released(done.lock, fence);
        }
        if done.state.kind != Kind::Semaphore {
            return;
        }
        for held in done.holds(at) {
            self.granted.entry(held.hold).or_insert(at);
        }
        if let Some(limit) = done.state.record.as_ref().and_then(|record| record.limit) {
            let limits = self.limits.entry(done.lock).or_default();
            if limits.last().is_none_or(|(_, last)| *last != limit) {
                limits.push((at, limit));
            }
        }
    }

    /// A hold was ended by force.
    fn force_released(&mut self, lock: LockId, fence: Option<FencingToken>) {
        let Some(fence) = fence else { return self.remove_guard(lock, None) };
        self.force_released.insert((lock, fence));
        let is_freed = |other: &ValidGuard| other.guard.is_some_and(|(_, _, token)| token == fence);
        self.valid_guards.entry(lock).or_default().retain(|other| !is_freed(other));
    }

    /// A guard, or a foreign hold, no longer counts.
    fn remove_guard(&mut self, lock: LockId, guard_id: Option<GuardId>) {
        self.valid_guards.entry(lock).or_default().retain(|other| other.guard_id() != guard_id);
    }
}

impl Check for Exclusion {
    fn name(&self) -> &'static str {
        "exclusion"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        if !context.promises.exclusion {
            return Ok(());
        }
        match *event {
            Event::Executed(done) => self.executed(at, done),
            Event::Task(
                _,
                lock,
                TaskEvent::Acquired(guard_id, NewGuard { validity, .. })
                | TaskEvent::ValidityChanged(guard_id, validity),
            ) => {
                let Some(known) = context.guards.get(guard_id) else { return Ok(()) };
                if self.force_released.contains(&(lock, known.hold_token)) {
                    return Ok(());
                }
                let guard = Some((known.task, guard_id, known.hold_token));
                let GuardRecord { owner, mode, .. } = *known;
                return self.add_guard(
                    at,
                    lock,
                    ValidGuard { guard, owner, mode, until: validity.until },
                    context,
                );
            }
            // A conversion is not visible until it has ended.
            Event::Task(_, lock, TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id)) => {
                self.remove_guard(lock, Some(guard_id));
            }
            Event::Foreign(lock, Some(until)) => {
                return self.add_guard(
                    at,
                    lock,
                    ValidGuard { guard: None, owner: None, mode: LockMode::Exclusive, until },
                    context,
                );
            }
            Event::Foreign(lock, None) => self.remove_guard(lock, None),
            Event::Host(host, HostEvent::Crashed) => {
                for valid_guards in self.valid_guards.values_mut() {
                    valid_guards.retain(|other| other.guard.is_none_or(|(task, ..)| task.host != host));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
