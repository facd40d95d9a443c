//! How often a fleet is read: so that the server spends under 1 % of a core on it.
//!
//! 1. Each request is followed by a pause of so many times what it costs the server. What it costs is computed, and not
//!    measured: the time until the reply is mostly the network's.
//! 2. The figures were measured on a Redis 7.0 that is idle between two requests: then a request finds nothing in the processor's
//!    caches, and costs two to three times what it costs in a loop. `cargo xtask bench top` prints what it comes to.

use std::time::Duration;

/// The part of a core that the server may spend: one in so many (1).
const ONE_IN: u32 = 140;
/// What one request costs, whatever is in it.
const REQUEST: Duration = Duration::from_micros(150);
/// What the look at one lock costs.
const LOOK: Duration = Duration::from_micros(50);
/// What it costs to list a session, and each lock that it reports.
const SESSION: Duration = Duration::from_micros(20);
const REPORTED: Duration = Duration::from_nanos(1_200);

/// The pause after a look at so many locks.
pub(super) fn after_looks(locks: usize) -> Duration {
    (REQUEST + times(LOOK, locks)) * ONE_IN
}

/// The pause after a list of so many sessions that report so many locks.
pub(super) fn after_list(sessions: usize, locks: usize) -> Duration {
    (REQUEST + times(SESSION, sessions) + times(REPORTED, locks)) * ONE_IN
}

fn times(each: Duration, count: usize) -> Duration {
    each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_after_a_page_and_after_the_list_of_a_fleet_are_short() {
        assert!(after_looks(24) <= Duration::from_millis(200));
        assert!(after_list(100, 10_000) <= Duration::from_millis(2_000));
    }
}
