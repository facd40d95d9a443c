//! The trait of all stores.

use crate::capabilities::Capabilities;
use crate::diagnosis::Diagnosis;
use crate::fault::{Fault, FaultKind, Phase};
use crate::finding::ServerFinding;
use crate::hold_watcher::HoldWatcher;
use crate::name_scan::NameScan;
use crate::notification_sink::NotificationSink;
use crate::outcome::Outcome;
use crate::subscription::Subscription;
use futures_util::future::{BoxFuture, ready};
use leasehold_core::{
    Acquire, Claim, Executed, FencingToken, KeyError, Kind, Lock, MultiAcquired, Op, Partition, SessionId,
    SessionOp, SessionReply,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Something that executes operations on locks, one at a time and atomically.
///
/// All futures may be dropped at any await. An operation whose future is dropped has an unknown outcome.
///
/// A store that counts the operations sent to another one:
///
/// ```
/// use futures_util::future::BoxFuture;
/// use leasehold::Client;
/// use leasehold::core::{KeyError, Lock, Op, Partition, SessionId};
/// use leasehold::store::{Fault, MemoryStore, Outcome, NotificationSink, Store};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use std::time::Duration;
///
/// #[derive(Debug, Clone)]
/// struct Counted {
///     inner: MemoryStore,
///     calls: Arc<AtomicU64>,
/// }
///
/// impl Store for Counted {
///     fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
///         self.calls.fetch_add(1, Relaxed);
///         self.inner.execute(lock, op, within)
///     }
///     fn open_mailbox(
///         &self,
///         partition: Partition,
///         session: SessionId,
///         sink: Arc<dyn NotificationSink>,
///         within: Duration,
///     ) -> BoxFuture<'_, Result<(), Fault>> {
///         self.inner.open_mailbox(partition, session, sink, within)
///     }
///     fn close_mailbox(&self, partition: Partition, session: SessionId) {
///         self.inner.close_mailbox(partition, session);
///     }
///     fn fork(&self) -> Arc<dyn Store> {
///         Arc::new(self.clone()) // the keeper's operations count, too
///     }
///     fn check(&self, lock: &Lock) -> Result<(), KeyError> {
///         self.inner.check(lock)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let counted = Counted { inner: MemoryStore::new(), calls: Arc::default() };
/// let calls = counted.calls.clone();
/// let client = Client::with_store(counted).connect().await?;
/// client.mutex("orders/42")?.acquire().await?.release().await?;
/// assert!(calls.load(Relaxed) >= 2); // an acquire, a release
/// # Ok(()) }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Executes one operation, and returns within `within`.
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome>;

    /// Executes several operations independently, in one batch if the store can. The outcomes are in the order of the
    /// operations.
    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let all = ops.iter().map(move |(lock, op)| self.execute(lock, op, within));
        Box::pin(futures_util::future::join_all(all))
    }

    /// Acquires all of several [mutexes](leasehold_core::Kind::Mutex) or none, in one step, as defined by
    /// [`LockState::acquire_all`](leasehold_core::model::LockState::acquire_all). No request queues. All requests have the
    /// same label and liveness, and no lock occurs twice. At most `MultiMutex::MAX_LOCKS`,
    /// since the store does nothing else meanwhile. `None` if the store cannot do that in one step; the locks are
    /// then acquired one after the other.
    fn acquire_all<'a>(
        &'a self,
        _requests: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(ready(None))
    }

    /// What the store can do. It never changes.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The partition of the store that a lock belongs to. It never changes.
    fn partition(&self, _lock: &Lock) -> Partition {
        Partition::ONLY
    }

    /// Opens the mailbox of a session in a partition. Once this has returned, `sink` receives the session's notifications
    /// from there.
    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>>;

    /// Closes the mailbox of a session in a partition. Does not block.
    fn close_mailbox(&self, partition: Partition, session: SessionId);

    /// Subscribes to what clients of other libraries publish when they release this lock, so that its waiters re-check it
    /// at once; for an [Election](leasehold_core::Kind::Election), to changes of the leader; and for any lock of a store
    /// [without a queue](Capabilities::queue), to its releases. `None` if nothing is published:
    /// other libraries have no such lock, or do not know this store.
    ///
    /// The subscription is active when this returns. Re-check the lock for what was published before.
    fn subscribe<'a>(
        &'a self,
        _lock: &'a Lock,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(ready(Ok(None)))
    }

    /// Has `watcher` receive hints that a hold which this handle extends may be gone. Returns whether it will, for the locks
    /// that are [plain strings](leasehold_core::Kind::is_plain_string), each from its first extend by this handle on. Does
    /// nothing by default. A second watcher is ignored.
    fn watch_holds(&self, _watcher: Arc<dyn HoldWatcher>) -> bool {
        false
    }

    /// Adds a session, which has waited for so long, to the line of the waiters of a lock: a [quorum](crate::QuorumStore) asks
    /// for it at each of its nodes, so that a release can name the next waiter in its
    /// [message](crate::Publisher::notify_next). It is a hint, so a failure is not reported. Does nothing by default.
    ///
    /// The session leaves the line when it is named, and when it releases the lock. Joining again does not change
    /// its place.
    fn join_line<'a>(
        &'a self,
        _lock: &'a Lock,
        _session: SessionId,
        _waited: Duration,
        _within: Duration,
    ) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }

    /// Executes one operation on the sessions of a partition, and returns within `within`. A [list](SessionOp::List) covers
    /// all partitions, whichever is named: it contains a session of several partitions several times. Statistics are those of one
    /// partition, [`Partition::ONLY`].
    fn execute_session<'a>(
        &'a self,
        _partition: Partition,
        op: &'a SessionOp,
        _within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        let text = match op {
            SessionOp::MergeStatistics(_) | SessionOp::ListStatistics => {
                "this store keeps no statistics of its clients"
            }
            _ => "this store keeps no sessions and cannot list what they hold: inspect a lock by its name",
        };
        let fault = Fault::new(FaultKind::Unusable(text.to_owned()), Phase::Send, "store");
        Box::pin(ready(Outcome::Failed(Executed::No, fault)))
    }

    /// Executes several operations on sessions independently, in one batch for each server if the store can: a client with
    /// holds in many partitions has as many sessions. The outcomes are in the order of the operations.
    fn execute_sessions<'a>(
        &'a self,
        ops: &'a [(Partition, SessionOp)],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Outcome<SessionReply>>> {
        let all = ops.iter().map(move |(partition, op)| self.execute_session(*partition, op, within));
        Box::pin(futures_util::future::join_all(all))
    }

    /// Scans the keys of the store for names that begin with `start`, and that hold what could be a lock of this kind and of
    /// another library: on Redis a string for a [`Kind::Mutex`], a hash for a [`Kind::Reentrant`], and nothing for other kinds.
    /// For operators: it goes through all keys, in small steps with pauses, and returns what it has found when `within` is over.
    /// It reads no value: [inspect](Op::Inspect) what it finds. Keys of the store's own are left out. Fails for a store that no
    /// other library shares, as by default.
    fn scan_names<'a>(
        &'a self,
        _kind: Kind,
        _start: &'a str,
        _within: Duration,
    ) -> BoxFuture<'a, Result<NameScan, Fault>> {
        let text = "this store has no keys of other libraries, and cannot be scanned".to_owned();
        Box::pin(ready(Err(Fault::new(FaultKind::Unusable(text), Phase::Send, "store"))))
    }

    /// Waits until what the configuration names has confirmed this hold, granted with this token: so many replicas, or the disk.
    /// Fails if the hold is gone or was granted anew, or if they do not confirm in time; nothing is undone then.
    fn confirm<'a>(
        &'a self,
        _lock: &'a Lock,
        _claim: &'a Claim,
        _fence: FencingToken,
        _within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(ready(Ok(())))
    }

    /// Waits for background work already in flight, of this handle and its [forks](Self::fork); later work is
    /// not awaited. Work that is still in flight when the program ends is lost.
    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    /// What each server of the store reports about itself, with findings about what can make it lose locks. Empty if
    /// there is no server to report about. Of several servers, one that does not answer is reported as
    /// [unreachable](crate::FindingKind::Unreachable).
    fn diagnose(&self, _within: Duration) -> BoxFuture<'_, Result<Vec<Diagnosis>, Fault>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// What was found out about the servers of the store when connections to them were made, the latest of each server.
    /// Those of a server that was refused are included. It sends nothing; empty if there is no server.
    fn findings(&self) -> Vec<ServerFinding> {
        Vec::new()
    }

    /// The same store on a connection of its own, for the keeper, which uses it from another thread and runtime.
    fn fork(&self) -> Arc<dyn Store>;

    /// Fails if a lock cannot exist in this store, with the reason.
    fn check(&self, lock: &Lock) -> Result<(), KeyError>;
}
