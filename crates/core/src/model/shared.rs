//! Shared locks: a Semaphore, an RwLock, a Latch, a Barrier. One queue, in which each entry waits for a mode.
//!
//! Kinds differ in nothing but [which modes are compatible](LockState::room). tokio's `batch_semaphore`
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
use super::record::{LOOKS_AT_MOST, QueueEntry, QueueEntryId, Record, RecordedHolder};
use super::shared_holders::{SharedHold, SharedHolders};
use crate::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Extend, FencingToken, ForceRelease, ForceReleased, HoldId,
    HoldStatus, Holder, Kind, Label, Liveness, LockMode, MAX_SHARED_HOLDERS, Notification, ObservedHolder,
    Predecessor, Refused, Release, Released, Resize, Resized, SessionId,
};

/// How many sessions a reply to a waiter names at most that it may be waiting for.
const WATCHED_AT_MOST: usize = 16;

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
    /// An acquire. `asked` is the session whose life was checked for it.
    pub(super) fn acquire_part(
        &mut self,
        now: Now,
        ask: &Acquire,
        asked: Option<SessionId>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Acquired, Refused> {
        if let Some(settled) = self.settled(now, ask)? {
            return Ok(settled);
        }
        let id = QueueEntryId::of(self.kind, &ask.claim.hold);
        // First admit the entries that have room by now: one may be of the same owner, which changes what
        // this request can get.
        self.serve_parts(now, Some(ask.claim.hold), notifications);
        if self.holds(&ask.claim) {
            return Ok(self.confirm(now, ask));
        }
        if let Err(refused) = self.judge(now, ask) {
            // The refused client sends no further looks for this entry.
            if self.record.as_mut().and_then(|record| record.leave(id)).is_some() {
                self.pump_parts(now, None, notifications);
            }
            return Err(refused);
        }
        // A request that has room, and no entry before it, needs no entry.
        let awaited = self.record.as_ref().is_some_and(Record::is_awaited);
        let at_once = !awaited && self.room(&ask.claim, ask.mode) == Admission::Now;
        if at_once || self.passes(ask) {
            if let Some(record) = &mut self.record {
                record.leave(id);
            }
            self.let_in(now, RecordedHolder::asking(now.ms, ask), ask.mode, ask.lease_ms);
            // Others may have waited for this one to arrive.
            self.pump_parts(now, None, notifications);
        } else {
            if let Some(queue) = &ask.queue {
                let limit = self.limit(ask.mode);
                let record = self.record_or_new(now, queue.ttl_ms);
                record.limit = limit;
                record.enqueue(now.ms, id, ask, queue);
            }
            self.pump_parts(now, Some(ask), notifications);
        }
        if self.holds(&ask.claim) {
            return Ok(self.confirm(now, ask));
        }
        // Only now, because the entries before it may just have been admitted.
        let queued = self.record.as_ref().filter(|_| ask.queue.is_some());
        let position = queued.and_then(|record| record.position(id));
        let in_the_way = self.in_the_way(ask);
        let holder = in_the_way.first().map(|part| part.holder(now.ms));
        let (predecessor, other_holders) = self.watched(ask, position, asked);
        Ok(Acquired::Taken { holder, position, predecessor, other_holders })
    }

    pub(super) fn release_part(
        &mut self,
        now: Now,
        release: &Release,
        notifications: &mut Vec<Notification>,
    ) -> Released {
        let hold = release.claim.hold;
        let status = self.fate(&release.claim);
        let holder = if status == HoldStatus::Superseded { self.holder(now) } else { None };
        let fence = self.part(&hold).map(|part| part.fence);
        if status == HoldStatus::Held {
            self.keep_parts(now, |part| part.hold != hold);
        }
        let gathers = matches!(self.kind, Kind::Latch | Kind::Barrier) && self.refuse_other_types().is_ok();
        if status == HoldStatus::Held || (gathers && !matches!(status, HoldStatus::Ended(_))) {
            self.note_end(now, hold, fence, Ended::Released); // (6)
        }
        if let Some(record) = &mut self.record {
            record.leave(QueueEntryId::of(self.kind, &hold));
        }
        let next = release.next.as_ref().map(|next| self.acquire_part(now, next, None, notifications));
        self.pump_parts(now, None, notifications);
        Released { status, remaining_holds: 0, holder, next }
    }

    pub(super) fn free_part(
        &mut self,
        now: Now,
        free: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> ForceReleased {
        let of_it =
            |part: &&SharedHold| matches!(free.observed, ObservedHolder::Hold(seen) if part.fence == seen);
        let seen: Vec<_> =
            self.parts().iter().flat_map(|parts| &parts.holds).filter(of_it).cloned().collect();
        if seen.is_empty() {
            return ForceReleased::Changed { holder: self.holder(now) };
        }
        for SharedHold { hold, fence, .. } in &seen {
            notifications.push(Notification::ForceReleased { to: hold.session(), fence: *fence });
        }
        self.take(now, Ended::ForceReleased, &free.actor, |_, hold| {
            seen.iter().any(|part| part.hold == *hold)
        });
        self.pump_parts(now, None, notifications);
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
        record.keep(now.ms, 0);
        self.pump_parts(now, None, notifications);
        Ok(Resized::Done)
    }

    /// Ends the holds for which `goes` is true, on behalf of a client other than their holders; returns the
    /// fencing token of the first.
    pub(super) fn take_parts(
        &mut self,
        now: Now,
        ended: Ended,
        by: &Label,
        goes: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        let lost: Vec<_> = self
            .parts()
            .iter()
            .flat_map(|parts| &parts.holds)
            .filter(|part| goes(part.liveness, &part.hold))
            .cloned()
            .collect();
        self.keep_parts(now, |part| !goes(part.liveness, &part.hold));
        for SharedHold { hold, fence, label, .. } in &lost {
            self.note_end(now, *hold, Some(*fence), ended);
            let (fence, holder) = (Some(*fence), Some(label.clone()));
            let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: by.clone() };
            Audit::note(&mut self.audit, entry);
        }
        lost.first().map(|part| part.fence)
    }

    /// Extends a hold, and changes nothing else of the value that `lies` at the key: neither the expired
    /// holds of others, nor their ends. So an extend costs the same however many share the lock.
    pub(super) fn extend_part(&mut self, now: Now, extend: &Extend, lies: Option<Value>) {
        self.value = lies;
        if let Some(Value { content: Content::SharedHolders(parts), expires_ms }) = &mut self.value {
            parts.extend(&extend.claim.hold, now.ms + extend.lease_ms);
            *expires_ms = (*expires_ms).max(parts.until_ms());
        }
    }

    /// Records how a hold ended, and its token: if the record was lost, only the holds have the latest token.
    fn note_end(&mut self, now: Now, hold: HoldId, fence: Option<FencingToken>, how: Ended) {
        let record = self.record_or_new(now, 0);
        record.ended.note(hold, how);
        record.last = record.last.max(fence);
    }

    /// Keeps the holds for which `stays` is true. The key lasts no longer than the last of them.
    pub(super) fn keep_parts(&mut self, now: Now, stays: impl Fn(&SharedHold) -> bool) {
        self.value.take_if(|Value { content, expires_ms }| {
            let Content::SharedHolders(parts) = content else { return false };
            parts.holds.retain(stays);
            // A key must not expire in the current millisecond: Redis would treat it as gone.
            *expires_ms = parts.until_ms().map(|until_ms| until_ms.max(now.ms + 1));
            parts.holds.is_empty()
        });
    }

    /// The holds of a shared lock.
    pub(super) fn parts(&self) -> Option<&SharedHolders> {
        self.value.as_ref()?.content.parts()
    }

    /// The entry of a hold.
    pub(super) fn part(&self, hold: &HoldId) -> Option<&SharedHold> {
        self.parts()?.part(hold)
    }

    /// All holders, as others may know them.
    pub(super) fn shared_holders(&self, now: Now) -> Vec<Holder> {
        let parts = self.parts().into_iter().flat_map(|parts| &parts.holds);
        parts.take(MAX_SHARED_HOLDERS).map(|part| part.holder(now.ms)).collect()
    }

    /// Refuses a request that can never succeed (4).
    fn judge(&self, now: Now, ask: &Acquire) -> Result<(), Refused> {
        let owns = |mode| self.own(&ask.claim).any(|part| part.mode == mode);
        let wants_none = |count, total| count == 0 || total == 0;
        match ask.mode {
            LockMode::Permits { count, .. } => match self.limit(ask.mode) {
                Some(limit) if count == 0 || count > limit => Err(Refused::OutOfRange { count, limit }),
                _ => Ok(()),
            },
            LockMode::CountDown { count, total } if wants_none(count, total) => {
                Err(Refused::OutOfRange { count, limit: total })
            }
            LockMode::LatchWait { total } if total == 0 => {
                Err(Refused::OutOfRange { count: total, limit: total })
            }
            LockMode::BarrierWait { total } if total == 0 || total as usize > LOOKS_AT_MOST => {
                let limit = u32::try_from(LOOKS_AT_MOST).unwrap_or(u32::MAX);
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
            LockMode::Upgradable | LockMode::Write if self.own(&ask.claim).next().is_some() => {
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
    fn passes(&self, ask: &Acquire) -> bool {
        match ask.mode {
            LockMode::CountDown { .. } => true,
            LockMode::Read | LockMode::Upgradable => self.own(&ask.claim).next().is_some(),
            // It would be first in the queue, even if it does not queue.
            LockMode::Upgrade => self.room(&ask.claim, ask.mode) == Admission::Now,
            _ => false,
        }
    }

    /// Whether there is room for a mode.
    fn room(&self, claim: &Claim, mode: LockMode) -> Admission {
        let holds = || self.parts().into_iter().flat_map(|parts| &parts.holds);
        let taken = || self.parts().map_or(0, SharedHolders::count);
        let writes = |part: &SharedHold| matches!(part.mode, LockMode::Write | LockMode::Upgrade);
        let free = match mode {
            LockMode::Permits { count, .. } => {
                let limit = self.limit(mode).unwrap_or_default();
                if count > limit {
                    return Admission::Never;
                }
                taken() + u64::from(count) <= u64::from(limit)
            }
            LockMode::Read => !holds().any(writes),
            LockMode::Upgradable => !holds().any(|part| writes(part) || part.mode == LockMode::Upgradable),
            LockMode::Write => holds().next().is_none(),
            LockMode::Upgrade => {
                if !self.own(claim).any(|part| part.mode == LockMode::Upgradable) {
                    return Admission::Never;
                }
                !holds().any(|part| writes(part) || part.owner != claim.value)
            }
            LockMode::LatchWait { .. } => taken() >= u64::from(self.limit(mode).unwrap_or_default()),
            LockMode::CountDown { .. } => true,
            // Barrier parties are admitted together (5), and shared locks have no exclusive mode.
            LockMode::BarrierWait { .. } | LockMode::Exclusive => false,
        };
        if free { Admission::Now } else { Admission::Later }
    }

    /// Admits the next entries, and the request itself if none is before it (1).
    pub(super) fn pump_parts(
        &mut self,
        now: Now,
        asker: Option<&Acquire>,
        notifications: &mut Vec<Notification>,
    ) {
        if self.refuse_other_types().is_err() {
            // A release gets here as well: a value of another kind has no holds.
            return;
        }
        if self.kind == Kind::Barrier {
            return self.meet(now, asker, asker.map(|ask| ask.claim.hold), notifications);
        }
        self.serve_parts(now, asker.map(|ask| ask.claim.hold), notifications);
        let awaited = self.record.as_ref().is_some_and(Record::is_awaited);
        if let Some(ask) = asker
            && !awaited
            && !self.holds(&ask.claim)
            && self.room(&ask.claim, ask.mode) == Admission::Now
        {
            self.let_in(now, RecordedHolder::asking(now.ms, ask), ask.mode, ask.lease_ms);
        }
    }

    /// Admits the next entries (1). `asker` learns of it from its reply.
    fn serve_parts(&mut self, now: Now, asker: Option<HoldId>, notifications: &mut Vec<Notification>) {
        if self.kind == Kind::Barrier {
            return self.meet(now, None, asker, notifications);
        }
        for _ in 0..LOOKS_AT_MOST {
            let Some((id, place)) = self.record.as_ref().and_then(Record::first) else { break };
            let room = if place.expires_ms < now.ms {
                Admission::Never
            } else {
                self.room(&place.claim, place.mode)
            };
            if room == Admission::Later {
                return;
            }
            let left = self.record.as_mut().and_then(|record| record.leave(id));
            if let Some(place) = left.filter(|_| room == Admission::Now) {
                self.grant(now, place, asker, notifications);
            }
        }
    }

    /// Admits the parties of a barrier if enough are present (5). `told` learns of it from its reply.
    fn meet(
        &mut self,
        now: Now,
        asker: Option<&Acquire>,
        told: Option<HoldId>,
        notifications: &mut Vec<Notification>,
    ) {
        let mut present = Vec::new();
        if let Some(record) = &mut self.record {
            let front: Vec<_> = record.tickets.values().take(LOOKS_AT_MOST).copied().collect();
            for id in front {
                if record.places.get(&id).is_some_and(|place| place.expires_ms >= now.ms) {
                    present.push(id);
                } else {
                    record.leave(id);
                }
            }
        }
        // A request that does not queue, and comes after all entries.
        let extra = asker.filter(|ask| {
            let id = QueueEntryId::of(self.kind, &ask.claim.hold);
            let all_seen = |record: &Record| record.places.len() == present.len();
            !present.contains(&id) && self.record.as_ref().is_none_or(all_seen)
        });
        let known = self.record.as_ref().and_then(|record| record.limit);
        let Some(of) = known.or(extra.and_then(|ask| ask.mode.total())) else { return };
        let of = of as usize;
        if of == 0 || present.len() + usize::from(extra.is_some()) < of {
            return;
        }
        for id in present.iter().take(of) {
            if let Some(place) = self.record.as_mut().and_then(|record| record.leave(*id)) {
                self.grant(now, place, told, notifications);
            }
        }
        if let Some(ask) = extra.filter(|_| present.len() < of) {
            self.let_in(now, RecordedHolder::asking(now.ms, ask), ask.mode, ask.lease_ms);
        }
    }

    /// Admits a queue entry, and notifies it, unless it belongs to the current request.
    fn grant(
        &mut self,
        now: Now,
        place: QueueEntry,
        asker: Option<HoldId>,
        notifications: &mut Vec<Notification>,
    ) {
        let (hold, nonce, mode, lease_ms) = (place.claim.hold, place.nonce, place.mode, place.lease_ms);
        let fence = self.let_in(now, RecordedHolder::waiting(now.ms, place), mode, lease_ms);
        if asker != Some(hold) {
            notifications.push(Notification::Grant { to: hold.session(), nonce, fence });
        }
    }

    /// Adds a hold.
    fn let_in(&mut self, now: Now, tenant: RecordedHolder, mode: LockMode, lease_ms: u64) -> FencingToken {
        // If the record was lost, the holds have later tokens than it.
        let newest = self.parts().and_then(|parts| parts.holds.last()).map(|part| part.fence);
        let limit = self.limit(mode);
        let record = self.record_or_new(now, lease_ms);
        let fence = FencingToken::after(record.last.max(newest), now.us);
        record.last = Some(fence);
        record.limit = limit;
        record.keep(now.ms, lease_ms);
        let owner = tenant.claim.value.filter(|_| self.kind.has_owners());
        let RecordedHolder { claim: Claim { hold, .. }, since_ms, liveness, label } =
            RecordedHolder { claim: Claim::new(tenant.claim.hold), ..tenant };
        let until_ms = now.ms + lease_ms;
        let part = SharedHold { hold, owner, mode, fence, until_ms, since_ms, liveness, label };
        let empty = Value { content: Content::SharedHolders(SharedHolders::default()), expires_ms: None };
        let value = self.value.get_or_insert(empty);
        if let Content::SharedHolders(parts) = &mut value.content {
            parts.add(part);
            value.expires_ms = parts.until_ms();
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
        self.parts().is_none() && self.record.as_ref().is_none_or(|record| !record.is_awaited_at(now.ms))
    }

    /// The holds of the owner of a claim.
    fn own<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a SharedHold> {
        let owner = claim.value.as_ref().filter(|_| self.kind.has_owners());
        self.parts().into_iter().flat_map(move |parts| parts.of(owner))
    }

    /// The holds whose end may admit the request.
    fn in_the_way(&self, ask: &Acquire) -> Vec<&SharedHold> {
        if matches!(self.kind, Kind::Latch | Kind::Barrier) {
            return Vec::new();
        }
        let others = |part: &&SharedHold| part.owner.is_none() || part.owner != ask.claim.value;
        self.parts().into_iter().flat_map(|parts| &parts.holds).filter(others).collect()
    }

    /// The sessions whose death would bring this request closer to the lock: the waiter right before it, or
    /// else the holders, starting with the one that the request named. So each of them is named in turn,
    /// however many there are.
    fn watched(
        &self,
        ask: &Acquire,
        position: Option<u64>,
        asked: Option<SessionId>,
    ) -> (Option<Predecessor>, Vec<SessionId>) {
        let own = ask.claim.hold.session();
        let can_die = |liveness: Liveness, hold: HoldId| {
            (liveness.ends_with_session() && hold.session() != own).then(|| hold.session())
        };
        let predecessor = |session| Predecessor { session, alive_ms: None };
        let queue = self.record.as_ref().filter(|_| position.is_some());
        if let Some(before) =
            queue.and_then(|record| record.before(QueueEntryId::of(self.kind, &ask.claim.hold)))
        {
            return (can_die(before.liveness, before.claim.hold).map(predecessor), Vec::new());
        }
        let mut sessions: Vec<_> =
            self.in_the_way(ask).iter().filter_map(|part| can_die(part.liveness, part.hold)).collect();
        let mut seen = std::collections::BTreeSet::new();
        sessions.retain(|session| seen.insert(*session));
        if let Some(at) = sessions.iter().position(|session| asked == Some(*session)) {
            sessions.rotate_left(at);
        }
        sessions.truncate(WATCHED_AT_MOST);
        let mut sessions = sessions.into_iter();
        (sessions.next().map(predecessor), sessions.collect())
    }
}
