//! Measures how late a busy machine runs a thread that is due.
//!
//! The cases compare times with leases of half a second. A machine that lets a thread wait for as long as that makes a
//! correct lock fail a case: a hold is not renewed in time, or a waiter does not acquire a free lock soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval at which the thread is due.
const INTERVAL: Duration = Duration::from_millis(10);

/// A delay that can make a case fail.
pub(crate) const TOO_LATE: Duration = Duration::from_millis(150);

/// Measures from its start to its end.
pub(crate) struct LatenessMonitor {
    ended: Arc<AtomicBool>,
    longest_ms: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl LatenessMonitor {
    pub(crate) fn start() -> Self {
        let (ended, longest_ms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, longest) = (ended.clone(), longest_ms.clone());
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let due = Instant::now() + INTERVAL;
                thread::sleep(INTERVAL);
                let late = due.elapsed().as_millis();
                longest.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { ended, longest_ms, thread }
    }

    /// The longest delay.
    pub(crate) fn end(self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        // The thread does not panic.
        let _ = self.thread.join();
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}
