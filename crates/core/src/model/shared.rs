//! Shared locks: a Semaphore, an RwLock, a Latch, a Barrier. One queue, in which each entry waits for a mode.
//!
//! `admission.rs` says which requests are admitted. tokio's `batch_semaphore` serves its Mutex, RwLock and Semaphore in
//! the same way.
//!
//! 1. Each change serves the queue from the front until the next entry has no room. No entry is passed by one
//!    that came later and needs less. So neither readers nor writers starve: readers that came before a
//!    writer go before it, all together, and those that came after it go after it.
//! 2. Each hold has its own queue entry, not each session: several waiters of one process can be admitted
//!    together.
//! 3. The parties of a barrier are admitted together, or none of them.
//! 4. A release at a latch or a barrier is final, even if the hold did not exist: otherwise a late acquire of it
//!    would count, and admit other waiters.

use super::admission::Admission;
use super::audit::Audit;
use super::lock::{LockState, Now};
use super::record::{MAX_INSPECTED_ENTRIES, QueueEntry, QueueEntryId, Record, RecordedHolder};
use super::shared_holders::{MAX_INSPECTED_HOLDS, SharedHold, SharedHolders};
use super::value::{Content, Value};
use crate::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Extend, FencingToken, ForceRelease, ForceReleased, HoldId,
    HoldStatus, Holder, Kind, Label, Liveness, LockMode, MAX_SHARED_HOLDERS, Notification, ObservedHolder,
    Op, Predecessor, Refused, Release, ReleaseAction, Released, Resize, Resized, SessionId,
};

/// The maximum number of holders' sessions that a reply to a waiter names.
const MAX_WATCHED_SESSIONS: usize = 16;

impl LockState {
    /// Admits the request, or queues. `named` is the session that it named, and that was found alive.
    pub(super) fn acquire_shared(
        &mut self,
        now: Now,
        request: &Acquire,
        named: Option<SessionId>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, request)? {
            return Ok(settled);
        }
        let id = QueueEntryId::of(self.kind, &request.claim.hold);
        // First admit the entries that have room by now: one may have the same owner, which changes what this request
        // can get.
        self.admit_entries(now, Some(request.claim.hold), notifications);
        if self.is_held_by(&request.claim) {
            return Ok(self.confirm(now, request));
        }
        if let Err(refused) = self.check_request(now, request) {
            // A refusal is final: not on account of expired holds that still count.
            if matches!(refused, Refused::WouldDeadlock | Refused::Disagreement { .. })
                && self.has_expired_holds(now)
            {
                return Ok(self.taken(now, request, None, named));
            }
            // The refused client does not poll for this entry any more.
            if self.record.as_mut().and_then(|record| record.remove(id)).is_some() {
                self.serve_shared_queue(now, None, notifications);
            }
            return Err(refused);
        }
        self.adopt_number(request.mode);
        // A request that has room, and no entry before it, needs no entry.
        let has_waiters = self.record.as_ref().is_some_and(Record::has_entries);
        let at_once = !has_waiters && self.admission(now, &request.claim, request.mode) == Admission::Now;
        if at_once || self.skips_queue(now, request) {
            if let Some(record) = &mut self.record {
                record.remove(id);
            }
            self.admit(now, RecordedHolder::from_request(now.ms, request), request.mode, request.lease_ms);
            // Other waiters may have room now, if this was an arrival.
            self.serve_shared_queue(now, None, notifications);
        } else {
            if let Some(queue) = &request.queue {
                let (limit, agreed) = (self.limit(request.mode), self.agreed(request.mode));
                let record = self.record_or_new(now, queue.ttl_ms);
                (record.limit, record.agreed) = (limit, agreed);
                record.enqueue(now.ms, id, request, queue);
            }
            self.serve_shared_queue(now, Some(request), notifications);
        }
        if self.is_held_by(&request.claim) {
            return Ok(self.confirm(now, request));
        }
        // The entries before it may just have been admitted.
        let queued = self.record.as_ref().filter(|_| request.queue.is_some());
        let position = queued.and_then(|record| record.position(id));
        Ok(self.taken(now, request, position, named))
    }

    /// The reply to a request that has to wait.
    fn taken(
        &self,
        now: Now,
        request: &Acquire,
        position: Option<u64>,
        named: Option<SessionId>,
    ) -> Acquired {
        let conflicting_holds = self.conflicting_holds(request);
        let holder = conflicting_holds.first().map(|held| held.holder(now.ms));
        let (predecessor, other_holders) = self.watched_sessions(request, position, named);
        Acquired::Taken { holder, position, predecessor, other_holders }
    }

    /// Releases a hold, or removes its queue entry.
    pub(super) fn release_shared(
        &mut self,
        now: Now,
        release: &Release,
        notifications: &mut Vec<Notification>,
    ) -> Released {
        let hold = release.claim.hold;
        let status = self.hold_status(&release.claim);
        if let ReleaseAction::KeepPermits { count } = release.action {
            return self.keep_permits(now, hold, status, count, notifications);
        }
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let fence = self.newest_shared_fence().filter(|_| status == HoldStatus::Held);
        if status == HoldStatus::Held {
            self.retain_shared_holds(|held| held.hold != hold);
        }
        let is_gathering =
            matches!(self.kind, Kind::Latch | Kind::Barrier) && self.refuse_other_types().is_ok();
        if status == HoldStatus::Held || (is_gathering && !matches!(status, HoldStatus::Ended(_))) {
            self.record_end(now, hold, fence, Ended::Released); // (4)
        }
        if let Some(record) = &mut self.record {
            record.remove(QueueEntryId::of(self.kind, &hold));
        }
        let next = release.next.as_ref().map(|next| self.acquire_shared(now, next, None, notifications));
        self.serve_shared_queue(now, None, notifications);
        // A number of permits, which an operator may have set, is kept for as long as any record; and so are the holds that
        // have ended at a latch or a barrier (4).
        let is_counted = self.record.as_ref().is_some_and(|record| record.limit.is_some());
        if matches!(status, HoldStatus::Held | HoldStatus::Queued) && !is_gathering && !is_counted {
            self.settle_idle(now);
        }
        Released { status, remaining_holds: 0, holder, next_waiter: None, next }
    }

    /// Leaves a hold no more than so many permits, and serves the queue.
    fn keep_permits(
        &mut self,
        now: Now,
        hold: HoldId,
        status: HoldStatus,
        kept: u32,
        notifications: &mut Vec<Notification>,
    ) -> Released {
        let value = self.value.as_mut().filter(|_| status == HoldStatus::Held);
        if let Some(Value { content: Content::SharedHolders(shared), expires_ms }) = value
            && let Some(until_ms) = shared.keep_permits(&hold, kept)
        {
            // As after every other write: another client may have removed the expiry. A key must not expire in the current
            // millisecond: Redis would treat it as gone.
            let lasting = shared.until_ms().map(|at_ms| at_ms.max(now.ms + 1));
            *expires_ms = expires_ms.map(|at_ms| at_ms.max(until_ms)).or(lasting);
        }
        self.serve_shared_queue(now, None, notifications);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        Released { status, remaining_holds: 0, holder, next_waiter: None, next: None }
    }

    /// Ends the hold that an operator observed, and serves the queue.
    pub(super) fn force_release_shared(
        &mut self,
        now: Now,
        force_release: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> ForceReleased {
        let is_observed = |held: &&SharedHold| matches!(force_release.observed, ObservedHolder::Hold(fence) if held.fence == fence);
        let all = self.shared_holders().map(|shared| shared.first_to_end(usize::MAX));
        let observed: Vec<_> = all.into_iter().flatten().filter(is_observed).cloned().collect();
        if observed.is_empty() {
            return ForceReleased::Changed { holder: self.holder(now) };
        }
        for SharedHold { hold, fence, .. } in &observed {
            notifications.push(Notification::ForceReleased { to: hold.session(), fence: *fence });
        }
        self.end_holds(now, Ended::ForceReleased, &force_release.actor, usize::MAX, |_, hold| {
            observed.iter().any(|held| held.hold == *hold)
        });
        self.serve_shared_queue(now, None, notifications);
        ForceReleased::Released
    }

    /// Changes the number of permits, and serves the queue.
    pub(super) fn resize(
        &mut self,
        now: Now,
        resize: Resize,
        notifications: &mut Vec<Notification>,
    ) -> Result<Resized, Refused> {
        self.refuse_other_types()?;
        let Resize { observed, limit, agreed } = resize;
        if limit == 0 {
            return Err(Refused::OutOfRange { count: 0, limit });
        }
        let known = self.record.as_ref().and_then(|record| record.limit);
        if known != observed && known != Some(limit) {
            return Ok(Resized::Changed { limit: known });
        }
        let record = self.record_or_new(now, 0);
        let asked_for = record.agreed.or(record.limit).unwrap_or_default();
        record.agreed = Some(asked_for).filter(|asked_for| !agreed && *asked_for != limit);
        record.limit = Some(limit);
        record.refresh_expiry(now.ms, 0);
        self.serve_shared_queue(now, None, notifications);
        Ok(Resized::Done)
    }

    /// Ends the holds for which `ends` is true, on behalf of a client other than their holders, among the `inspected` that
    /// end first; returns the fencing token of the first.
    pub(super) fn end_shared_holds(
        &mut self,
        now: Now,
        ended: Ended,
        actor: &Label,
        inspected: usize,
        ends: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        let lost: Vec<_> = self
            .shared_holders()
            .iter()
            .flat_map(|shared| shared.first_to_end(inspected))
            .filter(|held| ends(held.liveness, &held.hold))
            .cloned()
            .collect();
        let newest = self.newest_shared_fence();
        self.retain_shared_holds(|held| lost.iter().all(|lost| lost.hold != held.hold));
        for SharedHold { hold, fence, label, .. } in &lost {
            self.record_end(now, *hold, newest, ended);
            let (fence, holder) = (Some(*fence), Some(label.clone()));
            let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: actor.clone() };
            Audit::push(&mut self.audit, entry);
        }
        lost.first().map(|held| held.fence)
    }

    /// Extends a hold, and changes nothing else of the `stored` value: it neither drops the expired holds of other
    /// clients nor moves their ends. So an extend costs the same however many clients share the lock.
    pub(super) fn extend_shared(&mut self, now: Now, extend: &Extend, stored: Option<Value>) {
        self.value = stored;
        if let Some(Value { content: Content::SharedHolders(shared), expires_ms }) = &mut self.value {
            shared.extend(&extend.claim.hold, now.ms + extend.lease_ms);
            *expires_ms = (*expires_ms).max(shared.until_ms());
        }
    }

    /// Records how a hold ended, and its token: if the record was lost, only the holds have the latest token.
    fn record_end(&mut self, now: Now, hold: HoldId, fence: Option<FencingToken>, ended: Ended) {
        let record = self.record_or_new(now, 0);
        record.ended.push(hold, ended);
        record.last_fence = record.last_fence.max(fence);
    }

    /// Keeps the holds for which `keep` is true. The key may then last longer than the last of them.
    pub(super) fn retain_shared_holds(&mut self, keep: impl Fn(&SharedHold) -> bool) {
        self.value.take_if(|value| {
            let Content::SharedHolders(shared) = &mut value.content else { return false };
            shared.holds.retain(keep);
            shared.holds.is_empty()
        });
    }

    /// Drops the expired holds that an operation drops: those that ended first, and its own. The others count until another
    /// operation drops them.
    pub(super) fn drop_first_expired_holds(&mut self, now: Now, op: &Op) {
        let own = match op {
            Op::Acquire(request) => [Some(request.claim.hold), None],
            Op::Release(release) => {
                [Some(release.claim.hold), release.next.as_ref().map(|next| next.claim.hold)]
            }
            _ => [None, None],
        };
        let first = self.shared_holders().map(|shared| shared.first_to_end(MAX_INSPECTED_HOLDS));
        let first: Vec<_> = first.into_iter().flatten().map(|held| held.hold).collect();
        self.retain_shared_holds(|held| {
            held.until_ms >= now.ms || !(own.contains(&Some(held.hold)) || first.contains(&held.hold))
        });
    }

    /// Whether expired holds are left, which count.
    pub(super) fn has_expired_holds(&self, now: Now) -> bool {
        let mut holds = self.shared_holders().into_iter().flat_map(|shared| &shared.holds);
        holds.any(|held| held.until_ms < now.ms)
    }

    /// The greatest fencing token that it has issued.
    fn newest_shared_fence(&self) -> Option<FencingToken> {
        let shared = self.shared_holders()?;
        // A value that an earlier version stored has no such number.
        shared.newest.max(shared.holds.last().map(|held| held.fence))
    }

    /// The holds of a shared lock.
    pub(super) fn shared_holders(&self) -> Option<&SharedHolders> {
        self.value.as_ref()?.content.shared_holders()
    }

    /// The entry of a hold.
    pub(super) fn shared_hold(&self, hold: &HoldId) -> Option<&SharedHold> {
        self.shared_holders()?.find(hold)
    }

    /// What other clients may know about all holders.
    pub(super) fn all_holders(&self, now: Now) -> Vec<Holder> {
        let shared = self.shared_holders().into_iter().flat_map(|shared| &shared.holds);
        shared.take(MAX_SHARED_HOLDERS).map(|held| held.holder(now.ms)).collect()
    }

    /// Admits the next entries, and the request itself if none is before it (1).
    pub(super) fn serve_shared_queue(
        &mut self,
        now: Now,
        requester: Option<&Acquire>,
        notifications: &mut Vec<Notification>,
    ) {
        if self.refuse_other_types().is_err() {
            // A value of another kind has no holds. A release gets here as well.
            return;
        }
        if self.kind == Kind::Barrier {
            return self.admit_parties(
                now,
                requester,
                requester.map(|request| request.claim.hold),
                notifications,
            );
        }
        self.admit_entries(now, requester.map(|request| request.claim.hold), notifications);
        let has_waiters = self.record.as_ref().is_some_and(Record::has_entries);
        if let Some(request) = requester
            && !has_waiters
            && !self.is_held_by(&request.claim)
            && self.admission(now, &request.claim, request.mode) == Admission::Now
        {
            self.admit(now, RecordedHolder::from_request(now.ms, request), request.mode, request.lease_ms);
        }
    }

    /// Admits the next entries (1). The hold `requester` is not notified: its client receives the reply.
    fn admit_entries(&mut self, now: Now, requester: Option<HoldId>, notifications: &mut Vec<Notification>) {
        if self.kind == Kind::Barrier {
            return self.admit_parties(now, None, requester, notifications);
        }
        for _ in 0..MAX_INSPECTED_ENTRIES {
            let Some((id, entry)) = self.record.as_ref().and_then(Record::first) else { break };
            let admission = if entry.expires_ms < now.ms {
                Admission::Never
            } else {
                self.admission(now, &entry.claim, entry.mode)
            };
            if admission == Admission::Later {
                return;
            }
            let left = self.record.as_mut().and_then(|record| record.remove(id));
            if let Some(entry) = left.filter(|_| admission == Admission::Now) {
                self.admit_entry(now, entry, requester, notifications);
            }
        }
    }

    /// Admits the parties of a barrier if enough of them are present (3). The hold `not_notified` belongs to the client that
    /// receives the reply.
    fn admit_parties(
        &mut self,
        now: Now,
        requester: Option<&Acquire>,
        not_notified: Option<HoldId>,
        notifications: &mut Vec<Notification>,
    ) {
        let mut present = Vec::new();
        if let Some(record) = &mut self.record {
            let front: Vec<_> = record.tickets.values().take(MAX_INSPECTED_ENTRIES).copied().collect();
            for id in front {
                if record.entries.get(&id).is_some_and(|entry| entry.expires_ms >= now.ms) {
                    present.push(id);
                } else {
                    record.remove(id);
                }
            }
        }
        // A request that does not queue comes after all entries.
        let extra = requester.filter(|request| {
            let id = QueueEntryId::of(self.kind, &request.claim.hold);
            let all_seen = |record: &Record| record.entries.len() == present.len();
            !present.contains(&id) && self.record.as_ref().is_none_or(all_seen)
        });
        let known = self.record.as_ref().and_then(|record| record.limit);
        let Some(total) = known.or(extra.and_then(|request| request.mode.total())) else { return };
        let total = total as usize;
        if total == 0 || present.len() + usize::from(extra.is_some()) < total {
            return;
        }
        for id in present.iter().take(total) {
            if let Some(entry) = self.record.as_mut().and_then(|record| record.remove(*id)) {
                self.admit_entry(now, entry, not_notified, notifications);
            }
        }
        if let Some(request) = extra.filter(|_| present.len() < total) {
            self.admit(now, RecordedHolder::from_request(now.ms, request), request.mode, request.lease_ms);
        }
    }

    /// Admits a queue entry, and notifies it, unless it belongs to the current request.
    fn admit_entry(
        &mut self,
        now: Now,
        entry: QueueEntry,
        requester: Option<HoldId>,
        notifications: &mut Vec<Notification>,
    ) {
        let (hold, nonce, mode, lease_ms) = (entry.claim.hold, entry.nonce, entry.mode, entry.lease_ms);
        let fence = self.admit(now, RecordedHolder::from_entry(now.ms, entry), mode, lease_ms);
        if requester != Some(hold) {
            notifications.push(Notification::Grant { to: hold.session(), nonce, fence });
        }
    }

    /// Adds a hold.
    fn admit(&mut self, now: Now, holder: RecordedHolder, mode: LockMode, lease_ms: u64) -> FencingToken {
        // If the record was lost, the value knows greater tokens than a new record.
        let newest = self.newest_shared_fence();
        let (limit, agreed) = (self.limit(mode), self.agreed(mode));
        let fence = FencingToken::after(self.greatest_fence().max(newest), now.us);
        let record = self.record_or_new(now, lease_ms);
        record.last_fence = Some(fence);
        (record.limit, record.agreed) = (limit, agreed);
        record.refresh_expiry(now.ms, lease_ms);
        let owner = holder.claim.value.filter(|_| self.kind.has_owners());
        let RecordedHolder { claim: Claim { hold, .. }, since_ms, liveness, label } =
            RecordedHolder { claim: Claim::new(holder.claim.hold), ..holder };
        let until_ms = now.ms + lease_ms;
        let held = SharedHold { hold, owner, mode, fence, until_ms, since_ms, liveness, label };
        let empty = Value { content: Content::SharedHolders(SharedHolders::default()), expires_ms: None };
        let value = self.value.get_or_insert(empty);
        if let Content::SharedHolders(shared) = &mut value.content {
            shared.add(held);
            value.expires_ms = value.expires_ms.map(|at_ms| at_ms.max(until_ms)).or(shared.until_ms());
        }
        fence
    }

    /// The holds whose end may admit the request, the first to end first, of those that a waiter watches.
    fn conflicting_holds(&self, request: &Acquire) -> Vec<&SharedHold> {
        if matches!(self.kind, Kind::Latch | Kind::Barrier) {
            return Vec::new();
        }
        let others = |held: &&SharedHold| held.owner.is_none() || held.owner != request.claim.value;
        let first = self.shared_holders().map(|shared| shared.first_to_end(MAX_INSPECTED_HOLDS));
        first.into_iter().flatten().filter(others).collect()
    }

    /// The sessions whose death would bring this request closer to the lock: that of the waiter right before it, or
    /// else those of the holders that it watches, starting with the one that the request named. So the replies name each
    /// of them in turn.
    fn watched_sessions(
        &self,
        request: &Acquire,
        position: Option<u64>,
        named: Option<SessionId>,
    ) -> (Option<Predecessor>, Vec<SessionId>) {
        let own_session = request.claim.hold.session();
        let can_die = |liveness: Liveness, hold: HoldId| {
            (liveness.ends_with_session() && hold.session() != own_session).then(|| hold.session())
        };
        let predecessor = |session| Predecessor { session, alive_ms: None };
        let queue = self.record.as_ref().filter(|_| position.is_some());
        if let Some(before) =
            queue.and_then(|record| record.predecessor(QueueEntryId::of(self.kind, &request.claim.hold)))
        {
            return (can_die(before.liveness, before.claim.hold).map(predecessor), Vec::new());
        }
        let mut sessions: Vec<_> = self
            .conflicting_holds(request)
            .iter()
            .filter_map(|held| can_die(held.liveness, held.hold))
            .collect();
        let mut distinct = std::collections::BTreeSet::new();
        sessions.retain(|session| distinct.insert(*session));
        if let Some(at) = sessions.iter().position(|session| named == Some(*session)) {
            sessions.rotate_left(at);
        }
        sessions.truncate(MAX_WATCHED_SESSIONS);
        let mut sessions = sessions.into_iter();
        (sessions.next().map(predecessor), sessions.collect())
    }
}
