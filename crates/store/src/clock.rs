//! The machine's clock that keeps running during a suspend.

use leasehold_core::Moment;
use rustix::time::{ClockId, clock_gettime};

/// A clock that counts while the machine is suspended and that cannot be set: leases are measured by it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere the monotonic clock; on Apple's systems it counts while the machine is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The current time of that clock.
pub fn boottime() -> Moment {
    let now = clock_gettime(CLOCK);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    Moment::from_micros(s * 1_000_000 + ns / 1000)
}
