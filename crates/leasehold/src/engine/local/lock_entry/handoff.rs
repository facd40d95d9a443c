//! Local hand-off: hands a hold whose guard was released to the next waiter, keeps it for later acquisitions, or
//! returns it to the store.
//!
//! How often a hold may change hands, and with which fencing tokens, is up to the core's [`Cohort`]; renewing it and
//! consulting the store is up to the keeper.
//!
//! 1. A kept hold occupies its lock entry, so that no task sends a request meanwhile. It has no holder: the task at
//!    the front takes it, and owns it only once the keeper agrees.
//! 2. Exactly one party is responsible for returning a kept hold: the front; or, with an empty queue, the keeper,
//!    which checks the entry when the time is over; or the last task to leave the queue.
//! 3. A hold is handed on only to a request that it satisfies: same value, session and liveness.
//! 4. While the store is consulted, the front only waits for the reply. It always comes, or the hold is lost.

use super::{CurrentHold, LockEntry, State, WaiterAction};
use crate::engine::hold::{Hold, HoldEvents};
use crate::engine::keeper::keep_id::KeepId;
use crate::engine::local::reservation::{Call, Heard, Rest};
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
    pub(crate) keep_for: Option<Duration>,
}

impl ReleasePolicy {
    /// Returns it to the store in any case.
    pub(crate) const TO_STORE: Self = Self { free_every: Some(1), keep_for: None };
}

/// Hand-off state of the hold that the store granted to this process.
pub(in crate::engine) struct Handoff {
    pub(in crate::engine) hold: HoldId,
    cohort: Cohort,
    /// Set while the hold is kept (1).
    kept: Option<KeepId>,
    /// Set while the store is consulted (4).
    calling: bool,
    /// Set from the store's reply until the hold is handed on.
    answered: bool,
    /// How long and since when it is kept with an empty queue.
    keep_for: Option<Duration>,
    rests_since: Moment,
    /// When the keeper checks the entry, if at all: never after a kept hold must be returned.
    watched: Option<Moment>,
}

/// The follow-up actions for a hold that is kept.
pub(in crate::engine) struct Passed {
    /// The request to send to the store.
    pub(in crate::engine) call: Option<Call>,
    /// When the keeper must check the entry.
    pub(in crate::engine) watch: Option<Moment>,
}

impl Handoff {
    /// State for a newly granted hold; `None` if this kind of hold is not handed on.
    pub(in crate::engine) fn of(lock: &Lock, grant: &Grant, now: Moment, last_in_line: u64) -> Option<Self> {
        let is_plain = lock.kind.supports_handoff() && grant.claim.value.is_none();
        is_plain.then(|| Self {
            hold: grant.claim.hold,
            cohort: Cohort::new(now, grant.others_wait, last_in_line),
            kept: None,
            calling: false,
            answered: false,
            keep_for: None,
            rests_since: now,
            watched: None,
        })
    }

    /// The request to send to the store, unless one is in flight.
    fn call(&mut self, lease: Option<Duration>) -> Option<Call> {
        let asked = std::mem::replace(&mut self.calling, true);
        (!asked).then_some(Call { lease, tell: self.keep_for.is_some() })
    }
}

/// How much time a hold must have left for this lease: with less, it is extended before the hand-off.
fn least(lease: Duration) -> Duration {
    lease.min(FIRST_LEASE) * 9 / 10
}

/// Whether a hold satisfies these terms (3).
fn fits(hold: &Hold, terms: &AcquireTerms) -> bool {
    terms.value.is_none() && terms.mode == LockMode::Exclusive && terms.liveness == hold.session.life
}

impl LockEntry {
    /// Keeps a released hold for the next waiter or for later acquisitions. `None` if it must be released at the
    /// store.
    pub(in crate::engine) fn pass_on(
        &self,
        hold: &Arc<Hold>,
        keep: KeepId,
        parting: ReleasePolicy,
        now: Moment,
    ) -> Option<Passed> {
        let mut state = self.state();
        let state = &mut *state;
        let occupant = state.occupants.get(&hold.claim.hold)?;
        let is_there = Arc::ptr_eq(&occupant.hold, hold) && !occupant.leaving && now < hold.valid_until();
        let releases = state.releases.wrapping_add(1);
        let lies_free = parting.free_every.is_some_and(|every| releases.is_multiple_of(every.max(1)));
        if !is_there || lies_free || state.closed || hold.session.id != state.contender.session() {
            return None;
        }
        let passing = state.passing.as_mut().filter(|passing| passing.hold == hold.claim.hold)?;
        passing.keep_for = parting.keep_for;
        let next = match (state.line.front_id(), state.line.front(), parting.keep_for) {
            (Some(id), Some(front), _) if front.queue && fits(hold, front) => passing.cohort.decide(now, id),
            (None, _, Some(_)) => passing.cohort.decide_idle(),
            _ => HandoffDecision::Release,
        };
        let call = match next {
            HandoffDecision::Release => return None,
            HandoffDecision::Reserve => passing.call(None),
            HandoffDecision::HandOff => None,
        };
        hold.pass();
        (passing.kept, passing.rests_since) = (Some(keep), now);
        // Also with tasks in the queue, as they may leave it. The previous holder may have asked for a longer time.
        let until = parting.keep_for.map(|keep_for| now + keep_for);
        let watch = until.filter(|until| passing.watched.is_none_or(|watched| *until < watched));
        passing.watched = watch.or(passing.watched);
        state.releases = releases;
        state.signal_front();
        Some(Passed { call, watch })
    }

    /// Takes a kept hold for a new acquisition, if the queue is empty and the hold satisfies it.
    pub(in crate::engine) fn take_kept(
        &self,
        session: &Session,
        life: Liveness,
        lease: Duration,
        now: Moment,
    ) -> Option<(Arc<Hold>, KeepId, Option<Call>)> {
        let mut state = self.state();
        let passing = state.passing.as_ref().filter(|_| state.line.front().is_none() && !state.closed)?;
        let (keep, hold) = (passing.kept?, &state.occupants.get(&passing.hold)?.hold);
        let ends = hold.kept_until().min(hold.valid_until());
        let has_come = state.line.last_id() + 1;
        let fits = hold.session.id == session.id && hold.session.life == life;
        if !fits
            || now + least(lease) > ends
            || passing.cohort.decide(now, has_come) != HandoffDecision::HandOff
        {
            return None;
        }
        let hold = hold.clone();
        let (hold, call) = state.hand_out(&hold, now)?;
        Some((hold, keep, call))
    }

    /// Takes the hold that is kept for later acquisitions: none will come.
    pub(in crate::engine) fn part(&self) -> Option<KeepId> {
        self.state().part()
    }
}

impl HoldEvents for LockEntry {
    fn vacate(&self, hold: &Hold) {
        Self::vacate(self, hold);
    }

    fn handle_reserved(
        &self,
        hold: &Hold,
        reserved: Option<(TokenBlock, bool)>,
        told: bool,
        sent_at: Moment,
    ) -> Heard {
        let mut state = self.state();
        let last_in_line = state.line.last_id();
        let Some(passing) = state.passing.as_mut().filter(|passing| passing.hold == hold.claim.hold) else {
            return Heard::Noted;
        };
        (passing.calling, passing.answered) = (false, true);
        match reserved {
            Some(reserved) => passing.cohort.handle_reserved(reserved, told, sent_at, last_in_line),
            None => passing.cohort.handle_refused(),
        }
        state.signal_front();
        if state.is_kept_in_vain() {
            return Heard::GiveBack;
        }
        state.ask_to_keep().map_or(Heard::Noted, Heard::Ask)
    }

    fn handle_wanted(&self, hold: &Hold, now: Moment) -> bool {
        let mut state = self.state();
        let last_in_line = state.line.last_id();
        let Some(passing) = state.passing.as_mut().filter(|passing| passing.hold == hold.claim.hold) else {
            return false;
        };
        passing.cohort.handle_wanted(now, last_in_line);
        state.is_kept_in_vain()
    }

    fn end_rest(&self, now: Moment) -> Rest {
        let mut state = self.state();
        let in_line = state.line.front().is_some();
        let Some(passing) = &mut state.passing else { return Rest::InUse };
        let until = match (passing.kept, passing.keep_for) {
            (Some(_), Some(keep_for)) if !in_line => passing.rests_since + keep_for,
            _ => {
                passing.watched = None;
                return Rest::InUse;
            }
        };
        if now < until {
            passing.watched = Some(until);
            return Rest::Until(until);
        }
        let hold = passing.hold;
        state.put_out(hold);
        Rest::Over
    }
}

impl State {
    /// The next action of the front while a hold is kept here.
    pub(in crate::engine) fn turn_of_the_next(
        &mut self,
        id: u64,
        session: &Session,
        now: Moment,
    ) -> Option<WaiterAction> {
        let passing = self.passing.as_mut().filter(|_| self.line.is_front(id))?;
        let (keep, hold) = (passing.kept?, self.occupants.get(&passing.hold)?.hold.clone());
        let terms = self.line.front()?;
        let is_short = now + least(terms.lease) > hold.kept_until();
        let next = match passing.cohort.decide(now, id) {
            _ if hold.session.id != session.id || !fits(&hold, terms) => HandoffDecision::Release,
            HandoffDecision::HandOff if is_short => HandoffDecision::Reserve,
            next => next,
        };
        match next {
            // The reply does not allow a hand-off.
            HandoffDecision::Reserve if passing.answered && !passing.calling => {
                passing.kept = None;
                Some(WaiterAction::GiveBack(hold, keep))
            }
            HandoffDecision::Release => {
                passing.kept = None;
                Some(WaiterAction::GiveBack(hold, keep))
            }
            HandoffDecision::Reserve => {
                let lease = is_short.then_some(terms.lease);
                Some(WaiterAction::Call(keep, passing.call(lease)))
            }
            HandoffDecision::HandOff => {
                self.line.remove(id);
                let (hold, call) = self.hand_out(&hold, now)?;
                Some(WaiterAction::HandedOn(hold, keep, call))
            }
        }
    }

    /// Hands the kept hold on with the next token. Returns the request to send to the store if tokens run low.
    fn hand_out(&mut self, hold: &Hold, now: Moment) -> Option<(Arc<Hold>, Option<Call>)> {
        let passing = self.passing.as_mut()?;
        let fence = passing.cohort.hand_off()?;
        (passing.kept, passing.answered) = (None, false);
        let goes_on = self.line.front().is_some() || passing.keep_for.is_some();
        let call = if goes_on && passing.cohort.should_reserve(now) { passing.call(None) } else { None };
        let next = Arc::new(hold.handed_on(fence));
        self.occupants.insert(next.claim.hold, CurrentHold { hold: next.clone(), leaving: false });
        Some((next, call))
    }

    /// Whether a hold is kept in vain; if so, removes it.
    fn is_kept_in_vain(&mut self) -> bool {
        let Some(passing) = &self.passing else { return false };
        let in_vain = passing.kept.is_some()
            && self.line.front().is_none()
            && passing.cohort.decide_idle() == HandoffDecision::Release;
        if in_vain {
            let hold = passing.hold;
            self.put_out(hold);
        }
        in_vain
    }

    /// The request to send for a hold that is kept for later acquisitions, if any.
    fn ask_to_keep(&mut self) -> Option<Call> {
        let passing = self.passing.as_mut().filter(|_| self.line.front().is_none())?;
        let is_kept = passing.kept.is_some() && passing.keep_for.is_some();
        if is_kept && passing.cohort.decide_idle() == HandoffDecision::Reserve {
            passing.call(None)
        } else {
            None
        }
    }

    /// The last task has left the queue: returns the hold that was kept for it (2).
    pub(in crate::engine) fn unclaimed_keep(&mut self) -> Option<KeepId> {
        let passing = self.passing.as_ref().filter(|_| self.line.front().is_none())?;
        // The keeper takes care of a hold that is to be kept, if the store notifies this process of other waiters, or
        // has been asked to.
        let is_told = passing.calling || passing.cohort.decide_idle() == HandoffDecision::HandOff;
        let is_seen_to = passing.keep_for.is_some() && passing.watched.is_some() && is_told;
        if is_seen_to { None } else { self.part() }
    }

    /// Removes the kept hold.
    pub(in crate::engine) fn part(&mut self) -> Option<KeepId> {
        let passing = self.passing.as_ref()?;
        let (keep, hold) = (passing.kept?, passing.hold);
        self.put_out(hold);
        Some(keep)
    }
}
