//! Paused commands.
//!
//! 1. A batch contains the commands that were paused between two resumes. A resumed batch never pauses again, so a
//!    command behind a paused one waits exactly as long as that one.
//! 2. Dropping a [`PausedRequest`] marks its command as done: answered, or lost with its connection.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::Shared;

/// The batch to which paused commands are added.
#[derive(Debug, Default)]
pub(super) struct CurrentBatch {
    current: Mutex<Arc<Batch>>,
}

impl CurrentBatch {
    pub(super) fn current(&self) -> Arc<Batch> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resumes the current batch, and begins a new one. Returns its size as well: its commands proceed at once, so they
    /// cannot be counted afterwards.
    pub(super) fn resume(&self) -> (Arc<Batch>, usize) {
        let batch = mem::take(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner));
        let count = batch.paused();
        batch.resumed.send_replace(true);
        (batch, count)
    }
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    resumed: watch::Sender<bool>,
    /// How many commands are paused.
    paused: AtomicUsize,
    /// How many are not done yet (2).
    unanswered: AtomicUsize,
}

impl Batch {
    pub(super) fn is_resumed(&self) -> bool {
        *self.resumed.borrow()
    }

    pub(super) fn paused(&self) -> usize {
        self.paused.load(Ordering::SeqCst)
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }
}

/// One command of a batch.
#[derive(Debug)]
pub(super) struct PausedRequest {
    batch: Arc<Batch>,
    shared: Arc<Shared>,
    progress: Progress,
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Sent,
}

impl PausedRequest {
    pub(super) fn new(batch: Arc<Batch>, shared: Arc<Shared>) -> Self {
        batch.paused.fetch_add(1, Ordering::SeqCst);
        batch.unanswered.fetch_add(1, Ordering::SeqCst);
        shared.notify();
        Self { batch, shared, progress: Progress::Waiting }
    }

    /// Waits until the batch is resumed.
    pub(super) async fn resumed(&mut self) {
        let mut resumed = self.batch.resumed.subscribe();
        // The sender is in the batch, which is in `self`.
        resumed.wait_for(|resumed| *resumed).await.expect("the batch outlives its commands");
        self.progress = Progress::Sent;
        self.batch.paused.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for PausedRequest {
    fn drop(&mut self) {
        if self.progress == Progress::Waiting {
            self.batch.paused.fetch_sub(1, Ordering::SeqCst);
        }
        self.batch.unanswered.fetch_sub(1, Ordering::SeqCst);
        self.shared.notify();
    }
}
