//! What a process may do with a hold that it hands off among its tasks, or caches.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, Execution, GuardId, HostEvent, LockId, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::machine::cohort::{HANDOFF_WINDOW, MAX_HANDOFFS};
use leasehold_core::model::QueueEntryId;
use leasehold_core::{Acquired, Extended, FencingToken, HoldId, Notification, Op, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// By how much a hand-off window may appear longer: clock drift, and events at the same time.
const SLACK: Duration = Duration::from_millis(10);

/// How long the release of a cached hold may take once another process waits: a notification, the cleanup, and the
/// rest of its batch.
const RELEASED_WITHIN: Duration = Duration::from_millis(300);

/// A hold has one guard at a time. Once its process knows that others wait, only tasks that were queued locally by
/// then receive it, at most [`MAX_HANDOFFS`] times and for [`HANDOFF_WINDOW`]. Without that knowledge, the process hands off for
/// one such window and at most one more while another process waits. A hold that no local task uses or waits for is
/// released soon after another process has requested the lock, or at the end of its idle time if the process cannot learn
/// of the request.
#[derive(Debug, Default)]
pub struct Handoff {
    holds: BTreeMap<HoldId, LocalHold>,
    /// When tasks began to acquire a lock.
    acquiring: BTreeMap<(HostId, LockId), BTreeMap<TaskId, Instant>>,
    /// When the tasks of a process that use or acquire a lock changed last.
    changed: BTreeMap<(HostId, LockId), Instant>,
    locks: BTreeMap<LockId, LockView>,
    /// Requests without a reply: their time and hold.
    requested: BTreeMap<u64, (Instant, HoldId)>,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct LockView {
    /// The hold, and its fencing token.
    holder: Option<(HoldId, FencingToken)>,
    waiting: BTreeMap<QueueEntryId, RemoteWaiter>,
}

/// A waiter of another process.
#[derive(Debug)]
struct RemoteWaiter {
    host: HostId,
    since: Instant,
    /// When its queue entry expires.
    until: Instant,
    /// When it has polled.
    polls: Vec<Instant>,
}

/// A hold that a process uses or caches.
#[derive(Debug)]
struct LocalHold {
    host: HostId,
    hold_token: FencingToken,
    /// Its last guard, and how long that lets the process keep the hold without one.
    guard_id: GuardId,
    keep_for: Duration,
    /// When that guard was released; `None` while it is in use.
    released_at: Option<Instant>,
    /// Since when its process knows that others wait.
    knows_waiters_since: Option<Instant>,
    /// How often it was handed off since.
    handoffs_since: u32,
    /// When it was first handed off more than a hand-off window after the first waiter had begun to wait.
    last_handoff_turn: Option<(QueueEntryId, Instant)>,
}

impl LocalHold {
    fn learn_of_waiters(&mut self, at: Instant) {
        if self.knows_waiters_since.is_none() {
            (self.knows_waiters_since, self.handoffs_since) = (Some(at), 0);
        }
    }
}

impl Handoff {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) {
        let view = self.locks.entry(done.lock).or_default();
        if let Some(hold) = done.acquires().map(|(request, _)| request.claim.hold)
            && done.is_stale
            && view.holder.is_none_or(|(holder, _)| holder != hold)
            && self.holds.get(&hold).is_some_and(|local| local.released_at.is_some())
        {
            // A late message requests a hold that is over, and that its process does not keep.
            self.holds.remove(&hold);
        }
        view.holder = done.holds(at).first().map(|held| (held.hold, held.fence));
        let now_ms = done.clock.reading_us(at) / 1000;
        let entries = done.state.record.iter().flat_map(|record| &record.entries);
        let mut waiting = BTreeMap::new();
        for (id, waiter) in entries.filter(|(_, waiter)| waiter.expires_ms >= now_ms) {
            let until = done.clock.shows_at((waiter.expires_ms + 1) * 1000);
            let Some(host) = context.host(id.session()) else { continue };
            let new = || RemoteWaiter { host, since: at, until, polls: Vec::new() };
            let old = view.waiting.remove(id).unwrap_or_else(new);
            waiting.insert(*id, RemoteWaiter { until, ..old });
        }
        if let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(waiter) = waiting.get_mut(&QueueEntryId::of(done.state.kind, &request.claim.hold))
        {
            waiter.polls.push(at);
        }
        view.waiting = waiting;
    }

    /// A process has received the reply to a reservation of tokens.
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        let Some((asked_at, hold)) = self.requested.remove(&message) else { return };
        let Some(local) = self.holds.get_mut(&hold) else { return };
        if let Some(Reply::Extend(Extended::Reserved { others_wait, .. })) = reply {
            if *others_wait {
                local.learn_of_waiters(at);
            } else if local
                .knows_waiters_since
                .is_some_and(|knows_waiters_since| knows_waiters_since <= asked_at)
            {
                // A later notification supersedes the reply. What the process learned at the same moment may be what made
                // it send the request.
                local.knows_waiters_since = None;
            }
        }
    }

    fn wanted(&mut self, at: Instant, host: HostId, fence: FencingToken) {
        let matches = |local: &&mut LocalHold| (local.host, local.hold_token) == (host, fence);
        self.holds.values_mut().filter(matches).for_each(|local| local.learn_of_waiters(at));
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
            TaskEvent::Acquired(guard_id, new_guard) => {
                let since = acquiring.remove(&task);
                self.changed.insert((task.host, lock), at);
                return self.acquired(at, (guard_id, new_guard.keep_for.unwrap_or_default()), since, context);
            }
            TaskEvent::Releasing(guard_id, _) => {
                let hold = context.guards.hold(guard_id);
                let local = hold.and_then(|hold| self.holds.get_mut(&hold));
                if let Some(local) = local.filter(|local| local.guard_id == guard_id) {
                    local.released_at.get_or_insert(at);
                }
                return Ok(());
            }
            TaskEvent::Released(guard_id, None) => {
                // It lasts until it expires.
                let hold = context.guards.hold(guard_id);
                hold.map(|hold| self.holds.remove(&hold));
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
        (guard_id, keep_for): (GuardId, Duration),
        acquiring: Option<Instant>,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((known, hold)) = context.guards.get(guard_id).and_then(|known| Some((known, known.hold?)))
        else {
            return Ok(());
        };
        let (lock, host, hold_token) = (known.lock, known.task.host, known.hold_token);
        if !known.was_handed_off() {
            let (knows_waiters_since, released_at, last_handoff_turn) = (None, None, None);
            let new = LocalHold {
                host,
                hold_token,
                guard_id,
                keep_for,
                released_at,
                knows_waiters_since,
                handoffs_since: 0,
                last_handoff_turn,
            };
            self.holds.insert(hold, new);
            return Ok(());
        }
        let task = known.task;
        // Without a record, a task held and released it during an acquire of several locks, without a guard.
        let Some(local) = self.holds.get_mut(&hold) else { return Ok(()) };
        if local.released_at.take().is_none() {
            return Err(format!("{task} was handed {lock}, which another task of its process holds"));
        }
        (local.guard_id, local.keep_for) = (guard_id, keep_for);
        if known.is_multi {
            // The time of the hand-off is not visible.
            return Ok(());
        }
        local.handoffs_since += 1;
        if let Some(knows_waiters_since) = local.knows_waiters_since {
            if acquiring.is_none_or(|acquiring| acquiring > knows_waiters_since) {
                return Err(format!(
                    "{task}, which waits since {acquiring:?}, was handed {lock}; others wait since {knows_waiters_since}"
                ));
            }
            if local.handoffs_since > MAX_HANDOFFS
                || at > knows_waiters_since + HANDOFF_WINDOW + HANDOFF_WINDOW / 15 + SLACK
            {
                let times = local.handoffs_since;
                return Err(format!(
                    "{host} handed {lock} off {times} times; others wait since {knows_waiters_since}"
                ));
            }
        }
        let waiting = self.locks.get(&lock).into_iter().flat_map(|view| &view.waiting);
        let waiting = waiting.filter(|(_, waiter)| waiter.host != host && at < waiter.until);
        let Some((first, waiter)) = waiting.min_by_key(|(_, waiter)| waiter.since) else { return Ok(()) };
        let Some(healthy) = context.health(host).and_then(Health::healthy_since) else { return Ok(()) };
        if at <= waiter.since.max(healthy) + HANDOFF_WINDOW + SLACK * 2 {
            return Ok(());
        }
        // The process may have assumed until now that no other process waits. Its request is in flight, or has just
        // been answered.
        match local.last_handoff_turn {
            Some((other, since)) if other == *first && since >= healthy => {
                if at > since + HANDOFF_WINDOW + HANDOFF_WINDOW / 15 + SLACK {
                    let since = waiter.since;
                    return Err(format!("{task} was handed {lock}; {} waits since {since}", waiter.host));
                }
            }
            _ => local.last_handoff_turn = Some((*first, at)),
        }
        Ok(())
    }

    /// A cached hold is released once another process has requested the lock.
    fn check_cached(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((hold, fence)) = view.holder else { return Ok(()) };
        let Some(local) = self.holds.get(&hold) else { return Ok(()) };
        let (Some(released_at), host) = (local.released_at, local.host) else { return Ok(()) };
        // Its release may be in flight.
        if context.guards.given_up(&hold).is_some()
            || self.acquiring.get(&(host, lock)).is_some_and(|acquiring| !acquiring.is_empty())
        {
            return Ok(());
        }
        let Some(healthy) = context.health(host).and_then(Health::healthy_since) else { return Ok(()) };
        let unused = self.changed.get(&(host, lock)).copied().unwrap_or_default().max(released_at);
        for waiter in view.waiting.values().filter(|waiter| waiter.host != host && at < waiter.until) {
            let Some(requested) = waiter.polls.iter().find(|poll| **poll >= healthy) else { continue };
            // If its key was deleted, and a late request of the same acquire has made it anew, the process does not know the
            // token that the notification names. Clocks may drift.
            let kept_until = unused + local.keep_for + local.keep_for / 15;
            let until = if local.hold_token == fence { unused } else { kept_until };
            if at > until.max(*requested) + RELEASED_WITHIN {
                let other = waiter.host;
                return Err(format!(
                    "{host} caches {lock}, unused since {unused}; {other} requested it at {requested}"
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
                self.requested.insert(message, (at, extend.claim.hold));
            }
            Event::Answered { message, reply, .. } => self.answered(at, message, reply),
            Event::Notified(host, Notification::Wanted { fence, .. }) => self.wanted(at, host, fence),
            Event::Task(task, lock, what) if !context.is_shared(lock) => {
                return self.task(at, task, lock, what, context);
            }
            Event::Host(host, HostEvent::Crashed) => {
                self.holds.retain(|_, local| local.host != host);
                self.acquiring.retain(|(other, _), _| *other != host);
            }
            Event::Foreign(lock, Some(_)) => self.locks.entry(lock).or_default().holder = None,
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() => {
                self.locks.clear();
                // A hold may last longer than its process could know when it stopped the release.
                self.holds.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        self.locks.iter().try_for_each(|(lock, view)| self.check_cached(at, *lock, view, context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{HOST, hold};
    use leasehold_core::TokenBlock;

    #[test]
    fn a_reply_supersedes_what_the_process_knew_when_it_sent_the_request() {
        let (early, at, late) = (Instant(1_000), Instant(2_000), Instant(3_000));
        for (asked_at, is_known) in [(early, true), (at, false), (late, false)] {
            let mut check = Handoff::default();
            let local = LocalHold {
                host: HOST,
                hold_token: FencingToken::new(7),
                guard_id: GuardId(0),
                keep_for: Duration::ZERO,
                released_at: None,
                knows_waiters_since: Some(at),
                handoffs_since: 0,
                last_handoff_turn: None,
            };
            check.holds.insert(hold(1), local);
            check.requested.insert(1, (asked_at, hold(1)));
            let block = TokenBlock::new(FencingToken::new(8), 4);
            check.answered(late, 1, Some(&Reply::Extend(Extended::Reserved { block, others_wait: false })));
            assert_eq!(check.holds[&hold(1)].knows_waiters_since.is_some(), is_known, "asked at {asked_at}");
        }
    }
}
