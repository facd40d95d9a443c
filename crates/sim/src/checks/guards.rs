//! Which hold each guard is for.
//!
//! The engine does not reveal the id of a hold, which is a secret. But a process receives a reply or a grant for a hold
//! before a task has its guard. So a new guard belongs to a received hold without a guard: of those with its token and
//! count, to the one whose validity is closest to the reported one. The match is corrected if that hold is released
//! while the guard is in use. (A task that is granted the lock by its queue entry releases a hold that it was granted
//! out of turn.)
//!
//! A guard from a hand-off has a token that the store reserved for its hold. It belongs to the hold of that
//! reservation, until that hold is released.

use crate::event::{Event, GuardId, HostEvent, LockId, NewGuard, OwnerId, ReleaseMethod, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquire, Acquired, Extended, FencingToken, HoldId, LockMode, MultiAcquired, Nonce, Notification, Op,
    Reply, delay_margin, drift,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How much two validities may differ that are the same: the clock of a process drifts.
const CLOSE: Duration = Duration::from_millis(10);

/// The guards of tasks.
#[derive(Debug, Default)]
pub struct Guards {
    known: BTreeMap<GuardId, GuardRecord>,
    /// The requests of a message, the nonces of polls, and their times.
    requested: BTreeMap<u64, Vec<SentRequest>>,
    polls: BTreeMap<Nonce, SentRequest>,
    /// Holds that processes have received, newest last, and that have no guard.
    received: BTreeMap<HostId, Vec<ReceivedHold>>,
    /// The guard of a hold; after a hand-off, the last one.
    guard_of_hold: BTreeMap<HoldId, GuardId>,
    /// Messages that reserve tokens, with their hold.
    reserving: BTreeMap<u64, (LockId, HoldId)>,
    /// The tokens that processes have received.
    blocks: BTreeMap<HostId, Vec<Reserved>>,
    /// When processes sent the first release of a hold.
    given_up: BTreeMap<HoldId, Instant>,
    /// Messages that release a hold.
    releasing: BTreeMap<u64, HoldId>,
    /// Holds whose release was answered.
    released: BTreeSet<HoldId>,
    /// When the release of each guard began.
    released_at: BTreeMap<GuardId, Instant>,
    /// The guard that a task has begun to release, if the connection of its process is up: the next message of the
    /// process is that release. Otherwise the release waits for the connection, and the next message is the keeper's,
    /// which has a connection of its own: perhaps the undo of another hold.
    guard_in_release: Option<GuardId>,
    owners: BTreeMap<OwnerId, String>,
}

/// A guard.
#[derive(Debug, Clone, Copy)]
pub struct GuardRecord {
    /// The lock.
    pub lock: LockId,
    /// The task.
    pub task: TaskId,
    /// Its fencing token.
    pub fence: FencingToken,
    /// The token by which the store knows its hold. It differs after a hand-off.
    pub hold_token: FencingToken,
    /// The owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnerId>,
    /// The lock mode.
    pub mode: LockMode,
    /// Whether it is one of several locks under one guard.
    pub is_multi: bool,
    /// The hold; `None` if its process cannot know of any.
    pub hold: Option<HoldId>,
    /// For how long no other client is granted the lock after a loss.
    pub lock_delay: Duration,
}

/// A hold that a process has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReceivedHold {
    lock: LockId,
    hold: HoldId,
    fence: FencingToken,
    /// The owner's number of holds, as reported.
    count: u64,
    /// Until when it may be valid, apart from clock errors.
    until: Instant,
    /// When it was received.
    at: Instant,
}

/// Fencing tokens that were reserved for a hold.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    lock: LockId,
    hold: HoldId,
    first: FencingToken,
    last: FencingToken,
}

/// A request of a process.
#[derive(Debug, Clone, Copy)]
struct SentRequest {
    lock: LockId,
    hold: HoldId,
    at: Instant,
    lease_ms: u64,
}

impl ReceivedHold {
    fn is_of(&self, lock: LockId, fence: FencingToken) -> bool {
        (self.lock, self.fence) == (lock, fence)
    }
}

impl GuardRecord {
    /// Whether another task of the process handed its hold off to it.
    pub fn was_handed_off(&self) -> bool {
        self.hold_token != self.fence
    }
}

impl Reserved {
    fn is_of(&self, lock: LockId, fence: FencingToken) -> bool {
        self.lock == lock && (self.first..=self.last).contains(&fence)
    }
}

impl Guards {
    /// The record of a guard.
    pub fn get(&self, guard_id: GuardId) -> Option<&GuardRecord> {
        self.known.get(&guard_id)
    }

    /// The hold of a guard.
    pub fn hold(&self, guard_id: GuardId) -> Option<HoldId> {
        self.known.get(&guard_id)?.hold
    }

    /// The guard of a hold; after a hand-off, the last one.
    pub fn of(&self, hold: &HoldId) -> Option<GuardId> {
        self.guard_of_hold.get(hold).copied()
    }

    /// Whether a process has received this hold, and it has no guard.
    pub fn has_received(&self, host: HostId, hold: &HoldId) -> bool {
        self.received
            .get(&host)
            .is_some_and(|received| received.iter().any(|received| received.hold == *hold))
    }

    /// Whether a process has received a hold of this lock without a guard.
    pub fn has_received_any(&self, host: HostId, lock: LockId) -> bool {
        self.received.get(&host).is_some_and(|received| received.iter().any(|received| received.lock == lock))
    }

    /// When a task began to release a guard, or dropped it.
    pub fn released_at(&self, guard_id: GuardId) -> Option<Instant> {
        self.released_at.get(&guard_id).copied()
    }

    /// Whether a release of a guard's hold was sent. For a guard of several locks, whether it was answered: some may be
    /// cached, and released later for another reason.
    pub fn is_released(&self, guard_id: GuardId) -> bool {
        let Some((known, hold)) = self.known.get(&guard_id).and_then(|known| Some((known, known.hold?)))
        else {
            return false;
        };
        if known.is_multi { self.released.contains(&hold) } else { self.given_up(&hold).is_some() }
    }

    /// When the process of a hold sent its first release.
    pub fn given_up(&self, hold: &HoldId) -> Option<Instant> {
        self.given_up.get(hold).copied()
    }

    /// The identifier of an owner.
    pub fn owner(&self, owner: OwnerId) -> Option<&str> {
        self.owners.get(&owner).map(String::as_str)
    }

    /// `is_connected` says whether the connection of a process, other than its keeper's, is up.
    pub(super) fn observe(&mut self, at: Instant, event: &Event<'_>, is_connected: impl Fn(HostId) -> bool) {
        let guard_in_release = self.guard_in_release.take();
        if let (Some(guard_id), Event::Sent { host, op: Op::Release(release), .. }) =
            (guard_in_release, event)
        {
            self.match_release(guard_id, *host, release.claim.hold);
        }
        match *event {
            Event::Owner(owner, text) => drop(self.owners.insert(owner, text.to_owned())),
            Event::Sent { host, message, lock, op } => self.sent(at, host, message, lock, op),
            Event::Answered {
                host,
                message,
                reply: Some(Reply::Extend(Extended::Reserved { block, .. })),
            } => {
                let reserving = self.reserving.remove(&message);
                if let Some(((lock, hold), first)) = reserving.zip(block.first()) {
                    let last = FencingToken::new(first.as_u64() + u64::from(block.remaining()) - 1);
                    self.blocks.entry(host).or_default().push(Reserved { lock, hold, first, last });
                }
            }
            Event::Answered { host, message, reply } => {
                self.reserving.remove(&message);
                self.released.extend(self.releasing.remove(&message).filter(|_| reply.is_some()));
                let requested = self.requested.remove(&message);
                let acquire_replied = match reply {
                    Some(Reply::Acquire(acquired)) => Some(acquired),
                    Some(Reply::Release(released)) => {
                        released.next.as_ref().and_then(|next| next.as_ref().ok())
                    }
                    _ => None,
                };
                for (requested, acquired) in requested.into_iter().flatten().zip(acquire_replied) {
                    self.acquire_replied(at, host, requested, acquired);
                }
            }
            Event::MultiAnswered { host, message, replies } => {
                let requested = self.requested.remove(&message).into_iter().flatten();
                for (requested, reply) in requested.zip(replies.into_iter().flatten()) {
                    if let MultiAcquired::Acquired(acquired) = reply {
                        self.acquire_replied(at, host, requested, acquired);
                    }
                }
            }
            Event::Notified(host, Notification::Grant { nonce, fence, .. }) => {
                if let Some(requested) = self.polls.get(&nonce).copied() {
                    self.hold_received(at, host, requested, (fence, 1, requested.lease_ms));
                }
            }
            Event::Task(task, _, TaskEvent::Releasing(guard_id, how)) => {
                self.released_at.entry(guard_id).or_insert(at);
                let is_sent = how == ReleaseMethod::Release && is_connected(task.host);
                self.guard_in_release = is_sent.then_some(guard_id);
            }
            Event::Task(task, lock, TaskEvent::Acquired(guard_id, new_guard)) => {
                self.acquired(at, task, lock, guard_id, new_guard);
            }
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => {
                self.received.remove(&host);
                self.blocks.remove(&host);
            }
            _ => {}
        }
    }

    fn sent(&mut self, at: Instant, host: HostId, message: u64, lock: LockId, op: &Op) {
        let acquire = match op {
            Op::Acquire(request) => Some(request),
            Op::Extend(extend) => {
                let reserving = extend.reserve.map(|_| (message, (lock, extend.claim.hold)));
                self.reserving.extend(reserving);
                None
            }
            Op::Release(release) => {
                self.given_up.entry(release.claim.hold).or_insert(at);
                self.releasing.insert(message, release.claim.hold);
                if let Some(blocks) = self.blocks.get_mut(&host) {
                    blocks.retain(|block| block.hold != release.claim.hold);
                }
                self.hold_released(host, release.claim.hold);
                if let Some(received) = self.received.get_mut(&host) {
                    // It will have no guard.
                    received.retain(|received| received.hold != release.claim.hold);
                }
                release.next.as_ref()
            }
            _ => None,
        };
        if let Some(Acquire { claim, queue, lease_ms, .. }) = acquire {
            let requested = SentRequest { lock, hold: claim.hold, at, lease_ms: *lease_ms };
            // One message may acquire several locks.
            self.requested.entry(message).or_default().push(requested);
            if let Some(queue) = queue {
                self.polls.insert(queue.nonce, requested);
            }
        }
    }

    /// A hold is released. A guard in use that was matched with it belongs to another hold with the same token.
    fn hold_released(&mut self, host: HostId, hold: HoldId) {
        let Some(guard_id) = self
            .guard_of_hold
            .get(&hold)
            .copied()
            .filter(|guard_id| !self.released_at.contains_key(guard_id))
        else {
            return;
        };
        let (Some(known), Some(received)) = (self.known.get(&guard_id), self.received.get(&host)) else {
            return;
        };
        let other = received.iter().rfind(|received| received.is_of(known.lock, known.fence));
        if let Some(right) = other.map(|received| received.hold) {
            self.bind(guard_id, host, right);
            return;
        }
        // It was the hold of a guard that was dropped before: that one was matched with this guard's.
        let of_dropped = |(other, record): (&GuardId, &GuardRecord)| {
            let is_confused = (record.lock, record.fence, record.task.host)
                == (known.lock, known.fence, host)
                && self.released_at.contains_key(other)
                && record.hold.is_some_and(|right| self.guard_of_hold.get(&right) == Some(other));
            record
                .hold
                .filter(|right| is_confused && !self.given_up.contains_key(right))
                .map(|right| (*other, right))
        };
        let dropped = self.known.iter().rev().find_map(of_dropped);
        if let Some((dropped, right)) = dropped {
            self.match_with(dropped, hold);
            self.match_with(guard_id, right);
        }
    }

    /// The release of a guard names this hold.
    fn match_release(&mut self, guard_id: GuardId, host: HostId, hold: HoldId) {
        let (Some(known), Some(received)) = (self.known.get(&guard_id).copied(), self.received.get(&host))
        else {
            return;
        };
        if known.hold == Some(hold) {
            return;
        }
        if received.iter().any(|received| received.hold == hold && received.is_of(known.lock, known.fence)) {
            return self.bind(guard_id, host, hold);
        }
        // Two holds were confused.
        let other =
            self.guard_of_hold.get(&hold).copied().filter(|other| !self.released_at.contains_key(other));
        let other = other.and_then(|other| Some((other, self.known.get(&other)?)));
        if let (Some((other, record)), Some(wrong)) = (other, known.hold)
            && (record.lock, record.fence, record.task.host) == (known.lock, known.fence, host)
        {
            self.match_with(other, wrong);
            self.match_with(guard_id, hold);
        }
    }

    /// Matches a guard with a hold, which another guard had.
    fn match_with(&mut self, guard_id: GuardId, hold: HoldId) {
        if let Some(record) = self.known.get_mut(&guard_id) {
            record.hold = Some(hold);
        }
        self.guard_of_hold.insert(hold, guard_id);
    }

    /// Matches a guard with this hold instead of the earlier one.
    fn bind(&mut self, guard_id: GuardId, host: HostId, right: HoldId) {
        if let Some(received) = self.received.get_mut(&host) {
            received.retain(|received| received.hold != right);
        }
        if let Some(known) = self.known.get_mut(&guard_id)
            && let Some(wrong) = known.hold.replace(right)
        {
            self.guard_of_hold.remove(&wrong);
        }
        self.guard_of_hold.insert(right, guard_id);
    }

    fn acquire_replied(&mut self, at: Instant, host: HostId, requested: SentRequest, acquired: &Acquired) {
        if let Acquired::Granted { fence, owner_holds: entered, remaining_ms, .. } = acquired {
            let count = entered.map_or(1, |entered| entered.count);
            self.hold_received(at, host, requested, (*fence, count, *remaining_ms));
        }
    }

    fn hold_received(
        &mut self,
        now: Instant,
        host: HostId,
        requested: SentRequest,
        (fence, count, remaining_ms): (FencingToken, u64, u64),
    ) {
        let SentRequest { lock, hold, at, .. } = requested;
        let lasts = Duration::from_millis(remaining_ms);
        let until = at + lasts.saturating_sub(drift(lasts));
        let new = ReceivedHold { lock, hold, fence, count, until, at: now };
        if self.guard_of_hold.contains_key(&new.hold) {
            return;
        }
        let received = self.received.entry(host).or_default();
        received.retain(|received| ReceivedHold { at: now, ..*received } != new);
        received.push(new);
    }

    fn acquired(&mut self, at: Instant, task: TaskId, lock: LockId, guard_id: GuardId, new_guard: NewGuard) {
        let NewGuard { fence, owner, mode, count, validity, is_multi, lock_delay, .. } = new_guard;
        let received = self.received.entry(task.host).or_default();
        // As a rule a task has its guard at the moment when its process receives the reply. Otherwise the same validity
        // shows which hold it is, unless something limits it: the session, a deadline. These shorten the validity, so a
        // hold that ends before it is the last choice. After several polls the counts may differ; then it is the newest.
        // Clocks may drift.
        let slack = CLOSE + validity.until.since(at) / 15;
        // The store keeps it for the lock delay longer.
        let kept_until = validity.until + delay_margin(lock_delay);
        let distance = |received: &ReceivedHold| {
            let ends_before = kept_until.since(received.until);
            let apart = received.until.since(kept_until) + ends_before;
            let (other_count, is_old) = (received.count != count, received.at != at);
            (ends_before > slack, other_count || is_old, apart > CLOSE, other_count, is_old, apart)
        };
        let candidates = received.iter().rev().filter(|received| received.is_of(lock, fence));
        let received_hold =
            candidates.min_by_key(|received| distance(received)).map(|received| received.hold);
        let blocks = self.blocks.get(&task.host).into_iter().flatten();
        let handed_off = || blocks.rev().find(|block| block.is_of(lock, fence)).map(|block| block.hold);
        let hold = received_hold.or_else(handed_off);
        let hold_token = hold.filter(|_| received_hold.is_none()).and_then(|hold| {
            let before = self.guard_of_hold.get(&hold).and_then(|guard_id| self.known.get(guard_id));
            // A task may have held and released it during an acquire of several locks, without a guard.
            let received =
                || received.iter().rfind(|received| received.hold == hold).map(|received| received.fence);
            before.map(|before| before.hold_token).or_else(received)
        });
        let hold_token = hold_token.unwrap_or(fence);
        received.retain(|received| Some(received.hold) != hold);
        self.guard_of_hold.extend(hold.map(|hold| (hold, guard_id)));
        self.known.insert(
            guard_id,
            GuardRecord { lock, task, fence, hold_token, owner, mode, is_multi, hold, lock_delay },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::CheckContext;
    use crate::checks::fixture::{HOST, LOCK, acquire, context, hold};
    use crate::event::{LeasePolicy, Validity};
    use leasehold_core::{Claim, Kind, OwnValue, OwnerHolds, Release, ReleaseAction};

    const GUARD: GuardId = GuardId(0);
    const FENCE: FencingToken = FencingToken::new(7);

    fn claim(n: u8) -> Claim {
        Claim { hold: hold(n), value: OwnValue::new("host:1").ok() }
    }

    fn enter(n: u8) -> Acquire {
        Acquire { lease_ms: 3_000, ..acquire(claim(n), LockMode::Exclusive) }
    }

    /// A connected process.
    fn with_connections() -> CheckContext {
        let mut context = context(Kind::Reentrant);
        for keeper in [false, true] {
            context.observe(Instant(0), &Event::Host(HOST, HostEvent::LinkUp { keeper }));
        }
        context
    }

    /// The process receives the reply of an acquire.
    fn receive(context: &mut CheckContext, at: Instant, n: u8, count: u64, remaining_ms: u64) {
        let message = u64::from(n);
        let owner_holds = Some(OwnerHolds { count, lease_ms: 3_000 });
        let reply = Acquired::Granted { fence: FENCE, remaining_ms, others_wait: false, owner_holds };
        let (op, reply) = (Op::Acquire(enter(n)), Reply::Acquire(reply));
        context.observe(at, &Event::Sent { host: HOST, message, lock: LOCK, op: &op });
        context.observe(at, &Event::Answered { host: HOST, message, reply: Some(&reply) });
    }

    fn guard_acquired(context: &mut CheckContext, at: Instant, count: u64, until: Instant) {
        acquired_as(GUARD, context, at, count, until);
    }

    fn acquired_as(guard_id: GuardId, context: &mut CheckContext, at: Instant, count: u64, until: Instant) {
        let new_guard = NewGuard {
            fence: FENCE,
            validity: Validity { until },
            lease_policy: LeasePolicy::Given(Duration::from_secs(3)),
            owner: Some(OwnerId(0)),
            mode: LockMode::Exclusive,
            count,
            is_multi: false,
            keep_for: None,
            lock_delay: Duration::ZERO,
        };
        let task = TaskId { host: HOST, number: 0 };
        context.observe(at, &Event::Task(task, LOCK, TaskEvent::Acquired(guard_id, new_guard)));
    }

    /// A process with a guard of its first hold. It has received a second one, which no task took.
    fn with_guard() -> CheckContext {
        let mut context = with_connections();
        receive(&mut context, Instant(0), 1, 1, 3_000);
        guard_acquired(&mut context, Instant(0), 1, Instant(2_900_000));
        receive(&mut context, Instant(0), 2, 2, 3_000);
        assert_eq!(context.guards.hold(GUARD), Some(hold(1)));
        context
    }

    fn task(context: &mut CheckContext, what: TaskEvent) {
        context.observe(Instant(0), &Event::Task(TaskId { host: HOST, number: 0 }, LOCK, what));
    }

    /// The guard's release begins, and the process sends the release of the second hold.
    fn release_guard(context: &mut CheckContext) {
        task(context, TaskEvent::Releasing(GUARD, ReleaseMethod::Release));
        send_release(context, 2);
    }

    fn send_release(context: &mut CheckContext, n: u8) {
        let op =
            Op::Release(Release { claim: claim(n), action: ReleaseAction::Grant, next: None, history: 0 });
        context.observe(Instant(0), &Event::Sent { host: HOST, message: 3, lock: LOCK, op: &op });
    }

    #[test]
    fn the_next_message_shows_which_hold_a_guard_is_for() {
        let mut context = with_guard();
        release_guard(&mut context);
        assert_eq!(context.guards.hold(GUARD), Some(hold(2)));
    }

    /// The first guard was matched with the second's hold. It is dropped, and its own hold is released.
    #[test]
    fn the_release_of_a_dropped_guard_shows_that_two_holds_were_confused() {
        const SECOND: GuardId = GuardId(1);
        let mut context = with_connections();
        for n in [1, 2] {
            receive(&mut context, Instant(0), n, 2, 3_000);
        }
        for guard_id in [GUARD, SECOND] {
            acquired_as(guard_id, &mut context, Instant(0), 2, Instant(2_900_000));
        }
        let matched = |context: &CheckContext| [GUARD, SECOND].map(|guard_id| context.guards.hold(guard_id));
        let before = matched(&context);
        assert!(before == [Some(hold(1)), Some(hold(2))] || before == [Some(hold(2)), Some(hold(1))]);
        task(&mut context, TaskEvent::Releasing(GUARD, ReleaseMethod::Drop));
        send_release(&mut context, if before[1] == Some(hold(1)) { 1 } else { 2 });
        assert_eq!(matched(&context), [before[1], before[0]]);
    }

    #[test]
    fn an_undo_of_the_keeper_is_not_taken_for_a_release_that_waits_for_the_connection() {
        let mut context = with_guard();
        context.observe(Instant(0), &Event::Host(HOST, HostEvent::LinkDown { keeper: false }));
        release_guard(&mut context);
        assert_eq!(context.guards.hold(GUARD), Some(hold(1)));
    }

    #[test]
    fn a_guard_whose_session_ends_first_is_not_matched_with_a_hold_that_ends_even_earlier() {
        let mut context = with_connections();
        // The first try was granted, and its reply lost. A message that repeats it says how long it still lasts.
        receive(&mut context, Instant(0), 2, 2, 3_000);
        receive(&mut context, Instant(1_000), 1, 2, 450);
        guard_acquired(&mut context, Instant(1_000), 2, Instant(1_500_000));
        assert_eq!(context.guards.hold(GUARD), Some(hold(2)));
    }
}
