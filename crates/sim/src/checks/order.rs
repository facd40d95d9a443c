//! Locks with one holder are granted first come, first served, between processes and within one.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, HostEvent, LockId, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, Op, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// A lock is granted to the process whose unexpired queue entry is oldest, never to an expired one; within a process,
/// to the task that has waited longest. A re-entrant acquire overtakes all of them. It also overtakes tasks of its
/// process if it finds the lock free while it tests for re-entry.
#[derive(Debug, Default)]
pub struct Order {
    queues: BTreeMap<LockId, BTreeMap<SessionId, QueuedWaiter>>,
    holders: BTreeMap<LockId, Vec<Held>>,
    local_waiters: BTreeMap<(HostId, LockId), Vec<TaskId>>,
    last_number: u64,
    /// Locks whose queue may have entries from before a data loss, in an unknown order.
    unknown: BTreeSet<LockId>,
}

/// A queue entry, as derived from replies.
#[derive(Debug, Clone, Copy)]
struct QueuedWaiter {
    hold: HoldId,
    /// The number of the poll that created it.
    queued: u64,
    /// The number of the poll since which no later entry may overtake it. It is renewed if the entry had expired.
    fixed: u64,
    /// When it expires, in the store's milliseconds.
    expires_ms: u64,
    /// Whether it ends with its session. Otherwise an eviction of the session leaves it.
    ends_with_session: bool,
}

impl Order {
    fn executed(&mut self, done: &Execution<'_>, at: Instant) -> CheckResult {
        if self.unknown.contains(&done.lock) {
            if done.state.record.as_ref().is_some_and(|record| !record.entries.is_empty()) {
                return Ok(());
            }
            self.unknown.remove(&done.lock);
        }
        let now_ms = done.clock.reading_us(at) / 1000;
        let now = done.holds(at);
        let before = self.holders.insert(done.lock, now.clone()).unwrap_or_default();
        let queue = self.queues.entry(done.lock).or_default();
        if let Op::Release(release) = done.op
            && queue
                .get(&release.claim.hold.session())
                .is_some_and(|waiter| waiter.hold == release.claim.hold)
        {
            queue.remove(&release.claim.hold.session());
        }
        if let Some(dead) = done.evicts().filter(|dead| done.is_dead(*dead, at)) {
            let entries = done.state.record.as_ref().map(|record| &record.entries);
            // A process with a lapsed session may evict itself. It loses its entry, and gets another.
            let is_requester = done.acquires().is_some_and(|(request, _)| {
                request.liveness.ends_with_session() && request.claim.hold.session() == dead
            });
            let is_gone = entries.is_none_or(|entries| !entries.keys().any(|id| id.session() == dead));
            // What does not end with the session was granted in this step, if it is gone.
            let ends_with_it = queue.get(&dead).is_some_and(|waiter| waiter.ends_with_session);
            if ends_with_it && (is_requester || is_gone) {
                queue.remove(&dead);
            }
        }
        let is_new = |held: &&Held| before.iter().all(|old| (old.hold, old.fence) != (held.hold, held.fence));
        let mut new = now.iter().filter(is_new).peekable();
        if now.iter().all(|held| is_new(&held))
            && let Some(first) = new.next()
        {
            self.granted(done, first.hold, now_ms)?;
        }
        let queue = self.queues.entry(done.lock).or_default();
        for Held { hold, .. } in new {
            // It has re-entered, and needs no entry any more.
            queue.retain(|_, waiter| waiter.hold != *hold);
        }
        let queue = self.queues.entry(done.lock).or_default();
        if let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(wanted) = &request.queue
        {
            self.last_number += 1;
            let (number, expires_ms) = (self.last_number, now_ms + wanted.ttl_ms);
            let waiter = queue.entry(request.claim.hold.session()).or_insert(QueuedWaiter {
                hold: request.claim.hold,
                queued: number,
                fixed: number,
                expires_ms,
                ends_with_session: true,
            });
            if waiter.expires_ms < now_ms {
                waiter.fixed = number;
            }
            (waiter.hold, waiter.expires_ms) = (request.claim.hold, expires_ms);
            waiter.ends_with_session = request.liveness.ends_with_session();
        }
        Ok(())
    }

    /// The lock was granted to a hold.
    fn granted(&mut self, done: &Execution<'_>, hold: HoldId, now_ms: u64) -> CheckResult {
        let queue = self.queues.entry(done.lock).or_default();
        let requested = done.acquires().is_some_and(|(request, _)| request.claim.hold == hold);
        let queued = match queue.remove(&hold.session()) {
            // A poll revives its own entry, however long ago it expired.
            Some(waiter) if waiter.expires_ms < now_ms && !requested => {
                return Err(format!(
                    "{} was granted to {hold:?}, whose queue entry expired {} ms ago",
                    done.lock,
                    now_ms - waiter.expires_ms
                ));
            }
            Some(waiter) => waiter.queued,
            None => u64::MAX,
        };
        // Expired entries before it were skipped, and are removed.
        queue.retain(|_, waiter| waiter.expires_ms >= now_ms || waiter.fixed > queued);
        match queue.iter().find(|(_, waiter)| waiter.fixed < queued) {
            Some((session, _)) => Err(format!(
                "{} was granted to {hold:?} before {session}, which has waited longer",
                done.lock
            )),
            None => Ok(()),
        }
    }

    fn task(&mut self, task: TaskId, lock: LockId, what: TaskEvent) -> CheckResult {
        let waiters = self.local_waiters.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(method, _) if method.is_queued() => waiters.push(task),
            TaskEvent::Acquired(_, new_guard) => {
                // A polling acquire is not in the local queue, and may have started before any waiter.
                let position = waiters.iter().position(|other| *other == task);
                if let Some(before) = position.filter(|before| *before > 0 && new_guard.owner.is_none()) {
                    return Err(format!(
                        "{task} acquired {lock} before {before} longer waiting tasks of its process"
                    ));
                }
                waiters.retain(|other| *other != task);
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => waiters.retain(|other| *other != task),
            _ => {}
        }
        Ok(())
    }
}

impl Check for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            // `SharedOrder` checks these.
            Event::Executed(done) if context.is_shared(done.lock) => {}
            Event::Task(_, lock, _) if context.is_shared(lock) => {}
            Event::Executed(done) => return self.executed(done, at),
            Event::Task(task, lock, what) => return self.task(task, lock, what),
            Event::Host(host, HostEvent::Crashed) => {
                self.local_waiters.retain(|(waiters, _), _| *waiters != host);
            }
            // Which entries expire is unknown once the clock is set.
            Event::Server(what) if what.makes_state_unknown() => {
                self.unknown.extend(self.queues.keys());
                self.queues.clear();
                self.holders.clear();
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Promises;
    use crate::world::time::Clock;
    use leasehold_core::model::{LockState, Sessions, all_alive};
    use leasehold_core::{Acquire, Claim, Enqueue, Kind, Label, Liveness, LockMode, Nonce};

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    /// An acquire of a session without a record. Its hold and its entry end by their leases alone.
    fn acquire(n: u8, predecessor: Option<SessionId>) -> Op {
        Op::Acquire(Acquire {
            claim: Claim { hold: HoldId::from_random(session(n), [n; 16]), value: None },
            lease_ms: 1_000,
            label: Label::new("a client").expect("a plain text"),
            queue: Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 5_000 }),
            expire_foreign_ms: None,
            liveness: Liveness::Lease,
            predecessor,
            mode: LockMode::Exclusive,
        })
    }

    /// Executes the operations at these milliseconds, and returns the result of the last check.
    fn checked(ops: &[(u64, Op)]) -> CheckResult {
        let (mut check, mut state) = (Order::default(), LockState::new(Kind::Mutex));
        let clock = Clock::new(1_760_000_000_000_000, 0);
        let context = CheckContext::new(Promises { exclusion: true, clocks: true }, false, vec![Kind::Mutex]);
        let mut result = Ok(());
        for (ms, op) in ops {
            result.expect("the operations before are in order");
            let at = Instant(ms * 1000);
            let (reply, notifications) = state.apply(clock.reading_us(at), op, &all_alive);
            let done = Execution {
                host: HostId(0),
                message: 0,
                is_stale: false,
                in_multi_acquire: false,
                lock: LockId(0),
                op,
                reply: &reply,
                notifications: &notifications,
                state: &state,
                sessions: &Sessions::default(),
                clock: &clock,
            };
            result = check.observe(at, &Event::Executed(&done), &context);
        }
        result
    }

    #[test]
    fn a_waiter_that_an_eviction_leaves_keeps_its_place() {
        let queue = [1, 2, 3].map(|n| (0, acquire(n, None)));
        // The lease of the holder has ended, and the last waiter takes the session of the first for dead.
        let poll = (2_000, acquire(4, Some(session(2))));
        let ops: Vec<_> = queue.into_iter().chain([poll]).collect();
        assert_eq!(checked(&ops), Ok(()));
    }
}
