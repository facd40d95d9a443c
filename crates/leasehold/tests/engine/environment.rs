//! Environments whose time the tests control.

use futures_util::future::BoxFuture;
use leasehold::store::Environment;
use leasehold::store::{MemoryStore, Store};
use leasehold::{Client, ClientBuilder, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);

/// A machine that can be suspended: its clock advances, its timers do not.
#[derive(Debug, Clone)]
pub(crate) struct SuspendableMachine {
    pub(crate) booted: Instant,
    pub(crate) suspended_us: Arc<AtomicU64>,
}

impl Environment for SuspendableMachine {
    fn now(&self) -> Moment {
        let suspended = Duration::from_micros(self.suspended_us.load(Ordering::SeqCst));
        Moment::ZERO + MS + self.booted.elapsed() + suspended
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// An environment whose clock follows tokio's paused time, from this instant on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PausedTime(pub(crate) Instant);

/// A memory store whose clock follows tokio's paused time.
pub(crate) fn memory() -> MemoryStore {
    let environment = PausedTime(Instant::now());
    MemoryStore::with_clock(move || environment.now().as_micros())
}

/// A client whose timers, clock and keeper follow tokio's paused time.
pub(crate) fn client_in_paused_time(store: impl Store) -> ClientBuilder {
    Client::with_store(store).environment(PausedTime(Instant::now()))
}

impl Environment for PausedTime {
    fn now(&self) -> Moment {
        Moment::ZERO + MS + self.0.elapsed()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.0.elapsed()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}
