//! Operations of several sessions on one lock, and what they return.

use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, Heartbeat, HeartbeatReply, HoldId, HoldStatus, Inspect, Label,
    Liveness, LockMode, Nonce, Partition, Release, ReleaseAction, Released, SessionEntry, SessionId,
};
use leasehold_redis::RedisStore;
use leasehold_store::{
    Executed, Fault, Lock, Notification, NotificationSink, Op, Outcome, Reply, SessionOp, SessionReply, Store,
};
use leasehold_testkit::RedisServer;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Long enough on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// A timeout that a call has to keep.
pub(crate) const SHORT: Duration = Duration::from_millis(400);

/// The delay that a busy machine may add to it.
pub(crate) const LATE: Duration = Duration::from_millis(600);

/// An event that a mailbox received.
#[derive(Debug)]
pub(crate) enum Received {
    Notification(Notification),
    /// Some may have been missed.
    Resubscribed,
}

/// A mailbox whose notifications a test receives.
pub(crate) struct Mailbox(mpsc::UnboundedSender<Received>);

impl Mailbox {
    pub(crate) fn open() -> (mpsc::UnboundedReceiver<Received>, Arc<dyn NotificationSink>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (receiver, Arc::new(Self(sender)))
    }
}

impl NotificationSink for Mailbox {
    fn deliver(&self, notification: Notification) {
        let _ = self.0.send(Received::Notification(notification));
    }

    fn resubscribed(&self) {
        let _ = self.0.send(Received::Resubscribed);
    }
}

pub(crate) async fn receive(inbox: &mut mpsc::UnboundedReceiver<Received>) -> Option<Received> {
    tokio::time::timeout(LONG, inbox.recv()).await.expect("nothing is received")
}

/// The next event, which must be a notification.
pub(crate) async fn notified(inbox: &mut mpsc::UnboundedReceiver<Received>) -> Notification {
    match receive(inbox).await {
        Some(Received::Notification(notification)) => notification,
        other => panic!("not a notification: {other:?}"),
    }
}

pub(crate) async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(server.url().parse().unwrap()).await.unwrap()
}

pub(crate) fn connections(server: &RedisServer) -> usize {
    let clients = server.cli(&["CLIENT", "LIST"]).unwrap();
    clients.text().unwrap().lines().filter(|client| !client.contains("cmd=client|list")).count()
}

pub(crate) async fn eventually(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within ten seconds");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a call with the timeout `SHORT`.
pub(crate) async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let result = call.await;
    assert!(started.elapsed() < SHORT + LATE, "{:?}", started.elapsed());
    result
}

pub(crate) fn job() -> Lock {
    Lock::mutex("job".parse().unwrap())
}

pub(crate) fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

pub(crate) fn claim(n: u8) -> Claim {
    Claim::new(HoldId::from_random(session(n), [n; 16]))
}

pub(crate) fn nonce(n: u64) -> Nonce {
    Nonce::new(0, n)
}

pub(crate) fn take(claim: &Claim, nonce: Option<Nonce>) -> Op {
    Op::Acquire(ask(claim, nonce))
}

pub(crate) fn ask(claim: &Claim, nonce: Option<Nonce>) -> Acquire {
    let queue = nonce.map(|nonce| Enqueue { nonce, ttl_ms: 20_000 });
    Acquire {
        claim: claim.clone(),
        lease_ms: 20_000,
        label: label(),
        queue,
        expire_foreign_ms: None,
        // The store may not know the session, and is to evict it all the same: two milliseconds later.
        liveness: Liveness::Session { alive_ms: 0 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

pub(crate) fn label() -> Label {
    Label::new("test").unwrap()
}

/// A heartbeat of the `n`th session.
pub(crate) fn alive(n: u8) -> Heartbeat {
    Heartbeat {
        session: session(n),
        alive_ms: 60_000,
        begin: None,
        acquired: vec![],
        released: vec![],
        renew_listing: true,
        activity: None,
    }
}

pub(crate) async fn heartbeat(
    store: &RedisStore,
    n: u8,
    begin: Option<&str>,
    acquired: Vec<Lock>,
) -> HeartbeatReply {
    let begin = begin.map(str::to_owned);
    match execute_session(store, &SessionOp::Heartbeat(Heartbeat { begin, acquired, ..alive(n) })).await {
        SessionReply::Heartbeat(reply) => reply,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn listed(store: &RedisStore) -> Vec<SessionEntry> {
    match execute_session(store, &SessionOp::List).await {
        SessionReply::List(list) => list.entries,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn execute_session(store: &RedisStore, op: &SessionOp) -> SessionReply {
    match store.execute_session(Partition::ONLY, op, LONG).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{other:?}"),
    }
}

pub(crate) async fn inspect(store: &RedisStore) -> leasehold_core::Inspection {
    match execute(store, &Op::Inspect(Inspect { claim: None, details: true }), LONG).await {
        Outcome::Done(Reply::Inspect(seen)) => seen,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn execute(store: &RedisStore, op: &Op, within: Duration) -> Outcome {
    store.execute(&job(), op, within).await
}

pub(crate) async fn execute_on(store: &RedisStore, name: &str, op: Op, within: Duration) -> Outcome {
    store.execute(&Lock::mutex(name.parse().unwrap()), &op, within).await
}

pub(crate) async fn acquire(store: &RedisStore, claim: &Claim, nonce: Option<Nonce>) -> Outcome {
    execute(store, &take(claim, nonce), LONG).await
}

pub(crate) async fn acquire_of(store: &RedisStore, name: &str, claim: &Claim) -> Outcome {
    execute_on(store, name, take(claim, None), LONG).await
}

pub(crate) async fn release(store: &RedisStore, claim: &Claim) -> Outcome {
    let op =
        Op::Release(Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 });
    execute(store, &op, LONG).await
}

#[track_caller]
pub(crate) fn granted(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{outcome:?}");
}

#[track_caller]
pub(crate) fn found(outcome: Outcome) -> HoldStatus {
    let Outcome::Done(Reply::Release(Released { status, .. })) = outcome else { panic!("{outcome:?}") };
    status
}

#[track_caller]
pub(crate) fn refused(outcome: Outcome) -> Fault {
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    fault
}

#[track_caller]
pub(crate) fn unknown(outcome: Outcome) -> Fault {
    let Outcome::Failed(Executed::Unknown, fault) = outcome else { panic!("{outcome:?}") };
    fault
}
