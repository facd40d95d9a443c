//! A random workload for one lock: operations, some late or duplicated; sessions that begin, send heartbeats, and end or
//! lapse; a clock that stops, jumps to an expiry, or goes back; and foreign writes to the lock's keys.
//!
//! Each [`WorkloadStep`] depends on the steps before it. The caller applies the step to the implementations that it
//! compares.

use super::Random;
use leasehold_core::model::{Content, LockState, Record, ReentrantHolds, Sessions, SharedHolders, Value};
use leasehold_core::{
    Acquire, Claim, Enqueue, Evict, Extend, FencingToken, Fingerprint, ForceRelease, Heartbeat, HoldId,
    Inspect, Kind, Label, Liveness, Lock, LockKeys, LockMode, LockName, Nonce, ObservedHolder, Op, OwnValue,
    Proclaim, RECORD_TTL, RaiseFence, Release, ReleaseAction, Reserve, Resize, SessionId, SessionOp,
    TokenBlock,
};

/// The next step.
#[derive(Debug, Clone)]
pub enum WorkloadStep {
    /// An operation is sent.
    Sent(Op),
    /// An operation is sent twice.
    SentTwice(Op),
    /// An operation on sessions is sent.
    SentSession(SessionOp),
    /// A foreign write.
    ForeignWrite(ForeignWrite),
}

/// A write by another library or an operator to the keys of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignWrite {
    /// A client that uses a plain string acquires the lock for so many milliseconds.
    Acquires(u64),
    /// The same without an expiry.
    AcquiresWithoutExpiry,
    /// A lock of the other kind that is a string, Election or Mutex, is stored for so many milliseconds.
    SetsOtherKind(u64),
    /// A Redisson client acquires the `RLock` for this owner and so many milliseconds, if it is free or held by the owner.
    RedissonAcquires(&'static str, u64),
    /// A Redisson client releases the `RLock`, if this owner holds it.
    RedissonReleases(&'static str),
    /// An `RLock` of this owner without an expiry replaces the stored value.
    RedissonHoldsWithoutExpiry(&'static str),
    /// The lock's key is deleted.
    DeletesLock,
    /// The lock's key loses its expiry.
    RemovesExpiry,
    /// The record is deleted.
    DeletesRecord,
    /// A value of another type is stored for so many milliseconds.
    SetsList(u64),
    /// A hash that is no lock is stored, without an expiry.
    SetsHash,
    /// A lock of another kind with several holders is stored for so many milliseconds.
    SetsOtherSharedKind(Kind, u64),
}

/// The seeds of the session ids.
const SESSIONS: [u8; 4] = [0, 1, 2, 3];
/// The owners of a ReentrantMutex or RwLock. Of a ReentrantMutex, the last one is used by Redisson clients only.
const OWNERS: [&str; 3] = ["a:1", "two words", "5b0f0b3e-5c3a-4f0e-9d0a-6a5d4c3b2a10:61"];
/// The lease to which a Redisson client extends an `RLock` that it still holds.
const WATCHDOG_MS: u64 = 30_000;

/// The state of a workload.
#[derive(Debug)]
pub struct Workload {
    kind: Kind,
    random: Random,
    /// The usual number of parties of a Barrier or arrivals of a Latch.
    parties: u32,
    /// Operations that were sent, to be repeated.
    sent: Vec<Op>,
    /// The current claim of each session.
    claims: Vec<Claim>,
}

impl Workload {
    /// The workload of a Mutex for this seed.
    pub fn new(seed: u64) -> Self {
        Self::of(Kind::Mutex, seed)
    }

    /// The workload of a kind of lock for this seed.
    pub fn of(kind: Kind, seed: u64) -> Self {
        let parties = if seed.is_multiple_of(2) { 2 } else { 3 };
        Self { kind, random: Random::from_seed(seed), parties, sent: Vec::new(), claims: Vec::new() }
    }

    /// The random generator.
    pub fn random(&self) -> &Random {
        &self.random
    }

    /// The next step for a lock in this state.
    pub fn next_step(&mut self, state: &LockState) -> WorkloadStep {
        match self.random.below(24) {
            0..=1 => WorkloadStep::ForeignWrite(self.foreign_write(state)),
            20..=23 => WorkloadStep::SentSession(self.session_op()),
            // A late or duplicate request.
            2..=4 if !self.sent.is_empty() => WorkloadStep::Sent(self.random.pick(&self.sent).clone()),
            _ => {
                let op = self.op(state);
                self.sent.push(op.clone());
                if self.random.below(8) == 0 { WorkloadStep::SentTwice(op) } else { WorkloadStep::Sent(op) }
            }
        }
    }

    /// How far the clock advances before the step, in microseconds.
    pub fn time_us(&self, state: &LockState, sessions: &Sessions, now_us: u64) -> i64 {
        let now_ms = (now_us / 1000).cast_signed();
        let mut ends: Vec<u64> = Vec::new();
        ends.extend(state.value.as_ref().and_then(|value| value.expires_ms));
        if let Some(entries) = state.value.as_ref().and_then(|value| value.content.reentrant_holds()) {
            ends.extend(entries.holds.iter().map(|entry| entry.until_ms));
        }
        if let Some(holders) = state.value.as_ref().and_then(|value| value.content.shared_holders()) {
            ends.extend(holders.holds.iter().map(|hold| hold.until_ms));
        }
        if let Some(record) = &state.record {
            ends.extend(record.entries.values().map(|entry| entry.expires_ms));
            if self.random.below(4) == 0 {
                ends.push(record.expires_ms);
            }
        }
        ends.extend(sessions.records.values().map(|session| session.alive_until_ms));
        if self.random.below(4) == 0 {
            ends.extend(sessions.records.values().map(|session| session.expires_ms));
            ends.extend(state.audit.as_ref().map(|audit| audit.expires_ms));
        }
        let by_us = match self.random.below(24) {
            0..=9 => 0,
            // A lock with several holders needs time to reach states with several holders and waiters.
            10..=18 if self.kind.is_shared() && self.random.below(2) == 0 => 0,
            10 => 137,
            11 => 1_000,
            12 => 49_900,
            13 => 1_000_000,
            14 => 3_000_000,
            15 => 31_000_000,
            16 => self.random.pick(&[25, 31]) * 60_000_000,
            17 => 61 * 60_000_000,
            18 => 50 * 3_600_000_000,
            19 => -1_000_000,
            20 => -2 * 3_600_000_000,
            _ if ends.is_empty() => 0,
            // To the millisecond of an expiry, and just after it.
            21 | 22 => (self.random.pick(&ends).cast_signed() - now_ms) * 1000,
            _ => (self.random.pick(&ends).cast_signed() - now_ms + 1) * 1000,
        };
        // Valkey 8.1 does not set a key whose expiry is now, and other servers do. No reply depends on a watermark in its last
        // millisecond, but the keys would differ.
        let forgotten_ms = state.record.as_ref().and_then(Record::greatest_fence).map(|fence| {
            let kept_ms = u64::try_from(RECORD_TTL.as_millis()).unwrap_or(u64::MAX);
            fence.as_u64() / 1000 + kept_ms
        });
        let is_last = forgotten_ms == Some(now_us.saturating_add_signed(by_us) / 1000);
        if is_last { by_us + 1000 } else { by_us }
    }

    fn foreign_write(&self, state: &LockState) -> ForeignWrite {
        let lease_ms = *self.random.pick(&[1, 100, 5_000]);
        if self.kind == Kind::Reentrant
            && let Some(foreign_write) = self.redisson(state, lease_ms)
        {
            return foreign_write;
        }
        let others = Kind::ALL.into_iter().filter(|kind| kind.is_shared() && *kind != self.kind);
        let others: Vec<_> = others.collect();
        match (self.random.below(11), self.kind.is_shared()) {
            (0, _) if self.kind.is_plain_string() && self.random.below(4) == 0 => {
                ForeignWrite::SetsOtherKind(lease_ms)
            }
            // Frequent foreign writes would prevent states with several holders.
            (0..=3, true) if self.random.below(3) > 0 => ForeignWrite::RemovesExpiry,
            (0 | 1, _) => ForeignWrite::Acquires(lease_ms),
            (2 | 3, _) => ForeignWrite::AcquiresWithoutExpiry,
            (4, _) => ForeignWrite::DeletesLock,
            (5 | 6, _) => ForeignWrite::RemovesExpiry,
            (7, _) => ForeignWrite::DeletesRecord,
            (8, _) => ForeignWrite::SetsList(lease_ms),
            (9, _) => ForeignWrite::SetsOtherSharedKind(*self.random.pick(&others), lease_ms),
            _ => ForeignWrite::SetsHash,
        }
    }

    /// A Redisson client's write to an `RLock`, mostly as its current owner.
    fn redisson(&self, state: &LockState, lease_ms: u64) -> Option<ForeignWrite> {
        let entries = state.value.as_ref().and_then(|value| value.content.reentrant_holds());
        let holder =
            OWNERS.iter().find(|owner| entries.is_some_and(|entries| entries.owner.as_str() == **owner));
        let owner = match holder {
            Some(owner) if self.random.below(4) > 0 => owner,
            _ => *self.random.pick(&OWNERS),
        };
        match self.random.below(8) {
            0 | 1 => Some(ForeignWrite::RedissonAcquires(owner, lease_ms)),
            2 | 3 => Some(ForeignWrite::RedissonReleases(owner)),
            4 => Some(ForeignWrite::RedissonHoldsWithoutExpiry(owner)),
            _ => None,
        }
    }

    /// An operation on a lock in this state.
    pub fn op(&mut self, state: &LockState) -> Op {
        match self.random.below(24) {
            0..=8 => Op::Acquire(self.acquire(state)),
            20 | 21 => Op::Evict(Evict { session: self.likely_session(state), actor: self.label() }),
            22 | 23 => {
                Op::ForceRelease(ForceRelease { observed: self.observed_holder(state), actor: self.label() })
            }
            9..=11 => {
                let (claim, lease_ms) = (self.likely_claim(state), self.lease());
                let (keep_record, reserve) = (self.random.below(3) == 0, self.reserve());
                let fence = self.compared_token(state, &claim);
                Op::Extend(Extend { claim, lease_ms, keep_record, reserve, fence })
            }
            12..=17 => Op::Release(self.release(state)),
            18 if self.kind == Kind::Semaphore => Op::Resize(self.resize(state)),
            18 if self.kind.supports_quorum() => Op::RaiseFence(self.raise_fence(state)),
            18 if self.kind == Kind::Election => Op::Proclaim(self.proclaim(state)),
            _ => {
                let claim = (self.random.below(2) == 0).then(|| self.likely_claim(state));
                Op::Inspect(Inspect { claim, details: self.random.below(2) == 0 })
            }
        }
    }

    /// The token that an extend compares: mostly none, and otherwise often that of the hold.
    fn compared_token(&self, state: &LockState, claim: &Claim) -> Option<FencingToken> {
        let of_hold = || {
            let content = state.value.as_ref().map(|value| &value.content)?;
            if let Some(holders) = content.shared_holders() {
                return holders.holds.iter().find(|held| held.hold == claim.hold).map(|held| held.fence);
            }
            if let Some(entries) = content.reentrant_holds() {
                return entries.fence;
            }
            state.record.as_ref()?.last_fence
        };
        // Not drawn: the other choices, and the states that they reach, stay as they are.
        match self.sent.len() % 12 {
            0..=3 => of_hold(),
            4 => of_hold().map(|fence| FencingToken::new(fence.as_u64() + 1)),
            5 => Some(FencingToken::new(1)),
            _ => None,
        }
    }

    /// The reservation of an extend on a Mutex.
    fn reserve(&self) -> Option<Reserve> {
        let reserves = self.kind == Kind::Mutex && self.random.below(2) == 0;
        reserves.then(|| {
            let tokens = *self.random.pick(&[
                TokenBlock::MAX_LEN,
                TokenBlock::MAX_LEN,
                TokenBlock::MAX_LEN,
                1,
                3,
                0,
                u32::MAX,
            ]);
            Reserve { tokens, notify_wanted: self.random.below(2) == 0 }
        })
    }

    /// An operation on the sessions of the store.
    pub fn session_op(&self) -> SessionOp {
        match self.random.below(12) {
            0 => SessionOp::End(self.session()),
            1 | 2 => SessionOp::List,
            number => SessionOp::Heartbeat(self.heartbeat(number < 8)),
        }
    }

    /// Any session.
    pub fn session(&self) -> SessionId {
        SessionId::from_random([*self.random.pick(&SESSIONS); 12])
    }

    /// All sessions of the workload.
    pub fn sessions() -> impl Iterator<Item = SessionId> {
        SESSIONS.iter().map(|n| SessionId::from_random([*n; 12]))
    }

    fn heartbeat(&self, begins: bool) -> Heartbeat {
        let alive_ms = *self.random.pick(&[1, 100, 10_000, 3_600_000, 200 * 3_600_000, 200 * 3_600_000]);
        let about = self.random.pick(&["{}", "{\"host\": \"web-1\"}", ""]);
        let begin = begins.then(|| (*about).to_owned());
        let renew_listing = *self.random.pick(&[true, false]);
        let activity = *self.random.pick(&[None, None, Some(""), Some("[]"), Some("=waits")]);
        let activity = activity.map(str::to_owned);
        let (session, acquired, released) = (self.session(), self.locks(), self.locks());
        Heartbeat { session, alive_ms, begin, acquired, released, renew_listing, activity }
    }

    fn locks(&self) -> Vec<Lock> {
        let names = ["a", "b:c", "l:mutex:a", "two words"].into_iter().filter(|_| self.random.below(4) == 0);
        names.map(|name| Lock::mutex(LockName::new(name).expect("a plain text is a name"))).collect()
    }

    fn label(&self) -> Label {
        let label = self.random.pick(&["web-1/7", "", "a b\u{2026}"]);
        Label::new(label).expect("a plain text is a label")
    }

    /// The session of the last holder or of a waiter, or any.
    fn likely_session(&self, state: &LockState) -> SessionId {
        let holders = state.holder_sessions();
        if self.kind.is_shared() && !holders.is_empty() && self.random.below(2) == 0 {
            // There may be many waiters and few holders.
            return *self.random.pick(&holders);
        }
        let likely: Vec<_> = holders.into_iter().chain(state.waiter_sessions()).collect();
        if likely.is_empty() || self.random.below(4) == 0 {
            return self.session();
        }
        *self.random.pick(&likely)
    }

    /// The current holder, a former one, or one that never existed.
    fn observed_holder(&self, state: &LockState) -> ObservedHolder {
        let last =
            state.record.as_ref().and_then(|record| record.last_fence).map_or(17, FencingToken::as_u64);
        let content = state.value.as_ref().map(|value| &value.content);
        let value = match content {
            Some(Content::Token(token)) => token,
            Some(Content::ReentrantHolds(entries)) => entries.owner.as_str(),
            _ => "foreign",
        };
        if let Some(holders) = content.and_then(Content::shared_holders)
            && self.random.below(4) > 0
        {
            return ObservedHolder::Hold(self.random.pick(&holders.holds).fence);
        }
        match self.random.below(8) {
            0 => ObservedHolder::Hold(FencingToken::new(last - 1)),
            1..=3 => ObservedHolder::Hold(FencingToken::new(last)),
            4 => ObservedHolder::Foreign(Fingerprint::of("mine")),
            _ => ObservedHolder::Foreign(Fingerprint::of(value)),
        }
    }

    fn acquire(&mut self, state: &LockState) -> Acquire {
        let mut request = self.any_acquire(state);
        let upgradable = |holders: &SharedHolders| {
            holders.holds.iter().find(|hold| hold.mode == LockMode::Upgradable)?.owner.clone()
        };
        let writer = |holders: &SharedHolders| {
            let writes = |mode| matches!(mode, LockMode::Write | LockMode::Upgrade);
            holders.holds.iter().find(|hold| writes(hold.mode))?.owner.clone()
        };
        let holders = state.value.as_ref().and_then(|value| value.content.shared_holders());
        if let Some(owner) = holders.and_then(upgradable)
            && self.random.below(3) == 0
        {
            // A random claim is seldom the permitted one.
            request.claim = self.new_claim(request.claim.hold.session());
            request.claim.value = Some(owner);
            request.mode = LockMode::Upgrade;
        } else if let Some(owner) = holders.and_then(writer)
            && self.random.below(4) == 0
        {
            request.claim = self.new_claim(request.claim.hold.session());
            request.claim.value = Some(owner);
        }
        request
    }

    fn any_acquire(&mut self, state: &LockState) -> Acquire {
        let claim = self.claim();
        let lease_ms = self.lease();
        let label = self.label();
        let nonce = self.nonce();
        let ttl_ms = *self.random.pick(&[1, 100, 3_000, 21_000, 7_200_000]);
        let ttl_ms = if self.kind.is_shared() && self.random.below(2) == 0 { 7_200_000 } else { ttl_ms };
        let queue = (self.random.below(4) > 0).then_some(Enqueue { nonce, ttl_ms });
        let expire_foreign_ms = (self.random.below(3) == 0).then_some(2_000);
        let session = |alive_ms| Liveness::Session { alive_ms };
        let liveness = *self.random.pick(&[session(1), session(5_000), session(600_000), Liveness::Lease]);
        let predecessor = (self.random.below(2) == 0).then(|| self.likely_session(state));
        Acquire { claim, lease_ms, label, queue, expire_foreign_ms, liveness, predecessor, mode: self.mode() }
    }

    /// A random mode of the lock, usually with the same limit.
    pub fn mode(&self) -> LockMode {
        let is_rare = self.random.below(16) == 0;
        match self.kind {
            Kind::Semaphore => {
                let count =
                    if is_rare { *self.random.pick(&[0, 7]) } else { *self.random.pick(&[1, 1, 1, 2, 3]) };
                LockMode::Permits { count, total: *self.random.pick(&[2, 3, 3, 3, 1, 5, 0]) }
            }
            Kind::RwLock => {
                let (read, upgradable) = (LockMode::Read, LockMode::Upgradable);
                *self.random.pick(&[read, read, read, upgradable, LockMode::Write, LockMode::Upgrade])
            }
            Kind::Latch => {
                let total = if is_rare { *self.random.pick(&[0, 1, 5]) } else { self.parties };
                match self.random.below(5) {
                    0 | 1 => LockMode::CountDown { count: *self.random.pick(&[1, 1, 1, 2, 0]), total },
                    _ => LockMode::LatchWait { total },
                }
            }
            Kind::Barrier => LockMode::BarrierWait {
                total: if is_rare { *self.random.pick(&[0, 1, 4, 65]) } else { self.parties },
            },
            _ => LockMode::Exclusive,
        }
    }

    /// A token that a quorum may have agreed on: that of a server whose clock is fast or slow, or the current one.
    fn raise_fence(&mut self, state: &LockState) -> RaiseFence {
        let last =
            state.record.as_ref().and_then(|record| record.last_fence).map_or(17, FencingToken::as_u64);
        let fence = match self.random.below(6) {
            0 => last,
            1 => last - 1,
            2 => last + 7_200_000_000,
            _ => last + 1 + self.random.below(1_000),
        };
        // One that is lowered could be granted again, since the clients here know it.
        let exact = fence >= last && self.random.below(2) == 0;
        RaiseFence { claim: self.likely_claim(state), fence: FencingToken::new(fence), exact }
    }

    /// Mostly of the present leader, with the text that it has.
    fn proclaim(&mut self, state: &LockState) -> Proclaim {
        let recorded =
            state.record.as_ref().and_then(|record| Some((record.last_holder.clone()?, record.last_fence?)));
        let (claim, fence) = (self.likely_claim(state), FencingToken::new(17));
        let mut proclaim = Proclaim { claim, fence, observed: self.label(), value: self.label() };
        if let Some((holder, fence)) = recorded {
            if self.random.below(8) > 0 {
                proclaim.claim = holder.claim;
            }
            if self.random.below(8) > 0 {
                proclaim.fence = fence;
            }
            if self.random.below(4) > 0 {
                proclaim.observed = holder.label;
            }
        }
        proclaim
    }

    fn resize(&self, state: &LockState) -> Resize {
        let known = state.record.as_ref().and_then(|record| record.limit);
        let observed = if self.random.below(4) > 0 { known } else { Some(3) };
        Resize { observed, limit: *self.random.pick(&[0, 1, 2, 3, 4, 5]), agreed: known == Some(3) }
    }

    fn release(&mut self, state: &LockState) -> Release {
        let claim = self.likely_claim(state);
        let draw = self.random.below(96);
        let action = match draw % 8 {
            0 | 1 => ReleaseAction::Free,
            kept @ (2 | 3) if self.kind == Kind::Semaphore => {
                ReleaseAction::KeepPermits { count: u32::try_from(kept - 1).unwrap_or(1) }
            }
            2 | 3 if self.kind.is_plain_string() => ReleaseAction::Cooldown { for_ms: self.lease() },
            4 if self.kind.supports_quorum() => ReleaseAction::FreeAndPublish,
            _ => ReleaseAction::Grant,
        };
        let mut next = (self.random.below(3) == 0)
            .then(|| self.acquire(state))
            .filter(|_| !matches!(action, ReleaseAction::KeepPermits { .. }));
        if let Some(next) = &mut next
            // Usually of the same session, but the store does not rely on it.
            && self.random.below(4) > 0
        {
            next.claim = self.new_claim(claim.hold.session());
        }
        let history = match draw / 8 {
            0 => 3,
            1 => 1,
            // Seldom seen otherwise: most of their releases end one hold of several.
            2..=5 if self.kind.is_shared() => 2,
            _ => 0,
        };
        Release { claim, action, next, history }
    }

    fn lease(&self) -> u64 {
        if self.kind.is_shared() && self.random.below(2) == 0 {
            return 48 * 3_600_000;
        }
        *self.random.pick(&[1, 50, 3_000, 3_000, 30_000, 48 * 3_600_000])
    }

    /// A fresh nonce.
    pub fn nonce(&self) -> Nonce {
        let slot = u32::try_from(self.random.below(5)).unwrap_or_default();
        Nonce::new(slot, self.random.bits())
    }

    /// A new hold of the `n`th session.
    pub fn fresh_claim(&self, n: u8) -> Claim {
        self.fresh_claim_of(SessionId::from_random([n; 12]))
    }

    fn fresh_claim_of(&self, session: SessionId) -> Claim {
        let hold = HoldId::from_random(session, self.random.bytes());
        // A separate owner for a ReentrantMutex or an RwLock, so that no claim re-enters.
        let owner = || OwnValue::new(format!("owner {}", self.random.below(u64::MAX))).ok();
        Claim { hold, value: if self.kind.has_owners() { owner() } else { None } }
    }

    /// Mostly the current claim of a session, sometimes a new one.
    fn claim(&mut self) -> Claim {
        let session = self.session();
        let current = self.claims.iter().find(|claim| claim.hold.session() == session).cloned();
        match current {
            // A re-entrant or shared lock has several claims of one session.
            Some(claim) if self.repeats_claim() => claim,
            _ => self.new_claim(session),
        }
    }

    /// Whether a session repeats its current claim.
    fn repeats_claim(&self) -> bool {
        match self.kind {
            Kind::Mutex => self.random.below(8) > 0,
            Kind::Reentrant => self.random.below(3) > 0,
            _ => self.random.below(2) == 0,
        }
    }

    /// The claim that was granted last, the holder's, the stored token's, or any.
    fn likely_claim(&mut self, state: &LockState) -> Claim {
        let entries = state.value.as_ref().and_then(|value| value.content.reentrant_holds());
        if let Some(entries) = entries.filter(|entries| !entries.holds.is_empty())
            && self.random.below(3) > 0
        {
            let hold = self.random.pick(&entries.holds).hold;
            return Claim { hold, value: Some(entries.owner.clone()) };
        }
        if let Some(holders) = state.value.as_ref().and_then(|value| value.content.shared_holders())
            && self.random.below(3) > 0
        {
            let hold = self.random.pick(&holders.holds);
            return Claim { hold: hold.hold, value: hold.owner.clone() };
        }
        if let Some(record) =
            state.record.as_ref().filter(|record| self.kind.is_shared() && !record.entries.is_empty())
            && self.random.below(3) == 0
        {
            let places: Vec<_> = record.entries.values().map(|entry| &entry.claim).collect();
            return (*self.random.pick(&places)).clone();
        }
        if let Some(record) =
            state.record.as_ref().filter(|record| self.kind.is_shared() && !record.ended.holds.is_empty())
            && self.random.below(4) == 0
        {
            let hold = self.random.pick(&record.ended.holds).0;
            return Claim { hold, ..self.claim() };
        }
        let last_holder = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
        let last_holder = last_holder.map(|last_holder| &last_holder.claim);
        let token = state.value.as_ref().and_then(|value| value.content.token());
        let holder = || self.claims.iter().find(|claim| Some(&*self.kind.token(claim)) == token);
        match last_holder.or_else(holder) {
            Some(claim) if self.random.below(2) == 0 => claim.clone(),
            _ => self.claim(),
        }
    }

    fn new_claim(&mut self, session: SessionId) -> Claim {
        let mut claim = self.fresh_claim_of(session);
        if self.kind.has_owners() {
            let owners = if self.kind == Kind::Reentrant { &OWNERS[..2] } else { &OWNERS[..] };
            claim.value = OwnValue::new(self.random.pick(owners)).ok();
        } else if self.random.below(4) == 0 {
            // Two users may choose the same value.
            claim.value = OwnValue::new(self.random.pick(&["mine", "foreign"])).ok();
        }
        self.claims.retain(|claim| claim.hold.session() != session);
        self.claims.push(claim.clone());
        claim
    }
}

impl ForeignWrite {
    /// Applies it to the model.
    pub fn apply(self, state: &mut LockState, now_us: u64) {
        // Expired state is removed first, even if the clock goes back later.
        state.is_empty_at(now_us);
        let kind = state.kind;
        let token = |kind: Kind, token: &str| Content::Token([kind.token_prefix(), token].concat());
        let stored = |content: Content, lease_ms: Option<u64>| {
            Some(Value { content, expires_ms: lease_ms.map(|lease_ms| now_us / 1000 + lease_ms) })
        };
        match self {
            Self::Acquires(lease_ms) => state.value = stored(token(kind, "foreign"), Some(lease_ms)),
            Self::AcquiresWithoutExpiry => state.value = stored(token(kind, "foreign"), None),
            Self::SetsOtherKind(lease_ms) => {
                state.value = stored(token(other_string(kind), "foreign"), Some(lease_ms));
            }
            Self::RedissonAcquires(owner, lease_ms) => match &mut state.value {
                None => state.value = stored(redisson_content(owner), Some(lease_ms)),
                Some(value) => {
                    if let Some(entries) = entries_of(value, owner) {
                        entries.count += 1;
                        value.expires_ms = Some(now_us / 1000 + lease_ms);
                    }
                }
            },
            Self::RedissonReleases(owner) => {
                let left = state.value.as_mut().and_then(|value| {
                    let entries = entries_of(value, owner)?;
                    entries.count -= 1;
                    let left = entries.count;
                    value.expires_ms = Some(now_us / 1000 + WATCHDOG_MS);
                    Some(left)
                });
                if left == Some(0) {
                    state.value = None;
                }
            }
            Self::RedissonHoldsWithoutExpiry(owner) => state.value = stored(redisson_content(owner), None),
            Self::DeletesLock => state.value = None,
            Self::RemovesExpiry => {
                if let Some(value) = &mut state.value {
                    value.expires_ms = None;
                }
            }
            Self::DeletesRecord => state.record = None,
            Self::SetsList(lease_ms) => {
                state.value = stored(Content::Other("list".to_owned()), Some(lease_ms));
            }
            Self::SetsHash => state.value = stored(Content::Other("hash".to_owned()), None),
            Self::SetsOtherSharedKind(_, lease_ms) => {
                state.value = stored(Content::Other("hash".to_owned()), Some(lease_ms));
            }
        }
    }

    /// The commands that apply it to a server with the lock in this state.
    pub fn commands(self, keys: &LockKeys, state: &LockState) -> Vec<Vec<String>> {
        let (name, record) = (keys.name(), keys.record());
        let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let expire = |ms: u64| command(&["PEXPIRE", name, &ms.to_string()]);
        let entries = state.value.as_ref().map(|value| value.content.reentrant_holds());
        let token = |kind: Kind| [kind.token_prefix(), "foreign"].concat();
        match self {
            // State of a lock without holders has ended.
            Self::RedissonAcquires(owner, lease_ms) if entries.is_none() => {
                vec![command(&["DEL", name]), command(&["HSET", name, owner, "1"]), expire(lease_ms)]
            }
            Self::RedissonAcquires(owner, lease_ms) => match entries.flatten() {
                Some(entries) if entries.owner.as_str() == owner => {
                    vec![command(&["HINCRBY", name, owner, "1"]), expire(lease_ms)]
                }
                _ => vec![],
            },
            Self::RedissonReleases(owner) => match entries.flatten() {
                Some(entries) if entries.owner.as_str() != owner => vec![],
                Some(entries) if entries.count > 1 => {
                    vec![command(&["HINCRBY", name, owner, "-1"]), expire(WATCHDOG_MS)]
                }
                Some(_) => vec![command(&["DEL", name])],
                None => vec![],
            },
            Self::RedissonHoldsWithoutExpiry(owner) => {
                vec![command(&["DEL", name]), command(&["HSET", name, owner, "1"])]
            }
            Self::Acquires(lease_ms) => {
                vec![command(&["SET", name, &token(state.kind), "PX", &lease_ms.to_string()])]
            }
            Self::AcquiresWithoutExpiry => vec![command(&["SET", name, &token(state.kind)])],
            Self::SetsOtherKind(lease_ms) => {
                vec![command(&["SET", name, &token(other_string(state.kind)), "PX", &lease_ms.to_string()])]
            }
            Self::DeletesLock => vec![command(&["DEL", name])],
            Self::RemovesExpiry => vec![command(&["PERSIST", name])],
            Self::DeletesRecord => vec![command(&["DEL", record])],
            Self::SetsList(lease_ms) => vec![
                command(&["DEL", name]),
                command(&["LPUSH", name, "x"]),
                command(&["PEXPIRE", name, &lease_ms.to_string()]),
            ],
            Self::SetsHash => vec![command(&["DEL", name]), command(&["HSET", name, "x", "1", "y", "1"])],
            Self::SetsOtherSharedKind(kind, lease_ms) => vec![
                command(&["DEL", name]),
                command(&["HSET", name, "leasehold", kind.as_str(), "x", "1 1 1 r l\n\n"]),
                expire(lease_ms),
            ],
        }
    }
}

/// The other kind of lock that is a string.
fn other_string(kind: Kind) -> Kind {
    if kind == Kind::Election { Kind::Mutex } else { Kind::Election }
}

/// A value as a Redisson client writes it.
fn redisson_content(owner: &str) -> Content {
    let owner = OwnValue::new(owner).expect("a plain text is a value");
    Content::ReentrantHolds(ReentrantHolds { owner, count: 1, fence: None, lease_ms: 0, holds: vec![] })
}

/// The stored entries, if this owner has them.
fn entries_of<'a>(value: &'a mut Value, owner: &str) -> Option<&'a mut ReentrantHolds> {
    match &mut value.content {
        Content::ReentrantHolds(entries) if entries.owner.as_str() == owner => Some(entries),
        _ => None,
    }
}
