//! Retries at a node that reports the cluster down: one refused call retries for all, and notifications the others when it
//! gets a reply.
//!
//! 1. One call at a time has the turn. It retries after pauses that grow to a tenth of a second, across changes of
//!    the turn. The other calls wait until some call gets a reply. Their wait is limited, because the refusal of one
//!    call may concern one slot only.
//! 2. A call that was refused and then gets a reply notifications all calls that wait at the node that refused it.
//! 3. A call that gives up, or retries for long without success, for example because a connection must be made,
//!    passes the turn to the next.

use super::{Node, PAUSE};
use crate::conn::link::backoff;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout};

/// How long a call waits at most for the one with the turn, half of it random; also the time after which the turn is
/// passed on.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The calls that a node refuses while the cluster is down.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    right: Arc<Mutex<()>>,
    /// Number of refusals of the call with the turn.
    refused: AtomicU32,
    answered: Notify,
}

/// One call, which may be refused for a while.
#[derive(Debug, Default)]
pub(super) struct RetryingCall {
    refused_by: Option<Arc<Node>>,
    right: Option<OwnedMutexGuard<()>>,
}

impl RetryingCall {
    /// The call got a reply (2).
    pub(super) fn answered(&mut self) {
        if let Some(node) = self.refused_by.take() {
            node.recovery.refused.store(0, Ordering::Relaxed);
            node.recovery.answered.notify_waiters();
        }
        self.right = None;
    }

    /// Waits after a refusal until it is time to retry. Returns whether there is time for a retry.
    pub(super) async fn rest(&mut self, node: &Arc<Node>, random: u64, deadline: Instant) -> bool {
        if self.refused_by.as_ref().is_none_or(|refused_by| !Arc::ptr_eq(refused_by, node)) {
            (self.right, self.refused_by) = (None, Some(Arc::clone(node)));
        }
        let Recovery { right, refused, answered } = &node.recovery;
        if self.right.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = backoff((MAX_WAIT, left.clamp(2 * PAUSE.1, MAX_WAIT)), 1, random);
            let over = Instant::now() + wait.min(left);
            tokio::select! {
                biased;
                () = answered.notified() => return has_time(Instant::now(), deadline),
                right = Arc::clone(right).lock_owned() => self.right = Some(right),
                () = sleep_until(over) => return has_time(over, deadline),
            }
        }
        let until = Instant::now() + backoff(PAUSE, refused.fetch_add(1, Ordering::Relaxed) + 1, random);
        if has_time(until, deadline) {
            sleep_until(until).await;
        }
        has_time(until, deadline)
    }

    /// Waits for a future, and passes the turn on if that takes long (3).
    pub(super) async fn yielding<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        if self.right.is_some() {
            if let Ok(came) = timeout(PAUSE.1, wait.as_mut()).await {
                return came;
            }
            self.right = None;
        }
        wait.await
    }
}

/// Whether there is time for a call from this moment on: a command sent without waiting for its reply may be
/// executed.
fn has_time(from: Instant, deadline: Instant) -> bool {
    from + PAUSE.0 < deadline
}

#[cfg(test)]
mod tests;
