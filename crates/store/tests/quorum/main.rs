//! A quorum of memory stores with injected faults: which client acquires a lock, with which token, and the cleanup
//! after a failed attempt.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod clients;
mod node;
mod repair;
mod rounds;
mod votes;

use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FencingToken, HoldId, HoldStatus, Inspect, Inspection, Label,
    Liveness, LockMode, Op, Release, ReleaseAction, Released, Reply, SessionId,
};
use leasehold_store::{Executed, Fault, Lock, Outcome, QuorumStore, Store};
use node::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The call timeout in these tests.
pub(crate) const CALL: Duration = Duration::from_secs(5);

/// Five nodes, and the quorum of them.
pub(crate) struct FiveNodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) quorum: QuorumStore,
    pub(crate) lock: Lock,
}

impl FiveNodes {
    pub(crate) fn new() -> Self {
        Self::with_clocks_ahead([Duration::ZERO; 5])
    }

    /// Nodes whose clocks are ahead by these amounts.
    pub(crate) fn with_clocks_ahead(ahead: [Duration; 5]) -> Self {
        let names = ["a", "b", "c", "d", "e"];
        let nodes: Vec<_> =
            names.into_iter().zip(ahead).map(|(name, ahead)| Node::new(name, ahead)).collect();
        let stores = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>);
        let quorum = QuorumStore::new(stores).unwrap();
        Self { nodes, quorum, lock: Lock::mutex("job".parse().unwrap()) }
    }

    pub(crate) async fn execute(&self, op: Op) -> Outcome {
        self.quorum.execute(&self.lock, &op, CALL).await
    }

    pub(crate) async fn acquire(&self, claim: &Claim) -> Outcome {
        self.execute(Op::Acquire(acquire(claim))).await
    }

    pub(crate) async fn granted(&self, claim: &Claim) -> FencingToken {
        match self.acquire(claim).await {
            Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) => fence,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn taken(&self, claim: &Claim) {
        let outcome = self.acquire(claim).await;
        assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{outcome:?}");
    }

    pub(crate) async fn extend(&self, claim: &Claim) -> Result<Extended, Fault> {
        let extend =
            Extend { claim: claim.clone(), lease_ms: 60_000, keep_record: false, reserve: None, fence: None };
        match self.execute(Op::Extend(extend)).await {
            Outcome::Done(Reply::Extend(extended)) => Ok(extended),
            Outcome::Failed(Executed::Unknown, fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released, Fault> {
        let release = Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 };
        match self.execute(Op::Release(release)).await {
            Outcome::Done(Reply::Release(released)) => Ok(released),
            Outcome::Failed(Executed::Unknown, fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn inspect(&self) -> Inspection {
        match self.execute(Op::Inspect(Inspect { claim: None, details: false })).await {
            Outcome::Done(Reply::Inspect(seen)) => seen,
            other => panic!("{other:?}"),
        }
    }

    /// The state of a hold at each node.
    pub(crate) async fn statuses(&self, claim: &Claim) -> Vec<HoldStatus> {
        let inspect = Op::Inspect(Inspect { claim: Some(claim.clone()), details: false });
        let mut statuses = Vec::new();
        for node in &self.nodes {
            match node.execute_here(&self.lock, &inspect).await {
                Reply::Inspect(seen) => statuses.extend(seen.hold_status),
                other => panic!("{other:?}"),
            }
        }
        statuses
    }

    /// Waits until no node has the hold.
    pub(crate) async fn until_gone(&self, claim: &Claim) {
        let start = Instant::now();
        while self.statuses(claim).await.contains(&HoldStatus::Held) {
            assert!(start.elapsed() < Duration::from_secs(20), "it is there still");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The token of the current holder at each node.
    pub(crate) async fn fences(&self) -> Vec<Option<FencingToken>> {
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        let mut fences = Vec::new();
        for node in &self.nodes {
            match node.execute_here(&self.lock, &inspect).await {
                Reply::Inspect(seen) => fences.push(seen.holder.and_then(|holder| holder.fence)),
                other => panic!("{other:?}"),
            }
        }
        fences
    }
}

/// A new hold.
pub(crate) fn claim() -> Claim {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let n = LAST.fetch_add(1, Ordering::Relaxed);
    Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]))
}

pub(crate) fn acquire(claim: &Claim) -> Acquire {
    let label = Label::new(format!("worker {}", claim.hold.session())).unwrap();
    let (claim, liveness) = (claim.clone(), Liveness::Lease);
    let (queue, expire_foreign_ms, predecessor, mode) = (None, None, None, LockMode::Exclusive);
    Acquire { claim, lease_ms: 3_000, label, queue, expire_foreign_ms, liveness, predecessor, mode }
}
