//! The store of a client: a quorum, and a record of what is requested from it and what it replies.

use crate::quorum::event::{ClientNo, RequestOutcome};
use crate::quorum::world::World;
use futures_util::future::BoxFuture;
use leasehold::store::{
    Capabilities, Fault, Lock, NotificationSink, Op, Outcome, QuorumStore, Reply, Store, Subscription,
};
use leasehold_core::{Acquire, Acquired, HoldId, KeyError, Partition, Release, Released, SessionId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The store of one client.
pub(crate) struct ClientStore {
    pub(crate) world: Arc<World>,
    pub(crate) client: ClientNo,
    pub(crate) quorum: Arc<dyn Store>,
}

impl ClientStore {
    pub(crate) fn new(world: Arc<World>, client: ClientNo, quorum: QuorumStore) -> Self {
        Self { world, client, quorum: Arc::new(quorum) }
    }

    fn acquiring(&self, lock: &Lock, acquire: &Acquire) -> Acquiring<'_> {
        let request = self.world.requested(self.client, lock, acquire);
        Acquiring { world: &self.world, hold: acquire.claim.hold, request, is_answered: false }
    }

    fn extending(&self, op: &Op) -> Option<Extending<'_>> {
        let Op::Extend(extend) = op else { return None };
        let (hold, now) = (extend.claim.hold, self.world.now());
        let request = self.world.holds(|holds| holds.begin_request(hold, extend.lease_ms, now));
        Some(Extending { world: &self.world, hold, request })
    }
}

/// A request for a hold, whose reply no task awaits any more once this is dropped.
struct Acquiring<'a> {
    world: &'a World,
    hold: HoldId,
    request: u64,
    is_answered: bool,
}

impl Acquiring<'_> {
    fn answered(mut self, acquired: Option<&Acquired>) {
        self.is_answered = true;
        let outcome = match acquired {
            Some(Acquired::Granted { fence, .. }) => RequestOutcome::Granted(*fence),
            _ => RequestOutcome::NotGranted,
        };
        self.world.answered(self.hold, self.request, outcome);
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.world.answered(self.hold, self.request, RequestOutcome::NotGranted);
        }
    }
}

/// An extend, until this is dropped.
struct Extending<'a> {
    world: &'a World,
    hold: HoldId,
    request: u64,
}

impl Drop for Extending<'_> {
    fn drop(&mut self) {
        let now = self.world.now();
        self.world.holds(|holds| holds.end_request(self.hold, self.request, now));
    }
}

impl fmt::Debug for ClientStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientStore({})", self.client)
    }
}

impl Store for ClientStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match op {
                Op::Acquire(acquire) => {
                    let acquiring = self.acquiring(lock, acquire);
                    let outcome = self.quorum.execute(lock, op, within).await;
                    let acquired = match &outcome {
                        Outcome::Done(Reply::Acquire(acquired)) => Some(acquired),
                        _ => None,
                    };
                    acquiring.answered(acquired);
                    outcome
                }
                Op::Release(Release { claim, next, .. }) => {
                    self.world.holds(|holds| holds.ended(claim.hold));
                    let acquiring = next.as_ref().map(|next| self.acquiring(lock, next));
                    let outcome = self.quorum.execute(lock, op, within).await;
                    if let Some(acquiring) = acquiring {
                        let next = match &outcome {
                            Outcome::Done(Reply::Release(Released { next: Some(Ok(next)), .. })) => {
                                Some(next)
                            }
                            _ => None,
                        };
                        acquiring.answered(next);
                    }
                    outcome
                }
                _ => {
                    let _extending = self.extending(op);
                    self.quorum.execute(lock, op, within).await
                }
            }
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            if ops.iter().any(|(_, op)| !matches!(op, Op::Extend(_))) {
                let all = ops.iter().map(|(lock, op)| self.execute(lock, op, within));
                return futures_util::future::join_all(all).await;
            }
            let _extending: Vec<_> = ops.iter().filter_map(|(_, op)| self.extending(op)).collect();
            self.quorum.execute_all(ops, within).await
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.quorum.capabilities()
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.quorum.open_mailbox(partition, session, sink, within)
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        self.quorum.close_mailbox(partition, session);
    }

    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        self.quorum.subscribe(lock, within)
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.quorum.flush()
    }

    fn fork(&self) -> Arc<dyn Store> {
        let (world, client, quorum) = (self.world.clone(), self.client, self.quorum.fork());
        Arc::new(Self { world, client, quorum })
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.quorum.check(lock)
    }
}
