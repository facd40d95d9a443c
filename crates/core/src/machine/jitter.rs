//! Random parts of intervals, so that clients do not act all at once, and growing pauses after faults.

use std::time::Duration;

/// A source of random bits.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

/// A random duration between two bounds.
pub(super) fn between((least, most): (Duration, Duration), random: u64) -> Duration {
    #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
    let share = random as f64 / u64::MAX as f64;
    least + most.saturating_sub(least).mul_f64(share)
}

/// The pause after that many faults in a row: doubles from the first to the longest.
pub(super) fn backoff((first, longest): (Duration, Duration), faults: u32) -> Duration {
    first.saturating_mul(1 << faults.saturating_sub(1).min(10)).min(longest)
}
