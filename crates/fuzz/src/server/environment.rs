//! The client's environment: tokio's paused clock, and randomness that is the same in every run.

use futures_util::future::BoxFuture;
use leasehold_core::Moment;
use leasehold_store::Environment;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Simulated time since the start of a run.
#[derive(Debug, Clone)]
pub(super) struct Simulated {
    start: Instant,
    drawn: Arc<AtomicU64>,
}

impl Simulated {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), drawn: Arc::new(AtomicU64::new(1)) }
    }

    pub(super) fn elapsed_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Environment for Simulated {
    fn now(&self) -> Moment {
        Moment::from_micros(1_000_000) + self.start.elapsed()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_762_000_000) + self.start.elapsed()
    }

    fn random(&self) -> u64 {
        // splitmix64
        let mut bits = self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}
