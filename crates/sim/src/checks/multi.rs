//! Several locks are acquired together or not at all; one by one only in their order.

use super::{Check, CheckContext, CheckResult};
use crate::event::{
    Event, Execution, Held, HostEvent, LockId, MultiExecution, ServerEvent, TaskEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, MultiAcquired, Op};
use std::collections::{BTreeMap, BTreeSet};

/// If one of several locks is taken, the request acquires none of them. A task waits for one of several locks only in
/// the order of their names, holding all that precede it. So no two tasks wait for each other.
///
/// Holds of an acquire in progress have no guard. The check therefore looks only where no other task of the process
/// acquires one of the two locks.
#[derive(Debug, Default)]
pub struct MultiAcquire {
    sought: BTreeMap<(HostId, LockId), BTreeSet<TaskId>>,
    /// Tasks that seek several.
    seekers: BTreeMap<TaskId, Seeker>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// Requested holds.
    asked: BTreeSet<HoldId>,
    given_up: BTreeSet<HoldId>,
}

/// A task that seeks several.
#[derive(Debug, Default)]
struct Seeker {
    locks: BTreeSet<LockId>,
    /// Holds first requested while no other task of the process acquired that lock. They are this task's.
    asked: BTreeSet<HoldId>,
}

impl MultiAcquire {
    fn multi_executed(&self, done: &MultiExecution<'_>) -> CheckResult {
        let is_blocked =
            done.shares.iter().any(|(_, _, share, _)| matches!(share, MultiAcquired::Blocked(_)));
        let is_had = done.shares.iter().all(|(_, _, share, _)| matches!(share, MultiAcquired::Acquired(_)));
        for (lock, ask, share, state) in done.shares {
            let hold = ask.claim.hold;
            let now = crate::event::holds(state, done.clock);
            let is_there = now.iter().any(|held| held.hold == hold);
            let before = self.held.get(lock).into_iter().flatten();
            let is_taken = is_there && !before.clone().any(|held| held.hold == hold);
            if is_blocked && is_taken {
                return Err(format!(
                    "{lock} was taken for {hold:?}, and another of {:?} was not",
                    done.shares
                ));
            }
            if is_had && !is_there {
                return Err(format!("{hold:?} is told that it has {lock}: {share:?}, and has not"));
            }
        }
        Ok(())
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        self.held.insert(done.lock, done.holds(at));
        let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires() else { return Ok(()) };
        let host = done.host;
        let Some((task, seeker)) = self.only_seeker(host, done.lock) else { return Ok(()) };
        let is_its = |hold: &HoldId| seeker.asked.contains(hold) && !self.given_up.contains(hold);
        // A dropped hold is not yet released while the keeper has no connection.
        if done.out_of_time || !is_its(&ask.claim.hold) || !context.keeper_is_connected(host) {
            return Ok(());
        }
        let others = seeker.locks.iter().filter(|other| **other != done.lock);
        let others: Vec<_> = others
            .filter(|other| self.only_seeker(host, **other).is_some_and(|(other, _)| other == task))
            .collect();
        let in_hand = |other: &LockId| {
            let mut holds = self.held.get(other).into_iter().flatten();
            holds.any(|held| {
                held.lasts(at) && is_its(&held.hold) && context.guards.has_heard(host, &held.hold)
            })
        };
        let Some(other) = others.iter().find(|other| in_hand(other)) else { return Ok(()) };
        // A lost hold is not released before all locks were tried.
        let has_heard = |other: LockId| context.guards.has_heard_of(host, other);
        let passed = others.iter().find(|other| {
            ***other < done.lock
                && !has_heard(***other)
                && !self.may_be_handed_on(at, host, ***other, context)
        });
        if **other > done.lock || passed.is_some() {
            return Err(format!("{task} waits for {} with {other} in hand, and {passed:?} not", done.lock));
        }
        Ok(())
    }

    /// Whether a process has a lock that another task of it has given back: it may have been handed on.
    fn may_be_handed_on(&self, at: Instant, host: HostId, lock: LockId, context: &CheckContext) -> bool {
        let is_kept = |hold: &HoldId| {
            let release_guard =
                context.guards.of(hold).and_then(|guard_id| context.guards.release_guard(guard_id));
            release_guard.is_some()
                && context.host(hold.session()) == Some(host)
                && !self.given_up.contains(hold)
        };
        self.held.get(&lock).into_iter().flatten().any(|held| held.lasts(at) && is_kept(&held.hold))
    }

    /// Records a request.
    fn asks(&mut self, host: HostId, lock: LockId, hold: HoldId) {
        let task = self.only_seeker(host, lock).map(|(task, _)| task);
        if self.asked.insert(hold)
            && let Some(seeker) = task.and_then(|task| self.seekers.get_mut(&task))
        {
            seeker.asked.insert(hold);
        }
    }

    /// The task of a process that seeks a lock together with others, where no other task of it seeks it.
    fn only_seeker(&self, host: HostId, lock: LockId) -> Option<(TaskId, &Seeker)> {
        let tasks = self.sought.get(&(host, lock)).filter(|tasks| tasks.len() == 1)?;
        let task = *tasks.first()?;
        Some((task, self.seekers.get(&task)?))
    }

    fn task(&mut self, task: TaskId, lock: LockId, what: TaskEvent) {
        let tasks = self.sought.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(way, _) => {
                tasks.insert(task);
                if way.is_for_several() {
                    self.seekers.entry(task).or_default().locks.insert(lock);
                }
            }
            TaskEvent::Acquired(..) | TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => {
                tasks.remove(&task);
                self.seekers.remove(&task);
            }
            _ => {}
        }
    }
}

impl Check for MultiAcquire {
    fn name(&self) -> &'static str {
        "multi"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::MultiExecuted(done) => return self.multi_executed(done),
            Event::Executed(done) => return self.executed(at, done, context),
            Event::Sent { host, lock, op: Op::Acquire(ask), .. } => self.asks(host, lock, ask.claim.hold),
            Event::Sent { host, lock, op: Op::Release(release), .. } => {
                self.given_up.insert(release.claim.hold);
                if let Some(next) = &release.next {
                    self.asks(host, lock, next.claim.hold);
                }
            }
            Event::Task(task, lock, what) => self.task(task, lock, what),
            Event::Host(host, HostEvent::Crashed) => {
                self.sought.retain(|(other, _), _| *other != host);
                self.seekers.retain(|task, _| task.host != host);
            }
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.held.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.held.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}
