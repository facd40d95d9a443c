//! Locks with one holder are granted first come, first served, between processes and within one.

use super::{Check, CheckContext, CheckResult};
use crate::event::{AcquireMethod, Event, Execution, Held, HostEvent, LockId, TaskEvent, TaskId};
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
    local_waiters: BTreeMap<(HostId, LockId), Vec<LocalWaiter>>,
    last_number: u64,
    /// Locks whose queue may have entries from before a data loss, in an unknown order.
    unknown: BTreeSet<LockId>,
}

/// A task that has requested a lock.
#[derive(Debug, Clone, Copy)]
struct LocalWaiter {
    task: TaskId,
    /// Set if it waits in the queue of its process. A single attempt does not: it may wait for a release of its own
    /// client, and other tasks need not wait for it.
    is_queued: bool,
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
            // A process with a lapsed session may evict itself. It loses its entry, and gets another. A late acquire whose
            // hold has ended evicts nothing.
            let is_requester = done.acquires().is_some_and(|(request, reply)| {
                request.liveness.ends_with_session()
                    && request.claim.hold.session() == dead
                    && !matches!(reply, Acquired::AlreadyEnded(_))
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
            TaskEvent::Acquiring(method, _) if method.is_queued() => {
                waiters.push(LocalWaiter { task, is_queued: method != AcquireMethod::Try });
            }
            TaskEvent::Acquired(_, new_guard) => {
                // A polling acquire is not in the local queue, and may have started before any waiter.
                let position = waiters.iter().position(|other| other.task == task).unwrap_or_default();
                let before = waiters[..position].iter().filter(|other| other.is_queued).count();
                if before > 0 && new_guard.owner.is_none() {
                    return Err(format!(
                        "{task} acquired {lock} before {before} longer waiting tasks of its process"
                    ));
                }
                waiters.retain(|other| other.task != task);
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => waiters.retain(|other| other.task != task),
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
    use crate::checks::fixture::{StoredLock, acquire, context};
    use leasehold_core::{Acquire, Claim, Enqueue, Kind, Liveness, LockMode, Nonce};

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    /// Three processes queue, and the lease of the first, which holds the lock, ends. A fourth polls, and takes the session
    /// of the second for dead, as it is. Returns what the check says to that poll.
    fn poll_behind_a_dead_session(liveness: Liveness, is_second_forgotten: bool) -> CheckResult {
        let (mut check, mut stored) = (Order::default(), StoredLock::new(Kind::Mutex));
        let context = context(Kind::Mutex);
        let mut result = Ok(());
        for n in 1..=4 {
            result.expect("the operations before are in order");
            let at = Instant(if n == 4 { 2_000_000 } else { 0 });
            let claim = Claim { hold: HoldId::from_random(session(n), [n; 16]), value: None };
            let op = Op::Acquire(Acquire {
                queue: Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 5_000 }),
                liveness,
                predecessor: (n == 4).then_some(session(2)),
                ..acquire(claim, LockMode::Exclusive)
            });
            if is_second_forgotten && n == 4 {
                let record = stored.state.record.as_mut().expect("two wait");
                let first = *record.tickets.keys().next().expect("two wait");
                let id = record.tickets.remove(&first).expect("it waits");
                record.entries.remove(&id);
            }
            let is_dead = |other| n == 4 && other == session(2);
            let observe = |done: &Execution<'_>| check.observe(at, &Event::Executed(done), &context);
            result = stored.execute(at, &op, is_dead, |_, _| {}, observe);
        }
        result
    }

    #[test]
    fn an_entry_that_ends_by_its_lease_alone_keeps_its_place_in_an_eviction() {
        assert_eq!(poll_behind_a_dead_session(Liveness::Lease, false), Ok(()));
        poll_behind_a_dead_session(Liveness::Lease, true)
            .expect_err("the third was granted before the second");
    }

    #[test]
    fn an_entry_that_ends_with_its_session_loses_its_place_in_an_eviction() {
        let liveness = Liveness::Session { alive_ms: 10_000 };
        assert_eq!(poll_behind_a_dead_session(liveness, false), Ok(()));
    }
}
