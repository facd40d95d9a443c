//! What the statistics of a class of locks say about its lease, its renewal, and whether to split a lock: no IO.
//!
//! docs/how-to/observe.md gives the reason for each rule.

use leasehold::inspect::LockStatistics;
use std::time::Duration;

/// How many times as long as the usual hold a lease is: it survives pauses, and a crash costs little. More if there are holds
/// that even this does not cover.
const LEASE_FACTOR: u32 = 4;
const LEASE_FACTOR_OF_TAIL: u32 = 5;
/// The shortest lease: a packet that is lost once arrives 0.2 s late, and each renewal has a third of the lease.
const MIN_LEASE: Duration = Duration::from_millis(500);
/// How long the session of a dead process lasts at most, unless its program sets it.
const SESSION_TTL: Duration = Duration::from_secs(10);
/// How many times as long as the longest hold a cap is.
const CAP_FACTOR: u32 = 2;
/// From which part of the acquires on that find the lock taken it is a bottleneck.
const BUSY_SHARE: f64 = 0.5;
/// How many acquires wait on average while a lock is held that is one.
const BUSY_WAITERS: f64 = 1.0;
/// With fewer holds, the p99 is no more than the longest.
const ENOUGH_HOLDS: u64 = 100;

/// The figures of a class, and what follows from them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Advice {
    pub(crate) holds: u64,
    /// Whether there are enough of them for a p99.
    pub(crate) is_enough: bool,
    pub(crate) holds_per_hour: f64,
    /// Set if a hold has ended.
    pub(crate) hold_times: Option<Times>,
    pub(crate) wait_times: Option<Times>,
    /// Which part of the acquires found the lock taken.
    pub(crate) share_taken: f64,
    /// How many acquires wait on average while a lock is held.
    pub(crate) waiting: f64,
    pub(crate) losses: u64,
    /// Set if a hold has ended.
    pub(crate) sizing: Option<Sizing>,
    /// Whether one lock should become several.
    pub(crate) split: bool,
}

/// Times of holds or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
}

/// How to limit the holds of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizing {
    pub(crate) lease: Duration,
    /// How many times as long as the usual hold it is; `None` if it is the shortest one.
    pub(crate) factor: Option<u32>,
    /// How long the next waiter waits at most for the lock of a process that has died.
    pub(crate) crash_wait: Duration,
    /// The total time after which a hold is given up. `None` if holds vary too much for one.
    pub(crate) cap: Option<Duration>,
}

impl Advice {
    pub(crate) fn of(class: &LockStatistics) -> Self {
        let LockStatistics { holds, waits, longest_hold, longest_wait, losses, .. } = class;
        let times = |histogram: &leasehold::inspect::TimeHistogram, longest: Duration| {
            // Of holds that were lost, which is not known.
            let longest = if longest.is_zero() { histogram.quantile(1.0)? } else { longest };
            // The middle of a bucket can be beyond the longest time in it.
            let quantile = |part| Some(histogram.quantile(part)?.min(longest));
            Some(Times { p50: quantile(0.5)?, p99: quantile(0.99)?, longest })
        };
        let hold_times = times(holds, *longest_hold);
        let (count, share_taken) = (holds.count(), class.share_taken());
        let held = holds.total();
        let waiting = if held.is_zero() { 0.0 } else { waits.total().as_secs_f64() / held.as_secs_f64() };
        #[allow(clippy::cast_precision_loss, reason = "a count of this size need not be exact")]
        let holds_per_hour = count as f64 * 3600.0 / class.span().as_secs_f64().max(1.0);
        Self {
            holds: count,
            is_enough: count >= ENOUGH_HOLDS,
            holds_per_hour,
            hold_times,
            wait_times: times(waits, *longest_wait),
            share_taken,
            waiting,
            losses: *losses,
            sizing: hold_times.map(Sizing::of),
            split: share_taken >= BUSY_SHARE && waiting >= BUSY_WAITERS,
        }
    }
}

impl Sizing {
    fn of(Times { p50, p99, longest }: Times) -> Self {
        let factor = if p99 <= p50 * LEASE_FACTOR { LEASE_FACTOR } else { LEASE_FACTOR_OF_TAIL };
        let wanted = rounded(p50 * factor);
        let lease = wanted.max(MIN_LEASE);
        // A session that is over ends the hold before its lease.
        let crash_wait = lease.min(SESSION_TTL);
        let cap = (p99 <= lease).then(|| rounded((longest * CAP_FACTOR).max(lease)));
        Self { lease, factor: (wanted >= MIN_LEASE).then_some(factor), crash_wait, cap }
    }
}

/// With two digits.
fn rounded(time: Duration) -> Duration {
    let mut unit = 1;
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    while ms / unit >= 100 {
        unit *= 10;
    }
    Duration::from_millis(ms.saturating_add(unit / 2) / unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn sizing(p50: u64, p99: u64, longest: u64) -> Sizing {
        Sizing::of(Times { p50: ms(p50), p99: ms(p99), longest: ms(longest) })
    }

    #[test]
    fn a_lease_is_three_to_five_times_the_usual_hold() {
        for (p50, p99, lease) in
            [(200, 200, 800), (198, 230, 790), (200, 900, 1_000), (30_000, 31_000, 120_000)]
        {
            let found = sizing(p50, p99, p99);
            assert_eq!(found.lease, ms(lease), "{p50}, {p99}");
            assert!(found.lease >= ms(p50 * 3) && found.lease <= ms(p50 * 5));
        }
    }

    #[test]
    fn short_holds_have_a_lease_that_survives_a_lost_packet() {
        let short = sizing(2, 5, 9);
        assert_eq!((short.lease, short.factor, short.cap), (MIN_LEASE, None, Some(MIN_LEASE)));
        assert_eq!(sizing(125, 130, 130).factor, Some(LEASE_FACTOR));
    }

    #[test]
    fn a_crash_costs_the_lease_or_the_rest_of_the_session() {
        assert_eq!(sizing(200, 230, 300).crash_wait, ms(800));
        assert_eq!(sizing(60_000, 61_000, 62_000).crash_wait, SESSION_TTL);
    }

    #[test]
    fn even_holds_can_have_a_cap_and_a_long_tail_needs_renewals() {
        assert_eq!(sizing(200, 230, 300).cap, Some(ms(800)), "a cap below the lease would be none");
        assert_eq!(sizing(200, 230, 1_234).cap, Some(ms(2_500)));
        assert_eq!(sizing(200, 20_000, 60_000).cap, None);
    }

    #[test]
    fn what_is_printed_has_two_digits() {
        for (exact, shown) in
            [(0, 0), (7, 7), (99, 99), (104, 100), (105, 110), (1_249, 1_200), (99_600, 100_000)]
        {
            assert_eq!(rounded(ms(exact)), ms(shown), "{exact}");
        }
        assert!(rounded(Duration::MAX) > ms(1 << 60));
    }
}
