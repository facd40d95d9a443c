//! What a process may do with a hold that it hands off among its tasks, or caches.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, Execution, GuardId, HostEvent, LockId, ServerEvent, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::machine::cohort::{HANDOFF_WINDOW, MAX_HANDOFFS};
use leasehold_core::model::QueueEntryId;
use leasehold_core::{Acquired, Extended, FencingToken, HoldId, Notification, Op, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// By how much a turn may appear longer: clock drift, and events at the same time.
const SLACK: Duration = Duration::from_millis(10);

/// How long the release of a cached hold may take once another process waits: a notification, a cleanup, and the rest
/// of its batch.
const GIVEN_BACK_WITHIN: Duration = Duration::from_millis(300);

/// One guard at a time has a hold. Once its process knows that others wait, only tasks that were queued locally by
/// then receive it, at most [`MAX_HANDOFFS`] times and for [`HANDOFF_WINDOW`]. Without that knowledge, it hands off for one turn
/// and at most one more while another process waits. A hold that no local task uses or waits for is released soon
/// after another process has asked.
#[derive(Debug, Default)]
pub struct Handoff {
    passed: BTreeMap<HoldId, Passed>,
    /// When tasks began to seek a lock, and when that changed last for their process.
    acquiring: BTreeMap<(HostId, LockId), BTreeMap<TaskId, Instant>>,
    changed: BTreeMap<(HostId, LockId), Instant>,
    locks: BTreeMap<LockId, ObservedHolder>,
    /// Requests without a reply: their time and hold.
    asked: BTreeMap<u64, (Instant, HoldId)>,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct ObservedHolder {
    holder: Option<HoldId>,
    waiting: BTreeMap<QueueEntryId, Waiting>,
}

/// The waiter.
#[derive(Debug)]
struct Waiting {
    host: HostId,
    since: Instant,
    /// Until when its queue entry lasts.
    until: Instant,
    /// When it has looked.
    looks: Vec<Instant>,
}

/// A hold of tasks.
#[derive(Debug)]
struct Passed {
    host: HostId,
    known_as: FencingToken,
    /// The guard that has it or had it last, and since when none has.
    guard_id: GuardId,
    release_guard: Option<Instant>,
    /// Since when its process knows that others wait, and how often it has handed it on since.
    told: Option<Instant>,
    since_told: u32,
    /// When it was first handed off more than a turn after the longest waiter had come.
    last_turn: Option<(QueueEntryId, Instant)>,
}

impl Passed {
    fn is_told(&mut self, at: Instant) {
        if self.told.is_none() {
            (self.told, self.since_told) = (Some(at), 0);
        }
    }
}

impl Handoff {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) {
        let seen = self.locks.entry(done.lock).or_default();
        seen.holder = done.holds(at).first().map(|held| held.hold);
        let now_ms = done.clock.reading_us(at) / 1000;
        let places = done.state.record.iter().flat_map(|record| &record.entries);
        let mut waiting = BTreeMap::new();
        for (id, place) in places.filter(|(_, place)| place.expires_ms >= now_ms) {
            let until = done.clock.shows_at((place.expires_ms + 1) * 1000);
            let Some(host) = context.host(id.session()) else { continue };
            let new = || Waiting { host, since: at, until, looks: Vec::new() };
            let old = seen.waiting.remove(id).unwrap_or_else(new);
            waiting.insert(*id, Waiting { until, ..old });
        }
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(place) = waiting.get_mut(&QueueEntryId::of(done.state.kind, &ask.claim.hold))
        {
            place.looks.push(at);
        }
        seen.waiting = waiting;
    }

    /// A process has an answer about tokens.
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        let Some((asked_at, hold)) = self.asked.remove(&message) else { return };
        let Some(passed) = self.passed.get_mut(&hold) else { return };
        if let Some(Reply::Extend(Extended::Reserved { others_wait, .. })) = reply {
            if *others_wait {
                passed.is_told(at);
            } else if passed.told.is_some_and(|told| told < asked_at) {
                // A later notification supersedes the reply.
                passed.told = None;
            }
        }
    }

    fn wanted(&mut self, at: Instant, host: HostId, fence: FencingToken) {
        let of_it = |passed: &&mut Passed| (passed.host, passed.known_as) == (host, fence);
        self.passed.values_mut().filter(of_it).for_each(|passed| passed.is_told(at));
    }

    fn task(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        what: TaskEvent,
        context: &CheckContext,
    ) -> CheckResult {
        let acquiring = self.acquiring.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(..) => drop(acquiring.insert(task, at)),
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled => drop(acquiring.remove(&task)),
            TaskEvent::Acquired(guard_id, _) => {
                let since = acquiring.remove(&task);
                self.changed.insert((task.host, lock), at);
                return self.acquired(at, guard_id, since, context);
            }
            TaskEvent::Releasing(guard_id, _) => {
                let hold = context.guards.hold(guard_id);
                let passed = hold.and_then(|hold| self.passed.get_mut(&hold));
                if let Some(passed) = passed.filter(|passed| passed.guard_id == guard_id) {
                    passed.release_guard.get_or_insert(at);
                }
                return Ok(());
            }
            TaskEvent::Released(guard_id, None) => {
                // It ends by itself.
                let hold = context.guards.hold(guard_id);
                hold.map(|hold| self.passed.remove(&hold));
                return Ok(());
            }
            _ => return Ok(()),
        }
        self.changed.insert((task.host, lock), at);
        Ok(())
    }

    fn acquired(
        &mut self,
        at: Instant,
        guard_id: GuardId,
        sought: Option<Instant>,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((known, hold)) = context.guards.get(guard_id).and_then(|known| Some((known, known.hold?)))
        else {
            return Ok(());
        };
        let (lock, host, known_as) = (known.lock, known.task.host, known.known_as);
        if !known.was_handed_off() {
            let (told, release_guard, last_turn) = (None, None, None);
            let new = Passed { host, known_as, guard_id, release_guard, told, since_told: 0, last_turn };
            self.passed.insert(hold, new);
            return Ok(());
        }
        let task = known.task;
        // Without a record, a task held and released it during an acquire of several locks, without a guard.
        let Some(passed) = self.passed.get_mut(&hold) else { return Ok(()) };
        if passed.release_guard.take().is_none() {
            return Err(format!("{task} was handed {lock}, which another of its process has"));
        }
        passed.guard_id = guard_id;
        if known.together {
            // The time of the hand-off is not visible. The hold was used since, while others waited.
            return Ok(());
        }
        passed.since_told += 1;
        if let Some(told) = passed.told {
            if sought.is_none_or(|sought| sought > told) {
                return Err(format!(
                    "{task} was handed {lock} and came at {sought:?}, others wait since {told}"
                ));
            }
            if passed.since_told > MAX_HANDOFFS || at > told + HANDOFF_WINDOW + HANDOFF_WINDOW / 15 + SLACK {
                let times = passed.since_told;
                return Err(format!(
                    "{lock} was handed on {times} times in {host}, others wait since {told}"
                ));
            }
        }
        let waiting = self.locks.get(&lock).into_iter().flat_map(|seen| &seen.waiting);
        let waiting = waiting.filter(|(_, place)| place.host != host && at < place.until);
        let Some((first, place)) = waiting.min_by_key(|(_, place)| place.since) else { return Ok(()) };
        let Some(well) = context.health(host).and_then(Health::well_since) else { return Ok(()) };
        if at <= place.since.max(well) + HANDOFF_WINDOW + SLACK * 2 {
            return Ok(());
        }
        // The belief that no other process waits has lasted as long as it may. The request is on its way, or has just
        // been answered.
        match passed.last_turn {
            Some((other, since)) if other == *first && since >= well => {
                if at > since + HANDOFF_WINDOW + HANDOFF_WINDOW / 15 + SLACK {
                    let since = place.since;
                    return Err(format!("{task} was handed {lock}, and {} waits since {since}", place.host));
                }
            }
            _ => passed.last_turn = Some((*first, at)),
        }
        Ok(())
    }

    /// An unused hold is released once another process has asked.
    fn kept(&self, at: Instant, lock: LockId, seen: &ObservedHolder, context: &CheckContext) -> CheckResult {
        let Some(hold) = seen.holder else { return Ok(()) };
        let Some(passed) = self.passed.get(&hold) else { return Ok(()) };
        let (Some(release_guard), host) = (passed.release_guard, passed.host) else { return Ok(()) };
        // It may have been released without a reply.
        if context.guards.given_up(&hold).is_some()
            || self.acquiring.get(&(host, lock)).is_some_and(|acquiring| !acquiring.is_empty())
        {
            return Ok(());
        }
        let Some(well) = context.health(host).and_then(Health::well_since) else { return Ok(()) };
        let unused = self.changed.get(&(host, lock)).copied().unwrap_or_default().max(release_guard);
        for place in seen.waiting.values().filter(|place| place.host != host && at < place.until) {
            let Some(asked) = place.looks.iter().find(|look| **look >= well) else { continue };
            if at > unused.max(*asked) + GIVEN_BACK_WITHIN {
                let other = place.host;
                return Err(format!(
                    "{host} keeps {lock}, which it has not used since {unused}, and {other} asked at {asked}"
                ));
            }
        }
        Ok(())
    }
}

impl Check for Handoff {
    fn name(&self) -> &'static str {
        "handoff"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if !context.is_shared(done.lock) => self.executed(at, done, context),
            Event::Sent { message, op: Op::Extend(extend), .. } if extend.reserve.is_some() => {
                self.asked.insert(message, (at, extend.claim.hold));
            }
            Event::Answered { message, reply, .. } => self.answered(at, message, reply),
            Event::Notified(host, Notification::Wanted { fence, .. }) => self.wanted(at, host, fence),
            Event::Task(task, lock, what) if !context.is_shared(lock) => {
                return self.task(at, task, lock, what, context);
            }
            Event::Host(host, HostEvent::Crashed) => {
                self.passed.retain(|_, passed| passed.host != host);
                self.acquiring.retain(|(other, _), _| *other != host);
            }
            Event::Foreign(lock, Some(_)) => self.locks.entry(lock).or_default().holder = None,
            // The state of the store is unknown until the next operation.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                self.locks.clear();
                // A hold may last longer now than its process could know when it stopped giving it back.
                self.passed.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        self.locks.iter().try_for_each(|(lock, seen)| self.kept(at, *lock, seen, context))
    }
}
