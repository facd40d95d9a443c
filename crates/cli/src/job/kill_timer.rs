//! When a command has to end because its lock does: a state machine without IO. It sends no signals itself.
//!
//! 1. The command is gone before the lease can have ended by the server's clock: it is killed a margin before the
//!    deadline that the library computes, which is itself on the safe side of the server's.
//! 2. The command has the whole grace between the two signals if renewals fail, and less only if the loss is detected
//!    later.
//! 3. Once SIGTERM was sent, the command is killed after the grace, even if the lock can be renewed again.

use leasehold::Moment;
use std::time::Duration;

/// How much earlier than the deadline a command is killed, at most: signals and timers take a moment.
const MAX_MARGIN: Duration = Duration::from_millis(50);

/// When the command under one hold has to end.
#[derive(Debug)]
pub(crate) struct KillTimer {
    grace: Duration,
    margin: Duration,
    /// The latest deadline that was seen while the lock was held.
    deadline: Moment,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Held,
    Terminating { kill_at: Moment },
    Killed,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillAction {
    /// Nothing before this moment.
    WaitUntil(Moment),
    /// Send SIGTERM to the command.
    Terminate,
    /// Kill the command.
    Kill,
    /// Nothing more: the command has been killed.
    Done,
}

impl KillTimer {
    /// A timer for a hold with this lease that is valid until `valid_until`.
    pub(crate) fn new(lease: Duration, grace: Duration, valid_until: Moment) -> Self {
        let margin = MAX_MARGIN.min(lease.saturating_sub(grace) / 4);
        Self { grace, margin, deadline: valid_until, stage: Stage::Held }
    }

    /// What to do at `now`, if the hold is valid until `valid_until`; zero means that it is known to be lost. A
    /// returned signal counts as sent.
    pub(crate) fn poll(&mut self, now: Moment, valid_until: Moment) -> KillAction {
        match self.stage {
            Stage::Held => {
                self.deadline = self.deadline.max(valid_until);
                let terminate_at = self.deadline - self.margin - self.grace;
                if valid_until != Moment::ZERO && now < terminate_at {
                    return KillAction::WaitUntil(terminate_at);
                }
                let kill_at = (now + self.grace).min(self.deadline - self.margin);
                self.stage = Stage::Terminating { kill_at };
                KillAction::Terminate
            }
            Stage::Terminating { kill_at } if now < kill_at => KillAction::WaitUntil(kill_at),
            Stage::Terminating { .. } => {
                self.stage = Stage::Killed;
                KillAction::Kill
            }
            Stage::Killed => KillAction::Done,
        }
    }

    /// Whether it has required that the command ends.
    pub(crate) fn has_terminated(&self) -> bool {
        self.stage != Stage::Held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(5);

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn timer() -> KillTimer {
        KillTimer::new(LEASE, GRACE, ms(30_000))
    }

    #[test]
    fn a_hold_that_is_renewed_is_left_alone() {
        let mut timer = timer();
        assert_eq!(timer.poll(ms(0), ms(30_000)), KillAction::WaitUntil(ms(24_950)));
        assert_eq!(timer.poll(ms(24_949), ms(54_000)), KillAction::WaitUntil(ms(48_950)));
        assert!(!timer.has_terminated());
    }

    #[test]
    fn without_renewals_the_command_has_the_grace_and_is_gone_before_the_deadline() {
        let mut timer = timer();
        assert_eq!(timer.poll(ms(24_950), ms(30_000)), KillAction::Terminate);
        assert_eq!(timer.poll(ms(24_950), ms(30_000)), KillAction::WaitUntil(ms(29_950)));
        assert_eq!(timer.poll(ms(27_000), ms(57_000)), KillAction::WaitUntil(ms(29_950)), "no way back");
        assert_eq!(timer.poll(ms(29_950), ms(57_000)), KillAction::Kill);
        assert_eq!(timer.poll(ms(29_951), ms(57_000)), KillAction::Done);
    }

    #[test]
    fn a_lock_that_was_taken_away_leaves_the_grace_or_the_rest_of_the_lease() {
        let mut timer = timer();
        assert_eq!(timer.poll(ms(10_000), Moment::ZERO), KillAction::Terminate);
        assert_eq!(timer.poll(ms(10_000), Moment::ZERO), KillAction::WaitUntil(ms(15_000)));
        let mut timer = KillTimer::new(LEASE, GRACE, ms(30_000));
        assert_eq!(timer.poll(ms(27_000), Moment::ZERO), KillAction::Terminate);
        assert_eq!(timer.poll(ms(27_000), Moment::ZERO), KillAction::WaitUntil(ms(29_950)));
    }

    #[test]
    fn after_a_stop_past_the_deadline_the_command_is_killed_at_once() {
        let mut timer = timer();
        assert_eq!(timer.poll(ms(90_000), ms(30_000)), KillAction::Terminate);
        assert_eq!(timer.poll(ms(90_000), Moment::ZERO), KillAction::Kill);
        assert!(timer.has_terminated());
    }

    #[test]
    fn a_short_lease_has_a_short_margin() {
        let lease = Duration::from_millis(200);
        let mut timer = KillTimer::new(lease, Duration::from_millis(100), ms(200));
        assert_eq!(timer.poll(ms(0), ms(200)), KillAction::WaitUntil(ms(75)));
    }
}
