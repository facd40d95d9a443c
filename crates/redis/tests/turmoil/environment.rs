//! A simulated host's environment: its clock, its randomness, and the place where its keeper runs.
//!
//! Everything comes from the seed and from simulated time; nothing here queries the real machine.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leasehold::Moment;
use leasehold::store::Environment;
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Locks a mutex that a single thread uses.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random numbers from a seed. Each use has its own stream, so that an additional number in one changes no other.
#[derive(Debug)]
pub(crate) struct SeededRng(Mutex<StdRng>);

impl SeededRng {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(stream))))
    }

    pub(crate) fn bits(&self) -> u64 {
        lock(&self.0).next_u64()
    }

    /// True once in `n` times on average.
    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        lock(&self.0).random_range(0..end)
    }

    /// A random number of milliseconds in that range.
    pub(crate) fn millis(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(lock(&self.0).random_range(least..=most))
    }
}

/// Simulated time, as the code of a host reads it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// In microseconds. A crashed host is dropped outside its runtime, where the time cannot be read.
    last_us: AtomicU64,
}

impl Clock {
    /// Time since the simulation began. Never goes back.
    pub(crate) fn elapsed(&self) -> Duration {
        let inside = tokio::runtime::Handle::try_current().is_ok();
        let now = if inside { turmoil::sim_elapsed() } else { None };
        let now_us = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        Duration::from_micros(self.last_us.fetch_max(now_us, Ordering::Relaxed).max(now_us))
    }
}

/// The clock of a machine, with its own start, which runs a little too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostClock {
    booted: Duration,
    /// How much too fast, in millionths.
    fast_ppm: i32,
}

impl HostClock {
    /// Within the allowance for clock drift.
    pub(crate) fn new(rng: &SeededRng) -> Self {
        let fast_ppm = i32::try_from(rng.below(4_000)).unwrap_or(0) - 2_000;
        Self { booted: rng.millis(0, 1_000_000), fast_ppm }
    }

    /// The clock's reading at a true time.
    pub(crate) fn at(&self, elapsed: Duration) -> Moment {
        Moment::ZERO + self.booted + elapsed.mul_f64(1.0 + f64::from(self.fast_ppm) / 1e6)
    }
}

/// The environment of one host.
#[derive(Clone)]
pub(crate) struct HostEnvironment {
    pub(crate) clock: Arc<Clock>,
    pub(crate) host_clock: HostClock,
    pub(crate) rng: Arc<SeededRng>,
    /// Called when the keeper panics: a task that panics reports nothing by itself.
    pub(crate) on_panic: Arc<dyn Fn() + Send + Sync>,
}

impl Environment for HostEnvironment {
    fn now(&self) -> Moment {
        self.host_clock.at(self.clock.elapsed())
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.clock.elapsed()
    }

    fn random(&self) -> u64 {
        self.rng.bits()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let left = at.since(self.now());
        // A clock that runs too fast reaches `at` before a true timer of that length has run out, and the other way
        // round.
        Box::pin(tokio::time::sleep(left + left / 400))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        let on_panic = Arc::clone(&self.on_panic);
        tokio::spawn(async move {
            if AssertUnwindSafe(keeper).catch_unwind().await.is_err() {
                on_panic();
            }
        });
        Ok(())
    }
}

impl fmt::Debug for HostEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEnvironment").field("host_clock", &self.host_clock).finish_non_exhaustive()
    }
}
