//! Keeping a lock: when a hold is extended, and when it is over.
//!
//! A [`Tenure`] is one hold as its client sees it. The keeper polls it, sends what it asks for, and
//! feeds back the outcome.
//!
//! 1. A hold is believed until `valid_until`: counted from *before* the request was sent that gave or
//!    lengthened it, less [`drift`]. The deadline itself ends the hold, whatever the network does.
//! 2. `valid_until` never goes back: extends only raise.

use crate::contend::Random;
use crate::{FIRST_LEASE, Moment, RECORD_KEPT, drift};
use std::time::Duration;

/// Pauses after an extend that had no reply: the first, and the longest.
const FAULT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How far apart two hastened extends of a hold are at least: whoever gives the reason for them may be a forger.
const HASTE_PAUSE: Duration = Duration::from_millis(250);

/// How a hold is kept.
///
/// [`Tenure`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
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

/// What to do for a hold.
///
/// [`Tenure`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Send an extend, and hand its outcome back.
    Extend {
        /// How long the hold should last from now at least.
        lease: Duration,
        /// Set if the record beside the lock should be kept as well.
        keep_record: bool,
    },
    /// Nothing to do before this moment.
    Rest(Moment),
    /// The hold is over: its deadline has passed.
    Over,
}

/// One hold as its client sees it.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_core::tenure::{Duty, Plan, Tenure};
/// use std::time::Duration;
///
/// let at = |s: u64| Moment::from_micros(s * 1_000_000);
/// let lease = Duration::from_secs(30);
/// let mut tenure = Tenure::new(Plan::Renew { lease }, at(3), at(0));
///
/// assert_eq!(tenure.poll(at(0), Duration::ZERO), Duty::Rest(at(1)));
/// assert_eq!(tenure.poll(at(1), Duration::ZERO), Duty::Extend { lease, keep_record: false });
/// tenure.handle_extended(at(1), lease, false);
/// assert_eq!(tenure.due(), at(11)); // a third of the lease after the last renewal
/// assert_eq!(tenure.poll(at(31), Duration::ZERO), Duty::Over); // no reply is needed to know it
/// ```
#[derive(Debug)]
pub struct Tenure {
    plan: Plan,
    valid_until: Moment,
    /// When to extend; `None` once a given lease has been reached.
    extend_at: Option<Moment>,
    in_flight: bool,
    /// Set from when it is to be extended at once until that is sent.
    hastened: bool,
    /// When that was last sent.
    hastened_at: Moment,
    faults: u32,
    record_kept_at: Moment,
}

impl Tenure {
    /// A hold that was given with a short first lease, and may be believed until `valid_until`.
    pub fn new(plan: Plan, valid_until: Moment, now: Moment) -> Self {
        let mut tenure = Self {
            plan,
            valid_until,
            extend_at: None,
            in_flight: false,
            hastened: false,
            hastened_at: Moment::ZERO,
            faults: 0,
            record_kept_at: now,
        };
        match plan {
            Plan::Renew { lease } => {
                // A third of what is left, where the news of the grant came late.
                let third = (lease.min(FIRST_LEASE) / 3).min(valid_until.since(now) / 3);
                tenure.extend_at = Some(now + third);
            }
            Plan::Until { end } => {
                tenure.extend_at = tenure.falls_short(valid_until, end, now).then_some(now);
                tenure.valid_until = valid_until.min(end);
            }
        }
        tenure
    }

    /// Until when the hold may be believed.
    pub const fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// What to do now; an extend that is due within `ahead` may go already, to fill a batch. A
    /// [`Duty::Extend`] counts as sent.
    pub fn poll(&mut self, now: Moment, ahead: Duration) -> Duty {
        if now >= self.valid_until {
            return Duty::Over;
        }
        if !self.in_flight && self.extend_at.is_some_and(|at| at <= now + ahead) {
            self.in_flight = true;
            if std::mem::take(&mut self.hastened) {
                self.hastened_at = now;
            }
            return self.extend(now);
        }
        Duty::Rest(self.due())
    }

    /// When there is something to do next.
    pub fn due(&self) -> Moment {
        let extend_at = self.extend_at.filter(|_| !self.in_flight);
        extend_at.map_or(self.valid_until, |at| at.min(self.valid_until))
    }

    /// The hold was extended, by a request that was sent at `sent_at`.
    pub fn handle_extended(&mut self, sent_at: Moment, lease: Duration, kept_record: bool) {
        self.in_flight = false;
        self.faults = 0;
        if kept_record {
            self.record_kept_at = sent_at;
        }
        if let (Plan::Renew { lease }, false) = (self.plan, self.hastened) {
            self.extend_at = Some(sent_at + lease / 3);
        }
        self.raise(sent_at, lease);
    }

    /// There is reason to ask the store whether the hold is held still: it is extended at once, and once more where an
    /// extend is in flight, since that may have been executed before. A given lease is not lengthened by it.
    ///
    /// However often this is called, it comes a few times a second at most, or as often as the hold is renewed anyway.
    pub fn hasten(&mut self, now: Moment) {
        if std::mem::replace(&mut self.hastened, true) {
            return;
        }
        let pause = match self.plan {
            Plan::Renew { lease } => HASTE_PAUSE.min(lease / 3),
            Plan::Until { .. } => HASTE_PAUSE,
        };
        let at = if self.hastened_at == Moment::ZERO { now } else { now.max(self.hastened_at + pause) };
        // A renewal that is due before is not put off; what is in flight was due once, and is no more.
        let due = self.extend_at.filter(|_| !self.in_flight);
        self.extend_at = Some(due.map_or(at, |due| due.min(at)));
    }

    /// Whether it is to be extended at once, and that was not sent yet.
    pub const fn is_hastened(&self) -> bool {
        self.hastened
    }

    /// The user extended the hold himself: a given lease now ends then, if that is later.
    pub fn prolong(&mut self, sent_at: Moment, lease: Duration) {
        if let Plan::Until { end } = &mut self.plan {
            *end = (sent_at + lease).max(*end);
        }
        self.raise(sent_at, lease);
    }

    fn raise(&mut self, sent_at: Moment, lease: Duration) {
        let valid_until = sent_at + lease - drift(lease);
        self.extend_at = match self.plan {
            // What was sent by now may have been executed before there was reason to ask.
            _ if self.hastened => self.extend_at,
            // A lease that lengthens nothing puts no renewal off.
            Plan::Renew { .. } if valid_until <= self.valid_until => self.extend_at,
            Plan::Renew { lease: full } => Some(sent_at + full.min(lease) / 3),
            Plan::Until { end } if self.falls_short(valid_until, end, sent_at) => self.extend_at,
            Plan::Until { .. } => None,
        };
        let end = if let Plan::Until { end } = self.plan { end } else { valid_until };
        self.valid_until = self.valid_until.max(valid_until.min(end));
    }

    /// Whether a hold that may be believed until then does not reach its end. What is missing by no
    /// more than the drift, an extend could not give either; and what is missing by a round trip is not
    /// worth another one.
    fn falls_short(&self, valid_until: Moment, end: Moment, now: Moment) -> bool {
        let left = end.since(now);
        valid_until.max(self.valid_until) + drift(left) + left / 20 < end
    }

    /// An extend had no reply, or none that says what became of the hold. It is sent again until the
    /// deadline; nothing is undone.
    pub fn handle_fault(&mut self, now: Moment, random: Random<'_>) {
        self.in_flight = false;
        self.faults += 1;
        let (first, most) = FAULT_PAUSE;
        let pause = first.saturating_mul(1 << self.faults.saturating_sub(1).min(10)).min(most);
        #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
        let share = 0.5 + 0.5 * (random() as f64 / u64::MAX as f64);
        self.extend_at = Some(now + pause.mul_f64(share));
    }

    fn extend(&self, now: Moment) -> Duty {
        let lease = match self.plan {
            Plan::Renew { lease } => lease,
            Plan::Until { end } => end.since(now),
        };
        Duty::Extend { lease: lease.max(crate::Lease::MIN), keep_record: self.wants_record(now, lease) }
    }

    /// Whether an extend for that long should keep the record beside the lock as well.
    pub fn wants_record(&self, now: Moment, lease: Duration) -> bool {
        lease >= RECORD_KEPT / 4 || now.since(self.record_kept_at) >= RECORD_KEPT / 4
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
        let mut tenure = Tenure::new(Plan::Renew { lease: LEASE }, s(3), s(0));
        assert_eq!(tenure.poll(s(0), NONE), Duty::Rest(s(1)));
        assert_eq!(tenure.poll(s(1), NONE), Duty::Extend { lease: LEASE, keep_record: false });
        assert_eq!(tenure.poll(s(1), NONE), Duty::Rest(s(3)), "one extend at a time");
        tenure.handle_extended(s(1), LEASE, false);
        assert_eq!(tenure.valid_until(), s(31) - drift(LEASE));
        assert_eq!(tenure.poll(s(2), NONE), Duty::Rest(s(11)));
        assert_eq!(tenure.poll(s(60), NONE), Duty::Over, "the process slept");
    }

    #[test]
    fn a_given_lease_is_reached_by_one_extend_and_ends() {
        let mut tenure = Tenure::new(Plan::Until { end: s(60) }, s(3), s(0));
        assert_eq!(
            tenure.poll(s(0), NONE),
            Duty::Extend { lease: Duration::from_secs(60), keep_record: false }
        );
        tenure.handle_extended(s(0), Duration::from_secs(60), false);
        let end = s(60) - drift(Duration::from_secs(60));
        assert_eq!(tenure.poll(s(1), NONE), Duty::Rest(end));
        assert_eq!(tenure.poll(s(59) + Duration::from_millis(999), NONE), Duty::Over);
        let short = Duration::from_millis(800);
        let mut tenure = Tenure::new(Plan::Until { end: s(0) + short }, s(0) + short - drift(short), s(0));
        assert_eq!(tenure.poll(s(0), NONE), Duty::Rest(s(0) + short - drift(short)), "no extend at all");
    }

    #[test]
    fn a_failed_extend_is_sent_again_and_a_late_one_never_shortens() {
        let mut tenure = Tenure::new(Plan::Renew { lease: LEASE }, s(3), s(0));
        assert!(matches!(tenure.poll(s(1), NONE), Duty::Extend { .. }));
        tenure.handle_fault(s(1), &mut || u64::MAX);
        assert_eq!(tenure.poll(s(1), NONE), Duty::Rest(s(1) + Duration::from_millis(50)));
        assert!(matches!(tenure.poll(s(2), NONE), Duty::Extend { .. }));
        tenure.handle_extended(s(2), LEASE, false);
        let before = tenure.valid_until();
        tenure.handle_extended(s(1), Duration::from_secs(1), false);
        assert_eq!(tenure.valid_until(), before);
    }

    #[test]
    fn a_short_extend_by_the_user_does_not_stand_in_for_the_given_lease() {
        let mut tenure = Tenure::new(Plan::Until { end: s(60) }, s(3), s(0));
        tenure.prolong(s(0), Duration::from_secs(1));
        assert_eq!(tenure.valid_until(), s(3));
        assert!(
            matches!(tenure.poll(s(0), NONE), Duty::Extend { lease, .. } if lease == Duration::from_secs(60))
        );
        tenure.handle_extended(s(0), Duration::from_secs(60), false);
        tenure.prolong(s(10), Duration::from_secs(100));
        assert_eq!(tenure.valid_until(), s(110) - drift(Duration::from_secs(100)));
    }

    #[test]
    fn a_long_hold_keeps_its_record() {
        let day = Duration::from_secs(86_400);
        let mut tenure = Tenure::new(Plan::Until { end: s(86_400) }, s(3), s(0));
        assert_eq!(tenure.poll(s(0), NONE), Duty::Extend { lease: day, keep_record: true });
        let mut tenure = Tenure::new(Plan::Renew { lease: LEASE }, s(3), s(0));
        let mut kept = 0;
        for t in (1..7200).step_by(10) {
            if let Duty::Extend { lease, keep_record } = tenure.poll(s(t), NONE) {
                tenure.handle_extended(s(t), lease, keep_record);
                kept += u32::from(keep_record);
            }
        }
        assert_eq!(kept, 7, "every quarter of an hour");
    }

    #[test]
    fn whoever_is_hastened_is_extended_at_once_and_again_if_that_was_sent_before() {
        let mut tenure = Tenure::new(Plan::Renew { lease: LEASE }, s(3), s(0));
        assert!(matches!(tenure.poll(s(1), NONE), Duty::Extend { .. }));
        tenure.hasten(s(2));
        assert!(tenure.is_hastened());
        assert_eq!(tenure.poll(s(2), NONE), Duty::Rest(s(3)), "one extend at a time");
        tenure.handle_extended(s(1), LEASE, false);
        tenure.prolong(s(1), Duration::from_secs(600));
        assert!(matches!(tenure.poll(s(2), NONE), Duty::Extend { .. }), "the answer may be from before");
        assert!(!tenure.is_hastened());
        tenure.handle_extended(s(2), LEASE, false);
        assert_eq!(tenure.due(), s(12), "once is enough");
        tenure.hasten(s(5));
        assert!(matches!(tenure.poll(s(5), NONE), Duty::Extend { .. }));
        tenure.handle_fault(s(5), &mut || u64::MAX);
        assert_eq!(tenure.due(), s(5) + Duration::from_millis(50), "asked again after a fault");
    }

    #[test]
    fn a_flood_of_reasons_costs_a_few_extends_and_puts_no_renewal_off() {
        for (lease_ms, most) in [(30_000, 41), (300, 101)] {
            let lease = Duration::from_millis(lease_ms);
            let mut tenure = Tenure::new(Plan::Renew { lease }, ms(lease_ms), s(0));
            let (mut sent, mut answer_at) = (0, None);
            for now in (0..10_000).map(ms) {
                if answer_at.is_some_and(|(at, _)| at <= now) {
                    let (_, sent_at) = answer_at.take().expect("just seen");
                    tenure.handle_extended(sent_at, lease, false);
                }
                tenure.hasten(now);
                match tenure.poll(now, NONE) {
                    Duty::Extend { .. } => {
                        assert!(answer_at.is_none(), "one at a time");
                        sent += 1;
                        answer_at = Some((now + Duration::from_millis(7), now));
                    }
                    Duty::Rest(_) => {}
                    Duty::Over => panic!("it is extended in time"),
                }
            }
            assert!(sent <= most && sent >= 30, "{sent} of {lease:?}");
        }
    }

    #[test]
    fn a_given_lease_that_is_hastened_ends_when_it_ends() {
        let mut tenure = Tenure::new(Plan::Until { end: s(60) }, s(3), s(0));
        assert!(matches!(tenure.poll(s(0), NONE), Duty::Extend { .. }));
        tenure.handle_extended(s(0), Duration::from_secs(60), false);
        let end = tenure.valid_until();
        tenure.hasten(s(20));
        let left = Duration::from_secs(40);
        assert_eq!(tenure.poll(s(20), NONE), Duty::Extend { lease: left, keep_record: false });
        tenure.handle_extended(s(20), left, false);
        assert!(tenure.valid_until() >= end && tenure.valid_until() <= s(60));
        assert_eq!(tenure.poll(s(30), NONE), Duty::Rest(tenure.valid_until()), "no more than that");
        tenure.hasten(s(60));
        assert_eq!(tenure.poll(s(60), NONE), Duty::Over, "what has ended is not asked after");
    }

    #[test]
    fn a_short_extend_by_the_user_does_not_put_off_the_renewal() {
        let mut tenure = Tenure::new(Plan::Renew { lease: LEASE }, s(3), s(0));
        tenure.prolong(s(0), Duration::from_millis(1));
        assert_eq!(tenure.due(), s(1), "before the first lease ends");
        assert!(matches!(tenure.poll(s(1), NONE), Duty::Extend { .. }));
        tenure.handle_extended(s(1), LEASE, false);
        for t in 2..11 {
            tenure.prolong(s(t), Duration::from_secs(1));
        }
        assert_eq!(tenure.due(), s(11), "however often it is said");
        tenure.prolong(s(10), Duration::from_secs(600));
        assert_eq!(tenure.due(), s(20), "a longer one counts as a renewal");
    }
}
