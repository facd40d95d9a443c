//! Asking a node that is not well: one of those that it has refused asks for all, and the others are woken when it answers.
//!
//! 1. One at a time has the turn, and asks again after pauses that grow to a tenth of a second, whoever has it. The others
//!    wait until somebody has an answer. They do not wait long: what they were refused for may be of one slot.
//! 2. Whoever was refused and has an answer tells all who wait at the node that had refused it.
//! 3. Who gives up, or asks in vain for long, since a connection has to be made say, leaves the turn to the next.

use super::{Node, PAUSE};
use crate::link::spaced;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout};

/// How long one waits at most for who has the turn, half of it random; or for so much of the time that it has.
const PATIENCE: Duration = Duration::from_secs(1);

/// Those whom a node refuses while it is not well.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    turn: Arc<Mutex<()>>,
    /// How often it has refused who had the turn.
    refused: AtomicU32,
    answered: Notify,
}

/// One call, which is refused for a while.
#[derive(Debug, Default)]
pub(super) struct Patient {
    refused_by: Option<Arc<Node>>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Patient {
    /// It has an answer (2).
    pub(super) fn answered(&mut self) {
        if let Some(node) = self.refused_by.take() {
            node.recovery.refused.store(0, Ordering::Relaxed);
            node.recovery.answered.notify_waiters();
        }
        self.turn = None;
    }

    /// Rests after a node has refused it, until it is time to ask again. Says whether there is time for that.
    pub(super) async fn rest(&mut self, node: &Arc<Node>, random: u64, deadline: Instant) -> bool {
        if self.refused_by.as_ref().is_none_or(|refused_by| !Arc::ptr_eq(refused_by, node)) {
            (self.turn, self.refused_by) = (None, Some(Arc::clone(node)));
        }
        let Recovery { turn, refused, answered } = &node.recovery;
        if self.turn.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let patience = spaced((PATIENCE, left.clamp(2 * PAUSE.1, PATIENCE)), 1, random);
            let over = Instant::now() + patience.min(left);
            tokio::select! {
                biased;
                () = answered.notified() => return has_time(Instant::now(), deadline),
                turn = Arc::clone(turn).lock_owned() => self.turn = Some(turn),
                () = sleep_until(over) => return has_time(over, deadline),
            }
        }
        let until = Instant::now() + spaced(PAUSE, refused.fetch_add(1, Ordering::Relaxed) + 1, random);
        if has_time(until, deadline) {
            sleep_until(until).await;
        }
        has_time(until, deadline)
    }

    /// Waits for something, and leaves the turn to another if that takes long (3).
    pub(super) async fn leaving<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        if self.turn.is_some() {
            if let Ok(came) = timeout(PAUSE.1, wait.as_mut()).await {
                return came;
            }
            self.turn = None;
        }
        wait.await
    }
}

/// Whether there is time for a call from a moment on: what is sent and not waited for may be executed.
fn has_time(from: Instant, deadline: Instant) -> bool {
    from + PAUSE.0 < deadline
}

#[cfg(test)]
mod tests;
