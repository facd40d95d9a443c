//! Commands that wait to be released.
//!
//! 1. A batch has the commands held between two releases. A released batch never holds again, so a command behind a
//!    held one waits exactly as long as that one.
//! 2. Dropping a [`Held`] marks its command as settled: answered, or lost with its connection. No path can forget it.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::Shared;

/// The batch that is being collected.
#[derive(Debug, Default)]
pub(super) struct Holds {
    current: Mutex<Arc<Batch>>,
}

impl Holds {
    pub(super) fn current(&self) -> Arc<Batch> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Releases the current batch, and begins a new one. Returns its size too: its commands proceed at once, so they
    /// cannot be counted afterwards.
    pub(super) fn release(&self) -> (Arc<Batch>, usize) {
        let batch = mem::take(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner));
        let count = batch.held();
        batch.released.send_replace(true);
        (batch, count)
    }
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    released: watch::Sender<bool>,
    /// How many were held and not sent yet.
    held: AtomicUsize,
    /// How many are not settled yet (2).
    unanswered: AtomicUsize,
}

impl Batch {
    pub(super) fn is_released(&self) -> bool {
        *self.released.borrow()
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }
}

/// One command of a batch.
#[derive(Debug)]
pub(super) struct Held {
    batch: Arc<Batch>,
    shared: Arc<Shared>,
    progress: Progress,
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Sent,
}

impl Held {
    pub(super) fn new(batch: Arc<Batch>, shared: Arc<Shared>) -> Self {
        batch.held.fetch_add(1, Ordering::SeqCst);
        batch.unanswered.fetch_add(1, Ordering::SeqCst);
        shared.notify();
        Self { batch, shared, progress: Progress::Waiting }
    }

    /// Waits for the release.
    pub(super) async fn released(&mut self) {
        let mut released = self.batch.released.subscribe();
        // The sender lives in the batch, which lives in `self`.
        released.wait_for(|released| *released).await.expect("the batch outlives its members");
        self.progress = Progress::Sent;
        self.batch.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.progress == Progress::Waiting {
            self.batch.held.fetch_sub(1, Ordering::SeqCst);
        }
        self.batch.unanswered.fetch_sub(1, Ordering::SeqCst);
        self.shared.notify();
    }
}
