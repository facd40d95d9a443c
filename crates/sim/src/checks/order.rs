//! Locks with one holder are granted first come, first served, between processes and within one.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, HostEvent, LockId, ServerEvent, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, Op, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// A lock is granted to the process whose unexpired queue entry is oldest, never to an expired one; within a process,
/// to the task that has waited longest. A re-entrant acquire overtakes all of them. It also overtakes tasks of its
/// process if it finds the lock free while it tests for re-entry.
#[derive(Debug, Default)]
pub struct Order {
    queues: BTreeMap<LockId, BTreeMap<SessionId, Partition>>,
    holders: BTreeMap<LockId, Vec<Held>>,
    lines: BTreeMap<(HostId, LockId), Vec<TaskId>>,
    enqueued: u64,
    /// Locks whose queue may have entries from before a data loss, in an unknown order.
    unknown: BTreeSet<LockId>,
}

/// A queue entry, as derived from replies.
#[derive(Debug, Clone, Copy)]
struct Partition {
    hold: HoldId,
    /// When it was created, counted in entries.
    taken: u64,
    /// The same, counted anew if it had expired before its waiter polled: others may overtake it until then.
    firm: u64,
    /// When it expires, in the store's milliseconds.
    kept_ms: u64,
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
            && queue.get(&release.claim.hold.session()).is_some_and(|place| place.hold == release.claim.hold)
        {
            queue.remove(&release.claim.hold.session());
        }
        if let Some(dead) = done.evicts().filter(|dead| done.is_dead(*dead, at)) {
            let places = done.state.record.as_ref().map(|record| &record.entries);
            // A process with a lapsed session may ask about itself. It loses its entry, and gets another.
            let is_asker = done
                .acquires()
                .is_some_and(|(ask, _)| ask.liveness.ends_with_session() && ask.claim.hold.session() == dead);
            if is_asker || places.is_none_or(|places| !places.keys().any(|id| id.session() == dead)) {
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
            // It has re-entered its owner's hold, and needs no entry any more.
            queue.retain(|_, place| place.hold != *hold);
        }
        let queue = self.queues.entry(done.lock).or_default();
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(wanted) = &ask.queue
        {
            self.enqueued += 1;
            let (fresh, kept_ms) = (self.enqueued, now_ms + wanted.ttl_ms);
            let place = queue.entry(ask.claim.hold.session()).or_insert(Partition {
                hold: ask.claim.hold,
                taken: fresh,
                firm: fresh,
                kept_ms,
            });
            if place.kept_ms < now_ms {
                place.firm = fresh;
            }
            (place.hold, place.kept_ms) = (ask.claim.hold, kept_ms);
        }
        Ok(())
    }

    /// A hold has just been given the lock.
    fn granted(&mut self, done: &Execution<'_>, hold: HoldId, now_ms: u64) -> CheckResult {
        let queue = self.queues.entry(done.lock).or_default();
        let asked = done.acquires().is_some_and(|(ask, _)| ask.claim.hold == hold);
        let taken = match queue.remove(&hold.session()) {
            // A poll revives its own entry, however long ago it expired.
            Some(place) if place.kept_ms < now_ms && !asked => {
                return Err(format!(
                    "{} was granted to {hold:?}, whose place lapsed {} ms ago",
                    done.lock,
                    now_ms - place.kept_ms
                ));
            }
            Some(place) => place.taken,
            None => u64::MAX,
        };
        // Expired entries before it were skipped, and are removed.
        queue.retain(|_, place| place.kept_ms >= now_ms || place.firm > taken);
        match queue.iter().find(|(_, place)| place.firm < taken) {
            Some((session, _)) => {
                Err(format!("{} was granted to {hold:?} before {session}, who has waited longer", done.lock))
            }
            None => Ok(()),
        }
    }

    fn task(&mut self, task: TaskId, lock: LockId, what: TaskEvent) -> CheckResult {
        let line = self.lines.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(way, _) if way.is_in_line() => line.push(task),
            TaskEvent::Acquired(_, gain) => {
                // A polling acquire is not in the local queue, and may have started before any waiter.
                let stood = line.iter().position(|other| *other == task);
                if let Some(before) = stood.filter(|before| *before > 0 && gain.owner.is_none()) {
                    return Err(format!("{task} got {lock} before {before} others of the same process"));
                }
                line.retain(|other| *other != task);
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => line.retain(|other| *other != task),
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
            // Of those that several have side by side see `SharedOrder`.
            Event::Executed(done) if context.is_shared(done.lock) => {}
            Event::Task(_, lock, _) if context.is_shared(lock) => {}
            Event::Executed(done) => return self.executed(done, at),
            Event::Task(task, lock, what) => return self.task(task, lock, what),
            Event::Host(host, HostEvent::Crashed) => self.lines.retain(|(line, _), _| *line != host),
            // Which entries expire is unknown once the clock is set.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                self.unknown.extend(self.queues.keys());
                self.queues.clear();
                self.holders.clear();
            }
            _ => {}
        }
        Ok(())
    }
}
