//! Random numbers from one seed, so that a failure can be reproduced.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that sets the seed.
const SEED: &str = "LEASEHOLD_SEED";

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
