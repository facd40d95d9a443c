//! Retry policies: always with jitter, always with a cap.

use std::time::Duration;

/// How long to pause between tries.
///
/// ```
/// use leasehold_core::{Backoff, RetryPolicy};
/// use std::time::Duration;
///
/// let pause = Backoff::Exponential { first: Duration::from_millis(50), max: Duration::from_secs(2) };
/// let retry = match pause {
///     Backoff::Constant(pause) => RetryPolicy::constant(pause),
///     Backoff::Exponential { first, max } => RetryPolicy::exponential(first, max),
/// };
/// assert_eq!(retry.jitter(0.0).backoff_after(3, 0), Some(Duration::from_millis(200)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// The same pause every time.
    Constant(Duration),
    /// `first`, then twice as long each time, up to `max`.
    Exponential {
        /// The first pause.
        first: Duration,
        /// The longest pause.
        max: Duration,
    },
}

/// How often to try for a lock without queueing for it.
///
/// ```
/// use leasehold_core::{Backoff, RetryPolicy};
/// use std::time::Duration;
///
/// let retry = RetryPolicy::constant(Duration::from_millis(200)).jitter(0.5).tries(10);
/// let pause = retry.backoff_after(1, u64::MAX).expect("nine more tries are left");
/// assert!(pause > Duration::from_millis(100) && pause <= Duration::from_millis(200));
/// assert_eq!(retry.backoff_after(10, 0), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    pause: Backoff,
    jitter: f64,
    tries: Option<u32>,
}

impl RetryPolicy {
    /// The same pause between all tries, half of it jitter.
    pub const fn constant(pause: Duration) -> Self {
        Self { pause: Backoff::Constant(pause), jitter: 0.5, tries: None }
    }

    /// A pause that doubles from `first` to `max`, half of it jitter.
    pub const fn exponential(first: Duration, max: Duration) -> Self {
        Self { pause: Backoff::Exponential { first, max }, jitter: 0.5, tries: None }
    }

    /// Sets how much of a pause is random, from 0 (none of it) to 1 (all of it).
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 };
        self
    }

    /// At most that many tries, including the first.
    #[must_use]
    pub const fn tries(mut self, max: u32) -> Self {
        self.tries = Some(max);
        self
    }

    /// The pause after that many failed tries, or `None` if no further try is allowed. At least one
    /// millisecond, to prevent a busy loop. `random` is 64 random bits.
    pub fn backoff_after(&self, tried: u32, random: u64) -> Option<Duration> {
        if self.tries.is_some_and(|max| tried >= max) {
            return None;
        }
        let full = match self.pause {
            Backoff::Constant(pause) => pause,
            Backoff::Exponential { first, max } => {
                first.saturating_mul(1 << tried.saturating_sub(1).min(20)).min(max)
            }
        };
        #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
        let share = 1.0 - self.jitter * (1.0 - random as f64 / u64::MAX as f64);
        Some(full.mul_f64(share).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_capped_and_spread() {
        let retry = RetryPolicy::exponential(Duration::from_millis(10), Duration::from_secs(1)).jitter(1.0);
        for tried in [1, 2, 8, 40, u32::MAX] {
            assert!(
                retry.backoff_after(tried, u64::MAX).expect("no bound on tries") <= Duration::from_secs(1)
            );
            assert_eq!(retry.backoff_after(tried, 0), Some(Duration::from_millis(1)));
        }
        assert_eq!(retry.jitter(0.0).backoff_after(3, 7), Some(Duration::from_millis(40)));
        assert_eq!(retry.tries(0).backoff_after(0, 7), None);
        assert!(retry.jitter(f64::NAN).backoff_after(1, 7).is_some());
    }
}
