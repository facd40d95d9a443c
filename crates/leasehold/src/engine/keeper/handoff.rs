//! Keeper work for holds that are handed on inside the process: token requests to the store, and the release of holds
//! that no task takes.
//!
//! The order of waiters is up to the lock entry, and how often a hold may change hands to the core. A lock entry's
//! mutex is never taken while the keeper's is held; the other order is allowed.

use super::extend::Gone;
use super::{KeepId, Keeper, KeeperHandle, Kept, LostReason, Shared, State};
use crate::engine::Hold;
use crate::engine::local::reservation::{Call, Heard, Rest};
use crate::store::Outcome;
use leasehold_core::machine::renewal::{HoldLimits, RenewalPlan};
use leasehold_core::{
    Extend, Extended, FencingToken, Lease, Moment, Op, Reply, Reserve, TokenBlock, whole_millis,
};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A [`Call`] on its way.
pub(super) struct Called {
    id: KeepId,
    hold: Arc<Hold>,
    call: Call,
    /// Kept while the request is in flight.
    in_flight: DropGuard,
}

impl Called {
    /// Records that the request is about to be sent.
    pub(super) fn new(id: KeepId, kept: &mut Kept, may_last: Duration, now: Moment) -> Self {
        let call = kept.call.take().unwrap_or_default();
        if let Some(lease) = call.lease {
            kept.hold.may_last(now + may_last + lease);
        }
        let token = CancellationToken::new();
        kept.in_flight = Some(token.clone());
        Self { id, hold: kept.hold.clone(), call, in_flight: token.drop_guard() }
    }
}

/// Sends the request and passes the reserved tokens to the lock entry.
pub(super) async fn call(shared: Arc<Shared>, called: Called) {
    let Called { id, hold, call, in_flight } = called;
    let sent_at = shared.environment.now();
    // Half of the remaining time, so that the front still has time for an alternative.
    let left = hold.kept_until().since(sent_at) / 2;
    let within = shared.timings.call.min(left).max(Duration::from_millis(1));
    let lease = call.lease.unwrap_or(Lease::MIN);
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: call.tell });
    let (claim, lease_ms) = (hold.claim.clone(), whole_millis(lease));
    let op = Op::Extend(Extend { claim, lease_ms, keep_record: false, reserve });
    let outcome = shared.store.execute(&hold.lock, &op, within).await;
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
        Outcome::Done(Reply::Extend(Extended::NotHeld)) => shared.state().gone_unless_lost(id, now),
        Outcome::Done(Reply::Extend(_)) => shared.state().called(id, sent_at, call.lease),
        _ => shared.state().called(id, sent_at, None),
    };
    drop(in_flight);
    // The present holder, or the queue, handles the reply.
    match hold.entry().map(|entry| entry.handle_reserved(&hold, reserved, call.tell, sent_at)) {
        Some(Heard::GiveBack) => shared.part_with(id),
        Some(Heard::Ask(call)) => shared.call_for(id, call),
        Some(Heard::Noted) | None => {}
    }
    shared.bell.notify_one();
    if let Some(gone) = gone {
        gone.tell(&shared).await;
    }
}

impl State {
    /// Such a request was answered, or failed.
    fn called(&mut self, id: KeepId, sent_at: Moment, lease: Option<Duration>) -> Option<Gone> {
        let kept = self.kept.get_mut(&id).filter(|kept| !kept.lost)?;
        kept.tenure.handle_request_done(sent_at, lease);
        kept.raise();
        self.schedule(id);
        None
    }

    fn gone_unless_lost(&mut self, id: KeepId, now: Moment) -> Option<Gone> {
        let is_lost = self.kept.get(&id)?.lost;
        if is_lost { None } else { self.gone(id, now) }
    }

    /// The holds whose lock entries must be checked.
    pub(super) fn take_rested(&mut self, now: Moment) -> Vec<(KeepId, Arc<Hold>)> {
        let mut rested = Vec::new();
        while let Some((_, id)) = self.rests.first().copied().filter(|(at, _)| *at <= now) {
            self.rests.pop_first();
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.rest_until = None;
                rested.push((id, kept.hold.clone()));
            }
        }
        rested
    }

    /// A hold whose guard was released and that no task takes (9): it must be released.
    pub(super) fn part_with(&mut self, id: KeepId) -> Option<Arc<Hold>> {
        let hold = self.lose(id)?;
        self.forget(id);
        Some(hold)
    }
}

impl Keeper {
    /// A hold changes hands inside the process (9). Returns whether it did; otherwise it was lost meanwhile, or a
    /// shutdown has taken it over.
    pub(crate) fn hand_on(
        &self,
        id: KeepId,
        hold: &Arc<Hold>,
        (plan, caps): (RenewalPlan, HoldLimits),
        now: Moment,
    ) -> bool {
        let mut state = self.shared.state();
        if state.handed_over {
            return false;
        }
        let Some(kept) = state.kept.get_mut(&id) else { return false };
        if kept.lost || kept.hold.is_doubted() || hold.session.alive_until() == Moment::ZERO {
            drop(state);
            // No guard will release it, and the store may still keep it.
            self.shared.part_with(id);
            return false;
        }
        kept.tenure.hand_off(plan, caps, now);
        hold.may_last(kept.hold.may_last_until());
        kept.hold = hold.clone();
        kept.raise();
        hold.cap(kept.tenure.valid_until());
        let (due, place) = (kept.tenure.due(), kept.place);
        // An entry that is due too early is rescheduled then.
        if place.is_some_and(|place| place.is_by(due)) {
            return true;
        }
        let due = state.schedule(id);
        let early = due < state.armed;
        drop(state);
        if early {
            self.shared.bell.notify_one();
        }
        true
    }

    /// Requests tokens from the store at once, for the next waiter.
    pub(in crate::engine) fn call_for(&self, id: KeepId, call: Call) {
        self.shared.call_for(id, call);
    }

    /// Schedules a check of the lock entry of a hold that is kept for later acquisitions.
    pub(in crate::engine) fn watch_rest(&self, id: KeepId, until: Moment) {
        let mut state = self.shared.state();
        if state.watch_rest(id, until) {
            drop(state);
            self.shared.bell.notify_one();
        }
    }

    /// Releases a hold that no task takes.
    pub(in crate::engine) fn part_with(&self, id: KeepId) {
        self.shared.part_with(id);
    }
}

impl State {
    /// Returns whether that is earlier than the keeper would wake.
    fn watch_rest(&mut self, id: KeepId, until: Moment) -> bool {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost) else { return false };
        if let Some(before) = kept.rest_until.replace(until) {
            self.rests.remove(&(before, id));
        }
        self.rests.insert((until, id));
        until < self.armed
    }
}

impl Shared {
    /// Releases a hold that no task takes.
    pub(super) fn part_with(&self, id: KeepId) {
        let Some(hold) = self.state().part_with(id) else { return };
        let until = hold.may_last_until().max(self.environment.now() + self.timings.call);
        self.post(hold.lock.clone(), hold.claim.clone(), until, None);
        // It has no guard that the reason would reach.
        hold.lose(LostReason::Released);
    }

    /// Requests tokens from the store at once.
    fn call_for(&self, id: KeepId, call: Call) {
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(&id).filter(|kept| !kept.lost) else { return };
        let known = kept.call.get_or_insert_default();
        (known.lease, known.tell) = (known.lease.max(call.lease), known.tell || call.tell);
        kept.tenure.queue_request();
        state.schedule(id);
        drop(state);
        self.bell.notify_one();
    }

    /// Checks the lock entry of a hold that was kept for later acquisitions.
    pub(super) fn end_rest(&self, id: KeepId, hold: &Hold, now: Moment) {
        let Some(entry) = hold.entry() else { return self.part_with(id) };
        match entry.end_rest(now) {
            Rest::InUse => {}
            Rest::Until(until) => {
                // The time to wake was computed before.
                if self.state().watch_rest(id, until) {
                    self.bell.notify_one();
                }
            }
            Rest::Over => self.part_with(id),
        }
    }
}

impl KeeperHandle {
    /// A notification says that another process wants the lock whose hold has this token. It may be forged: then a
    /// hold kept for later acquisitions is returned to the store. Does not wait.
    pub(in crate::engine) fn wanted(&self, fence: FencingToken) {
        let Some(shared) = self.0.upgrade() else { return };
        let now = shared.environment.now();
        let of_it = (fence, KeepId(0))..=(fence, KeepId(u64::MAX));
        let known: Vec<_> = {
            let state = shared.state();
            let ids = state.by_fence.range(of_it).map(|(_, id)| *id);
            ids.filter_map(|id| Some((id, state.kept.get(&id)?.hold.clone()))).collect()
        };
        for (id, hold) in known {
            if hold.entry().is_some_and(|entry| entry.handle_wanted(&hold, now)) {
                shared.part_with(id);
            }
        }
    }

    /// A lock entry is gone: releases the hold that it kept.
    pub(in crate::engine) fn part_with(&self, id: KeepId) {
        if let Some(shared) = self.0.upgrade() {
            shared.part_with(id);
        }
    }
}
