//! An owner's hold count is correct, and re-entry does not wait.

use super::{Check, CheckContext, CheckResult, Health, LOOK};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LockId, NewGuard, OwnerId, ServerEvent, TaskEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::model::{Content, ReentrantHolds};
use leasehold_core::{Acquired, FencingToken, Op, OwnValue, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a re-entrant acquire may take: a few round trips, or the pause between two attempts.
const ENTERED_WITHIN: Duration = Duration::from_millis(500);

/// The count of a ReentrantMutex is that of its entries. Each hold counts once, however often it was requested.
/// Reported counts are correct: no release reports the lock free, or a lower count, while guards of the same tenure
/// are valid. An owner re-enters at once, or with the next poll if it acquired the lock in another process meanwhile.
#[derive(Debug, Default)]
pub struct Reentrancy {
    believed: BTreeMap<GuardId, Believed>,
    /// When guards were begun to be given back.
    letting: BTreeMap<GuardId, Instant>,
    sought: BTreeMap<TaskId, (LockId, OwnerId, Instant)>,
    /// Until when a process relied on an owner's tenure.
    occupied: BTreeMap<(HostId, LockId, FencingToken), Instant>,
    /// The owner of a lock at the store.
    owners: BTreeMap<LockId, Stay>,
    /// By which holds, as far as that is known.
    holds: BTreeMap<LockId, Vec<Held>>,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    lock: LockId,
    fence: FencingToken,
    since: Instant,
    until: Instant,
}

/// An owner has a lock.
#[derive(Debug, Clone)]
struct Stay {
    owner: OwnValue,
    fence: FencingToken,
    since: Instant,
    /// When its last hold expires.
    until: Instant,
}

impl Reentrancy {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        let value = done.state.value.as_ref();
        let entries = value.and_then(|value| value.content.reentrant_holds());
        if let Some(entries) = entries.filter(|entries| !entries.holds.is_empty()) {
            counted(done.lock, entries)?;
        }
        let before = self.holds.insert(done.lock, done.holds(at));
        told(at, done, entries, before)?;
        let holds = done.holds(at);
        let last = holds.iter().filter_map(|held| Some((held.until?, held.fence))).max();
        match (entries, last) {
            (Some(ReentrantHolds { owner, .. }), Some((until, fence))) => {
                let before = self.owners.get(&done.lock);
                let stays = before.filter(|stay| stay.owner == *owner && at < stay.until);
                let since = stays.map_or(at, |stay| stay.since);
                self.owners.insert(done.lock, Stay { owner: owner.clone(), fence, since, until });
            }
            _ => drop(self.owners.remove(&done.lock)),
        }
        Ok(())
    }

    /// The guards of the same tenure that are valid since before that time.
    fn beside(&self, at: Instant, since: Instant, lock: LockId, fence: FencingToken) -> u64 {
        let same = |other: &&Believed| {
            (other.lock, other.fence) == (lock, fence) && other.since <= since && at < other.until
        };
        self.believed.values().filter(same).count() as u64
    }

    fn released(
        &mut self,
        at: Instant,
        guard_id: GuardId,
        told: Option<u64>,
        context: &CheckContext,
    ) -> CheckResult {
        let (Some(began), Some(known)) = (self.letting.remove(&guard_id), context.guards.get(guard_id))
        else {
            return Ok(());
        };
        let (Some(left), true) = (told, context.promises.exclusion) else { return Ok(()) };
        let (task, lock) = (known.task, known.lock);
        if known.owner.is_none() && left > 0 {
            return Err(format!(
                "{task} released {lock}, which is had {left} times yet, and no ReentrantMutex"
            ));
        }
        // An acquire after the end of the tenure has another token.
        let since = if left == 0 { at } else { began };
        let beside = self.beside(at, since, lock, known.fence);
        if left < beside {
            return Err(format!(
                "{task} was told that {lock} is had {left} times yet, and {beside} believe in it"
            ));
        }
        Ok(())
    }

    fn task(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        what: TaskEvent,
        context: &CheckContext,
    ) -> CheckResult {
        match what {
            TaskEvent::Acquiring(_, Some(owner)) => drop(self.sought.insert(task, (lock, owner, at))),
            TaskEvent::Acquired(guard_id, NewGuard { fence, belief, .. }) => {
                self.sought.remove(&task);
                let believed = Believed { lock, fence, since: at, until: belief.until };
                self.believed.insert(guard_id, believed);
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => drop(self.sought.remove(&task)),
            TaskEvent::ValidityChanged(guard_id, belief) => {
                if let Some(believed) = self.believed.get_mut(&guard_id) {
                    believed.until = belief.until;
                }
            }
            TaskEvent::Releasing(guard_id, _) => {
                self.believed.remove(&guard_id);
                self.letting.insert(guard_id, at);
            }
            TaskEvent::Released(guard_id, told) => return self.released(at, guard_id, told, context),
            _ => {}
        }
        if let TaskEvent::Acquired(guard_id, _)
        | TaskEvent::ValidityChanged(guard_id, _)
        | TaskEvent::Releasing(guard_id, _) = what
        {
            self.occupy(at, guard_id, context);
        }
        Ok(())
    }

    /// A guard of a process has changed.
    fn occupy(&mut self, at: Instant, guard_id: GuardId, context: &CheckContext) {
        let of = |guard_id: GuardId| {
            context.guards.get(guard_id).map(|known| (known.task.host, known.lock, known.fence))
        };
        let Some(stay) = of(guard_id) else { return };
        let same = self.believed.iter().filter(|(other, _)| of(**other) == Some(stay));
        let until = same.map(|(_, other)| other.until).max().unwrap_or(at);
        self.occupied.insert(stay, until.max(at));
    }
}

/// The count is that of the entries, and each is there once.
fn counted(lock: LockId, entries: &ReentrantHolds) -> CheckResult {
    let different: BTreeSet<_> = entries.holds.iter().map(|entry| entry.hold).collect();
    if entries.count != entries.holds.len() as u64 || different.len() != entries.holds.len() {
        return Err(format!("{lock} is had {} times, by {:?}", entries.count, entries.holds));
    }
    Ok(())
}

/// The count in a reply is correct.
fn told(
    at: Instant,
    done: &Execution<'_>,
    entries: Option<&ReentrantHolds>,
    before: Option<Vec<Held>>,
) -> CheckResult {
    let holds = done.holds(at);
    let live = holds.len() as u64;
    if let Some((ask, Acquired::Granted { owner_holds, .. })) = done.acquires() {
        let count = owner_holds.map(|owner_holds| owner_holds.count);
        let is_reentrant =
            matches!(done.state.value.as_ref().map(|value| &value.content), Some(Content::ReentrantHolds(_)));
        if count.is_some() != is_reentrant || count.is_some_and(|count| count != live) {
            let hold = ask.claim.hold;
            return Err(format!("{hold:?} is told that it has {} {count:?} times, it is {live}", done.lock));
        }
    }
    if let (Op::Release(release), Reply::Release(released)) = (done.op, done.reply)
        && let Some(before) = before
    {
        let is_owner = entries.is_some_and(|entries| Some(&entries.owner) == release.claim.value.as_ref());
        // The lock may have been granted to the same owner by this release.
        let stays = |held: &&Held| before.iter().any(|old| old.hold == held.hold);
        let left = if is_owner { holds.iter().filter(stays).count() as u64 } else { 0 };
        if released.remaining_holds != left {
            let lock = done.lock;
            return Err(format!(
                "{lock} is said to be had {} times yet, and is {left} times",
                released.remaining_holds
            ));
        }
    }
    Ok(())
}

impl Check for Reentrancy {
    fn name(&self) -> &'static str {
        "reentrancy"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.executed(at, done),
            Event::Task(task, lock, what) => return self.task(at, task, lock, what, context),
            Event::Host(host, HostEvent::Crashed) => {
                self.sought.retain(|task, _| task.host != host);
                let guard_ids = &context.guards;
                let is_left = |guard_id: &GuardId| {
                    guard_ids.get(*guard_id).is_some_and(|known| known.task.host != host)
                };
                self.believed.retain(|guard_id, _| is_left(guard_id));
                self.letting.retain(|guard_id, _| is_left(guard_id));
            }
            Event::Foreign(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.owners.remove(&lock);
                self.holds.remove(&lock);
            }
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                self.owners.clear();
                self.holds.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (task, (lock, owner, since)) in &self.sought {
            let Some(stay) = self.owners.get(lock).filter(|stay| at < stay.until) else { continue };
            if context.guards.owner(*owner) != Some(stay.owner.as_str()) {
                continue;
            }
            let Some(well) = context.health(task.host).and_then(Health::well_since) else { continue };
            // While its process wrongly believes that another task holds the lock, none of its tasks sends a request;
            // after that the first waiter polls.
            let believes = |((host, of, fence), until): (&(HostId, LockId, FencingToken), &Instant)| {
                (*host, *of) == (task.host, *lock) && *fence != stay.fence && at < *until + LOOK
            };
            if self.occupied.iter().any(believes) {
                continue;
            }
            // Waiters are not notified if the owner acquired the lock later, perhaps in another process.
            let known = if stay.since > *since { stay.since + LOOK } else { *since };
            if at > known.max(well) + ENTERED_WITHIN {
                return Err(format!(
                    "{task} seeks {lock} since {since}, and its owner has it since {}",
                    stay.since
                ));
            }
        }
        Ok(())
    }
}
