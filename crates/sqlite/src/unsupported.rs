//! Stub of the SQLite store on other systems: the store needs Linux for liveness of processes and for its clock.

use futures_util::future::BoxFuture;
use leasehold_core::{KeyError, Lock, Op, Partition, SessionId};
use leasehold_store::{Fault, FaultKind, NotificationSink, Outcome, Phase, Store};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Locks between the processes of one machine, in a file: on Linux only.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    never: Infallible,
}

impl SqliteStore {
    /// Fails: this store needs Linux.
    ///
    /// Cancel safety: it does nothing.
    #[allow(clippy::unused_async, reason = "it is async on Linux")]
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Fault> {
        let what = "locks in a file need Linux: use a Redis or Valkey server".to_owned();
        let node = path.as_ref().display().to_string();
        Err(Fault::new(FaultKind::Unsupported(what), Phase::Connect, node))
    }

    /// The path that the store was opened with.
    pub fn path(&self) -> &Path {
        match self.never {}
    }
}

impl Store for SqliteStore {
    fn execute<'a>(&'a self, _lock: &'a Lock, _op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        match self.never {}
    }

    fn open_mailbox(
        &self,
        _partition: Partition,
        _session: SessionId,
        _sink: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        match self.never {}
    }

    fn close_mailbox(&self, _partition: Partition, _session: SessionId) {
        match self.never {}
    }

    fn fork(&self) -> Arc<dyn Store> {
        match self.never {}
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        match self.never {}
    }
}
