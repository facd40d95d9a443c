//! The lock of most cases, and its guards and waiters.

use leasehold::inspect::Contention;
use leasehold::{Attempt, Client, Owner, ReentrantGuard, ReentrantMutex};
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// The lock of most cases, for that owner.
pub(crate) fn lock(client: &Client, owner: &Owner) -> ReentrantMutex {
    client.reentrant_mutex("m").expect("a good name").owned_by(owner)
}

pub(crate) fn owner(text: &str) -> Owner {
    Owner::new(text).expect("an owner")
}

pub(crate) async fn acquired(lock: &ReentrantMutex) -> ReentrantGuard {
    tokio::time::timeout(Duration::from_secs(10), lock.acquire()).await.expect("in time").expect("acquired")
}

/// The contention that a try reports.
pub(crate) async fn taken(lock: &ReentrantMutex) -> Contention {
    match lock.try_acquire().await.expect("an answer") {
        Attempt::Taken(contention) => contention,
        Attempt::Granted(guard) => panic!("two have it: {guard:?}"),
    }
}

/// Spawns the future and polls it once, so that it queues before later waiters.
pub(crate) async fn queued<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut future = Box::pin(future);
    let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()));
    assert!(pending.await, "the future completed at once");
    tokio::spawn(future)
}
