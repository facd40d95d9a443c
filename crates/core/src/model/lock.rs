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
use super::entries::{Entries, Entry};
use super::record::{LOOKS_AT_MOST, QueueEntryId, Record, RecordedHolder, Reserved, SHORT_LEASE_MS};
use super::session::{Alive, SessionStatus, all_alive};
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
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let label = Label::new("a worker").expect("a short text is a label");
///     let (liveness, predecessor, mode) = (Liveness::Session { alive_ms: 10_000 }, None, LockMode::Exclusive);
///     Op::Acquire(Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, liveness, predecessor, mode })
/// };
/// let granted = |reply| matches!(reply, Reply::Acquire(Acquired::Granted { .. }));
///
/// let mut lock = LockState::default();
/// let second = 1_000_000; // in microseconds of the store's clock
/// assert!(granted(lock.apply(second, &ask(1), &all_alive).0));
/// assert!(granted(lock.apply(2 * second, &ask(1), &all_alive).0)); // the same hold again changes nothing
/// assert!(!granted(lock.apply(3 * second, &ask(2), &all_alive).0));
/// assert!(granted(lock.apply(9 * second, &ask(2), &all_alive).0)); // the first one's lease has ended
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
    pub fn to_others(&self) -> Self {
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
    Entries(Entries),
    /// The holds of a shared lock.
    #[serde(rename = "Parts")] // as in the databases that exist
    SharedHolders(SharedHolders),
    /// A value of another type.
    Other(String),
}

impl Content {
    /// The token of a Mutex.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::Entries(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a ReentrantMutex.
    pub fn entries(&self) -> Option<&Entries> {
        match self {
            Self::Entries(entries) => Some(entries),
            Self::Token(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a shared lock.
    pub fn parts(&self) -> Option<&SharedHolders> {
        match self {
            Self::SharedHolders(parts) => Some(parts),
            Self::Token(_) | Self::Entries(_) | Self::Other(_) => None,
        }
    }

    /// Its type, as Redis calls it.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Token(_) => "string",
            Self::Entries(_) | Self::SharedHolders(_) => "hash",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Debug for Content {
    /// Does not show a token: a client that knows it can end the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(…)"),
            Self::Entries(entries) => entries.fmt(f),
            Self::SharedHolders(parts) => parts.fmt(f),
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
    pub fn apply(&mut self, now_us: u64, op: &Op, alive: Alive<'_>) -> (Reply, Vec<Notification>) {
        // Without an owner, the hold id would become the owner, which every client can see.
        if let Some(refused) = op.refusal_for(self.kind) {
            return (Reply::Refused(refused), Vec::new());
        }
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        let lies = self.value.clone();
        self.drop_over(now);
        let found = self.value.clone();
        let mut notifications = Vec::new();
        let reply = match op {
            Op::Acquire(ask) => self.look(now, ask, alive, &mut notifications).map(Reply::Acquire),
            Op::Extend(extend) => Ok(Reply::Extend(self.extend(now, extend))),
            Op::Release(release) => Ok(Reply::Release(self.release(now, release, &mut notifications))),
            Op::Inspect(inspect) => self.inspect(now, inspect).map(Reply::Inspect),
            Op::Evict(evict) => self.evict(now, evict, alive, &mut notifications).map(Reply::Evict),
            Op::ForceRelease(free) => self.free(now, free, &mut notifications).map(Reply::ForceRelease),
            Op::Resize(resize) => self.resize(now, *resize, &mut notifications).map(Reply::Resize),
            Op::RaiseFence(raise) => Ok(Reply::RaiseFence(self.raise(now, raise))),
        };
        let too_soon = matches!((op, &reply), (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended | Extended::Reserved { .. })))
            if lies.as_ref().is_some_and(|lies| lies.ends_before(now.ms + extend.lease_ms)));
        match (op, &reply) {
            (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended))) if self.kind.is_shared() => {
                self.extend_part(now, extend, lies);
            }
            // A client of another library may have moved the key's expiry closer than the holds require.
            _ if self.value == found && !too_soon => self.value = lies,
            _ => {}
        }
        (reply.unwrap_or_else(Reply::Refused), notifications)
    }

    /// Acquires all of several locks, or none of them. It does not queue, and passes no waiter: a free lock
    /// that others wait for stays theirs.
    pub fn take_all(locks: &mut [(&mut Self, &Acquire)], now_us: u64) -> Vec<MultiAcquired> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        let probe = |(state, ask): &mut (&mut Self, &Acquire)| {
            state.expire(now);
            // Expired entries are not dropped unless the operation writes.
            let mut seen = state.clone();
            seen.drop_over(now);
            seen.probe(now, ask)
        };
        let shares: Vec<_> = locks.iter_mut().map(probe).collect();
        if shares.iter().any(|share| matches!(share, MultiAcquired::Blocked(_))) {
            return shares;
        }
        let take = |(state, ask): &mut (&mut Self, &Acquire)| {
            let (reply, _) = state.apply(
                now_us,
                &Op::Acquire(Acquire { queue: None, predecessor: None, ..(*ask).clone() }),
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
    fn probe(&self, now: Now, ask: &Acquire) -> MultiAcquired {
        if self.kind.is_shared() || !ask.mode.applies_to(self.kind) {
            // Shared locks cannot be acquired together with others.
            return MultiAcquired::Blocked(Err(Refused::Unsupported));
        }
        if let Err(refused) = self.refuse_other_types() {
            return MultiAcquired::Blocked(Err(refused));
        }
        if let Some(how) = self.ended(&ask.claim.hold) {
            return MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(how)));
        }
        if self.holds(&ask.claim) {
            return MultiAcquired::Held;
        }
        let awaited = || self.record.as_ref().is_some_and(|record| record.is_awaited_at(now.ms));
        if self.entries_of(&ask.claim).is_some() || (self.value.is_none() && !awaited()) {
            return MultiAcquired::Available;
        }
        let predecessor = self.predecessor(ask, None);
        let (holder, other_holders) = (self.holder(now), Vec::new());
        MultiAcquired::Blocked(Ok(Acquired::Taken { holder, position: None, predecessor, other_holders }))
    }

    /// Ends the hold and the queue entries of a dead session, and returns the fencing token of its hold and
    /// whether it had an entry (4). For a store that tracks dead sessions itself. The next operation that
    /// finds the lock free grants it.
    pub fn bury(&mut self, now_us: u64, dead: SessionId, by: &Label) -> (Option<FencingToken>, bool) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.drop_over(now);
        let lives =
            |liveness: Liveness, hold: &HoldId| liveness.ends_with_session() && hold.session() == dead;
        let fence = self.take(now, Ended::Evicted, by, |liveness, hold| lives(liveness, hold));
        let place = self.record.as_mut().is_some_and(|record| {
            let of_it: Vec<_> = record
                .tickets
                .values()
                .filter(|id| id.session() == dead)
                .filter_map(|id| Some((*id, record.places.get(id)?)))
                .take(LOOKS_AT_MOST)
                .filter(|(_, place)| lives(place.liveness, &place.claim.hold))
                .map(|(id, _)| id)
                .collect();
            // Removes all of its entries, not only the first; but a session with very many entries takes
            // several steps.
            of_it.into_iter().filter_map(|id| record.leave(id)).count() > 0
        });
        (fence, place)
    }

    /// Ends the holds for which `goes` is true, on behalf of a client other than their holders; returns the
    /// fencing token of the first, if there are any.
    pub(super) fn take(
        &mut self,
        now: Now,
        ended: Ended,
        by: &Label,
        goes: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        if self.kind.is_shared() {
            return self.take_parts(now, ended, by, goes);
        }
        let mut lost = self.lessees();
        lost.retain(|tenant| goes(tenant.liveness, &tenant.claim.hold));
        let first = lost.first()?;
        let fence = self.fence();
        self.keep_entries(now, |entry| !goes(entry.liveness, &entry.hold));
        if let Some(record) = &mut self.record {
            for tenant in &lost {
                record.ended.note(tenant.claim.hold, ended);
            }
        }
        let holder = Some(first.label.clone());
        let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: by.clone() };
        Audit::note(&mut self.audit, entry);
        fence
    }

    /// Keeps the holds of a ReentrantMutex for which `stays` is true, and nothing of a Mutex. The lock is
    /// free if none is left. If only Leasehold's holds are left, the key lasts no longer than the last of
    /// them, so that clients of other libraries do not wait for those that are gone.
    fn keep_entries(&mut self, now: Now, stays: impl Fn(&Entry) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| match content {
            Content::Entries(entries) => {
                entries.retain(stays);
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
    fn drop_over(&mut self, now: Now) {
        if self.value.as_ref().is_some_and(|value| value.content.entries().is_some()) {
            self.keep_entries(now, |entry| entry.until_ms >= now.ms);
        }
        self.keep_parts(now, |part| part.until_ms >= now.ms);
    }

    /// The sessions that hold the lock, or held it last: a store that tracks dead sessions checks these.
    pub fn holders(&self) -> Vec<SessionId> {
        let mut holders: Vec<_> = match (self.entries(), self.parts()) {
            (Some(entries), _) => entries.holds.iter().map(|entry| entry.hold.session()).collect(),
            (_, Some(parts)) => parts.holds.iter().map(|part| part.hold.session()).collect(),
            _ => self.tenant().map(|tenant| tenant.claim.hold.session()).into_iter().collect(),
        };
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// The sessions that wait for the lock, from the front of the queue: such a store checks these as well.
    pub fn waiters(&self) -> impl Iterator<Item = SessionId> {
        self.record.iter().flat_map(|record| record.tickets.values().map(QueueEntryId::session))
    }

    /// Executes an operation on a lock whose key has a value of another kind.
    pub fn apply_beside(
        &mut self,
        other: &Value,
        now_us: u64,
        op: &Op,
        alive: Alive<'_>,
    ) -> (Reply, Vec<Notification>) {
        self.value = Some(other.to_others());
        let applied = self.apply(now_us, op, alive);
        self.value = None;
        applied
    }

    /// The value at the lock's key at `now_us`, for locks of other kinds.
    pub fn stands(&mut self, now_us: u64) -> Option<&Value> {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.as_ref()
    }

    /// The sessions that hold the lock at `now_us`, whatever ends the holds.
    pub fn held_by(&mut self, now_us: u64) -> Vec<SessionId> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        self.drop_over(now);
        if self.lessee().is_some() && !self.rests() { self.holders() } else { Vec::new() }
    }

    /// Whether no state is left at `now_us`.
    pub fn is_over(&mut self, now_us: u64) -> bool {
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
    fn look(
        &mut self,
        now: Now,
        ask: &Acquire,
        alive: Alive<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, ask)? {
            return Ok(settled);
        }
        let alive_ms = ask.predecessor.and_then(|predecessor| {
            let alive_ms = self.alive_ms(now, predecessor, alive);
            if alive_ms.is_none() {
                self.bury(now.us, predecessor, &ask.label);
            }
            alive_ms.map(|alive_ms| (predecessor, alive_ms))
        });
        let mut acquired = if self.kind.is_shared() {
            self.acquire_part(now, ask, alive_ms.map(|(asked, _)| asked), notifications)?
        } else {
            self.acquire(now, ask, notifications)?
        };
        if let Acquired::Taken { predecessor: Some(predecessor), .. } = &mut acquired {
            predecessor.alive_ms =
                alive_ms.filter(|(asked, _)| *asked == predecessor.session).map(|(_, alive_ms)| alive_ms);
        }
        Ok(acquired)
    }

    /// How long a session counts as alive. An unknown session counts as alive for as long as its client may
    /// rely on the hold that it has here.
    fn alive_ms(&self, now: Now, session: SessionId, alive: Alive<'_>) -> Option<u64> {
        match alive(session) {
            SessionStatus::Alive(alive_ms) => Some(alive_ms),
            SessionStatus::Lapsed => None,
            SessionStatus::Unknown => {
                let doubted = self.lessees().into_iter().filter_map(|tenant| match tenant.liveness {
                    Liveness::Session { alive_ms } if tenant.claim.hold.session() == session => {
                        tenant.since_ms.saturating_add(alive_ms).checked_sub(now.ms)
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
        alive: Alive<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Evicted, Refused> {
        self.refuse_other_types()?;
        if self.alive_ms(now, evict.session, alive).is_some() {
            return Ok(Evicted::Alive);
        }
        let (fence, was_queued) = self.bury(now.us, evict.session, &evict.actor);
        self.serve(now, notifications);
        Ok(Evicted::Removed { fence, was_queued })
    }

    fn free(
        &mut self,
        now: Now,
        free: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> Result<ForceReleased, Refused> {
        self.refuse_other_types()?;
        if self.kind.is_shared() {
            return Ok(self.free_part(now, free, notifications));
        }
        let fence = self.fence();
        match free.observed {
            ObservedHolder::Hold(seen) if fence == Some(seen) => {
                // Each session once, oldest first: a script has no other order.
                let told: Vec<_> = self.lessees().iter().map(|tenant| tenant.claim.hold.session()).collect();
                let first = told.iter().enumerate().filter(|(at, to)| !told[..*at].contains(to));
                notifications
                    .extend(first.map(|(_, to)| Notification::ForceReleased { to: *to, fence: seen }));
                self.take(now, Ended::ForceReleased, &free.actor, |_, _| true);
                // A client of another library may have another hold of the same owner.
                self.value = None;
            }
            ObservedHolder::Foreign(fingerprint) if self.stranger() == Some(fingerprint) => {
                self.value = None;
                let (ended, actor) = (Ended::ForceReleased, free.actor.clone());
                Audit::note(
                    &mut self.audit,
                    AuditEntry { at_ms: now.ms, ended, fence: None, holder: None, actor },
                );
            }
            _ => return Ok(ForceReleased::Changed { holder: self.holder(now) }),
        }
        self.pump(now, None, notifications);
        Ok(ForceReleased::Released)
    }

    fn acquire(
        &mut self,
        now: Now,
        ask: &Acquire,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, ask)? {
            return Ok(settled);
        }
        if self.value.is_none() && self.pump(now, Some(ask), notifications) == NextHolder::Asker {
            return Ok(self.confirm(now, ask));
        }
        // Also where the first waiter has just received the lock: it may have the same owner as this request.
        if self.enter(now, ask) {
            return Ok(self.confirm(now, ask));
        }
        // Leasehold's holds have their own ends, and must not lose the key before them.
        let ours = self.entries().is_some_and(|entries| !entries.holds.is_empty());
        if let (false, Some(value), Some(adopt_ms)) = (ours, &mut self.value, ask.adopt_ms) {
            value.expires_ms.get_or_insert(now.ms + adopt_ms);
        }
        Ok(self.wait(now, ask, notifications))
    }

    /// The reply for a hold that needs no further step: it has ended, or it exists.
    pub(super) fn settled(&mut self, now: Now, ask: &Acquire) -> Result<Option<Acquired>, Refused> {
        self.refuse_other_types()?;
        if let Some(how) = self.ended(&ask.claim.hold) {
            return Ok(Some(Acquired::AlreadyEnded(how)));
        }
        Ok(self.holds(&ask.claim).then(|| self.confirm(now, ask)))
    }

    /// Queues, if requested, and reports the holder.
    fn wait(&mut self, now: Now, ask: &Acquire, notifications: &mut Vec<Notification>) -> Acquired {
        let position = ask.queue.as_ref().map(|queue| {
            let ttl_ms = queue.ttl_ms;
            let id = QueueEntryId::of(self.kind, &ask.claim.hold);
            self.record_or_new(now, ttl_ms).enqueue(now.ms, id, ask, queue)
        });
        notifications.extend(self.note(ask));
        let predecessor = self.predecessor(ask, position);
        Acquired::Taken { holder: self.holder(now), position, predecessor, other_holders: Vec::new() }
    }

    /// Notifies the holder that another session requests the lock, if it subscribed to that.
    fn note(&self, ask: &Acquire) -> Option<Notification> {
        let fence =
            self.record.as_ref().filter(|record| record.notifies_wanted()).and_then(|record| record.last)?;
        let to = self.tenant().filter(|tenant| self.holds(&tenant.claim))?.claim.hold.session();
        (to != ask.claim.hold.session()).then_some(Notification::Wanted { to, fence })
    }

    /// The session directly ahead of this request, if its hold or entry ends with the session.
    fn predecessor(&self, ask: &Acquire, position: Option<u64>) -> Option<Predecessor> {
        let queue = self.record.as_ref().filter(|_| position.is_some());
        let before = queue.and_then(|record| record.before(QueueEntryId::of(self.kind, &ask.claim.hold)));
        let (liveness, hold) = if let Some(place) = before {
            (place.liveness, place.claim.hold)
        } else {
            let tenant = self.lessee()?;
            (tenant.liveness, tenant.claim.hold)
        };
        liveness.ends_with_session().then(|| Predecessor { session: hold.session(), alive_ms: None })
    }

    /// Adds a hold where the owner already holds the lock: past the queue, and with the same fencing token
    /// (R4, R10).
    fn enter(&mut self, now: Now, ask: &Acquire) -> bool {
        let Some(entries) = self.entries_of(&ask.claim) else { return false };
        let tenant = RecordedHolder::asking(now.ms, ask);
        // So far, only a client of another library holds it.
        let fence = entries.fence.unwrap_or_else(|| self.install(now, tenant.clone(), ask.lease_ms));
        if let Some(Value { content: Content::Entries(entries), expires_ms }) = &mut self.value {
            entries.enter(tenant, fence, ask.lease_ms);
            *expires_ms = (*expires_ms).max(entries.until_ms());
        }
        if let Some(record) = &mut self.record {
            record.keep(now.ms, ask.lease_ms);
            if record.waits(self.kind, &ask.claim.hold) {
                record.leave(QueueEntryId::of(self.kind, &ask.claim.hold));
            }
        }
        true
    }

    /// The hold exists: reports it, and completes what an interrupted script may have left undone.
    pub(super) fn confirm(&mut self, now: Now, ask: &Acquire) -> Acquired {
        let others_wait = self.record.as_ref().is_some_and(Record::is_awaited);
        if let Some(part) = self.part(&ask.claim.hold) {
            let (fence, remaining_ms) = (part.fence, part.until_ms - now.ms);
            return Acquired::Granted { fence, remaining_ms, others_wait, owner_holds: None };
        }
        if let Some(entries) = self.entries() {
            let until_ms = entries.entry(&ask.claim.hold).map_or(now.ms, |entry| entry.until_ms);
            return Acquired::Granted {
                fence: entries.fence.unwrap_or(FencingToken::new(0)),
                remaining_ms: until_ms - now.ms,
                others_wait,
                owner_holds: Some(OwnerHolds { count: entries.count, lease_ms: entries.lease_ms }),
            };
        }
        let known = self.tenant().is_some_and(|tenant| tenant.claim == ask.claim);
        let last = self.record.as_ref().and_then(|record| record.last).filter(|_| known);
        let fence =
            last.unwrap_or_else(|| self.install(now, RecordedHolder::asking(now.ms, ask), ask.lease_ms));
        let mut expires_ms = now.ms + ask.lease_ms;
        if let Some(value) = &mut self.value {
            expires_ms = *value.expires_ms.get_or_insert(expires_ms);
        }
        Acquired::Granted { fence, remaining_ms: expires_ms - now.ms, others_wait, owner_holds: None }
    }

    fn extend(&mut self, now: Now, extend: &Extend) -> Extended {
        if !self.holds(&extend.claim) {
            return Extended::NotHeld;
        }
        let until_ms = now.ms + extend.lease_ms;
        if let Some(value) = &mut self.value {
            if value.ends_before(until_ms) {
                value.expires_ms = Some(until_ms);
            }
            match &mut value.content {
                Content::Entries(entries) => {
                    entries.extend(&extend.claim.hold, now.ms, extend.lease_ms);
                }
                // A hold of a shared lock is extended where the other values at the key are known, too.
                Content::SharedHolders(_) | Content::Token(_) | Content::Other(_) => {}
            }
        }
        if extend.keep_record
            && let Some(record) = &mut self.record
        {
            record.keep(now.ms, extend.lease_ms);
        }
        let reserved = extend.reserve.and_then(|reserve| self.reserve(now, &extend.claim, reserve));
        reserved.unwrap_or(Extended::Extended)
    }

    /// Raises the fencing token of a hold, and never lowers it (1). All holds of an owner share one token.
    fn raise(&mut self, now: Now, raise: &RaiseFence) -> FenceRaised {
        let known = || self.tenant().is_some_and(|tenant| tenant.claim == raise.claim);
        let entries = self.entries().is_some();
        if !self.holds(&raise.claim) || !(entries || known()) {
            return FenceRaised::NotHeld;
        }
        let Some(record) = &mut self.record else { return FenceRaised::NotHeld };
        record.last = record.last.max(Some(raise.fence));
        record.keep(now.ms, 0);
        if let Some(Value { content: Content::Entries(entries), .. }) = &mut self.value {
            entries.fence = entries.fence.max(Some(raise.fence));
        }
        FenceRaised::Raised
    }

    /// Reserves fencing tokens for a hold that is known to be the last granted one.
    fn reserve(&mut self, now: Now, claim: &Claim, reserve: Reserve) -> Option<Extended> {
        let record = self.record.as_mut()?;
        record.tenant.as_ref().filter(|tenant| tenant.claim == *claim)?;
        record.last?;
        let notify_wanted = reserve.notify_wanted || record.notifies_wanted();
        let (block, upto) = TokenBlock::after(record.greatest(), now.us, reserve.tokens);
        record.reserved = Some(Reserved { upto, notify_wanted });
        Some(Extended::Reserved { block, others_wait: record.is_awaited() })
    }

    fn release(&mut self, now: Now, release: &Release, notifications: &mut Vec<Notification>) -> Released {
        if self.kind.is_shared() {
            return self.release_part(now, release, notifications);
        }
        let hold = release.claim.hold;
        let status = self.fate(&release.claim);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let rest_ms = if status == HoldStatus::Held { self.rest(now, release) } else { None };
        if status == HoldStatus::Held {
            if rest_ms.is_none() {
                self.keep_entries(now, |entry| entry.hold != hold);
            }
            let record = self.record_or_new(now, 0);
            record.ended.note(hold, Ended::Released);
            if let Some(rest_ms) = rest_ms {
                record.keep(now.ms, rest_ms);
            }
        }
        if let Some(record) = &mut self.record
            && record.waits(self.kind, &hold)
        {
            record.leave(QueueEntryId::of(self.kind, &hold));
        }
        // A repeated release reports it as well: the reply to the first may have been lost.
        let remaining_holds = self.entries_of(&release.claim).map_or(0, |entries| entries.count);
        let grants = !matches!(release.action, ReleaseAction::Free | ReleaseAction::FreeAndPublish)
            && rest_ms.is_none();
        let next = match (&release.next, grants) {
            (Some(next), true) => Some(self.acquire(now, next, notifications)),
            (Some(next), false) => {
                // The request may arrive for the second time: the hold may have been granted since, and
                // ended.
                Some(self.settled(now, next).map(|settled| match settled {
                    Some(settled) => settled,
                    None if self.enter(now, next) => self.confirm(now, next),
                    None => self.wait(now, next, notifications),
                }))
            }
            (None, true) => {
                if self.value.is_none() {
                    self.pump(now, None, notifications);
                }
                None
            }
            (None, false) => None,
        };
        Released { status, remaining_holds, holder, next }
    }

    /// Leaves the released lock taken without a holder, if it is to rest; returns for how much longer (6).
    fn rest(&mut self, now: Now, release: &Release) -> Option<u64> {
        let ReleaseAction::Cooldown { for_ms } = release.action else { return None };
        let known = self.tenant().is_some_and(|tenant| tenant.claim.hold == release.claim.hold);
        let since_ms = self.tenant().filter(|_| known).map_or(now.ms, |tenant| tenant.since_ms);
        let until_ms = since_ms.saturating_add(for_ms);
        let rest_ms = until_ms.checked_sub(now.ms).filter(|rest_ms| *rest_ms > 0)?;
        let last = self.record.as_ref().and_then(|record| record.last).filter(|_| known);
        self.value = Some(Value {
            content: Content::Token(self.kind.cooldown_token(last)),
            expires_ms: Some(until_ms),
        });
        Some(rest_ms)
    }

    /// Whether the lock rests after its last hold.
    fn rests(&self) -> bool {
        let last =
            self.record.as_ref().filter(|record| record.tenant.is_some()).and_then(|record| record.last);
        let stands = self.value.as_ref().and_then(|value| value.content.token());
        last.is_some() && stands.is_some_and(|stands| *stands == self.kind.cooldown_token(last))
    }

    fn inspect(&self, now: Now, inspect: &Inspect) -> Result<Inspection, Refused> {
        self.refuse_other_types()?;
        let places = self.record.iter().flat_map(|record| record.places.values());
        Ok(Inspection {
            holder: self.holder(now),
            waiters: places.filter(|place| place.expires_ms >= now.ms).count() as u64,
            hold_status: inspect.claim.as_ref().map(|claim| self.fate(claim)),
            foreign_fingerprint: inspect.details.then(|| self.stranger()).flatten(),
            audit: self
                .audit
                .iter()
                .filter(|_| inspect.details)
                .flat_map(|audit| audit.entries.clone())
                .collect(),
            shared_holders: self.shared_holders(now),
            limit: self.record.as_ref().and_then(|record| record.limit),
        })
    }

    /// Serves the queue of a lock that has room, or is free.
    fn serve(&mut self, now: Now, notifications: &mut Vec<Notification>) {
        if self.kind.is_shared() {
            self.pump_parts(now, None, notifications);
        } else if self.value.is_none() {
            self.pump(now, None, notifications);
        }
    }

    /// Grants the free lock to the first live entry, or to the request if none is before it.
    fn pump(
        &mut self,
        now: Now,
        asker: Option<&Acquire>,
        notifications: &mut Vec<Notification>,
    ) -> NextHolder {
        for _ in 0..LOOKS_AT_MOST {
            let Some(place) = self.record.as_mut().and_then(Record::take_first) else { break };
            let session = place.claim.hold.session();
            if let Some(ask) = asker
                && session == ask.claim.hold.session()
                // The entry represents all waiters of the process. A request that does not queue is an
                // additional one.
                && (ask.queue.is_some() || place.claim.hold == ask.claim.hold)
            {
                self.give(now, RecordedHolder::asking(now.ms, ask), ask.lease_ms);
                return NextHolder::Asker;
            }
            if place.expires_ms < now.ms {
                continue;
            }
            let (nonce, lease_ms) = (place.nonce, place.lease_ms);
            let fence = self.give(now, RecordedHolder::waiting(now.ms, place), lease_ms);
            notifications.push(Notification::Grant { to: session, nonce, fence });
            return NextHolder::Another;
        }
        if self.record.as_ref().is_some_and(Record::is_awaited) {
            return NextHolder::None;
        }
        let Some(ask) = asker else { return NextHolder::None };
        self.give(now, RecordedHolder::asking(now.ms, ask), ask.lease_ms);
        NextHolder::Asker
    }

    /// Makes the tenant the holder of the free lock.
    fn give(&mut self, now: Now, tenant: RecordedHolder, lease_ms: u64) -> FencingToken {
        let (token, first) = (tenant.claim.token(), tenant.clone());
        let fence = self.install(now, tenant, lease_ms);
        let content = match (self.kind, OwnValue::new(&token)) {
            (Kind::Reentrant, Ok(owner)) => Content::Entries(Entries::of(first, owner, fence, lease_ms)),
            _ => Content::Token(self.kind.token(&first.claim)),
        };
        self.value = Some(Value { content, expires_ms: Some(now.ms + lease_ms) });
        fence
    }

    /// Writes a new holder and its fencing token into the record.
    fn install(&mut self, now: Now, tenant: RecordedHolder, lease_ms: u64) -> FencingToken {
        let record = self.record_or_new(now, lease_ms);
        let fence = FencingToken::after(record.greatest(), now.us);
        let raised = Record::is_raised_by(record.last.replace(fence), fence);
        record.tenant = Some(tenant);
        if !raised || lease_ms >= SHORT_LEASE_MS {
            record.expires_ms = Record::kept_until_ms(record.last, now.ms, lease_ms);
        }
        fence
    }

    pub(super) fn record_or_new(&mut self, now: Now, lease_ms: u64) -> &mut Record {
        self.record.get_or_insert_with(|| Record::new(Record::kept_until_ms(None, now.ms, lease_ms)))
    }

    pub(super) fn refuse_other_types(&self) -> Result<(), Refused> {
        let found = self.value.as_ref().map(|value| &value.content);
        match (self.kind, found) {
            (_, None) | (Kind::Reentrant, Some(Content::Entries(_))) => Ok(()),
            (kind, Some(Content::Token(token))) if kind.matches_token(token) => Ok(()),
            (kind, Some(Content::SharedHolders(_))) if kind.is_shared() => Ok(()),
            (_, Some(content)) => Err(Refused::WrongKind { found: content.type_name().to_owned() }),
        }
    }

    /// The holds of a ReentrantMutex.
    fn entries(&self) -> Option<&Entries> {
        self.value.as_ref()?.content.entries()
    }

    /// The holds of a ReentrantMutex, if the claim has the same owner.
    fn entries_of(&self, claim: &Claim) -> Option<&Entries> {
        self.entries().filter(|entries| entries.owner.as_str() == claim.token())
    }

    /// The holder, if it uses Leasehold; the oldest hold, where there are several.
    fn lessee(&self) -> Option<RecordedHolder> {
        match (self.entries(), self.parts()) {
            (Some(entries), _) => entries.lessees().next(),
            (_, Some(parts)) => parts.lessees().next(),
            // A rest does not end with any session.
            _ if self.rests() => {
                self.tenant().map(|tenant| RecordedHolder { liveness: Liveness::Lease, ..tenant.clone() })
            }
            _ => self.tenant().filter(|tenant| self.holds(&tenant.claim)).cloned(),
        }
    }

    /// All holders that use Leasehold: several holds of one owner, or all holds of a shared lock.
    pub(super) fn lessees(&self) -> Vec<RecordedHolder> {
        match (self.entries(), self.parts()) {
            (Some(entries), _) => entries.lessees().collect(),
            (_, Some(parts)) => parts.lessees().collect(),
            _ => self.lessee().into_iter().collect(),
        }
    }

    /// The fencing token of the holder, if it uses Leasehold.
    fn fence(&self) -> Option<FencingToken> {
        match self.entries() {
            Some(entries) => entries.fence,
            None => self.lessee().and(self.record.as_ref()).and_then(|record| record.last),
        }
    }

    fn tenant(&self) -> Option<&RecordedHolder> {
        self.record.as_ref().and_then(|record| record.tenant.as_ref())
    }

    pub(super) fn ended(&self, hold: &HoldId) -> Option<Ended> {
        let record = self.record.as_ref()?;
        // An interrupted script may have left the lock resting before it recorded the end of the hold.
        let rests = || self.tenant().is_some_and(|tenant| tenant.claim.hold == *hold) && self.rests();
        record.ended.how(hold).or_else(|| rests().then_some(Ended::Released))
    }

    /// Whether a claim holds the lock (1).
    pub(super) fn holds(&self, claim: &Claim) -> bool {
        let Some(value) = &self.value else { return false };
        if self.kind.is_shared() {
            return self.part(&claim.hold).is_some();
        }
        match (self.kind, &value.content) {
            (Kind::Reentrant, Content::Entries(entries)) => return entries.entry(&claim.hold).is_some(),
            (kind, Content::Token(token)) if *token == kind.token(claim) => {}
            _ => return false,
        }
        // A client of another library may use the same value as a user of Leasehold, so the value alone
        // proves nothing.
        let known = || self.tenant().is_some_and(|tenant| tenant.claim == *claim);
        claim.value.is_none() || (known() && self.ended(&claim.hold).is_none())
    }

    pub(super) fn fate(&self, claim: &Claim) -> HoldStatus {
        if self.holds(claim) {
            return HoldStatus::Held;
        }
        // A shared lock may have other holders beside those that are gone: none of them took their place.
        let side_by_side = self.kind.is_shared() && self.refuse_other_types().is_ok();
        let Some(record) = &self.record else {
            let others = self.value.is_some() && !side_by_side;
            return if others { HoldStatus::Superseded } else { HoldStatus::Forgotten };
        };
        if record.waits(self.kind, &claim.hold) {
            return HoldStatus::Queued;
        }
        if let Some(how) = self.ended(&claim.hold) {
            return HoldStatus::Ended(how);
        }
        if side_by_side {
            return HoldStatus::Vanished;
        }
        if self.entries_of(claim).is_some() {
            // Its owner has other holds of the lock: no other client came after it.
            return HoldStatus::Vanished;
        }
        let last = record.tenant.as_ref().is_some_and(|tenant| {
            // The first of them represents all holds of an owner.
            let same_owner = self.kind == Kind::Reentrant && tenant.claim.value == claim.value;
            tenant.claim.hold == claim.hold || same_owner
        });
        match (&self.value, last, &record.tenant) {
            (None, true, _) => HoldStatus::Vanished,
            (None, false, None) => HoldStatus::Forgotten,
            _ => HoldStatus::Superseded,
        }
    }

    /// The holder, as far as other clients may know.
    pub(super) fn holder(&self, now: Now) -> Option<Holder> {
        let value = self.value.as_ref()?;
        if let Some(parts) = self.parts() {
            return parts.holds.first().map(|part| part.holder(now.ms));
        }
        let entries = self.entries();
        let tenant = self.lessee();
        Some(Holder {
            owner: entries.map(|entries| entries.owner.clone()),
            count: entries.map_or(1, |entries| entries.count),
            remaining_ms: value.expires_ms.map(|at_ms| at_ms - now.ms),
            fence: self.fence(),
            since_ms: tenant.as_ref().map(|tenant| tenant.since_ms),
            session: tenant
                .as_ref()
                .filter(|tenant| tenant.liveness.ends_with_session())
                .map(|tenant| tenant.claim.hold.session()),
            in_cooldown: self.rests(),
            label: tenant.map(|tenant| tenant.label),
            mode: LockMode::Exclusive,
        })
    }

    /// The fingerprint of the value at the key, if a client of another library put it there.
    fn stranger(&self) -> Option<Fingerprint> {
        let stands = match &self.value.as_ref()?.content {
            Content::Token(token) => token,
            Content::Entries(entries) => entries.owner.as_str(),
            Content::SharedHolders(_) | Content::Other(_) => return None,
        };
        self.lessee().is_none().then(|| Fingerprint::of(stands))
    }
}

/// The receiver of a lock that was found free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextHolder {
    Asker,
    Another,
    None,
}
