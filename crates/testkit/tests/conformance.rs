//! Tests of the conformance suite: a correct store passes, and a store with a flaw fails the case that covers it.

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
enum Flaw {
    None,
    /// Forgets which hold was ended last.
    ForgetsEnded,
    /// A release ends whatever hold there is.
    ReleasesAnyHold,
    /// An extend sets the end, nearer or not.
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
    /// Every release grants, whatever its action.
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
    /// A forced release ends whatever hold is there.
    ForceReleasesAnyHold,
    /// Forced releases are not audited.
    ForgetsAudit,
    /// An acquire that is sent again counts again.
    CountsTwice,
    /// An entry sets the ends of all holds to its own, nearer or not.
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
    /// A lock that is left resting rests for longer than it should.
    RestsLonger,
    /// A resting lock still belongs to its last holder.
    RestsHeld,
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
    /// A session has one queue entry, for whatever it waits.
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
    flaw: Flaw,
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
    fn new(flaw: Flaw) -> Self {
        let shared = Shared { now_us: 1_762_000_000_000_000, ..Shared::default() };
        Self { flaw, shared: Arc::new(Mutex::new(shared)) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meddle(&self, lock: &Lock, content: Option<Content>, expiry: Option<Duration>) {
        let mut shared = self.shared();
        let expires_ms = expiry.map(|expiry| shared.now_us / 1000 + millis(expiry));
        let value = content.map(|content| Value { content, expires_ms });
        let state = shared.locks.entry(lock.clone());
        state.or_insert_with(|| LockState::new(lock.kind)).value = value;
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let (mut lock, mut op) = (lock.clone(), op.clone());
        if self.flaw == Flaw::TrimsNames {
            lock.name = LockName::new(lock.name.as_str().trim()).unwrap_or(lock.name);
        }
        let mut shared = self.shared();
        let Shared { now_us, locks, mailboxes, sessions } = &mut *shared;
        let now_us = *now_us;
        let other = Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.flaw != Flaw::MixesKinds);
        let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
        let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
        let state = locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind));
        state.is_empty_at(now_us);
        spoil_operation(self.flaw, state, &mut op);
        spoil_state(self.flaw, state, now_us / 1000, &op);
        spoil_entries(self.flaw, state, now_us / 1000, &op);
        spoil_ask(self.flaw, state, &mut op);
        spoil_parts(self.flaw, state, now_us / 1000, &op);
        spoil_reserved(self.flaw, state, &mut op);
        let before = state.clone();
        let alive: SessionLookup<'_> = match self.flaw {
            Flaw::EvictsLiveSessions => &|_| SessionStatus::Lapsed,
            Flaw::EvictsNoSession => &|_| SessionStatus::Alive(1_000),
            _ => &|session| sessions.status(now_us / 1000, session),
        };
        let (mut reply, mut wakes) = match other {
            None => state.apply(now_us, &op, alive),
            Some(other) => state.apply_to_occupied_key(&other, now_us, &op, alive),
        };
        if self.flaw == Flaw::ForgetsAudit {
            state.audit = None;
        }
        spoil_reply(self.flaw, &mut reply);
        spoil_what_became(self.flaw, &before, state, &op, &mut reply);
        spoil_notes(self.flaw, state, &op, &reply, &mut wakes);
        let most = if self.flaw == Flaw::PublishesOne { 1 } else { usize::MAX };
        let most = match op {
            Op::Resize(_) if self.flaw == Flaw::ResizeGrantsNothing => 0,
            _ => most,
        };
        for wake in wakes.into_iter().take(most) {
            let to_all = self.flaw == Flaw::PublishesToAll;
            let posts = mailboxes.iter().filter(|(to, _)| to_all || **to == wake.to());
            posts.for_each(|(to, post)| match wake {
                Notification::Grant { nonce, fence, .. } => {
                    post.deliver(Notification::Grant { to: *to, nonce, fence });
                }
                other => post.deliver(other),
            });
        }
        reply
    }
}

fn spoil_operation(flaw: Flaw, state: &LockState, op: &mut Op) {
    let tenant = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
    let part = parts(state).and_then(|parts| parts.holds.first());
    let part = part.map(|part| Claim { hold: part.hold, value: part.owner.clone() });
    let holder = tenant.map(|tenant| &tenant.claim).filter(|_| state.value.is_some()).or(part.as_ref());
    match (flaw, op) {
        (Flaw::ReleasesAnyHold, Op::Release(release)) => {
            release.claim = holder.unwrap_or(&release.claim).clone();
        }
        (Flaw::ValuesAlone, Op::Release(release)) if release.claim.value.is_some() => {
            let same = holder.filter(|holder| holder.value == release.claim.value);
            release.claim = same.unwrap_or(&release.claim).clone();
        }
        (Flaw::AlwaysGrants, Op::Release(release)) => release.action = ReleaseAction::Grant,
        (Flaw::RestsLonger, Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. })) => {
            *for_ms += 60_000;
        }
        // The hold lasts as if no request about it had been sent.
        (Flaw::RestsHeld, Op::Release(release))
            if matches!(release.action, ReleaseAction::Cooldown { .. }) =>
        {
            release.claim = Claim::new(HoldId::from_random(SessionId::from_random([0xee; 12]), [0; 16]));
        }
        (Flaw::WholeSeconds, Op::Acquire(ask)) => ask.lease_ms = ask.lease_ms / 1000 * 1000,
        (Flaw::EvictsDetached, Op::Acquire(ask)) => ask.liveness = Liveness::Session { alive_ms: 1 },
        (Flaw::ForceReleasesAnyHold, Op::ForceRelease(free)) => {
            let last = state.record.as_ref().and_then(|record| record.last_fence);
            free.observed = last.map_or(free.observed, ObservedHolder::Hold);
        }
        (Flaw::AdoptsUnasked, Op::Acquire(ask)) => {
            ask.adopt_ms.get_or_insert(1000);
        }
        _ => {}
    }
}

fn spoil_state(flaw: Flaw, state: &mut LockState, now_ms: u64, op: &Op) {
    let LockState { value: Some(value), record: Some(record), .. } = state else {
        if let (Flaw::ForgetsEnded | Flaw::Barges, Some(record)) = (flaw, &mut state.record) {
            if flaw == Flaw::ForgetsEnded {
                record.ended.holds.clear();
            }
            if let (Flaw::Barges, Op::Acquire(_)) = (flaw, op) {
                record.tickets.clear();
                record.entries.clear();
            }
        }
        return;
    };
    match (flaw, op) {
        (Flaw::ForgetsEnded, _) => record.ended.holds.clear(),
        // There may be capacity beside the holders.
        (Flaw::Barges, Op::Acquire(_)) if state.kind.is_shared() => {
            record.tickets.clear();
            record.entries.clear();
        }
        (Flaw::ExtendShortens, Op::Extend(extend))
            if value.content.token() == Some(&*extend.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + extend.lease_ms);
        }
        (Flaw::PollsExtend, Op::Acquire(ask)) if value.content.token() == Some(&*ask.claim.token()) => {
            value.expires_ms = Some(now_ms + ask.lease_ms);
        }
        (Flaw::PollsLoseTheEntry, Op::Acquire(ask)) => {
            if let Some(place) = record.entries.remove(&QueueEntryId::of(state.kind, &ask.claim.hold)) {
                record.tickets.remove(&place.ticket);
            }
        }
        _ => {}
    }
}

/// Defects of a ReentrantMutex.
fn spoil_entries(flaw: Flaw, state: &mut LockState, now_ms: u64, op: &Op) {
    let Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) = &mut state.value else {
        return;
    };
    match (flaw, op) {
        (Flaw::CountsTwice, Op::Acquire(ask)) if entries.find(&ask.claim.hold).is_some() => {
            entries.count += 1;
        }
        (Flaw::EntryShortens, Op::Acquire(ask)) if enters(entries, ask) => {
            let until_ms = now_ms + ask.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        (Flaw::EntryExtendsUnknownHolds, Op::Acquire(ask)) if enters(entries, ask) => {
            let until_ms = now_ms + entries.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = entry.until_ms.max(until_ms));
        }
        (Flaw::MixesOwners, Op::Acquire(ask)) => {
            let alike = |owner: &str| owner.chars().next().map(|first| first.to_ascii_lowercase());
            let mine = ask.claim.value.as_ref().map(OwnValue::as_str).unwrap_or_default();
            if alike(mine) == alike(entries.owner.as_str()) {
                entries.owner = ask.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
        }
        (Flaw::ExpiredHoldsCount, _) => {
            let lie = entries.holds.len();
            entries.holds.retain(|entry| entry.until_ms >= now_ms);
            if lie > entries.holds.len() && !entries.holds.is_empty() {
                *expires_ms = Some(now_ms + 1_000_000_000);
            }
        }
        (Flaw::InnerReleaseFrees, Op::Release(release)) if entries.find(&release.claim.hold).is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = 1;
        }
        (Flaw::EntryHasItsToken, Op::Acquire(ask)) if enters(entries, ask) => {
            entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
        }
        (Flaw::EntriesQueue, Op::Acquire(ask)) if enters(entries, ask) => {
            // No client has this owner, so none re-enters.
            entries.owner = OwnValue::new("another").unwrap_or_else(|_| entries.owner.clone());
        }
        (Flaw::FreesBeforeNextAcquire, Op::Release(release)) if release.next.is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = entries.holds.len() as u64;
        }
        (Flaw::NotifiesOneProcess, Op::ForceRelease(_)) => entries.holds.truncate(1),
        (Flaw::AllHoldsEndTogether, _) | (Flaw::ReleaseSetsRemainingExpiry, Op::Release(_)) => {
            let last_ms = entries.holds.iter().map(|entry| entry.until_ms).max().unwrap_or(now_ms);
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = last_ms);
        }
        (Flaw::EvictsTheOwner, Op::Evict(evict)) => {
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
fn spoil_ask(flaw: Flaw, state: &LockState, op: &mut Op) {
    let waits = state.waiter_sessions().next().is_some();
    let held = |claim: &Claim| parts(state).is_some_and(|parts| parts.find(&claim.hold).is_some());
    let waiting = |claim: &Claim| {
        state
            .record
            .as_ref()
            .is_some_and(|record| record.entries.contains_key(&QueueEntryId::Hold(claim.hold)))
    };
    let known = state.record.as_ref().and_then(|record| record.limit);
    match (flaw, op) {
        (Flaw::ResendAcquiresAgain, Op::Acquire(ask)) if held(&ask.claim) || waiting(&ask.claim) => {
            let again = u8::try_from(state.waiter_sessions().count()).unwrap_or(0) + 1;
            ask.claim.hold = HoldId::from_random(ask.claim.hold.session(), [again; 16]);
        }
        (Flaw::ReadersQueue, Op::Acquire(ask)) if waits && ask.mode == LockMode::Read => {
            ask.claim.value = OwnValue::new("another").ok();
        }
        (Flaw::UpgradablesShare, Op::Acquire(ask)) if ask.mode == LockMode::Upgradable => {
            ask.mode = LockMode::Read;
        }
        (Flaw::OpensEarly, Op::Acquire(ask)) => {
            if let LockMode::CountDown { count: 1.., total } = ask.mode {
                ask.mode = LockMode::CountDown { count: total, total };
            }
        }
        (Flaw::TriesQueue, Op::Acquire(ask)) => {
            let nonce = leasehold_core::Nonce::new(0, 7);
            ask.queue.get_or_insert(Enqueue { nonce, ttl_ms: 60_000 });
        }
        (Flaw::AcceptsAnyMode, Op::Acquire(ask)) if !ask.mode.applies_to(state.kind) => {
            let all = ["-", "p1:1", "r", "a1:1", "m1:1"].into_iter().filter_map(LockMode::parse);
            ask.mode = all.into_iter().find(|mode| mode.applies_to(state.kind)).unwrap_or_default();
        }
        (Flaw::InventsOwners, Op::Acquire(ask)) if ask.claim.value.is_none() => {
            ask.claim.value = OwnValue::new("invented").ok();
        }
        (Flaw::AcceptsAnyParties, Op::Acquire(ask)) => {
            ask.mode = match (ask.mode, known) {
                (LockMode::CountDown { count, .. }, Some(total)) => LockMode::CountDown { count, total },
                (LockMode::LatchWait { .. }, Some(total)) => LockMode::LatchWait { total },
                (LockMode::BarrierWait { .. }, Some(total)) => LockMode::BarrierWait { total },
                (mode, _) => mode,
            };
        }
        (Flaw::ResizesUnseen, Op::Resize(resize)) => resize.observed = known,
        _ => {}
    }
}

/// Defects of locks with several holders.
fn spoil_parts(flaw: Flaw, state: &mut LockState, now_ms: u64, op: &Op) {
    if let Some(record) = &mut state.record {
        match (flaw, op) {
            (Flaw::ExceedsPermits, Op::Acquire(_)) if record.limit.is_some() => record.limit = Some(u32::MAX),
            (Flaw::AcceptsAnyLimit, Op::Acquire(ask)) => record.limit = ask.mode.total(),
            (Flaw::OneEntryPerSession, Op::Acquire(ask)) => {
                let mine = |id: &QueueEntryId| id.session() == ask.claim.hold.session();
                record.tickets.retain(|_, id| !mine(id));
                record.entries.retain(|id, _| !mine(id));
            }
            (Flaw::CountsExpiredParties, _) => {
                record.entries.values_mut().for_each(|place| place.expires_ms = u64::MAX);
            }
            _ => {}
        }
    }
    let Some(Value { content: Content::SharedHolders(parts), expires_ms }) = &mut state.value else { return };
    match (flaw, op) {
        (Flaw::SharedHoldsEndTogether, _) => {
            let last_ms = parts.holds.iter().map(|part| part.until_ms).max().unwrap_or(now_ms);
            parts.holds.iter_mut().for_each(|part| part.until_ms = last_ms);
        }
        (Flaw::WriterIsShared, Op::Acquire(_)) => {
            let writes = |part: &&mut SharedHold| part.mode == LockMode::Write;
            parts.holds.iter_mut().filter(writes).for_each(|part| part.mode = LockMode::Read);
        }
        (Flaw::ResizeEvicts, Op::Resize(_)) => parts.holds.truncate(1),
        (Flaw::ExtendShortens, Op::Extend(extend)) => {
            let until_ms = now_ms + extend.lease_ms;
            parts.holds.iter_mut().for_each(|part| part.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        _ => {}
    }
}

/// Defects after an operation on a lock with several holders.
fn spoil_what_became(flaw: Flaw, before: &LockState, state: &mut LockState, op: &Op, reply: &mut Reply) {
    let hopeless = matches!(
        reply,
        Reply::Refused(Refused::OutOfRange { .. } | Refused::WouldDeadlock | Refused::NothingToUpgrade)
    );
    let waited = before.waiter_sessions().next().is_some();
    match (flaw, op, &mut *reply) {
        (Flaw::WaitsForEver, Op::Acquire(_), reply) if hopeless => {
            let (holder, position, predecessor, other_holders) = (None, None, None, Vec::new());
            *reply = Reply::Acquire(Acquired::Taken { holder, position, predecessor, other_holders });
        }
        (Flaw::KeepsImpossibleEntries, Op::Resize(_), _) => {
            if let (Some(record), Some(old)) = (&mut state.record, &before.record) {
                (record.tickets, record.entries) = (old.tickets.clone(), old.entries.clone());
            }
        }
        (Flaw::ForceReleasesAll, Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released)) => {
            state.value = None;
        }
        (Flaw::HidesOthers, _, Reply::Acquire(Acquired::Taken { other_holders, .. })) => {
            other_holders.clear();
        }
        (Flaw::HidesHolders, _, Reply::Inspect(inspection)) => inspection.shared_holders.truncate(1),
        (Flaw::EvictsOne, Op::Evict(_), Reply::Evict(Evicted::Removed { .. })) => {
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
        (Flaw::UpgradesQueue, Op::Acquire(ask), reply) if waited && ask.mode == LockMode::Upgrade => {
            state.clone_from(before);
            let mut later = ask.clone();
            later.mode = LockMode::Write;
            later.claim.value = OwnValue::new("another").ok();
            *reply = state.apply(1_762_000_000_000_000, &Op::Acquire(later), &all_alive).0;
        }
        _ => {}
    }
}

/// Defects of reservations.
fn spoil_reserved(flaw: Flaw, state: &mut LockState, op: &mut Op) {
    let is_mutex = state.kind == Kind::Mutex;
    let Some(record) = &mut state.record else { return };
    match (flaw, op) {
        (Flaw::ReservesOfAnyKind, Op::Extend(extend)) if !is_mutex => extend.reserve = None,
        (Flaw::ReservesForAnyHold, Op::Extend(extend)) => {
            extend.claim = record.last_holder.as_ref().map_or(&extend.claim, |tenant| &tenant.claim).clone();
        }
        (Flaw::ReservesAgain, Op::Extend(_)) | (Flaw::GrantsReserved, Op::Acquire(_) | Op::Release(_)) => {
            record.reserved = None;
        }
        (Flaw::ReservesMore | Flaw::ReservesOne | Flaw::NotifiesUnasked, Op::Extend(extend)) => {
            if let Some(reserve) = &mut extend.reserve {
                match flaw {
                    Flaw::ReservesMore => reserve.tokens = TokenBlock::MAX_LEN,
                    Flaw::ReservesOne => reserve.tokens = 1,
                    _ => reserve.notify_wanted = true,
                }
            }
        }
        (Flaw::NotifiesForEver, Op::Acquire(_)) => {
            if let (Some(reserved), Some(last)) = (&mut record.reserved, record.last_fence) {
                reserved.last_fence = reserved.last_fence.max(FencingToken::after(Some(last), 0));
            }
        }
        _ => {}
    }
}

/// Defects of notifications to the holder.
fn spoil_notes(flaw: Flaw, state: &LockState, op: &Op, reply: &Reply, wakes: &mut Vec<Notification>) {
    if flaw == Flaw::NotifiesNoHolder {
        wakes.retain(|wake| !matches!(wake, Notification::Wanted { .. }));
    }
    let (Op::Acquire(ask), Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })) = (op, reply) else {
        return;
    };
    let Some(record) = state.record.as_ref() else { return };
    let (Some(tenant), Some(reserved), Some(fence)) =
        (&record.last_holder, record.reserved, record.last_fence)
    else {
        return;
    };
    let to = tenant.claim.hold.session();
    let tells = reserved.notify_wanted && reserved.last_fence > fence;
    let own = flaw == Flaw::NotifiesOfOwnRequest && to == ask.claim.hold.session();
    let lost = flaw == Flaw::NotifiesLostHold && holder.is_foreign();
    if tells && (own || lost) {
        wakes.push(Notification::Wanted { to, fence });
    }
}

fn parts(state: &LockState) -> Option<&SharedHolders> {
    state.value.as_ref()?.content.shared_holders()
}

/// Whether an acquire re-enters.
fn enters(entries: &ReentrantHolds, ask: &Acquire) -> bool {
    ask.claim.value.as_ref() == Some(&entries.owner) && entries.find(&ask.claim.hold).is_none()
}

/// Defects of an acquire of several locks.
fn spoil_share(flaw: Flaw, state: &mut LockState, now_us: u64, ask: &Acquire) {
    let inspect = Op::Inspect(Inspect { claim: Some(ask.claim.clone()), details: false });
    let reply = state.clone().apply(now_us, &inspect, &all_alive).0;
    let held = matches!(reply, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Held));
    match flaw {
        Flaw::AcquiresAll if !held => state.value = None,
        Flaw::ReacquiresOnResend if held => state.value = None,
        _ => {}
    }
}

fn spoil_reply(flaw: Flaw, reply: &mut Reply) {
    match (flaw, reply) {
        (Flaw::ExtendsNothing, Reply::Extend(extended)) => *extended = Extended::Extended,
        (Flaw::HidesWaiters, Reply::Extend(Extended::Reserved { others_wait, .. })) => *others_wait = false,
        (Flaw::OmitsRemainingCount, Reply::Release(released)) => released.remaining_holds = 0,
        (Flaw::OneToken, Reply::Acquire(Acquired::Granted { fence, .. })) => *fence = FencingToken::new(7),
        (Flaw::OneToken, Reply::Inspect(inspection)) => {
            if let Some(holder) = &mut inspection.holder {
                holder.fence = Some(FencingToken::new(7));
            }
        }
        _ => {}
    }
}

impl Model {
    /// Takes all of several locks, or none of them.
    fn take_all(&self, asks: &[(Lock, Acquire)]) -> Vec<MultiAcquired> {
        let mut shared = self.shared();
        let Shared { now_us, locks, .. } = &mut *shared;
        let now_us = *now_us;
        let longest_ms = asks.iter().map(|(_, ask)| ask.lease_ms).max().unwrap_or_default();
        let mut together = Vec::new();
        for (lock, ask) in asks {
            let mut ask = ask.clone();
            let mut state = locks.remove(lock).unwrap_or_else(|| LockState::new(lock.kind));
            state.is_empty_at(now_us);
            let other =
                Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.flaw != Flaw::MixesKinds);
            let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
            let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
            if let Some(other) = &other {
                state.value = Some(other.type_only());
            }
            if self.flaw == Flaw::OneLeaseForAll {
                ask.lease_ms = longest_ms;
            }
            spoil_operation(self.flaw, &state, &mut Op::Acquire(ask.clone()));
            spoil_state(self.flaw, &mut state, now_us / 1000, &Op::Acquire(ask.clone()));
            spoil_share(self.flaw, &mut state, now_us, &ask);
            together.push((state, ask, other.is_some()));
        }
        let mut pairs: Vec<_> = together.iter_mut().map(|(state, ask, _)| (state, &*ask)).collect();
        let mut shares = LockState::acquire_all(&mut pairs, now_us);
        if self.flaw == Flaw::AcquiresSome {
            let alone =
                |pair: (&mut LockState, &Acquire)| LockState::acquire_all(&mut [pair], now_us).remove(0);
            shares = pairs.into_iter().map(alone).collect();
        }
        for ((mut state, _, beside_another), (lock, _)) in together.into_iter().zip(asks) {
            state.value = state.value.filter(|_| !beside_another);
            locks.insert(lock.clone(), state);
        }
        if self.flaw == Flaw::MixesUp {
            shares.reverse();
        }
        if self.flaw == Flaw::SharesInSets {
            shares.fill(MultiAcquired::Available);
        }
        if self.flaw == Flaw::OneTokenForAll {
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
        write!(f, "Model({:?})", self.flaw)
    }
}

impl Store for Model {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if self.flaw == Flaw::ExceedsTimeLimits {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            Outcome::Done(self.apply(lock, op))
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], _within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let mut outcomes: Vec<_> = ops.iter().map(|(lock, op)| Outcome::Done(self.apply(lock, op))).collect();
        if self.flaw == Flaw::MixesUp {
            outcomes.reverse();
        }
        Box::pin(ready(outcomes))
    }

    fn acquire_all<'a>(
        &'a self,
        asks: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(ready(Some(Outcome::Done(self.take_all(asks)))))
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
        if self.flaw != Flaw::PublishesToClosed {
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
        if let (Flaw::Revives, SessionOp::Heartbeat(beat)) = (self.flaw, op)
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
        Some(Box::pin(async { self.meddle(lock, None, None) }))
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
        Some(Box::pin(async move { self.meddle(lock, Some(content), expiry) }))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        Some(Box::pin(async {
            self.meddle(lock, Some(Content::Other("list".into())), None);
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
    use super::{Flaw, Model, conformance};

    conformance::suite!(Model::new(Flaw::None));
}

/// The case must fail. It runs in its own thread, since a failing case mostly waits.
fn fails<'scope>(
    all: &'scope Scope<'scope, '_>,
    flaw: Flaw,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    fails_of(all, Kind::Mutex, flaw, case);
}

fn fails_of<'scope>(
    all: &'scope Scope<'scope, '_>,
    kind: Kind,
    flaw: Flaw,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    all.spawn(move || {
        assert!(sees(kind, flaw, case), "the suite of a {kind:?} did not see the flaw: {flaw:?}");
    });
}

fn sees(kind: Kind, flaw: Flaw, case: impl AsyncFnOnce(&Fixture) + 'static) -> bool {
    let played = || conformance::run_case(kind, async { Model::new(flaw) }, case);
    catch_unwind(AssertUnwindSafe(played)).is_err()
}

/// A thousand random operations usually hit a flaw; of several thousand, some do.
fn disagrees(kind: Kind, flaw: Flaw) {
    let seen = (0..5).any(|_| sees(kind, flaw, cases::a_thousand_operations_agree_with_the_model));
    assert!(seen, "random operations did not come upon the flaw: {flaw:?}");
}

/// A suite that passes everything is worth nothing.
#[test]
fn a_flaw_fails_its_case() {
    thread::scope(|all| {
        fails(all, Flaw::ForgetsEnded, cases::a_spent_hold_cannot_be_acquired_again);
        fails(all, Flaw::ForgetsEnded, cases::a_resent_release_says_released);
        fails(all, Flaw::ReleasesAnyHold, cases::a_late_release_leaves_the_successor_alone);
        fails(all, Flaw::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails(all, Flaw::ExtendShortens, cases::an_extend_only_raises);
        fails(all, Flaw::ExtendsNothing, cases::a_hold_that_is_gone_cannot_be_extended);
        fails(all, Flaw::WholeSeconds, cases::any_lease_from_a_millisecond_to_a_month);
        fails(all, Flaw::OneToken, cases::fencing_tokens_grow);
        fails(all, Flaw::Barges, cases::a_try_does_not_barge);
        fails(all, Flaw::PublishesToAll, cases::a_grant_wakes_exactly_one_waiter);
        fails(all, Flaw::PublishesToClosed, cases::a_closed_mailbox_gets_nothing);
        fails(all, Flaw::AlwaysGrants, cases::a_lock_left_free_keeps_its_queue);
        fails(all, Flaw::PollsExtend, cases::a_resent_acquire_is_one_acquire);
        fails(all, Flaw::PollsLoseTheEntry, cases::a_look_keeps_the_place);
        fails(all, Flaw::TrimsNames, cases::any_name_is_literal);
        fails(all, Flaw::ValuesAlone, cases::equal_values_exclude_each_other);
        fails(all, Flaw::MixesUp, cases::outcomes_come_in_the_order_of_operations);
        fails(all, Flaw::ExceedsTimeLimits, cases::a_call_ends_by_its_deadline);
        fails(all, Flaw::AdoptsUnasked, cases::a_lock_without_expiry_is_adopted_if_asked);
        fails(all, Flaw::EvictsLiveSessions, cases::the_living_are_not_evicted);
        fails(all, Flaw::EvictsNoSession, cases::a_look_takes_the_lock_from_the_dead_ahead);
        fails(all, Flaw::EvictsNoSession, cases::a_row_of_dead_sessions_is_cleared_from_behind);
        fails(all, Flaw::EvictsNoSession, cases::a_dead_session_is_evicted_by_any_client);
        fails(all, Flaw::EvictsDetached, cases::a_hold_without_a_session_is_not_evicted);
        fails(all, Flaw::Revives, cases::a_session_lives_as_long_as_it_beats);
        fails(all, Flaw::ForceReleasesAnyHold, cases::a_forced_release_that_comes_too_late_takes_nothing);
        fails(all, Flaw::ForgetsAudit, cases::what_was_taken_is_written_down);
        fails(all, Flaw::ForgetsAudit, cases::an_evicted_hold_learns_its_fate);
    });
}

/// The same for a ReentrantMutex.
#[test]
fn a_flaw_of_an_entry_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Reentrant;
        fails_of(all, kind, Flaw::CountsTwice, cases::a_resent_entry_counts_once);
        fails_of(all, kind, Flaw::EntryShortens, cases::an_entry_shortens_nothing);
        fails_of(all, kind, Flaw::MixesOwners, cases::the_same_owner_enters_at_once);
        fails_of(all, kind, Flaw::InnerReleaseFrees, cases::a_release_tells_what_is_left);
        fails_of(all, kind, Flaw::InnerReleaseFrees, cases::many_entries_at_once_are_counted);
        fails_of(all, kind, Flaw::ReleasesAnyHold, cases::a_release_by_none_of_the_holds_takes_none);
        fails_of(all, kind, Flaw::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails_of(all, kind, Flaw::EntryHasItsToken, cases::one_tenure_has_one_token);
        fails_of(all, kind, Flaw::OmitsRemainingCount, cases::a_release_tells_what_is_left);
        fails_of(all, kind, Flaw::OmitsRemainingCount, cases::a_stranger_of_the_same_owner_counts);
        fails_of(all, kind, Flaw::ReleaseSetsRemainingExpiry, cases::a_ghost_alone_does_not_keep_the_lock);
        fails_of(all, kind, Flaw::EntriesQueue, cases::only_an_entry_passes_the_queue);
        fails_of(all, kind, Flaw::FreesBeforeNextAcquire, cases::a_release_that_acquires_enters_again);
        fails_of(all, kind, Flaw::EvictsTheOwner, cases::a_dead_process_loses_its_part);
        fails_of(all, kind, Flaw::MixesKinds, cases::another_kind_of_lock_is_refused);
        fails_of(all, kind, Flaw::ForgetsEnded, cases::a_resent_release_says_released);
        fails_of(all, kind, Flaw::Barges, cases::a_try_does_not_barge);
        fails_of(all, Kind::Reentrant, Flaw::EntryExtendsUnknownHolds, cases::a_ghost_leaves_no_count);
        fails_of(all, Kind::Reentrant, Flaw::ExpiredHoldsCount, cases::a_ghost_leaves_no_count);
        fails_of(all, Kind::Reentrant, Flaw::AllHoldsEndTogether, cases::each_hold_ends_by_itself);
        fails_of(
            all,
            Kind::Reentrant,
            Flaw::NotifiesOneProcess,
            cases::a_forced_release_ends_all_of_an_owner,
        );
    });
}

/// The same for locks that rest.
#[test]
fn a_flaw_of_a_rest_fails_its_case() {
    thread::scope(|all| {
        for kind in [Kind::Mutex, Kind::Election] {
            fails_of(all, kind, Flaw::AlwaysGrants, cases::a_resting_lock_has_no_owner);
            fails_of(all, kind, Flaw::AlwaysGrants, cases::a_rest_that_acquires_again_waits);
            fails_of(all, kind, Flaw::AlwaysGrants, cases::a_rest_ends_with_no_session);
            fails_of(all, kind, Flaw::RestsHeld, cases::a_resent_rest_says_released);
            fails_of(all, kind, Flaw::ReleasesAnyHold, cases::a_rest_by_another_hold_changes_nothing);
            fails_of(all, kind, Flaw::RestsLonger, cases::a_rest_whose_time_is_over_is_a_release);
            fails_of(all, kind, Flaw::RestsLonger, cases::a_rest_ends_by_itself);
            fails_of(all, kind, Flaw::RestsHeld, cases::a_rest_is_beyond_the_hold_before);
            fails_of(all, kind, Flaw::AlwaysGrants, cases::a_rest_is_ended_by_force);
        }
    });
}

/// The same for reservations.
#[test]
fn a_flaw_of_what_is_reserved_fails_its_case() {
    thread::scope(|all| {
        fails(all, Flaw::ReservesAgain, cases::blocks_of_tokens_follow_one_another);
        fails(all, Flaw::ReservesMore, cases::a_block_is_whole_when_its_time_has_come);
        fails(all, Flaw::ReservesOne, cases::a_block_is_whole_when_its_time_has_come);
        fails(all, Flaw::GrantsReserved, cases::tokens_grow_over_what_is_reserved);
        fails(all, Flaw::GrantsReserved, cases::tokens_grow_over_the_reservation_of_an_evicted_holder);
        fails(all, Flaw::ExtendsNothing, cases::nothing_is_reserved_but_for_the_holder);
        fails(all, Flaw::ReservesForAnyHold, cases::nothing_is_reserved_but_for_the_holder);
        fails(all, Flaw::ExtendShortens, cases::an_extend_that_reserves_only_raises);
        fails(all, Flaw::ReservesForAnyHold, cases::an_equal_value_reserves_nothing);
        fails(all, Flaw::HidesWaiters, cases::a_reservation_reports_whether_others_wait);
        fails(all, Flaw::NotifiesUnasked, cases::a_holder_is_notified_of_other_requests);
        fails(all, Flaw::NotifiesOfOwnRequest, cases::a_holder_is_notified_of_other_requests);
        fails(all, Flaw::NotifiesForEver, cases::a_holder_is_notified_for_one_hold);
        fails(all, Flaw::NotifiesForEver, cases::a_lost_hold_is_not_notified);
        fails(all, Flaw::NotifiesLostHold, cases::a_lost_hold_is_not_notified);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Mutex) {
            fails_of(all, kind, Flaw::ReservesOfAnyKind, cases::a_lock_of_this_kind_has_no_tokens_to_reserve);
        }
        fails(all, Flaw::NotifiesNoHolder, cases::a_holder_is_notified_of_other_requests);
    });
}

/// The same for several locks.
#[test]
fn a_flaw_of_a_set_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::EXCLUSIVE {
            fails_of(all, kind, Flaw::AcquiresSome, cases::all_of_a_set_are_taken_or_none);
            fails_of(all, kind, Flaw::ReacquiresOnResend, cases::a_set_that_is_asked_for_again_is_one);
            fails_of(all, kind, Flaw::ReacquiresOnResend, cases::the_held_part_of_a_set_is_reported);
            fails_of(all, kind, Flaw::AcquiresAll, cases::another_hold_of_the_asker_is_in_the_way_of_a_set);
            fails_of(all, kind, Flaw::ForgetsEnded, cases::a_set_that_was_given_back_is_spent);
            fails_of(all, kind, Flaw::OneTokenForAll, cases::each_of_a_set_has_its_own_token);
            fails_of(all, kind, Flaw::Barges, cases::a_set_overtakes_no_waiter);
            fails_of(all, kind, Flaw::OneLeaseForAll, cases::each_of_a_set_ends_by_itself);
            fails_of(all, kind, Flaw::MixesKinds, cases::another_kind_of_lock_keeps_a_set_from_all);
            fails_of(all, kind, Flaw::AcquiresAll, cases::another_type_of_key_keeps_a_set_from_all);
            fails_of(all, kind, Flaw::AcquiresAll, cases::a_foreign_lock_keeps_a_set_from_all);
            fails_of(all, kind, Flaw::MixesUp, cases::the_shares_come_in_the_order_of_the_asks);
            fails_of(all, kind, Flaw::EvictsNoSession, cases::the_dead_lose_each_of_a_set);
            fails_of(all, kind, Flaw::AcquiresAll, cases::sets_at_once_exclude_each_other);
        }
    });
}

/// The same for permits.
#[test]
fn a_flaw_of_a_semaphore_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Semaphore;
        fails_of(all, kind, Flaw::ExceedsPermits, cases::permits_add_up_to_their_number);
        fails_of(all, kind, Flaw::HidesHolders, cases::permits_add_up_to_their_number);
        fails_of(all, kind, Flaw::OneToken, cases::permits_add_up_to_their_number);
        fails_of(all, kind, Flaw::ResendAcquiresAgain, cases::resent_permits_count_once);
        fails_of(all, kind, Flaw::ReleasesAnyHold, cases::resent_permits_count_once);
        fails_of(all, kind, Flaw::Barges, cases::a_smaller_request_overtakes_no_waiter);
        fails_of(all, kind, Flaw::PublishesToAll, cases::a_release_lets_in_as_many_as_fit);
        fails_of(all, kind, Flaw::ReleasesAnyHold, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, Flaw::ExceedsPermits, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, Flaw::EvictsNoSession, cases::permits_of_the_dead_come_back);
        fails_of(all, kind, Flaw::EvictsNoSession, cases::a_dead_sharer_is_evicted_by_any_client);
        fails_of(all, kind, Flaw::EvictsOne, cases::a_dead_sharer_is_evicted_by_any_client);
        fails_of(all, kind, Flaw::HidesOthers, cases::the_first_waiter_watches_all_holders);
        fails_of(all, kind, Flaw::WaitsForEver, cases::an_impossible_number_of_permits_is_refused);
        fails_of(all, kind, Flaw::AcceptsAnyLimit, cases::the_first_acquire_sets_the_number_of_permits);
        fails_of(all, kind, Flaw::ResizesUnseen, cases::a_resize_grants_to_waiters_and_evicts_no_holder);
        fails_of(all, kind, Flaw::ResizeEvicts, cases::a_resize_grants_to_waiters_and_evicts_no_holder);
        fails_of(
            all,
            kind,
            Flaw::KeepsImpossibleEntries,
            cases::a_waiter_beyond_a_lowered_limit_blocks_no_other,
        );
        fails_of(all, kind, Flaw::ForceReleasesAll, cases::a_forced_release_ends_one_of_several);
        fails_of(all, kind, Flaw::ExceedsPermits, cases::never_are_more_permits_held_than_there_are);
        fails_of(all, kind, Flaw::ForgetsEnded, cases::a_spent_hold_cannot_be_acquired_again);
        fails_of(all, Kind::Semaphore, Flaw::PublishesOne, cases::a_release_lets_in_as_many_as_fit);
        fails_of(
            all,
            Kind::Semaphore,
            Flaw::ResizeGrantsNothing,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(all, Kind::Semaphore, Flaw::OneEntryPerSession, cases::each_hold_of_a_process_has_its_place);
        fails_of(all, Kind::Semaphore, Flaw::SharedHoldsEndTogether, cases::each_part_ends_by_itself);
    });
}

/// The same for readers and writers.
#[test]
fn a_flaw_of_an_rwlock_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::RwLock;
        fails_of(all, kind, Flaw::WriterIsShared, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, Flaw::UpgradablesShare, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, Flaw::Barges, cases::readers_overtake_no_waiting_writer);
        fails_of(all, kind, Flaw::ReadersQueue, cases::an_owner_that_reads_overtakes_a_waiting_writer);
        fails_of(all, kind, Flaw::WaitsForEver, cases::an_upgrade_that_would_never_end_is_refused);
        fails_of(all, kind, Flaw::UpgradesQueue, cases::an_upgrade_goes_before_all_waiters);
        fails_of(all, kind, Flaw::ResendAcquiresAgain, cases::an_upgrade_goes_before_all_waiters);
        fails_of(all, kind, Flaw::UpgradesQueue, cases::a_try_to_upgrade_overtakes_waiters);
        fails_of(all, kind, Flaw::ReadersQueue, cases::a_downgrade_lets_no_writer_in_between);
        fails_of(all, kind, Flaw::ReleasesAnyHold, cases::a_late_release_of_a_read_ends_no_write);
        fails_of(all, kind, Flaw::EvictsNoSession, cases::a_dead_reader_keeps_no_writer_waiting);
        fails_of(all, kind, Flaw::EvictsNoSession, cases::a_dead_upgrade_blocks_no_waiter);
        fails_of(all, kind, Flaw::InventsOwners, cases::a_reader_without_an_owner_is_refused);
        fails_of(all, kind, Flaw::WriterIsShared, cases::a_writer_is_always_alone);
        fails_of(
            all,
            Kind::RwLock,
            Flaw::SharedHoldsEndTogether,
            cases::a_live_reader_keeps_no_dead_one_alive,
        );
    });
}

/// The same for a Latch and a Barrier.
#[test]
fn a_flaw_of_latch_or_barrier_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Latch;
        fails_of(all, kind, Flaw::OpensEarly, cases::a_latch_opens_when_all_have_arrived);
        fails_of(all, kind, Flaw::OpensEarly, cases::one_may_arrive_for_several);
        fails_of(all, kind, Flaw::ResendAcquiresAgain, cases::a_resent_arrival_counts_once);
        fails_of(all, kind, Flaw::ForgetsEnded, cases::an_arrival_that_was_given_up_never_counts);
        fails_of(all, kind, Flaw::EvictsNoSession, cases::an_arrival_of_the_dead_does_not_count);
        fails_of(all, kind, Flaw::AcceptsAnyParties, cases::another_number_of_parties_is_refused);
        let kind = Kind::Barrier;
        fails_of(all, kind, Flaw::AcceptsAnyLimit, cases::another_number_of_parties_is_refused);
        fails_of(all, kind, Flaw::PublishesToAll, cases::all_parties_of_a_barrier_continue_together);
        fails_of(all, kind, Flaw::TriesQueue, cases::a_try_to_meet_counts_only_as_the_last);
        fails_of(all, kind, Flaw::ResendAcquiresAgain, cases::a_resent_meeting_counts_once);
        fails_of(all, kind, Flaw::ForgetsEnded, cases::a_party_that_left_a_barrier_is_not_counted);
        fails_of(all, Kind::Barrier, Flaw::CountsExpiredParties, cases::the_dead_do_not_meet);
        fails_of(all, Kind::Barrier, Flaw::PublishesOne, cases::all_parties_of_a_barrier_continue_together);
    });
}

/// The same for all kinds that several can have.
#[test]
fn a_flaw_of_what_is_shared_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::SHARED {
            fails_of(all, kind, Flaw::AcceptsAnyMode, cases::a_part_of_another_kind_is_refused);
            fails_of(all, kind, Flaw::MixesKinds, cases::a_name_is_of_one_kind);
            fails_of(all, kind, Flaw::SharesInSets, cases::a_shared_lock_is_in_no_set);
            fails_of(all, kind, Flaw::ExtendShortens, cases::shared_holds_are_distinguished);
            fails_of(all, kind, Flaw::ForgetsEnded, cases::shared_holds_are_distinguished);
        }
    });
}

/// A case that no wrong store fails may well test nothing.
#[test]
fn every_case_of_a_kind_and_of_sets_is_failed_by_some_store() {
    let this = include_str!("conformance.rs");
    let cases = [
        include_str!("../src/conformance/cases/entering.rs"),
        include_str!("../src/conformance/cases/together.rs"),
        include_str!("../src/conformance/cases/permits.rs"),
        include_str!("../src/conformance/cases/reading.rs"),
        include_str!("../src/conformance/cases/gathering.rs"),
        include_str!("../src/conformance/cases/reserving.rs"),
        include_str!("../src/conformance/cases/sharing.rs"),
    ];
    let names = cases.iter().flat_map(|cases| cases.split("pub async fn ").skip(1));
    let names = names.filter_map(|case| case.split('(').next());
    let is_failed = |name: &&str| [");", ","].iter().any(|end| this.contains(&format!("cases::{name}{end}")));
    let never: Vec<_> = names.filter(|name| !is_failed(name)).collect();
    assert_eq!(never, Vec::<&str>::new());
}

/// The random operations see every flaw that shows in replies and inbox.
#[test]
fn a_flaw_disagrees_with_the_model() {
    for flaw in [
        Flaw::ForgetsEnded,
        Flaw::ReleasesAnyHold,
        Flaw::ExtendShortens,
        Flaw::ExtendsNothing,
        Flaw::OneToken,
        Flaw::Barges,
        Flaw::PublishesToAll,
        Flaw::AlwaysGrants,
        Flaw::PollsExtend,
        Flaw::PollsLoseTheEntry,
        Flaw::AdoptsUnasked,
        Flaw::ReservesAgain,
        Flaw::GrantsReserved,
        Flaw::ReservesForAnyHold,
        Flaw::HidesWaiters,
        Flaw::NotifiesNoHolder,
        Flaw::NotifiesUnasked,
        Flaw::NotifiesOfOwnRequest,
        Flaw::NotifiesForEver,
    ] {
        disagrees(Kind::Mutex, flaw);
    }
    for flaw in [
        Flaw::CountsTwice,
        Flaw::EntryShortens,
        Flaw::EntryExtendsUnknownHolds,
        Flaw::InnerReleaseFrees,
        Flaw::EntryHasItsToken,
        Flaw::OmitsRemainingCount,
        Flaw::ReleasesAnyHold,
        Flaw::ForgetsEnded,
    ] {
        disagrees(Kind::Reentrant, flaw);
    }
    for (kind, flaw) in [
        (Kind::Semaphore, Flaw::ExceedsPermits),
        (Kind::Semaphore, Flaw::AcceptsAnyLimit),
        (Kind::Semaphore, Flaw::ResizesUnseen),
        (Kind::Semaphore, Flaw::HidesHolders),
        (Kind::Semaphore, Flaw::HidesOthers),
        (Kind::Semaphore, Flaw::PublishesOne),
        (Kind::RwLock, Flaw::WriterIsShared),
        (Kind::RwLock, Flaw::ReadersQueue),
        (Kind::RwLock, Flaw::UpgradesQueue),
        (Kind::RwLock, Flaw::Barges),
        (Kind::Latch, Flaw::OpensEarly),
        (Kind::Latch, Flaw::ResendAcquiresAgain),
        (Kind::Barrier, Flaw::TriesQueue),
        (Kind::Barrier, Flaw::ForgetsEnded),
    ] {
        disagrees(kind, flaw);
    }
}
