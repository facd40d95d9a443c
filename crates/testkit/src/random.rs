//! Random numbers from one seed, so that a failure can be reproduced.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that sets the seed.
const SEED: &str = "LEASEHOLD_SEED";

/// The variable that sets the share of the seeds.
const SHARE: &str = "LEASEHOLD_SHARE";

/// The seeds below `count` that this process runs: all, or the share in `LEASEHOLD_SHARE`, as `0..6/10` for the first six of
/// each ten. So several processes, each with another server, run each seed once.
///
/// Panics if the variable is set to something else.
///
/// ```
/// use leasehold_testkit::share_of_seeds;
///
/// assert_eq!(share_of_seeds(3), [0, 1, 2]); // unless LEASEHOLD_SHARE is set
/// ```
#[allow(clippy::missing_panics_doc, reason = "it is said above")]
pub fn share_of_seeds(count: u64) -> Vec<u64> {
    match std::env::var(SHARE) {
        Err(_) => (0..count).collect(),
        Ok(share) => {
            let (first, end, of) =
                parse_share(&share).unwrap_or_else(|| panic!("{SHARE} is as `0..6/10`, and not `{share}`"));
            (0..count).filter(|seed| (first..end).contains(&(seed % of))).collect()
        }
    }
}

/// First, end, and out of how many.
fn parse_share(text: &str) -> Option<(u64, u64, u64)> {
    let (range, of) = text.split_once('/')?;
    let (first, end) = range.split_once("..")?;
    let (first, end, of) = (first.parse().ok()?, end.parse().ok()?, of.parse().ok()?);
    (first < end && end <= of).then_some((first, end, of))
}

/// A source of random numbers (`SplitMix64`).
#[derive(Debug)]
pub struct Random {
    seed: u64,
    state: AtomicU64,
}

impl Random {
    /// A generator with the seed in `LEASEHOLD_SEED`, or a fresh one.
    pub fn from_env() -> Self {
        let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        let fresh = || std::hash::RandomState::new().build_hasher().finish();
        Self::from_seed(given.unwrap_or_else(fresh))
    }

    /// A generator with this seed.
    pub const fn from_seed(seed: u64) -> Self {
        Self { seed, state: AtomicU64::new(seed) }
    }

    /// A separate generator, whose use does not affect the numbers of this one.
    #[must_use]
    pub fn branch(&self) -> Self {
        Self::from_seed(self.bits())
    }

    /// The setting that repeats the same numbers.
    pub fn seed_setting(&self) -> String {
        format!("{SEED}={}", self.seed)
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A number from `least` to `most`.
    pub fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True with a probability of `per_mille` in a thousand.
    pub fn chance(&self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A random element.
    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        let index = self.below(of.len() as u64);
        &of[usize::try_from(index).unwrap_or(0)]
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        std::array::from_fn(|_| self.bits().to_le_bytes()[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_range_of_a_number() {
        assert_eq!(parse_share("0..6/10"), Some((0, 6, 10)));
        assert_eq!(parse_share("9..10/10"), Some((9, 10, 10)));
        for wrong in ["", "1/10", "6..6/10", "9..11/10", "a..b/c"] {
            assert_eq!(parse_share(wrong), None, "{wrong}");
        }
    }
}
