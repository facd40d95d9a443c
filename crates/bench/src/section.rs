//! One critical section as its worker saw it, on the machine's monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One critical section.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Section {
    /// Which process ran it.
    pub(crate) process: u32,
    /// Its fencing token: sections are in the order of their tokens.
    pub(crate) fence: u64,
    /// When the lock was asked for, in nanoseconds.
    pub(crate) asked_ns: u64,
    /// When it was had.
    pub(crate) got_ns: u64,
    /// When its release was called.
    pub(crate) released_ns: u64,
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// From the call of a release to the next holder running, where that is in another process.
pub(crate) fn handovers_ns(sections: &mut [Section]) -> Vec<u64> {
    sections.sort_unstable_by_key(|section| section.fence);
    let pairs = sections.windows(2).filter(|pair| pair[0].process != pair[1].process);
    pairs.map(|pair| pair[1].got_ns.saturating_sub(pair[0].released_ns)).collect()
}
