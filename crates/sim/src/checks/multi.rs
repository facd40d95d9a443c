//! Several locks are acquired together or not at all; one by one only in their order.

use super::{Check, CheckContext, CheckResult};
use crate::event::{
    Event, Execution, Held, HostEvent, LockId, MultiExecution, ReleaseMethod, ServerEvent, TaskEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, MultiAcquired, Op};
use std::collections::{BTreeMap, BTreeSet};

/// If one of several locks is taken, the request acquires none of them. A task waits for one of several locks only in
/// the order of their names, holding all that precede it. So no two tasks wait for each other.
///
/// Holds of an acquire in progress have no guard. The check therefore covers only locks that no other task of the
/// process acquires.
#[derive(Debug, Default)]
pub struct MultiAcquire {
    acquiring: BTreeMap<(HostId, LockId), BTreeSet<TaskId>>,
    /// Tasks that acquire several locks.
    acquirers: BTreeMap<TaskId, MultiAcquirer>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// Locks that may have holds from before a change of the server's data, until the next operation on them.
    unknown: BTreeSet<LockId>,
    /// Holds that were requested.
    requested: BTreeSet<HoldId>,
    given_up: BTreeSet<HoldId>,
    /// Holds that were requested with a release that has no reply yet, by its message. A task that stops waiting undoes
    /// them only then: earlier, the undo could overtake the request.
    requested_with_release: BTreeMap<u64, HoldId>,
}

/// A task that acquires several locks.
#[derive(Debug, Default)]
struct MultiAcquirer {
    locks: BTreeSet<LockId>,
    /// This task's holds: those first requested while no other task of the process acquired that lock.
    requested: BTreeSet<HoldId>,
    /// Locks of which another task's hold may have been handed off to it. If that one is lost later, a task with a given
    /// lease waits on for the next lock without it.
    may_have_received: BTreeSet<LockId>,
}

impl MultiAcquire {
    fn multi_executed(&self, done: &MultiExecution<'_>) -> CheckResult {
        let is_blocked =
            done.replies.iter().any(|(_, _, reply, _)| matches!(reply, MultiAcquired::Blocked(_)));
        let all_acquired =
            done.replies.iter().all(|(_, _, reply, _)| matches!(reply, MultiAcquired::Acquired(_)));
        for (lock, request, reply, state) in done.replies {
            let hold = request.claim.hold;
            let now = crate::event::holds(state, done.clock);
            let is_held = now.iter().any(|held| held.hold == hold);
            let before = self.held.get(lock).into_iter().flatten();
            let is_taken = is_held && !before.clone().any(|held| held.hold == hold);
            if is_blocked && is_taken && !self.unknown.contains(lock) {
                return Err(format!(
                    "{lock} was acquired for {hold:?}, and another lock of {:?} was not",
                    done.replies
                ));
            }
            if all_acquired && !is_held {
                return Err(format!(
                    "the reply for {hold:?} says that it holds {lock}, and it does not: {reply:?}"
                ));
            }
        }
        Ok(())
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        self.held.insert(done.lock, done.holds(at));
        self.unknown.remove(&done.lock);
        let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires() else {
            return Ok(());
        };
        let host = done.host;
        let Some((task, acquirer)) = self.only_acquirer(host, done.lock) else { return Ok(()) };
        let is_own = |hold: &HoldId| acquirer.requested.contains(hold) && !self.given_up.contains(hold);
        // A dropped hold is not yet released while the keeper has no connection.
        if done.is_stale || !is_own(&request.claim.hold) || !context.keeper_is_connected(host) {
            return Ok(());
        }
        let others = acquirer.locks.iter().filter(|other| **other != done.lock);
        let others: Vec<_> = others
            .filter(|other| self.only_acquirer(host, **other).is_some_and(|(other, _)| other == task))
            .collect();
        let is_held = |other: &LockId| {
            let mut holds = self.held.get(other).into_iter().flatten();
            holds.any(|held| {
                let is_in_flight = self.requested_with_release.values().any(|hold| *hold == held.hold);
                let has_received = !is_in_flight && context.guards.has_received(host, &held.hold);
                held.lasts(at) && is_own(&held.hold) && has_received
            })
        };
        let Some(other) = others.iter().find(|other| is_held(other)) else { return Ok(()) };
        // A lost hold is not released before all locks were tried.
        let has_received = |other: LockId| context.guards.has_received_any(host, other);
        let passed = others.iter().find(|other| {
            ***other < done.lock
                && !has_received(***other)
                && !acquirer.may_have_received.contains(other)
                && !self.may_be_handed_off(at, host, ***other, context)
        });
        if **other > done.lock || passed.is_some() {
            return Err(format!("{task} waits for {} holding {other}, and not {passed:?}", done.lock));
        }
        Ok(())
    }

    /// Whether a process holds a lock that another task of it has released: it may have been handed off.
    fn may_be_handed_off(&self, at: Instant, host: HostId, lock: LockId, context: &CheckContext) -> bool {
        let is_cached = |hold: &HoldId| {
            let released_at =
                context.guards.of(hold).and_then(|guard_id| context.guards.released_at(guard_id));
            released_at.is_some()
                && context.host(hold.session()) == Some(host)
                && !self.given_up.contains(hold)
        };
        self.held.get(&lock).into_iter().flatten().any(|held| held.lasts(at) && is_cached(&held.hold))
    }

    /// Records a request.
    fn acquire_sent(&mut self, host: HostId, lock: LockId, hold: HoldId) {
        let task = self.only_acquirer(host, lock).map(|(task, _)| task);
        if self.requested.insert(hold)
            && let Some(acquirer) = task.and_then(|task| self.acquirers.get_mut(&task))
        {
            acquirer.requested.insert(hold);
        }
    }

    /// The task of a process that acquires a lock together with others, if no other task of the process acquires it.
    fn only_acquirer(&self, host: HostId, lock: LockId) -> Option<(TaskId, &MultiAcquirer)> {
        let tasks = self.acquiring.get(&(host, lock)).filter(|tasks| tasks.len() == 1)?;
        let task = *tasks.first()?;
        Some((task, self.acquirers.get(&task)?))
    }

    fn task(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent, context: &CheckContext) {
        let is_idle = self.may_be_handed_off(at, task.host, lock, context);
        let tasks = self.acquiring.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(method, _) => {
                tasks.insert(task);
                if method.is_multi_acquire() {
                    let acquirer = self.acquirers.entry(task).or_default();
                    acquirer.locks.insert(lock);
                    acquirer.may_have_received.extend(is_idle.then_some(lock));
                }
            }
            TaskEvent::Releasing(guard_id, ReleaseMethod::Drop) | TaskEvent::Released(guard_id, _) => {
                let hold = context.guards.hold(guard_id);
                if hold.is_none_or(|hold| !self.given_up.contains(&hold)) {
                    for (_, acquirer) in self.acquirers.iter_mut().filter(|(task, _)| tasks.contains(task)) {
                        acquirer.may_have_received.insert(lock);
                    }
                }
            }
            TaskEvent::Acquired(..) | TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => {
                tasks.remove(&task);
                self.acquirers.remove(&task);
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
            Event::Sent { host, lock, op: Op::Acquire(request), .. } => {
                self.acquire_sent(host, lock, request.claim.hold);
            }
            Event::Sent { host, lock, op: Op::Release(release), message } => {
                self.given_up.insert(release.claim.hold);
                if let Some(next) = &release.next {
                    self.requested_with_release.insert(message, next.claim.hold);
                    self.acquire_sent(host, lock, next.claim.hold);
                }
            }
            Event::Answered { message, .. } => drop(self.requested_with_release.remove(&message)),
            Event::Task(task, lock, what) => self.task(at, task, lock, what, context),
            Event::Host(host, HostEvent::Crashed) => {
                self.acquiring.retain(|(other, _), _| *other != host);
                self.acquirers.retain(|task, _| task.host != host);
            }
            Event::Server(what) if what.makes_state_unknown() => {
                self.unknown.extend(std::mem::take(&mut self.held).into_keys());
            }
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.held.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}
