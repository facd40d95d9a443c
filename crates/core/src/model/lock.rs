//! Exclusive locks: one holder, a queue, a grant. A Mutex, an Election, whose holder leads, or a
//! ReentrantMutex, whose holder is an owner that may have several holds. They differ only in the value at the
//! key. Shared locks are in `shared.rs`.
//!
//! 1. A hold is extended, released or evicted only where its claim is found: as the value at the key and, for
//!    a user-defined value, as the hold in the record.
//! 2. A lock that is found free goes to the first live entry of the queue, whichever operation found it free.
//! 3. The way in which a hold ended is recorded, so that a second release gets the reply "released".
//! 4. Only an operation that checks a session in the same step treats it as dead, and removes only what lives
//!    with that session.
//! 5. Expired holds of a ReentrantMutex no longer count, but remain at the key until an operation writes: an
//!    operation that only reads writes nothing.
//! 6. A lock that rests is taken without a holder: the value at its key belongs to no claim, so that no
//!    operation for the previous hold extends or ends the rest.

use super::audit::Audit;
use super::record::{MAX_INSPECTED_ENTRIES, QueueEntryId, Record, RecordedHolder, Reserved, SHORT_LEASE_MS};
use super::reentrant_holds::{ReentrantHold, ReentrantHolds};
use super::session::{SessionLookup, SessionStatus, all_alive};
use super::shared_holders::SharedHolders;
use crate::machine::cohort::{Reserve, TokenBlock};
use crate::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Evict, Evicted, Extend, Extended, FenceRaised, FencingToken,
    Fingerprint, ForceRelease, ForceReleased, HoldId, HoldStatus, Holder, Inspect, Inspection, Kind, Label,
    Liveness, LockMode, MultiAcquired, Notification, ObservedHolder, Op, OwnValue, OwnerHolds, Predecessor,
    RaiseFence, Refused, Release, ReleaseAction, Released, Reply, SessionId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One lock.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{Acquire, Acquired, Claim, HoldId, Label, Liveness, Op, LockMode, Reply, SessionId};
///
/// let request = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let label = Label::new("a worker").expect("a short text is a label");
///     let (liveness, predecessor, mode) = (Liveness::Session { alive_ms: 10_000 }, None, LockMode::Exclusive);
///     Op::Acquire(Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, liveness, predecessor, mode })
/// };
/// let granted = |reply| matches!(reply, Reply::Acquire(Acquired::Granted { .. }));
///
/// let mut lock = LockState::default();
/// let second = 1_000_000; // in microseconds of the store's clock
/// assert!(granted(lock.apply(second, &request(1), &all_alive).0));
/// assert!(granted(lock.apply(2 * second, &request(1), &all_alive).0)); // the same hold again changes nothing
/// assert!(!granted(lock.apply(3 * second, &request(2), &all_alive).0));
/// assert!(granted(lock.apply(9 * second, &request(2), &all_alive).0)); // the first one's lease has ended
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// The kind of the lock.
    pub kind: Kind,
    /// The value at the lock's key.
    pub value: Option<Value>,
    /// The record beside it.
    pub record: Option<Record>,
    /// The evictions and forced releases of the lock.
    pub audit: Option<Audit>,
}

/// The value at a lock's key.
///
/// Part of [`LockState`]; see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The content, by its type.
    pub content: Content,
    /// When it expires, in milliseconds of the store's clock; `None` if it never does.
    pub expires_ms: Option<u64>,
}

impl Value {
    /// Whether it may be gone before `until_ms`, in milliseconds of the store's clock.
    fn ends_before(&self, until_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at_ms| at_ms < until_ms)
    }

    /// The value as locks of other kinds see it: only its type.
    #[must_use]
    pub fn type_only(&self) -> Self {
        Self { content: Content::Other(self.content.type_name().to_owned()), expires_ms: self.expires_ms }
    }
}

/// The content at a lock's key, by its type.
///
/// Part of [`LockState`]; see there for an example.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// The token of a Mutex.
    Token(String),
    /// The holds of a ReentrantMutex.
    #[serde(rename = "Entries")]
    ReentrantHolds(ReentrantHolds),
    /// The holds of a shared lock.
    #[serde(rename = "Parts")]
    SharedHolders(SharedHolders),
    /// A value of another type.
    Other(String),
}

impl Content {
    /// The token of a Mutex.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::ReentrantHolds(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a ReentrantMutex.
    pub fn reentrant_holds(&self) -> Option<&ReentrantHolds> {
        match self {
            Self::ReentrantHolds(entries) => Some(entries),
            Self::Token(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a shared lock.
    pub fn shared_holders(&self) -> Option<&SharedHolders> {
        match self {
            Self::SharedHolders(shared) => Some(shared),
            Self::Token(_) | Self::ReentrantHolds(_) | Self::Other(_) => None,
        }
    }

    /// Its type, as Redis calls it.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Token(_) => "string",
            Self::ReentrantHolds(_) | Self::SharedHolders(_) => "hash",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Debug for Content {
    /// Does not show a token: a client that knows it can end the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(…)"),
            Self::ReentrantHolds(entries) => entries.fmt(f),
            Self::SharedHolders(shared) => shared.fmt(f),
            Self::Other(word) => f.debug_tuple("Other").field(word).finish(),
        }
    }
}

/// The store's time, read once per operation.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) us: u64,
    pub(super) ms: u64,
}

impl LockState {
    /// A lock of that kind without any state.
    pub fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Executes one operation at `now_us` microseconds of the store's clock. `alive` looks up sessions.
    pub fn apply(&mut self, now_us: u64, op: &Op, alive: SessionLookup<'_>) -> (Reply, Vec<Notification>) {
        // Without an owner, the hold id would become the owner, which every client can see.
        if let Some(refused) = op.refusal_for(self.kind) {
            return (Reply::Refused(refused), Vec::new());
        }
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        let stored = self.value.clone();
        self.drop_expired_holds(now);
        let found = self.value.clone();
        let mut notifications = Vec::new();
        let reply = match op {
            Op::Acquire(request) => self.acquire(now, request, alive, &mut notifications).map(Reply::Acquire),
            Op::Extend(extend) => Ok(Reply::Extend(self.extend(now, extend))),
            Op::Release(release) => Ok(Reply::Release(self.release(now, release, &mut notifications))),
            Op::Inspect(inspect) => self.inspect(now, inspect).map(Reply::Inspect),
            Op::Evict(evict) => self.evict(now, evict, alive, &mut notifications).map(Reply::Evict),
            Op::ForceRelease(force_release) => {
                self.force_release(now, force_release, &mut notifications).map(Reply::ForceRelease)
            }
            Op::Resize(resize) => self.resize(now, *resize, &mut notifications).map(Reply::Resize),
            Op::RaiseFence(raise_fence) => Ok(Reply::RaiseFence(self.raise_fence(now, raise_fence))),
        };
        let too_soon = matches!((op, &reply), (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended | Extended::Reserved { .. })))
            if stored.as_ref().is_some_and(|stored| stored.ends_before(now.ms + extend.lease_ms)));
        match (op, &reply) {
            (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended))) if self.kind.is_shared() => {
                self.extend_shared(now, extend, stored);
            }
            // A client of another library may have moved the key's expiry closer than the holds require.
            _ if self.value == found && !too_soon => self.value = stored,
            _ => {}
        }
        (reply.unwrap_or_else(Reply::Refused), notifications)
    }

    /// Acquires all of several locks, or none of them. It does not queue, and passes no waiter: a free lock
    /// that others wait for stays theirs.
    pub fn acquire_all(locks: &mut [(&mut Self, &Acquire)], now_us: u64) -> Vec<MultiAcquired> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        let probe = |(state, request): &mut (&mut Self, &Acquire)| {
            state.expire(now);
            // Expired entries are not dropped unless the operation writes.
            let mut seen = state.clone();
            seen.drop_expired_holds(now);
            seen.probe(now, request)
        };
        let shares: Vec<_> = locks.iter_mut().map(probe).collect();
        if shares.iter().any(|share| matches!(share, MultiAcquired::Blocked(_))) {
            return shares;
        }
        let take = |(state, request): &mut (&mut Self, &Acquire)| {
            let (reply, _) = state.apply(
                now_us,
                &Op::Acquire(Acquire { queue: None, predecessor: None, ..(*request).clone() }),
                &all_alive,
            );
            match reply {
                Reply::Acquire(acquired) => MultiAcquired::Acquired(acquired),
                Reply::Refused(refused) => MultiAcquired::Blocked(Err(refused)),
                _ => MultiAcquired::Available,
            }
        };
        locks.iter_mut().map(take).collect()
    }

    /// Whether a lock could be acquired.
    fn probe(&self, now: Now, request: &Acquire) -> MultiAcquired {
        if self.kind.is_shared() || !request.mode.applies_to(self.kind) {
            // Shared locks cannot be acquired together with others.
            return MultiAcquired::Blocked(Err(Refused::Unsupported));
        }
        if let Err(refused) = self.refuse_other_types() {
            return MultiAcquired::Blocked(Err(refused));
        }
        if let Some(how) = self.ended(&request.claim.hold) {
            return MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(how)));
        }
        if self.is_held_by(&request.claim) {
            return MultiAcquired::Held;
        }
        let awaited = || self.record.as_ref().is_some_and(|record| record.has_live_entry(now.ms));
        if self.owner_holds_of(&request.claim).is_some() || (self.value.is_none() && !awaited()) {
            return MultiAcquired::Available;
        }
        let predecessor = self.predecessor(request, None);
        let (holder, other_holders) = (self.holder(now), Vec::new());
        MultiAcquired::Blocked(Ok(Acquired::Taken { holder, position: None, predecessor, other_holders }))
    }

    /// Ends the hold and the queue entries of a dead session, and returns the fencing token of its hold and
    /// whether it had an entry (4). For a store that tracks dead sessions itself. The next operation that
    /// finds the lock free grants it.
    pub fn evict_session(
        &mut self,
        now_us: u64,
        dead: SessionId,
        by: &Label,
    ) -> (Option<FencingToken>, bool) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.drop_expired_holds(now);
        let lives =
            |liveness: Liveness, hold: &HoldId| liveness.ends_with_session() && hold.session() == dead;
        let fence = self.end_holds(now, Ended::Evicted, by, |liveness, hold| lives(liveness, hold));
        let entry = self.record.as_mut().is_some_and(|record| {
            let of_it: Vec<_> = record
                .tickets
                .values()
                .filter(|id| id.session() == dead)
                .filter_map(|id| Some((*id, record.entries.get(id)?)))
                .take(MAX_INSPECTED_ENTRIES)
                .filter(|(_, entry)| lives(entry.liveness, &entry.claim.hold))
                .map(|(id, _)| id)
                .collect();
            // Removes all of its entries, not only the first; but a session with very many entries takes
            // several steps.
            of_it.into_iter().filter_map(|id| record.remove(id)).count() > 0
        });
        (fence, entry)
    }

    /// Ends the holds for which `ends` is true, on behalf of a client other than their holders; returns the
    /// fencing token of the first, if there are any.
    pub(super) fn end_holds(
        &mut self,
        now: Now,
        ended: Ended,
        by: &Label,
        ends: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        if self.kind.is_shared() {
            return self.end_shared_holds(now, ended, by, ends);
        }
        let mut lost = self.recorded_holders();
        lost.retain(|recorded| ends(recorded.liveness, &recorded.claim.hold));
        let first = lost.first()?;
        let fence = self.fence();
        self.retain_reentrant_holds(now, |entry| !ends(entry.liveness, &entry.hold));
        if let Some(record) = &mut self.record {
            for recorded in &lost {
                record.ended.push(recorded.claim.hold, ended);
            }
        }
        let holder = Some(first.label.clone());
        let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: by.clone() };
        Audit::push(&mut self.audit, entry);
        fence
    }

    /// Keeps the holds of a ReentrantMutex for which `keep` is true, and nothing of a Mutex. The lock is
    /// free if none is left. If only Leasehold's holds are left, the key lasts no longer than the last of
    /// them, so that clients of other libraries do not wait for those that are gone.
    fn retain_reentrant_holds(&mut self, now: Now, keep: impl Fn(&ReentrantHold) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| match content {
            Content::ReentrantHolds(entries) => {
                entries.retain(keep);
                if entries.is_ours_alone() {
                    // A key must not expire in the current millisecond: Redis would treat it as gone.
                    *expires_ms = entries.until_ms().map(|until_ms| until_ms.max(now.ms + 1));
                }
                entries.count == 0
            }
            Content::Token(_) | Content::SharedHolders(_) | Content::Other(_) => true,
        });
    }

    /// Drops expired entries.
    fn drop_expired_holds(&mut self, now: Now) {
        if self.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_some()) {
            self.retain_reentrant_holds(now, |entry| entry.until_ms >= now.ms);
        }
        self.retain_shared_holds(now, |held| held.until_ms >= now.ms);
    }

    /// The sessions that hold the lock, or held it last: a store that tracks dead sessions checks these.
    pub fn holder_sessions(&self) -> Vec<SessionId> {
        let mut holder_sessions: Vec<_> = match (self.reentrant_holds(), self.shared_holders()) {
            (Some(entries), _) => entries.holds.iter().map(|entry| entry.hold.session()).collect(),
            (_, Some(shared)) => shared.holds.iter().map(|held| held.hold.session()).collect(),
            _ => self.last_holder().map(|recorded| recorded.claim.hold.session()).into_iter().collect(),
        };
        holder_sessions.sort_unstable();
        holder_sessions.dedup();
        holder_sessions
    }

    /// The sessions that wait for the lock, from the front of the queue: such a store checks these as well.
    pub fn waiter_sessions(&self) -> impl Iterator<Item = SessionId> {
        self.record.iter().flat_map(|record| record.tickets.values().map(QueueEntryId::session))
    }

    /// Executes an operation on a lock whose key has a value of another kind.
    pub fn apply_to_occupied_key(
        &mut self,
        other: &Value,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        self.value = Some(other.type_only());
        let applied = self.apply(now_us, op, alive);
        self.value = None;
        applied
    }

    /// The value at the lock's key at `now_us`, for locks of other kinds.
    pub fn value_at(&mut self, now_us: u64) -> Option<&Value> {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.as_ref()
    }

    /// The sessions that hold the lock at `now_us`, whatever ends the holds.
    pub fn holders_at(&mut self, now_us: u64) -> Vec<SessionId> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        self.drop_expired_holds(now);
        if self.first_holder().is_some() && !self.in_cooldown() { self.holder_sessions() } else { Vec::new() }
    }

    /// Whether no state is left at `now_us`.
    pub fn is_empty_at(&mut self, now_us: u64) -> bool {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.is_none() && self.record.is_none() && self.audit.is_none()
    }

    fn expire(&mut self, now: Now) {
        // As in Redis, a value still exists in the millisecond in which it expires.
        self.value.take_if(|value| value.expires_ms.is_some_and(|at_ms| now.ms > at_ms));
        self.record.take_if(|record| now.ms > record.expires_ms);
        self.audit.take_if(|audit| now.ms > audit.expires_ms);
    }

    /// An acquire by itself, which may name its predecessor.
    fn acquire(
        &mut self,
        now: Now,
        request: &Acquire,
        alive: SessionLookup<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, request)? {
            return Ok(settled);
        }
        let alive_ms = request.predecessor.and_then(|predecessor| {
            let alive_ms = self.alive_ms(now, predecessor, alive);
            if alive_ms.is_none() {
                self.evict_session(now.us, predecessor, &request.label);
            }
            alive_ms.map(|alive_ms| (predecessor, alive_ms))
        });
        let mut acquired = if self.kind.is_shared() {
            self.acquire_shared(now, request, alive_ms.map(|(asked, _)| asked), notifications)?
        } else {
            self.acquire_exclusive(now, request, notifications)?
        };
        if let Acquired::Taken { predecessor: Some(predecessor), .. } = &mut acquired {
            predecessor.alive_ms =
                alive_ms.filter(|(asked, _)| *asked == predecessor.session).map(|(_, alive_ms)| alive_ms);
        }
        Ok(acquired)
    }

    /// How long a session counts as alive. An unknown session counts as alive for as long as its client may
    /// rely on the hold that it has here.
    fn alive_ms(&self, now: Now, session: SessionId, alive: SessionLookup<'_>) -> Option<u64> {
        match alive(session) {
            SessionStatus::Alive(alive_ms) => Some(alive_ms),
            SessionStatus::Lapsed => None,
            SessionStatus::Unknown => {
                let doubted =
                    self.recorded_holders().into_iter().filter_map(|recorded| match recorded.liveness {
                        Liveness::Session { alive_ms } if recorded.claim.hold.session() == session => {
                            recorded.since_ms.saturating_add(alive_ms).checked_sub(now.ms)
                        }
                        _ => None,
                    });
                doubted.max()
            }
        }
    }

    fn evict(
        &mut self,
        now: Now,
        evict: &Evict,
        alive: SessionLookup<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Evicted, Refused> {
        self.refuse_other_types()?;
        if self.alive_ms(now, evict.session, alive).is_some() {
            return Ok(Evicted::Alive);
        }
        let (fence, was_queued) = self.evict_session(now.us, evict.session, &evict.actor);
        self.serve_queue(now, notifications);
        Ok(Evicted::Removed { fence, was_queued })
    }

    fn force_release(
        &mut self,
        now: Now,
        force_release: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> Result<ForceReleased, Refused> {
        self.refuse_other_types()?;
        if self.kind.is_shared() {
            return Ok(self.force_release_shared(now, force_release, notifications));
        }
        let fence = self.fence();
        match force_release.observed {
            ObservedHolder::Hold(seen) if fence == Some(seen) => {
                // Each session once, oldest first: a script has no other order.
                let told: Vec<_> =
                    self.recorded_holders().iter().map(|recorded| recorded.claim.hold.session()).collect();
                let first = told.iter().enumerate().filter(|(at, to)| !told[..*at].contains(to));
                notifications
                    .extend(first.map(|(_, to)| Notification::ForceReleased { to: *to, fence: seen }));
                self.end_holds(now, Ended::ForceReleased, &force_release.actor, |_, _| true);
                // A client of another library may have another hold of the same owner.
                self.value = None;
            }
            ObservedHolder::Foreign(fingerprint) if self.foreign_fingerprint() == Some(fingerprint) => {
                self.value = None;
                let (ended, actor) = (Ended::ForceReleased, force_release.actor.clone());
                Audit::push(
                    &mut self.audit,
                    AuditEntry { at_ms: now.ms, ended, fence: None, holder: None, actor },
                );
            }
            _ => return Ok(ForceReleased::Changed { holder: self.holder(now) }),
        }
        self.grant_next(now, None, notifications);
        Ok(ForceReleased::Released)
    }

    fn acquire_exclusive(
        &mut self,
        now: Now,
        request: &Acquire,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, request)? {
            return Ok(settled);
        }
        if self.value.is_none() && self.grant_next(now, Some(request), notifications) == NextHolder::Requester
        {
            return Ok(self.confirm(now, request));
        }
        // Also where the first waiter has just received the lock: it may have the same owner as this request.
        if self.reenter(now, request) {
            return Ok(self.confirm(now, request));
        }
        // Leasehold's holds have their own ends, and must not lose the key before them.
        let ours = self.reentrant_holds().is_some_and(|entries| !entries.holds.is_empty());
        if let (false, Some(value), Some(adopt_ms)) = (ours, &mut self.value, request.adopt_ms) {
            value.expires_ms.get_or_insert(now.ms + adopt_ms);
        }
        Ok(self.enqueue(now, request, notifications))
    }

    /// The reply for a hold that needs no further step: it has ended, or it exists.
    pub(super) fn settled(&mut self, now: Now, request: &Acquire) -> Result<Option<Acquired>, Refused> {
        self.refuse_other_types()?;
        if let Some(how) = self.ended(&request.claim.hold) {
            return Ok(Some(Acquired::AlreadyEnded(how)));
        }
        Ok(self.is_held_by(&request.claim).then(|| self.confirm(now, request)))
    }

    /// Queues, if requested, and reports the holder.
    fn enqueue(&mut self, now: Now, request: &Acquire, notifications: &mut Vec<Notification>) -> Acquired {
        let position = request.queue.as_ref().map(|queue| {
            let ttl_ms = queue.ttl_ms;
            let id = QueueEntryId::of(self.kind, &request.claim.hold);
            self.record_or_new(now, ttl_ms).enqueue(now.ms, id, request, queue)
        });
        notifications.extend(self.notify_wanted(request));
        let predecessor = self.predecessor(request, position);
        Acquired::Taken { holder: self.holder(now), position, predecessor, other_holders: Vec::new() }
    }

    /// Notifies the holder that another session requests the lock, if it subscribed to that.
    fn notify_wanted(&self, request: &Acquire) -> Option<Notification> {
        let fence = self
            .record
            .as_ref()
            .filter(|record| record.notifies_wanted())
            .and_then(|record| record.last_fence)?;
        let to = self.last_holder().filter(|recorded| self.is_held_by(&recorded.claim))?.claim.hold.session();
        (to != request.claim.hold.session()).then_some(Notification::Wanted { to, fence })
    }

    /// The session directly ahead of this request, if its hold or entry ends with the session.
    fn predecessor(&self, request: &Acquire, position: Option<u64>) -> Option<Predecessor> {
        let queue = self.record.as_ref().filter(|_| position.is_some());
        let before =
            queue.and_then(|record| record.predecessor(QueueEntryId::of(self.kind, &request.claim.hold)));
        let (liveness, hold) = if let Some(entry) = before {
            (entry.liveness, entry.claim.hold)
        } else {
            let recorded = self.first_holder()?;
            (recorded.liveness, recorded.claim.hold)
        };
        liveness.ends_with_session().then(|| Predecessor { session: hold.session(), alive_ms: None })
    }

    /// Adds a hold where the owner already holds the lock: past the queue, and with the same fencing token
    /// (R4, R10).
    fn reenter(&mut self, now: Now, request: &Acquire) -> bool {
        let Some(entries) = self.owner_holds_of(&request.claim) else { return false };
        let recorded = RecordedHolder::from_request(now.ms, request);
        // So far, only a client of another library holds it.
        let fence =
            entries.fence.unwrap_or_else(|| self.record_holder(now, recorded.clone(), request.lease_ms));
        if let Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) = &mut self.value {
            entries.add(recorded, fence, request.lease_ms);
            *expires_ms = (*expires_ms).max(entries.until_ms());
        }
        if let Some(record) = &mut self.record {
            record.refresh_expiry(now.ms, request.lease_ms);
            if record.has_entry(self.kind, &request.claim.hold) {
                record.remove(QueueEntryId::of(self.kind, &request.claim.hold));
            }
        }
        true
    }

    /// The hold exists: reports it, and completes what an interrupted script may have left undone.
    pub(super) fn confirm(&mut self, now: Now, request: &Acquire) -> Acquired {
        let others_wait = self.record.as_ref().is_some_and(Record::has_entries);
        if let Some(held) = self.shared_hold(&request.claim.hold) {
            let (fence, remaining_ms) = (held.fence, held.until_ms - now.ms);
            return Acquired::Granted { fence, remaining_ms, others_wait, owner_holds: None };
        }
        if let Some(entries) = self.reentrant_holds() {
            let until_ms = entries.find(&request.claim.hold).map_or(now.ms, |entry| entry.until_ms);
            return Acquired::Granted {
                fence: entries.fence.unwrap_or(FencingToken::new(0)),
                remaining_ms: until_ms - now.ms,
                others_wait,
                owner_holds: Some(OwnerHolds { count: entries.count, lease_ms: entries.lease_ms }),
            };
        }
        let known = self.last_holder().is_some_and(|recorded| recorded.claim == request.claim);
        let last = self.record.as_ref().and_then(|record| record.last_fence).filter(|_| known);
        let fence = last.unwrap_or_else(|| {
            self.record_holder(now, RecordedHolder::from_request(now.ms, request), request.lease_ms)
        });
        let mut expires_ms = now.ms + request.lease_ms;
        if let Some(value) = &mut self.value {
            expires_ms = *value.expires_ms.get_or_insert(expires_ms);
        }
        Acquired::Granted { fence, remaining_ms: expires_ms - now.ms, others_wait, owner_holds: None }
    }

    fn extend(&mut self, now: Now, extend: &Extend) -> Extended {
        if !self.is_held_by(&extend.claim) {
            return Extended::NotHeld;
        }
        let until_ms = now.ms + extend.lease_ms;
        if let Some(value) = &mut self.value {
            if value.ends_before(until_ms) {
                value.expires_ms = Some(until_ms);
            }
            match &mut value.content {
                Content::ReentrantHolds(entries) => {
                    entries.extend(&extend.claim.hold, now.ms, extend.lease_ms);
                }
                // A hold of a shared lock is extended where the other values at the key are known, too.
                Content::SharedHolders(_) | Content::Token(_) | Content::Other(_) => {}
            }
        }
        if extend.keep_record
            && let Some(record) = &mut self.record
        {
            record.refresh_expiry(now.ms, extend.lease_ms);
        }
        let reserved = extend.reserve.and_then(|reserve| self.reserve(now, &extend.claim, reserve));
        reserved.unwrap_or(Extended::Extended)
    }

    /// Raises the fencing token of a hold, and never lowers it (1). All holds of an owner share one token.
    fn raise_fence(&mut self, now: Now, raise_fence: &RaiseFence) -> FenceRaised {
        let known = || self.last_holder().is_some_and(|recorded| recorded.claim == raise_fence.claim);
        let entries = self.reentrant_holds().is_some();
        if !self.is_held_by(&raise_fence.claim) || !(entries || known()) {
            return FenceRaised::NotHeld;
        }
        let Some(record) = &mut self.record else { return FenceRaised::NotHeld };
        record.last_fence = record.last_fence.max(Some(raise_fence.fence));
        record.refresh_expiry(now.ms, 0);
        if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut self.value {
            entries.fence = entries.fence.max(Some(raise_fence.fence));
        }
        FenceRaised::Raised
    }

    /// Reserves fencing tokens for a hold that is known to be the last granted one.
    fn reserve(&mut self, now: Now, claim: &Claim, reserve: Reserve) -> Option<Extended> {
        let record = self.record.as_mut()?;
        record.last_holder.as_ref().filter(|recorded| recorded.claim == *claim)?;
        record.last_fence?;
        let notify_wanted = reserve.notify_wanted || record.notifies_wanted();
        let (block, last_fence) = TokenBlock::after(record.greatest_fence(), now.us, reserve.tokens);
        record.reserved = Some(Reserved { last_fence, notify_wanted });
        Some(Extended::Reserved { block, others_wait: record.has_entries() })
    }

    fn release(&mut self, now: Now, release: &Release, notifications: &mut Vec<Notification>) -> Released {
        if self.kind.is_shared() {
            return self.release_shared(now, release, notifications);
        }
        let hold = release.claim.hold;
        let status = self.hold_status(&release.claim);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let rest_ms = if status == HoldStatus::Held { self.begin_cooldown(now, release) } else { None };
        if status == HoldStatus::Held {
            if rest_ms.is_none() {
                self.retain_reentrant_holds(now, |entry| entry.hold != hold);
            }
            let record = self.record_or_new(now, 0);
            record.ended.push(hold, Ended::Released);
            if let Some(rest_ms) = rest_ms {
                record.refresh_expiry(now.ms, rest_ms);
            }
        }
        if let Some(record) = &mut self.record
            && record.has_entry(self.kind, &hold)
        {
            record.remove(QueueEntryId::of(self.kind, &hold));
        }
        // A repeated release reports it as well: the reply to the first may have been lost.
        let remaining_holds = self.owner_holds_of(&release.claim).map_or(0, |entries| entries.count);
        let grants = !matches!(release.action, ReleaseAction::Free | ReleaseAction::FreeAndPublish)
            && rest_ms.is_none();
        let next = match (&release.next, grants) {
            (Some(next), true) => Some(self.acquire_exclusive(now, next, notifications)),
            (Some(next), false) => {
                // The request may arrive for the second time: the hold may have been granted since, and
                // ended.
                Some(self.settled(now, next).map(|settled| match settled {
                    Some(settled) => settled,
                    None if self.reenter(now, next) => self.confirm(now, next),
                    None => self.enqueue(now, next, notifications),
                }))
            }
            (None, true) => {
                if self.value.is_none() {
                    self.grant_next(now, None, notifications);
                }
                None
            }
            (None, false) => None,
        };
        Released { status, remaining_holds, holder, next }
    }

    /// Leaves the released lock taken without a holder, if it is to rest; returns for how much longer (6).
    fn begin_cooldown(&mut self, now: Now, release: &Release) -> Option<u64> {
        let ReleaseAction::Cooldown { for_ms } = release.action else { return None };
        let known = self.last_holder().is_some_and(|recorded| recorded.claim.hold == release.claim.hold);
        let since_ms = self.last_holder().filter(|_| known).map_or(now.ms, |recorded| recorded.since_ms);
        let until_ms = since_ms.saturating_add(for_ms);
        let rest_ms = until_ms.checked_sub(now.ms).filter(|rest_ms| *rest_ms > 0)?;
        let last = self.record.as_ref().and_then(|record| record.last_fence).filter(|_| known);
        self.value = Some(Value {
            content: Content::Token(self.kind.cooldown_token(last)),
            expires_ms: Some(until_ms),
        });
        Some(rest_ms)
    }

    /// Whether the lock rests after its last hold.
    fn in_cooldown(&self) -> bool {
        let last = self
            .record
            .as_ref()
            .filter(|record| record.last_holder.is_some())
            .and_then(|record| record.last_fence);
        let value_at = self.value.as_ref().and_then(|value| value.content.token());
        last.is_some() && value_at.is_some_and(|value_at| *value_at == self.kind.cooldown_token(last))
    }

    fn inspect(&self, now: Now, inspect: &Inspect) -> Result<Inspection, Refused> {
        self.refuse_other_types()?;
        let entries = self.record.iter().flat_map(|record| record.entries.values());
        Ok(Inspection {
            holder: self.holder(now),
            waiters: entries.filter(|entry| entry.expires_ms >= now.ms).count() as u64,
            hold_status: inspect.claim.as_ref().map(|claim| self.hold_status(claim)),
            foreign_fingerprint: inspect.details.then(|| self.foreign_fingerprint()).flatten(),
            audit: self
                .audit
                .iter()
                .filter(|_| inspect.details)
                .flat_map(|audit| audit.entries.clone())
                .collect(),
            shared_holders: self.all_holders(now),
            limit: self.record.as_ref().and_then(|record| record.limit),
        })
    }

    /// Serves the queue of a lock that has room, or is free.
    fn serve_queue(&mut self, now: Now, notifications: &mut Vec<Notification>) {
        if self.kind.is_shared() {
            self.serve_shared_queue(now, None, notifications);
        } else if self.value.is_none() {
            self.grant_next(now, None, notifications);
        }
    }

    /// Grants the free lock to the first live entry, or to the request if none is before it.
    fn grant_next(
        &mut self,
        now: Now,
        requester: Option<&Acquire>,
        notifications: &mut Vec<Notification>,
    ) -> NextHolder {
        for _ in 0..MAX_INSPECTED_ENTRIES {
            let Some(entry) = self.record.as_mut().and_then(Record::pop_first) else { break };
            let session = entry.claim.hold.session();
            if let Some(request) = requester
                && session == request.claim.hold.session()
                // The entry represents all waiters of the process. A request that does not queue is an
                // additional one.
                && (request.queue.is_some() || entry.claim.hold == request.claim.hold)
            {
                self.grant(now, RecordedHolder::from_request(now.ms, request), request.lease_ms);
                return NextHolder::Requester;
            }
            if entry.expires_ms < now.ms {
                continue;
            }
            let (nonce, lease_ms) = (entry.nonce, entry.lease_ms);
            let fence = self.grant(now, RecordedHolder::from_entry(now.ms, entry), lease_ms);
            notifications.push(Notification::Grant { to: session, nonce, fence });
            return NextHolder::Another;
        }
        if self.record.as_ref().is_some_and(Record::has_entries) {
            return NextHolder::None;
        }
        let Some(request) = requester else { return NextHolder::None };
        self.grant(now, RecordedHolder::from_request(now.ms, request), request.lease_ms);
        NextHolder::Requester
    }

    /// Makes the recorded the holder of the free lock.
    fn grant(&mut self, now: Now, recorded: RecordedHolder, lease_ms: u64) -> FencingToken {
        let (token, first) = (recorded.claim.token(), recorded.clone());
        let fence = self.record_holder(now, recorded, lease_ms);
        let content = match (self.kind, OwnValue::new(&token)) {
            (Kind::Reentrant, Ok(owner)) => {
                Content::ReentrantHolds(ReentrantHolds::new(first, owner, fence, lease_ms))
            }
            _ => Content::Token(self.kind.token(&first.claim)),
        };
        self.value = Some(Value { content, expires_ms: Some(now.ms + lease_ms) });
        fence
    }

    /// Writes a new holder and its fencing token into the record.
    fn record_holder(&mut self, now: Now, recorded: RecordedHolder, lease_ms: u64) -> FencingToken {
        let record = self.record_or_new(now, lease_ms);
        let fence = FencingToken::after(record.greatest_fence(), now.us);
        let raised = Record::is_refreshed_by(record.last_fence.replace(fence), fence);
        record.last_holder = Some(recorded);
        if !raised || lease_ms >= SHORT_LEASE_MS {
            record.expires_ms = Record::expiry_ms(record.last_fence, now.ms, lease_ms);
        }
        fence
    }

    pub(super) fn record_or_new(&mut self, now: Now, lease_ms: u64) -> &mut Record {
        self.record.get_or_insert_with(|| Record::new(Record::expiry_ms(None, now.ms, lease_ms)))
    }

    pub(super) fn refuse_other_types(&self) -> Result<(), Refused> {
        let found = self.value.as_ref().map(|value| &value.content);
        match (self.kind, found) {
            (_, None) | (Kind::Reentrant, Some(Content::ReentrantHolds(_))) => Ok(()),
            (kind, Some(Content::Token(token))) if kind.matches_token(token) => Ok(()),
            (kind, Some(Content::SharedHolders(_))) if kind.is_shared() => Ok(()),
            (_, Some(content)) => Err(Refused::WrongKind { found: content.type_name().to_owned() }),
        }
    }

    /// The holds of a ReentrantMutex.
    fn reentrant_holds(&self) -> Option<&ReentrantHolds> {
        self.value.as_ref()?.content.reentrant_holds()
    }

    /// The holds of a ReentrantMutex, if the claim has the same owner.
    fn owner_holds_of(&self, claim: &Claim) -> Option<&ReentrantHolds> {
        self.reentrant_holds().filter(|entries| entries.owner.as_str() == claim.token())
    }

    /// The holder, if it uses Leasehold; the oldest hold, where there are several.
    fn first_holder(&self) -> Option<RecordedHolder> {
        match (self.reentrant_holds(), self.shared_holders()) {
            (Some(entries), _) => entries.recorded_holders().next(),
            (_, Some(shared)) => shared.recorded_holders().next(),
            // A rest does not end with any session.
            _ if self.in_cooldown() => self
                .last_holder()
                .map(|recorded| RecordedHolder { liveness: Liveness::Lease, ..recorded.clone() }),
            _ => self.last_holder().filter(|recorded| self.is_held_by(&recorded.claim)).cloned(),
        }
    }

    /// All holders that use Leasehold: several holds of one owner, or all holds of a shared lock.
    pub(super) fn recorded_holders(&self) -> Vec<RecordedHolder> {
        match (self.reentrant_holds(), self.shared_holders()) {
            (Some(entries), _) => entries.recorded_holders().collect(),
            (_, Some(shared)) => shared.recorded_holders().collect(),
            _ => self.first_holder().into_iter().collect(),
        }
    }

    /// The fencing token of the holder, if it uses Leasehold.
    fn fence(&self) -> Option<FencingToken> {
        match self.reentrant_holds() {
            Some(entries) => entries.fence,
            None => self.first_holder().and(self.record.as_ref()).and_then(|record| record.last_fence),
        }
    }

    fn last_holder(&self) -> Option<&RecordedHolder> {
        self.record.as_ref().and_then(|record| record.last_holder.as_ref())
    }

    pub(super) fn ended(&self, hold: &HoldId) -> Option<Ended> {
        let record = self.record.as_ref()?;
        // An interrupted script may have left the lock resting before it recorded the end of the hold.
        let in_cooldown =
            || self.last_holder().is_some_and(|recorded| recorded.claim.hold == *hold) && self.in_cooldown();
        record.ended.find(hold).or_else(|| in_cooldown().then_some(Ended::Released))
    }

    /// Whether a claim holds the lock (1).
    pub(super) fn is_held_by(&self, claim: &Claim) -> bool {
        let Some(value) = &self.value else { return false };
        if self.kind.is_shared() {
            return self.shared_hold(&claim.hold).is_some();
        }
        match (self.kind, &value.content) {
            (Kind::Reentrant, Content::ReentrantHolds(entries)) => {
                return entries.find(&claim.hold).is_some();
            }
            (kind, Content::Token(token)) if *token == kind.token(claim) => {}
            _ => return false,
        }
        // A client of another library may use the same value as a user of Leasehold, so the value alone
        // proves nothing.
        let known = || self.last_holder().is_some_and(|recorded| recorded.claim == *claim);
        claim.value.is_none() || (known() && self.ended(&claim.hold).is_none())
    }

    pub(super) fn hold_status(&self, claim: &Claim) -> HoldStatus {
        if self.is_held_by(claim) {
            return HoldStatus::Held;
        }
        // A shared lock may have other holders beside those that are gone: none of them took their place.
        let side_by_side = self.kind.is_shared() && self.refuse_other_types().is_ok();
        let Some(record) = &self.record else {
            let others = self.value.is_some() && !side_by_side;
            return if others { HoldStatus::Superseded } else { HoldStatus::Forgotten };
        };
        if record.has_entry(self.kind, &claim.hold) {
            return HoldStatus::Queued;
        }
        if let Some(how) = self.ended(&claim.hold) {
            return HoldStatus::Ended(how);
        }
        if side_by_side {
            return HoldStatus::Vanished;
        }
        if self.owner_holds_of(claim).is_some() {
            // Its owner has other holds of the lock: no other client came after it.
            return HoldStatus::Vanished;
        }
        let last = record.last_holder.as_ref().is_some_and(|recorded| {
            // The first of them represents all holds of an owner.
            let same_owner = self.kind == Kind::Reentrant && recorded.claim.value == claim.value;
            recorded.claim.hold == claim.hold || same_owner
        });
        match (&self.value, last, &record.last_holder) {
            (None, true, _) => HoldStatus::Vanished,
            (None, false, None) => HoldStatus::Forgotten,
            _ => HoldStatus::Superseded,
        }
    }

    /// The holder, as far as other clients may know.
    pub(super) fn holder(&self, now: Now) -> Option<Holder> {
        let value = self.value.as_ref()?;
        if let Some(shared) = self.shared_holders() {
            return shared.holds.first().map(|held| held.holder(now.ms));
        }
        let entries = self.reentrant_holds();
        let recorded = self.first_holder();
        Some(Holder {
            owner: entries.map(|entries| entries.owner.clone()),
            count: entries.map_or(1, |entries| entries.count),
            remaining_ms: value.expires_ms.map(|at_ms| at_ms - now.ms),
            fence: self.fence(),
            since_ms: recorded.as_ref().map(|recorded| recorded.since_ms),
            session: recorded
                .as_ref()
                .filter(|recorded| recorded.liveness.ends_with_session())
                .map(|recorded| recorded.claim.hold.session()),
            in_cooldown: self.in_cooldown(),
            label: recorded.map(|recorded| recorded.label),
            mode: LockMode::Exclusive,
        })
    }

    /// The fingerprint of the value at the key, if a client of another library put it there.
    fn foreign_fingerprint(&self) -> Option<Fingerprint> {
        let value_at = match &self.value.as_ref()?.content {
            Content::Token(token) => token,
            Content::ReentrantHolds(entries) => entries.owner.as_str(),
            Content::SharedHolders(_) | Content::Other(_) => return None,
        };
        self.first_holder().is_none().then(|| Fingerprint::of(value_at))
    }
}

/// The receiver of a lock that was found free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextHolder {
    Requester,
    Another,
    None,
}
