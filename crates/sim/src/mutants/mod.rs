//! Mutants: deliberate defects that prove that the checks can fail.
//!
//! Each mutant is a mistake that a lock service has made, or could make. Server mutants change what an operation does
//! ([`Mutant::apply`]). Client mutants sit between the engine and its store, mailbox or clock (`client`). `shared`
//! has those of `RwLocks`, Semaphores, Latches and Barriers, `election` those of Elections and `once_per`, `handoff`
//! those of local hand-off. A run has at most one. The product contains none of this.

use crate::mutants::shared::barge;
pub(crate) mod client;
mod election;
mod handoff;
mod shared;

use leasehold_core::model::{
    Content, LockState, ReentrantHold, ReentrantHolds, SessionLookup, SessionStatus, Sessions, Value,
    all_alive,
};
use leasehold_core::{
    Acquire, Acquired, Claim, Extended, FencingToken, HoldId, HoldStatus, Kind, Liveness, MultiAcquired,
    Notification, ObservedHolder, Op, OwnValue, ReleaseAction, Reply, SessionOp, SessionReply,
};
use std::mem;

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutant {
    /// A release ends whatever hold is there.
    ReleaseWithoutComparing,
    /// An extend lengthens whatever hold is there, and reports success to a client that lost it.
    ExtendWithoutComparing,
    /// An extend sets the expiry, also to an earlier time.
    ExtendThatShortens,
    /// A release grants the lock to a queue entry that has expired.
    GrantToExpiredWaiter,
    /// An acquire takes a free lock ahead of the queue.
    Barging,
    /// The last waiter is granted the lock first.
    LastInFirstOut,
    /// A release frees the lock and leaves it to the waiters to find out.
    ReleaseGrantsNothing,
    /// A grant is not published.
    GrantIsNotPublished,
    /// A new hold's key gets no expiry.
    KeyWithoutExpiry,
    /// The token is its predecessor plus one, and restarts at 1 if there is none.
    TokenThatCounts,
    /// The token is the time, whatever was given before.
    TokenOfTheClock,
    /// A resent acquire of a hold that was released takes the lock again.
    SpentHoldReturns,
    /// An eviction ignores that the session is alive.
    EvictsLiveSession,
    /// An eviction ends a hold that depends on its lease alone.
    EvictsLeaseOnlyHold,
    /// A forced release ends whatever hold is there.
    ForceReleaseWithoutComparing,
    /// A beat brings a session back that has lapsed.
    HeartbeatRevivesLapsedSession,
    /// A release ends all that its owner has.
    ReleaseEndsAllEntries,
    /// A re-entrant acquire sets the expiry, even to an earlier time.
    ReentryShortens,
    /// An acquire by another owner enters the current hold.
    AnyOwnerEnters,
    /// A resent re-entrant acquire counts twice.
    ResentEntryCountsTwice,
    /// A re-entrant acquire also extends expired entries.
    ExpiredEntriesAreExtended,
    /// A re-entrant acquire gives the owner a new token.
    EntryHasOwnToken,
    /// The next owner receives its predecessor's token.
    NextOwnerHasOldToken,
    /// A release reports the lock free while its owner still holds it.
    ReportsFreeWhileHeld,
    /// The release of an entry that is gone removes another entry of the owner.
    LateEntryReleaseTakesAnother,
    /// The end of one session ends the entries of all the owner's processes.
    EvictionEndsAllEntries,
    /// A re-entrant acquire waits in the queue.
    ReentryWaits,
    /// An acquire of several locks takes some although another is held.
    AcquiresSomeOfMany,
    /// A reader is let in beside a writer.
    ReaderBesideWriter,
    /// A reader becomes the writer while others read.
    UpgradeBesideReaders,
    /// Two upgradable readers hold the lock, and wait for each other.
    TwoMayUpgrade,
    /// Every holder counts as one permit.
    PermitsWeighOne,
    /// The release of a hold that is gone ends another holder's.
    LateReleaseFreesAnother,
    /// An extend extends all holders.
    ExtendExtendsAllHolders,
    /// A reader overtakes a waiting writer.
    ReadersBarge,
    /// The number of permits is set whatever it is, also by a late message.
    ResizeWithoutComparing,
    /// A resize that adds permits grants none to waiters.
    ResizeGrantsNothing,
    /// Of several grants at once, only the first is published.
    OnlyFirstGrantIsPublished,
    /// A barrier opens with one party missing.
    BarrierLacksOne,
    /// A latch opens with one arrival missing.
    LatchOpensEarly,

    /// Tokens are reserved for a client without a hold.
    ReservesWithoutHold,
    /// The reply reserves more tokens than the server remembers.
    BlockExceedsReservation,
    /// The reservation is so large that the clock takes long to catch up.
    BlockOutrunsClock,
    /// A reservation ignores earlier reservations.
    BlockIgnoresReserved,
    /// No reply and no notification reports that others wait.
    WaitersAreNotReported,

    /// An acquire wins an Election that has a leader.
    ElectionIgnoresLeader,
    /// An inspection reports a token that was never given.
    InspectReportsWrongToken,
    /// After `finish` the period ends at once.
    PeriodEndsAtOnce,
    /// After `finish` the period counts from its end, not from its start.
    PeriodIsTooLong,
    /// A late or duplicate `finish` ends the next period.
    LateFinishEndsNextPeriod,

    /// Validity counts from when the reply arrived.
    ValidFromReply,
    /// Nothing is allowed for the drift of the clocks.
    NoDrift,
    /// A grant counts from the last poll, not from the poll that it answers.
    GrantCountsFromLastPoll,
    /// No poll follows a new subscription.
    NoPollAfterSubscribing,
    /// An operation without a reply counts as not executed.
    UnknownIsNo,
    /// An extend without a reply counts as a success.
    UnknownExtendIsYes,
    /// An acquire without a reply counts as a success.
    UnknownAcquireIsYes,
    /// An acquire that ended without a reply is not undone.
    NoUndo,
    /// A waiter that gives up stays in the queue.
    QueueEntryIsNotRemoved,
    /// A hold whose release had no reply is acquired again.
    ReleasedHoldIsReused,
    /// A hold is renewed once more after its release.
    RenewedAfterRelease,
    /// The client's clock stands still while the process does.
    ClockStopsWithProcess,
    /// A queue entry expires sooner than its waiter polls.
    QueueEntryTooShort,
    /// A dropped guard's hold is not given back.
    DroppedGuardKeepsLock,
    /// A session counts from when the reply to its beat arrived.
    SessionFromReply,
    /// Holds are believed although the session is known to have lapsed.
    HoldsOutliveSession,
    /// A session that lapsed is begun again, with its old id.
    LapsedSessionReturns,
    /// A waiter never checks whether its predecessor is alive.
    PredecessorIsNotChecked,
    /// A beat without a reply counts as a success.
    UnknownHeartbeatIsYes,
    /// An acquire of several locks is not undone when it has no reply.
    NoUndoOfMulti,
    /// Of several locks under one dropped guard, one is not released.
    MultiDropKeepsOne,
    /// A hold of an owner from another process is bound to this process's session.
    RemoteOwnerBoundToSession,
    /// An observer forgets the last leader, and sometimes reads a stale one.
    ObserverForgets,
    /// An inspection returns the result of an earlier one.
    InspectIsStale,
    /// A turn is not lengthened to its time, and believed for as long.
    PeriodHoldIsNotExtended,
    /// A reservation without a reply counts as granted.
    UnknownReserveIsYes,
    /// A hand-off uses tokens that were reserved for the hold before.
    EarlierBlockIsUsed,
    /// The client ignores the notification that another process waits.
    WantedIsIgnored,
    /// A cached hold is never released.
    CachedHoldIsNotReleased,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 79] = [
        Self::ReleaseWithoutComparing,
        Self::ExtendWithoutComparing,
        Self::ExtendThatShortens,
        Self::GrantToExpiredWaiter,
        Self::Barging,
        Self::LastInFirstOut,
        Self::ReleaseGrantsNothing,
        Self::GrantIsNotPublished,
        Self::KeyWithoutExpiry,
        Self::TokenThatCounts,
        Self::TokenOfTheClock,
        Self::SpentHoldReturns,
        Self::EvictsLiveSession,
        Self::EvictsLeaseOnlyHold,
        Self::ForceReleaseWithoutComparing,
        Self::HeartbeatRevivesLapsedSession,
        Self::ReleaseEndsAllEntries,
        Self::ReentryShortens,
        Self::AnyOwnerEnters,
        Self::ResentEntryCountsTwice,
        Self::ExpiredEntriesAreExtended,
        Self::EntryHasOwnToken,
        Self::NextOwnerHasOldToken,
        Self::ReportsFreeWhileHeld,
        Self::LateEntryReleaseTakesAnother,
        Self::EvictionEndsAllEntries,
        Self::ReentryWaits,
        Self::AcquiresSomeOfMany,
        Self::ReaderBesideWriter,
        Self::UpgradeBesideReaders,
        Self::TwoMayUpgrade,
        Self::PermitsWeighOne,
        Self::LateReleaseFreesAnother,
        Self::ExtendExtendsAllHolders,
        Self::ReadersBarge,
        Self::ResizeWithoutComparing,
        Self::ResizeGrantsNothing,
        Self::OnlyFirstGrantIsPublished,
        Self::BarrierLacksOne,
        Self::LatchOpensEarly,
        Self::ReservesWithoutHold,
        Self::BlockExceedsReservation,
        Self::BlockOutrunsClock,
        Self::BlockIgnoresReserved,
        Self::WaitersAreNotReported,
        Self::ElectionIgnoresLeader,
        Self::InspectReportsWrongToken,
        Self::PeriodEndsAtOnce,
        Self::PeriodIsTooLong,
        Self::LateFinishEndsNextPeriod,
        Self::ValidFromReply,
        Self::NoDrift,
        Self::GrantCountsFromLastPoll,
        Self::NoPollAfterSubscribing,
        Self::UnknownIsNo,
        Self::UnknownExtendIsYes,
        Self::UnknownAcquireIsYes,
        Self::NoUndo,
        Self::QueueEntryIsNotRemoved,
        Self::ReleasedHoldIsReused,
        Self::RenewedAfterRelease,
        Self::ClockStopsWithProcess,
        Self::QueueEntryTooShort,
        Self::DroppedGuardKeepsLock,
        Self::SessionFromReply,
        Self::HoldsOutliveSession,
        Self::LapsedSessionReturns,
        Self::PredecessorIsNotChecked,
        Self::UnknownHeartbeatIsYes,
        Self::NoUndoOfMulti,
        Self::MultiDropKeepsOne,
        Self::RemoteOwnerBoundToSession,
        Self::ObserverForgets,
        Self::InspectIsStale,
        Self::PeriodHoldIsNotExtended,
        Self::UnknownReserveIsYes,
        Self::EarlierBlockIsUsed,
        Self::WantedIsIgnored,
        Self::CachedHoldIsNotReleased,
    ];

    /// Executes an operation at the server. Has an effect if this is a server mutant.
    pub(crate) fn apply(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        if self.is_of_shared_locks() {
            return self.apply_to_shared(state, now_us, op, alive);
        }
        if self.is_of_handoffs() {
            return self.apply_to_handoffs(state, now_us, op, alive);
        }
        if self.is_of_elections() || self.is_of_periods() {
            return self.apply_to_elections(state, now_us, op, alive);
        }
        match (self, op) {
            (Self::ReleaseWithoutComparing, Op::Release(release)) => {
                let mut release = release.clone();
                release.claim = holder(state).unwrap_or(release.claim);
                state.apply(now_us, &Op::Release(release), alive)
            }
            (Self::ExtendWithoutComparing, Op::Extend(extend)) => {
                let mut extend = extend.clone();
                extend.claim = holder(state).unwrap_or(extend.claim);
                state.apply(now_us, &Op::Extend(extend), alive)
            }
            (Self::ExtendThatShortens, Op::Extend(extend)) => {
                let done = state.apply(now_us, op, alive);
                if let (Reply::Extend(Extended::Extended | Extended::Reserved { .. }), Some(value)) =
                    (&done.0, &mut state.value)
                {
                    value.expires_ms = Some(now_us / 1000 + extend.lease_ms);
                }
                done
            }
            (Self::GrantToExpiredWaiter, Op::Release(_)) => {
                for place in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
                    place.expires_ms = place.expires_ms.max(now_us / 1000 + 1);
                }
                state.apply(now_us, op, alive)
            }
            (Self::Barging, Op::Acquire(ask)) => barge(state, now_us, ask, alive),
            (Self::LastInFirstOut, Op::Release(_)) => {
                if let Some(record) = &mut state.record {
                    let tickets: Vec<_> = record.tickets.keys().copied().collect();
                    let sessions: Vec<_> = record.tickets.values().rev().copied().collect();
                    record.tickets = tickets.into_iter().zip(sessions).collect();
                    for (ticket, session) in &record.tickets {
                        if let Some(place) = record.entries.get_mut(session) {
                            place.ticket = *ticket;
                        }
                    }
                }
                state.apply(now_us, op, alive)
            }
            (Self::ReleaseGrantsNothing, Op::Release(release)) => {
                let mut release = release.clone();
                release.action = ReleaseAction::Free;
                state.apply(now_us, &Op::Release(release), alive)
            }
            (Self::GrantIsNotPublished, _) => (state.apply(now_us, op, alive).0, Vec::new()),
            (Self::KeyWithoutExpiry, Op::Acquire(_)) => {
                let done = state.apply(now_us, op, alive);
                if let (Reply::Acquire(Acquired::Granted { .. }), Some(value)) = (&done.0, &mut state.value) {
                    value.expires_ms = None;
                }
                done
            }
            (Self::TokenThatCounts | Self::TokenOfTheClock, _) => {
                self.apply_with_own_token(state, now_us, op, alive)
            }
            (Self::SpentHoldReturns, _) => {
                let done = state.apply(now_us, op, alive);
                if let Some(record) = &mut state.record {
                    record.ended.holds.clear();
                }
                done
            }
            _ => self.apply_to_others(state, now_us, op, alive),
        }
    }

    /// As [`apply`](Self::apply), for operations that end holds of others.
    fn apply_to_others(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        match (self, op) {
            (Self::EvictsLiveSession, _) => state.apply(now_us, op, &|_| SessionStatus::Lapsed),
            (Self::EvictsLeaseOnlyHold, Op::Acquire(_) | Op::Evict(_)) => {
                // To this server everything lives with its session.
                let mut leases = Vec::new();
                each_life(state, |hold, life| {
                    if mem::replace(life, Liveness::Session { alive_ms: 1 }) == Liveness::Lease {
                        leases.push(hold);
                    }
                });
                let done = state.apply(now_us, op, alive);
                each_life(state, |hold, life| {
                    if leases.contains(&hold) {
                        *life = Liveness::Lease;
                    }
                });
                done
            }
            (Self::ForceReleaseWithoutComparing, Op::ForceRelease(free)) => {
                let mut free = free.clone();
                let last = holder(state).and(state.record.as_ref()).and_then(|record| record.last_fence);
                free.observed = last.map_or(free.observed, ObservedHolder::Hold);
                state.apply(now_us, &Op::ForceRelease(free), alive)
            }
            _ if entries(state).is_some() => self.apply_to_entries(state, now_us, op, alive),
            _ => self.apply_to_no_entries(state, now_us, op, alive),
        }
    }

    /// As [`apply`](Self::apply), for a ReentrantMutex that is held.
    fn apply_to_entries(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let before = entries(state).map_or_else(Vec::new, |entries| entries.holds.clone());
        match (self, op) {
            (Self::AnyOwnerEnters, Op::Acquire(ask)) => {
                let mut ask = ask.clone();
                ask.claim.value = holder(state).and_then(|holder| holder.value).or(ask.claim.value);
                state.apply(now_us, &Op::Acquire(ask), alive)
            }
            (Self::ReentryWaits, Op::Acquire(ask)) => enter_in_line(state, now_us, ask, alive),
            (Self::ExpiredEntriesAreExtended, Op::Acquire(_)) => {
                let done = state.apply(now_us, op, alive);
                lengthen_all(state, now_us);
                done
            }
            (Self::EvictionEndsAllEntries, _) => {
                let dead = match op {
                    Op::Acquire(ask) => ask.predecessor,
                    Op::Evict(evict) => Some(evict.session),
                    _ => None,
                };
                let dead = dead.filter(|dead| matches!(alive(*dead), SessionStatus::Lapsed));
                let dies = |entry: &ReentrantHold| {
                    entry.liveness.ends_with_session() && Some(entry.hold.session()) == dead
                };
                if before.iter().any(dies) {
                    state.value = None;
                }
                state.apply(now_us, op, alive)
            }
            (Self::LateEntryReleaseTakesAnother, Op::Release(release)) => {
                let mut release = release.clone();
                let is_owner = holder(state).is_some_and(|holder| holder.value == release.claim.value);
                let is_there = before.iter().any(|entry| entry.hold == release.claim.hold);
                if let Some(first) = before.first().filter(|_| is_owner && !is_there) {
                    release.claim.hold = first.hold;
                }
                state.apply(now_us, &Op::Release(release), alive)
            }
            _ => {
                let (mut reply, wakes) = state.apply(now_us, op, alive);
                self.mutate_entries(state, now_us, op, &mut reply, &before);
                (reply, wakes)
            }
        }
    }

    /// Changes the result of an operation on entries that the model has executed.
    fn mutate_entries(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        reply: &mut Reply,
        before: &[ReentrantHold],
    ) {
        let was_there = |hold: HoldId| before.iter().any(|entry| entry.hold == hold);
        let left = entries(state).map_or(0, |entries| entries.holds.len());
        match (self, op, reply) {
            (Self::ReleaseEndsAllEntries, Op::Release(_), Reply::Release(released))
                if released.status == HoldStatus::Held && released.remaining_holds > 0 =>
            {
                (state.value, released.remaining_holds) = (None, 0);
            }
            (Self::ReportsFreeWhileHeld, Op::Release(_), Reply::Release(released)) => {
                released.remaining_holds = 0;
            }
            (Self::ReentryShortens, Op::Acquire(ask), Reply::Acquire(Acquired::Granted { .. })) => {
                if let Some(value) = state.value.as_mut().filter(|_| left > 1) {
                    value.expires_ms = Some(now_us / 1000 + ask.lease_ms);
                }
            }
            (Self::ResentEntryCountsTwice, Op::Acquire(ask), _) if was_there(ask.claim.hold) => {
                if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut state.value {
                    entries.count += 1;
                }
            }
            (Self::EntryHasOwnToken, Op::Acquire(ask), Reply::Acquire(Acquired::Granted { fence, .. }))
                if left > 1 && !was_there(ask.claim.hold) =>
            {
                let last = state.record.as_mut().map(|record| &mut record.last_fence);
                if let (Some(last), Some(Value { content: Content::ReentrantHolds(entries), .. })) =
                    (last, &mut state.value)
                {
                    *fence = FencingToken::after(*last, now_us);
                    (*last, entries.fence) = (Some(*fence), Some(*fence));
                }
            }
            _ => {}
        }
    }

    /// The same, for any other lock.
    fn apply_to_no_entries(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        match self {
            Self::NextOwnerHasOldToken if state.kind == Kind::Reentrant => {
                self.apply_with_own_token(state, now_us, op, alive)
            }
            _ => state.apply(now_us, op, alive),
        }
    }

    /// Acquires several locks at the server.
    pub(crate) fn take_all(
        self,
        locks: &mut [(&mut LockState, &Acquire)],
        now_us: u64,
    ) -> Vec<MultiAcquired> {
        if self != Self::AcquiresSomeOfMany {
            return LockState::acquire_all(locks, now_us);
        }
        let take = |(state, ask): &mut (&mut LockState, &Acquire)| {
            let ask = Acquire { queue: None, predecessor: None, ..(*ask).clone() };
            match state.apply(now_us, &Op::Acquire(ask), &all_alive).0 {
                Reply::Acquire(had @ Acquired::Granted { .. }) => MultiAcquired::Acquired(had),
                Reply::Acquire(other) => MultiAcquired::Blocked(Ok(other)),
                _ => MultiAcquired::Available,
            }
        };
        locks.iter_mut().map(take).collect()
    }

    /// Executes an operation on sessions at the server.
    pub(crate) fn execute_session(
        self,
        sessions: &mut Sessions,
        now_ms: u64,
        op: &SessionOp,
    ) -> SessionReply {
        if let (Self::HeartbeatRevivesLapsedSession, SessionOp::Heartbeat(beat)) = (self, op)
            && let Some(record) = sessions.records.get_mut(&beat.session)
        {
            record.alive_until_ms = record.alive_until_ms.max(now_ms);
        }
        sessions.apply(now_ms, op)
    }

    pub(crate) fn apply_with_own_token(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let before = state.record.as_ref().and_then(|record| record.last_fence);
        let (mut reply, mut wakes) = state.apply(now_us, op, alive);
        let after = state.record.as_mut().and_then(|record| record.last_fence.as_mut());
        let Some(after) = after.filter(|after| Some(**after) != before) else { return (reply, wakes) };
        let token = match self {
            Self::TokenThatCounts => before.map_or(1, |before| before.as_u64() + 1),
            Self::NextOwnerHasOldToken => before.map_or(now_us, FencingToken::as_u64),
            _ => now_us,
        };
        let (right, wrong) = (*after, FencingToken::new(token));
        *after = wrong;
        if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut state.value {
            entries.fence = Some(wrong);
        }
        for wake in &mut wakes {
            if let Notification::Grant { fence, .. } = wake {
                *fence = wrong;
            }
        }
        let acquired = match &mut reply {
            Reply::Acquire(acquired) => Some(acquired),
            Reply::Release(released) => released.next.as_mut().and_then(|next| next.as_mut().ok()),
            _ => None,
        };
        if let Some(Acquired::Granted { fence, .. }) = acquired
            && *fence == right
        {
            *fence = wrong;
        }
        (reply, wakes)
    }
}

/// The entries of a ReentrantMutex that is held.
fn entries(state: &LockState) -> Option<&ReentrantHolds> {
    state.value.as_ref()?.content.reentrant_holds()
}

fn each_entry(state: &mut LockState, each: impl FnMut(&mut ReentrantHold)) {
    if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut state.value {
        entries.holds.iter_mut().for_each(each);
    }
}

/// Extends all entries of an owner as far as a new one.
fn lengthen_all(state: &mut LockState, now_us: u64) {
    let Some(until_ms) = entries(state).map(|entries| now_us / 1000 + entries.lease_ms) else { return };
    each_entry(state, |entry| entry.until_ms = entry.until_ms.max(until_ms));
    if let Some(value) = &mut state.value {
        value.expires_ms = value.expires_ms.map(|at_ms| at_ms.max(until_ms));
    }
}

/// Makes a re-entrant acquire wait behind the queue.
fn enter_in_line(
    state: &mut LockState,
    now_us: u64,
    ask: &Acquire,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let is_there = entries(state).is_some_and(|entries| entries.find(&ask.claim.hold).is_some());
    let lives = |entry: &ReentrantHold| entry.until_ms >= now_us / 1000;
    let is_had = entries(state).is_some_and(|entries| entries.holds.iter().any(lives));
    let is_awaited = state.record.as_ref().is_some_and(|record| !record.tickets.is_empty());
    let Some(other) = OwnValue::new("another").ok().filter(|_| is_awaited && is_had && !is_there) else {
        return state.apply(now_us, &Op::Acquire(ask.clone()), alive);
    };
    let claim = Claim { value: Some(other), ..ask.claim.clone() };
    let done = state.apply(now_us, &Op::Acquire(Acquire { claim, predecessor: None, ..ask.clone() }), alive);
    for place in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
        if place.claim.hold == ask.claim.hold {
            place.claim = ask.claim.clone();
        }
    }
    done
}

/// Visits the liveness of each hold and queue entry of a lock.
fn each_life(state: &mut LockState, mut each: impl FnMut(HoldId, &mut Liveness)) {
    let Some(record) = &mut state.record else { return };
    if let Some(tenant) = &mut record.last_holder {
        each(tenant.claim.hold, &mut tenant.liveness);
    }
    for place in record.entries.values_mut() {
        each(place.claim.hold, &mut place.liveness);
    }
    each_entry(state, |entry| each(entry.hold, &mut entry.liveness));
}

/// The current holder; the first entry if an owner has several.
fn holder(state: &LockState) -> Option<Claim> {
    let value = state.value.as_ref()?;
    if let Some(entries) = value.content.reentrant_holds() {
        let hold = entries.holds.first()?.hold;
        return Some(Claim { hold, value: Some(entries.owner.clone()) });
    }
    let tenant = state.record.as_ref()?.last_holder.as_ref()?;
    (value.content.token() == Some(&*state.kind.token(&tenant.claim))).then(|| tenant.claim.clone())
}
