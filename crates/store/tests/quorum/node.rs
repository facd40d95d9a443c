//! A quorum node with injected faults: a memory store that may be down, mute, slow or emptied, and whose clock may
//! be wrong.

use futures_util::future::BoxFuture;
use leasehold_core::{KeyError, Op, Partition, SessionId};
use leasehold_store::{
    Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Outcome, Phase, Publisher, Store,
    Subscription,
};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum NodeFault {
    #[default]
    None,
    /// It refuses all connections.
    Down,
    /// Requests never reach it.
    RequestsLost,
    /// It executes requests, and its replies are lost.
    RepliesLost,
    /// It executes requests after a delay, regardless of the caller's timeout.
    Slow(Duration),
    /// It loses its data just before a token is raised, as after a restart.
    RestartsBeforeRaise,
    /// Requests to raise a token never reach it.
    RaisesLost,
    /// It grants nothing yet.
    AcquiresRefused,
    /// It executes requests after a delay, unless they were cancelled by then.
    Delayed(Duration),
}

#[derive(Clone)]
pub(crate) struct Node {
    name: Arc<str>,
    inner: Arc<Mutex<MemoryStore>>,
    fault: Arc<Mutex<NodeFault>>,
    /// The requests it received, in order.
    received: Arc<Mutex<Vec<Op>>>,
    publishers: Arc<Mutex<Vec<Publisher>>>,
    ahead: Duration,
}

impl Node {
    /// A node whose clock is ahead of the machine's by `ahead`.
    pub(crate) fn new(name: &str, ahead: Duration) -> Self {
        let inner = Arc::new(Mutex::new(store(ahead)));
        let (fault, received, publishers) = Default::default();
        Self { name: name.into(), inner, fault, received, publishers, ahead }
    }

    pub(crate) fn set(&self, fault: NodeFault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn current_fault(&self) -> NodeFault {
        *self.fault.lock().unwrap()
    }

    /// Deletes all its data.
    pub(crate) fn flush(&self) {
        *self.inner.lock().unwrap() = store(self.ahead);
    }

    pub(crate) fn received(&self) -> Vec<Op> {
        self.received.lock().unwrap().clone()
    }

    /// Publishes a message to all subscribers.
    pub(crate) fn publish(&self) {
        self.publishers.lock().unwrap().iter().for_each(Publisher::notify);
    }

    /// The node's own reply, regardless of its fault.
    pub(crate) async fn execute_here(&self, lock: &Lock, op: &Op) -> leasehold_core::Reply {
        let inner = self.inner.lock().unwrap().clone();
        match inner.execute(lock, op, Duration::from_secs(1)).await {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{other:?}"),
        }
    }

    fn failure(&self, kind: FaultKind) -> Fault {
        Fault::new(kind, Phase::Reply, Arc::clone(&self.name))
    }
}

fn store(ahead: Duration) -> MemoryStore {
    let (wall, start) = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap(), Instant::now());
    MemoryStore::with_clock(move || u64::try_from((wall + start.elapsed() + ahead).as_micros()).unwrap())
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.name)
    }
}

impl Store for Node {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.received.lock().unwrap().push(op.clone());
            match self.current_fault() {
                NodeFault::RaisesLost if matches!(op, Op::RaiseFence(_)) => {
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.failure(FaultKind::TimedOut))
                }
                NodeFault::AcquiresRefused if matches!(op, Op::Acquire(_)) => {
                    let kind = FaultKind::RecentlyStarted {
                        uptime: Duration::ZERO,
                        min_uptime: Duration::from_secs(60),
                    };
                    Outcome::Failed(Executed::No, self.failure(kind))
                }
                NodeFault::None | NodeFault::RaisesLost | NodeFault::AcquiresRefused => {
                    Outcome::Done(self.execute_here(lock, op).await)
                }
                NodeFault::Down => Outcome::Failed(Executed::No, self.failure(FaultKind::Unreachable)),
                NodeFault::RequestsLost => {
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.failure(FaultKind::TimedOut))
                }
                NodeFault::RepliesLost => {
                    self.execute_here(lock, op).await;
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.failure(FaultKind::TimedOut))
                }
                NodeFault::Slow(by) => {
                    let (node, lock, op) = (self.clone(), lock.clone(), op.clone());
                    let done = tokio::spawn(async move {
                        tokio::time::sleep(by).await;
                        node.execute_here(&lock, &op).await
                    });
                    match tokio::time::timeout(within, done).await {
                        Ok(reply) => Outcome::Done(reply.unwrap()),
                        Err(_) => Outcome::Failed(Executed::Unknown, self.failure(FaultKind::TimedOut)),
                    }
                }
                NodeFault::Delayed(by) => {
                    tokio::time::sleep(by).await;
                    Outcome::Done(self.execute_here(lock, op).await)
                }
                NodeFault::RestartsBeforeRaise => {
                    if matches!(op, Op::RaiseFence(_)) {
                        self.flush();
                    }
                    Outcome::Done(self.execute_here(lock, op).await)
                }
            }
        })
    }

    fn open_mailbox(
        &self,
        _place: Partition,
        _session: SessionId,
        _post: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn close_mailbox(&self, _place: Partition, _session: SessionId) {}

    fn subscribe<'a>(
        &'a self,
        _lock: &'a Lock,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(async {
            if self.current_fault() != NodeFault::None {
                return Err(self.failure(FaultKind::Unreachable));
            }
            let publisher = Publisher::default();
            self.publishers.lock().unwrap().push(publisher.clone());
            Ok(Some(Subscription::new(&publisher, || {})))
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
