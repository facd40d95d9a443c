//! Shared locks: a Semaphore, an RwLock, a Latch, a Barrier. One queue, in which each entry waits for a mode.
//!
//! Kinds differ in nothing but [which modes are compatible](LockState::admission). tokio's `batch_semaphore`
//! serves its Mutex, RwLock and Semaphore in the same way.
//!
//! 1. Each change serves the queue from the front until the next entry has no room. No entry is passed by one
//!    that came later and needs less. So neither readers nor writers starve: readers that came before a
//!    writer go before it, all together, and those that came after it go after it.
//! 2. Each hold has its own queue entry, not each session: several waiters of one process can be admitted
//!    together.
//! 3. Only requests for which the queue would wait itself pass it: those of an owner that already holds the
//!    lock, and arrivals at a latch. An upgrade goes to the front, because all others wait for it.
//! 4. A request that can never be admitted is refused at once, so that it does not block the others.
//! 5. The parties of a barrier are admitted together, or none of them.
//! 6. A release at a latch or a barrier is final, even where nothing of the hold existed: otherwise a late
//!    acquire of it would be counted, and admit others.

use super::audit::Audit;
use super::lock::{Content, LockState, Now, Value};
use super::record::{MAX_INSPECTED_ENTRIES, QueueEntry, QueueEntryId, Record, RecordedHolder};
use super::shared_holders::{SharedHold, SharedHolders};
use crate::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Extend, FencingToken, ForceRelease, ForceReleased, HoldId,
    HoldStatus, Holder, Kind, Label, Liveness, LockMode, MAX_SHARED_HOLDERS, Notification, ObservedHolder,
    Predecessor, Refused, Release, Released, Resize, Resized, SessionId,
};

/// How many sessions a reply to a waiter names at most that it may be waiting for.
const MAX_WATCHED_SESSIONS: usize = 16;

/// Whether there is room for another hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    Now,
    /// Once other holders have left.
    Later,
    /// Not as long as the request stays the same (4).
    Never,
}

impl LockState {
    /// An acquire. `named` is the session whose life was checked for it.
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
        // First admit the entries that have room by now: one may be of the same owner, which changes what
        // this request can get.
        self.admit_entries(now, Some(request.claim.hold), notifications);
        if self.is_held_by(&request.claim) {
            return Ok(self.confirm(now, request));
        }
        if let Err(refused) = self.check_request(now, request) {
            // The refused client sends no further looks for this entry.
            if self.record.as_mut().and_then(|record| record.remove(id)).is_some() {
                self.serve_shared_queue(now, None, notifications);
            }
            return Err(refused);
        }
        // A request that has room, and no entry before it, needs no entry.
        let awaited = self.record.as_ref().is_some_and(Record::has_entries);
        let at_once = !awaited && self.admission(&request.claim, request.mode) == Admission::Now;
        if at_once || self.skips_queue(request) {
            if let Some(record) = &mut self.record {
                record.remove(id);
            }
            self.admit(now, RecordedHolder::from_request(now.ms, request), request.mode, request.lease_ms);
            // Others may have waited for this one to arrive.
            self.serve_shared_queue(now, None, notifications);
        } else {
            if let Some(queue) = &request.queue {
                let limit = self.limit(request.mode);
                let record = self.record_or_new(now, queue.ttl_ms);
                record.limit = limit;
                record.enqueue(now.ms, id, request, queue);
            }
            self.serve_shared_queue(now, Some(request), notifications);
        }
        if self.is_held_by(&request.claim) {
            return Ok(self.confirm(now, request));
        }
        // Only now, because the entries before it may just have been admitted.
        let queued = self.record.as_ref().filter(|_| request.queue.is_some());
        let position = queued.and_then(|record| record.position(id));
        let conflicting_holds = self.conflicting_holds(request);
        let holder = conflicting_holds.first().map(|held| held.holder(now.ms));
        let (predecessor, other_holders) = self.watched_sessions(request, position, named);
        Ok(Acquired::Taken { holder, position, predecessor, other_holders })
    }

    pub(super) fn release_shared(
        &mut self,
        now: Now,
        release: &Release,
        notifications: &mut Vec<Notification>,
    ) -> Released {
        let hold = release.claim.hold;
        let status = self.hold_status(&release.claim);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let fence = self.shared_hold(&hold).map(|held| held.fence);
        if status == HoldStatus::Held {
            self.retain_shared_holds(now, |held| held.hold != hold);
        }
        let gathers = matches!(self.kind, Kind::Latch | Kind::Barrier) && self.refuse_other_types().is_ok();
        if status == HoldStatus::Held || (gathers && !matches!(status, HoldStatus::Ended(_))) {
            self.record_end(now, hold, fence, Ended::Released); // (6)
        }
        if let Some(record) = &mut self.record {
            record.remove(QueueEntryId::of(self.kind, &hold));
        }
        let next = release.next.as_ref().map(|next| self.acquire_shared(now, next, None, notifications));
        self.serve_shared_queue(now, None, notifications);
        Released { status, remaining_holds: 0, holder, next }
    }

    pub(super) fn force_release_shared(
        &mut self,
        now: Now,
        force_release: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> ForceReleased {
        let of_it = |held: &&SharedHold| matches!(force_release.observed, ObservedHolder::Hold(seen) if held.fence == seen);
        let seen: Vec<_> =
            self.shared_holders().iter().flat_map(|shared| &shared.holds).filter(of_it).cloned().collect();
        if seen.is_empty() {
            return ForceReleased::Changed { holder: self.holder(now) };
        }
        for SharedHold { hold, fence, .. } in &seen {
            notifications.push(Notification::ForceReleased { to: hold.session(), fence: *fence });
        }
        self.end_holds(now, Ended::ForceReleased, &force_release.actor, |_, hold| {
            seen.iter().any(|held| held.hold == *hold)
        });
        self.serve_shared_queue(now, None, notifications);
        ForceReleased::Released
    }

    pub(super) fn resize(
        &mut self,
        now: Now,
        resize: Resize,
        notifications: &mut Vec<Notification>,
    ) -> Result<Resized, Refused> {
        self.refuse_other_types()?;
        let Resize { observed, limit } = resize;
        if limit == 0 {
            return Err(Refused::OutOfRange { count: 0, limit });
        }
        let known = self.record.as_ref().and_then(|record| record.limit);
        if known != observed && known != Some(limit) {
            return Ok(Resized::Changed { limit: known });
        }
        let record = self.record_or_new(now, 0);
        record.limit = Some(limit);
        record.refresh_expiry(now.ms, 0);
        self.serve_shared_queue(now, None, notifications);
        Ok(Resized::Done)
    }

    /// Ends the holds for which `ends` is true, on behalf of a client other than their holders; returns the
    /// fencing token of the first.
    pub(super) fn end_shared_holds(
        &mut self,
        now: Now,
        ended: Ended,
        by: &Label,
        ends: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        let lost: Vec<_> = self
            .shared_holders()
            .iter()
            .flat_map(|shared| &shared.holds)
            .filter(|held| ends(held.liveness, &held.hold))
            .cloned()
            .collect();
        self.retain_shared_holds(now, |held| !ends(held.liveness, &held.hold));
        for SharedHold { hold, fence, label, .. } in &lost {
            self.record_end(now, *hold, Some(*fence), ended);
            let (fence, holder) = (Some(*fence), Some(label.clone()));
            let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: by.clone() };
            Audit::push(&mut self.audit, entry);
        }
        lost.first().map(|held| held.fence)
    }

    /// Extends a hold, and changes nothing else of the value that `stored` at the key: neither the expired
    /// holds of others, nor their ends. So an extend costs the same however many share the lock.
    pub(super) fn extend_shared(&mut self, now: Now, extend: &Extend, stored: Option<Value>) {
        self.value = stored;
        if let Some(Value { content: Content::SharedHolders(shared), expires_ms }) = &mut self.value {
            shared.extend(&extend.claim.hold, now.ms + extend.lease_ms);
            *expires_ms = (*expires_ms).max(shared.until_ms());
        }
    }

    /// Records how a hold ended, and its token: if the record was lost, only the holds have the latest token.
    fn record_end(&mut self, now: Now, hold: HoldId, fence: Option<FencingToken>, how: Ended) {
        let record = self.record_or_new(now, 0);
        record.ended.push(hold, how);
        record.last_fence = record.last_fence.max(fence);
    }

    /// Keeps the holds for which `keep` is true. The key lasts no longer than the last of them.
    pub(super) fn retain_shared_holds(&mut self, now: Now, keep: impl Fn(&SharedHold) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| {
            let Content::SharedHolders(shared) = content else { return false };
            shared.holds.retain(keep);
            // A key must not expire in the current millisecond: Redis would treat it as gone.
            *expires_ms = shared.until_ms().map(|until_ms| until_ms.max(now.ms + 1));
            shared.holds.is_empty()
        });
    }

    /// The holds of a shared lock.
    pub(super) fn shared_holders(&self) -> Option<&SharedHolders> {
        self.value.as_ref()?.content.shared_holders()
    }

    /// The entry of a hold.
    pub(super) fn shared_hold(&self, hold: &HoldId) -> Option<&SharedHold> {
        self.shared_holders()?.find(hold)
    }

    /// All holders, as others may know them.
    pub(super) fn all_holders(&self, now: Now) -> Vec<Holder> {
        let shared = self.shared_holders().into_iter().flat_map(|shared| &shared.holds);
        shared.take(MAX_SHARED_HOLDERS).map(|held| held.holder(now.ms)).collect()
    }

    /// Refuses a request that can never succeed (4).
    fn check_request(&self, now: Now, request: &Acquire) -> Result<(), Refused> {
        let owns = |mode| self.holds_of_owner(&request.claim).any(|held| held.mode == mode);
        let wants_none = |count, total| count == 0 || total == 0;
        match request.mode {
            LockMode::Permits { count, .. } => match self.limit(request.mode) {
                Some(limit) if count == 0 || count > limit => Err(Refused::OutOfRange { count, limit }),
                _ => Ok(()),
            },
            LockMode::CountDown { count, total } if wants_none(count, total) => {
                Err(Refused::OutOfRange { count, limit: total })
            }
            LockMode::LatchWait { total } if total == 0 => {
                Err(Refused::OutOfRange { count: total, limit: total })
            }
            LockMode::BarrierWait { total } if total == 0 || total as usize > MAX_INSPECTED_ENTRIES => {
                let limit = u32::try_from(MAX_INSPECTED_ENTRIES).unwrap_or(u32::MAX);
                Err(Refused::OutOfRange { count: total, limit })
            }
            LockMode::CountDown { total, .. }
            | LockMode::LatchWait { total }
            | LockMode::BarrierWait { total } => match self.record.as_ref().and_then(|record| record.limit) {
                Some(known) if known != total && !self.is_idle(now) => {
                    Err(Refused::Disagreement { requested: total, known })
                }
                _ => Ok(()),
            },
            LockMode::Upgradable if owns(LockMode::Write) => Ok(()),
            LockMode::Upgradable | LockMode::Write
                if self.holds_of_owner(&request.claim).next().is_some() =>
            {
                Err(Refused::WouldDeadlock)
            }
            LockMode::Upgrade if owns(LockMode::Write) || owns(LockMode::Upgrade) => {
                Err(Refused::WouldDeadlock)
            }
            LockMode::Upgrade if !owns(LockMode::Upgradable) => Err(Refused::NothingToUpgrade),
            _ => Ok(()),
        }
    }

    /// Whether a request passes the queue (3).
    fn skips_queue(&self, request: &Acquire) -> bool {
        match request.mode {
            LockMode::CountDown { .. } => true,
            LockMode::Read | LockMode::Upgradable => self.holds_of_owner(&request.claim).next().is_some(),
            // It would be first in the queue, even if it does not queue.
            LockMode::Upgrade => self.admission(&request.claim, request.mode) == Admission::Now,
            _ => false,
        }
    }

    /// Whether there is room for a mode.
    fn admission(&self, claim: &Claim, mode: LockMode) -> Admission {
        let holds = || self.shared_holders().into_iter().flat_map(|shared| &shared.holds);
        let taken = || self.shared_holders().map_or(0, SharedHolders::count);
        let writes = |held: &SharedHold| matches!(held.mode, LockMode::Write | LockMode::Upgrade);
        let force_release = match mode {
            LockMode::Permits { count, .. } => {
                let limit = self.limit(mode).unwrap_or_default();
                if count > limit {
                    return Admission::Never;
                }
                taken() + u64::from(count) <= u64::from(limit)
            }
            LockMode::Read => !holds().any(writes),
            LockMode::Upgradable => !holds().any(|held| writes(held) || held.mode == LockMode::Upgradable),
            LockMode::Write => holds().next().is_none(),
            LockMode::Upgrade => {
                if !self.holds_of_owner(claim).any(|held| held.mode == LockMode::Upgradable) {
                    return Admission::Never;
                }
                !holds().any(|held| writes(held) || held.owner != claim.value)
            }
            LockMode::LatchWait { .. } => taken() >= u64::from(self.limit(mode).unwrap_or_default()),
            LockMode::CountDown { .. } => true,
            // Barrier parties are admitted together (5), and shared locks have no exclusive mode.
            LockMode::BarrierWait { .. } | LockMode::Exclusive => false,
        };
        if force_release { Admission::Now } else { Admission::Later }
    }

    /// Admits the next entries, and the request itself if none is before it (1).
    pub(super) fn serve_shared_queue(
        &mut self,
        now: Now,
        requester: Option<&Acquire>,
        notifications: &mut Vec<Notification>,
    ) {
        if self.refuse_other_types().is_err() {
            // A release gets here as well: a value of another kind has no holds.
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
        let awaited = self.record.as_ref().is_some_and(Record::has_entries);
        if let Some(request) = requester
            && !awaited
            && !self.is_held_by(&request.claim)
            && self.admission(&request.claim, request.mode) == Admission::Now
        {
            self.admit(now, RecordedHolder::from_request(now.ms, request), request.mode, request.lease_ms);
        }
    }

    /// Admits the next entries (1). `requester` learns of it from its reply.
    fn admit_entries(&mut self, now: Now, requester: Option<HoldId>, notifications: &mut Vec<Notification>) {
        if self.kind == Kind::Barrier {
            return self.admit_parties(now, None, requester, notifications);
        }
        for _ in 0..MAX_INSPECTED_ENTRIES {
            let Some((id, entry)) = self.record.as_ref().and_then(Record::first) else { break };
            let admission = if entry.expires_ms < now.ms {
                Admission::Never
            } else {
                self.admission(&entry.claim, entry.mode)
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

    /// Admits the parties of a barrier if enough are present (5). `told` learns of it from its reply.
    fn admit_parties(
        &mut self,
        now: Now,
        requester: Option<&Acquire>,
        told: Option<HoldId>,
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
        // A request that does not queue, and comes after all entries.
        let extra = requester.filter(|request| {
            let id = QueueEntryId::of(self.kind, &request.claim.hold);
            let all_seen = |record: &Record| record.entries.len() == present.len();
            !present.contains(&id) && self.record.as_ref().is_none_or(all_seen)
        });
        let known = self.record.as_ref().and_then(|record| record.limit);
        let Some(of) = known.or(extra.and_then(|request| request.mode.total())) else { return };
        let of = of as usize;
        if of == 0 || present.len() + usize::from(extra.is_some()) < of {
            return;
        }
        for id in present.iter().take(of) {
            if let Some(entry) = self.record.as_mut().and_then(|record| record.remove(*id)) {
                self.admit_entry(now, entry, told, notifications);
            }
        }
        if let Some(request) = extra.filter(|_| present.len() < of) {
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
        // If the record was lost, the holds have later tokens than it.
        let newest = self.shared_holders().and_then(|shared| shared.holds.last()).map(|held| held.fence);
        let limit = self.limit(mode);
        let record = self.record_or_new(now, lease_ms);
        let fence = FencingToken::after(record.last_fence.max(newest), now.us);
        record.last_fence = Some(fence);
        record.limit = limit;
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
            value.expires_ms = shared.until_ms();
        }
        fence
    }

    /// The total number: the one that the store knows, or the one in this request. Parties of a barrier, and
    /// waiters at a latch, have agreed on the number.
    fn limit(&self, mode: LockMode) -> Option<u32> {
        let known = self.record.as_ref().and_then(|record| record.limit);
        match mode {
            LockMode::Permits { total, .. } => known.or(Some(total)),
            _ => mode.total(),
        }
    }

    /// Whether no client holds the lock or waits for it.
    fn is_idle(&self, now: Now) -> bool {
        self.shared_holders().is_none()
            && self.record.as_ref().is_none_or(|record| !record.has_live_entry(now.ms))
    }

    /// The holds of the owner of a claim.
    fn holds_of_owner<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a SharedHold> {
        let owner = claim.value.as_ref().filter(|_| self.kind.has_owners());
        self.shared_holders().into_iter().flat_map(move |shared| shared.of_owner(owner))
    }

    /// The holds whose end may admit the request.
    fn conflicting_holds(&self, request: &Acquire) -> Vec<&SharedHold> {
        if matches!(self.kind, Kind::Latch | Kind::Barrier) {
            return Vec::new();
        }
        let others = |held: &&SharedHold| held.owner.is_none() || held.owner != request.claim.value;
        self.shared_holders().into_iter().flat_map(|shared| &shared.holds).filter(others).collect()
    }

    /// The sessions whose death would bring this request closer to the lock: the waiter right before it, or
    /// else the holders, starting with the one that the request named. So each of them is named in turn,
    /// however many there are.
    fn watched_sessions(
        &self,
        request: &Acquire,
        position: Option<u64>,
        named: Option<SessionId>,
    ) -> (Option<Predecessor>, Vec<SessionId>) {
        let holds_of_owner = request.claim.hold.session();
        let can_die = |liveness: Liveness, hold: HoldId| {
            (liveness.ends_with_session() && hold.session() != holds_of_owner).then(|| hold.session())
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
        let mut seen = std::collections::BTreeSet::new();
        sessions.retain(|session| seen.insert(*session));
        if let Some(at) = sessions.iter().position(|session| named == Some(*session)) {
            sessions.rotate_left(at);
        }
        sessions.truncate(MAX_WATCHED_SESSIONS);
        let mut sessions = sessions.into_iter();
        (sessions.next().map(predecessor), sessions.collect())
    }
}
