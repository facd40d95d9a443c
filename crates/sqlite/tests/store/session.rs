//! One session, which uses the store as the engine does.

use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, FencingToken, Heartbeat, HeartbeatReply, HoldId, Inspect, Inspection,
    Label, Liveness, Lock, LockMode, Nonce, Op, Partition, Release, ReleaseAction, Reply, SessionEntry,
    SessionId, SessionOp, SessionReply,
};
use leasehold_sqlite::SqliteStore;
use leasehold_store::{Fault, Notification, NotificationSink, Outcome, Store};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// How long a waiter sleeps between two polls, as in the engine: longer further back in the queue.
const POLL_EVERY: Duration = Duration::from_secs(1);
const POLL_STEP: Duration = Duration::from_millis(250);
const POLL_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// How long a queue entry is kept: longer than any of those.
const KEPT_MS: u64 = 21_000;
pub(crate) const LEASE_MS: u64 = 60_000;

/// A session at the store, with its mailbox.
pub(crate) struct TestSession {
    pub(crate) store: SqliteStore,
    pub(crate) session: SessionId,
    pub(crate) notifications: mpsc::Receiver<Notification>,
}

struct Mailbox(mpsc::Sender<Notification>);

impl NotificationSink for Mailbox {
    fn deliver(&self, notification: Notification) {
        // A session that is gone does not read its messages.
        let _ = self.0.send(notification);
    }

    fn resubscribed(&self) {}
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

pub(crate) fn open(path: &Path) -> Result<SqliteStore, Fault> {
    block_on(SqliteStore::open(path))
}

pub(crate) fn lock() -> Lock {
    Lock::mutex("the lock".parse().unwrap())
}

impl TestSession {
    pub(crate) fn join(path: &Path) -> Self {
        Self::of(open(path).unwrap())
    }

    pub(crate) fn of(store: SqliteStore) -> Self {
        let session = SessionId::from_random(rand::random());
        let (post, notifications) = mpsc::channel();
        block_on(store.open_mailbox(Partition::ONLY, session, Arc::new(Mailbox(post)), WITHIN)).unwrap();
        Self { store, session, notifications }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::new(HoldId::from_random(self.session, rand::random()))
    }

    pub(crate) fn execute(&self, op: &Op) -> Reply {
        match block_on(self.store.execute(&lock(), op, WITHIN)) {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
        }
    }

    pub(crate) fn acquired(&self, claim: &Claim, queue: bool) -> Acquired {
        match self.execute(&Op::Acquire(acquire_op(claim, queue))) {
            Reply::Acquire(acquired) => acquired,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn try_acquire(&self) -> Option<(Claim, FencingToken)> {
        let claim = self.claim();
        match self.acquired(&claim, false) {
            Acquired::Granted { fence, .. } => Some((claim, fence)),
            _ => None,
        }
    }

    /// Waits without a deadline.
    pub(crate) fn acquire(&self) -> (Claim, FencingToken) {
        let claim = self.claim();
        let first = self.acquired(&claim, true);
        self.await_grant(claim, first)
    }

    pub(crate) fn await_grant(&self, claim: Claim, mut last: Acquired) -> (Claim, FencingToken) {
        loop {
            let before = match last {
                Acquired::Granted { fence, .. } => return (claim, fence),
                Acquired::Taken { position, .. } => u32::try_from(position.unwrap()).unwrap(),
                Acquired::AlreadyEnded(how) => panic!("{how:?}"),
            };
            match self.notifications.recv_timeout((POLL_EVERY + POLL_STEP * before).min(POLL_AT_LEAST_EVERY))
            {
                Ok(notification) => return (claim, notification.fence()),
                Err(_) => last = self.acquired(&claim, true),
            }
        }
    }

    pub(crate) fn release(&self, claim: Claim) {
        self.execute(&Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }));
    }

    /// Releases, and queues again in the same step.
    pub(crate) fn release_and_queue(&self, claim: Claim) -> (Claim, Acquired) {
        let again = self.claim();
        let next = Some(acquire_op(&again, true));
        match self.execute(&Op::Release(Release { claim, action: ReleaseAction::Grant, next, history: 0 })) {
            Reply::Release(released) => (again, released.next.unwrap().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.inspect().waiters
    }

    pub(crate) fn inspect(&self) -> Inspection {
        match self.execute(&Op::Inspect(Inspect { claim: None, details: true })) {
            Reply::Inspect(inspection) => inspection,
            other => panic!("{other:?}"),
        }
    }

    /// Acquires a hold that does not end with its process.
    pub(crate) fn acquire_detached(&self) -> FencingToken {
        let detached = Acquire { liveness: Liveness::Lease, ..acquire_op(&self.claim(), false) };
        match self.execute(&Op::Acquire(detached)) {
            Reply::Acquire(Acquired::Granted { fence, .. }) => fence,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn execute_session(&self, op: &SessionOp) -> SessionReply {
        match block_on(self.store.execute_session(Partition::ONLY, op, WITHIN)) {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
        }
    }

    pub(crate) fn begin(&self, metadata: &str) {
        let (session, begin) = (self.session, Some(metadata.to_owned()));
        let beat = Heartbeat {
            session,
            alive_ms: 1,
            begin,
            acquired: vec![],
            released: vec![],
            renew_listing: true,
            activity: None,
        };
        assert_eq!(
            self.execute_session(&SessionOp::Heartbeat(beat)),
            SessionReply::Heartbeat(HeartbeatReply::Alive)
        );
    }

    pub(crate) fn list(&self) -> Vec<SessionEntry> {
        match self.execute_session(&SessionOp::List) {
            SessionReply::List(list) => list.entries,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn acquire_op(claim: &Claim, queue: bool) -> Acquire {
    Acquire {
        claim: claim.clone(),
        lease_ms: LEASE_MS,
        label: Label::new("a test").unwrap(),
        queue: queue.then(|| Enqueue { nonce: Nonce::new(0, rand::random()), ttl_ms: KEPT_MS }),
        expire_foreign_ms: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

pub(crate) fn temporary_path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}
