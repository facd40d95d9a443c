//! The machine's clock that keeps running during a suspend.

use leasehold_core::Moment;

/// The current time of that clock.
///
/// On Unix it is the same in all processes of the machine. On Windows it is this process's own.
#[cfg(unix)]
pub fn boottime() -> Moment {
    use rustix::time::{ClockId, clock_gettime};

    /// A clock that counts while the machine is suspended and that cannot be set: leases are measured by it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    /// Elsewhere the monotonic clock; on Apple's systems it counts while the machine is suspended.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let now = clock_gettime(CLOCK);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    Moment::from_micros(s * 1_000_000 + ns / 1000)
}

/// The current time of that clock.
///
/// It is the performance counter, which counts while the machine is suspended and cannot be set. It begins in each process
/// when it is first read, so it is not the same in two processes.
#[cfg(not(unix))]
pub fn boottime() -> Moment {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    /// As if the machine had been booted that long before: moments in the past of a new process exist, too.
    const BEFORE: Duration = Duration::from_secs(86_400);
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    let micros = (BEFORE + START.elapsed()).as_micros();
    Moment::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
