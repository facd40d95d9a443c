//! The state of one lock, and what each operation does to it.
//!
//! Owns what all kinds have in common: expiry, the reply to a repeated operation, an inspection. `exclusive.rs` has the
//! kinds with one holder, `shared.rs` those with several; `holder.rs` finds out which client holds the lock,
//! `eviction.rs` ends holds of other clients. It does not know which sessions are alive: a [`SessionLookup`] does.
//!
//! 1. The way in which a hold ended is recorded, so that a second release gets the reply "released".
//! 2. Expired holds of a ReentrantMutex no longer count, but stay in the value until an operation writes: an operation that
//!    only reads writes nothing. Expired holds of a shared lock are dropped in bounded steps, and count until then.

use super::audit::Audit;
use super::history::History;
use super::record::Record;
use super::session::SessionLookup;
use super::shared_holders::MAX_INSPECTED_HOLDS;
use super::value::{Content, Value};
use super::watermark::Watermark;
use crate::{
    Acquire, Acquired, Evicted, Extended, FencingToken, ForceReleased, HistoryEntry, HoldStatus, Inspect,
    Inspection, Kind, Notification, Op, Refused, Released, Reply, Resized, Skipped,
};
use serde::{Deserialize, Serialize};

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
///     Op::Acquire(Acquire { claim, lease_ms: 3_000, label, queue: None, expire_foreign_ms: None, liveness, predecessor, mode })
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
    /// The last holds that were released, if their clients wanted that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// The greatest fencing token of idle locks. The locks of a partition share it: a store with several locks sets it
    /// before an operation, and takes it back afterwards.
    #[serde(skip)]
    pub watermark: Watermark,
}

/// The greatest time, count or ticket of a state from a file: each can be increased without an overflow.
const MAX_STORED: u64 = FencingToken::MAX.as_u64();

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

    /// Executes one operation at `now_us` microseconds of the store's clock. `sessions` looks up sessions.
    pub fn apply(&mut self, now_us: u64, op: &Op, sessions: SessionLookup<'_>) -> (Reply, Vec<Notification>) {
        // Without an owner, the hold id would become the owner, which every client can see.
        if let Some(refused) = op.refusal_for(self.kind) {
            return (Reply::Refused(refused), Vec::new());
        }
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        let stored = self.value.clone();
        if self.kind.is_shared() && !matches!(op, Op::Extend(_) | Op::Inspect(_)) {
            self.drop_first_expired_holds(now, op);
        } else {
            self.drop_expired_holds(now);
        }
        let found = self.value.clone();
        let mut notifications = Vec::new();
        let ending = self.ending_entry(now, op);
        let reply = match op {
            Op::Acquire(request) => {
                self.acquire(now, request, sessions, &mut notifications).map(Reply::Acquire)
            }
            Op::Extend(extend) => Ok(Reply::Extend(self.extend(now, extend))),
            Op::Release(release) => Ok(Reply::Release(self.release(now, release, &mut notifications))),
            Op::Inspect(inspect) => self.inspect(now, inspect).map(Reply::Inspect),
            Op::Evict(evict) => self.evict(now, evict, sessions, &mut notifications).map(Reply::Evict),
            Op::ForceRelease(force_release) => {
                self.force_release(now, force_release, &mut notifications).map(Reply::ForceRelease)
            }
            Op::Resize(resize) => self.resize(now, *resize, &mut notifications).map(Reply::Resize),
            Op::RaiseFence(raise_fence) => Ok(Reply::RaiseFence(self.raise_fence(now, raise_fence))),
            Op::Proclaim(proclaim) => Ok(Reply::Proclaim(self.proclaim(proclaim))),
        };
        if let (Some((entry, most)), Ok(Reply::Release(Released { status: HoldStatus::Held, .. }))) =
            (ending, &reply)
        {
            History::push(&mut self.history, entry, most);
        }
        let ends_too_soon = matches!((op, &reply), (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended | Extended::Reserved { .. })))
            if stored.as_ref().is_some_and(|stored| stored.ends_before(now.ms + extend.lease_ms)));
        match (op, &reply) {
            (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended))) if self.kind.is_shared() => {
                self.extend_shared(now, extend, stored);
            }
            // Dropped once and for all (2).
            _ if self.kind.is_shared() && is_change(op, &reply) => {}
            // A client of another library may have moved the key's expiry closer than the holds require.
            _ if self.value == found && !ends_too_soon => self.value = stored,
            _ => {}
        }
        (reply.unwrap_or_else(Reply::Refused), notifications)
    }

    /// What a release adds to the history, and how many entries that keeps, if it releases the hold.
    fn ending_entry(&self, now: Now, op: &Op) -> Option<(HistoryEntry, u16)> {
        let Op::Release(release) = op else { return None };
        let most = release.history_entries()?;
        let claim = &release.claim;
        let recorded =
            self.recorded_holders().into_iter().find(|recorded| recorded.claim.hold == claim.hold)?;
        let (from_ms, fence, label) = (recorded.since_ms, self.fence_of(claim), recorded.label);
        Some((HistoryEntry { from_ms, to_ms: now.ms, fence, label }, most))
    }

    /// Drops expired holds (2).
    pub(super) fn drop_expired_holds(&mut self, now: Now) {
        if self.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_some()) {
            self.retain_reentrant_holds(now, |held| held.until_ms >= now.ms);
        }
        self.retain_shared_holds(|held| held.until_ms >= now.ms);
    }

    /// Executes an operation on a lock whose key has a value of another kind.
    pub fn apply_to_occupied_key(
        &mut self,
        other: &Value,
        now_us: u64,
        op: &Op,
        sessions: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        self.value = Some(other.type_only());
        let applied = self.apply(now_us, op, sessions);
        self.value = None;
        applied
    }

    /// Whether the state can be one of a lock of that kind: its value is of the type of the kind, and all its numbers have at most
    /// 53 bits, so that no operation overflows. For a state from a file, which something else may have changed.
    ///
    /// ```
    /// use leasehold_core::Kind;
    /// use leasehold_core::model::{Content, LockState, Value};
    ///
    /// let content = Content::Other("list".to_owned());
    /// let lock = LockState { value: Some(Value { content, expires_ms: Some(u64::MAX) }), ..LockState::new(Kind::Mutex) };
    /// assert!(LockState::new(Kind::Mutex).is_plausible(Kind::Mutex));
    /// assert!(!lock.is_plausible(Kind::Mutex));
    /// ```
    pub fn is_plausible(&self, kind: Kind) -> bool {
        let is_small = |number: u64| number <= MAX_STORED;
        self.kind == kind
            && self.value.as_ref().is_none_or(|value| {
                value.expires_ms.is_none_or(is_small) && value.content.is_plausible(kind, is_small)
            })
            && self.record.as_ref().is_none_or(|record| record.is_plausible(is_small))
            && self.audit.as_ref().is_none_or(|audit| is_small(audit.expires_ms))
            && self.history.as_ref().is_none_or(|history| is_small(history.expires_ms))
    }

    /// The value at the lock's key at `now_us`, for locks of other kinds.
    pub fn value_at(&mut self, now_us: u64) -> Option<&Value> {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.as_ref()
    }

    /// Whether a release has left it idle, so that it only remembers for a while which holds have ended.
    pub fn is_settled(&self) -> bool {
        let is_used =
            |record: &Record| record.last_fence.is_some() || record.limit.is_some() || record.has_entries();
        let is_gathering = matches!(self.kind, Kind::Latch | Kind::Barrier);
        !is_gathering && self.value.is_none() && self.record.as_ref().is_some_and(|record| !is_used(record))
    }

    /// Whether no state of its own is left at `now_us`.
    pub fn is_empty_at(&mut self, now_us: u64) -> bool {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.is_none() && self.record.is_none() && self.audit.is_none() && self.history.is_none()
    }

    /// Drops what has expired as a whole.
    pub(super) fn expire(&mut self, now: Now) {
        // As in Redis, a value still exists in the millisecond in which it expires.
        self.value.take_if(|value| value.expires_ms.is_some_and(|at_ms| now.ms > at_ms));
        self.record.take_if(|record| now.ms > record.expires_ms);
        self.audit.take_if(|audit| now.ms > audit.expires_ms);
        self.history.take_if(|history| now.ms > history.expires_ms);
        self.watermark.expire(now.ms);
    }

    /// An acquire that does not accompany a release: it may name its predecessor.
    pub(super) fn acquire(
        &mut self,
        now: Now,
        request: &Acquire,
        sessions: SessionLookup<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, request)? {
            return Ok(settled);
        }
        let alive_ms = request.predecessor.and_then(|predecessor| {
            let alive_ms = self.session_alive_ms(now, predecessor, sessions);
            if alive_ms.is_none() {
                self.evict_dead(now, predecessor, &request.label, MAX_INSPECTED_HOLDS);
            }
            alive_ms.map(|alive_ms| (predecessor, alive_ms))
        });
        let mut acquired = if self.kind.is_shared() {
            self.acquire_shared(now, request, alive_ms.map(|(named, _)| named), notifications)?
        } else {
            self.acquire_exclusive(now, request, notifications)?
        };
        if let Acquired::Taken { predecessor: Some(predecessor), .. } = &mut acquired {
            predecessor.alive_ms =
                alive_ms.filter(|(named, _)| *named == predecessor.session).map(|(_, alive_ms)| alive_ms);
        }
        Ok(acquired)
    }

    /// The reply for a hold that needs no further step: it has ended (1), or it exists.
    pub(super) fn settled(&mut self, now: Now, request: &Acquire) -> Result<Option<Acquired>, Refused> {
        self.refuse_other_types()?;
        if let Some(ended) = self.ended(&request.claim.hold) {
            return Ok(Some(Acquired::AlreadyEnded(ended)));
        }
        Ok(self.is_held_by(&request.claim).then(|| self.confirm(now, request)))
    }

    pub(super) fn inspect(&self, now: Now, inspect: &Inspect) -> Result<Inspection, Refused> {
        self.refuse_other_types()?;
        let entries = self.record.iter().flat_map(|record| record.entries.values());
        Ok(Inspection {
            holder: self.holder(now),
            waiters: entries.filter(|entry| entry.expires_ms >= now.ms).count() as u64,
            queue: self
                .record
                .iter()
                .filter(|_| inspect.details)
                .flat_map(|record| record.waiters(now.ms))
                .collect(),
            hold_status: inspect.claim.as_ref().map(|claim| self.hold_status(claim)),
            foreign_fingerprint: inspect.details.then(|| self.foreign_fingerprint()).flatten(),
            audit: self
                .audit
                .iter()
                .filter(|_| inspect.details)
                .flat_map(|audit| audit.entries.clone())
                .collect(),
            history: self
                .history
                .iter()
                .filter(|_| inspect.details)
                .flat_map(|history| history.entries.clone())
                .collect(),
            shared_holders: self.all_holders(now),
            limit: self.record.as_ref().and_then(|record| record.limit),
            agreed: self.record.as_ref().and_then(|record| record.agreed),
            votes: None,
            blocked_ms: None,
            skipped: Skipped::default(),
        })
    }

    /// Grants the lock to waiters, as far as it is free.
    pub(super) fn serve_queue(&mut self, now: Now, notifications: &mut Vec<Notification>) {
        if self.kind.is_shared() {
            self.serve_shared_queue(now, None, notifications);
        } else if self.value.is_none() {
            self.grant_next(now, None, notifications);
        }
    }

    /// The greatest token that this lock has given or reserved; if none is known, the greatest of the idle locks.
    pub(super) fn greatest_fence(&self) -> Option<FencingToken> {
        let known = self.record.as_ref().filter(|record| record.last_fence.is_some());
        known.map_or(self.watermark.fence, Record::greatest_fence)
    }

    /// Shortens the life of the record if a release has left the lock idle: then it only remembers which holds have ended.
    pub(super) fn settle_idle(&mut self, now: Now) {
        if self.value.is_none()
            && let Some(record) = self.record.take_if(|record| !record.has_entries())
        {
            self.watermark.raise(now.ms, record.greatest_fence());
            self.record = Some(record.ended_only(now.ms));
        }
    }

    /// The record, created if there is none: for a hold or a queue entry that lasts `lease_ms`.
    pub(super) fn record_or_new(&mut self, now: Now, lease_ms: u64) -> &mut Record {
        self.record.get_or_insert_with(|| Record::new(Record::expiry_ms(None, now.ms, lease_ms)))
    }

    /// Refuses to treat a value of another kind as this lock.
    pub(super) fn refuse_other_types(&self) -> Result<(), Refused> {
        let found = self.value.as_ref().map(|value| &value.content);
        match (self.kind, found) {
            (_, None) | (Kind::Reentrant, Some(Content::ReentrantHolds(_))) => Ok(()),
            (kind, Some(Content::Token(token))) if kind.matches_token(token) => Ok(()),
            (kind, Some(Content::SharedHolders(_))) if kind.is_shared() => Ok(()),
            (_, Some(content)) => Err(Refused::WrongKind { found: content.type_name().to_owned() }),
        }
    }
}

/// Whether an operation on a shared lock changes it, or would: one that only reads, or finds another holder than expected,
/// drops no expired holds.
const fn is_change(op: &Op, reply: &Result<Reply, Refused>) -> bool {
    match reply {
        Ok(
            Reply::Evict(Evicted::Removed { .. })
            | Reply::ForceRelease(ForceReleased::Released)
            | Reply::Resize(Resized::Done),
        ) => true,
        _ => matches!(op, Op::Acquire(_) | Op::Release(_)),
    }
}
