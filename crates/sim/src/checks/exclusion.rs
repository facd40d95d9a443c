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
    believers: BTreeMap<LockId, Vec<Believer>>,
    /// When a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// How many permits there were in all, and since when.
    limits: BTreeMap<LockId, Vec<(Instant, u32)>>,
    /// Holds that were ended by force.
    freed: BTreeSet<(LockId, FencingToken)>,
}

#[derive(Debug, Clone, Copy)]
struct Believer {
    /// `None` for a foreign hold.
    who: Option<(TaskId, GuardId, FencingToken)>,
    /// For which owner, of a ReentrantMutex or an RwLock.
    owner: Option<OwnerId>,
    /// The lock mode.
    mode: LockMode,
    until: Instant,
}

impl Believer {
    fn guard_id(&self) -> Option<GuardId> {
        self.who.map(|(_, guard_id, _)| guard_id)
    }

    /// Whether the two exclude each other.
    fn excludes(&self, other: &Self) -> bool {
        let is_same = self.owner.is_some() && self.owner == other.owner;
        self.guard_id() != other.guard_id() && excludes(self.mode, other.mode, is_same)
    }
}

impl Exclusion {
    fn believe(&mut self, at: Instant, lock: LockId, new: Believer, context: &CheckContext) -> CheckResult {
        self.stop(lock, new.guard_id());
        let believers = self.believers.entry(lock).or_default();
        let other = believers.iter().find(|other| other.excludes(&new) && other.until > at).copied();
        believers.push(new);
        match other {
            Some(other) if new.until > at => {
                Err(format!("two believe that they hold {lock}: {new:?}, and {other:?}"))
            }
            _ => self.counted(at, lock, context),
        }
    }

    /// No more permits are believed in than there were at any time since the first of them was given.
    fn counted(&self, at: Instant, lock: LockId, context: &CheckContext) -> CheckResult {
        let believers = self.believers.get(&lock).into_iter().flatten().filter(|other| other.until > at);
        let permits = believers.filter(|other| matches!(other.mode, LockMode::Permits { .. }));
        let permits: Vec<_> = permits.collect();
        let sum: u64 = permits.iter().map(|other| u64::from(other.mode.count())).sum();
        let hold = |other: &&Believer| self.granted.get(&context.guards.hold(other.guard_id()?)?).copied();
        let since = permits.iter().copied().filter_map(|other| hold(&other)).min().unwrap_or_default();
        let limits = self.limits.get(&lock).map(Vec::as_slice).unwrap_or_default();
        // That which was in force when the first was given, and those after it.
        let first = limits.partition_point(|(at, _)| *at <= since).saturating_sub(1);
        match limits[first..].iter().map(|(_, limit)| u64::from(*limit)).max() {
            Some(limit) if sum > limit => {
                Err(format!("{sum} permits of {lock} are believed in, and there are {limit}: {permits:?}"))
            }
            _ => Ok(()),
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        if let Some(fence) = done.freed() {
            self.freed(done.lock, fence);
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
    fn freed(&mut self, lock: LockId, fence: Option<FencingToken>) {
        let Some(fence) = fence else { return self.stop(lock, None) };
        self.freed.insert((lock, fence));
        let is_freed = |other: &Believer| other.who.is_some_and(|(_, _, token)| token == fence);
        self.believers.entry(lock).or_default().retain(|other| !is_freed(other));
    }

    /// A guard, or a foreign hold, no longer counts.
    fn stop(&mut self, lock: LockId, guard_id: Option<GuardId>) {
        self.believers.entry(lock).or_default().retain(|other| other.guard_id() != guard_id);
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
                TaskEvent::Acquired(guard_id, NewGuard { belief, .. })
                | TaskEvent::ValidityChanged(guard_id, belief),
            ) => {
                let Some(known) = context.guards.get(guard_id) else { return Ok(()) };
                if self.freed.contains(&(lock, known.known_as)) {
                    return Ok(());
                }
                let who = Some((known.task, guard_id, known.known_as));
                let GuardRecord { owner, mode, .. } = *known;
                return self.believe(at, lock, Believer { who, owner, mode, until: belief.until }, context);
            }
            // A conversion is not visible until it has ended.
            Event::Task(_, lock, TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id)) => {
                self.stop(lock, Some(guard_id));
            }
            Event::Foreign(lock, Some(until)) => {
                return self.believe(
                    at,
                    lock,
                    Believer { who: None, owner: None, mode: LockMode::Exclusive, until },
                    context,
                );
            }
            Event::Foreign(lock, None) => self.stop(lock, None),
            Event::Host(host, HostEvent::Crashed) => {
                for believers in self.believers.values_mut() {
                    believers.retain(|other| other.who.is_none_or(|(task, ..)| task.host != host));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
