//! The time base of a run, which all its processes share.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Microseconds since the run began, by the monotonic clock of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunClock {
    origin_us: u64,
}

impl RunClock {
    /// A run that begins now.
    pub(crate) fn begin() -> Self {
        Self { origin_us: monotonic_us() }
    }

    /// The run of another process.
    pub(crate) const fn at(origin_us: u64) -> Self {
        Self { origin_us }
    }

    /// What another process needs to know of it.
    pub(crate) const fn origin_us(self) -> u64 {
        self.origin_us
    }

    pub(crate) fn now_us(self) -> u64 {
        monotonic_us().saturating_sub(self.origin_us)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_micros(self.now_us())
    }
}

fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000 + part(now.tv_nsec) / 1000
}
