//! An owner's hold count is correct, and re-entry does not wait.

use super::{Check, CheckContext, CheckResult, Health, POLL_INTERVAL};
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

/// The count of a ReentrantMutex is the number of its holds. Each hold counts once, however often it was requested.
/// Reported counts are correct: no release reports fewer holds than there are valid guards of the same term. An owner
/// re-enters at once, or with the next poll if it acquired the lock in another process meanwhile.
#[derive(Debug, Default)]
pub struct Reentrancy {
    valid_guards: BTreeMap<GuardId, ValidGuard>,
    /// When the release of a guard began.
    releasing: BTreeMap<GuardId, Instant>,
    acquiring: BTreeMap<TaskId, (LockId, OwnerId, Instant)>,
    /// Until when the guards of one owner term in a process are or were valid.
    owner_terms: BTreeMap<(HostId, LockId, FencingToken), Instant>,
    /// The owner of a lock at the store.
    owners: BTreeMap<LockId, OwnerTerm>,
    /// The holds of a lock at the store, if known.
    holds: BTreeMap<LockId, Vec<Held>>,
    /// Terms that were ended by force, which the processes of their guards learn later.
    force_released: BTreeSet<(LockId, FencingToken)>,
}

#[derive(Debug, Clone, Copy)]
struct ValidGuard {
    lock: LockId,
    fence: FencingToken,
    since: Instant,
    until: Instant,
}

/// The time for which an owner holds a lock without a gap.
#[derive(Debug, Clone)]
struct OwnerTerm {
    owner: OwnValue,
    fence: FencingToken,
    since: Instant,
    /// When its last hold expires.
    until: Instant,
}

impl Reentrancy {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        self.force_released.extend(done.force_released().flatten().map(|fence| (done.lock, fence)));
        let value = done.state.value.as_ref();
        let entries = value.and_then(|value| value.content.reentrant_holds());
        if let Some(entries) = entries.filter(|entries| !entries.holds.is_empty()) {
            check_count(done.lock, entries)?;
        }
        let before = self.holds.insert(done.lock, done.holds(at));
        reported(at, done, entries, before)?;
        let holds = done.holds(at);
        let last = holds.iter().filter_map(|held| Some((held.until?, held.fence))).max();
        match (entries, last) {
            (Some(ReentrantHolds { owner, .. }), Some((until, fence))) => {
                let before = self.owners.get(&done.lock);
                let continued = before.filter(|term| term.owner == *owner && at < term.until);
                let since = continued.map_or(at, |term| term.since);
                self.owners.insert(done.lock, OwnerTerm { owner: owner.clone(), fence, since, until });
            }
            _ => drop(self.owners.remove(&done.lock)),
        }
        Ok(())
    }

    /// How many guards of the same term are valid since before that time, if it was not ended by force.
    fn valid_beside(&self, at: Instant, since: Instant, lock: LockId, fence: FencingToken) -> u64 {
        if self.force_released.contains(&(lock, fence)) {
            return 0;
        }
        let same = |other: &&ValidGuard| {
            (other.lock, other.fence) == (lock, fence) && other.since <= since && at < other.until
        };
        self.valid_guards.values().filter(same).count() as u64
    }

    fn released(
        &mut self,
        at: Instant,
        guard_id: GuardId,
        reported: Option<u64>,
        context: &CheckContext,
    ) -> CheckResult {
        let (Some(began), Some(known)) = (self.releasing.remove(&guard_id), context.guards.get(guard_id))
        else {
            return Ok(());
        };
        let (Some(left), true) = (reported, context.promises.exclusion) else { return Ok(()) };
        let (task, lock) = (known.task, known.lock);
        if known.owner.is_none() && left > 0 {
            return Err(format!(
                "the release of {lock} by {task} left {left} holds, and it is no ReentrantMutex"
            ));
        }
        // An acquire after the end of the term has another token.
        let since = if left == 0 { at } else { began };
        let valid_beside = self.valid_beside(at, since, lock, known.fence);
        if left < valid_beside {
            return Err(format!(
                "the release of {lock} by {task} left {left} holds, and {valid_beside} guards are valid"
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
            TaskEvent::Acquiring(_, Some(owner)) => drop(self.acquiring.insert(task, (lock, owner, at))),
            TaskEvent::Acquired(guard_id, NewGuard { fence, validity, .. }) => {
                self.acquiring.remove(&task);
                let guard = ValidGuard { lock, fence, since: at, until: validity.until };
                self.valid_guards.insert(guard_id, guard);
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => drop(self.acquiring.remove(&task)),
            TaskEvent::ValidityChanged(guard_id, validity) => {
                if let Some(guard) = self.valid_guards.get_mut(&guard_id) {
                    guard.until = validity.until;
                }
            }
            TaskEvent::Releasing(guard_id, _) => {
                self.valid_guards.remove(&guard_id);
                self.releasing.insert(guard_id, at);
            }
            TaskEvent::Released(guard_id, reported) => return self.released(at, guard_id, reported, context),
            _ => {}
        }
        if let TaskEvent::Acquired(guard_id, _)
        | TaskEvent::ValidityChanged(guard_id, _)
        | TaskEvent::Releasing(guard_id, _) = what
        {
            self.update_owner_term(at, guard_id, context);
        }
        Ok(())
    }

    /// A guard of a process has changed.
    fn update_owner_term(&mut self, at: Instant, guard_id: GuardId, context: &CheckContext) {
        let of = |guard_id: GuardId| {
            context.guards.get(guard_id).map(|known| (known.task.host, known.lock, known.fence))
        };
        let Some(term) = of(guard_id) else { return };
        let same = self.valid_guards.iter().filter(|(other, _)| of(**other) == Some(term));
        let until = same.map(|(_, other)| other.until).max().unwrap_or(at);
        self.owner_terms.insert(term, until.max(at));
    }
}

/// The count is the number of entries, and no entry is there twice.
fn check_count(lock: LockId, entries: &ReentrantHolds) -> CheckResult {
    let different: BTreeSet<_> = entries.holds.iter().map(|entry| entry.hold).collect();
    if entries.count != entries.holds.len() as u64 || different.len() != entries.holds.len() {
        return Err(format!("{lock} has the count {}, and the holds {:?}", entries.count, entries.holds));
    }
    Ok(())
}

/// The count in a reply is correct.
fn reported(
    at: Instant,
    done: &Execution<'_>,
    entries: Option<&ReentrantHolds>,
    before: Option<Vec<Held>>,
) -> CheckResult {
    let holds = done.holds(at);
    let live = holds.len() as u64;
    if let Some((request, Acquired::Granted { owner_holds: entered, .. })) = done.acquires() {
        let count = entered.map(|entered| entered.count);
        let is_reentrant =
            matches!(done.state.value.as_ref().map(|value| &value.content), Some(Content::ReentrantHolds(_)));
        if count.is_some() != is_reentrant || count.is_some_and(|count| count != live) {
            let hold = request.claim.hold;
            return Err(format!(
                "the reply for {hold:?} of {} has the count {count:?}, and there are {live} holds",
                done.lock
            ));
        }
    }
    if let (Op::Release(release), Reply::Release(released)) = (done.op, done.reply)
        && let Some(before) = before
    {
        let is_owner = entries.is_some_and(|entries| Some(&entries.owner) == release.claim.value.as_ref());
        // The lock may have been granted to the same owner by this release, also as a hold that had expired since the
        // operation before.
        let continued = |held: &&Held| before.iter().any(|old| old.hold == held.hold && old.lasts(at));
        let left = if is_owner { holds.iter().filter(continued).count() as u64 } else { 0 };
        if released.remaining_holds != left {
            let lock = done.lock;
            return Err(format!(
                "the release of {lock} reported {} holds, and there are {left}",
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
                self.acquiring.retain(|task, _| task.host != host);
                let guard_ids = &context.guards;
                let is_left = |guard_id: &GuardId| {
                    guard_ids.get(*guard_id).is_some_and(|known| known.task.host != host)
                };
                self.valid_guards.retain(|guard_id, _| is_left(guard_id));
                self.releasing.retain(|guard_id, _| is_left(guard_id));
            }
            Event::Foreign(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.owners.remove(&lock);
                self.holds.remove(&lock);
            }
            Event::Server(what) if what.makes_state_unknown() => {
                self.owners.clear();
                self.holds.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (task, (lock, owner, since)) in &self.acquiring {
            let Some(term) = self.owners.get(lock).filter(|term| at < term.until) else { continue };
            if context.guards.owner(*owner) != Some(term.owner.as_str()) {
                continue;
            }
            let Some(healthy) = context.health(task.host).and_then(Health::healthy_since) else { continue };
            // While another task of its process has a guard, none of its tasks sends a request; afterwards the first
            // waiter polls.
            let blocks = |((host, of, fence), until): (&(HostId, LockId, FencingToken), &Instant)| {
                (*host, *of) == (task.host, *lock) && *fence != term.fence && at < *until + POLL_INTERVAL
            };
            if self.owner_terms.iter().any(blocks) {
                continue;
            }
            // Waiters are not notified if the owner acquired the lock later, perhaps in another process.
            let known = if term.since > *since { term.since + POLL_INTERVAL } else { *since };
            if at > known.max(healthy) + ENTERED_WITHIN {
                return Err(format!(
                    "{task} waits for {lock} since {since}, and its owner holds it since {}",
                    term.since
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{StoredLock, acquire, context, hold};
    use leasehold_core::{Acquire, Claim, Kind, LockMode, Release, ReleaseAction};

    const OWNER: &str = "host:1";

    /// A ReentrantMutex at the store, and the check, which observes each operation.
    struct Observed {
        check: Reentrancy,
        stored: StoredLock,
    }

    impl Observed {
        fn new() -> Self {
            Self { check: Reentrancy::default(), stored: StoredLock::new(Kind::Reentrant) }
        }

        /// Executes an operation. The check sees the number of holds that are left plus `excess`.
        fn execute(&mut self, ms: u64, op: &Op, excess: u64) -> CheckResult {
            let (at, check) = (Instant(ms * 1000), &mut self.check);
            let add = |_: &mut _, reply: &mut Reply| {
                if let Reply::Release(released) = reply {
                    released.remaining_holds += excess;
                }
            };
            self.stored.execute(
                at,
                op,
                |_| false,
                add,
                |done| check.observe(at, &Event::Executed(done), &context(Kind::Reentrant)),
            )
        }
    }

    fn claim(n: u8) -> Claim {
        Claim { hold: hold(n), value: OwnValue::new(OWNER).ok() }
    }

    fn enter(n: u8, lease_ms: u64) -> Acquire {
        Acquire { lease_ms, ..acquire(claim(n), LockMode::Exclusive) }
    }

    /// The second hold is released, and the same step acquires the first one.
    fn release() -> Op {
        let next = Some(enter(1, 1_000));
        Op::Release(Release { claim: claim(2), action: ReleaseAction::Grant, next, history: 0 })
    }

    fn held_twice() -> Observed {
        let mut observed = Observed::new();
        observed.execute(0, &Op::Acquire(enter(1, 1_000)), 0).expect("acquired");
        observed.execute(500, &Op::Acquire(enter(2, 3_000)), 0).expect("entered");
        observed
    }

    #[test]
    fn a_hold_that_expired_is_not_left_although_the_release_acquires_it_again() {
        assert_eq!(held_twice().execute(2_000, &release(), 0), Ok(()));
        assert!(held_twice().execute(2_000, &release(), 1).is_err(), "none was left");
    }

    #[test]
    fn a_hold_that_lasts_is_left_although_the_release_acquires_it_again() {
        assert_eq!(held_twice().execute(900, &release(), 0), Ok(()));
        assert!(held_twice().execute(900, &release(), 1).is_err(), "one was left");
    }
}
