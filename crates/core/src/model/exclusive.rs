//! Exclusive locks: one holder, a queue, a grant. A Mutex; an Election, whose holder leads; or a ReentrantMutex, whose
//! holder is an owner that may have several holds. They differ only in the value at the key.
//!
//! 1. A lock that is found free goes to the first live entry of the queue, whichever operation found it free.
//! 2. All holds of an owner have one fencing token, which never falls.

use super::lock::{LockState, Now};
use super::record::{MAX_INSPECTED_ENTRIES, QueueEntryId, Record, RecordedHolder, Reserved, SHORT_LEASE_MS};
use super::reentrant_holds::{ReentrantHold, ReentrantHolds};
use super::value::{Content, Value};
use crate::{
    Acquire, Acquired, Claim, Ended, Extend, Extended, FenceRaised, FencingToken, HoldStatus, Kind,
    Notification, OwnValue, OwnerHolds, Predecessor, Proclaim, Proclaimed, RaiseFence, Refused, Release,
    ReleaseAction, Released, Reserve, TokenBlock,
};

impl LockState {
    /// Grants the lock, or queues.
    pub(super) fn acquire_exclusive(
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
        // The waiter that has just received the lock may have the same owner as this request.
        if self.reenter(now, request) {
            return Ok(self.confirm(now, request));
        }
        // The expiry that the request asks for may be earlier than the ends of Leasehold's holds.
        let ours = self.reentrant_holds().is_some_and(|reentrant| !reentrant.holds.is_empty());
        if let (false, Some(value), Some(expire_foreign_ms)) =
            (ours, &mut self.value, request.expire_foreign_ms)
        {
            value.expires_ms.get_or_insert(now.ms + expire_foreign_ms);
        }
        Ok(self.enqueue(now, request, notifications))
    }

    /// Queues, if requested, and reports the holder.
    pub(super) fn enqueue(
        &mut self,
        now: Now,
        request: &Acquire,
        notifications: &mut Vec<Notification>,
    ) -> Acquired {
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
    pub(super) fn notify_wanted(&self, request: &Acquire) -> Option<Notification> {
        let fence = self
            .record
            .as_ref()
            .filter(|record| record.notifies_wanted())
            .and_then(|record| record.last_fence)?;
        let to = self.last_holder().filter(|recorded| self.is_held_by(&recorded.claim))?.claim.hold.session();
        (to != request.claim.hold.session()).then_some(Notification::Wanted { to, fence })
    }

    /// The session directly before this request, if its hold or entry ends with the session.
    pub(super) fn predecessor(&self, request: &Acquire, position: Option<u64>) -> Option<Predecessor> {
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

    /// Adds a hold if the owner already holds the lock. It passes the queue, and has the same fencing token (2).
    pub(super) fn reenter(&mut self, now: Now, request: &Acquire) -> bool {
        let Some(reentrant) = self.owner_holds_of(&request.claim) else { return false };
        let recorded = RecordedHolder::from_request(now.ms, request);
        // Without a token, only a client of another library holds the lock so far.
        let fence =
            reentrant.fence.unwrap_or_else(|| self.record_holder(now, recorded.clone(), request.lease_ms));
        if let Some(Value { content: Content::ReentrantHolds(reentrant), expires_ms }) = &mut self.value {
            reentrant.add(recorded, fence, request.lease_ms);
            *expires_ms = (*expires_ms).max(reentrant.until_ms());
        }
        if let Some(record) = &mut self.record {
            record.refresh_expiry(now.ms, request.lease_ms);
            if record.has_entry(self.kind, &request.claim.hold) {
                record.remove(QueueEntryId::of(self.kind, &request.claim.hold));
            }
        }
        true
    }

    /// Reports a hold that exists, and completes what an interrupted script may have left undone.
    pub(super) fn confirm(&mut self, now: Now, request: &Acquire) -> Acquired {
        let others_wait = self.record.as_ref().is_some_and(Record::has_entries);
        if let Some(held) = self.shared_hold(&request.claim.hold) {
            let (fence, remaining_ms) = (held.fence, held.until_ms - now.ms);
            return Acquired::Granted { fence, remaining_ms, others_wait, owner_holds: None };
        }
        if let Some(reentrant) = self.reentrant_holds() {
            let until_ms = reentrant.find(&request.claim.hold).map_or(now.ms, |held| held.until_ms);
            return Acquired::Granted {
                fence: reentrant.fence.unwrap_or(FencingToken::new(0)),
                remaining_ms: until_ms - now.ms,
                others_wait,
                owner_holds: Some(OwnerHolds { count: reentrant.count, lease_ms: reentrant.lease_ms }),
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

    /// Extends a hold, and reserves tokens for it.
    pub(super) fn extend(&mut self, now: Now, extend: &Extend) -> Extended {
        let is_of_grant = extend.fence.is_none_or(|fence| self.fence_of(&extend.claim) == Some(fence));
        if !self.is_held_by(&extend.claim) || !is_of_grant {
            return Extended::NotHeld;
        }
        let until_ms = now.ms + extend.lease_ms;
        if let Some(value) = &mut self.value {
            if value.ends_before(until_ms) {
                value.expires_ms = Some(until_ms);
            }
            match &mut value.content {
                Content::ReentrantHolds(reentrant) => {
                    reentrant.extend(&extend.claim.hold, now.ms, extend.lease_ms);
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

    /// Raises the fencing token of a hold (2).
    pub(super) fn raise_fence(&mut self, now: Now, raise: &RaiseFence) -> FenceRaised {
        let known = || self.last_holder().is_some_and(|recorded| recorded.claim == raise.claim);
        let is_reentrant = self.reentrant_holds().is_some();
        if !self.is_held_by(&raise.claim) || !(is_reentrant || known()) {
            return FenceRaised::NotHeld;
        }
        let Some(record) = &mut self.record else { return FenceRaised::NotHeld };
        let changed = |old: Option<FencingToken>| {
            if raise.exact { Some(raise.fence) } else { old.max(Some(raise.fence)) }
        };
        record.last_fence = changed(record.last_fence);
        record.refresh_expiry(now.ms, 0);
        if let Some(Value { content: Content::ReentrantHolds(reentrant), .. }) = &mut self.value {
            reentrant.fence = changed(reentrant.fence);
        }
        FenceRaised::Raised
    }

    /// Replaces the label of the leader, which observers see.
    pub(super) fn proclaim(&mut self, proclaim: &Proclaim) -> Proclaimed {
        let Proclaim { claim, fence, observed, value } = proclaim;
        if !self.is_held_by(claim) || self.fence_of(claim) != Some(*fence) {
            return Proclaimed::NotHeld;
        }
        let recorded = self.record.as_mut().and_then(|record| record.last_holder.as_mut());
        let Some(recorded) = recorded else { return Proclaimed::NotHeld };
        if recorded.label != *value {
            if recorded.label != *observed {
                return Proclaimed::Changed { value: recorded.label.clone() };
            }
            recorded.label = value.clone();
        }
        Proclaimed::Done
    }

    /// Reserves fencing tokens for a hold that is known to be the last granted one.
    pub(super) fn reserve(&mut self, now: Now, claim: &Claim, reserve: Reserve) -> Option<Extended> {
        let record = self.record.as_mut()?;
        record.last_holder.as_ref().filter(|recorded| recorded.claim == *claim)?;
        record.last_fence?;
        let notify_wanted = reserve.notify_wanted || record.notifies_wanted();
        let (block, last_fence) = TokenBlock::after(record.greatest_fence(), now.us, reserve.tokens);
        record.reserved = Some(Reserved { last_fence, notify_wanted });
        Some(Extended::Reserved { block, others_wait: record.has_entries() })
    }

    /// Releases a hold, or removes its queue entry.
    pub(super) fn release(
        &mut self,
        now: Now,
        release: &Release,
        notifications: &mut Vec<Notification>,
    ) -> Released {
        if self.kind.is_shared() {
            return self.release_shared(now, release, notifications);
        }
        let hold = release.claim.hold;
        let status = self.hold_status(&release.claim);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let cooldown_ms = if status == HoldStatus::Held { self.begin_cooldown(now, release) } else { None };
        if status == HoldStatus::Held {
            if cooldown_ms.is_none() {
                self.retain_reentrant_holds(now, |held| held.hold != hold);
            }
            let record = self.record_or_new(now, 0);
            record.ended.push(hold, Ended::Released);
            if let Some(cooldown_ms) = cooldown_ms {
                record.refresh_expiry(now.ms, cooldown_ms);
            }
        }
        if let Some(record) = &mut self.record
            && record.has_entry(self.kind, &hold)
        {
            record.remove(QueueEntryId::of(self.kind, &hold));
        }
        // A repeated release reports it as well: the reply to the first may have been lost.
        let remaining_holds = self.owner_holds_of(&release.claim).map_or(0, |reentrant| reentrant.count);
        let grants = !matches!(release.action, ReleaseAction::Free | ReleaseAction::FreeAndPublish)
            && cooldown_ms.is_none();
        let next = match (&release.next, grants) {
            (Some(next), true) => Some(self.acquire_exclusive(now, next, notifications)),
            (Some(next), false) => {
                // If this is a resent request, the next hold may have been granted since, or have ended.
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
        if matches!(status, HoldStatus::Held | HoldStatus::Queued) {
            self.settle_idle(now);
        }
        Released { status, remaining_holds, holder, next_waiter: None, next }
    }

    /// Leaves the released lock taken without a holder, if the release asks for a cooldown that is not over yet. Returns
    /// how long it still lasts, in milliseconds.
    pub(super) fn begin_cooldown(&mut self, now: Now, release: &Release) -> Option<u64> {
        let ReleaseAction::Cooldown { for_ms } = release.action else { return None };
        let known = self.last_holder().is_some_and(|recorded| recorded.claim.hold == release.claim.hold);
        let since_ms = self.last_holder().filter(|_| known).map_or(now.ms, |recorded| recorded.since_ms);
        let until_ms = since_ms.saturating_add(for_ms);
        let cooldown_ms = until_ms.checked_sub(now.ms).filter(|cooldown_ms| *cooldown_ms > 0)?;
        let last = self.record.as_ref().and_then(|record| record.last_fence).filter(|_| known);
        self.value = Some(Value {
            content: Content::Token(self.kind.cooldown_token(last)),
            expires_ms: Some(until_ms),
        });
        Some(cooldown_ms)
    }

    /// Grants the free lock to the first live entry (1), or to the request if none is before it.
    pub(super) fn grant_next(
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
                // The entry represents all waiters of the process. A request that does not queue comes from a task
                // that is not among them.
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

    /// Makes this client the holder of the free lock.
    pub(super) fn grant(&mut self, now: Now, recorded: RecordedHolder, lease_ms: u64) -> FencingToken {
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
    pub(super) fn record_holder(
        &mut self,
        now: Now,
        recorded: RecordedHolder,
        lease_ms: u64,
    ) -> FencingToken {
        let fence = FencingToken::after(self.greatest_fence(), now.us);
        let record = self.record_or_new(now, lease_ms);
        let raised = Record::is_refreshed_by(record.last_fence.replace(fence), fence);
        record.last_holder = Some(recorded);
        if !raised || lease_ms >= SHORT_LEASE_MS {
            record.expires_ms = Record::expiry_ms(record.last_fence, now.ms, lease_ms);
        }
        fence
    }

    /// Keeps the holds of a ReentrantMutex for which `keep` is true; the hold of any other lock ends. The lock is
    /// free if no hold is left. If only Leasehold's holds are left, the key lasts no longer than the last of
    /// them, so that clients of other libraries do not wait for those that are gone.
    pub(super) fn retain_reentrant_holds(&mut self, now: Now, keep: impl Fn(&ReentrantHold) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| match content {
            Content::ReentrantHolds(reentrant) => {
                reentrant.retain(keep);
                if reentrant.is_ours_alone() {
                    // A key must not expire in the current millisecond: Redis would treat it as gone.
                    *expires_ms = reentrant.until_ms().map(|until_ms| until_ms.max(now.ms + 1));
                }
                reentrant.count == 0
            }
            Content::Token(_) | Content::SharedHolders(_) | Content::Other(_) => true,
        });
    }
}

/// Which client received a lock that was found free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextHolder {
    Requester,
    Another,
    None,
}
