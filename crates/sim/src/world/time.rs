//! True time, which no process can read, and the clocks that approximate it.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// True time: microseconds since the world began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The time since `earlier`; zero if it was not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A clock that runs at its own rate, and can be set.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    set_at: Instant,
    set_to_us: u64,
    /// How much faster than true time it runs, in millionths.
    ahead_ppm: i64,
}

impl Clock {
    /// A clock that shows `us` microseconds at the world's beginning.
    pub const fn new(us: u64, ahead_ppm: i64) -> Self {
        Self { set_at: Instant(0), set_to_us: us, ahead_ppm }
    }

    /// The reading of the clock.
    pub fn reading_us(&self, at: Instant) -> u64 {
        let passed = i128::from(at.0) - i128::from(self.set_at.0);
        let shown = i128::from(self.set_to_us) + (passed * self.rate()).div_euclid(MILLION);
        u64::try_from(shown).unwrap_or(0)
    }

    /// When the clock shows `us` for the first time, unless it is set before.
    pub fn shows_at(&self, us: u64) -> Instant {
        let missing = (i128::from(us) - i128::from(self.set_to_us)) * MILLION;
        let passed = missing.div_euclid(self.rate()) + i128::from(missing.rem_euclid(self.rate()) > 0);
        Instant(u64::try_from(i128::from(self.set_at.0) + passed).unwrap_or(0))
    }

    /// Sets the clock forward, or back.
    pub fn jump(&mut self, at: Instant, by_us: i64) {
        self.set_to_us = self.reading_us(at).saturating_add_signed(by_us);
        self.set_at = at;
    }

    const fn rate(&self) -> i128 {
        MILLION + self.ahead_ppm as i128
    }
}

const MILLION: i128 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_at_is_the_inverse_of_reading() {
        for ppm in [-5000, 0, 1, 9_000] {
            let mut clock = Clock::new(7_000_000, ppm);
            clock.jump(Instant(123_456), -1_000_000);
            for us in [6_000_000, 6_123_457, 99_999_999] {
                let at = clock.shows_at(us);
                assert!(clock.reading_us(at) >= us, "{ppm} {us}");
                assert!(at.0 == 0 || clock.reading_us(Instant(at.0 - 1)) < us, "{ppm} {us}");
            }
        }
    }
}
