//! Local hand-off: hands a hold whose guard was released to the next waiter, keeps it for later acquisitions, or
//! returns it to the store.
//!
//! A hold without a guard that stays in the process is *idle*. How often a hold may change hands, and with which
//! fencing tokens, is up to the core's [`Cohort`]; renewing it and consulting the store is up to the keeper.
//!
//! 1. An idle hold occupies its lock entry, so that no task sends a request meanwhile. It has no holder: the task at
//!    the front takes it, and owns it only once the keeper agrees.
//! 2. Exactly one party is responsible for returning an idle hold: the front; or, with an empty queue, the keeper,
//!    which checks the entry when the time is over; or the last task to leave the queue.
//! 3. A hold is handed off only to a request that it satisfies: same value, session, liveness and margin.
//! 4. While the store is consulted, the front only waits for the reply. It always comes, or the hold is lost.

use super::{CurrentHold, LockEntry, State, WaiterAction};
use crate::engine::hold::{AfterReserve, Hold, HoldEvents, IdleCheck, ReserveRequest, TrackingId};
use crate::engine::session::Session;
use leasehold_core::machine::cohort::{Cohort, HandoffDecision};
use leasehold_core::machine::contender::{AcquireTerms, Grant};
use leasehold_core::{FIRST_LEASE, HoldId, Liveness, Lock, LockMode, Moment, TokenBlock};
use std::sync::Arc;
use std::time::Duration;

/// What a release does with the lock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReleasePolicy {
    /// Set to leave the lock free at every n-th release by this process.
    pub(crate) free_every: Option<u32>,
    /// How long it is kept for later acquisitions of this process if the queue is empty.
    pub(crate) max_idle: Option<Duration>,
}

impl ReleasePolicy {
    /// Returns it to the store in any case.
    pub(crate) const TO_STORE: Self = Self { free_every: Some(1), max_idle: None };
}

/// Hand-off state of the hold that the store granted to this process.
pub(super) struct Handoff {
    pub(super) hold: HoldId,
    cohort: Cohort,
    /// Set while the hold is idle (1).
    idle: Option<TrackingId>,
    /// Set while the store is consulted (4).
    reserving: bool,
    /// Set from the store's reply until the hold is handed off.
    reserve_answered: bool,
    /// How long and since when it is kept with an empty queue.
    max_idle: Option<Duration>,
    idle_since: Moment,
    /// When the keeper checks the entry, if at all: never after an idle hold must be returned.
    check_at: Option<Moment>,
}

/// The follow-up actions for a hold that has become idle.
pub(in crate::engine) struct IdleActions {
    /// The request to send to the store.
    pub(in crate::engine) reserve: Option<ReserveRequest>,
    /// When the keeper must check the entry.
    pub(in crate::engine) check_at: Option<Moment>,
}

impl Handoff {
    /// State for a newly granted hold; `None` if this kind of hold is not handed off.
    pub(super) fn of(lock: &Lock, grant: &Grant, now: Moment, last_waiter: u64) -> Option<Self> {
        let is_plain = lock.kind.supports_handoff() && grant.claim.value.is_none();
        is_plain.then(|| Self {
            hold: grant.claim.hold,
            cohort: Cohort::new(now, grant.others_wait, last_waiter),
            idle: None,
            reserving: false,
            reserve_answered: false,
            max_idle: None,
            idle_since: now,
            check_at: None,
        })
    }

    /// Notifications that others wait may have been missed until now. An idle hold sends no request for that: the first
    /// waiter of another process polls every second, and each poll notifies this process.
    pub(super) const fn handle_missed_messages(&mut self, now: Moment) {
        self.cohort.handle_missed_messages(now);
        // The last reply was given before: the next task asks again, and does not release the hold.
        self.reserve_answered = false;
    }

    /// The request to send to the store, unless one is in flight.
    fn reserve(&mut self, lease: Option<Duration>) -> Option<ReserveRequest> {
        let in_flight = std::mem::replace(&mut self.reserving, true);
        (!in_flight).then_some(ReserveRequest { lease, notify_wanted: self.max_idle.is_some() })
    }
}

/// How much time a hold must have left for this lease: with less, it is extended before the hand-off.
fn min_remaining(lease: Duration) -> Duration {
    lease.min(FIRST_LEASE) * 9 / 10
}

/// Whether a hold satisfies these terms (3).
fn satisfies(hold: &Hold, terms: &AcquireTerms) -> bool {
    terms.value.is_none()
        && terms.mode == LockMode::Exclusive
        && (terms.liveness, terms.margin) == (hold.session.liveness, hold.margin())
        && terms.history == hold.history()
}

impl LockEntry {
    /// Keeps a released hold for the next waiter or for later acquisitions. `None` if it must be released at the
    /// store.
    pub(in crate::engine) fn make_idle(
        &self,
        hold: &Arc<Hold>,
        tracking: TrackingId,
        policy: ReleasePolicy,
        now: Moment,
    ) -> Option<IdleActions> {
        let mut state = self.state();
        let state = &mut *state;
        let current = state.holds.get(&hold.claim.hold)?;
        let is_held = Arc::ptr_eq(&current.hold, hold) && !current.releasing && now < hold.valid_until();
        let releases = state.releases.wrapping_add(1);
        let is_freed = policy.free_every.is_some_and(|every| releases.is_multiple_of(every.max(1)));
        if !is_held || is_freed || state.closed || hold.session.id != state.contender.session() {
            return None;
        }
        let handoff = state.handoff.as_mut().filter(|handoff| handoff.hold == hold.claim.hold)?;
        handoff.max_idle = policy.max_idle;
        let decision = match (state.queue.front_id(), state.queue.front(), policy.max_idle) {
            (Some(id), Some(front), _) if front.queue && satisfies(hold, front) => {
                handoff.cohort.decide(now, id)
            }
            (None, _, Some(_)) => handoff.cohort.decide_idle(),
            _ => HandoffDecision::Release,
        };
        let reserve = match decision {
            HandoffDecision::Release => return None,
            HandoffDecision::Reserve => handoff.reserve(None),
            HandoffDecision::HandOff => None,
        };
        hold.set_idle();
        // It is released from here on, whenever that is sent.
        hold.may_release(now);
        (handoff.idle, handoff.idle_since) = (Some(tracking), now);
        // Also with tasks in the queue, as they may leave it. The previous holder may have set a longer time.
        let until = policy.max_idle.map(|max_idle| now + max_idle);
        let check_at = until.filter(|until| handoff.check_at.is_none_or(|check_at| *until < check_at));
        handoff.check_at = check_at.or(handoff.check_at);
        state.releases = releases;
        state.queue.signal_front();
        Some(IdleActions { reserve, check_at })
    }

    /// Takes the idle hold for a new acquisition, if the queue is empty and the hold satisfies it.
    pub(in crate::engine) fn take_idle(
        &self,
        session: &Session,
        (liveness, margin): (Liveness, Duration),
        lease: Duration,
        now: Moment,
    ) -> Option<(Arc<Hold>, TrackingId, Option<ReserveRequest>)> {
        let mut state = self.state();
        let handoff = state.handoff.as_ref().filter(|_| state.queue.front().is_none() && !state.closed)?;
        let (tracking, hold) = (handoff.idle?, &state.holds.get(&handoff.hold)?.hold);
        let ends = hold.kept_until().min(hold.valid_until());
        let new_waiter = state.queue.last_id() + 1;
        let suits =
            hold.session.id == session.id && (hold.session.liveness, hold.margin()) == (liveness, margin);
        if !suits
            || now + min_remaining(lease) > ends
            || handoff.cohort.decide(now, new_waiter) != HandoffDecision::HandOff
        {
            return None;
        }
        let hold = hold.clone();
        let (hold, reserve) = state.hand_off(&hold, now)?;
        Some((hold, tracking, reserve))
    }

    /// Removes the idle hold: no acquisition will take it.
    pub(in crate::engine) fn remove_idle(&self) -> Option<TrackingId> {
        self.state().remove_idle()
    }
}

impl HoldEvents for LockEntry {
    fn remove_hold(&self, hold: &Hold) {
        Self::remove_hold(self, hold);
    }

    fn handle_reserved(
        &self,
        hold: &Hold,
        reserved: Option<(TokenBlock, bool)>,
        subscribed: bool,
        sent_at: Moment,
    ) -> AfterReserve {
        let mut state = self.state();
        let last_waiter = state.queue.last_id();
        let Some(handoff) = state.handoff.as_mut().filter(|handoff| handoff.hold == hold.claim.hold) else {
            return AfterReserve::Nothing;
        };
        (handoff.reserving, handoff.reserve_answered) = (false, true);
        match reserved {
            Some(reserved) => handoff.cohort.handle_reserved(reserved, subscribed, sent_at, last_waiter),
            None => handoff.cohort.handle_reserve_failed(),
        }
        state.queue.signal_front();
        if state.remove_unwanted_idle() {
            return AfterReserve::Release;
        }
        state.reserve_for_idle().map_or(AfterReserve::Nothing, AfterReserve::Request)
    }

    fn handle_wanted(&self, hold: &Hold, now: Moment) -> bool {
        let mut state = self.state();
        let last_waiter = state.queue.last_id();
        let Some(handoff) = state.handoff.as_mut().filter(|handoff| handoff.hold == hold.claim.hold) else {
            return false;
        };
        handoff.cohort.handle_wanted(now, last_waiter);
        state.remove_unwanted_idle()
    }

    fn check_idle(&self, now: Moment) -> IdleCheck {
        let mut state = self.state();
        let has_waiters = state.queue.front().is_some();
        let Some(handoff) = &mut state.handoff else { return IdleCheck::InUse };
        let until = match (handoff.idle, handoff.max_idle) {
            (Some(_), Some(max_idle)) if !has_waiters => handoff.idle_since + max_idle,
            _ => {
                handoff.check_at = None;
                return IdleCheck::InUse;
            }
        };
        if now < until {
            handoff.check_at = Some(until);
            return IdleCheck::Until(until);
        }
        let hold = handoff.hold;
        state.remove_hold(hold);
        IdleCheck::Over
    }
}

impl State {
    /// The next action of the front while a hold is idle.
    pub(super) fn poll_handoff(&mut self, id: u64, session: &Session, now: Moment) -> Option<WaiterAction> {
        let handoff = self.handoff.as_mut().filter(|_| self.queue.is_front(id))?;
        let (tracking, hold) = (handoff.idle?, self.holds.get(&handoff.hold)?.hold.clone());
        let terms = self.queue.front()?;
        let is_short = now + min_remaining(terms.lease) > hold.kept_until();
        let decision = match handoff.cohort.decide(now, id) {
            _ if hold.session.id != session.id || !satisfies(&hold, terms) => HandoffDecision::Release,
            HandoffDecision::HandOff if is_short => HandoffDecision::Reserve,
            decision => decision,
        };
        match decision {
            // The reply does not allow a hand-off.
            HandoffDecision::Reserve if handoff.reserve_answered && !handoff.reserving => {
                handoff.idle = None;
                Some(WaiterAction::ReleaseIdle(hold, tracking))
            }
            HandoffDecision::Release => {
                handoff.idle = None;
                Some(WaiterAction::ReleaseIdle(hold, tracking))
            }
            HandoffDecision::Reserve => {
                let lease = is_short.then_some(terms.lease);
                Some(WaiterAction::AwaitReserve(tracking, handoff.reserve(lease)))
            }
            HandoffDecision::HandOff => {
                self.queue.remove(id);
                let (hold, reserve) = self.hand_off(&hold, now)?;
                Some(WaiterAction::HandedOff(hold, tracking, reserve))
            }
        }
    }

    /// Hands the idle hold off with the next token. Returns the request to send to the store if tokens run low.
    fn hand_off(&mut self, hold: &Hold, now: Moment) -> Option<(Arc<Hold>, Option<ReserveRequest>)> {
        let handoff = self.handoff.as_mut()?;
        let fence = handoff.cohort.hand_off()?;
        (handoff.idle, handoff.reserve_answered) = (None, false);
        let has_next = self.queue.front().is_some() || handoff.max_idle.is_some();
        let reserve =
            if has_next && handoff.cohort.should_reserve(now) { handoff.reserve(None) } else { None };
        let next = Arc::new(hold.handed_off(fence));
        self.holds.insert(next.claim.hold, CurrentHold { hold: next.clone(), releasing: false });
        Some((next, reserve))
    }

    /// Removes an idle hold that must go back to the store. Returns whether there was one.
    fn remove_unwanted_idle(&mut self) -> bool {
        let Some(handoff) = &self.handoff else { return false };
        let is_unwanted = handoff.idle.is_some()
            && self.queue.front().is_none()
            && handoff.cohort.decide_idle() == HandoffDecision::Release;
        if is_unwanted {
            let hold = handoff.hold;
            self.remove_hold(hold);
        }
        is_unwanted
    }

    /// The request to send for a hold that is kept for later acquisitions, if any.
    fn reserve_for_idle(&mut self) -> Option<ReserveRequest> {
        let handoff = self.handoff.as_mut().filter(|_| self.queue.front().is_none())?;
        let is_sticky = handoff.idle.is_some() && handoff.max_idle.is_some();
        if is_sticky && handoff.cohort.decide_idle() == HandoffDecision::Reserve {
            handoff.reserve(None)
        } else {
            None
        }
    }

    /// The last task has left the queue: removes the idle hold that was meant for it (2).
    pub(super) fn take_unclaimed(&mut self) -> Option<TrackingId> {
        let handoff = self.handoff.as_ref().filter(|_| self.queue.front().is_none())?;
        // The keeper takes care of a hold that is kept for later acquisitions, if the store notifies this process of
        // other waiters, or the request for that is in flight.
        let is_notified = handoff.reserving || handoff.cohort.decide_idle() == HandoffDecision::HandOff;
        let is_sticky = handoff.max_idle.is_some() && handoff.check_at.is_some() && is_notified;
        if is_sticky { None } else { self.remove_idle() }
    }

    fn remove_idle(&mut self) -> Option<TrackingId> {
        let handoff = self.handoff.as_ref()?;
        let (tracking, hold) = (handoff.idle?, handoff.hold);
        self.remove_hold(hold);
        Some(tracking)
    }
}
