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
pub(crate) enum Mood {
    #[default]
    Well,
    /// It refuses all connections.
    Down,
    /// Requests never reach it.
    Cut,
    /// It executes requests, and its replies are lost.
    Mute,
    /// It executes requests after a delay, regardless of the caller's timeout.
    Slow(Duration),
    /// It loses its data just before a token is raised, as after a restart.
    ForgetsInBetween,
    /// Requests to raise a token never reach it.
    RaisesNothing,
    /// It executes requests after a delay, unless they were cancelled by then.
    Late(Duration),
}

#[derive(Clone)]
pub(crate) struct Node {
    name: Arc<str>,
    inner: Arc<Mutex<MemoryStore>>,
    mood: Arc<Mutex<Mood>>,
    /// The requests it received, in order.
    sent: Arc<Mutex<Vec<Op>>>,
    bells: Arc<Mutex<Vec<Publisher>>>,
    ahead: Duration,
}

impl Node {
    /// A node whose clock is ahead of the machine's by `ahead`.
    pub(crate) fn new(name: &str, ahead: Duration) -> Self {
        let inner = Arc::new(Mutex::new(store(ahead)));
        let (mood, sent, bells) = Default::default();
        Self { name: name.into(), inner, mood, sent, bells, ahead }
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    /// Deletes all its data.
    pub(crate) fn flush(&self) {
        *self.inner.lock().unwrap() = store(self.ahead);
    }

    pub(crate) fn sent(&self) -> Vec<Op> {
        self.sent.lock().unwrap().clone()
    }

    /// Publishes a message to all subscribers.
    pub(crate) fn ring(&self) {
        self.bells.lock().unwrap().iter().for_each(Publisher::notify);
    }

    /// The node's own reply, regardless of its fault.
    pub(crate) async fn at_the_node(&self, lock: &Lock, op: &Op) -> leasehold_core::Reply {
        let inner = self.inner.lock().unwrap().clone();
        match inner.execute(lock, op, Duration::from_secs(1)).await {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{other:?}"),
        }
    }

    fn fault(&self, kind: FaultKind) -> Fault {
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
            self.sent.lock().unwrap().push(op.clone());
            match self.mood() {
                Mood::RaisesNothing if matches!(op, Op::RaiseFence(_)) => {
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.fault(FaultKind::TimedOut))
                }
                Mood::Well | Mood::RaisesNothing => Outcome::Done(self.at_the_node(lock, op).await),
                Mood::Down => Outcome::Failed(Executed::No, self.fault(FaultKind::Unreachable)),
                Mood::Cut => {
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.fault(FaultKind::TimedOut))
                }
                Mood::Mute => {
                    self.at_the_node(lock, op).await;
                    tokio::time::sleep(within).await;
                    Outcome::Failed(Executed::Unknown, self.fault(FaultKind::TimedOut))
                }
                Mood::Slow(by) => {
                    let (node, lock, op) = (self.clone(), lock.clone(), op.clone());
                    let done = tokio::spawn(async move {
                        tokio::time::sleep(by).await;
                        node.at_the_node(&lock, &op).await
                    });
                    match tokio::time::timeout(within, done).await {
                        Ok(reply) => Outcome::Done(reply.unwrap()),
                        Err(_) => Outcome::Failed(Executed::Unknown, self.fault(FaultKind::TimedOut)),
                    }
                }
                Mood::Late(by) => {
                    tokio::time::sleep(by).await;
                    Outcome::Done(self.at_the_node(lock, op).await)
                }
                Mood::ForgetsInBetween => {
                    if matches!(op, Op::RaiseFence(_)) {
                        self.flush();
                    }
                    Outcome::Done(self.at_the_node(lock, op).await)
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
            if self.mood() != Mood::Well {
                return Err(self.fault(FaultKind::Unreachable));
            }
            let bell = Publisher::default();
            self.bells.lock().unwrap().push(bell.clone());
            Ok(Some(Subscription::new(&bell, || {})))
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
