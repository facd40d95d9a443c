//! Retries at a node that reports the cluster down: one refused call retries on behalf of all.
//!
//! Owns the order and the pauses of these retries. [`Cluster`](super::Cluster) sends the calls.
//!
//! 1. Of the calls that a node refuses, one at a time holds the retry lock. It retries after pauses that grow to a
//!    tenth of a second, and that continue to grow when another call takes over. The other calls wait until some call
//!    gets a reply. Their wait is limited, because the refusal of one call may concern one slot only.
//! 2. A call that was refused and then gets a reply wakes all calls that wait at the node that refused it.
//! 3. A call releases the retry lock if it ends, or if it is slow: for example, because a connection must be made.

use super::{Node, RETRY_BACKOFF};
use crate::conn::link::Backoff;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout};

/// The longest time that a call waits for the retry of another, half of it random.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The calls that a node refuses while the cluster is down.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    retry_lock: Arc<Mutex<()>>,
    /// Number of refusals in a row, which determines the next pause.
    refused: AtomicU32,
    replied: Notify,
}

/// One call that may be refused several times.
#[derive(Debug, Default)]
pub(super) struct RetryingCall {
    refused_by: Option<Arc<Node>>,
    retry_guard: Option<OwnedMutexGuard<()>>,
}

impl RetryingCall {
    /// The call got a reply (2).
    pub(super) fn replied(&mut self) {
        if let Some(node) = self.refused_by.take() {
            node.recovery.refused.store(0, Ordering::Relaxed);
            node.recovery.replied.notify_waiters();
        }
        self.retry_guard = None;
    }

    /// Waits after a refusal until it is time to retry. Returns whether there is time for a retry.
    pub(super) async fn wait_to_retry(&mut self, node: &Arc<Node>, random: u64, deadline: Instant) -> bool {
        if self.refused_by.as_ref().is_none_or(|refused_by| !Arc::ptr_eq(refused_by, node)) {
            (self.retry_guard, self.refused_by) = (None, Some(Arc::clone(node)));
        }
        let Recovery { retry_lock, refused, replied } = &node.recovery;
        if self.retry_guard.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait =
                Backoff::new(MAX_WAIT, left.clamp(2 * RETRY_BACKOFF.longest, MAX_WAIT)).pause(1, random);
            let over = Instant::now() + wait.min(left);
            tokio::select! {
                biased;
                () = replied.notified() => return has_time(Instant::now(), deadline),
                guard = Arc::clone(retry_lock).lock_owned() => self.retry_guard = Some(guard),
                () = sleep_until(over) => return has_time(over, deadline),
            }
        }
        let until = Instant::now() + RETRY_BACKOFF.pause(refused.fetch_add(1, Ordering::Relaxed) + 1, random);
        if has_time(until, deadline) {
            sleep_until(until).await;
        }
        has_time(until, deadline)
    }

    /// Waits for a future, which its caller pins, because it is large. Releases the retry lock if that takes long (3).
    pub(super) async fn releasing_if_slow<T>(&mut self, mut wait: Pin<&mut impl Future<Output = T>>) -> T {
        if self.retry_guard.is_some() {
            if let Ok(output) = timeout(RETRY_BACKOFF.longest, wait.as_mut()).await {
                return output;
            }
            self.retry_guard = None;
        }
        wait.await
    }
}

/// Whether a call that is sent at `from` has time for a reply. Without that time it is not sent, since a command
/// without a reply has an unknown outcome.
fn has_time(from: Instant, deadline: Instant) -> bool {
    from + RETRY_BACKOFF.first < deadline
}

#[cfg(test)]
mod tests;
