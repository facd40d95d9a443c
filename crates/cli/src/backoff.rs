//! Pauses between attempts.

use leasehold::Moment;
use std::time::Duration;

/// Pauses that double, up to a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The next pause, without jitter.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Starts again with the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Half of the pause, and a random part of the other half.
pub(crate) fn half_jittered(now: Moment, pause: Duration) -> Duration {
    pause / 2 + jitter(now, pause / 2)
}

/// A part of `max` that differs from process to process, taken from the last digits of a clock.
pub(crate) fn jitter(now: Moment, max: Duration) -> Duration {
    let micros = u32::try_from(now.as_micros() % 1000).unwrap_or_default();
    max * micros / 1000
}
