//! Mutants: deliberate defects that prove that the checks can fail.
//!
//! Each mutant is a defect found in real lock services, or possible in one. Server mutants change the effect of an operation
//! ([`Mutant::apply`]). Client mutants are between the engine and its store, mailbox or clock (`client`). Those of one
//! primitive are in `reentrant`, `shared` (several holders) and `election` (with `once_per`); those of local hand-off are
//! in `handoff`, and those of a quorum in `quorum`. A run has at most one mutant.

pub(crate) mod client;
mod election;
mod handoff;
pub(crate) mod quorum;
mod reentrant;
mod shared;

use reentrant::{each_entry, entries};
use shared::barge;

use leasehold_core::model::{Content, LockState, SessionLookup, SessionStatus, Sessions, Value, all_alive};
use leasehold_core::{
    Acquire, Acquired, Claim, Extended, FencingToken, HoldId, Kind, Liveness, MultiAcquired, Notification,
    ObservedHolder, Op, ReleaseAction, Reply, SessionOp, SessionReply,
};
use std::mem;

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutant {
    /// A release ends the current hold, whichever it is.
    ReleaseWithoutComparing,
    /// An extend extends the current hold, whichever it is, and reports success to a client that lost its own.
    ExtendWithoutComparing,
    /// An extend sets the expiry, also to an earlier time.
    ExtendThatShortens,
    /// A release grants the lock to a queue entry that has expired.
    GrantToExpiredWaiter,
    /// An acquire takes a free lock ahead of the queue.
    Barging,
    /// The last waiter is granted the lock first.
    LastInFirstOut,
    /// A release frees the lock, and waiters have to poll.
    ReleaseGrantsNothing,
    /// A grant is not published.
    GrantIsNotPublished,
    /// A client of another library overwrites a held lock.
    ForeignSetOverwrites,
    /// A new hold's key gets no expiry.
    KeyWithoutExpiry,
    /// The token is its predecessor plus one, and restarts at 1 if there is none.
    TokenThatCounts,
    /// The token is the time, regardless of earlier tokens.
    TokenOfTheClock,
    /// A resent acquire of a released hold acquires the lock again.
    SpentHoldReturns,
    /// An eviction ignores that the session is alive.
    EvictsLiveSession,
    /// An eviction ends a hold that depends only on its lease.
    EvictsLeaseOnlyHold,
    /// A forced release ends the current hold, whichever it is.
    ForceReleaseWithoutComparing,
    /// A heartbeat revives a lapsed session.
    HeartbeatRevivesLapsedSession,
    /// A release ends all holds of its owner.
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
    /// The release of an expired entry removes another entry of the owner.
    LateEntryReleaseTakesAnother,
    /// The end of one session ends the entries of all the owner's processes.
    EvictionEndsAllEntries,
    /// A re-entrant acquire waits in the queue.
    ReentryWaits,
    /// An acquire of several locks takes some although another is held.
    AcquiresSomeOfMany,
    /// A reader is granted the lock beside a writer.
    ReaderBesideWriter,
    /// A reader becomes the writer while others read.
    UpgradeBesideReaders,
    /// A writer is admitted beside another owner's.
    TwoMayWrite,
    /// Two upgradable readers hold the lock, and wait for each other.
    TwoMayUpgrade,
    /// Every holder counts as one permit.
    PermitsWeighOne,
    /// The release of a lost hold ends another holder's.
    LateReleaseFreesAnother,
    /// An extend extends all holders.
    ExtendExtendsAllHolders,
    /// A reader overtakes a waiting writer.
    ReadersBarge,
    /// A resize ignores the former number of permits, so that a late message takes effect.
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
    /// An inspection reports a token that was never granted.
    InspectReportsWrongToken,
    /// A proclaim changes the text of the current leader, whichever it is.
    ProclaimWithoutComparing,
    /// A proclaim ignores which text its leader saw last, so that a late one undoes a later one.
    LateProclaimUndoesAnother,
    /// After `finish` the period ends at once.
    PeriodEndsAtOnce,
    /// After `finish` the period counts from its end, not from its start.
    PeriodIsTooLong,
    /// A late or duplicate `finish` ends the next period.
    LateFinishEndsNextPeriod,

    /// Validity counts from when the reply arrived.
    ValidFromReply,
    /// There is no allowance for the drift of clocks.
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
    /// A contended lock is reported as an error.
    ContentionIsAnError,
    /// A waiter polls without a pause.
    PollsWithoutPause,
    /// Timers fire late.
    TimersAreLate,
    /// Holds are not renewed: their extends fail.
    ExtendIsNotSent,
    /// A release that finds its hold lost is reported as a success.
    LostReleaseIsSuccess,
    /// A hold whose release had no reply is acquired again.
    ReleasedHoldIsReused,
    /// A hold is renewed once more after its release.
    RenewedAfterRelease,
    /// The client's clock stops while the process is stopped.
    ClockStopsWithProcess,
    /// A queue entry expires sooner than its waiter polls.
    QueueEntryTooShort,
    /// The hold of a dropped guard is not released.
    DroppedGuardKeepsLock,
    /// A session counts from the arrival of the reply to its heartbeat.
    SessionFromReply,
    /// Holds stay valid although the session is known to have lapsed.
    HoldsOutliveSession,
    /// A lapsed session begins again with its old id.
    LapsedSessionReturns,
    /// A session that the store has forgotten counts as lapsed, with all its holds.
    ForgottenSessionLapses,
    /// A release without an answer does not go on in the background.
    FailedReleaseIsLeft,
    /// A released hold that a fail-over restores is not released again.
    RestoredHoldIsKept,
    /// A waiter never checks whether its predecessor is alive.
    PredecessorIsNotChecked,
    /// A heartbeat without a reply counts as a success.
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
    /// The hold of a period is not extended to its length, and stays valid for as long.
    PeriodHoldIsNotExtended,
    /// A reservation without a reply counts as granted.
    UnknownReserveIsYes,
    /// A hand-off uses tokens that were reserved for the hold before.
    EarlierBlockIsUsed,
    /// A lock delay is not requested at the store.
    DelayIsNotRequested,
    /// The client ignores the notification that another process waits.
    WantedIsIgnored,
    /// A cached hold is never released.
    CachedHoldIsNotReleased,

    /// An acquire does not wait for the replica.
    AcquireIsNotConfirmed,
    /// A hold is confirmed whichever grant the server has of it.
    AnyGrantIsConfirmed,
    /// A renewal does not wait for the replica.
    RenewalIsNotConfirmed,
    /// A heartbeat does not wait for the replica.
    HeartbeatIsNotConfirmed,
    /// The server confirms a write that its replica does not have yet.
    ConfirmedBeforeReplicated,

    /// A renewal over a quorum puts the hold on no node that lacks it.
    RepairIsNotSent,
    /// A node that has forgotten a hold replies that it has extended it.
    ForgottenVoteIsReported,
    /// An extend acquires the lock again at a node that lacks the hold, and counts there.
    ExtendAcquiresAnew,
    /// A node grants a lock that another client holds.
    VoteIsTakenAway,
    /// A client takes three of the nodes for all, so that two are a majority.
    MinorityIsMajority,
    /// A node that does not reply counts as one that votes for the acquire.
    MissingVoteIsYes,
    /// The token of a hold is not stored at the other nodes.
    TokenIsNotStored,
    /// The votes for an acquire that failed are not undone.
    LostVoteIsNotUndone,
    /// A release leaves the votes at the nodes.
    ReleaseLeavesVotes,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 106] = [
        Self::ReleaseWithoutComparing,
        Self::ExtendWithoutComparing,
        Self::ExtendThatShortens,
        Self::GrantToExpiredWaiter,
        Self::Barging,
        Self::LastInFirstOut,
        Self::ReleaseGrantsNothing,
        Self::GrantIsNotPublished,
        Self::ForeignSetOverwrites,
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
        Self::TwoMayWrite,
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
        Self::ProclaimWithoutComparing,
        Self::LateProclaimUndoesAnother,
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
        Self::ContentionIsAnError,
        Self::PollsWithoutPause,
        Self::TimersAreLate,
        Self::ExtendIsNotSent,
        Self::LostReleaseIsSuccess,
        Self::ReleasedHoldIsReused,
        Self::RenewedAfterRelease,
        Self::ClockStopsWithProcess,
        Self::QueueEntryTooShort,
        Self::DroppedGuardKeepsLock,
        Self::SessionFromReply,
        Self::HoldsOutliveSession,
        Self::LapsedSessionReturns,
        Self::ForgottenSessionLapses,
        Self::FailedReleaseIsLeft,
        Self::RestoredHoldIsKept,
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
        Self::DelayIsNotRequested,
        Self::WantedIsIgnored,
        Self::CachedHoldIsNotReleased,
        Self::AcquireIsNotConfirmed,
        Self::AnyGrantIsConfirmed,
        Self::RenewalIsNotConfirmed,
        Self::HeartbeatIsNotConfirmed,
        Self::ConfirmedBeforeReplicated,
        Self::RepairIsNotSent,
        Self::ForgottenVoteIsReported,
        Self::ExtendAcquiresAnew,
        Self::VoteIsTakenAway,
        Self::MinorityIsMajority,
        Self::MissingVoteIsYes,
        Self::TokenIsNotStored,
        Self::LostVoteIsNotUndone,
        Self::ReleaseLeavesVotes,
    ];

    /// Whether it is a defect in waiting for a replica, which only two primaries show.
    pub const fn is_of_replicas(self) -> bool {
        matches!(
            self,
            Self::AcquireIsNotConfirmed
                | Self::AnyGrantIsConfirmed
                | Self::RenewalIsNotConfirmed
                | Self::HeartbeatIsNotConfirmed
                | Self::ConfirmedBeforeReplicated
        )
    }

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
                for entry in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
                    entry.expires_ms = entry.expires_ms.max(now_us / 1000 + 1);
                }
                state.apply(now_us, op, alive)
            }
            (Self::Barging, Op::Acquire(request)) => barge(state, now_us, request, alive),
            (Self::LastInFirstOut, Op::Release(_)) => {
                if let Some(record) = &mut state.record {
                    let tickets: Vec<_> = record.tickets.keys().copied().collect();
                    let sessions: Vec<_> = record.tickets.values().rev().copied().collect();
                    record.tickets = tickets.into_iter().zip(sessions).collect();
                    for (ticket, session) in &record.tickets {
                        if let Some(entry) = record.entries.get_mut(session) {
                            entry.ticket = *ticket;
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
                // To this server all holds depend on their sessions.
                let mut leases = Vec::new();
                each_liveness(state, |hold, liveness| {
                    if mem::replace(liveness, Liveness::Session { alive_ms: 1 }) == Liveness::Lease {
                        leases.push(hold);
                    }
                });
                let done = state.apply(now_us, op, alive);
                each_liveness(state, |hold, liveness| {
                    if leases.contains(&hold) {
                        *liveness = Liveness::Lease;
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

    /// As [`apply`](Self::apply), for any other lock.
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
    pub(crate) fn acquire_all(
        self,
        locks: &mut [(&mut LockState, &Acquire)],
        now_us: u64,
    ) -> Vec<MultiAcquired> {
        if self != Self::AcquiresSomeOfMany {
            return LockState::acquire_all(locks, now_us);
        }
        let take = |(state, request): &mut (&mut LockState, &Acquire)| {
            let request = Acquire { queue: None, predecessor: None, ..(*request).clone() };
            match state.apply(now_us, &Op::Acquire(request), &all_alive).0 {
                Reply::Acquire(granted @ Acquired::Granted { .. }) => MultiAcquired::Acquired(granted),
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
        if let (Self::HeartbeatRevivesLapsedSession, SessionOp::Heartbeat(heartbeat)) = (self, op)
            && let Some(record) = sessions.records.get_mut(&heartbeat.session)
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
        let (mut reply, mut notifications) = state.apply(now_us, op, alive);
        let after = state.record.as_mut().and_then(|record| record.last_fence.as_mut());
        let Some(after) = after.filter(|after| Some(**after) != before) else {
            return (reply, notifications);
        };
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
        for notification in &mut notifications {
            if let Notification::Grant { fence, .. } = notification {
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
        (reply, notifications)
    }
}

/// Visits the liveness of each hold and queue entry of a lock.
fn each_liveness(state: &mut LockState, mut each: impl FnMut(HoldId, &mut Liveness)) {
    let Some(record) = &mut state.record else { return };
    if let Some(last_holder) = &mut record.last_holder {
        each(last_holder.claim.hold, &mut last_holder.liveness);
    }
    for entry in record.entries.values_mut() {
        each(entry.claim.hold, &mut entry.liveness);
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
    let last_holder = state.record.as_ref()?.last_holder.as_ref()?;
    (value.content.token() == Some(&*state.kind.token(&last_holder.claim))).then(|| last_holder.claim.clone())
}
