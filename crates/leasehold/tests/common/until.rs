//! Waits for a state, of a lock or of anything else.

use leasehold::error::InspectError;
use leasehold::inspect::Status;
use leasehold::{Barrier, Latch, Mutex, ReentrantMutex, RwLock, Semaphore};
use std::time::Duration;

/// A lock of any kind that can be inspected.
pub(crate) trait Inspected {
    async fn status(&self) -> Result<Status, InspectError>;
}

macro_rules! inspected {
    ($($kind:ident)+) => { $(
        impl Inspected for $kind {
            async fn status(&self) -> Result<Status, InspectError> {
                self.inspect().await
            }
        }
    )+ };
}

inspected! { Mutex ReentrantMutex Semaphore RwLock Latch Barrier }

/// Waits until another client reports the lock as free and without waiters.
pub(crate) async fn until_at_rest(lock: &impl Inspected) {
    for _ in 0..600 {
        let status = lock.status().await.expect("the store answers");
        if !status.held && status.waiting == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not free and without waiters: {:?}", lock.status().await);
}

/// Waits until that many sessions wait for the lock.
pub(crate) async fn until_waiting(lock: &impl Inspected, sessions: u64) {
    for _ in 0..1000 {
        if lock.status().await.expect("the store answers").waiting == sessions {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not {sessions} waiting: {:?}", lock.status().await);
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within ten seconds: {what}");
}
