//! Keeping a lock: when a hold is extended, and when it ends.
//!
//! A [`RenewalSchedule`] is one hold as its client sees it. The keeper polls it, sends what it requests, and feeds
//! back the outcome.
//!
//! 1. A hold is valid until `valid_until`, which counts from *before* the request was sent that granted or
//!    extended it, less [`drift`]. The deadline itself ends the hold, whatever the network does.
//! 2. `valid_until` never goes back: an extend only raises it.
//! 3. `valid_until` never exceeds the limit of the hold, whatever lease was requested and whichever caller requested it. A
//!    hold that has reached its limit is released when it ends, so that no client has to wait for the rest of its lease.

use crate::machine::jitter::{Backoff, Jitter, Random};
use crate::{FIRST_LEASE, Moment, RECORD_TTL, drift};
use std::time::Duration;

/// Pauses after an extend without a reply: the first, and the longest.
const FAULT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The delay before a hold is first extended, where its lease is longer than the first lease. Slightly later than the grant,
/// so that a hold that is released sooner costs no extra request; early, so that an outage that begins then is bridged by
/// the whole lease.
const FIRST_EXTEND_DELAY: Duration = Duration::from_millis(100);

/// The minimum interval between two verifications of a hold: the notification that causes them may be forged.
const MIN_VERIFY_INTERVAL: Duration = Duration::from_millis(250);

/// How a hold is kept.
///
/// See [`RenewalSchedule`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalPlan {
    /// Renewed every third of the lease for as long as it is held.
    Renew {
        /// How long it lasts without a renewal.
        lease: Duration,
    },
    /// It ends at this moment, and is extended once to reach it.
    Until {
        /// The end.
        end: Moment,
    },
}

/// Limits how long a hold is kept, whichever caller extends it.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_core::machine::renewal::{HoldLimits, RenewalAction, RenewalPlan, RenewalSchedule};
/// use std::time::Duration;
///
/// let at = |s: u64| Moment::from_micros(s * 1_000_000);
/// let (lease, limits) = (Duration::from_secs(30), HoldLimits { end: Some(at(12)), max_renewals: None });
/// let mut schedule = RenewalSchedule::with_limits(RenewalPlan::Renew { lease }, limits, at(3), at(0));
///
/// let RenewalAction::Extend { lease, .. } = schedule.poll(at(1), Duration::ZERO) else { panic!("it is due") };
/// assert!(lease < Duration::from_secs(12)); // little more than what is left until the limit
/// schedule.handle_extended(at(1), lease, false);
/// assert_eq!(schedule.valid_until(), at(12));
/// assert_eq!(schedule.poll(at(12), Duration::ZERO), RenewalAction::Release);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HoldLimits {
    /// Set if the hold ends at this moment at the latest.
    pub end: Option<Moment>,
    /// Set to the maximum number of renewals. Reaching the full lease for the first time, after the short
    /// first lease, does not count.
    pub max_renewals: Option<u32>,
}

/// The lease that the user requests in an explicit extend.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_core::machine::renewal::{HoldLimits, RenewalPlan, RenewalSchedule, ExtendRequest};
/// use std::time::Duration;
///
/// let at = |s: u64| Moment::from_micros(s * 1_000_000);
/// let (lease, limits) = (Duration::from_secs(30), HoldLimits { end: Some(at(12)), max_renewals: None });
/// let schedule = RenewalSchedule::with_limits(RenewalPlan::Renew { lease }, limits, at(3), at(0));
/// assert_eq!(schedule.allowed_lease(at(2), ExtendRequest::Exactly(lease)), Err(Duration::from_secs(10)));
/// assert!(schedule.allowed_lease(at(2), ExtendRequest::UpTo(lease)).is_ok_and(|lease| lease < Duration::from_secs(11)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendRequest {
    /// The hold must last that long from now.
    Exactly(Duration),
    /// The hold lasts that long from now, or as long as its limit allows.
    UpTo(Duration),
}

/// What to do for a hold.
///
/// See [`RenewalSchedule`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalAction {
    /// Send an extend, and pass back its outcome.
    Extend {
        /// How long the hold should last from now at least.
        lease: Duration,
        /// Set if the extend should also keep the record beside the lock.
        keep_record: bool,
    },
    /// Send the [queued request](RenewalSchedule::queue_request), and pass the outcome to [`RenewalSchedule::handle_request_done`].
    SendRequest,
    /// Nothing to do before this moment.
    Sleep(Moment),
    /// The hold is over: its deadline has passed.
    Expired,
    /// The hold is over because it has reached its limit: release it at the store.
    Release,
}

/// One hold as its client sees it.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_core::machine::renewal::{RenewalAction, RenewalPlan, RenewalSchedule};
/// use std::time::Duration;
///
/// let at = |s: u64| Moment::from_micros(s * 1_000_000);
/// let lease = Duration::from_secs(30);
/// let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease }, at(3), at(0));
///
/// assert_eq!(schedule.due().since(at(0)), Duration::from_millis(100)); // a hold that is released sooner is never extended
/// assert_eq!(schedule.poll(at(1), Duration::ZERO), RenewalAction::Extend { lease, keep_record: false });
/// schedule.handle_extended(at(1), lease, false);
/// assert_eq!(schedule.due(), at(11)); // a third of the lease after the last renewal
/// assert_eq!(schedule.poll(at(31), Duration::ZERO), RenewalAction::Expired); // known without a reply
/// ```
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
pub struct RenewalSchedule {
    plan: RenewalPlan,
    valid_until: Moment,
    /// For how long it was valid after the request that granted or last lengthened it.
    valid_for: Duration,
    /// Until when the store is known to keep the hold, even if its plan or its limit ends it before.
    kept_until: Moment,
    /// When to extend; `None` once a fixed lease has been reached.
    extend_at: Option<Moment>,
    in_flight: bool,
    /// Set while an extend that verifies the hold is pending. It is sent also if it lengthens nothing, and again until it
    /// has a reply.
    verify_pending: bool,
    /// Set while such an extend is in flight.
    verify_in_flight: bool,
    /// When the last such extend was sent.
    verified_at: Moment,
    /// When the renewal is due that a verification goes before, if the number of renewals is limited: until then a
    /// verification is none.
    renew_at: Option<Moment>,
    /// Set while another request about the hold waits to be sent.
    request_queued: bool,
    faults: u32,
    record_kept_at: Moment,
    limits: HoldLimits,
    /// Set once the full lease was granted: from then on, every extend is a renewal.
    full_lease_granted: bool,
}

impl RenewalSchedule {
    /// A hold that was granted with a short first lease, and is valid until `valid_until`.
    pub fn new(plan: RenewalPlan, valid_until: Moment, now: Moment) -> Self {
        Self::with_limits(plan, HoldLimits::default(), valid_until, now)
    }

    /// The same with limits.
    pub fn with_limits(plan: RenewalPlan, limits: HoldLimits, valid_until: Moment, now: Moment) -> Self {
        let kept_until = valid_until;
        let valid_until = limits.end.map_or(valid_until, |end| end.min(valid_until));
        let mut schedule = Self {
            plan,
            valid_until,
            valid_for: valid_until.since(now),
            kept_until,
            extend_at: None,
            in_flight: false,
            verify_pending: false,
            verify_in_flight: false,
            verified_at: Moment::ZERO,
            renew_at: None,
            request_queued: false,
            faults: 0,
            record_kept_at: now,
            limits,
            full_lease_granted: !matches!(plan, RenewalPlan::Renew { lease } if lease > FIRST_LEASE),
        };
        match plan {
            RenewalPlan::Renew { lease } => {
                // A third of what is left, in case the grant arrived late.
                let third = (lease.min(FIRST_LEASE) / 3).min(valid_until.since(now) / 3);
                let delay = if lease > FIRST_LEASE { third.min(FIRST_EXTEND_DELAY) } else { third };
                schedule.extend_at = (!schedule.is_at_limit()).then_some(now + delay);
            }
            RenewalPlan::Until { end } => {
                let end = limits.end.map_or(end, |limit| limit.min(end));
                schedule.plan = RenewalPlan::Until { end };
                let soon = FIRST_EXTEND_DELAY.min(valid_until.since(now) / 3);
                schedule.extend_at = schedule.falls_short(valid_until, end, now).then_some(now + soon);
                schedule.valid_until = valid_until.min(end);
            }
        }
        schedule
    }

    /// Defers the first extend to a third of the first lease: for a hold whose session has to begin for it, so that a hold
    /// that is released within a second costs no session.
    ///
    /// ```
    /// use leasehold_core::Moment;
    /// use leasehold_core::machine::renewal::{RenewalPlan, RenewalSchedule};
    /// use std::time::Duration;
    ///
    /// let at = |ms: u64| Moment::from_micros(ms * 1_000);
    /// let plan = RenewalPlan::Renew { lease: Duration::from_secs(30) };
    /// let new = || RenewalSchedule::new(plan, at(3_000), at(0));
    /// assert_eq!((new().due(), new().defer_first_extend(at(0)).due()), (at(100), at(1_000)));
    /// ```
    #[must_use]
    pub fn defer_first_extend(mut self, now: Moment) -> Self {
        let third = now + self.valid_for / 3;
        self.extend_at = self.extend_at.map(|at| at.max(third));
        self
    }

    /// Until when the hold is valid.
    pub const fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Until when the store is known to keep the hold: the validity for the next task that gets it.
    pub const fn kept_until(&self) -> Moment {
        self.kept_until
    }

    /// Hands the hold off to another task of the process, with its own plan and limits. Requests that are in flight
    /// continue.
    ///
    /// ```
    /// use leasehold_core::Moment;
    /// use leasehold_core::machine::renewal::{HoldLimits, RenewalAction, RenewalPlan, RenewalSchedule};
    /// use std::time::Duration;
    ///
    /// let at = |s: u64| Moment::from_micros(s * 1_000_000);
    /// let lease = Duration::from_secs(30);
    /// let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease }, at(3), at(0));
    /// assert!(matches!(schedule.poll(at(1), Duration::ZERO), RenewalAction::Extend { .. }));
    /// schedule.handle_extended(at(1), lease, false);
    ///
    /// schedule.hand_off(RenewalPlan::Until { end: at(7) }, HoldLimits::default(), at(5));
    /// assert_eq!((schedule.valid_until(), schedule.kept_until() > at(30)), (at(7), true));
    /// schedule.hand_off(RenewalPlan::Renew { lease }, HoldLimits::default(), at(6));
    /// assert_eq!(schedule.valid_until(), schedule.kept_until());
    /// ```
    pub fn hand_off(&mut self, plan: RenewalPlan, limits: HoldLimits, now: Moment) {
        let mut next = Self::with_limits(plan, limits, self.kept_until, now);
        if let RenewalPlan::Renew { lease } = plan
            && !next.is_at_limit()
        {
            // Renewed every third of the lease, however often it is handed off.
            let due = self.kept_until - lease / 3 * 2;
            next.extend_at = Some(if due > now { due } else { now });
            next.full_lease_granted |= due > now;
        }
        if self.verify_pending || self.verify_in_flight {
            next.renew_at = next.extend_at.filter(|_| next.counts_renewals());
        }
        if self.verify_pending {
            next.extend_at = self.extend_at;
        }
        (next.verify_pending, next.verify_in_flight, next.verified_at) =
            (self.verify_pending, self.verify_in_flight, self.verified_at);
        next.request_queued = self.request_queued;
        (next.in_flight, next.faults, next.record_kept_at) =
            (self.in_flight, self.faults, self.record_kept_at);
        *self = next;
    }

    /// Schedules a request about the hold that does not concern its lease: [`RenewalAction::SendRequest`] follows at once, or
    /// as soon as no other request about the hold is in flight.
    pub const fn queue_request(&mut self) {
        self.request_queued = true;
    }

    /// Whether a request is queued and not sent yet.
    pub const fn has_queued_request(&self) -> bool {
        self.request_queued
    }

    /// Handles the outcome of a queued request. If the request extended the hold by `lease` from `sent_at`, only the next
    /// task that gets the hold benefits: this is no renewal.
    pub fn handle_request_done(&mut self, sent_at: Moment, lease: Option<Duration>) {
        self.in_flight = false;
        if let Some(lease) = lease {
            self.kept_until = self.kept_until.max(sent_at + lease - drift(lease));
        }
    }

    /// Whether [`poll`](Self::poll) asks for a request now.
    pub fn is_request_due(&self, now: Moment, batch_window: Duration) -> bool {
        now < self.valid_until && (self.is_queued_request_due() || self.is_extend_due(now, batch_window))
    }

    const fn is_queued_request_due(&self) -> bool {
        self.request_queued && !self.in_flight
    }

    fn is_extend_due(&self, now: Moment, batch_window: Duration) -> bool {
        !self.in_flight && self.extend_at.is_some_and(|at| at <= now + batch_window)
    }

    /// What to do now. An extend that is due within `batch_window` may be sent already, to fill a batch. A
    /// [`RenewalAction::Extend`] counts as sent.
    pub fn poll(&mut self, now: Moment, batch_window: Duration) -> RenewalAction {
        if now >= self.valid_until {
            return if self.ends_by_limit() { RenewalAction::Release } else { RenewalAction::Expired };
        }
        if self.is_queued_request_due() {
            (self.request_queued, self.in_flight) = (false, true);
            return RenewalAction::SendRequest;
        }
        if self.is_extend_due(now, batch_window) {
            self.in_flight = true;
            self.verify_in_flight = std::mem::take(&mut self.verify_pending);
            if self.verify_in_flight {
                self.verified_at = now;
            }
            return self.extend(now);
        }
        RenewalAction::Sleep(self.due())
    }

    /// When there is something to do next.
    pub fn due(&self) -> Moment {
        if self.is_queued_request_due() {
            return Moment::ZERO;
        }
        let extend_at = self.extend_at.filter(|_| !self.in_flight);
        extend_at.map_or(self.valid_until, |at| at.min(self.valid_until))
    }

    /// The hold was extended, by a request that was sent at `sent_at`.
    pub fn handle_extended(&mut self, sent_at: Moment, lease: Duration, kept_record: bool) {
        let has_verified = std::mem::take(&mut self.verify_in_flight);
        self.in_flight = false;
        self.faults = 0;
        if kept_record {
            self.record_kept_at = sent_at;
        }
        if let Some(renew_at) = self.renew_at.filter(|renew_at| has_verified && sent_at < *renew_at) {
            self.kept_until = self.kept_until.max(sent_at + lease - drift(lease));
            if !self.verify_pending {
                (self.extend_at, self.renew_at) = (Some(renew_at), None);
            }
            return;
        }
        self.renew_at = None;
        if let RenewalPlan::Renew { lease } = self.plan {
            self.set_due(Some(sent_at + lease / 3));
        }
        // An extend that reaches a fixed lease is no renewal.
        if matches!(self.plan, RenewalPlan::Until { .. }) || self.count_renewal(lease) {
            self.extend_validity(sent_at, lease);
        }
        self.stop_at_limit();
    }

    /// Verifies with the store that the hold still exists: extends it at once, and once more if an extend is
    /// in flight, because that one may have been executed before. This does not lengthen a fixed lease, and is no renewal
    /// where the number of renewals is limited, unless one is due.
    ///
    /// Repeated calls cause at most a few extends per second, or as many as the renewals need anyway.
    pub fn verify_soon(&mut self, now: Moment) {
        if std::mem::replace(&mut self.verify_pending, true) {
            return;
        }
        let pause = match self.plan {
            RenewalPlan::Renew { lease } => MIN_VERIFY_INTERVAL.min(lease / 3),
            RenewalPlan::Until { .. } => MIN_VERIFY_INTERVAL,
        };
        let at = if self.verified_at == Moment::ZERO { now } else { now.max(self.verified_at + pause) };
        // A renewal that is due earlier is not delayed. An extend in flight is no longer due.
        let due = self.extend_at.filter(|_| !self.in_flight);
        if self.renew_at.is_none() {
            self.renew_at = due.filter(|_| self.counts_renewals());
        }
        self.extend_at = Some(due.map_or(at, |due| due.min(at)));
    }

    /// Whether an immediate extend is pending and not sent yet.
    pub const fn is_verification_pending(&self) -> bool {
        self.verify_pending
    }

    /// The user extended the hold explicitly: a fixed lease now ends then, if that is later.
    pub fn handle_extended_by_user(&mut self, sent_at: Moment, lease: Duration) {
        let end = sent_at + lease;
        let lengthens = match self.plan {
            RenewalPlan::Renew { .. } => end - drift(lease) > self.valid_until,
            RenewalPlan::Until { end: given } => end > given,
        };
        if lengthens && !self.count_renewal(lease) {
            return;
        }
        let end = self.limits.end.map_or(end, |limit| limit.min(end));
        if let RenewalPlan::Until { end: given } = &mut self.plan {
            *given = end.max(*given);
        }
        self.extend_validity(sent_at, lease);
        self.stop_at_limit();
    }

    /// The moment beyond which nothing extends the hold any more, if it has a limit (3).
    pub fn latest_end(&self) -> Option<Moment> {
        if self.limits.max_renewals != Some(0) || !self.full_lease_granted {
            return self.limits.end;
        }
        match self.plan {
            RenewalPlan::Renew { .. } => Some(self.valid_until),
            RenewalPlan::Until { end } => Some(end),
        }
    }

    /// Whether nothing extends the hold any more.
    pub fn is_at_limit(&self) -> bool {
        self.latest_end().is_some_and(|latest_end| latest_end <= self.valid_until)
    }

    /// The moment from which on less than `left` remains of the hold, as far as that is known.
    ///
    /// If nothing extends the hold any more, that is `left` before its end. Otherwise an extend is due, and the hold is in
    /// danger only once half of the time is over for which the last one, or the grant, was valid: `left` counts as that
    /// much at most. The end of a fixed lease and a limit count in full from the beginning.
    ///
    /// ```
    /// use leasehold_core::Moment;
    /// use leasehold_core::machine::renewal::{RenewalPlan, RenewalSchedule};
    /// use std::time::Duration;
    ///
    /// let (at, s) = (|s: u64| Moment::from_micros(s * 1_000_000), Duration::from_secs);
    /// let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: s(30) }, at(4), at(0));
    /// assert_eq!((schedule.warn_at(s(1)), schedule.warn_at(s(20))), (at(3), at(2)));
    /// schedule.handle_extended(at(1), s(30), false);
    /// let until = schedule.valid_until();
    /// assert_eq!(schedule.warn_at(s(10)), until - s(10));
    /// assert_eq!(schedule.warn_at(s(20)), until - until.since(at(1)) / 2);
    /// ```
    pub fn warn_at(&self, left: Duration) -> Moment {
        let (end, is_last, lease) = match self.plan {
            RenewalPlan::Renew { lease } => (self.latest_end(), self.is_at_limit(), lease),
            RenewalPlan::Until { end } => {
                // No other extend follows one that has nearly reached the end.
                let nearly = self.valid_until + drift(self.valid_for) + self.valid_for / 20;
                (Some(end), nearly >= end, self.valid_for)
            }
        };
        if is_last {
            return self.valid_until - left;
        }
        let in_danger = self.valid_until - left.min(self.valid_for.min(lease) / 2);
        end.map_or(in_danger, |end| in_danger.min(end - left))
    }

    /// The lease that an extend by the user may request. If the extend would have no effect, or not the
    /// requested one, returns the time that is left until the limit.
    pub fn allowed_lease(&self, now: Moment, request: ExtendRequest) -> Result<Duration, Duration> {
        let (ExtendRequest::Exactly(lease) | ExtendRequest::UpTo(lease)) = request;
        let Some(latest_end) = self.latest_end() else { return Ok(lease) };
        let too_much = match request {
            ExtendRequest::Exactly(lease) => now + lease > latest_end,
            ExtendRequest::UpTo(_) => self.is_at_limit(),
        };
        if too_much { Err(latest_end.since(now)) } else { Ok(self.up_to_limit(now, lease)) }
    }

    /// The lease to request now so that the hold is valid until its limit; less than `lease` only if the limit is closer.
    fn up_to_limit(&self, now: Moment, lease: Duration) -> Duration {
        let Some(end) = self.limits.end else { return lease };
        // Compensates for what `drift` subtracts.
        let left = end.since(now);
        lease.min((left + Duration::from_millis(2)) / 99 * 100 + Duration::from_millis(1))
    }

    /// Counts a renewal; false if none is left.
    fn count_renewal(&mut self, lease: Duration) -> bool {
        if let (false, RenewalPlan::Renew { lease: full }) = (self.full_lease_granted, self.plan) {
            self.full_lease_granted = lease >= full;
            return true;
        }
        match &mut self.limits.max_renewals {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    /// Stops extends that would have no effect (3), except one that verifies the hold.
    fn stop_at_limit(&mut self) {
        if self.is_at_limit() && !self.verify_pending {
            self.extend_at = None;
        }
    }

    /// Whether the hold currently ends by a limit, and not with its lease.
    pub fn ends_by_limit(&self) -> bool {
        match self.plan {
            RenewalPlan::Renew { .. } => self.is_at_limit(),
            RenewalPlan::Until { end } => self.limits.end.is_some_and(|limit| limit <= end),
        }
    }

    fn extend_validity(&mut self, sent_at: Moment, lease: Duration) {
        let valid_until = sent_at + lease - drift(lease);
        self.kept_until = self.kept_until.max(valid_until);
        let valid_until = self.limits.end.map_or(valid_until, |limit| limit.min(valid_until));
        match self.plan {
            // A lease that lengthens nothing does not delay the renewal.
            RenewalPlan::Renew { .. } if valid_until <= self.valid_until => {}
            RenewalPlan::Renew { lease: full } => self.set_due(Some(sent_at + full.min(lease) / 3)),
            RenewalPlan::Until { end } if self.falls_short(valid_until, end, sent_at) => {}
            RenewalPlan::Until { .. } => self.set_due(None),
        }
        let end = if let RenewalPlan::Until { end } = self.plan { end } else { valid_until };
        let valid_until = valid_until.min(end);
        if valid_until > self.valid_until {
            (self.valid_until, self.valid_for) = (valid_until, valid_until.since(sent_at));
        }
    }

    /// Sets when the next extend is due. A verification that is pending is not delayed: the extends sent so far may have
    /// been executed before it was requested.
    fn set_due(&mut self, due: Option<Moment>) {
        if (self.verify_pending || self.verify_in_flight) && self.counts_renewals() {
            self.renew_at = due;
        }
        if !self.verify_pending {
            self.extend_at = due;
        }
    }

    /// Whether the number of renewals is limited.
    const fn counts_renewals(&self) -> bool {
        matches!(self.plan, RenewalPlan::Renew { .. }) && self.limits.max_renewals.is_some()
    }

    /// Whether a hold that is valid until `valid_until` does not reach its end. Another extend could not add
    /// what the drift takes, and what a round trip takes is not worth one.
    fn falls_short(&self, valid_until: Moment, end: Moment, now: Moment) -> bool {
        let left = end.since(now);
        valid_until.max(self.valid_until) + drift(left) + left / 20 < end
    }

    /// An extend had no reply, or none with the status of the hold. It is sent again until the deadline; nothing is undone.
    pub fn handle_fault(&mut self, now: Moment, random: Random<'_>) {
        self.in_flight = false;
        self.verify_pending |= std::mem::take(&mut self.verify_in_flight);
        self.faults += 1;
        let pause = FAULT_BACKOFF.pause(self.faults);
        self.extend_at = Some(now + Jitter::upper_half(pause).pick(random()));
        self.stop_at_limit();
    }

    fn extend(&self, now: Moment) -> RenewalAction {
        let lease = match self.plan {
            RenewalPlan::Renew { lease } => self.up_to_limit(now, lease),
            RenewalPlan::Until { end } => end.since(now),
        };
        RenewalAction::Extend {
            lease: lease.max(crate::Lease::MIN),
            keep_record: self.should_keep_record(now, lease),
        }
    }

    /// Whether an extend for that long should also keep the record beside the lock.
    pub fn should_keep_record(&self, now: Moment, lease: Duration) -> bool {
        lease >= RECORD_TTL / 4 || now.since(self.record_kept_at) >= RECORD_TTL / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1_000)
    }

    fn s(s: u64) -> Moment {
        Moment::from_micros(s * 1_000_000)
    }

    const NONE: Duration = Duration::ZERO;
    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn a_watchdog_extends_first_when_due_and_then_every_third() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        assert_eq!(schedule.poll(s(0), NONE), RenewalAction::Sleep(s(0) + FIRST_EXTEND_DELAY));
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Extend { lease: LEASE, keep_record: false });
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Sleep(s(3)), "one extend at a time");
        schedule.handle_extended(s(1), LEASE, false);
        assert_eq!(schedule.valid_until(), s(31) - drift(LEASE));
        assert_eq!(schedule.poll(s(2), NONE), RenewalAction::Sleep(s(11)));
        assert_eq!(schedule.poll(s(60), NONE), RenewalAction::Expired, "the process slept");
    }

    #[test]
    fn a_given_lease_is_reached_by_one_extend_and_ends() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Until { end: s(60) }, s(3), s(0));
        assert_eq!(
            schedule.poll(s(0), FIRST_EXTEND_DELAY),
            RenewalAction::Extend { lease: Duration::from_secs(60), keep_record: false }
        );
        schedule.handle_extended(s(0), Duration::from_secs(60), false);
        let end = s(60) - drift(Duration::from_secs(60));
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Sleep(end));
        assert_eq!(schedule.poll(s(59) + Duration::from_millis(999), NONE), RenewalAction::Expired);
        let short = Duration::from_millis(800);
        let mut schedule =
            RenewalSchedule::new(RenewalPlan::Until { end: s(0) + short }, s(0) + short - drift(short), s(0));
        assert_eq!(
            schedule.poll(s(0), NONE),
            RenewalAction::Sleep(s(0) + short - drift(short)),
            "no extend at all"
        );
    }

    #[test]
    fn a_failed_extend_is_sent_again_and_a_late_one_never_shortens() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        assert!(matches!(schedule.poll(s(1), NONE), RenewalAction::Extend { .. }));
        schedule.handle_fault(s(1), &mut || u64::MAX);
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Sleep(s(1) + Duration::from_millis(50)));
        assert!(matches!(schedule.poll(s(2), NONE), RenewalAction::Extend { .. }));
        schedule.handle_extended(s(2), LEASE, false);
        let before = schedule.valid_until();
        schedule.handle_extended(s(1), Duration::from_secs(1), false);
        assert_eq!(schedule.valid_until(), before);
    }

    #[test]
    fn a_short_extend_by_the_user_does_not_replace_the_fixed_lease() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Until { end: s(60) }, s(3), s(0));
        schedule.handle_extended_by_user(s(0), Duration::from_secs(1));
        assert_eq!(schedule.valid_until(), s(3));
        assert!(
            matches!(schedule.poll(s(0), FIRST_EXTEND_DELAY), RenewalAction::Extend { lease, .. } if lease == Duration::from_secs(60))
        );
        schedule.handle_extended(s(0), Duration::from_secs(60), false);
        schedule.handle_extended_by_user(s(10), Duration::from_secs(100));
        assert_eq!(schedule.valid_until(), s(110) - drift(Duration::from_secs(100)));
    }

    /// Without a fault, no hold comes close to the moment that is in danger.
    #[test]
    fn a_hold_that_is_renewed_in_time_is_never_in_danger() {
        let limited = |max_renewals| HoldLimits { end: None, max_renewals };
        let capped = HoldLimits { end: Some(s(200)), max_renewals: None };
        for (lease, limits, first) in [
            (LEASE, limited(None), s(3)),
            (LEASE, limited(Some(20)), s(3)),
            (LEASE, capped, s(3)),
            (Duration::from_secs(2), limited(None), s(2)),
            (Duration::from_secs(600), limited(None), ms(300)), // a late grant
        ] {
            let mut schedule =
                RenewalSchedule::with_limits(RenewalPlan::Renew { lease }, limits, first, s(0));
            for now in (0..120_000).step_by(10).map(ms) {
                if now == s(40) {
                    schedule.handle_extended_by_user(now, lease * 3);
                }
                if let RenewalAction::Extend { lease, .. } = schedule.poll(now, NONE) {
                    schedule.handle_extended(now, lease, false);
                }
                assert!(
                    schedule.warn_at(Duration::from_secs(60)) > now || capped == limits,
                    "{lease:?}, {now:?}"
                );
            }
        }
    }

    #[test]
    fn what_ends_a_hold_anyhow_counts_in_full() {
        let minute = Duration::from_secs(60);
        let left = Duration::from_secs(40);
        let mut fixed = RenewalSchedule::new(RenewalPlan::Until { end: s(60) }, s(3), s(0));
        assert_eq!(fixed.warn_at(left), ms(1_500), "the first extend is not sent yet");
        assert!(matches!(fixed.poll(s(1), NONE), RenewalAction::Extend { .. }));
        fixed.handle_extended(s(0), minute, false);
        assert_eq!(fixed.warn_at(left), fixed.valid_until() - left);
        fixed.handle_extended_by_user(s(10), 2 * minute);
        assert_eq!(fixed.warn_at(left), fixed.valid_until() - left);
        let limits = HoldLimits { end: Some(s(50)), max_renewals: None };
        let mut capped =
            RenewalSchedule::with_limits(RenewalPlan::Renew { lease: LEASE }, limits, s(3), s(0));
        assert!(matches!(capped.poll(s(1), NONE), RenewalAction::Extend { .. }));
        capped.handle_extended(s(1), LEASE, false);
        assert_eq!(capped.warn_at(left), s(10));
        assert!(matches!(capped.poll(s(11), NONE), RenewalAction::Extend { .. }));
        capped.handle_extended(s(11), LEASE, false);
        assert!(matches!(capped.poll(s(21), NONE), RenewalAction::Extend { .. }));
        capped.handle_extended(s(21), LEASE, false);
        assert_eq!(capped.warn_at(left), s(10), "it is at its limit");
    }

    #[test]
    fn a_long_hold_keeps_its_record() {
        let day = Duration::from_secs(86_400);
        let mut schedule = RenewalSchedule::new(RenewalPlan::Until { end: s(86_400) }, s(3), s(0));
        assert_eq!(
            schedule.poll(s(0), FIRST_EXTEND_DELAY),
            RenewalAction::Extend { lease: day, keep_record: true }
        );
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        let mut kept = 0;
        for t in (1..7200).step_by(10) {
            if let RenewalAction::Extend { lease, keep_record } = schedule.poll(s(t), NONE) {
                schedule.handle_extended(s(t), lease, keep_record);
                kept += u32::from(keep_record);
            }
        }
        assert_eq!(kept, 7, "every quarter of an hour");
    }

    #[test]
    fn a_verified_hold_is_extended_at_once_and_again_if_an_extend_was_in_flight() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        assert!(matches!(schedule.poll(s(1), NONE), RenewalAction::Extend { .. }));
        schedule.verify_soon(s(2));
        assert!(schedule.is_verification_pending());
        assert_eq!(schedule.poll(s(2), NONE), RenewalAction::Sleep(s(3)), "one extend at a time");
        schedule.handle_extended(s(1), LEASE, false);
        schedule.handle_extended_by_user(s(1), Duration::from_secs(600));
        assert!(
            matches!(schedule.poll(s(2), NONE), RenewalAction::Extend { .. }),
            "the answer may be from before"
        );
        assert!(!schedule.is_verification_pending());
        schedule.handle_extended(s(2), LEASE, false);
        assert_eq!(schedule.due(), s(12), "once is enough");
        schedule.verify_soon(s(5));
        assert!(matches!(schedule.poll(s(5), NONE), RenewalAction::Extend { .. }));
        schedule.handle_fault(s(5), &mut || u64::MAX);
        assert_eq!(schedule.due(), s(5) + Duration::from_millis(50), "sent again after a fault");
    }

    #[test]
    fn many_verifications_cost_few_extends_and_delay_no_renewal() {
        for (lease_ms, most) in [(30_000, 41), (300, 101)] {
            let lease = Duration::from_millis(lease_ms);
            let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease }, ms(lease_ms), s(0));
            let (mut sent, mut answer_at) = (0, None);
            for now in (0..10_000).map(ms) {
                if answer_at.is_some_and(|(at, _)| at <= now) {
                    let (_, sent_at) = answer_at.take().expect("just seen");
                    schedule.handle_extended(sent_at, lease, false);
                }
                schedule.verify_soon(now);
                match schedule.poll(now, NONE) {
                    RenewalAction::Extend { .. } => {
                        assert!(answer_at.is_none(), "one at a time");
                        sent += 1;
                        answer_at = Some((now + Duration::from_millis(7), now));
                    }
                    RenewalAction::Sleep(_) => {}
                    RenewalAction::Expired | RenewalAction::Release | RenewalAction::SendRequest => {
                        panic!("it is extended in time")
                    }
                }
            }
            assert!(sent <= most && sent >= 30, "{sent} of {lease:?}");
        }
    }

    /// At its limit nothing lengthens the hold, but whether it still exists must become known.
    #[test]
    fn a_hold_at_its_limit_is_verified_until_there_is_a_reply() {
        let limits = HoldLimits { end: Some(s(20)), max_renewals: None };
        let at_limit = |schedule: &RenewalSchedule| schedule.is_at_limit() && schedule.due() == s(20);
        let is_extend = |action| matches!(action, RenewalAction::Extend { .. });
        let capped = || {
            let plan = RenewalPlan::Renew { lease: LEASE };
            let mut schedule = RenewalSchedule::with_limits(plan, limits, s(3), s(0));
            assert!(is_extend(schedule.poll(s(1), NONE)));
            schedule
        };
        // The first verification fails.
        let mut schedule = capped();
        schedule.handle_extended(s(1), LEASE, false);
        assert!(at_limit(&schedule));
        schedule.verify_soon(s(5));
        assert!(is_extend(schedule.poll(s(5), NONE)));
        schedule.handle_fault(s(7), &mut || u64::MAX);
        assert!(schedule.is_verification_pending() && schedule.due() < s(8), "{:?}", schedule.due());
        // Another task that gets the hold depends on the reply, too.
        schedule.hand_off(RenewalPlan::Until { end: s(19) }, HoldLimits::default(), s(7));
        assert!(is_extend(schedule.poll(s(8), NONE)));
        schedule.handle_extended(s(8), LEASE, false);
        assert_eq!((schedule.is_verification_pending(), schedule.due()), (false, s(19)));
        // The extend that takes it to its limit is in flight.
        let mut schedule = capped();
        schedule.verify_soon(s(1));
        schedule.handle_extended(s(1), LEASE, false);
        assert!(is_extend(schedule.poll(s(2), NONE)));
        schedule.handle_extended(s(2), LEASE, false);
        assert!(at_limit(&schedule) && !schedule.is_verification_pending());
    }

    /// A message causes a verification, and so does a reconnect.
    #[test]
    fn a_verification_is_no_renewal_where_renewals_are_limited() {
        let ends = |verify: bool| {
            let mut schedule = limited(LEASE, None, Some(2));
            let mut sent = 0;
            for now in (0..120_000).step_by(100).map(ms) {
                if verify && now >= s(2) {
                    schedule.verify_soon(now);
                }
                match schedule.poll(now, NONE) {
                    RenewalAction::Extend { lease, .. } => {
                        sent += 1;
                        schedule.handle_extended(now, lease, false);
                    }
                    RenewalAction::Release => return (now, sent),
                    _ => {}
                }
            }
            panic!("it is limited");
        };
        let ((end, sent), (verified_end, verified_sent)) = (ends(false), ends(true));
        assert_eq!(end, verified_end);
        assert!(sent == 3 && verified_sent > 100, "{sent}, {verified_sent}");
    }

    /// The reply to a verification neither spends the renewal of the task that the hold was handed to meanwhile, nor brings
    /// forward what an extend by the user has put off.
    #[test]
    fn a_verification_in_flight_is_no_renewal_either() {
        let in_flight = || {
            let mut schedule = limited(LEASE, None, Some(2));
            assert!(matches!(schedule.poll(s(1), NONE), RenewalAction::Extend { .. }));
            schedule.handle_extended(s(1), LEASE, false);
            schedule.verify_soon(s(5));
            assert!(matches!(schedule.poll(s(5), NONE), RenewalAction::Extend { .. }));
            schedule
        };
        let mut handed_off = in_flight();
        let limits = HoldLimits { end: None, max_renewals: Some(1) };
        handed_off.hand_off(RenewalPlan::Renew { lease: LEASE }, limits, s(5));
        handed_off.handle_extended(s(5), LEASE, false);
        assert!(!handed_off.is_at_limit(), "one renewal is left");
        let mut extended = in_flight();
        extended.handle_extended_by_user(s(6), LEASE);
        extended.handle_extended(s(5), LEASE, false);
        assert_eq!(extended.due(), s(16), "a third of the lease after the extend by the user");
    }

    #[test]
    fn a_fixed_lease_that_is_verified_ends_when_it_should() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Until { end: s(60) }, s(3), s(0));
        assert!(matches!(schedule.poll(s(0), FIRST_EXTEND_DELAY), RenewalAction::Extend { .. }));
        schedule.handle_extended(s(0), Duration::from_secs(60), false);
        let end = schedule.valid_until();
        schedule.verify_soon(s(20));
        let left = Duration::from_secs(40);
        assert_eq!(schedule.poll(s(20), NONE), RenewalAction::Extend { lease: left, keep_record: false });
        schedule.handle_extended(s(20), left, false);
        assert!(schedule.valid_until() >= end && schedule.valid_until() <= s(60));
        assert_eq!(
            schedule.poll(s(30), NONE),
            RenewalAction::Sleep(schedule.valid_until()),
            "no more than that"
        );
        schedule.verify_soon(s(60));
        assert_eq!(schedule.poll(s(60), NONE), RenewalAction::Expired, "an ended hold is not verified");
    }

    #[test]
    fn a_short_extend_by_the_user_does_not_delay_the_renewal() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        schedule.handle_extended_by_user(s(0), Duration::from_millis(1));
        assert_eq!(schedule.due(), s(0) + FIRST_EXTEND_DELAY, "before the first lease ends");
        assert!(matches!(schedule.poll(s(1), NONE), RenewalAction::Extend { .. }));
        schedule.handle_extended(s(1), LEASE, false);
        for t in 2..11 {
            schedule.handle_extended_by_user(s(t), Duration::from_secs(1));
        }
        assert_eq!(schedule.due(), s(11), "however often the user extends it");
        schedule.handle_extended_by_user(s(10), Duration::from_secs(600));
        assert_eq!(schedule.due(), s(20), "a longer one counts as a renewal");
    }

    fn limited(lease: Duration, end: Option<u64>, max_renewals: Option<u32>) -> RenewalSchedule {
        RenewalSchedule::with_limits(
            RenewalPlan::Renew { lease },
            HoldLimits { end: end.map(s), max_renewals },
            s(3),
            s(0),
        )
    }

    /// Follows the schedule every tenth of a second, and returns when and how it ended, and what was sent.
    fn kept(mut schedule: RenewalSchedule) -> (Moment, RenewalAction, Vec<Duration>) {
        let mut sent = Vec::new();
        for t in 0.. {
            let now = Moment::from_micros(t * 100_000);
            match schedule.poll(now, NONE) {
                RenewalAction::Extend { lease, keep_record } => {
                    sent.push(lease);
                    schedule.handle_extended(now, lease, keep_record);
                }
                RenewalAction::Sleep(_) => {}
                over => return (schedule.valid_until(), over, sent),
            }
        }
        unreachable!("it has a limit")
    }

    #[test]
    fn a_limited_hold_is_renewed_until_its_limit_and_not_beyond() {
        for end in [1, 3, 4, 29, 31, 45, 3_600] {
            let (over_at, how, sent) = kept(limited(LEASE, Some(end), None));
            assert_eq!((over_at, how), (s(end), RenewalAction::Release), "{end}");
            let most = LEASE.min(Duration::from_secs(end) + drift(LEASE) + Duration::from_millis(3));
            assert!(sent.iter().all(|lease| *lease <= most), "{end}: {sent:?}");
            assert_eq!(sent.is_empty(), end <= 3, "{end}");
        }
    }

    #[test]
    fn a_hold_is_renewed_up_to_its_maximum_and_then_lasts_for_its_lease() {
        let full = LEASE.saturating_sub(drift(LEASE));
        let first = s(0) + FIRST_EXTEND_DELAY + full;
        for (max_renewals, over_at) in [(0, first), (1, first + LEASE / 3), (3, first + LEASE)] {
            let (at, how, sent) = kept(limited(LEASE, None, Some(max_renewals)));
            assert_eq!((at, how), (over_at, RenewalAction::Release));
            assert_eq!(sent.len(), 1 + max_renewals as usize, "it has its whole lease first");
        }
        let short = Duration::from_secs(3);
        assert_eq!(kept(limited(short, None, Some(0))).2.len(), 0);
        assert_eq!(kept(limited(short, None, Some(2))).2.len(), 2);
        let (at, how, _) = kept(limited(LEASE, Some(20), Some(9)));
        assert_eq!((at, how), (s(20), RenewalAction::Release), "whichever comes first");
    }

    #[test]
    fn an_extend_by_the_user_does_not_exceed_a_limit_either() {
        let mut schedule = limited(LEASE, Some(20), None);
        assert_eq!(schedule.latest_end(), Some(s(20)));
        schedule.handle_extended_by_user(s(1), Duration::from_secs(600));
        assert_eq!(schedule.valid_until(), s(20));
        assert!(schedule.is_at_limit());
        assert_eq!(
            schedule.poll(s(19), NONE),
            RenewalAction::Sleep(s(20)),
            "nothing would come of a renewal"
        );

        let mut schedule = limited(LEASE, None, Some(1));
        schedule.handle_extended_by_user(s(0), LEASE);
        assert!(!schedule.is_at_limit(), "it has its lease for the first time");
        assert!(matches!(schedule.poll(s(10), NONE), RenewalAction::Extend { .. }));
        schedule.handle_extended_by_user(s(10), LEASE);
        assert!(schedule.is_at_limit());
        let end = s(10) + LEASE - drift(LEASE);
        schedule.handle_extended(s(12), LEASE, false);
        assert_eq!(schedule.valid_until(), end, "one was on its way when another used up the last renewal");
        assert_eq!(schedule.poll(end, NONE), RenewalAction::Release);
    }

    #[test]
    fn an_extend_beyond_the_limit_returns_the_time_left() {
        let (second, ten) = (Duration::from_secs(1), Duration::from_secs(10));
        let mut schedule = limited(LEASE, Some(20), None);
        assert_eq!(schedule.allowed_lease(s(5), ExtendRequest::Exactly(ten)), Ok(ten));
        assert_eq!(schedule.allowed_lease(s(12), ExtendRequest::Exactly(ten)), Err(second * 8));
        let lease = schedule.allowed_lease(s(12), ExtendRequest::UpTo(ten)).expect("there is time left");
        schedule.handle_extended_by_user(s(12), lease);
        assert_eq!(schedule.valid_until(), s(20), "the drift does not keep it from its limit");
        assert_eq!(schedule.allowed_lease(s(12), ExtendRequest::UpTo(ten)), Err(second * 8));
        assert_eq!(
            schedule.allowed_lease(s(12), ExtendRequest::Exactly(second)),
            Ok(second),
            "which changes nothing"
        );
        let unlimited = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        assert_eq!(unlimited.allowed_lease(s(1), ExtendRequest::Exactly(LEASE * 99)), Ok(LEASE * 99));
    }

    #[test]
    fn a_renewal_that_fails_at_the_limit_is_not_sent_again() {
        let mut schedule = limited(LEASE, None, Some(1));
        schedule.handle_extended_by_user(s(0), LEASE);
        assert!(matches!(schedule.poll(s(10), NONE), RenewalAction::Extend { .. }));
        schedule.handle_extended_by_user(s(10), LEASE);
        schedule.handle_fault(s(11), &mut || 0);
        assert_eq!(schedule.poll(s(30), NONE), RenewalAction::Sleep(schedule.valid_until()));
    }

    #[test]
    fn a_hold_that_could_not_be_renewed_up_to_its_limit_has_expired() {
        let mut schedule = limited(LEASE, Some(60), Some(5));
        assert_eq!(schedule.poll(s(3), NONE), RenewalAction::Expired, "there may be nothing to give up");
    }

    #[test]
    fn a_fixed_lease_is_released_only_if_a_limit_shortened_it() {
        let limits = |end| HoldLimits { end: Some(s(end)), max_renewals: Some(0) };
        for (limit, how) in [(40, RenewalAction::Release), (90, RenewalAction::Expired)] {
            let mut schedule =
                RenewalSchedule::with_limits(RenewalPlan::Until { end: s(60) }, limits(limit), s(3), s(0));
            let RenewalAction::Extend { lease, .. } = schedule.poll(s(0), FIRST_EXTEND_DELAY) else {
                panic!("it is extended at once")
            };
            assert_eq!(lease, Duration::from_secs(limit.min(60)));
            assert_eq!(schedule.latest_end(), Some(s(limit.min(60))), "no renewal is left to the user");
            schedule.handle_extended(s(0), lease, false);
            schedule.handle_extended_by_user(s(1), Duration::from_secs(600));
            assert!(schedule.valid_until() <= s(limit.min(60)));
            assert_eq!(schedule.poll(s(limit), NONE), how);
        }
    }

    #[test]
    fn a_hold_that_is_handed_off_follows_the_plan_of_the_next_task() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        schedule.poll(s(1), NONE);
        schedule.handle_extended(s(1), LEASE, false);
        let kept_until = s(31) - drift(LEASE);
        schedule.hand_off(RenewalPlan::Until { end: s(6) }, HoldLimits::default(), s(5));
        assert_eq!((schedule.valid_until(), schedule.kept_until()), (s(6), kept_until));
        assert_eq!(
            schedule.poll(s(5), NONE),
            RenewalAction::Sleep(s(6)),
            "nothing has to be lengthened for it"
        );
        for n in 0..100 {
            // However often it is handed off, it is renewed when a third of the lease is over.
            schedule.hand_off(
                RenewalPlan::Renew { lease: LEASE },
                HoldLimits::default(),
                s(5) + Duration::from_millis(n),
            );
        }
        assert_eq!(schedule.due(), kept_until - LEASE / 3 * 2);
        let end = s(5) + LEASE * 2;
        schedule.hand_off(RenewalPlan::Until { end }, HoldLimits::default(), s(5));
        assert_eq!(
            schedule.poll(s(5), FIRST_EXTEND_DELAY),
            RenewalAction::Extend { lease: LEASE * 2, keep_record: false }
        );
        schedule.hand_off(RenewalPlan::Until { end }, HoldLimits::default(), s(5));
        assert_eq!(
            schedule.poll(s(5), NONE),
            RenewalAction::Sleep(kept_until),
            "one extend at a time, whichever task holds it"
        );
        schedule.handle_extended(s(5), LEASE * 2, false);
        assert_eq!(schedule.valid_until(), end - drift(LEASE * 2));
    }

    #[test]
    fn a_limit_applies_to_one_task_only() {
        let limits = HoldLimits { end: Some(s(4)), max_renewals: None };
        let mut schedule =
            RenewalSchedule::with_limits(RenewalPlan::Renew { lease: LEASE }, limits, s(3), s(0));
        schedule.poll(s(1), NONE);
        schedule.handle_extended(s(1), LEASE, false);
        assert_eq!(schedule.valid_until(), s(4));
        schedule.hand_off(RenewalPlan::Renew { lease: LEASE }, HoldLimits::default(), s(2));
        assert_eq!(schedule.valid_until(), s(31) - drift(LEASE));
        assert!(!schedule.is_at_limit());
    }

    #[test]
    fn a_queued_request_is_sent_at_once_and_delays_no_renewal() {
        let mut schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: LEASE }, s(3), s(0));
        schedule.queue_request();
        assert!(schedule.has_queued_request() && schedule.due() <= s(0));
        assert_eq!(schedule.poll(s(0), NONE), RenewalAction::SendRequest);
        schedule.queue_request();
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Sleep(s(3)), "one request at a time");
        schedule.handle_request_done(s(0), None);
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::SendRequest);
        schedule.handle_request_done(s(1), Some(LEASE));
        assert_eq!((schedule.valid_until(), schedule.kept_until()), (s(3), s(31) - drift(LEASE)));
        assert_eq!(schedule.poll(s(1), NONE), RenewalAction::Extend { lease: LEASE, keep_record: false });
    }
}
