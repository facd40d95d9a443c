//! Server mutants of a re-entrant mutex: see [`Mutant`].

use crate::mutants::{Mutant, holder};
use leasehold_core::model::{
    Content, LockState, ReentrantHold, ReentrantHolds, SessionLookup, SessionStatus, Value,
};
use leasehold_core::{
    Acquire, Acquired, Claim, FencingToken, HoldId, HoldStatus, Notification, Op, OwnValue, Reply,
};

impl Mutant {
    /// Executes an operation on a ReentrantMutex that is held.
    pub(super) fn apply_to_entries(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let before = entries(state).map_or_else(Vec::new, |entries| entries.holds.clone());
        match (self, op) {
            (Self::AnyOwnerEnters, Op::Acquire(request)) => {
                let mut request = request.clone();
                request.claim.value = holder(state).and_then(|holder| holder.value).or(request.claim.value);
                state.apply(now_us, &Op::Acquire(request), alive)
            }
            (Self::ReentryWaits, Op::Acquire(request)) => enter_behind_queue(state, now_us, request, alive),
            (Self::ExpiredEntriesAreExtended, Op::Acquire(_)) => {
                let done = state.apply(now_us, op, alive);
                extend_all(state, now_us);
                done
            }
            (Self::EvictionEndsAllEntries, _) => {
                let lapsed = match op {
                    Op::Acquire(request) => request.predecessor,
                    Op::Evict(evict) => Some(evict.session),
                    _ => None,
                };
                let lapsed = lapsed.filter(|session| matches!(alive(*session), SessionStatus::Lapsed));
                let ends = |entry: &ReentrantHold| {
                    entry.liveness.ends_with_session() && Some(entry.hold.session()) == lapsed
                };
                if before.iter().any(ends) {
                    state.value = None;
                }
                state.apply(now_us, op, alive)
            }
            (Self::LateEntryReleaseTakesAnother, Op::Release(release)) => {
                let mut release = release.clone();
                let is_owner = holder(state).is_some_and(|holder| holder.value == release.claim.value);
                let is_entered = before.iter().any(|entry| entry.hold == release.claim.hold);
                if let Some(first) = before.first().filter(|_| is_owner && !is_entered) {
                    release.claim.hold = first.hold;
                }
                state.apply(now_us, &Op::Release(release), alive)
            }
            _ => {
                let (mut reply, notifications) = state.apply(now_us, op, alive);
                self.mutate_entries(state, now_us, op, &mut reply, &before);
                (reply, notifications)
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
        let was_entered = |hold: HoldId| before.iter().any(|entry| entry.hold == hold);
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
            (Self::ReentryShortens, Op::Acquire(request), Reply::Acquire(Acquired::Granted { .. })) => {
                if let Some(value) = state.value.as_mut().filter(|_| left > 1) {
                    value.expires_ms = Some(now_us / 1000 + request.lease_ms);
                }
            }
            (Self::ResentEntryCountsTwice, Op::Acquire(request), _) if was_entered(request.claim.hold) => {
                if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut state.value {
                    entries.count += 1;
                }
            }
            (
                Self::EntryHasOwnToken,
                Op::Acquire(request),
                Reply::Acquire(Acquired::Granted { fence, .. }),
            ) if left > 1 && !was_entered(request.claim.hold) => {
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
}

/// The entries of a ReentrantMutex that is held.
pub(super) fn entries(state: &LockState) -> Option<&ReentrantHolds> {
    state.value.as_ref()?.content.reentrant_holds()
}

pub(super) fn each_entry(state: &mut LockState, each: impl FnMut(&mut ReentrantHold)) {
    if let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut state.value {
        entries.holds.iter_mut().for_each(each);
    }
}

/// Extends all entries of an owner as far as a new one.
fn extend_all(state: &mut LockState, now_us: u64) {
    let Some(until_ms) = entries(state).map(|entries| now_us / 1000 + entries.lease_ms) else { return };
    each_entry(state, |entry| entry.until_ms = entry.until_ms.max(until_ms));
    if let Some(value) = &mut state.value {
        value.expires_ms = value.expires_ms.map(|at_ms| at_ms.max(until_ms));
    }
}

/// Makes a re-entrant acquire wait behind the queue.
fn enter_behind_queue(
    state: &mut LockState,
    now_us: u64,
    request: &Acquire,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let is_entered = entries(state).is_some_and(|entries| entries.find(&request.claim.hold).is_some());
    let lasts = |entry: &ReentrantHold| entry.until_ms >= now_us / 1000;
    let is_held = entries(state).is_some_and(|entries| entries.holds.iter().any(lasts));
    let has_waiters = state.record.as_ref().is_some_and(|record| !record.tickets.is_empty());
    let Some(other) = OwnValue::new("another").ok().filter(|_| has_waiters && is_held && !is_entered) else {
        return state.apply(now_us, &Op::Acquire(request.clone()), alive);
    };
    let claim = Claim { value: Some(other), ..request.claim.clone() };
    let done =
        state.apply(now_us, &Op::Acquire(Acquire { claim, predecessor: None, ..request.clone() }), alive);
    for waiter in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
        if waiter.claim.hold == request.claim.hold {
            waiter.claim = request.claim.clone();
        }
    }
    done
}
