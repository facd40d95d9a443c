//! Whether a connection responds: how long calls have waited without receiving anything.

use leasehold_store::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Tracks whether a connection responds.
#[derive(Debug)]
pub(super) struct ConnectionHealth {
    environment: Arc<dyn Environment>,
    /// Start of the current silence, in microseconds of the local clock; 0 if no call waits.
    waiting_since: AtomicU64,
    /// Number of calls that wait for a reply.
    waiting: AtomicU32,
    /// Set when the connection has ended.
    pub(super) ended: AtomicBool,
}

impl ConnectionHealth {
    pub(super) fn new(environment: Arc<dyn Environment>) -> Self {
        Self {
            environment,
            waiting_since: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Current time of a clock that runs during a suspend; never 0.
    fn now_us(&self) -> u64 {
        self.environment.now().as_micros().max(1)
    }

    /// Counts a waiting call until the returned value is dropped.
    pub(super) fn wait(&self) -> WaitingCall<'_> {
        // Usually another call waits already, and the clock need not be read.
        if self.waiting_since.load(Ordering::Relaxed) == 0 {
            let _ =
                self.waiting_since.compare_exchange(0, self.now_us(), Ordering::Relaxed, Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingCall(self)
    }

    /// Records that something was received. The silence of calls still waiting starts again now.
    pub(super) fn received(&self) {
        let others = self.waiting.load(Ordering::Relaxed) != 0;
        let since = if others { self.now_us() } else { 0 };
        self.waiting_since.store(since, Ordering::Relaxed);
    }

    /// How long calls have waited without receiving anything.
    pub(super) fn silence(&self) -> Duration {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(self.now_us().saturating_sub(since)),
        }
    }
}

/// A call that waits for a reply.
pub(super) struct WaitingCall<'a>(&'a ConnectionHealth);

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
