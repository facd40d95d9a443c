//! Keeping a session alive: when it sends a heartbeat, and when it has lapsed.
//!
//! A [`HeartbeatSchedule`] is one session as its client sees it. The keeper polls it, sends what it requests, and feeds
//! back the outcome.
//!
//! 1. A session counts as alive until `valid_until`, which counts from *before* the heartbeat was sent, less
//!    [`drift`]. So the client gives up everything that lives with the session before the store lets another
//!    client take it.
//! 2. `valid_until` never goes back, and once it has passed, the session has lapsed for good.

use crate::machine::jitter::{Backoff, Jitter, Random};
use crate::{Moment, drift};
use std::time::Duration;

/// Pauses after a heartbeat without a reply: the first, and the longest.
const FAULT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How many heartbeats there are in the time that a session lives without one.
const HEARTBEATS_PER_TTL: u32 = 4;

/// What to do for a session.
///
/// See [`HeartbeatSchedule`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatAction {
    /// Send a heartbeat, and pass back its outcome.
    Heartbeat,
    /// Nothing to do before this moment.
    Sleep(Moment),
    /// The session is over.
    Lapsed,
}

/// One session as its client sees it.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_core::machine::heartbeat::{HeartbeatAction, HeartbeatSchedule};
/// use std::time::Duration;
///
/// let at = |ms: u64| Moment::from_micros(ms * 1_000);
/// let mut schedule = HeartbeatSchedule::new(Duration::from_secs(10), at(0)); // begun by a heartbeat that was sent at 0
/// assert_eq!(schedule.poll(at(0), Duration::ZERO), HeartbeatAction::Sleep(at(2_500)));
/// assert_eq!(schedule.poll(at(2_500), Duration::ZERO), HeartbeatAction::Heartbeat);
/// schedule.handle_alive(at(2_500), at(2_501));
/// assert_eq!(schedule.valid_until(), at(12_398)); // less the drift of the clocks
/// assert_eq!(schedule.poll(at(12_398), Duration::ZERO), HeartbeatAction::Lapsed); // known without a reply
/// ```
#[derive(Debug)]
pub struct HeartbeatSchedule {
    /// How long the session lives without a heartbeat.
    alive: Duration,
    valid_until: Moment,
    /// When to send a heartbeat, unless one is in flight.
    heartbeat_at: Moment,
    in_flight: bool,
    faults: u32,
}

impl HeartbeatSchedule {
    /// A session that lives for `alive` without a heartbeat, and was begun by a request that was sent at
    /// `sent_at`.
    pub fn new(alive: Duration, sent_at: Moment) -> Self {
        let mut schedule =
            Self { alive, valid_until: Moment::ZERO, heartbeat_at: sent_at, in_flight: false, faults: 0 };
        schedule.extend_validity(sent_at);
        schedule
    }

    /// How long the session lives without a heartbeat.
    pub const fn alive(&self) -> Duration {
        self.alive
    }

    /// Until when the session counts as alive.
    pub const fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Whether [`send_soon`](Self::send_soon) has an effect: no heartbeat is in flight, and the last heartbeat had a reply.
    pub const fn can_send_soon(&self) -> bool {
        !self.in_flight && self.faults == 0
    }

    /// How much earlier than due a heartbeat may be sent, so that those of many sessions go together: a hundredth of the
    /// time that the session lives, which means at most 4 % more heartbeats.
    pub fn max_ahead(&self) -> Duration {
        self.alive / 100
    }

    /// What to do now, if a heartbeat may be sent so much earlier than due; a pause after a fault is not shortened. A
    /// [`HeartbeatAction::Heartbeat`] counts as sent.
    pub fn poll(&mut self, now: Moment, ahead: Duration) -> HeartbeatAction {
        if now >= self.valid_until {
            return HeartbeatAction::Lapsed;
        }
        let ahead = if self.faults == 0 { ahead } else { Duration::ZERO };
        if !self.in_flight && self.heartbeat_at <= now + ahead {
            self.in_flight = true;
            return HeartbeatAction::Heartbeat;
        }
        HeartbeatAction::Sleep(self.due())
    }

    /// When there is something to do next.
    pub fn due(&self) -> Moment {
        if self.in_flight { self.valid_until } else { self.heartbeat_at.min(self.valid_until) }
    }

    /// Sends a heartbeat at the next poll, because there is something to report with it, if that
    /// [has an effect](Self::can_send_soon).
    pub fn send_soon(&mut self, now: Moment) {
        if self.can_send_soon() {
            self.heartbeat_at = self.heartbeat_at.min(now);
        }
    }

    /// A heartbeat that was sent at `sent_at` has reached the store. A reply that arrives after the session
    /// lapsed changes nothing (2).
    pub fn handle_alive(&mut self, sent_at: Moment, now: Moment) {
        self.in_flight = false;
        self.faults = 0;
        if now < self.valid_until {
            self.extend_validity(sent_at);
        }
    }

    /// The store reports that the session has lapsed.
    pub fn handle_lapsed(&mut self) {
        self.in_flight = false;
        self.valid_until = Moment::ZERO;
    }

    /// The store does not know the session. If that is alive by this clock, the next heartbeat is due at once.
    pub fn handle_forgotten(&mut self, now: Moment) {
        self.in_flight = false;
        self.faults = 0;
        self.heartbeat_at = self.heartbeat_at.min(now);
    }

    /// A heartbeat had no reply, or none with the status of the session. It is sent again.
    pub fn handle_fault(&mut self, now: Moment, random: Random<'_>) {
        self.in_flight = false;
        self.faults += 1;
        let pause = FAULT_BACKOFF.pause(self.faults);
        let pause = pause.min(self.alive / (HEARTBEATS_PER_TTL * 2));
        self.heartbeat_at = now + Jitter::upper_half(pause).pick(random());
    }

    fn extend_validity(&mut self, sent_at: Moment) {
        self.valid_until = self.valid_until.max(sent_at + self.alive - drift(self.alive));
        self.heartbeat_at = sent_at + self.alive / HEARTBEATS_PER_TTL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Duration = Duration::from_secs(4);

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    #[test]
    fn a_session_is_over_before_the_store_can_say_so() {
        // The store counts from the arrival of the heartbeat, which is after it was sent.
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(100));
        for sent in [1_100, 2_100, 3_100] {
            assert_eq!(schedule.poll(ms(sent), Duration::ZERO), HeartbeatAction::Heartbeat);
            schedule.handle_alive(ms(sent), ms(sent + 7));
            assert!(schedule.valid_until() < ms(sent) + ALIVE);
        }
        assert_eq!(schedule.poll(ms(7_100), Duration::ZERO), HeartbeatAction::Lapsed);
        assert_eq!(schedule.poll(ms(7_101), Duration::ZERO), HeartbeatAction::Lapsed, "and stays so");
    }

    #[test]
    fn one_heartbeat_at_a_time_is_in_flight() {
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(0));
        assert_eq!(schedule.poll(ms(1_000), Duration::ZERO), HeartbeatAction::Heartbeat);
        assert_eq!(schedule.poll(ms(3_000), Duration::ZERO), HeartbeatAction::Sleep(schedule.valid_until()));
        schedule.handle_fault(ms(3_000), &mut || u64::MAX);
        assert_eq!(
            schedule.poll(ms(3_049), Duration::ZERO),
            HeartbeatAction::Sleep(ms(3_050)),
            "again after a pause"
        );
        assert_eq!(schedule.poll(ms(3_050), Duration::ZERO), HeartbeatAction::Heartbeat);
        schedule.handle_alive(ms(1_000), ms(3_060));
        assert_eq!(
            schedule.valid_until(),
            ms(1_000) + ALIVE - drift(ALIVE),
            "it counts from its own sending"
        );
        schedule.handle_alive(ms(500), ms(3_060));
        assert_eq!(schedule.valid_until(), ms(1_000) + ALIVE - drift(ALIVE), "and never goes back");
    }

    #[test]
    fn a_heartbeat_may_be_sent_earlier_than_due() {
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(0));
        let ahead = schedule.max_ahead();
        assert_eq!(ahead, Duration::from_millis(40));
        assert_eq!(schedule.poll(ms(959), ahead), HeartbeatAction::Sleep(ms(1_000)));
        assert_eq!(schedule.poll(ms(960), ahead), HeartbeatAction::Heartbeat);
        schedule.handle_alive(ms(960), ms(961));
        assert_eq!(schedule.due(), ms(1_960));
        assert_eq!(schedule.poll(ms(1_960), ahead), HeartbeatAction::Heartbeat);
        schedule.handle_fault(ms(2_000), &mut || u64::MAX);
        assert_eq!(
            schedule.poll(ms(2_049), ahead),
            HeartbeatAction::Sleep(ms(2_050)),
            "after a fault it is not"
        );
    }

    #[test]
    fn pauses_after_faults_leave_time_for_more_tries() {
        let mut schedule = HeartbeatSchedule::new(Duration::from_secs(1), ms(0));
        let mut now = ms(250);
        let mut tries = 0;
        while schedule.poll(now, Duration::ZERO) != HeartbeatAction::Lapsed {
            tries += 1;
            schedule.handle_fault(now, &mut || u64::MAX);
            now = schedule.due();
        }
        assert!(tries >= 6, "{tries}");
    }

    #[test]
    fn a_late_reply_does_not_revive_a_session() {
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(0));
        assert_eq!(schedule.poll(ms(3_900), Duration::ZERO), HeartbeatAction::Heartbeat);
        schedule.handle_alive(ms(3_900), ms(3_990));
        assert_eq!(schedule.poll(ms(3_990), Duration::ZERO), HeartbeatAction::Lapsed);
    }

    #[test]
    fn a_forgotten_session_sends_a_heartbeat_at_once() {
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(0));
        assert_eq!(schedule.poll(ms(1_000), Duration::ZERO), HeartbeatAction::Heartbeat);
        schedule.handle_forgotten(ms(1_010));
        assert_eq!(schedule.poll(ms(1_010), Duration::ZERO), HeartbeatAction::Heartbeat);
        assert_eq!(schedule.poll(ms(1_010), Duration::ZERO), HeartbeatAction::Sleep(schedule.valid_until()));
        schedule.handle_alive(ms(1_010), ms(1_020));
        assert_eq!(schedule.valid_until(), ms(1_010) + ALIVE - drift(ALIVE));
        assert_eq!(schedule.poll(ms(4_900), Duration::ZERO), HeartbeatAction::Heartbeat);
        schedule.handle_forgotten(ms(5_000));
        let late = schedule.poll(ms(5_000), Duration::ZERO);
        assert_eq!(late, HeartbeatAction::Lapsed, "its own clock decides");
    }

    #[test]
    fn a_session_lapses_when_the_store_reports_it() {
        let mut schedule = HeartbeatSchedule::new(ALIVE, ms(0));
        schedule.send_soon(ms(10));
        assert_eq!(schedule.poll(ms(10), Duration::ZERO), HeartbeatAction::Heartbeat);
        schedule.handle_lapsed();
        assert_eq!(schedule.poll(ms(11), Duration::ZERO), HeartbeatAction::Lapsed);
    }
}
