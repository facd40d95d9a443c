//! One lock: one holder, a queue, a grant. A Mutex, an Election, whose holder leads, or a ReentrantMutex, whose holder is an
//! owner that may have several holds: what stands at the key is all that tells them apart. What several may have side by side
//! is in `shared.rs`.
//!
//! 1. A hold is extended, released or evicted only where its claim stands: the value at the key, and,
//!    for a value of the user's own, the hold in the record.
//! 2. A lock that is found free goes to the first live place of the queue, whoever found it free.
//! 3. What ended a hold is written beside it, so that the second release is told "released".
//! 4. A session is taken for dead only by whoever looks at it in the same step, and only what lives with its
//!    session is taken from it.
//! 5. Entries of a ReentrantMutex that are over count no more, but lie there until something is written: who only reads
//!    writes nothing.
//! 6. A lock that rests is taken, by nobody: what stands at its key is no claim's, so that nothing which is sent about the
//!    hold before it lengthens or ends that.

use super::audit::Audit;
use super::entries::{Entries, Entry};
use super::parts::Parts;
use super::record::{LOOKS_AT_MOST, PlaceId, Record, Reserved, SHORT_LEASE_MS, Tenant};
use super::session::{Alive, Vital, everybody};
use crate::cohort::{Block, Reserve};
use crate::{
    Acquire, Acquired, Ahead, AuditEntry, Claim, Ended, Entered, Evict, Evicted, Extend, Extended, Fate,
    FencingToken, Fingerprint, Free, Freed, HoldId, Holder, Inspect, Inspection, Kind, Label, Life, Op,
    OwnValue, Pass, Portion, Raise, Raised, Refused, Release, Released, Reply, Seen, SessionId, Share, Wake,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One lock.
///
/// ```
/// use leasehold_core::model::{LockState, everybody};
/// use leasehold_core::{Acquire, Acquired, Claim, HoldId, Label, Life, Op, Portion, Reply, SessionId};
///
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let label = Label::new("a worker").expect("a short text is a label");
///     let (life, ahead, portion) = (Life::Session { alive_ms: 10_000 }, None, Portion::Whole);
///     Op::Acquire(Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, life, ahead, portion })
/// };
/// let granted = |reply| matches!(reply, Reply::Acquire(Acquired::Granted { .. }));
///
/// let mut lock = LockState::default();
/// let second = 1_000_000; // in microseconds of the store's clock
/// assert!(granted(lock.apply(second, &ask(1), &everybody).0));
/// assert!(granted(lock.apply(2 * second, &ask(1), &everybody).0)); // the same hold again changes nothing
/// assert!(!granted(lock.apply(3 * second, &ask(2), &everybody).0));
/// assert!(granted(lock.apply(9 * second, &ask(2), &everybody).0)); // the first one's lease has ended
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// What kind of lock it is.
    pub kind: Kind,
    /// What stands at the lock's key.
    pub value: Option<Value>,
    /// What is kept beside it.
    pub record: Option<Record>,
    /// Who took the lock from whom.
    pub audit: Option<Audit>,
}

/// What stands at a lock's key.
///
/// [`LockState`] has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// What it is.
    pub content: Content,
    /// When it expires, in milliseconds of the store's clock; `None` if it never does.
    pub expires_ms: Option<u64>,
}

impl Value {
    /// Whether it is not sure to be there until then, in milliseconds of the store's clock.
    fn ends_before(&self, until_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at_ms| at_ms < until_ms)
    }

    /// What locks of other kinds see of it: its type.
    #[must_use]
    pub fn to_others(&self) -> Self {
        Self { content: Content::Other(self.content.word().to_owned()), expires_ms: self.expires_ms }
    }
}

/// What stands at a lock's key, by its type.
///
/// [`LockState`] has it, and shows what it is for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// The token of a Mutex.
    Token(String),
    /// The entries of a ReentrantMutex.
    Entries(Entries),
    /// What those have who share a lock of another kind.
    Parts(Parts),
    /// Something of another type.
    Other(String),
}

impl Content {
    /// The token of a Mutex.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::Entries(_) | Self::Parts(_) | Self::Other(_) => None,
        }
    }

    /// The entries of a ReentrantMutex.
    pub fn entries(&self) -> Option<&Entries> {
        match self {
            Self::Entries(entries) => Some(entries),
            Self::Token(_) | Self::Parts(_) | Self::Other(_) => None,
        }
    }

    /// What those have who share the lock.
    pub fn parts(&self) -> Option<&Parts> {
        match self {
            Self::Parts(parts) => Some(parts),
            Self::Token(_) | Self::Entries(_) | Self::Other(_) => None,
        }
    }

    /// Its type, as Redis calls it.
    pub fn word(&self) -> &str {
        match self {
            Self::Token(_) => "string",
            Self::Entries(_) | Self::Parts(_) => "hash",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Debug for Content {
    /// Does not show a token: whoever knows it can end the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(…)"),
            Self::Entries(entries) => entries.fmt(f),
            Self::Parts(parts) => parts.fmt(f),
            Self::Other(word) => f.debug_tuple("Other").field(word).finish(),
        }
    }
}

/// The store's time, read once an operation.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) us: u64,
    pub(super) ms: u64,
}

impl LockState {
    /// A lock of that kind, of which nothing is known.
    pub fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Executes one operation at `now_us` microseconds of the store's clock. `alive` knows the sessions.
    pub fn apply(&mut self, now_us: u64, op: &Op, alive: Alive<'_>) -> (Reply, Vec<Wake>) {
        // Without an owner the hold would be taken for him, who is shown to everybody.
        if let Some(refused) = op.misfit(self.kind) {
            return (Reply::Refused(refused), Vec::new());
        }
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        let lies = self.value.clone();
        self.drop_over(now);
        let found = self.value.clone();
        let mut wakes = Vec::new();
        let reply = match op {
            Op::Acquire(ask) => self.look(now, ask, alive, &mut wakes).map(Reply::Acquire),
            Op::Extend(extend) => Ok(Reply::Extend(self.extend(now, extend))),
            Op::Release(release) => Ok(Reply::Release(self.release(now, release, &mut wakes))),
            Op::Inspect(inspect) => self.inspect(now, inspect).map(Reply::Inspect),
            Op::Evict(evict) => self.evict(now, evict, alive, &mut wakes).map(Reply::Evict),
            Op::Free(free) => self.free(now, free, &mut wakes).map(Reply::Free),
            Op::Resize(resize) => self.resize(now, *resize, &mut wakes).map(Reply::Resize),
            Op::Raise(raise) => Ok(Reply::Raise(self.raise(now, raise))),
        };
        let too_soon = matches!((op, &reply), (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended | Extended::Reserved { .. })))
            if lies.as_ref().is_some_and(|lies| lies.ends_before(now.ms + extend.lease_ms)));
        match (op, &reply) {
            (Op::Extend(extend), Ok(Reply::Extend(Extended::Extended))) if self.kind.is_shared() => {
                self.extend_part(now, extend, lies);
            }
            // A client of another library may have brought the key's end nearer than our holds say.
            _ if self.value == found && !too_soon => self.value = lies,
            _ => {}
        }
        (reply.unwrap_or_else(Reply::Refused), wakes)
    }

    /// Takes all of several locks, or none of them. Nobody queues, and nobody is passed: a free lock that others wait for
    /// stays theirs.
    pub fn take_all(locks: &mut [(&mut Self, &Acquire)], now_us: u64) -> Vec<Share> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        let probe = |(state, ask): &mut (&mut Self, &Acquire)| {
            state.expire(now);
            // Of entries that are over nothing is dropped where nothing is written.
            let mut seen = state.clone();
            seen.drop_over(now);
            seen.probe(now, ask)
        };
        let shares: Vec<_> = locks.iter_mut().map(probe).collect();
        if shares.iter().any(|share| matches!(share, Share::InTheWay(_))) {
            return shares;
        }
        let take = |(state, ask): &mut (&mut Self, &Acquire)| {
            let (reply, _) = state.apply(
                now_us,
                &Op::Acquire(Acquire { queue: None, ahead: None, ..(*ask).clone() }),
                &everybody,
            );
            match reply {
                Reply::Acquire(acquired) => Share::Had(acquired),
                Reply::Refused(refused) => Share::InTheWay(Err(refused)),
                _ => Share::Open,
            }
        };
        locks.iter_mut().map(take).collect()
    }

    /// Whether a lock could be taken.
    fn probe(&self, now: Now, ask: &Acquire) -> Share {
        if self.kind.is_shared() || !ask.portion.suits(self.kind) {
            // What several can have is not taken together with others.
            return Share::InTheWay(Err(Refused::NoSuchPart));
        }
        if let Err(refused) = self.refuse_other_types() {
            return Share::InTheWay(Err(refused));
        }
        if let Some(how) = self.ended(&ask.claim.hold) {
            return Share::InTheWay(Ok(Acquired::Spent(how)));
        }
        if self.holds(&ask.claim) {
            return Share::Held;
        }
        let awaited = || self.record.as_ref().is_some_and(|record| record.is_awaited_at(now.ms));
        if self.entries_of(&ask.claim).is_some() || (self.value.is_none() && !awaited()) {
            return Share::Open;
        }
        let ahead = self.ahead(ask, None);
        let (holder, others) = (self.holder(now), Vec::new());
        Share::InTheWay(Ok(Acquired::Taken { holder, position: None, ahead, others }))
    }

    /// Ends what a dead session has of this lock, and gives the fencing token of its hold and whether it had a place
    /// (4). For a store that knows by itself who is dead; the lock is granted by the next operation that finds it free.
    pub fn bury(&mut self, now_us: u64, dead: SessionId, by: &Label) -> (Option<FencingToken>, bool) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.drop_over(now);
        let lives = |life: Life, hold: &HoldId| life.ends_with_session() && hold.session() == dead;
        let fence = self.take(now, Ended::Evicted, by, |life, hold| lives(life, hold));
        let place = self.record.as_mut().is_some_and(|record| {
            let of_it: Vec<_> = record
                .tickets
                .values()
                .filter(|id| id.session() == dead)
                .filter_map(|id| Some((*id, record.places.get(id)?)))
                .take(LOOKS_AT_MOST)
                .filter(|(_, place)| lives(place.life, &place.claim.hold))
                .map(|(id, _)| id)
                .collect();
            // Each of them is left, not only the first; but a session that waits for very many is done with in several
            // steps.
            of_it.into_iter().filter_map(|id| record.leave(id)).count() > 0
        });
        (fence, place)
    }

    /// Ends those holds that `goes` says, which others end than their holders; gives the fencing token of the first, if
    /// there were any.
    pub(super) fn take(
        &mut self,
        now: Now,
        how: Ended,
        by: &Label,
        goes: impl Fn(Life, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        if self.kind.is_shared() {
            return self.take_parts(now, how, by, goes);
        }
        let mut lost = self.lessees();
        lost.retain(|tenant| goes(tenant.life, &tenant.claim.hold));
        let first = lost.first()?;
        let fence = self.fence();
        self.keep_entries(now, |entry| !goes(entry.life, &entry.hold));
        if let Some(record) = &mut self.record {
            for tenant in &lost {
                record.ended.note(tenant.claim.hold, how);
            }
        }
        let whose = Some(first.label.clone());
        let entry = AuditEntry { at_ms: now.ms, how, fence, whose, by: by.clone() };
        Audit::note(&mut self.audit, entry);
        fence
    }

    /// Keeps of a ReentrantMutex the entries that are to stay, and nothing of a Mutex. Nobody has the lock where none is
    /// left; and where only ours are left, the key lasts no longer than the last of them, so that clients of other
    /// libraries do not wait for those that are gone.
    fn keep_entries(&mut self, now: Now, stays: impl Fn(&Entry) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| match content {
            Content::Entries(entries) => {
                entries.retain(stays);
                if entries.is_ours_alone() {
                    // No key is made to end in this very millisecond: Redis would take it for gone.
                    *expires_ms = entries.until_ms().map(|until_ms| until_ms.max(now.ms + 1));
                }
                entries.count == 0
            }
            Content::Token(_) | Content::Parts(_) | Content::Other(_) => true,
        });
    }

    /// Drops entries that are over.
    fn drop_over(&mut self, now: Now) {
        if self.value.as_ref().is_some_and(|value| value.content.entries().is_some()) {
            self.keep_entries(now, |entry| entry.until_ms >= now.ms);
        }
        self.keep_parts(now, |part| part.until_ms >= now.ms);
    }

    /// Whose sessions hold the lock, or held it last: whom a store that knows who is dead asks about.
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

    /// Whose sessions wait for the lock: whom such a store asks about, from the front on.
    pub fn waiters(&self) -> impl Iterator<Item = SessionId> {
        self.record.iter().flat_map(|record| record.tickets.values().map(PlaceId::session))
    }

    /// Executes an operation on a lock at whose key something of another kind stands.
    pub fn apply_beside(
        &mut self,
        other: &Value,
        now_us: u64,
        op: &Op,
        alive: Alive<'_>,
    ) -> (Reply, Vec<Wake>) {
        self.value = Some(other.to_others());
        let applied = self.apply(now_us, op, alive);
        self.value = None;
        applied
    }

    /// What stands at the lock's key at `now_us`, for those of other kinds.
    pub fn stands(&mut self, now_us: u64) -> Option<&Value> {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.as_ref()
    }

    /// Whose sessions hold the lock at `now_us`, whatever the holds live with.
    pub fn held_by(&mut self, now_us: u64) -> Vec<SessionId> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        self.drop_over(now);
        if self.lessee().is_some() && !self.rests() { self.holders() } else { Vec::new() }
    }

    /// Whether nothing is left to remember at `now_us`.
    pub fn is_over(&mut self, now_us: u64) -> bool {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        self.value.is_none() && self.record.is_none() && self.audit.is_none()
    }

    fn expire(&mut self, now: Now) {
        // As Redis does: what expires at an instant is still there in its millisecond.
        self.value.take_if(|value| value.expires_ms.is_some_and(|at_ms| now.ms > at_ms));
        self.record.take_if(|record| now.ms > record.expires_ms);
        self.audit.take_if(|audit| now.ms > audit.expires_ms);
    }

    /// An acquire by itself: it may name the session ahead.
    fn look(
        &mut self,
        now: Now,
        ask: &Acquire,
        alive: Alive<'_>,
        wakes: &mut Vec<Wake>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, ask)? {
            return Ok(settled);
        }
        let alive_ms = ask.ahead.and_then(|ahead| {
            let alive_ms = self.alive_ms(now, ahead, alive);
            if alive_ms.is_none() {
                self.bury(now.us, ahead, &ask.label);
            }
            alive_ms.map(|alive_ms| (ahead, alive_ms))
        });
        let mut acquired = if self.kind.is_shared() {
            self.acquire_part(now, ask, alive_ms.map(|(asked, _)| asked), wakes)?
        } else {
            self.acquire(now, ask, wakes)?
        };
        if let Acquired::Taken { ahead: Some(ahead), .. } = &mut acquired {
            ahead.alive_ms =
                alive_ms.filter(|(asked, _)| *asked == ahead.session).map(|(_, alive_ms)| alive_ms);
        }
        Ok(acquired)
    }

    /// How long a session is to be taken for alive. One that is not known has the benefit of the doubt for as long as its
    /// client may believe in the hold that it has here.
    fn alive_ms(&self, now: Now, session: SessionId, alive: Alive<'_>) -> Option<u64> {
        match alive(session) {
            Vital::Alive(alive_ms) => Some(alive_ms),
            Vital::Lapsed => None,
            Vital::Unknown => {
                let doubted = self.lessees().into_iter().filter_map(|tenant| match tenant.life {
                    Life::Session { alive_ms } if tenant.claim.hold.session() == session => {
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
        wakes: &mut Vec<Wake>,
    ) -> Result<Evicted, Refused> {
        self.refuse_other_types()?;
        if self.alive_ms(now, evict.dead, alive).is_some() {
            return Ok(Evicted::Alive);
        }
        let (hold, place) = self.bury(now.us, evict.dead, &evict.by);
        self.serve(now, wakes);
        Ok(Evicted::Gone { hold, place })
    }

    fn free(&mut self, now: Now, free: &Free, wakes: &mut Vec<Wake>) -> Result<Freed, Refused> {
        self.refuse_other_types()?;
        if self.kind.is_shared() {
            return Ok(self.free_part(now, free, wakes));
        }
        let fence = self.fence();
        match free.seen {
            Seen::Hold(seen) if fence == Some(seen) => {
                // Each once, the oldest first: a script has no other order.
                let told: Vec<_> = self.lessees().iter().map(|tenant| tenant.claim.hold.session()).collect();
                let first = told.iter().enumerate().filter(|(at, to)| !told[..*at].contains(to));
                wakes.extend(first.map(|(_, to)| Wake::Freed { to: *to, fence: seen }));
                self.take(now, Ended::Freed, &free.by, |_, _| true);
                // A client of another library may have entered, too.
                self.value = None;
            }
            Seen::Stranger(fingerprint) if self.stranger() == Some(fingerprint) => {
                self.value = None;
                let (how, by) = (Ended::Freed, free.by.clone());
                Audit::note(&mut self.audit, AuditEntry { at_ms: now.ms, how, fence: None, whose: None, by });
            }
            _ => return Ok(Freed::Changed { holder: self.holder(now) }),
        }
        self.pump(now, None, wakes);
        Ok(Freed::Freed)
    }

    fn acquire(&mut self, now: Now, ask: &Acquire, wakes: &mut Vec<Wake>) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, ask)? {
            return Ok(settled);
        }
        if self.value.is_none() && self.pump(now, Some(ask), wakes) == Pumped::Asker {
            return Ok(self.confirm(now, ask));
        }
        // Also where the first in the queue has just been given it: his owner may be the asker's.
        if self.enter(now, ask) {
            return Ok(self.confirm(now, ask));
        }
        // Ours have their own ends, and are not to lose the key before them.
        let ours = self.entries().is_some_and(|entries| !entries.holds.is_empty());
        if let (false, Some(value), Some(adopt_ms)) = (ours, &mut self.value, ask.adopt_ms) {
            value.expires_ms.get_or_insert(now.ms + adopt_ms);
        }
        Ok(self.wait(now, ask, wakes))
    }

    /// The reply to a hold that needs nothing more: it was ended, or it is there.
    pub(super) fn settled(&mut self, now: Now, ask: &Acquire) -> Result<Option<Acquired>, Refused> {
        self.refuse_other_types()?;
        if let Some(how) = self.ended(&ask.claim.hold) {
            return Ok(Some(Acquired::Spent(how)));
        }
        Ok(self.holds(&ask.claim).then(|| self.confirm(now, ask)))
    }

    /// Queues, if asked so, and tells who has the lock.
    fn wait(&mut self, now: Now, ask: &Acquire, wakes: &mut Vec<Wake>) -> Acquired {
        let position = ask.queue.as_ref().map(|queue| {
            let kept_ms = queue.kept_ms;
            let id = PlaceId::of(self.kind, &ask.claim.hold);
            self.record_or_new(now, kept_ms).enqueue(now.ms, id, ask, queue)
        });
        wakes.extend(self.note(ask));
        let ahead = self.ahead(ask, position);
        Acquired::Taken { holder: self.holder(now), position, ahead, others: Vec::new() }
    }

    /// Tells the holder that another asks for the lock, if he wants to know.
    fn note(&self, ask: &Acquire) -> Option<Wake> {
        let fence = self.record.as_ref().filter(|record| record.tells()).and_then(|record| record.last)?;
        let to = self.tenant().filter(|tenant| self.holds(&tenant.claim))?.claim.hold.session();
        (to != ask.claim.hold.session()).then_some(Wake::Wanted { to, fence })
    }

    /// Who stands right before one who has asked, if he can die.
    fn ahead(&self, ask: &Acquire, position: Option<u64>) -> Option<Ahead> {
        let queue = self.record.as_ref().filter(|_| position.is_some());
        let before = queue.and_then(|record| record.before(PlaceId::of(self.kind, &ask.claim.hold)));
        let (life, hold) = if let Some(place) = before {
            (place.life, place.claim.hold)
        } else {
            let tenant = self.lessee()?;
            (tenant.life, tenant.claim.hold)
        };
        life.ends_with_session().then(|| Ahead { session: hold.session(), alive_ms: None })
    }

    /// Enters once more where the asker's owner has the lock: past the queue, and by the same fencing token (R4, R10).
    fn enter(&mut self, now: Now, ask: &Acquire) -> bool {
        let Some(entries) = self.entries_of(&ask.claim) else { return false };
        let tenant = Tenant::asking(now.ms, ask);
        // Only a client of another library has it so far.
        let fence = entries.fence.unwrap_or_else(|| self.install(now, tenant.clone(), ask.lease_ms));
        if let Some(Value { content: Content::Entries(entries), expires_ms }) = &mut self.value {
            entries.enter(tenant, fence, ask.lease_ms);
            *expires_ms = (*expires_ms).max(entries.until_ms());
        }
        if let Some(record) = &mut self.record {
            record.keep(now.ms, ask.lease_ms);
            if record.waits(self.kind, &ask.claim.hold) {
                record.leave(PlaceId::of(self.kind, &ask.claim.hold));
            }
        }
        true
    }

    /// The hold is there: tells so, and mends what a cut-off may have left undone.
    pub(super) fn confirm(&mut self, now: Now, ask: &Acquire) -> Acquired {
        let others_wait = self.record.as_ref().is_some_and(Record::is_awaited);
        if let Some(part) = self.part(&ask.claim.hold) {
            let (fence, remaining_ms) = (part.fence, part.until_ms - now.ms);
            return Acquired::Granted { fence, remaining_ms, others_wait, entered: None };
        }
        if let Some(entries) = self.entries() {
            let until_ms = entries.entry(&ask.claim.hold).map_or(now.ms, |entry| entry.until_ms);
            return Acquired::Granted {
                fence: entries.fence.unwrap_or(FencingToken::new(0)),
                remaining_ms: until_ms - now.ms,
                others_wait,
                entered: Some(Entered { count: entries.count, lease_ms: entries.lease_ms }),
            };
        }
        let known = self.tenant().is_some_and(|tenant| tenant.claim == ask.claim);
        let last = self.record.as_ref().and_then(|record| record.last).filter(|_| known);
        let fence = last.unwrap_or_else(|| self.install(now, Tenant::asking(now.ms, ask), ask.lease_ms));
        let mut expires_ms = now.ms + ask.lease_ms;
        if let Some(value) = &mut self.value {
            expires_ms = *value.expires_ms.get_or_insert(expires_ms);
        }
        Acquired::Granted { fence, remaining_ms: expires_ms - now.ms, others_wait, entered: None }
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
                // A part is lengthened where what lies beside it is known, too.
                Content::Parts(_) | Content::Token(_) | Content::Other(_) => {}
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

    /// Raises the fencing token of a hold, and never lowers it (1). All holds of an owner have one.
    fn raise(&mut self, now: Now, raise: &Raise) -> Raised {
        let known = || self.tenant().is_some_and(|tenant| tenant.claim == raise.claim);
        let entries = self.entries().is_some();
        if !self.holds(&raise.claim) || !(entries || known()) {
            return Raised::NotHeld;
        }
        let Some(record) = &mut self.record else { return Raised::NotHeld };
        record.last = record.last.max(Some(raise.fence));
        record.keep(now.ms, 0);
        if let Some(Value { content: Content::Entries(entries), .. }) = &mut self.value {
            entries.fence = entries.fence.max(Some(raise.fence));
        }
        Raised::Raised
    }

    /// Reserves fencing tokens for a hold that is known to have been given last.
    fn reserve(&mut self, now: Now, claim: &Claim, reserve: Reserve) -> Option<Extended> {
        let record = self.record.as_mut()?;
        record.tenant.as_ref().filter(|tenant| tenant.claim == *claim)?;
        record.last?;
        let tells = reserve.tell || record.tells();
        let (block, upto) = Block::after(record.greatest(), now.us, reserve.tokens);
        record.reserved = Some(Reserved { upto, tells });
        Some(Extended::Reserved { block, others_wait: record.is_awaited() })
    }

    fn release(&mut self, now: Now, release: &Release, wakes: &mut Vec<Wake>) -> Released {
        if self.kind.is_shared() {
            return self.release_part(now, release, wakes);
        }
        let hold = release.claim.hold;
        let found = self.fate(&release.claim);
        let holder = if found == Fate::Superseded { self.holder(now) } else { None };
        let rest_ms = if found == Fate::Held { self.rest(now, release) } else { None };
        if found == Fate::Held {
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
            record.leave(PlaceId::of(self.kind, &hold));
        }
        // Told to the second one, too: the reply to the first may have been lost.
        let left = self.entries_of(&release.claim).map_or(0, |entries| entries.count);
        let grants = !matches!(release.pass, Pass::Free | Pass::Tell) && rest_ms.is_none();
        let next = match (&release.next, grants) {
            (Some(next), true) => Some(self.acquire(now, next, wakes)),
            (Some(next), false) => {
                // It may be here for the second time: the hold may have been granted since, and ended.
                Some(self.settled(now, next).map(|settled| match settled {
                    Some(settled) => settled,
                    None if self.enter(now, next) => self.confirm(now, next),
                    None => self.wait(now, next, wakes),
                }))
            }
            (None, true) => {
                if self.value.is_none() {
                    self.pump(now, None, wakes);
                }
                None
            }
            (None, false) => None,
        };
        Released { found, left, holder, next }
    }

    /// Leaves a lock that a release gives up taken by nobody, if it is to rest; says for how long yet (6).
    fn rest(&mut self, now: Now, release: &Release) -> Option<u64> {
        let Pass::Rest { for_ms } = release.pass else { return None };
        let known = self.tenant().is_some_and(|tenant| tenant.claim.hold == release.claim.hold);
        let since_ms = self.tenant().filter(|_| known).map_or(now.ms, |tenant| tenant.since_ms);
        let until_ms = since_ms.saturating_add(for_ms);
        let rest_ms = until_ms.checked_sub(now.ms).filter(|rest_ms| *rest_ms > 0)?;
        let last = self.record.as_ref().and_then(|record| record.last).filter(|_| known);
        self.value =
            Some(Value { content: Content::Token(self.kind.rest(last)), expires_ms: Some(until_ms) });
        Some(rest_ms)
    }

    /// Whether the lock is taken by nobody, after the hold of whoever had it last.
    fn rests(&self) -> bool {
        let last =
            self.record.as_ref().filter(|record| record.tenant.is_some()).and_then(|record| record.last);
        let stands = self.value.as_ref().and_then(|value| value.content.token());
        last.is_some() && stands.is_some_and(|stands| *stands == self.kind.rest(last))
    }

    fn inspect(&self, now: Now, inspect: &Inspect) -> Result<Inspection, Refused> {
        self.refuse_other_types()?;
        let places = self.record.iter().flat_map(|record| record.places.values());
        Ok(Inspection {
            holder: self.holder(now),
            waiting: places.filter(|place| place.expires_ms >= now.ms).count() as u64,
            fate: inspect.claim.as_ref().map(|claim| self.fate(claim)),
            stranger: inspect.in_full.then(|| self.stranger()).flatten(),
            audit: self
                .audit
                .iter()
                .filter(|_| inspect.in_full)
                .flat_map(|audit| audit.entries.clone())
                .collect(),
            sharers: self.sharers(now),
            limit: self.record.as_ref().and_then(|record| record.limit),
        })
    }

    /// Serves the queue, where a lock is found that has room, or is free.
    fn serve(&mut self, now: Now, wakes: &mut Vec<Wake>) {
        if self.kind.is_shared() {
            self.pump_parts(now, None, wakes);
        } else if self.value.is_none() {
            self.pump(now, None, wakes);
        }
    }

    /// Gives the free lock to the first live place, or to the asker if none is before it.
    fn pump(&mut self, now: Now, asker: Option<&Acquire>, wakes: &mut Vec<Wake>) -> Pumped {
        for _ in 0..LOOKS_AT_MOST {
            let Some(place) = self.record.as_mut().and_then(Record::take_first) else { break };
            let session = place.claim.hold.session();
            if let Some(ask) = asker
                && session == ask.claim.hold.session()
                // It stands for all of the process who wait; who does not is one more who comes.
                && (ask.queue.is_some() || place.claim.hold == ask.claim.hold)
            {
                self.give(now, Tenant::asking(now.ms, ask), ask.lease_ms);
                return Pumped::Asker;
            }
            if place.expires_ms < now.ms {
                continue;
            }
            let (nonce, lease_ms) = (place.nonce, place.lease_ms);
            let fence = self.give(now, Tenant::waiting(now.ms, place), lease_ms);
            wakes.push(Wake::Grant { to: session, nonce, fence });
            return Pumped::Another;
        }
        if self.record.as_ref().is_some_and(Record::is_awaited) {
            return Pumped::Nobody;
        }
        let Some(ask) = asker else { return Pumped::Nobody };
        self.give(now, Tenant::asking(now.ms, ask), ask.lease_ms);
        Pumped::Asker
    }

    /// Makes somebody the holder of the free lock.
    fn give(&mut self, now: Now, tenant: Tenant, lease_ms: u64) -> FencingToken {
        let (token, first) = (tenant.claim.token(), tenant.clone());
        let fence = self.install(now, tenant, lease_ms);
        let content = match (self.kind, OwnValue::new(&token)) {
            (Kind::Reentrant, Ok(owner)) => Content::Entries(Entries::of(first, owner, fence, lease_ms)),
            _ => Content::Token(self.kind.token(&first.claim)),
        };
        self.value = Some(Value { content, expires_ms: Some(now.ms + lease_ms) });
        fence
    }

    /// Writes a new tenant and its fencing token into the record.
    fn install(&mut self, now: Now, tenant: Tenant, lease_ms: u64) -> FencingToken {
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
            (kind, Some(Content::Token(token))) if kind.owns(token) => Ok(()),
            (kind, Some(Content::Parts(_))) if kind.is_shared() => Ok(()),
            (_, Some(content)) => Err(Refused::WrongKind { found: content.word().to_owned() }),
        }
    }

    /// The entries of a ReentrantMutex that somebody has.
    fn entries(&self) -> Option<&Entries> {
        self.value.as_ref()?.content.entries()
    }

    /// The entries of a ReentrantMutex, if the owner of a claim is the one who has it.
    fn entries_of(&self, claim: &Claim) -> Option<&Entries> {
        self.entries().filter(|entries| entries.owner.as_str() == claim.token())
    }

    /// The one of ours who has the lock; the first, where an owner has it several times.
    fn lessee(&self) -> Option<Tenant> {
        match (self.entries(), self.parts()) {
            (Some(entries), _) => entries.lessees().next(),
            (_, Some(parts)) => parts.lessees().next(),
            // A rest ends with nobody's session.
            _ if self.rests() => self.tenant().map(|tenant| Tenant { life: Life::Lease, ..tenant.clone() }),
            _ => self.tenant().filter(|tenant| self.holds(&tenant.claim)).cloned(),
        }
    }

    /// All of ours who have the lock: several holds of one owner, or of all who share it.
    pub(super) fn lessees(&self) -> Vec<Tenant> {
        match (self.entries(), self.parts()) {
            (Some(entries), _) => entries.lessees().collect(),
            (_, Some(parts)) => parts.lessees().collect(),
            _ => self.lessee().into_iter().collect(),
        }
    }

    /// The fencing token of the one of ours who has the lock.
    fn fence(&self) -> Option<FencingToken> {
        match self.entries() {
            Some(entries) => entries.fence,
            None => self.lessee().and(self.record.as_ref()).and_then(|record| record.last),
        }
    }

    fn tenant(&self) -> Option<&Tenant> {
        self.record.as_ref().and_then(|record| record.tenant.as_ref())
    }

    pub(super) fn ended(&self, hold: &HoldId) -> Option<Ended> {
        let record = self.record.as_ref()?;
        // A script that was cut off may have left the lock resting before it could say more.
        let rests = || self.tenant().is_some_and(|tenant| tenant.claim.hold == *hold) && self.rests();
        record.ended.how(hold).or_else(|| rests().then_some(Ended::Released))
    }

    /// Whether a claim has the lock (1).
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
        // A stranger may use the same value as a user of ours, so that it alone proves nothing.
        let known = || self.tenant().is_some_and(|tenant| tenant.claim == *claim);
        claim.value.is_none() || (known() && self.ended(&claim.hold).is_none())
    }

    pub(super) fn fate(&self, claim: &Claim) -> Fate {
        if self.holds(claim) {
            return Fate::Held;
        }
        // Others may have a part of a shared lock beside those that are gone: nobody came in their place.
        let side_by_side = self.kind.is_shared() && self.refuse_other_types().is_ok();
        let Some(record) = &self.record else {
            let others = self.value.is_some() && !side_by_side;
            return if others { Fate::Superseded } else { Fate::Forgotten };
        };
        if record.waits(self.kind, &claim.hold) {
            return Fate::Queued;
        }
        if let Some(how) = self.ended(&claim.hold) {
            return Fate::Ended(how);
        }
        if side_by_side {
            return Fate::Vanished;
        }
        if self.entries_of(claim).is_some() {
            // Its owner has the lock by other holds: nobody came after it.
            return Fate::Vanished;
        }
        let last = record.tenant.as_ref().is_some_and(|tenant| {
            // The first of them stands for all holds of an owner.
            let same_owner = self.kind == Kind::Reentrant && tenant.claim.value == claim.value;
            tenant.claim.hold == claim.hold || same_owner
        });
        match (&self.value, last, &record.tenant) {
            (None, true, _) => Fate::Vanished,
            (None, false, None) => Fate::Forgotten,
            _ => Fate::Superseded,
        }
    }

    /// Who has the lock, as far as a stranger may know.
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
                .filter(|tenant| tenant.life.ends_with_session())
                .map(|tenant| tenant.claim.hold.session()),
            rests: self.rests(),
            label: tenant.map(|tenant| tenant.label),
            portion: Portion::Whole,
        })
    }

    /// The fingerprint of what a client of another library has put at the key.
    fn stranger(&self) -> Option<Fingerprint> {
        let stands = match &self.value.as_ref()?.content {
            Content::Token(token) => token,
            Content::Entries(entries) => entries.owner.as_str(),
            Content::Parts(_) | Content::Other(_) => return None,
        };
        self.lessee().is_none().then(|| Fingerprint::of(stands))
    }
}

/// Who got a lock that was found free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pumped {
    Asker,
    Another,
    Nobody,
}
