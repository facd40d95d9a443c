//! Tests of the conformance suite: a correct store passes, and each mutant fails the case that covers it.

use futures_util::future::{BoxFuture, ready};
use leasehold_core::model::{
    Content, LockState, QueueEntryId, ReentrantHolds, SessionLookup, SessionStatus, Sessions, SharedHold,
    SharedHolders, Value, all_alive,
};
use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, Evicted, Extended, FencingToken, ForceReleased, HoldId, HoldStatus,
    Inspect, KeyError, KeySpace, Kind, Liveness, Lock, LockMode, LockName, MultiAcquired, Notification,
    ObservedHolder, Op, OwnValue, Partition, Refused, Release, ReleaseAction, Reply, SessionId, SessionOp,
    SessionReply, TokenBlock,
};
use leasehold_store::{Capabilities, Fault, NotificationSink, Outcome, SessionTracking, Store};
use leasehold_testkit::conformance::{self, Fixture, StoreUnderTest, cases};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

/// A deliberate defect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreMutant {
    None,
    /// Forgets which hold was ended last.
    ForgetsEnded,
    /// A release ends the current hold, whichever it is.
    ReleasesAnyHold,
    /// An extend sets the expiry, even to an earlier time.
    ExtendShortens,
    /// An extend that finds no hold reports success.
    ExtendsNothing,
    /// Cuts leases to whole seconds.
    WholeSeconds,
    /// Grants every hold the same token.
    OneToken,
    /// An attempt takes a free lock ahead of waiters.
    Barges,
    /// Every grant is sent to all mailboxes.
    PublishesToAll,
    /// Continues to publish to closed mailboxes.
    PublishesToClosed,
    /// Every release grants, regardless of its action.
    AlwaysGrants,
    /// A poll restarts the lease.
    PollsExtend,
    /// A poll moves the queue entry to the end.
    PollsLoseTheEntry,
    /// Trims names.
    TrimsNames,
    /// Compares values, not holds.
    ValuesAlone,
    /// The outcomes of a batch are out of order.
    MixesUp,
    /// Calls exceed their time limits.
    ExceedsTimeLimits,
    /// A foreign lock gets an expiry without a request for it.
    AdoptsUnasked,
    /// Every session counts as lapsed.
    EvictsLiveSessions,
    /// No session counts as lapsed.
    EvictsNoSession,
    /// An eviction also ends holds without a session.
    EvictsDetached,
    /// A lapsed session can return.
    Revives,
    /// A forced release ends the current hold, whichever it is.
    ForceReleasesAnyHold,
    /// Forced releases are not audited.
    ForgetsAudit,
    /// An acquire that is sent again counts again.
    CountsTwice,
    /// Re-entry sets the expiry of all holds, even to an earlier time.
    EntryShortens,
    /// Re-entry also extends unknown holds.
    EntryExtendsUnknownHolds,
    /// Different owners count as the same.
    MixesOwners,
    /// An expired hold ends, but its count stays.
    ExpiredHoldsCount,
    /// The release of any hold frees the lock.
    InnerReleaseFrees,
    /// Every entry has a token of its own.
    EntryHasItsToken,
    /// A release does not report the remaining count.
    OmitsRemainingCount,
    /// An eviction ends all holds of the owner.
    EvictsTheOwner,
    /// Kinds of locks do not exclude each other.
    MixesKinds,
    /// Re-entry waits in the queue.
    EntriesQueue,
    /// A release that acquires in the same step frees the lock before.
    FreesBeforeNextAcquire,
    /// A forced release notifies one of the owner's processes.
    NotifiesOneProcess,
    /// All holds end with the longest.
    AllHoldsEndTogether,
    /// After a release, the remaining holds get the released hold's expiry.
    ReleaseSetsRemainingExpiry,
    /// A cooldown lasts longer than requested.
    ExtendsCooldown,
    /// A lock in cooldown still belongs to its last holder.
    CooldownHasHolder,
    /// Of several locks it acquires those that are free.
    AcquiresSome,
    /// Of several locks it acquires also those that others hold.
    AcquiresAll,
    /// A resent request for several locks acquires them anew.
    ReacquiresOnResend,
    /// One token for all of several locks.
    OneTokenForAll,
    /// One lease for all of several locks.
    OneLeaseForAll,
    /// Grants more permits than there are.
    ExceedsPermits,
    /// A resent acquire of a shared lock acquires again.
    ResendAcquiresAgain,
    /// At most one grant of an operation is published.
    PublishesOne,
    /// A session has only one queue entry.
    OneEntryPerSession,
    /// All shared holds end with the longest.
    SharedHoldsEndTogether,
    /// An impossible request waits forever.
    WaitsForEver,
    /// Each request's limit becomes the limit.
    AcceptsAnyLimit,
    /// A resize ignores which limit was observed.
    ResizesUnseen,
    /// A resize does not serve the queue.
    ResizeGrantsNothing,
    /// A lower limit evicts holders.
    ResizeEvicts,
    /// A forced release ends all shared holds.
    ForceReleasesAll,
    /// Not all blocking holders are reported.
    HidesOthers,
    /// Not all holders are reported.
    HidesHolders,
    /// A queue entry stays though its request has become impossible.
    KeepsImpossibleEntries,
    /// Other holders are admitted beside a writer.
    WriterIsShared,
    /// An owner that reads waits to read again.
    ReadersQueue,
    /// Two upgradable reads are admitted.
    UpgradablesShare,
    /// An upgrade waits behind all others.
    UpgradesQueue,
    /// A latch opens at any arrival.
    OpensEarly,
    /// Expired queue entries count at a barrier.
    CountsExpiredParties,
    /// An attempt at a barrier leaves a queue entry.
    TriesQueue,
    /// Modes of other kinds are accepted.
    AcceptsAnyMode,
    /// A missing owner is replaced by a new one.
    InventsOwners,
    /// Takes shared locks together with others.
    SharesInSets,
    /// Another number of parties is accepted.
    AcceptsAnyParties,
    /// Only one hold of a lapsed session is evicted.
    EvictsOne,
    /// Reserves the same tokens again.
    ReservesAgain,
    /// A whole block is reserved, however few tokens were requested.
    ReservesMore,
    /// One token is reserved, however many were requested.
    ReservesOne,
    /// Grants tokens that are reserved.
    GrantsReserved,
    /// Any client reserves what belongs to the holder.
    ReservesForAnyHold,
    /// Of other kinds than a Mutex it extends, and reserves nothing.
    ReservesOfAnyKind,
    /// Waiters are not reported.
    HidesWaiters,
    /// No holder is notified of waiters.
    NotifiesNoHolder,
    /// Holders are notified without a request for it.
    NotifiesUnasked,
    /// A holder is notified of its own session's requests.
    NotifiesOfOwnRequest,
    /// Later holders are notified too.
    NotifiesForEver,
    /// A former holder is notified too.
    NotifiesLostHold,
}

/// The model as a minimal store, with a clock and keys that the test can change.
#[derive(Clone)]
struct Model {
    mutant: StoreMutant,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    now_us: u64,
    locks: HashMap<Lock, LockState>,
    mailboxes: HashMap<SessionId, Arc<dyn NotificationSink>>,
    sessions: Sessions,
}

impl Model {
    fn new(mutant: StoreMutant) -> Self {
        let shared = Shared { now_us: 1_762_000_000_000_000, ..Shared::default() };
        Self { mutant, shared: Arc::new(Mutex::new(shared)) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_content(&self, lock: &Lock, content: Option<Content>, expiry: Option<Duration>) {
        let mut shared = self.shared();
        let expires_ms = expiry.map(|expiry| shared.now_us / 1000 + millis(expiry));
        let value = content.map(|content| Value { content, expires_ms });
        let state = shared.locks.entry(lock.clone());
        state.or_insert_with(|| LockState::new(lock.kind)).value = value;
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let (mut lock, mut op) = (lock.clone(), op.clone());
        if self.mutant == StoreMutant::TrimsNames {
            lock.name = LockName::new(lock.name.as_str().trim()).unwrap_or(lock.name);
        }
        let mut shared = self.shared();
        let Shared { now_us, locks, mailboxes, sessions } = &mut *shared;
        let now_us = *now_us;
        let other =
            Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.mutant != StoreMutant::MixesKinds);
        let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
        let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
        let state = locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind));
        state.is_empty_at(now_us);
        mutate_operation(self.mutant, state, &mut op);
        mutate_state(self.mutant, state, now_us / 1000, &op);
        mutate_entries(self.mutant, state, now_us / 1000, &op);
        mutate_request(self.mutant, state, &mut op);
        mutate_shared_holders(self.mutant, state, now_us / 1000, &op);
        mutate_reservation(self.mutant, state, &mut op);
        let before = state.clone();
        let alive: SessionLookup<'_> = match self.mutant {
            StoreMutant::EvictsLiveSessions => &|_| SessionStatus::Lapsed,
            StoreMutant::EvictsNoSession => &|_| SessionStatus::Alive(1_000),
            _ => &|session| sessions.status(now_us / 1000, session),
        };
        let (mut reply, mut notifications) = match other {
            None => state.apply(now_us, &op, alive),
            Some(other) => state.apply_to_occupied_key(&other, now_us, &op, alive),
        };
        if self.mutant == StoreMutant::ForgetsAudit {
            state.audit = None;
        }
        mutate_reply(self.mutant, &mut reply);
        mutate_result(self.mutant, &before, state, &op, &mut reply);
        mutate_notifications(self.mutant, state, &op, &reply, &mut notifications);
        let most = if self.mutant == StoreMutant::PublishesOne { 1 } else { usize::MAX };
        let most = match op {
            Op::Resize(_) if self.mutant == StoreMutant::ResizeGrantsNothing => 0,
            _ => most,
        };
        for notification in notifications.into_iter().take(most) {
            let to_all = self.mutant == StoreMutant::PublishesToAll;
            let posts = mailboxes.iter().filter(|(to, _)| to_all || **to == notification.to());
            posts.for_each(|(to, post)| match notification {
                Notification::Grant { nonce, fence, .. } => {
                    post.deliver(Notification::Grant { to: *to, nonce, fence });
                }
                other => post.deliver(other),
            });
        }
        reply
    }
}

fn mutate_operation(mutant: StoreMutant, state: &LockState, op: &mut Op) {
    let last_holder = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
    let part = parts(state).and_then(|parts| parts.holds.first());
    let part = part.map(|part| Claim { hold: part.hold, value: part.owner.clone() });
    let holder =
        last_holder.map(|last_holder| &last_holder.claim).filter(|_| state.value.is_some()).or(part.as_ref());
    match (mutant, op) {
        (StoreMutant::ReleasesAnyHold, Op::Release(release)) => {
            release.claim = holder.unwrap_or(&release.claim).clone();
        }
        (StoreMutant::ValuesAlone, Op::Release(release)) if release.claim.value.is_some() => {
            let same = holder.filter(|holder| holder.value == release.claim.value);
            release.claim = same.unwrap_or(&release.claim).clone();
        }
        (StoreMutant::AlwaysGrants, Op::Release(release)) => release.action = ReleaseAction::Grant,
        (
            StoreMutant::ExtendsCooldown,
            Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. }),
        ) => {
            *for_ms += 60_000;
        }
        // The hold lasts as if no request about it had been sent.
        (StoreMutant::CooldownHasHolder, Op::Release(release))
            if matches!(release.action, ReleaseAction::Cooldown { .. }) =>
        {
            release.claim = Claim::new(HoldId::from_random(SessionId::from_random([0xee; 12]), [0; 16]));
        }
        (StoreMutant::WholeSeconds, Op::Acquire(request)) => {
            request.lease_ms = request.lease_ms / 1000 * 1000;
        }
        (StoreMutant::EvictsDetached, Op::Acquire(request)) => {
            request.liveness = Liveness::Session { alive_ms: 1 }
        }
        (StoreMutant::ForceReleasesAnyHold, Op::ForceRelease(free)) => {
            let last = state.record.as_ref().and_then(|record| record.last_fence);
            free.observed = last.map_or(free.observed, ObservedHolder::Hold);
        }
        (StoreMutant::AdoptsUnasked, Op::Acquire(request)) => {
            request.adopt_ms.get_or_insert(1000);
        }
        _ => {}
    }
}

fn mutate_state(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    let LockState { value: Some(value), record: Some(record), .. } = state else {
        if let (StoreMutant::ForgetsEnded | StoreMutant::Barges, Some(record)) = (mutant, &mut state.record) {
            if mutant == StoreMutant::ForgetsEnded {
                record.ended.holds.clear();
            }
            if let (StoreMutant::Barges, Op::Acquire(_)) = (mutant, op) {
                record.tickets.clear();
                record.entries.clear();
            }
        }
        return;
    };
    match (mutant, op) {
        (StoreMutant::ForgetsEnded, _) => record.ended.holds.clear(),
        // There may be capacity beside the holders.
        (StoreMutant::Barges, Op::Acquire(_)) if state.kind.is_shared() => {
            record.tickets.clear();
            record.entries.clear();
        }
        (StoreMutant::ExtendShortens, Op::Extend(extend))
            if value.content.token() == Some(&*extend.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + extend.lease_ms);
        }
        (StoreMutant::PollsExtend, Op::Acquire(request))
            if value.content.token() == Some(&*request.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + request.lease_ms);
        }
        (StoreMutant::PollsLoseTheEntry, Op::Acquire(request)) => {
            if let Some(place) = record.entries.remove(&QueueEntryId::of(state.kind, &request.claim.hold)) {
                record.tickets.remove(&place.ticket);
            }
        }
        _ => {}
    }
}

/// Defects of a ReentrantMutex.
fn mutate_entries(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    let Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) = &mut state.value else {
        return;
    };
    match (mutant, op) {
        (StoreMutant::CountsTwice, Op::Acquire(request)) if entries.find(&request.claim.hold).is_some() => {
            entries.count += 1;
        }
        (StoreMutant::EntryShortens, Op::Acquire(request)) if reenters(entries, request) => {
            let until_ms = now_ms + request.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        (StoreMutant::EntryExtendsUnknownHolds, Op::Acquire(request)) if reenters(entries, request) => {
            let until_ms = now_ms + entries.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = entry.until_ms.max(until_ms));
        }
        (StoreMutant::MixesOwners, Op::Acquire(request)) => {
            let alike = |owner: &str| owner.chars().next().map(|first| first.to_ascii_lowercase());
            let mine = request.claim.value.as_ref().map(OwnValue::as_str).unwrap_or_default();
            if alike(mine) == alike(entries.owner.as_str()) {
                entries.owner = request.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
        }
        (StoreMutant::ExpiredHoldsCount, _) => {
            let lie = entries.holds.len();
            entries.holds.retain(|entry| entry.until_ms >= now_ms);
            if lie > entries.holds.len() && !entries.holds.is_empty() {
                *expires_ms = Some(now_ms + 1_000_000_000);
            }
        }
        (StoreMutant::InnerReleaseFrees, Op::Release(release))
            if entries.find(&release.claim.hold).is_some() =>
        {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = 1;
        }
        (StoreMutant::EntryHasItsToken, Op::Acquire(request)) if reenters(entries, request) => {
            entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
        }
        (StoreMutant::EntriesQueue, Op::Acquire(request)) if reenters(entries, request) => {
            // No client has this owner, so none re-enters.
            entries.owner = OwnValue::new("another").unwrap_or_else(|_| entries.owner.clone());
        }
        (StoreMutant::FreesBeforeNextAcquire, Op::Release(release)) if release.next.is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = entries.holds.len() as u64;
        }
        (StoreMutant::NotifiesOneProcess, Op::ForceRelease(_)) => entries.holds.truncate(1),
        (StoreMutant::AllHoldsEndTogether, _) | (StoreMutant::ReleaseSetsRemainingExpiry, Op::Release(_)) => {
            let last_ms = entries.holds.iter().map(|entry| entry.until_ms).max().unwrap_or(now_ms);
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = last_ms);
        }
        (StoreMutant::EvictsTheOwner, Op::Evict(evict)) => {
            let dead = entries.holds.iter().any(|entry| entry.hold.session() == evict.session);
            if dead {
                entries.holds.retain(|entry| entry.hold.session() == evict.session);
                entries.count = entries.holds.len() as u64;
            }
        }
        _ => {}
    }
}

/// Defects in parsing a request for a mode.
fn mutate_request(mutant: StoreMutant, state: &LockState, op: &mut Op) {
    let waits = state.waiter_sessions().next().is_some();
    let held = |claim: &Claim| parts(state).is_some_and(|parts| parts.find(&claim.hold).is_some());
    let waiting = |claim: &Claim| {
        state
            .record
            .as_ref()
            .is_some_and(|record| record.entries.contains_key(&QueueEntryId::Hold(claim.hold)))
    };
    let known = state.record.as_ref().and_then(|record| record.limit);
    match (mutant, op) {
        (StoreMutant::ResendAcquiresAgain, Op::Acquire(request))
            if held(&request.claim) || waiting(&request.claim) =>
        {
            let again = u8::try_from(state.waiter_sessions().count()).unwrap_or(0) + 1;
            request.claim.hold = HoldId::from_random(request.claim.hold.session(), [again; 16]);
        }
        (StoreMutant::ReadersQueue, Op::Acquire(request)) if waits && request.mode == LockMode::Read => {
            request.claim.value = OwnValue::new("another").ok();
        }
        (StoreMutant::UpgradablesShare, Op::Acquire(request)) if request.mode == LockMode::Upgradable => {
            request.mode = LockMode::Read;
        }
        (StoreMutant::OpensEarly, Op::Acquire(request)) => {
            if let LockMode::CountDown { count: 1.., total } = request.mode {
                request.mode = LockMode::CountDown { count: total, total };
            }
        }
        (StoreMutant::TriesQueue, Op::Acquire(request)) => {
            let nonce = leasehold_core::Nonce::new(0, 7);
            request.queue.get_or_insert(Enqueue { nonce, ttl_ms: 60_000 });
        }
        (StoreMutant::AcceptsAnyMode, Op::Acquire(request)) if !request.mode.applies_to(state.kind) => {
            let all = ["-", "p1:1", "r", "a1:1", "m1:1"].into_iter().filter_map(LockMode::parse);
            request.mode = all.into_iter().find(|mode| mode.applies_to(state.kind)).unwrap_or_default();
        }
        (StoreMutant::InventsOwners, Op::Acquire(request)) if request.claim.value.is_none() => {
            request.claim.value = OwnValue::new("invented").ok();
        }
        (StoreMutant::AcceptsAnyParties, Op::Acquire(request)) => {
            request.mode = match (request.mode, known) {
                (LockMode::CountDown { count, .. }, Some(of)) => LockMode::CountDown { count, total: of },
                (LockMode::LatchWait { .. }, Some(of)) => LockMode::LatchWait { total: of },
                (LockMode::BarrierWait { .. }, Some(of)) => LockMode::BarrierWait { total: of },
                (mode, _) => mode,
            };
        }
        (StoreMutant::ResizesUnseen, Op::Resize(resize)) => resize.observed = known,
        _ => {}
    }
}

/// Defects of locks with several holders.
fn mutate_shared_holders(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    if let Some(record) = &mut state.record {
        match (mutant, op) {
            (StoreMutant::ExceedsPermits, Op::Acquire(_)) if record.limit.is_some() => {
                record.limit = Some(u32::MAX);
            }
            (StoreMutant::AcceptsAnyLimit, Op::Acquire(request)) => record.limit = request.mode.total(),
            (StoreMutant::OneEntryPerSession, Op::Acquire(request)) => {
                let mine = |id: &QueueEntryId| id.session() == request.claim.hold.session();
                record.tickets.retain(|_, id| !mine(id));
                record.entries.retain(|id, _| !mine(id));
            }
            (StoreMutant::CountsExpiredParties, _) => {
                record.entries.values_mut().for_each(|place| place.expires_ms = u64::MAX);
            }
            _ => {}
        }
    }
    let Some(Value { content: Content::SharedHolders(parts), expires_ms }) = &mut state.value else { return };
    match (mutant, op) {
        (StoreMutant::SharedHoldsEndTogether, _) => {
            let last_ms = parts.holds.iter().map(|part| part.until_ms).max().unwrap_or(now_ms);
            parts.holds.iter_mut().for_each(|part| part.until_ms = last_ms);
        }
        (StoreMutant::WriterIsShared, Op::Acquire(_)) => {
            let writes = |part: &&mut SharedHold| part.mode == LockMode::Write;
            parts.holds.iter_mut().filter(writes).for_each(|part| part.mode = LockMode::Read);
        }
        (StoreMutant::ResizeEvicts, Op::Resize(_)) => parts.holds.truncate(1),
        (StoreMutant::ExtendShortens, Op::Extend(extend)) => {
            let until_ms = now_ms + extend.lease_ms;
            parts.holds.iter_mut().for_each(|part| part.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        _ => {}
    }
}

/// Defects after an operation on a lock with several holders.
fn mutate_result(mutant: StoreMutant, before: &LockState, state: &mut LockState, op: &Op, reply: &mut Reply) {
    let hopeless = matches!(
        reply,
        Reply::Refused(Refused::OutOfRange { .. } | Refused::WouldDeadlock | Refused::NothingToUpgrade)
    );
    let waited = before.waiter_sessions().next().is_some();
    match (mutant, op, &mut *reply) {
        (StoreMutant::WaitsForEver, Op::Acquire(_), reply) if hopeless => {
            let (holder, position, predecessor, others) = (None, None, None, Vec::new());
            *reply = Reply::Acquire(Acquired::Taken { holder, position, predecessor, other_holders: others });
        }
        (StoreMutant::KeepsImpossibleEntries, Op::Resize(_), _) => {
            if let (Some(record), Some(old)) = (&mut state.record, &before.record) {
                (record.tickets, record.entries) = (old.tickets.clone(), old.entries.clone());
            }
        }
        (
            StoreMutant::ForceReleasesAll,
            Op::ForceRelease(_),
            Reply::ForceRelease(ForceReleased::Released),
        ) => {
            state.value = None;
        }
        (StoreMutant::HidesOthers, _, Reply::Acquire(Acquired::Taken { other_holders: others, .. })) => {
            others.clear();
        }
        (StoreMutant::HidesHolders, _, Reply::Inspect(inspection)) => inspection.shared_holders.truncate(1),
        (StoreMutant::EvictsOne, Op::Evict(_), Reply::Evict(Evicted::Removed { .. })) => {
            let lost = parts(before).and_then(|parts| parts.holds.last()).cloned();
            if let (Some(lost), Some(Value { content: Content::SharedHolders(parts), .. })) =
                (lost, &mut state.value)
            {
                parts.holds.push(lost);
            }
            if let Some(audit) = &mut state.audit {
                audit.entries.truncate(1);
            }
        }
        (StoreMutant::UpgradesQueue, Op::Acquire(request), reply)
            if waited && request.mode == LockMode::Upgrade =>
        {
            state.clone_from(before);
            let mut later = request.clone();
            later.mode = LockMode::Write;
            later.claim.value = OwnValue::new("another").ok();
            *reply = state.apply(1_762_000_000_000_000, &Op::Acquire(later), &all_alive).0;
        }
        _ => {}
    }
}

/// Defects of reservations.
fn mutate_reservation(mutant: StoreMutant, state: &mut LockState, op: &mut Op) {
    let is_mutex = state.kind == Kind::Mutex;
    let Some(record) = &mut state.record else { return };
    match (mutant, op) {
        (StoreMutant::ReservesOfAnyKind, Op::Extend(extend)) if !is_mutex => extend.reserve = None,
        (StoreMutant::ReservesForAnyHold, Op::Extend(extend)) => {
            extend.claim =
                record.last_holder.as_ref().map_or(&extend.claim, |last_holder| &last_holder.claim).clone();
        }
        (StoreMutant::ReservesAgain, Op::Extend(_))
        | (StoreMutant::GrantsReserved, Op::Acquire(_) | Op::Release(_)) => {
            record.reserved = None;
        }
        (
            StoreMutant::ReservesMore | StoreMutant::ReservesOne | StoreMutant::NotifiesUnasked,
            Op::Extend(extend),
        ) => {
            if let Some(reserve) = &mut extend.reserve {
                match mutant {
                    StoreMutant::ReservesMore => reserve.tokens = TokenBlock::MAX_LEN,
                    StoreMutant::ReservesOne => reserve.tokens = 1,
                    _ => reserve.notify_wanted = true,
                }
            }
        }
        (StoreMutant::NotifiesForEver, Op::Acquire(_)) => {
            if let (Some(reserved), Some(last)) = (&mut record.reserved, record.last_fence) {
                reserved.last_fence = reserved.last_fence.max(FencingToken::after(Some(last), 0));
            }
        }
        _ => {}
    }
}

/// Defects of notifications to the holder.
fn mutate_notifications(
    mutant: StoreMutant,
    state: &LockState,
    op: &Op,
    reply: &Reply,
    notifications: &mut Vec<Notification>,
) {
    if mutant == StoreMutant::NotifiesNoHolder {
        notifications.retain(|notification| !matches!(notification, Notification::Wanted { .. }));
    }
    let (Op::Acquire(request), Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })) = (op, reply)
    else {
        return;
    };
    let Some(record) = state.record.as_ref() else { return };
    let (Some(last_holder), Some(reserved), Some(fence)) =
        (&record.last_holder, record.reserved, record.last_fence)
    else {
        return;
    };
    let to = last_holder.claim.hold.session();
    let notifies = reserved.notify_wanted && reserved.last_fence > fence;
    let own = mutant == StoreMutant::NotifiesOfOwnRequest && to == request.claim.hold.session();
    let lost = mutant == StoreMutant::NotifiesLostHold && holder.is_foreign();
    if notifies && (own || lost) {
        notifications.push(Notification::Wanted { to, fence });
    }
}

fn parts(state: &LockState) -> Option<&SharedHolders> {
    state.value.as_ref()?.content.shared_holders()
}

/// Whether an acquire re-enters.
fn reenters(entries: &ReentrantHolds, request: &Acquire) -> bool {
    request.claim.value.as_ref() == Some(&entries.owner) && entries.find(&request.claim.hold).is_none()
}

/// Defects of an acquire of several locks.
fn mutate_multi_reply(mutant: StoreMutant, state: &mut LockState, now_us: u64, request: &Acquire) {
    let inspect = Op::Inspect(Inspect { claim: Some(request.claim.clone()), details: false });
    let reply = state.clone().apply(now_us, &inspect, &all_alive).0;
    let held = matches!(reply, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Held));
    match mutant {
        StoreMutant::AcquiresAll if !held => state.value = None,
        StoreMutant::ReacquiresOnResend if held => state.value = None,
        _ => {}
    }
}

fn mutate_reply(mutant: StoreMutant, reply: &mut Reply) {
    match (mutant, reply) {
        (StoreMutant::ExtendsNothing, Reply::Extend(extended)) => *extended = Extended::Extended,
        (StoreMutant::HidesWaiters, Reply::Extend(Extended::Reserved { others_wait, .. })) => {
            *others_wait = false;
        }
        (StoreMutant::OmitsRemainingCount, Reply::Release(released)) => released.remaining_holds = 0,
        (StoreMutant::OneToken, Reply::Acquire(Acquired::Granted { fence, .. })) => {
            *fence = FencingToken::new(7);
        }
        (StoreMutant::OneToken, Reply::Inspect(inspection)) => {
            if let Some(holder) = &mut inspection.holder {
                holder.fence = Some(FencingToken::new(7));
            }
        }
        _ => {}
    }
}

impl Model {
    /// Takes all of several locks, or none of them.
    fn take_all(&self, requests: &[(Lock, Acquire)]) -> Vec<MultiAcquired> {
        let mut shared = self.shared();
        let Shared { now_us, locks, .. } = &mut *shared;
        let now_us = *now_us;
        let longest_ms = requests.iter().map(|(_, request)| request.lease_ms).max().unwrap_or_default();
        let mut together = Vec::new();
        for (lock, request) in requests {
            let mut request = request.clone();
            let mut state = locks.remove(lock).unwrap_or_else(|| LockState::new(lock.kind));
            state.is_empty_at(now_us);
            let other = Kind::ALL
                .into_iter()
                .filter(|kind| *kind != lock.kind && self.mutant != StoreMutant::MixesKinds);
            let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
            let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
            if let Some(other) = &other {
                state.value = Some(other.type_only());
            }
            if self.mutant == StoreMutant::OneLeaseForAll {
                request.lease_ms = longest_ms;
            }
            mutate_operation(self.mutant, &state, &mut Op::Acquire(request.clone()));
            mutate_state(self.mutant, &mut state, now_us / 1000, &Op::Acquire(request.clone()));
            mutate_multi_reply(self.mutant, &mut state, now_us, &request);
            together.push((state, request, other.is_some()));
        }
        let mut pairs: Vec<_> = together.iter_mut().map(|(state, request, _)| (state, &*request)).collect();
        let mut shares = LockState::acquire_all(&mut pairs, now_us);
        if self.mutant == StoreMutant::AcquiresSome {
            let alone =
                |pair: (&mut LockState, &Acquire)| LockState::acquire_all(&mut [pair], now_us).remove(0);
            shares = pairs.into_iter().map(alone).collect();
        }
        for ((mut state, _, beside_another), (lock, _)) in together.into_iter().zip(requests) {
            state.value = state.value.filter(|_| !beside_another);
            locks.insert(lock.clone(), state);
        }
        if self.mutant == StoreMutant::MixesUp {
            shares.reverse();
        }
        if self.mutant == StoreMutant::SharesInSets {
            shares.fill(MultiAcquired::Available);
        }
        if self.mutant == StoreMutant::OneTokenForAll {
            let tokens = shares.iter_mut().filter_map(|share| match share {
                MultiAcquired::Acquired(Acquired::Granted { fence, .. }) => Some(fence),
                _ => None,
            });
            tokens.reduce(|first, fence| {
                *fence = *first;
                first
            });
        }
        shares
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({:?})", self.mutant)
    }
}

impl Store for Model {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if self.mutant == StoreMutant::ExceedsTimeLimits {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            Outcome::Done(self.apply(lock, op))
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], _within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let mut outcomes: Vec<_> = ops.iter().map(|(lock, op)| Outcome::Done(self.apply(lock, op))).collect();
        if self.mutant == StoreMutant::MixesUp {
            outcomes.reverse();
        }
        Box::pin(ready(outcomes))
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(ready(Some(Outcome::Done(self.take_all(requests)))))
    }

    fn open_mailbox(
        &self,
        _place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.shared().mailboxes.insert(session, post);
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _place: Partition, session: SessionId) {
        if self.mutant != StoreMutant::PublishesToClosed {
            self.shared().mailboxes.remove(&session);
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionTracking::ByHeartbeat)
    }

    fn execute_session<'a>(
        &'a self,
        _place: Partition,
        op: &'a SessionOp,
        _within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        let mut shared = self.shared();
        let now_ms = shared.now_us / 1000;
        if let (StoreMutant::Revives, SessionOp::Heartbeat(beat)) = (self.mutant, op)
            && shared.sessions.alive_ms(now_ms, beat.session).is_none()
        {
            shared.sessions.records.remove(&beat.session);
        }
        Box::pin(ready(Outcome::Done(shared.sessions.apply(now_ms, op))))
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        KeySpace::default().lock(lock).map(drop)
    }
}

impl StoreUnderTest for Model {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(Arc::new(self.clone()) as Arc<dyn Store>))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.shared().now_us += millis(by) * 1000;
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async { self.set_content(lock, None, None) }))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let content = match (lock.kind, OwnValue::new(value)) {
            (Kind::Reentrant, Ok(owner)) => Content::ReentrantHolds(ReentrantHolds {
                owner,
                count: 1,
                fence: None,
                lease_ms: 0,
                holds: Vec::new(),
            }),
            (kind, _) => Content::Token([kind.token_prefix(), value].concat()),
        };
        Some(Box::pin(async move { self.set_content(lock, Some(content), expiry) }))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        Some(Box::pin(async {
            self.set_content(lock, Some(Content::Other("list".into())), None);
            "list".into()
        }))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a test does not last for ages")
}

mod an_honest_store {
    use super::{Model, StoreMutant, conformance};

    conformance::suite!(Model::new(StoreMutant::None));
}

/// The case must fail. It runs in its own thread, since a failing case mostly waits.
fn fails<'scope>(
    all: &'scope Scope<'scope, '_>,
    mutant: StoreMutant,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    fails_of(all, Kind::Mutex, mutant, case);
}

fn fails_of<'scope>(
    all: &'scope Scope<'scope, '_>,
    kind: Kind,
    mutant: StoreMutant,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    all.spawn(move || {
        assert!(is_found(kind, mutant, case), "the case for {kind:?} did not find {mutant:?}");
    });
}

fn is_found(kind: Kind, mutant: StoreMutant, case: impl AsyncFnOnce(&Fixture) + 'static) -> bool {
    let played = || conformance::run_case(kind, async { Model::new(mutant) }, case);
    catch_unwind(AssertUnwindSafe(played)).is_err()
}

/// A thousand random operations usually find a mutant; several thousand always do.
fn disagrees(kind: Kind, mutant: StoreMutant) {
    let seen = (0..5).any(|_| is_found(kind, mutant, cases::a_thousand_operations_agree_with_the_model));
    assert!(seen, "random operations did not find {mutant:?}");
}

/// A suite that passes everything is worth nothing.
#[test]
fn a_mutant_fails_its_case() {
    thread::scope(|all| {
        fails(all, StoreMutant::ForgetsEnded, cases::an_ended_hold_cannot_be_acquired_again);
        fails(all, StoreMutant::ForgetsEnded, cases::a_resent_release_reports_released);
        fails(all, StoreMutant::ReleasesAnyHold, cases::a_late_release_leaves_the_successor_alone);
        fails(all, StoreMutant::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails(all, StoreMutant::ExtendShortens, cases::an_extend_never_shortens);
        fails(all, StoreMutant::ExtendsNothing, cases::a_hold_that_has_ended_cannot_be_extended);
        fails(all, StoreMutant::WholeSeconds, cases::any_lease_from_a_millisecond_to_a_month);
        fails(all, StoreMutant::OneToken, cases::fencing_tokens_grow);
        fails(all, StoreMutant::Barges, cases::a_try_does_not_overtake_waiters);
        fails(all, StoreMutant::PublishesToAll, cases::a_grant_notifies_exactly_one_waiter);
        fails(all, StoreMutant::PublishesToClosed, cases::a_closed_mailbox_receives_nothing);
        fails(all, StoreMutant::AlwaysGrants, cases::a_lock_left_free_keeps_its_queue);
        fails(all, StoreMutant::PollsExtend, cases::a_resent_acquire_is_one_acquire);
        fails(all, StoreMutant::PollsLoseTheEntry, cases::a_poll_keeps_the_queue_position);
        fails(all, StoreMutant::TrimsNames, cases::any_name_is_literal);
        fails(all, StoreMutant::ValuesAlone, cases::equal_values_exclude_each_other);
        fails(all, StoreMutant::MixesUp, cases::outcomes_come_in_the_order_of_operations);
        fails(all, StoreMutant::ExceedsTimeLimits, cases::a_call_ends_by_its_deadline);
        fails(all, StoreMutant::AdoptsUnasked, cases::a_lock_without_expiry_is_adopted_on_request);
        fails(all, StoreMutant::EvictsLiveSessions, cases::live_sessions_are_not_evicted);
        fails(all, StoreMutant::EvictsNoSession, cases::a_poll_evicts_a_lapsed_predecessor);
        fails(all, StoreMutant::EvictsNoSession, cases::polls_evict_a_row_of_lapsed_sessions);
        fails(all, StoreMutant::EvictsNoSession, cases::a_lapsed_session_is_evicted_by_any_client);
        fails(all, StoreMutant::EvictsDetached, cases::a_hold_without_a_session_is_not_evicted);
        fails(all, StoreMutant::Revives, cases::heartbeats_keep_a_session_alive);
        fails(all, StoreMutant::ForceReleasesAnyHold, cases::a_late_forced_release_ends_nothing);
        fails(all, StoreMutant::ForgetsAudit, cases::forced_releases_are_audited);
        fails(all, StoreMutant::ForgetsAudit, cases::an_evicted_holder_is_informed);
    });
}

/// The same for a ReentrantMutex.
#[test]
fn a_reentry_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Reentrant;
        fails_of(all, kind, StoreMutant::CountsTwice, cases::a_resent_reentry_counts_once);
        fails_of(all, kind, StoreMutant::EntryShortens, cases::a_reentry_shortens_no_lease);
        fails_of(all, kind, StoreMutant::MixesOwners, cases::the_same_owner_reenters_at_once);
        fails_of(all, kind, StoreMutant::InnerReleaseFrees, cases::a_release_reports_the_remaining_holds);
        fails_of(all, kind, StoreMutant::InnerReleaseFrees, cases::concurrent_reentries_are_counted);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_by_an_unknown_hold_ends_none);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails_of(all, kind, StoreMutant::EntryHasItsToken, cases::one_tenure_has_one_token);
        fails_of(all, kind, StoreMutant::OmitsRemainingCount, cases::a_release_reports_the_remaining_holds);
        fails_of(all, kind, StoreMutant::OmitsRemainingCount, cases::a_foreign_hold_of_the_same_owner_counts);
        fails_of(all, kind, StoreMutant::ReleaseSetsRemainingExpiry, cases::an_unknown_hold_alone_expires);
        fails_of(all, kind, StoreMutant::EntriesQueue, cases::only_a_reentry_overtakes_the_queue);
        fails_of(all, kind, StoreMutant::FreesBeforeNextAcquire, cases::a_release_that_acquires_reenters);
        fails_of(all, kind, StoreMutant::EvictsTheOwner, cases::a_lapsed_session_loses_only_its_own_holds);
        fails_of(all, kind, StoreMutant::MixesKinds, cases::another_kind_of_lock_is_refused);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_resent_release_reports_released);
        fails_of(all, kind, StoreMutant::Barges, cases::a_try_does_not_overtake_waiters);
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::EntryExtendsUnknownHolds,
            cases::an_unknown_hold_expires_and_leaves_no_count,
        );
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::ExpiredHoldsCount,
            cases::an_unknown_hold_expires_and_leaves_no_count,
        );
        fails_of(all, Kind::Reentrant, StoreMutant::AllHoldsEndTogether, cases::each_hold_expires_on_its_own);
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::NotifiesOneProcess,
            cases::a_forced_release_ends_all_holds_of_an_owner,
        );
    });
}

/// The same for locks that rest.
#[test]
fn a_cooldown_mutant_fails_its_case() {
    thread::scope(|all| {
        for kind in [Kind::Mutex, Kind::Election] {
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_lock_in_cooldown_has_no_owner);
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_cooldown_that_acquires_again_waits);
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_cooldown_outlasts_its_session);
            fails_of(all, kind, StoreMutant::CooldownHasHolder, cases::a_resent_cooldown_reports_released);
            fails_of(
                all,
                kind,
                StoreMutant::ReleasesAnyHold,
                cases::a_cooldown_by_another_hold_changes_nothing,
            );
            fails_of(
                all,
                kind,
                StoreMutant::ExtendsCooldown,
                cases::a_cooldown_whose_time_is_over_is_a_release,
            );
            fails_of(all, kind, StoreMutant::ExtendsCooldown, cases::a_cooldown_expires);
            fails_of(
                all,
                kind,
                StoreMutant::CooldownHasHolder,
                cases::a_cooldown_ignores_requests_of_the_ended_hold,
            );
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_forced_release_ends_a_cooldown);
        }
    });
}

/// The same for reservations.
#[test]
fn a_token_reservation_mutant_fails_its_case() {
    thread::scope(|all| {
        fails(all, StoreMutant::ReservesAgain, cases::blocks_of_tokens_follow_one_another);
        fails(all, StoreMutant::ReservesMore, cases::a_block_is_complete_once_the_clock_allows);
        fails(all, StoreMutant::ReservesOne, cases::a_block_is_complete_once_the_clock_allows);
        fails(all, StoreMutant::GrantsReserved, cases::tokens_grow_past_reserved_ones);
        fails(all, StoreMutant::GrantsReserved, cases::tokens_grow_past_the_reservation_of_an_evicted_holder);
        fails(all, StoreMutant::ExtendsNothing, cases::only_the_holder_reserves_tokens);
        fails(all, StoreMutant::ReservesForAnyHold, cases::only_the_holder_reserves_tokens);
        fails(all, StoreMutant::ExtendShortens, cases::an_extend_that_reserves_never_shortens);
        fails(all, StoreMutant::ReservesForAnyHold, cases::an_equal_value_reserves_nothing);
        fails(all, StoreMutant::HidesWaiters, cases::a_reservation_reports_whether_others_wait);
        fails(all, StoreMutant::NotifiesUnasked, cases::a_holder_is_notified_of_other_requests);
        fails(all, StoreMutant::NotifiesOfOwnRequest, cases::a_holder_is_notified_of_other_requests);
        fails(all, StoreMutant::NotifiesForEver, cases::a_holder_is_notified_for_one_hold);
        fails(all, StoreMutant::NotifiesForEver, cases::a_lost_hold_is_not_notified);
        fails(all, StoreMutant::NotifiesLostHold, cases::a_lost_hold_is_not_notified);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Mutex) {
            fails_of(all, kind, StoreMutant::ReservesOfAnyKind, cases::this_kind_of_lock_reserves_no_tokens);
        }
        fails(all, StoreMutant::NotifiesNoHolder, cases::a_holder_is_notified_of_other_requests);
    });
}

/// The same for several locks.
#[test]
fn a_multi_lock_mutant_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::EXCLUSIVE {
            fails_of(all, kind, StoreMutant::AcquiresSome, cases::a_multi_acquire_is_all_or_nothing);
            fails_of(all, kind, StoreMutant::ReacquiresOnResend, cases::a_resent_multi_acquire_is_one);
            fails_of(
                all,
                kind,
                StoreMutant::ReacquiresOnResend,
                cases::locks_that_are_already_held_are_reported,
            );
            fails_of(
                all,
                kind,
                StoreMutant::AcquiresAll,
                cases::another_hold_of_the_session_blocks_a_multi_acquire,
            );
            fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_released_multi_acquire_is_spent);
            fails_of(all, kind, StoreMutant::OneTokenForAll, cases::each_of_several_locks_has_its_own_token);
            fails_of(all, kind, StoreMutant::Barges, cases::a_multi_acquire_overtakes_no_waiter);
            fails_of(all, kind, StoreMutant::OneLeaseForAll, cases::each_of_several_locks_expires_on_its_own);
            fails_of(all, kind, StoreMutant::MixesKinds, cases::another_kind_of_lock_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::AcquiresAll, cases::another_type_of_key_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::AcquiresAll, cases::a_foreign_lock_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::MixesUp, cases::multi_acquire_replies_are_in_order);
            fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_session_loses_each_lock);
            fails_of(
                all,
                kind,
                StoreMutant::AcquiresAll,
                cases::concurrent_multi_acquires_exclude_each_other,
            );
        }
    });
}

/// The same for permits.
#[test]
fn a_semaphore_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Semaphore;
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::HidesHolders, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::OneToken, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::resent_permits_count_once);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::resent_permits_count_once);
        fails_of(all, kind, StoreMutant::Barges, cases::a_smaller_request_overtakes_no_waiter);
        fails_of(all, kind, StoreMutant::PublishesToAll, cases::a_release_grants_to_as_many_as_fit);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::permits_of_a_lapsed_session_are_granted);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_holder_is_evicted_by_any_client);
        fails_of(all, kind, StoreMutant::EvictsOne, cases::a_lapsed_holder_is_evicted_by_any_client);
        fails_of(all, kind, StoreMutant::HidesOthers, cases::the_first_waiter_watches_all_holders);
        fails_of(all, kind, StoreMutant::WaitsForEver, cases::an_impossible_number_of_permits_is_refused);
        fails_of(
            all,
            kind,
            StoreMutant::AcceptsAnyLimit,
            cases::the_first_acquire_sets_the_number_of_permits,
        );
        fails_of(
            all,
            kind,
            StoreMutant::ResizesUnseen,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            kind,
            StoreMutant::ResizeEvicts,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            kind,
            StoreMutant::KeepsImpossibleEntries,
            cases::a_waiter_beyond_a_lowered_limit_blocks_no_other,
        );
        fails_of(all, kind, StoreMutant::ForceReleasesAll, cases::a_forced_release_ends_one_of_several);
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::held_permits_never_exceed_their_number);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::an_ended_hold_cannot_be_acquired_again);
        fails_of(all, Kind::Semaphore, StoreMutant::PublishesOne, cases::a_release_grants_to_as_many_as_fit);
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::ResizeGrantsNothing,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::OneEntryPerSession,
            cases::each_hold_of_a_process_has_a_queue_entry,
        );
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::SharedHoldsEndTogether,
            cases::each_shared_hold_expires_on_its_own,
        );
    });
}

/// The same for readers and writers.
#[test]
fn an_rwlock_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::RwLock;
        fails_of(all, kind, StoreMutant::WriterIsShared, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, StoreMutant::UpgradablesShare, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, StoreMutant::Barges, cases::readers_overtake_no_waiting_writer);
        fails_of(all, kind, StoreMutant::ReadersQueue, cases::an_owner_that_reads_overtakes_a_waiting_writer);
        fails_of(all, kind, StoreMutant::WaitsForEver, cases::an_upgrade_that_would_never_end_is_refused);
        fails_of(all, kind, StoreMutant::UpgradesQueue, cases::an_upgrade_overtakes_all_waiters);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::an_upgrade_overtakes_all_waiters);
        fails_of(all, kind, StoreMutant::UpgradesQueue, cases::a_try_to_upgrade_overtakes_waiters);
        fails_of(all, kind, StoreMutant::ReadersQueue, cases::a_downgrade_admits_no_writer);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_late_release_of_a_read_ends_no_write);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_reader_blocks_no_writer);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_upgrade_blocks_no_waiter);
        fails_of(all, kind, StoreMutant::InventsOwners, cases::a_reader_without_an_owner_is_refused);
        fails_of(all, kind, StoreMutant::WriterIsShared, cases::a_writer_is_always_alone);
        fails_of(
            all,
            Kind::RwLock,
            StoreMutant::SharedHoldsEndTogether,
            cases::a_live_reader_does_not_extend_an_expired_one,
        );
    });
}

/// The same for a Latch and a Barrier.
#[test]
fn a_latch_or_barrier_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Latch;
        fails_of(all, kind, StoreMutant::OpensEarly, cases::a_latch_opens_when_all_have_arrived);
        fails_of(all, kind, StoreMutant::OpensEarly, cases::an_arrival_can_count_for_several);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::a_resent_arrival_counts_once);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_cancelled_arrival_never_counts);
        fails_of(
            all,
            kind,
            StoreMutant::EvictsNoSession,
            cases::an_arrival_of_a_lapsed_session_does_not_count,
        );
        fails_of(all, kind, StoreMutant::AcceptsAnyParties, cases::another_number_of_parties_is_refused);
        let kind = Kind::Barrier;
        fails_of(all, kind, StoreMutant::AcceptsAnyLimit, cases::another_number_of_parties_is_refused);
        fails_of(all, kind, StoreMutant::PublishesToAll, cases::all_parties_of_a_barrier_continue_together);
        fails_of(all, kind, StoreMutant::TriesQueue, cases::a_try_at_a_barrier_counts_only_as_the_last_party);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::a_resent_barrier_wait_counts_once);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_party_that_left_a_barrier_is_not_counted);
        fails_of(
            all,
            Kind::Barrier,
            StoreMutant::CountsExpiredParties,
            cases::an_expired_party_does_not_count,
        );
        fails_of(
            all,
            Kind::Barrier,
            StoreMutant::PublishesOne,
            cases::all_parties_of_a_barrier_continue_together,
        );
    });
}

/// The same for all kinds that several can have.
#[test]
fn a_shared_kind_mutant_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::SHARED {
            fails_of(all, kind, StoreMutant::AcceptsAnyMode, cases::a_mode_of_another_kind_is_refused);
            fails_of(all, kind, StoreMutant::MixesKinds, cases::a_name_has_one_kind);
            fails_of(all, kind, StoreMutant::SharesInSets, cases::a_multi_acquire_refuses_a_shared_lock);
            fails_of(all, kind, StoreMutant::ExtendShortens, cases::shared_holds_are_distinguished);
            fails_of(all, kind, StoreMutant::ForgetsEnded, cases::shared_holds_are_distinguished);
        }
    });
}

/// A case that no mutant fails may test nothing.
#[test]
fn every_such_case_is_failed_by_some_mutant() {
    let this = include_str!("conformance.rs");
    let cases = [
        include_str!("../src/conformance/cases/reentry.rs"),
        include_str!("../src/conformance/cases/multi.rs"),
        include_str!("../src/conformance/cases/semaphore.rs"),
        include_str!("../src/conformance/cases/rwlock.rs"),
        include_str!("../src/conformance/cases/latch_barrier.rs"),
        include_str!("../src/conformance/cases/token_reservation.rs"),
        include_str!("../src/conformance/cases/shared_kinds.rs"),
    ];
    let names = cases.iter().flat_map(|cases| cases.split("pub async fn ").skip(1));
    let names = names.filter_map(|case| case.split('(').next());
    let is_failed = |name: &&str| [");", ","].iter().any(|end| this.contains(&format!("cases::{name}{end}")));
    let never: Vec<_> = names.filter(|name| !is_failed(name)).collect();
    assert_eq!(never, Vec::<&str>::new());
}

/// The random operations find every mutant that affects replies or notifications.
#[test]
fn a_mutant_disagrees_with_the_model() {
    for mutant in [
        StoreMutant::ForgetsEnded,
        StoreMutant::ReleasesAnyHold,
        StoreMutant::ExtendShortens,
        StoreMutant::ExtendsNothing,
        StoreMutant::OneToken,
        StoreMutant::Barges,
        StoreMutant::PublishesToAll,
        StoreMutant::AlwaysGrants,
        StoreMutant::PollsExtend,
        StoreMutant::PollsLoseTheEntry,
        StoreMutant::AdoptsUnasked,
        StoreMutant::ReservesAgain,
        StoreMutant::GrantsReserved,
        StoreMutant::ReservesForAnyHold,
        StoreMutant::HidesWaiters,
        StoreMutant::NotifiesNoHolder,
        StoreMutant::NotifiesUnasked,
        StoreMutant::NotifiesOfOwnRequest,
        StoreMutant::NotifiesForEver,
    ] {
        disagrees(Kind::Mutex, mutant);
    }
    for mutant in [
        StoreMutant::CountsTwice,
        StoreMutant::EntryShortens,
        StoreMutant::EntryExtendsUnknownHolds,
        StoreMutant::InnerReleaseFrees,
        StoreMutant::EntryHasItsToken,
        StoreMutant::OmitsRemainingCount,
        StoreMutant::ReleasesAnyHold,
        StoreMutant::ForgetsEnded,
    ] {
        disagrees(Kind::Reentrant, mutant);
    }
    for (kind, mutant) in [
        (Kind::Semaphore, StoreMutant::ExceedsPermits),
        (Kind::Semaphore, StoreMutant::AcceptsAnyLimit),
        (Kind::Semaphore, StoreMutant::ResizesUnseen),
        (Kind::Semaphore, StoreMutant::HidesHolders),
        (Kind::Semaphore, StoreMutant::HidesOthers),
        (Kind::Semaphore, StoreMutant::PublishesOne),
        (Kind::RwLock, StoreMutant::WriterIsShared),
        (Kind::RwLock, StoreMutant::ReadersQueue),
        (Kind::RwLock, StoreMutant::UpgradesQueue),
        (Kind::RwLock, StoreMutant::Barges),
        (Kind::Latch, StoreMutant::OpensEarly),
        (Kind::Latch, StoreMutant::ResendAcquiresAgain),
        (Kind::Barrier, StoreMutant::TriesQueue),
        (Kind::Barrier, StoreMutant::ForgetsEnded),
    ] {
        disagrees(kind, mutant);
    }
}
