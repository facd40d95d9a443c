//! The lease, the session and the kill grace of a run, checked against each other.

use crate::args::RunArgs;
use crate::output::failure::Failure;
use anyhow::{Context, anyhow};
use leasehold::Lease;
use std::time::Duration;

/// The default lease.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
const SESSION: Duration = Duration::from_secs(10);
/// The default grace is at most the session divided by this. Up to a quarter of the remaining time may have passed
/// since the last heartbeat, and an outage of half a session is still tolerated.
const GRACES: u32 = 6;
/// Shorter leases leave no time to renew and to kill.
const SHORTEST_LEASE: Duration = Duration::from_millis(200);

/// The times of a run, checked against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcquireTerms {
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    /// How long the session lives without a heartbeat, if it can lapse.
    pub(crate) session: Option<Duration>,
}

impl AcquireTerms {
    /// For a run whose hold ends with the session (`by_session`), or with its lease alone.
    pub(crate) fn of(args: &RunArgs, by_session: bool) -> Result<Self, Failure> {
        let lease = match args.once.once_per {
            // The hold of a turn covers the whole period from the start.
            Some(period) => args.once.at_most.unwrap_or(period).max(period),
            None => args.lease.unwrap_or(LEASE),
        };
        // A hold never outlives this process by more than its cap.
        let lease = args.max_hold.map_or(lease, |cap| cap.min(lease));
        Self::with(lease, by_session, args.session, args.kill_grace)
    }

    /// The same from a lease and the optional rest.
    pub(crate) fn with(
        lease: Duration,
        by_session: bool,
        session: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Self, Failure> {
        let session = by_session.then(|| {
            let for_grace = grace.map_or(SESSION, |grace| grace.saturating_mul(GRACES));
            session.unwrap_or(for_grace.min(lease).max(SESSION))
        });
        let most = session.map_or(GRACE, |session| GRACE.min(session / GRACES));
        let grace = grace.unwrap_or(most.min(lease / 3));
        Self { lease, grace, session }.check().map_err(Failure::usage)
    }

    /// How long the lock can be trusted, at most, without an answer from the store.
    pub(crate) fn bound(self) -> Duration {
        self.session.map_or(self.lease, |session| session.min(self.lease))
    }

    /// How much of that may pass before the command gets SIGTERM.
    pub(crate) fn room(self) -> Duration {
        self.bound().saturating_sub(self.grace)
    }

    fn check(self) -> anyhow::Result<Self> {
        let Self { lease, grace, session } = self;
        if lease < SHORTEST_LEASE {
            return Err(anyhow!(
                "--lease, --max-hold or --once-per {lease:?} is too short: give {SHORTEST_LEASE:?} at least"
            ));
        }
        Lease::from(lease).check().context("invalid --lease")?;
        if grace >= lease {
            return Err(anyhow!(
                "--kill-grace {grace:?} is not shorter than the lease of {lease:?}: the command would have to \
                 end before it starts; shorten --kill-grace or lengthen --lease or --max-hold"
            ));
        }
        if let Some(session) = session.filter(|session| grace > *session / 2) {
            return Err(anyhow!(
                "--kill-grace {grace:?} is more than half of the session of {session:?}, so that a late heartbeat \
                 would end the command: lengthen the session (--session {}s), or use none (--no-session)",
                grace.saturating_mul(GRACES).as_secs() + 1
            ));
        }
        let room = (self.bound() / 20).max(Duration::from_millis(100));
        if self.room() < room {
            return Err(anyhow!(
                "--kill-grace {grace:?} leaves no time to renew a lease of {lease:?}: it must be shorter by \
                 {room:?} at least"
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
            let terms = AcquireTerms { lease, grace, session: None };
            match (terms.check(), wanted) {
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
        check(100, 10, Some("give 200ms at least"));
        let lease = Duration::from_secs(30);
        let terms = |grace, session| AcquireTerms { lease, grace, session: Some(session) }.check();
        assert!(terms(GRACE, SESSION).is_ok());
        let error = terms(2 * GRACE, SESSION).expect_err("a late heartbeat would end the command");
        assert!(error.to_string().contains("--session 61s"), "{error}");
    }
}
