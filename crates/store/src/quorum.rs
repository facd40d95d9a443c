//! Several stores as one: a client holds a lock once a majority of them grants it.
//!
//! Owns what is sent to which node, when, and the time limits. [`tally`] combines the replies; [`ballot`] wins and
//! undoes an acquire; [`repair`] puts a hold on nodes that lack it; [`line`](mod@line) gives the waiters an order. The meaning of an operation at a node is the model's, as everywhere; that a node which may have
//! forgotten its grants grants nothing for a while is up to the node (`redis`).
//!
//! 1. An operation goes to all nodes at once, each in its own task. The outcome is known as soon as further replies
//!    would not change it; the tasks continue in the background until their nodes have answered or their time is up. A
//!    program waits for them before it ends: [`Store::flush`].
//! 2. Nodes have no queues, grant nothing to waiters and know no sessions: each node has only a vote. So a waiter
//!    retries, each time with a new hold. Nodes have a line of waiters, which is only a hint.
//! 3. An extend never releases: a hold that a majority does not extend ends by itself. One that a majority has extended
//!    is put on the other nodes as well ([`repair`]).

mod ballot;
mod line;
mod repair;
mod tally;

use crate::capabilities::Capabilities;
use crate::diagnosis::Diagnosis;
use crate::fault::{Fault, FaultKind, Phase};
use crate::finding::ServerFinding;
use crate::name_scan::NameScan;
use crate::notification_sink::NotificationSink;
use crate::outcome::Outcome;
use crate::store::Store;
use crate::subscription::{Publisher, Subscription};
use crate::watched::Watched;
use ballot::Ballot;
use futures_util::future::{BoxFuture, join_all, ready};
use leasehold_core::{
    Acquire, Acquired, Executed, Extend, Extended, KeyError, Kind, Liveness, Lock, Op, Partition, Release,
    ReleaseAction, Released, Reply, SessionId,
};
use line::{Contention, Relay, forward_node};
use repair::{Repair, Repairs};
use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tally::{Tally, TallyResult, majority};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The default time limit for the reply of a node.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// The time limit for a subscription to a node, and the pause after one that failed.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Several independent stores as one: [Redlock](https://redis.io/docs/latest/develop/use/patterns/distributed-locks/)
/// over three nodes or more.
///
/// A client holds a lock once a majority of the nodes grants it, and can lose it only with a majority. Each acquire
/// is sent to all nodes at once, and waits at most [`node_timeout`](Self::node_timeout) for their votes, and as long
/// again to store the token. Grants by a minority are undone. Fencing tokens grow over all majorities. There is no queue: waiters poll, within a quarter of a second, or
/// as soon as the nodes publish the release of the lock. The release of a Mutex names the client that has waited longest, which
/// the others let go first.
///
/// It supports `Mutex` and `ReentrantMutex`; creating another kind of lock
/// fails. Holds end by their leases, and do not depend on sessions.
///
/// For Redis servers, use the URL `redlock://a,b,c` or configurations: `QuorumConfig`.
/// A quorum of memory stores, for a test:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::store::{MemoryStore, QuorumStore, Store};
/// use std::sync::Arc;
///
/// let nodes = (0..5).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>);
/// let client = Client::with_store(QuorumStore::new(nodes)?).connect().await?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// guard.release().await?;
/// assert!(client.semaphore("seats", 3).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct QuorumStore {
    nodes: Arc<[Arc<dyn Store>]>,
    node_timeout: Duration,
    max_lease: Option<Duration>,
    background: BackgroundTasks,
    contention: Contention,
    repairs: Repairs,
}

/// Why stores cannot form a quorum.
///
/// ```
/// use leasehold::store::{MemoryStore, QuorumError, QuorumStore, Store};
/// use std::sync::Arc;
///
/// let nodes = (0..2).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>);
/// assert_eq!(QuorumStore::new(nodes).err(), Some(QuorumError::TooFew { nodes: 2 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// There are fewer than three nodes.
    #[error("a quorum has at least three nodes, this one has {nodes}: a smaller one tolerates no failure")]
    TooFew {
        /// The number of nodes.
        nodes: usize,
    },
    /// There are too many nodes.
    #[error("a quorum has at most {} nodes, this one has {nodes}", QuorumStore::MAX_NODES)]
    TooMany {
        /// The number of nodes.
        nodes: usize,
    },
    /// A node occurs twice, and would have two votes.
    #[error("{node} occurs twice, and would have two votes")]
    Twice {
        /// Its address, without user and password.
        node: String,
    },
    /// A node is a cluster, in which a server may restart, or a replica may be promoted, undetected.
    #[error(
        "{node} is a cluster: a node must be a single server or a primary known to Sentinels, so that its uptime is known"
    )]
    Cluster {
        /// Its addresses, without user and password.
        node: String,
    },
    /// A node waits for its replicas.
    #[error(
        "a quorum counts nodes, not replicas: remove the replica setting, and make each replica a node of its own"
    )]
    Replicas,
    /// A node waits for its disk.
    #[error(
        "a quorum does not rely on disks: remove the setting `durable`; a node that was restarted grants nothing for `min_uptime`"
    )]
    Durable,
}

impl QuorumStore {
    /// The largest number of nodes.
    pub const MAX_NODES: usize = 31;

    /// Creates a quorum of these stores. Fails if there are fewer than three or more than [`MAX_NODES`](Self::MAX_NODES), or if
    /// one of them [waits for replicas](Store::capabilities).
    ///
    /// Use it inside a tokio runtime.
    pub fn new(nodes: impl IntoIterator<Item = Arc<dyn Store>>) -> Result<Self, QuorumError> {
        let nodes: Arc<[_]> = nodes.into_iter().collect();
        match nodes.len() {
            few @ 0..3 => return Err(QuorumError::TooFew { nodes: few }),
            many if many > Self::MAX_NODES => return Err(QuorumError::TooMany { nodes: many }),
            _ => {}
        }
        if nodes.iter().any(|node| node.capabilities().confirmation) {
            return Err(QuorumError::Replicas);
        }
        let (background, contention, repairs) =
            (BackgroundTasks::new(), Contention::default(), Repairs::default());
        Ok(Self { nodes, node_timeout: NODE_TIMEOUT, max_lease: None, background, contention, repairs })
    }

    /// Sets the time limit for the reply of a node: 50 ms by default. A node that takes longer has not voted.
    ///
    /// Choose a time that is short compared with the first lease of 3 s, from which it is subtracted, and longer than the
    /// round trip to the slowest node of a majority, or to all nodes if each is to vote.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Sets the longest lease; longer ones are refused. For nodes that grant
    /// nothing after a restart until everything they may have forgotten has
    /// expired.
    #[must_use]
    pub fn max_lease(mut self, max: Option<Duration>) -> Self {
        self.max_lease = max;
        self
    }

    /// The number of nodes that must agree.
    ///
    /// ```
    /// use leasehold::store::{MemoryStore, QuorumStore, Store};
    /// use std::sync::Arc;
    ///
    /// let nodes = (0..5).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    /// assert_eq!(QuorumStore::new(nodes)?.needed(), 3);
    /// # Ok::<(), leasehold::store::QuorumError>(())
    /// ```
    pub fn needed(&self) -> usize {
        majority(self.nodes.len())
    }

    async fn acquire(&self, lock: &Lock, request: &Acquire, within: Duration) -> Outcome {
        let session = request.claim.hold.session();
        let pause = self.contention.stand_back(lock, session, Instant::now()).min(within / 4);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let within = within.saturating_sub(pause);
        let request =
            Acquire { queue: None, predecessor: None, liveness: Liveness::Lease, ..request.clone() };
        let Self { nodes, background, node_timeout, .. } = self;
        let (needed, node_timeout) = (self.needed(), *node_timeout);
        let outcome = Ballot { nodes, needed, lock, request, within, node_timeout, background }.run().await;
        if matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))) {
            self.contention.lost(lock, session, Instant::now());
        }
        outcome
    }

    /// Releases the hold and then sends the acquire that goes with it: a quorum cannot do both in one step.
    async fn release(&self, lock: &Lock, release: &Release, within: Duration) -> Outcome {
        let start = Instant::now();
        self.repairs.releasing(release.claim.hold);
        let only = Op::Release(Release { next: None, history: 0, ..release.clone() });
        let released = self.send(lock, &only, within).await;
        if let Outcome::Done(Reply::Release(Released { next_waiter: Some(_), .. })) = &released {
            self.contention.released_to_waiters(lock, release.claim.hold.session(), Instant::now());
        }
        let (Some(next), Outcome::Done(Reply::Release(mut released))) = (&release.next, released.clone())
        else {
            return released;
        };
        released.next = match self.acquire(lock, next, within.saturating_sub(start.elapsed())).await {
            Outcome::Done(Reply::Acquire(acquired)) => Some(Ok(acquired)),
            Outcome::Done(Reply::Refused(refused)) => Some(Err(refused)),
            // The hold was certainly released, and the acquire that failed is undone.
            Outcome::Done(_) | Outcome::Failed(..) => None,
        };
        Outcome::Done(Reply::Release(released))
    }

    async fn send(&self, lock: &Lock, op: &Op, within: Duration) -> Outcome {
        let ops = [(lock.clone(), op.clone())];
        self.send_to_all(&ops, within).await.pop().unwrap_or_else(|| Tally::new(self.nodes.len()).failure())
    }

    /// Extends holds at all nodes, and then puts them on nodes that lack them (3).
    async fn extend(&self, ops: &[(Lock, Op)], within: Duration) -> Vec<Outcome> {
        let deadline = Instant::now() + within;
        let (mut outcomes, tallies) = self.count_all(ops, within).await;
        let Self { nodes, node_timeout, repairs, .. } = self;
        let repair = Repair { nodes, needed: self.needed(), node_timeout: *node_timeout, deadline, repairs };
        let repaired = repair.run(ops, &tallies).await;
        for (outcome, repaired) in outcomes.iter_mut().zip(repaired) {
            if let Outcome::Done(Reply::Extend(Extended::Voted(votes))) = outcome {
                votes.held += repaired;
            }
        }
        outcomes
    }

    /// Sends these operations to all nodes.
    async fn send_to_all(&self, ops: &[(Lock, Op)], within: Duration) -> Vec<Outcome> {
        self.count_all(ops, within).await.0
    }

    /// Sends these operations to all nodes, one batch per node (1). Returns the outcomes, and the replies of the nodes.
    async fn count_all(&self, ops: &[(Lock, Op)], within: Duration) -> (Vec<Outcome>, Vec<Tally>) {
        let limit = self.node_timeout.min(within);
        let sent: Arc<[_]> = ops.iter().map(|(lock, op)| (lock.clone(), at_a_node(op))).collect();
        let (sender, mut events) = mpsc::unbounded_channel();
        for (at, node) in self.nodes.iter().cloned().enumerate() {
            let (sent, sender) = (Arc::clone(&sent), sender.clone());
            let task = async move {
                let outcomes = match &*sent {
                    [(lock, op)] => vec![node.execute(lock, op, limit).await],
                    sent => node.execute_all(sent, limit).await,
                };
                // The receiver is gone once the outcome is known.
                let _ = sender.send((at, outcomes));
            };
            self.background.begin(task).await;
        }
        drop(sender);
        let mut tallies: Vec<_> = ops.iter().map(|_| Tally::new(self.nodes.len())).collect();
        let mut known: Vec<Option<Outcome>> = vec![None; ops.len()];
        while known.iter().any(Option::is_none) {
            let Some((at, outcomes)) = events.recv().await else { break };
            for (tally, outcome) in tallies.iter_mut().zip(outcomes) {
                tally.note(at, outcome);
            }
            for ((tally, known), (_, op)) in tallies.iter().zip(&mut known).zip(ops) {
                if let (None, TallyResult::Known(reply)) = (&known, tally.result(op)) {
                    *known = Some(Outcome::Done(reply));
                }
            }
        }
        let outcomes =
            known.into_iter().zip(&tallies).map(|(known, tally)| known.unwrap_or_else(|| tally.failure()));
        (outcomes.collect(), tallies)
    }

    /// Why an operation is not sent to any node, if so.
    fn refusal(&self, lock: &Lock, op: &Op) -> Option<Outcome> {
        if let Some(refused) = op.refusal_for(lock.kind) {
            return Some(Outcome::Done(Reply::Refused(refused)));
        }
        let unusable = |text: String| {
            let fault = Fault::new(FaultKind::Unusable(text), Phase::Send, "the quorum");
            Some(Outcome::Failed(Executed::No, fault))
        };
        if !lock.kind.supports_quorum() {
            return unusable(KeyError::UnsupportedByQuorum(lock.kind).to_string());
        }
        let ttl_ms = match op {
            Op::Acquire(request) => request.lease_ms,
            Op::Extend(extend) => extend.lease_ms,
            Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. }) => *for_ms,
            Op::RaiseFence(_) => return unusable("only the quorum itself sends the second round".to_owned()),
            _ => 0,
        };
        match self.max_lease {
            Some(most) if Duration::from_millis(ttl_ms) > most => {
                let text = format!(
                    "a lease of {:?} is too long, and this quorum allows at most {most:?}, because a restarted node votes again after that time: set `min_uptime` higher for all clients",
                    Duration::from_millis(ttl_ms)
                );
                unusable(text)
            }
            _ => None,
        }
    }
}

/// The operation for a node: no more than a vote needs (2). Its release notifies waiters.
fn at_a_node(op: &Op) -> Op {
    match op {
        Op::Extend(extend) => Op::Extend(Extend { reserve: None, ..extend.clone() }),
        Op::Release(Release { claim, action: ReleaseAction::Grant | ReleaseAction::Free, .. }) => {
            Op::Release(Release {
                claim: claim.clone(),
                action: ReleaseAction::FreeAndPublish,
                next: None,
                history: 0,
            })
        }
        other => other.clone(),
    }
}

/// The tasks of the nodes, which continue after the caller has received its reply.
#[derive(Debug, Clone)]
struct BackgroundTasks(Arc<Watched<RunningTasks>>);

/// Running tasks, by number.
#[derive(Debug, Default)]
struct RunningTasks {
    all: BTreeSet<u64>,
    next: u64,
}

/// A task that runs until this is dropped.
struct BackgroundTask {
    number: u64,
    of: BackgroundTasks,
}

impl BackgroundTasks {
    fn new() -> Self {
        Self(Arc::new(Watched::new(RunningTasks::default())))
    }

    /// Polls a task once, then spawns it. So requests to one node are sent in order, and a release cannot overtake an
    /// acquire whose reply was not awaited.
    async fn begin(&self, task: impl Future<Output = ()> + Send + 'static) {
        let track = self.track();
        let mut task = Box::pin(async move {
            task.await;
            drop(track);
        });
        if poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx))).await.is_pending() {
            tokio::spawn(task);
        }
    }

    fn track(&self) -> BackgroundTask {
        let mut number = 0;
        self.0.modify(|running| {
            number = running.next;
            running.next += 1;
            running.all.insert(number);
            false
        });
        BackgroundTask { number, of: self.clone() }
    }

    /// Waits until all tasks that have begun by now have ended.
    async fn wait_for_running(&self) {
        let next = self.0.read(|running| running.next);
        let done = |running: &RunningTasks| running.all.range(..next).next().is_none().then_some(());
        self.0.wait_for(done).await;
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.of.0.modify(|running| running.all.remove(&self.number));
    }
}

/// Tasks that are aborted on drop.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Store for QuorumStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if let Some(refusal) = self.refusal(lock, op) {
                return refusal;
            }
            match op {
                Op::Acquire(request) => self.acquire(lock, request, within).await,
                Op::Release(release) => self.release(lock, release, within).await,
                Op::Extend(_) => {
                    let extended = self.extend(&[(lock.clone(), op.clone())], within).await.pop();
                    extended.unwrap_or_else(|| Tally::new(self.nodes.len()).failure())
                }
                op => self.send(lock, op, within).await,
            }
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            // Extends come in batches.
            let plain =
                |(lock, op): &(Lock, Op)| matches!(op, Op::Extend(_)) && self.refusal(lock, op).is_none();
            if ops.iter().all(plain) && !ops.is_empty() {
                return self.extend(ops, within).await;
            }
            join_all(ops.iter().map(|(lock, op)| self.execute(lock, op, within))).await
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().notifications(false).queue(false).max_lease(self.max_lease)
    }

    fn open_mailbox(
        &self,
        _partition: Partition,
        _session: SessionId,
        _sink: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _partition: Partition, _session: SessionId) {}

    /// Covers all nodes. The subscription begins at each node when it answers, without waiting for the others.
    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(async move {
            let publisher = Publisher::default();
            let (sender, notifications) = mpsc::unbounded_channel();
            let forward = |(at, node): (usize, &Arc<dyn Store>)| {
                tokio::spawn(forward_node(at, node.clone(), lock.clone(), sender.clone()))
            };
            let mut tasks = Tasks(self.nodes.iter().enumerate().map(forward).collect());
            let relay = Relay::new(self, lock.clone(), publisher.clone());
            tasks.0.push(tokio::spawn(relay.run(notifications)));
            Ok(Some(Subscription::new(&publisher, move || drop(tasks))))
        })
    }

    /// Nodes whose replies were not awaited still receive the operation, and grants by a minority are undone.
    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.background.wait_for_running())
    }

    /// One node after the other; those that do not answer are left out, if a majority does.
    fn scan_names<'a>(
        &'a self,
        kind: Kind,
        start: &'a str,
        within: Duration,
    ) -> BoxFuture<'a, Result<NameScan, Fault>> {
        let share = within / u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        Box::pin(async move {
            let (mut found, mut faults) = (NameScan::new(Vec::new(), true), Vec::new());
            for node in &*self.nodes {
                match node.scan_names(kind, start, share).await {
                    Ok(names) => found.merge(names),
                    Err(fault) => faults.push(fault),
                }
            }
            if self.nodes.len() - faults.len() < self.needed() {
                return Err(tally::no_quorum(self.needed(), self.nodes.len(), faults));
            }
            found.names.sort_unstable();
            found.names.dedup();
            Ok(found)
        })
    }

    fn diagnose(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Diagnosis>, Fault>> {
        Box::pin(async move {
            let found = join_all(self.nodes.iter().map(|node| node.diagnose(within))).await;
            if found.iter().all(Result::is_err) {
                let faults = found.into_iter().filter_map(Result::err).collect();
                return Err(tally::no_quorum(self.needed(), self.nodes.len(), faults));
            }
            let silent = |fault: Fault| vec![Diagnosis::unreachable(&*fault.node, &fault)];
            Ok(found.into_iter().flat_map(|found| found.unwrap_or_else(silent)).collect())
        })
    }

    fn findings(&self) -> Vec<ServerFinding> {
        self.nodes.iter().flat_map(|node| node.findings()).collect()
    }

    fn fork(&self) -> Arc<dyn Store> {
        let nodes = self.nodes.iter().map(|node| node.fork()).collect();
        // A guard that is dropped releases through a fork, so the forks of a client share what they know of contention
        // and of holds under repair.
        Arc::new(Self { nodes, ..self.clone() })
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        if !lock.kind.supports_quorum() {
            return Err(KeyError::UnsupportedByQuorum(lock.kind));
        }
        self.nodes.iter().try_for_each(|node| node.check(lock))
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStore").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
