//! Random parts of intervals, so that clients do not act all at once, and growing pauses after faults.

use std::time::Duration;

/// A source of random bits.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

/// The bounds of a random duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jitter {
    pub(super) min: Duration,
    pub(super) max: Duration,
}

impl Jitter {
    pub(super) const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    /// The upper half of the time up to `max`.
    pub(super) fn upper_half(max: Duration) -> Self {
        Self::new(max / 2, max)
    }

    /// A random duration between the bounds.
    pub(super) fn pick(self, random: u64) -> Duration {
        #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
        let fraction = random as f64 / u64::MAX as f64;
        self.min + self.max.saturating_sub(self.min).mul_f64(fraction)
    }
}

/// Pauses that grow with the number of faults in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Backoff {
    pub(super) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after that many faults in a row: doubles from the first to the longest.
    pub(super) fn pause(self, faults: u32) -> Duration {
        self.first.saturating_mul(1 << faults.saturating_sub(1).min(10)).min(self.longest)
    }
}
