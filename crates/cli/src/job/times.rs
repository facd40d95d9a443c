//! The lease, the session and the kill grace of a command, checked against each other.

use crate::duration::Shown;
use crate::lock::lease::GivenLease;
use crate::output::failure::Failure;
use anyhow::anyhow;
use std::time::Duration;

/// The default lease.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The default kill grace is at most this long.
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// The default session is at least this long.
const MIN_DEFAULT_SESSION: Duration = Duration::from_secs(10);
/// The default grace is at most the session divided by this. Up to a quarter of the remaining time may have passed
/// since the last heartbeat, and an outage of half a session is still tolerated.
const GRACES_PER_SESSION: u32 = 6;
/// Shorter leases leave no time to renew and to kill.
const MIN_LEASE: Duration = Duration::from_millis(200);
/// The library accepts no shorter session.
const MIN_SESSION: Duration = Duration::from_secs(1);

/// The times of a command under a lock, checked against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobTimes {
    pub(crate) lease: Duration,
    /// The time between SIGTERM and SIGKILL when the lock is lost.
    pub(crate) kill_grace: Duration,
    /// How long the session lives without a heartbeat, if the hold ends with it.
    pub(crate) session: Option<Duration>,
}

impl JobTimes {
    /// Fills in the defaults. `ends_with_session`: the hold ends with the session, not with its lease alone.
    pub(crate) fn new(
        given: GivenLease,
        ends_with_session: bool,
        session: Option<Duration>,
        kill_grace: Option<Duration>,
    ) -> Result<Self, Failure> {
        let lease = given.lease;
        if let Some(session) = session.filter(|session| *session < MIN_SESSION) {
            return Err(Failure::usage(anyhow!(
                "--session {} is too short: give {MIN_SESSION:?} at least, since a shorter session would end at any \
                 brief network delay",
                Shown(session)
            )));
        }
        let session = ends_with_session.then(|| {
            let for_grace =
                kill_grace.map_or(MIN_DEFAULT_SESSION, |grace| grace.saturating_mul(GRACES_PER_SESSION));
            session.unwrap_or(for_grace.min(lease).max(MIN_DEFAULT_SESSION))
        });
        let max_grace =
            session.map_or(MAX_DEFAULT_GRACE, |session| MAX_DEFAULT_GRACE.min(session / GRACES_PER_SESSION));
        let kill_grace = kill_grace.unwrap_or(max_grace.min(lease / 3));
        Self { lease, kill_grace, session }.check(given.option).map_err(Failure::usage)
    }

    /// How long a hold stays valid, at most, without an answer from the store.
    pub(crate) fn validity(self) -> Duration {
        self.session.map_or(self.lease, |session| session.min(self.lease))
    }

    /// How much of that may pass before the command gets SIGTERM.
    pub(crate) fn time_to_renew(self) -> Duration {
        self.validity().saturating_sub(self.kill_grace)
    }

    /// `option` gives the lease.
    fn check(self, option: &'static str) -> anyhow::Result<Self> {
        let Self { lease, kill_grace, session } = self;
        if lease < MIN_LEASE {
            return Err(anyhow!(
                "{option} {} is too short: give {MIN_LEASE:?} at least, to leave time to renew the lock and to end the \
                 command",
                Shown(lease)
            ));
        }
        GivenLease::new(option, lease).check()?;
        if kill_grace >= lease {
            return Err(anyhow!(
                "--kill-grace {kill_grace:?} is not shorter than the lease of {lease:?}: the command would have to \
                 end before it starts; shorten --kill-grace or lengthen {option}"
            ));
        }
        if let Some(session) = session.filter(|session| kill_grace > *session / 2) {
            return Err(anyhow!(
                "--kill-grace {kill_grace:?} is more than half of the session of {session:?}, so that a late heartbeat \
                 would end the command: lengthen the session (--session {}s), or use none (--no-session)",
                kill_grace.saturating_mul(GRACES_PER_SESSION).as_secs() + 1
            ));
        }
        let min_time = (self.validity() / 20).max(Duration::from_millis(100));
        if self.time_to_renew() < min_time {
            return Err(anyhow!(
                "--kill-grace {kill_grace:?} leaves no time to renew a lease of {lease:?}: it must be shorter \
                 than the lease by at least {min_time:?}"
            ));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_shorter_than_the_lease_and_leaves_time_to_renew() {
        let check = |lease, grace, wanted: Option<&str>| {
            let (lease, grace) = (Duration::from_millis(lease), Duration::from_millis(grace));
            let times = JobTimes { lease, kill_grace: grace, session: None };
            match (times.check("--lease"), wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(wanted)) => assert!(error.to_string().contains(wanted), "{error}"),
                (result, _) => panic!("{lease:?} {grace:?}: {result:?}"),
            }
        };
        check(30_000, 5_000, None);
        check(30_000, 25_000, None);
        check(30_000, 0, None);
        check(1_000, 900, None);
        check(30_000, 30_000, Some("is not shorter than the lease"));
        check(5_000, 30_000, Some("is not shorter than the lease"));
        check(30_000, 29_000, Some("leaves no time to renew"));
        check(100, 10, Some("--lease 100ms is too short: give 200ms at least"));
        check(0, 0, Some("--lease 0s is too short"));
        let lease = DEFAULT_LEASE;
        let check =
            |kill_grace| JobTimes { lease, kill_grace, session: Some(MIN_DEFAULT_SESSION) }.check("--lease");
        assert!(check(MAX_DEFAULT_GRACE).is_ok());
        let error = check(2 * MAX_DEFAULT_GRACE).expect_err("a late heartbeat would end the command");
        assert!(error.to_string().contains("--session 61s"), "{error}");
    }

    #[test]
    fn an_error_names_the_option_that_was_given() {
        let check = |given, session, wanted: &str| {
            let error = JobTimes::new(given, true, session, None).expect_err("it is too short").message();
            assert!(error.starts_with(wanted), "{error}");
        };
        check(GivenLease::new("--max-hold", Duration::ZERO), None, "--max-hold 0s is too short");
        check(GivenLease::new("--once-per", Duration::MAX), None, "invalid --once-per: a lease is at most");
        let lease = GivenLease::new("--lease", DEFAULT_LEASE);
        check(lease, Some(Duration::from_millis(999)), "--session 999ms is too short");
    }
}
