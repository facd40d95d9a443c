//! Which clients hold a lock, and what became of a hold: read from the value and the record.
//!
//! 1. A claim holds the lock only where the state proves it: by the value at the key and, for a user-defined value, by
//!    the hold in the record as well. Nothing is extended, released or evicted otherwise.
//! 2. A lock in a cooldown is taken without a holder: the value at its key belongs to no claim, so no operation on the
//!    previous hold extends or ends the cooldown.

use super::lock::{LockState, Now};
use super::record::{QueueEntryId, RecordedHolder};
use super::reentrant_holds::ReentrantHolds;
use super::value::Content;
use crate::{
    Claim, Ended, FencingToken, Fingerprint, HoldId, HoldStatus, Holder, Kind, Liveness, LockMode, SessionId,
};

impl LockState {
    /// The sessions that hold the lock, or held it last. A store that tracks dead sessions itself checks these.
    pub fn holder_sessions(&self) -> Vec<SessionId> {
        let mut sessions: Vec<_> = match (self.reentrant_holds(), self.shared_holders()) {
            (Some(reentrant), _) => reentrant.holds.iter().map(|held| held.hold.session()).collect(),
            (_, Some(shared)) => shared.holds.iter().map(|held| held.hold.session()).collect(),
            _ => self.last_holder().map(|recorded| recorded.claim.hold.session()).into_iter().collect(),
        };
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// The sessions that wait for the lock, from the front of the queue. Such a store checks these as well.
    pub fn waiter_sessions(&self) -> impl Iterator<Item = SessionId> {
        self.record.iter().flat_map(|record| record.tickets.values().map(QueueEntryId::session))
    }

    /// The sessions that hold the lock at `now_us`, whatever ends the holds.
    pub fn holders_at(&mut self, now_us: u64) -> Vec<SessionId> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.expire(now);
        self.drop_expired_holds(now);
        if self.first_holder().is_some() && !self.in_cooldown() { self.holder_sessions() } else { Vec::new() }
    }

    /// What other clients may know about the holder.
    pub(super) fn holder(&self, now: Now) -> Option<Holder> {
        let value = self.value.as_ref()?;
        if let Some(shared) = self.shared_holders() {
            return shared.holds.first().map(|held| held.holder(now.ms));
        }
        let reentrant = self.reentrant_holds();
        let recorded = self.first_holder();
        Some(Holder {
            owner: reentrant.map(|reentrant| reentrant.owner.clone()),
            count: reentrant.map_or(1, |reentrant| reentrant.count),
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

    /// The status of a hold.
    pub(super) fn hold_status(&self, claim: &Claim) -> HoldStatus {
        if self.is_held_by(claim) {
            return HoldStatus::Held;
        }
        // Other holders of a shared lock hold it side by side: none of them superseded this hold.
        let side_by_side = self.kind.is_shared() && self.refuse_other_types().is_ok();
        let Some(record) = &self.record else {
            let others = self.value.is_some() && !side_by_side;
            return if others { HoldStatus::Superseded } else { HoldStatus::Forgotten };
        };
        if record.has_entry(self.kind, &claim.hold) {
            return HoldStatus::Queued;
        }
        if let Some(ended) = self.ended(&claim.hold) {
            return HoldStatus::Ended(ended);
        }
        if side_by_side {
            return HoldStatus::Vanished;
        }
        if self.owner_holds_of(claim).is_some() {
            // Its owner has other holds of the lock: no other client came after it.
            return HoldStatus::Vanished;
        }
        let last = record.last_holder.as_ref().is_some_and(|recorded| {
            // The recorded hold represents all holds of its owner.
            let same_owner = self.kind == Kind::Reentrant && recorded.claim.value == claim.value;
            recorded.claim.hold == claim.hold || same_owner
        });
        match (&self.value, last, &record.last_holder) {
            (None, true, _) => HoldStatus::Vanished,
            // If other holds have ended since, the lock was theirs.
            (None, false, None) if record.ended.holds.is_empty() => HoldStatus::Forgotten,
            _ => HoldStatus::Superseded,
        }
    }

    /// Whether a claim holds the lock (1).
    pub(super) fn is_held_by(&self, claim: &Claim) -> bool {
        let Some(value) = &self.value else { return false };
        if self.kind.is_shared() {
            return self.shared_hold(&claim.hold).is_some();
        }
        match (self.kind, &value.content) {
            (Kind::Reentrant, Content::ReentrantHolds(reentrant)) => {
                return reentrant.find(&claim.hold).is_some();
            }
            (kind, Content::Token(token)) if *token == kind.token(claim) => {}
            _ => return false,
        }
        // A client of another library may use the same value as a user of Leasehold, so the value alone
        // proves nothing.
        let known = || self.last_holder().is_some_and(|recorded| recorded.claim == *claim);
        claim.value.is_none() || (known() && self.ended(&claim.hold).is_none())
    }

    /// How a hold ended, if the record has it.
    pub(super) fn ended(&self, hold: &HoldId) -> Option<Ended> {
        let record = self.record.as_ref()?;
        // An interrupted script may have begun the cooldown before it recorded the end of the hold.
        let in_cooldown =
            || self.last_holder().is_some_and(|recorded| recorded.claim.hold == *hold) && self.in_cooldown();
        record.ended.find(hold).or_else(|| in_cooldown().then_some(Ended::Released))
    }

    /// The fingerprint of the value at the key, if a client of another library put it there.
    pub(super) fn foreign_fingerprint(&self) -> Option<Fingerprint> {
        let value = match &self.value.as_ref()?.content {
            Content::Token(token) => token,
            Content::ReentrantHolds(reentrant) => reentrant.owner.as_str(),
            Content::SharedHolders(_) | Content::Other(_) => return None,
        };
        self.first_holder().is_none().then(|| Fingerprint::of(value))
    }

    /// The holder, if it uses Leasehold; of several holds the oldest.
    pub(super) fn first_holder(&self) -> Option<RecordedHolder> {
        match (self.reentrant_holds(), self.shared_holders()) {
            (Some(reentrant), _) => reentrant.recorded_holders().next(),
            (_, Some(shared)) => shared.recorded_holders().next(),
            // A cooldown does not end with any session.
            _ if self.in_cooldown() => self
                .last_holder()
                .map(|recorded| RecordedHolder { liveness: Liveness::Lease, ..recorded.clone() }),
            _ => self.last_holder().filter(|recorded| self.is_held_by(&recorded.claim)).cloned(),
        }
    }

    /// All holders that use Leasehold: several holds of one owner, or all holds of a shared lock.
    pub(super) fn recorded_holders(&self) -> Vec<RecordedHolder> {
        match (self.reentrant_holds(), self.shared_holders()) {
            (Some(reentrant), _) => reentrant.recorded_holders().collect(),
            (_, Some(shared)) => shared.recorded_holders().collect(),
            _ => self.first_holder().into_iter().collect(),
        }
    }

    /// The client to which the lock was last granted, according to the record.
    pub(super) fn last_holder(&self) -> Option<&RecordedHolder> {
        self.record.as_ref().and_then(|record| record.last_holder.as_ref())
    }

    /// The fencing token of a hold that exists, if it is known.
    pub(super) fn fence_of(&self, claim: &Claim) -> Option<FencingToken> {
        if let Some(held) = self.shared_hold(&claim.hold) {
            return Some(held.fence);
        }
        if let Some(reentrant) = self.reentrant_holds() {
            return reentrant.fence;
        }
        let is_last = self.last_holder().is_some_and(|recorded| recorded.claim == *claim);
        self.record.as_ref().and_then(|record| record.last_fence).filter(|_| is_last)
    }

    /// The fencing token of the holder, if it uses Leasehold.
    pub(super) fn fence(&self) -> Option<FencingToken> {
        match self.reentrant_holds() {
            Some(reentrant) => reentrant.fence,
            None => self.first_holder().and(self.record.as_ref()).and_then(|record| record.last_fence),
        }
    }

    /// Whether the lock is in the cooldown after its last hold (2).
    pub(super) fn in_cooldown(&self) -> bool {
        let last = self
            .record
            .as_ref()
            .filter(|record| record.last_holder.is_some())
            .and_then(|record| record.last_fence);
        let token = self.value.as_ref().and_then(|value| value.content.token());
        last.is_some() && token.is_some_and(|token| *token == self.kind.cooldown_token(last))
    }

    /// The holds of a ReentrantMutex.
    pub(super) fn reentrant_holds(&self) -> Option<&ReentrantHolds> {
        self.value.as_ref()?.content.reentrant_holds()
    }

    /// The holds of a ReentrantMutex, if the claim has the same owner.
    pub(super) fn owner_holds_of(&self, claim: &Claim) -> Option<&ReentrantHolds> {
        self.reentrant_holds().filter(|reentrant| reentrant.owner.as_str() == claim.token())
    }
}
