//! The Mutex: one holder, a queue, a grant.
//!
//! 1. A hold is extended, released or evicted only where its claim stands: the value at the key, and,
//!    for a value of the user's own, the hold in the record.
//! 2. A lock that is found free goes to the first live place of the queue, whoever found it free.
//! 3. What ended a hold is written beside it, so that the second release is told "released".
//! 4. A session is taken for dead only by whoever looks at it in the same step, and only what lives with its
//!    session is taken from it.

use super::audit::Audit;
use super::record::{Record, Tenant};
use super::session::{Alive, Vital};
use crate::{
    Acquire, Acquired, Ahead, AuditEntry, Claim, Ended, Evict, Evicted, Extend, Extended, Fate, FencingToken,
    Fingerprint, Free, Freed, HoldId, Holder, Inspect, Inspection, Label, Life, Op, Pass, Refused, Release,
    Released, Reply, Seen, SessionId, Wake,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many places one operation looks at, so that no script runs for long.
const LOOKS_AT_MOST: u32 = 64;

/// One Mutex.
///
/// ```
/// use leasehold_core::model::{MutexState, everybody};
/// use leasehold_core::{Acquire, Acquired, Claim, HoldId, Label, Life, Op, Reply, SessionId};
///
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let label = Label::new("a worker").expect("a short text is a label");
///     let (life, ahead) = (Life::Session { alive_ms: 10_000 }, None);
///     Op::Acquire(Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, life, ahead })
/// };
/// let granted = |reply| matches!(reply, Reply::Acquire(Acquired::Granted { .. }));
///
/// let mut lock = MutexState::default();
/// let second = 1_000_000; // in microseconds of the store's clock
/// assert!(granted(lock.apply(second, &ask(1), &everybody).0));
/// assert!(granted(lock.apply(2 * second, &ask(1), &everybody).0)); // the same hold again changes nothing
/// assert!(!granted(lock.apply(3 * second, &ask(2), &everybody).0));
/// assert!(granted(lock.apply(9 * second, &ask(2), &everybody).0)); // the first one's lease has ended
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutexState {
    /// What stands at the lock's key.
    pub value: Option<Value>,
    /// What is kept beside it.
    pub record: Option<Record>,
    /// Who took the lock from whom.
    pub audit: Option<Audit>,
}

/// What stands at a lock's key.
///
/// [`MutexState`] has it, and shows what it is for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The token, or the type of what stands there where that is not a string.
    pub content: Result<String, String>,
    /// When it expires, in milliseconds of the store's clock; `None` if it never does.
    pub expires_ms: Option<u64>,
}

impl fmt::Debug for Value {
    /// Does not show a token: whoever knows it can end the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.content.as_ref().map(|_| "…");
        f.debug_struct("Value").field("content", &content).field("expires_ms", &self.expires_ms).finish()
    }
}

/// The store's time, read once an operation.
#[derive(Clone, Copy)]
struct Now {
    us: u64,
    ms: u64,
}

impl MutexState {
    /// Executes one operation at `now_us` microseconds of the store's clock. `alive` knows the sessions.
    pub fn apply(&mut self, now_us: u64, op: &Op, alive: Alive<'_>) -> (Reply, Vec<Wake>) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        let mut wakes = Vec::new();
        let reply = match op {
            Op::Acquire(ask) => self.look(now, ask, alive, &mut wakes).map(Reply::Acquire),
            Op::Extend(extend) => Ok(Reply::Extend(self.extend(now, extend))),
            Op::Release(release) => Ok(Reply::Release(self.release(now, release, &mut wakes))),
            Op::Inspect(inspect) => self.inspect(now, inspect).map(Reply::Inspect),
            Op::Evict(evict) => self.evict(now, evict, alive, &mut wakes).map(Reply::Evict),
            Op::Free(free) => self.free(now, free, &mut wakes).map(Reply::Free),
        };
        (reply.unwrap_or_else(Reply::Refused), wakes)
    }

    /// Ends what a dead session has of this lock, and gives the fencing token of its hold and whether it had a place
    /// (4). For a store that knows by itself who is dead; the lock is granted by the next operation that finds it free.
    pub fn bury(&mut self, now_us: u64, dead: SessionId, by: &Label) -> (Option<FencingToken>, bool) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        let lives = |life: Life, claim: &Claim| life.ends_with_session() && claim.hold.session() == dead;
        let holder =
            self.tenant().filter(|tenant| lives(tenant.life, &tenant.claim) && self.holds(&tenant.claim));
        let holder = holder.cloned();
        let Some(record) = &mut self.record else { return (None, false) };
        let fence = holder.as_ref().and(record.last);
        let place = record.places.get(&dead).is_some_and(|place| lives(place.life, &place.claim));
        if place {
            record.leave(dead);
        }
        if let Some(tenant) = holder {
            self.end(now, tenant, Ended::Evicted, by);
        }
        (fence, place)
    }

    /// Ends a hold that others end than its holder.
    fn end(&mut self, now: Now, tenant: Tenant, how: Ended, by: &Label) {
        self.value = None;
        let Some(record) = &mut self.record else { return };
        record.ended = Some((tenant.claim.hold, how));
        let entry =
            AuditEntry { at_ms: now.ms, how, fence: record.last, whose: Some(tenant.label), by: by.clone() };
        Audit::note(&mut self.audit, entry);
    }

    /// Who holds the lock and who is next in the queue: whom a store that knows who is dead asks about.
    pub fn sessions_at_the_front(&self) -> impl Iterator<Item = SessionId> {
        let record = self.record.iter();
        record.flat_map(|record| {
            let tenant = record.tenant.iter().map(|tenant| tenant.claim.hold.session());
            tenant.chain(record.tickets.values().copied())
        })
    }

    /// Whose session holds the lock at `now_us`, whatever the hold lives with.
    pub fn held_by(&mut self, now_us: u64) -> Option<SessionId> {
        self.expire(Now { us: now_us, ms: now_us / 1000 });
        let holder = self.tenant().filter(|tenant| self.holds(&tenant.claim))?;
        Some(holder.claim.hold.session())
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
        let mut acquired = self.acquire(now, ask, wakes)?;
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
                let tenant = self.tenant().filter(|tenant| self.holds(&tenant.claim))?;
                match tenant.life {
                    Life::Session { alive_ms } if tenant.claim.hold.session() == session => {
                        tenant.since_ms.saturating_add(alive_ms).checked_sub(now.ms)
                    }
                    _ => None,
                }
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
        if self.value.is_none() {
            self.pump(now, None, wakes);
        }
        Ok(Evicted::Gone { hold, place })
    }

    fn free(&mut self, now: Now, free: &Free, wakes: &mut Vec<Wake>) -> Result<Freed, Refused> {
        self.refuse_other_types()?;
        let holder = self.tenant().filter(|tenant| self.holds(&tenant.claim)).cloned();
        let last = self.record.as_ref().and_then(|record| record.last);
        match (free.seen, holder) {
            (Seen::Hold(fence), Some(tenant)) if last == Some(fence) => {
                wakes.push(Wake::Freed { to: tenant.claim.hold.session(), fence });
                self.end(now, tenant, Ended::Freed, &free.by);
            }
            (Seen::Stranger(fingerprint), None) if self.stranger() == Some(fingerprint) => {
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
        if let (Some(value), Some(adopt_ms)) = (&mut self.value, ask.adopt_ms) {
            value.expires_ms.get_or_insert(now.ms + adopt_ms);
        }
        Ok(self.wait(now, ask))
    }

    /// The reply to a hold that needs nothing more: it was ended, or it is there.
    fn settled(&mut self, now: Now, ask: &Acquire) -> Result<Option<Acquired>, Refused> {
        self.refuse_other_types()?;
        if let Some(how) = self.ended(&ask.claim.hold) {
            return Ok(Some(Acquired::Spent(how)));
        }
        Ok(self.holds(&ask.claim).then(|| self.confirm(now, ask)))
    }

    /// Queues, if asked so, and tells who has the lock.
    fn wait(&mut self, now: Now, ask: &Acquire) -> Acquired {
        let position = ask.queue.as_ref().map(|queue| {
            let kept_ms = queue.kept_ms;
            self.record_or_new(now, kept_ms).enqueue(now.ms, ask, queue)
        });
        let ahead = self.ahead(ask, position);
        Acquired::Taken { holder: self.holder(now), position, ahead }
    }

    /// Who stands right before one who has asked, if he can die.
    fn ahead(&self, ask: &Acquire, position: Option<u64>) -> Option<Ahead> {
        let record = self.record.as_ref()?;
        let before = position.and_then(|_| record.before(ask.claim.hold.session()));
        let (life, claim) = if let Some(place) = before {
            (place.life, &place.claim)
        } else {
            let tenant = self.tenant().filter(|tenant| self.holds(&tenant.claim))?;
            (tenant.life, &tenant.claim)
        };
        life.ends_with_session().then(|| Ahead { session: claim.hold.session(), alive_ms: None })
    }

    /// The hold is there: tells so, and mends what a cut-off may have left undone.
    fn confirm(&mut self, now: Now, ask: &Acquire) -> Acquired {
        let known = self.tenant().is_some_and(|tenant| tenant.claim == ask.claim);
        let last = self.record.as_ref().and_then(|record| record.last).filter(|_| known);
        let fence = last.unwrap_or_else(|| self.install(now, Tenant::asking(now.ms, ask), ask.lease_ms));
        let mut expires_ms = now.ms + ask.lease_ms;
        if let Some(value) = &mut self.value {
            expires_ms = *value.expires_ms.get_or_insert(expires_ms);
        }
        let others_wait = self.record.as_ref().is_some_and(Record::is_awaited);
        Acquired::Granted { fence, remaining_ms: expires_ms - now.ms, others_wait }
    }

    fn extend(&mut self, now: Now, extend: &Extend) -> Extended {
        if !self.holds(&extend.claim) {
            return Extended::NotHeld;
        }
        let until_ms = now.ms + extend.lease_ms;
        if let Some(value) = &mut self.value
            && value.expires_ms.is_none_or(|at_ms| at_ms < until_ms)
        {
            value.expires_ms = Some(until_ms);
        }
        if extend.keep_record
            && let Some(record) = &mut self.record
        {
            record.keep(now.ms, extend.lease_ms);
        }
        Extended::Extended
    }

    fn release(&mut self, now: Now, release: &Release, wakes: &mut Vec<Wake>) -> Released {
        let hold = release.claim.hold;
        let found = self.fate(&release.claim);
        let holder = if found == Fate::Superseded { self.holder(now) } else { None };
        if found == Fate::Held {
            self.value = None;
            self.record_or_new(now, 0).ended = Some((hold, Ended::Released));
        }
        if let Some(record) = &mut self.record
            && record.waits(&hold)
        {
            record.leave(hold.session());
        }
        let next = match (&release.next, release.pass) {
            (Some(next), Pass::Grant) => Some(self.acquire(now, next, wakes)),
            (Some(next), Pass::Free) => {
                // It may be here for the second time: the hold may have been granted since, and ended.
                Some(self.settled(now, next).map(|settled| settled.unwrap_or_else(|| self.wait(now, next))))
            }
            (None, Pass::Grant) => {
                if self.value.is_none() {
                    self.pump(now, None, wakes);
                }
                None
            }
            (None, Pass::Free) => None,
        };
        Released { found, holder, next }
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
        })
    }

    /// Gives the free lock to the first live place, or to the asker if none is before it.
    fn pump(&mut self, now: Now, asker: Option<&Acquire>, wakes: &mut Vec<Wake>) -> Pumped {
        for _ in 0..LOOKS_AT_MOST {
            let Some(place) = self.record.as_mut().and_then(Record::take_first) else { break };
            let session = place.claim.hold.session();
            if let Some(ask) = asker
                && session == ask.claim.hold.session()
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
        self.value = Some(Value { content: Ok(tenant.claim.token()), expires_ms: Some(now.ms + lease_ms) });
        self.install(now, tenant, lease_ms)
    }

    /// Writes a new tenant and its fencing token into the record.
    fn install(&mut self, now: Now, tenant: Tenant, lease_ms: u64) -> FencingToken {
        let record = self.record_or_new(now, lease_ms);
        let fence = FencingToken::after(record.last, now.us);
        record.last = Some(fence);
        record.tenant = Some(tenant);
        record.expires_ms = Record::kept_until_ms(record.last, now.ms, lease_ms);
        fence
    }

    fn record_or_new(&mut self, now: Now, lease_ms: u64) -> &mut Record {
        self.record.get_or_insert_with(|| Record::new(Record::kept_until_ms(None, now.ms, lease_ms)))
    }

    fn refuse_other_types(&self) -> Result<(), Refused> {
        match &self.value {
            Some(Value { content: Err(found), .. }) => Err(Refused::WrongKind { found: found.clone() }),
            _ => Ok(()),
        }
    }

    fn tenant(&self) -> Option<&Tenant> {
        self.record.as_ref().and_then(|record| record.tenant.as_ref())
    }

    fn ended(&self, hold: &HoldId) -> Option<Ended> {
        let (ended, how) = self.record.as_ref()?.ended.as_ref()?;
        (ended == hold).then_some(*how)
    }

    /// Whether a value is that of a claim.
    fn stands(value: Option<&Value>, claim: &Claim) -> bool {
        value.is_some_and(|value| value.content.as_ref() == Ok(&claim.token()))
    }

    /// Whether a claim has the lock (1).
    fn holds(&self, claim: &Claim) -> bool {
        if !Self::stands(self.value.as_ref(), claim) {
            return false;
        }
        // A stranger may use the same value as a user of ours, so that it alone proves nothing.
        let known = || self.tenant().is_some_and(|tenant| tenant.claim == *claim);
        claim.value.is_none() || (known() && self.ended(&claim.hold).is_none())
    }

    fn fate(&self, claim: &Claim) -> Fate {
        if self.holds(claim) {
            return Fate::Held;
        }
        let Some(record) = &self.record else {
            return if self.value.is_some() { Fate::Superseded } else { Fate::Forgotten };
        };
        if record.waits(&claim.hold) {
            return Fate::Queued;
        }
        if let Some(how) = self.ended(&claim.hold) {
            return Fate::Ended(how);
        }
        let last = record.tenant.as_ref().is_some_and(|tenant| tenant.claim.hold == claim.hold);
        match (&self.value, last, &record.tenant) {
            (None, true, _) => Fate::Vanished,
            (None, false, None) => Fate::Forgotten,
            _ => Fate::Superseded,
        }
    }

    /// Who has the lock, as far as a stranger may know.
    fn holder(&self, now: Now) -> Option<Holder> {
        let value = self.value.as_ref()?;
        let remaining_ms = value.expires_ms.map(|at_ms| at_ms - now.ms);
        let tenant = self.tenant().filter(|tenant| self.holds(&tenant.claim));
        Some(Holder {
            label: tenant.map(|tenant| tenant.label.clone()),
            remaining_ms,
            fence: tenant.and(self.record.as_ref()).and_then(|record| record.last),
            since_ms: tenant.map(|tenant| tenant.since_ms),
            session: tenant
                .filter(|tenant| tenant.life.ends_with_session())
                .map(|tenant| tenant.claim.hold.session()),
        })
    }

    /// The fingerprint of what a client of another library has put at the key.
    fn stranger(&self) -> Option<Fingerprint> {
        let value = self.value.as_ref()?.content.as_ref().ok()?;
        let ours = self.tenant().is_some_and(|tenant| self.holds(&tenant.claim));
        (!ours).then(|| Fingerprint::of(value))
    }
}

/// Who got a lock that was found free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pumped {
    Asker,
    Another,
    Nobody,
}
