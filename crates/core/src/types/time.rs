//! Time as the state machines see it.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the client's own clock, in microseconds since an arbitrary start.
///
/// The clock behind it continues while the machine is suspended (`CLOCK_BOOTTIME` on Linux) and never goes
/// back. It is never compared with the server's clock.
///
/// ```
/// use leasehold_core::Moment;
/// use std::time::Duration;
///
/// let sent = Moment::from_micros(5_000_000);
/// let ends = sent + Duration::from_secs(3);
/// assert_eq!(ends.since(sent), Duration::from_secs(3));
/// assert_eq!(sent.since(ends), Duration::ZERO); // never below zero
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The start of the clock: every other moment is later.
    pub const ZERO: Self = Self(0);

    /// A moment that many microseconds after the start of the clock.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the start of the clock.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`: zero if it was not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(earlier.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// How much of a lease the client gives up because its clock and the server's do not run at exactly the same
/// rate: 1 % of it, and 2 ms (or a tenth of the lease, if that is less).
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(leasehold_core::drift(Duration::from_secs(10)), Duration::from_millis(102));
/// assert_eq!(leasehold_core::drift(Duration::from_millis(1)), Duration::from_micros(110));
/// ```
pub fn drift(lease: Duration) -> Duration {
    lease / 100 + (lease / 10).min(Duration::from_millis(2))
}

/// How much longer than the client relies on a hold the store must keep it, so that at least `delay` passes between these
/// two ends although the two clocks do not run at exactly the same rate.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(leasehold_core::delay_margin(Duration::ZERO), Duration::ZERO);
/// assert_eq!(leasehold_core::delay_margin(Duration::from_secs(99)), Duration::from_secs(100));
/// ```
pub fn delay_margin(delay: Duration) -> Duration {
    delay.saturating_add(delay / 99)
}

/// A lease in whole milliseconds, as stores count it: at least one, and rounded up, because the client relies
/// on the fraction as well.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(leasehold_core::whole_millis(Duration::from_micros(1_001)), 2);
/// assert_eq!(leasehold_core::whole_millis(Duration::ZERO), 1);
/// ```
pub fn whole_millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
