//! The clock on which the library counts a hold's deadline.

use leasehold::Moment;
use rustix::time::{ClockId, clock_gettime};

/// It goes on while the machine is suspended, which the runtime's timers do not notice.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere the monotonic clock, as in the library.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Now, by that clock.
pub(crate) fn now() -> Moment {
    let now = clock_gettime(CLOCK);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    Moment::from_micros(s * 1_000_000 + ns / 1000)
}
