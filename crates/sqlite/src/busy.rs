//! Waiting while another process writes.
//!
//! SQLite's own busy handler sleeps for up to 100 ms at a time, which would delay every hand-off; a transaction of
//! this store takes a fraction of a millisecond.

use leasehold_core::Moment;
use leasehold_store::clock::boottime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest sleep, which doubles from time to time.
const FIRST: Duration = Duration::from_micros(200);
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(5);

/// A busy handler with a deadline that can be changed.
#[derive(Debug, Clone)]
pub(super) struct BusyHandler {
    until_us: Arc<AtomicU64>,
}

impl BusyHandler {
    /// Creates a handler that waits until `deadline`.
    pub(super) fn new(deadline: Moment) -> Self {
        Self { until_us: Arc::new(AtomicU64::new(deadline.as_micros())) }
    }

    /// Changes the deadline.
    pub(super) fn set(&self, deadline: Moment) {
        self.until_us.store(deadline.as_micros(), Ordering::Relaxed);
    }

    /// Sleeps briefly, for the `times`th time in a row; `false` if no time is left.
    pub(super) fn wait(&mut self, times: i32) -> bool {
        let until = Moment::from_micros(self.until_us.load(Ordering::Relaxed));
        let left = until.since(boottime());
        if left.is_zero() {
            return false;
        }
        // Several sleeps of each length: usually the wait is for a queue of short transactions.
        let longest = (FIRST * (1 << (times / 4).clamp(0, 5))).min(LONGEST);
        let pause = FIRST.max(longest.mul_f64(rand::random::<f64>()));
        std::thread::sleep(pause.min(left));
        true
    }
}
