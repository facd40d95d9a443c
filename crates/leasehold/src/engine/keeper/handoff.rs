//! Keeper work for holds that are handed off inside the process: token requests to the store, and the release of idle
//! holds that no task takes.
//!
//! The order of waiters is up to the lock entry, and how often a hold may change hands to the core. A lock entry's
//! mutex is never taken while the keeper's is held; the other order is allowed.

use super::extend::Gone;
use super::{Keeper, KeeperHandle, LostReason, Shared, State, TrackedHold, TrackingId};
use crate::engine::hold::{AfterReserve, Hold, IdleCheck, ReserveRequest};
use crate::store::Outcome;
use crate::telemetry::Operation;
use leasehold_core::machine::renewal::{HoldLimits, RenewalPlan};
use leasehold_core::{
    Extend, Extended, FencingToken, Lease, Moment, Op, Reply, Reserve, TokenBlock, whole_millis,
};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A [`ReserveRequest`] that is in flight.
pub(super) struct ReserveInFlight {
    id: TrackingId,
    hold: Arc<Hold>,
    request: ReserveRequest,
    /// Kept while the request is in flight.
    in_flight: DropGuard,
}

impl ReserveInFlight {
    /// Records that the request is about to be sent.
    pub(super) fn new(id: TrackingId, tracked: &mut TrackedHold, may_last: Duration, now: Moment) -> Self {
        let request = tracked.reserve.take().unwrap_or_default();
        if let Some(lease) = request.lease {
            tracked.hold.may_last(now + may_last + tracked.hold.store_lease(lease));
        }
        let token = CancellationToken::new();
        tracked.in_flight = Some(token.clone());
        Self { id, hold: tracked.hold.clone(), request, in_flight: token.drop_guard() }
    }
}

/// Sends the request and passes the reserved tokens to the lock entry.
pub(super) async fn send_reserve(shared: Arc<Shared>, pending: ReserveInFlight) {
    let ReserveInFlight { id, hold, request, in_flight } = pending;
    let sent_at = shared.environment.now();
    // Half of the remaining time, so that the front still has time for an alternative.
    let left = hold.kept_until().since(sent_at) / 2;
    let within = shared.timings.call.min(left).max(Duration::from_millis(1));
    let lease = request.lease.map_or(Lease::MIN, |lease| hold.store_lease(lease));
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: request.notify_wanted });
    let (claim, lease_ms) = (hold.claim.clone(), whole_millis(lease));
    let op = Op::Extend(Extend { claim, lease_ms, keep_record: false, reserve, fence: None });
    let sent = shared.telemetry().request();
    let outcome = shared.store.execute(&hold.lock, &op, within).await;
    sent.answered(op.operation(), &outcome);
    let reserved = match &outcome {
        Outcome::Done(Reply::Extend(Extended::Reserved { block, others_wait })) => {
            Some((*block, *others_wait))
        }
        Outcome::Failed(_, fault) => {
            tracing::debug!(lock = %hold.lock, %fault, "no tokens reserved");
            None
        }
        Outcome::Done(_) => None,
    };
    let now = shared.environment.now();
    let gone = match outcome {
        Outcome::Done(Reply::Extend(Extended::NotHeld)) => shared.state().handle_gone_unless_lost(id, now),
        Outcome::Done(Reply::Extend(_)) => shared.state().handle_reserve_done(id, sent_at, request.lease),
        _ => shared.state().handle_reserve_done(id, sent_at, None),
    };
    drop(in_flight);
    // The present holder, or the queue, handles the reply.
    match hold.entry().map(|entry| entry.handle_reserved(&hold, reserved, request.notify_wanted, sent_at)) {
        Some(AfterReserve::Release) => shared.release_idle(id),
        Some(AfterReserve::Request(request)) => shared.reserve(id, request),
        Some(AfterReserve::Nothing) | None => {}
    }
    shared.wake.notify_one();
    if let Some(gone) = gone {
        gone.report(&shared).await;
    }
}

impl State {
    /// A reserve request was answered, or failed.
    fn handle_reserve_done(
        &mut self,
        id: TrackingId,
        sent_at: Moment,
        lease: Option<Duration>,
    ) -> Option<Gone> {
        let tracked = self.tracked.get_mut(&id).filter(|tracked| !tracked.lost)?;
        tracked.schedule.handle_request_done(sent_at, lease);
        tracked.update_hold();
        self.reschedule(id);
        None
    }

    fn handle_gone_unless_lost(&mut self, id: TrackingId, now: Moment) -> Option<Gone> {
        let is_lost = self.tracked.get(&id)?.lost;
        if is_lost { None } else { self.handle_gone(id, now) }
    }

    /// The holds whose lock entries must be checked.
    pub(super) fn take_idle_checks(&mut self, now: Moment) -> Vec<(TrackingId, Arc<Hold>)> {
        let mut checks = Vec::new();
        while let Some((_, id)) = self.idle_checks.first().copied().filter(|(at, _)| *at <= now) {
            self.idle_checks.pop_first();
            if let Some(tracked) = self.tracked.get_mut(&id) {
                tracked.idle_check_at = None;
                checks.push((id, tracked.hold.clone()));
            }
        }
        checks
    }

    /// Removes an idle hold that no task takes (9). The caller must release it.
    pub(super) fn remove_idle(&mut self, id: TrackingId, now: Moment) -> Option<Arc<Hold>> {
        let hold = self.stop_extending(id)?;
        self.forget(id, now);
        Some(hold)
    }
}

impl Keeper {
    /// A hold changes hands inside the process (9). Returns whether it did; otherwise it was lost meanwhile, or a
    /// shutdown has taken it over.
    pub(crate) fn hand_off(
        &self,
        id: TrackingId,
        hold: &Arc<Hold>,
        (plan, limits): (RenewalPlan, HoldLimits),
        now: Moment,
    ) -> bool {
        let mut state = self.shared.state();
        if state.shut_down {
            return false;
        }
        let Some(tracked) = state.tracked.get_mut(&id) else { return false };
        if tracked.lost || tracked.hold.is_invalid() || hold.session.alive_until() == Moment::ZERO {
            drop(state);
            // No guard will release it, and the store may still keep it.
            self.shared.release_idle(id);
            return false;
        }
        tracked.schedule.hand_off(plan, limits, now);
        hold.may_last(tracked.hold.may_last_until());
        tracked.hold = hold.clone();
        tracked.update_hold();
        hold.limit_validity(tracked.schedule.valid_until());
        let (due, slot) = (tracked.schedule.due(), tracked.slot);
        let must_report = state.activity.hold_changed();
        // An entry that is due too early is rescheduled then.
        if !must_report && slot.is_some_and(|slot| slot.is_due_by(due)) {
            return true;
        }
        let due = state.reschedule(id);
        let early = due < state.wakes_at || must_report;
        drop(state);
        if early {
            self.shared.wake.notify_one();
        }
        true
    }

    /// Keeps a hold by another plan and with other limits from now on. Does nothing if it is lost.
    pub(crate) fn replan(&self, id: TrackingId, (plan, limits): (RenewalPlan, HoldLimits), now: Moment) {
        let mut state = self.shared.state();
        let Some(tracked) = state.tracked.get_mut(&id).filter(|tracked| !tracked.lost) else { return };
        tracked.schedule.hand_off(plan, limits, now);
        tracked.update_hold();
        tracked.hold.limit_validity(tracked.schedule.valid_until());
        let due = state.reschedule(id);
        let early = due < state.wakes_at;
        drop(state);
        if early {
            self.shared.wake.notify_one();
        }
    }

    /// Requests tokens from the store at once, for the next waiter.
    pub(in crate::engine) fn reserve(&self, id: TrackingId, request: ReserveRequest) {
        self.shared.reserve(id, request);
    }

    /// Schedules a check of the lock entry of an idle hold.
    pub(in crate::engine) fn check_idle_at(&self, id: TrackingId, until: Moment) {
        let mut state = self.shared.state();
        if state.check_idle_at(id, until) {
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// Releases an idle hold that no task takes.
    pub(in crate::engine) fn release_idle(&self, id: TrackingId) {
        self.shared.release_idle(id);
    }
}

impl State {
    /// Returns whether that is earlier than the keeper would wake.
    fn check_idle_at(&mut self, id: TrackingId, until: Moment) -> bool {
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| !tracked.lost) else { return false };
        if let Some(before) = tracked.idle_check_at.replace(until) {
            self.idle_checks.remove(&(before, id));
        }
        self.idle_checks.insert((until, id));
        until < self.wakes_at
    }
}

impl Shared {
    /// Releases an idle hold that no task takes.
    pub(super) fn release_idle(&self, id: TrackingId) {
        let now = self.environment.now();
        let Some(hold) = self.state().remove_idle(id, now) else { return };
        self.release_removed(&hold, now);
    }

    /// Releases an idle hold that has been removed.
    pub(super) fn release_removed(&self, hold: &Hold, now: Moment) {
        let until = hold.may_last_until().max(now + self.timings.call);
        self.post(hold.lock.clone(), hold.claim.clone(), until, hold.history(), None);
        // It has no guard that the reason would reach.
        hold.lose(LostReason::Released);
    }

    /// Requests tokens from the store at once.
    fn reserve(&self, id: TrackingId, request: ReserveRequest) {
        let mut state = self.state();
        let Some(tracked) = state.tracked.get_mut(&id).filter(|tracked| !tracked.lost) else { return };
        let known = tracked.reserve.get_or_insert_default();
        (known.lease, known.notify_wanted) =
            (known.lease.max(request.lease), known.notify_wanted || request.notify_wanted);
        tracked.schedule.queue_request();
        state.reschedule(id);
        drop(state);
        self.wake.notify_one();
    }

    /// Checks the lock entry of a hold that was idle.
    pub(super) fn check_idle(&self, id: TrackingId, hold: &Hold, now: Moment) {
        let Some(entry) = hold.entry() else { return self.release_idle(id) };
        match entry.check_idle(now) {
            IdleCheck::InUse => {}
            IdleCheck::Until(until) => {
                // The keeper computed its next wake-up before this check.
                if self.state().check_idle_at(id, until) {
                    self.wake.notify_one();
                }
            }
            IdleCheck::Over => self.release_idle(id),
        }
    }
}

impl KeeperHandle {
    /// A notification says that another process wants the lock whose hold has this token. It may be forged: then an
    /// idle hold is returned to the store. Does not wait.
    pub(in crate::engine) fn wanted(&self, fence: FencingToken) {
        let Some(shared) = self.0.upgrade() else { return };
        let now = shared.environment.now();
        let range = (fence, TrackingId(0))..=(fence, TrackingId(u64::MAX));
        let known: Vec<_> = {
            let state = shared.state();
            let ids = state.by_fence.range(range).map(|(_, id)| *id);
            ids.filter_map(|id| Some((id, state.tracked.get(&id)?.hold.clone()))).collect()
        };
        for (id, hold) in known {
            if hold.entry().is_some_and(|entry| entry.handle_wanted(&hold, now)) {
                shared.release_idle(id);
            }
        }
    }

    /// A lock entry was dropped: releases its idle hold.
    pub(in crate::engine) fn release_idle(&self, id: TrackingId) {
        if let Some(shared) = self.0.upgrade() {
            shared.release_idle(id);
        }
    }
}
