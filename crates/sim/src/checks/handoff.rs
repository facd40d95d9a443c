//! What a process may do with a hold that it hands off among its tasks, or caches.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, Execution, GuardId, HostEvent, LockId, NewGuard, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::machine::cohort::{HANDOFF_WINDOW, MAX_HANDOFFS};
use leasehold_core::model::QueueEntryId;
use leasehold_core::{Acquired, Extended, FencingToken, HoldId, Notification, Op, Reply, delay_margin};
use std::collections::BTreeMap;
use std::time::Duration;

/// By how much a hand-off window may appear longer: clock drift, and events at the same time.
const SLACK: Duration = Duration::from_millis(10);

/// How long the release of a cached hold may take once another process waits: a notification, the cleanup, and the
/// rest of its batch.
const RELEASED_WITHIN: Duration = Duration::from_millis(300);

/// A hold has one guard at a time. Once its process knows that others wait, only tasks that were queued locally by
/// then receive it, at most [`MAX_HANDOFFS`] times and for [`HANDOFF_WINDOW`]. Without that knowledge, the process hands off for
/// one such window and at most one more while another process waits. A hold that a process caches, while no local task
/// uses or waits for it, is released soon after another process has requested the lock.
///
/// A process caches a hold until its idle time is over, and only as long as it takes the hold for valid, by the replies that
/// it has received. It knows the hold by its token, which the store's notifications name. A hold with another token is not
/// the one that it caches: the key was gone, and a late request of the same acquire has made it anew. What a process does
/// not cache it releases by itself, which [`Cleanup`](super::Cleanup) demands.
#[derive(Debug, Default)]
pub struct Handoff {
    holds: BTreeMap<HoldId, LocalHold>,
    /// When tasks began to acquire a lock.
    acquiring: BTreeMap<(HostId, LockId), BTreeMap<TaskId, Instant>>,
    /// When the tasks of a process that use or acquire a lock changed last.
    changed: BTreeMap<(HostId, LockId), Instant>,
    locks: BTreeMap<LockId, LockView>,
    /// Extends without a reply.
    extends: BTreeMap<u64, SentExtend>,
}

/// An extend that a process has sent, perhaps to reserve tokens.
#[derive(Debug, Clone, Copy)]
struct SentExtend {
    at: Instant,
    hold: HoldId,
    lease: Duration,
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
    /// For how much longer the store keeps it than the process takes it for valid.
    margin: Duration,
    /// Until when the process takes it for valid, at least.
    valid_until: Instant,
    /// When that guard was acquired. An extend that was sent before can be for a longer lease.
    acquired_at: Instant,
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

    /// Whether the process certainly caches it then.
    fn is_cached(&self, at: Instant) -> bool {
        // Clocks may drift.
        let kept_until = |released_at| released_at + self.keep_for * 14 / 15;
        at < self.valid_until && self.released_at.is_some_and(|released_at| at < kept_until(released_at))
    }
}

impl Handoff {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) {
        let view = self.locks.entry(done.lock).or_default();
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

    /// A process has received the reply to an extend.
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        let Some(sent) = self.extends.remove(&message) else { return };
        let Some(local) = self.holds.get_mut(&sent.hold) else { return };
        match reply {
            Some(Reply::Extend(Extended::Reserved { others_wait: true, .. })) => local.learn_of_waiters(at),
            // A later notification supersedes the reply. What the process learned at the same moment may be what made it
            // send the request.
            Some(Reply::Extend(Extended::Reserved { .. }))
                if local.knows_waiters_since.is_some_and(|since| since <= sent.at) =>
            {
                local.knows_waiters_since = None;
            }
            // No reply revives a hold that has ended at its deadline.
            Some(Reply::Extend(Extended::Extended | Extended::Voted(_)))
                if local.acquired_at <= sent.at && at < local.valid_until =>
            {
                // Less the tolerated drift, and the actual drift of any clock.
                let lease = sent.lease.saturating_sub(local.margin);
                local.valid_until = local.valid_until.max(sent.at + lease * 23 / 25);
            }
            _ => {}
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
                return self.acquired(at, (guard_id, new_guard), since, context);
            }
            TaskEvent::ValidityChanged(guard_id, validity) => {
                let hold = context.guards.hold(guard_id);
                let local = hold.and_then(|hold| self.holds.get_mut(&hold));
                if let Some(local) = local.filter(|local| local.guard_id == guard_id) {
                    local.valid_until = validity.until;
                }
                return Ok(());
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
        (guard_id, new_guard): (GuardId, NewGuard),
        acquiring: Option<Instant>,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((known, hold)) = context.guards.get(guard_id).and_then(|known| Some((known, known.hold?)))
        else {
            return Ok(());
        };
        let (lock, host, hold_token) = (known.lock, known.task.host, known.hold_token);
        let (keep_for, valid_until) = (new_guard.keep_for.unwrap_or_default(), new_guard.validity.until);
        if !known.was_handed_off() {
            let (knows_waiters_since, released_at, last_handoff_turn) = (None, None, None);
            let new = LocalHold {
                host,
                hold_token,
                guard_id,
                keep_for,
                margin: delay_margin(new_guard.lock_delay),
                valid_until,
                acquired_at: at,
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
        (local.valid_until, local.acquired_at) = (valid_until, at);
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
        let is_cached = |local: &&LocalHold| local.hold_token == fence && local.is_cached(at);
        let Some(local) = self.holds.get(&hold).filter(is_cached) else { return Ok(()) };
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
            if at > unused.max(*requested) + RELEASED_WITHIN {
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
            Event::Sent { message, op: Op::Extend(extend), .. } => {
                let (hold, lease) = (extend.claim.hold, Duration::from_millis(extend.lease_ms));
                self.extends.insert(message, SentExtend { at, hold, lease });
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
    use crate::checks::fixture::{HOST, LOCK, context, hold};
    use leasehold_core::{Kind, TokenBlock};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000)
    }

    /// A hold that is released after a second, and cached for ten.
    fn cached() -> LocalHold {
        LocalHold {
            host: HOST,
            hold_token: FencingToken::new(7),
            guard_id: GuardId(0),
            keep_for: SECOND * 10,
            margin: Duration::ZERO,
            valid_until: at(20),
            acquired_at: at(1),
            released_at: Some(at(1)),
            knows_waiters_since: None,
            handoffs_since: 0,
            last_handoff_turn: None,
        }
    }

    fn extend_sent(at: Instant) -> SentExtend {
        SentExtend { at, hold: hold(1), lease: SECOND * 25 }
    }

    #[test]
    fn a_reply_supersedes_what_the_process_knew_when_it_sent_the_request() {
        for (asked_at, is_known) in [(at(1), true), (at(2), false), (at(3), false)] {
            let mut check = Handoff::default();
            let local = LocalHold { knows_waiters_since: Some(at(2)), released_at: None, ..cached() };
            check.holds.insert(hold(1), local);
            check.extends.insert(1, extend_sent(asked_at));
            let block = TokenBlock::new(FencingToken::new(8), 4);
            check.answered(at(3), 1, Some(&Reply::Extend(Extended::Reserved { block, others_wait: false })));
            assert_eq!(check.holds[&hold(1)].knows_waiters_since.is_some(), is_known, "asked at {asked_at}");
        }
    }

    #[test]
    fn a_hold_is_released_on_request_only_as_long_as_its_process_caches_it() {
        let mut context = context(Kind::Mutex);
        for keeper in [false, true] {
            context.observe(at(0), &Event::Host(HOST, HostEvent::LinkUp { keeper }));
        }
        context.observe(at(0), &Event::Started(HOST, hold(1).session()));
        let found = |local: LocalHold, token: u64| {
            let mut check = Handoff::default();
            check.holds.insert(hold(1), local);
            let (host, since, until, polls) = (HostId(1), at(2), at(60), vec![at(2)]);
            let waiter = RemoteWaiter { host, since, until, polls };
            let waiting = BTreeMap::from([(QueueEntryId::of(Kind::Mutex, &hold(2)), waiter)]);
            let view = LockView { holder: Some((hold(1), FencingToken::new(token))), waiting };
            check.locks.insert(LOCK, view);
            check.advance(at(3), &context)
        };
        found(cached(), 7).expect_err("its process is to release it");
        let results = [
            ("made anew by a late acquire", found(cached(), 8)),
            ("not cached", found(LocalHold { keep_for: Duration::ZERO, ..cached() }, 7)),
            ("not cached any more", found(LocalHold { keep_for: SECOND * 2, ..cached() }, 7)),
            ("extended by a late request", found(LocalHold { valid_until: at(2), ..cached() }, 7)),
        ];
        for (what, result) in results {
            result.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }

    #[test]
    fn a_cached_hold_is_valid_by_its_extends_that_were_answered_in_time() {
        for (acquired_at, answered_at, valid_until) in
            [(at(1), at(3), at(25)), (at(3), at(3), at(20)), (at(1), at(21), at(20))]
        {
            let mut check = Handoff::default();
            check.holds.insert(hold(1), LocalHold { acquired_at, ..cached() });
            check.extends.insert(1, extend_sent(at(2)));
            check.answered(answered_at, 1, Some(&Reply::Extend(Extended::Extended)));
            assert_eq!(check.holds[&hold(1)].valid_until, valid_until);
        }
    }
}
