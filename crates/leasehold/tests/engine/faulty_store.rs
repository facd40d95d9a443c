//! A memory store with injected faults.

use crate::environment::{client_in_paused_time, memory};
use futures_util::future::BoxFuture;
use leasehold::Client;
use leasehold::inspect::SessionId;
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase, Reply,
    SessionOp, SessionReply, Store,
};
use leasehold_core::{
    Claim, Extended, FencingToken, ForceRelease, ForceReleased, Inspect, KeyError, Label, ObservedHolder,
    Partition,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Longer than anything takes that does not wait for a lease.
pub(crate) const SOON: Duration = Duration::from_millis(2500);

/// What happens to an operation.
#[derive(Clone, Copy)]
pub(crate) enum Behavior {
    Execute,
    /// Execute it after this delay.
    ExecuteAfter(Duration),
    /// No reply within the call's timeout, and no effect.
    LoseRequest,
    /// Execute it, and never reply.
    LoseReply,
    /// Fail at once with a transient fault, without effect.
    Fail,
    /// Break the connection, without effect.
    Disconnect,
    /// Execute it, and break the connection instead of replying.
    ExecuteAndDisconnect,
    /// The reply to an extend that arrives too late.
    NotHeld,
    /// Release by force whatever holds the lock, and execute it then.
    ForceReleaseFirst,
}

/// What happens to each operation on the sessions or the statistics. A failure means that it was certainly not executed.
pub(crate) type SessionRule = Arc<dyn Fn(&SessionOp) -> Behavior + Send + Sync>;

/// What happens to each operation on a lock.
pub(crate) type Rule = Arc<dyn Fn(&Lock, &Op) -> Behavior + Send + Sync>;

#[derive(Clone)]
pub(crate) struct FaultyStore {
    pub(crate) inner: MemoryStore,
    pub(crate) rule: Rule,
    pub(crate) session_rule: SessionRule,
    /// Set if it keeps sessions. Otherwise holds end by their leases alone.
    pub(crate) keeps_sessions: bool,
    /// How long it waits for replicas to confirm a hold, if they must; none does.
    pub(crate) confirms_after: Option<Duration>,
    /// Set while heartbeats get no reply.
    pub(crate) heartbeats_fail: Arc<AtomicBool>,
    /// Set if no mailbox is ever opened.
    pub(crate) mailboxes_hang: bool,
    /// Set while opening a mailbox fails with a transient fault.
    pub(crate) mailboxes_fail: Arc<AtomicBool>,
    /// How many mailboxes were closed.
    pub(crate) mailboxes_closed: Arc<AtomicU32>,
    /// How many delayed operations are in flight.
    pub(crate) delayed: Arc<AtomicU32>,
}

impl FaultyStore {
    pub(crate) fn new(
        inner: &MemoryStore,
        rule: impl Fn(&Lock, &Op) -> Behavior + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner: inner.clone(),
            rule: Arc::new(rule),
            session_rule: Arc::new(|_| Behavior::Execute),
            keeps_sessions: false,
            confirms_after: None,
            heartbeats_fail: Arc::default(),
            mailboxes_hang: false,
            mailboxes_fail: Arc::default(),
            mailboxes_closed: Arc::default(),
            delayed: Arc::default(),
        }
    }

    /// A store of its own that keeps sessions.
    pub(crate) fn with_sessions(rule: impl Fn(&Lock, &Op) -> Behavior + Send + Sync + 'static) -> Self {
        Self { keeps_sessions: true, ..Self::new(&memory(), rule) }
    }

    pub(crate) async fn client(self, watchdog: Duration) -> Client {
        client_in_paused_time(self).watchdog_lease(watchdog).connect().await.expect("it connects")
    }

    pub(crate) async fn client_with_timeout(&self, call: Duration) -> Client {
        client_in_paused_time(self.clone()).call_timeout(call).connect().await.expect("it connects")
    }

    /// A client for which the store works.
    pub(crate) async fn healthy_client(&self) -> Client {
        client_in_paused_time(self.inner.clone()).connect().await.expect("it connects")
    }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

/// Releases by force the oldest hold of a lock, as an operator would between two requests of a client.
pub(crate) async fn force_release_in(store: &MemoryStore, lock: &Lock, within: Duration) {
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let Outcome::Done(Reply::Inspect(seen)) = store.execute(lock, &inspect, within).await else {
        panic!("it can be inspected")
    };
    let oldest = seen.holder.or_else(|| seen.shared_holders.into_iter().next());
    let fence = oldest.and_then(|holder| holder.fence).expect("it is held");
    let actor = Label::new("the night shift").expect("it is short");
    let free = Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor });
    let freed = store.execute(lock, &free, within).await;
    assert!(matches!(freed, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))), "{freed:?}");
}

fn unknown<T>(kind: FaultKind) -> Outcome<T> {
    Outcome::Failed(Executed::Unknown, Fault::new(kind, Phase::Reply, "a faulty store"))
}

impl Store for FaultyStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match (self.rule)(lock, op) {
                Behavior::Execute => self.inner.execute(lock, op, within).await,
                Behavior::ExecuteAfter(delay) => {
                    self.delayed.fetch_add(1, Ordering::SeqCst);
                    sleep(delay).await;
                    let outcome = self.inner.execute(lock, op, within).await;
                    self.delayed.fetch_sub(1, Ordering::SeqCst);
                    outcome
                }
                Behavior::LoseRequest => {
                    sleep(within).await;
                    unknown(FaultKind::TimedOut)
                }
                Behavior::LoseReply => {
                    self.inner.execute(lock, op, within).await;
                    sleep(within).await;
                    unknown(FaultKind::TimedOut)
                }
                Behavior::Fail => unknown(FaultKind::Busy),
                Behavior::Disconnect => unknown(FaultKind::Disconnected),
                Behavior::ExecuteAndDisconnect => {
                    self.inner.execute(lock, op, within).await;
                    unknown(FaultKind::Disconnected)
                }
                Behavior::NotHeld => Outcome::Done(Reply::Extend(Extended::NotHeld)),
                Behavior::ForceReleaseFirst => {
                    force_release_in(&self.inner, lock, within).await;
                    self.inner.execute(lock, op, within).await
                }
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities =
            if self.keeps_sessions { self.inner.capabilities() } else { Capabilities::default() };
        capabilities.confirmation(self.confirms_after.is_some())
    }

    fn confirm<'a>(
        &'a self,
        _lock: &'a Lock,
        _claim: &'a Claim,
        _fence: FencingToken,
        _within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            sleep(self.confirms_after.unwrap_or_default()).await;
            let kind = FaultKind::Unconfirmed { required: 1, confirmed: 0 };
            Err(Fault::new(kind, Phase::Reply, "a faulty store"))
        })
    }

    fn execute_session<'a>(
        &'a self,
        place: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            if self.heartbeats_fail.load(Ordering::SeqCst) {
                sleep(within).await;
                return unknown(FaultKind::TimedOut);
            }
            match (self.session_rule)(op) {
                Behavior::LoseRequest => {
                    sleep(within).await;
                    return unknown(FaultKind::TimedOut);
                }
                Behavior::LoseReply => {
                    self.inner.execute_session(place, op, within).await;
                    sleep(within).await;
                    return unknown(FaultKind::TimedOut);
                }
                Behavior::Fail => {
                    let fault = Fault::new(FaultKind::Unreachable, Phase::Send, "a faulty store");
                    return Outcome::Failed(Executed::No, fault);
                }
                _ => {}
            }
            self.inner.execute_session(place, op, within).await
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        if self.mailboxes_hang {
            Box::pin(std::future::pending())
        } else if self.mailboxes_fail.load(Ordering::SeqCst) {
            let fault = Fault::new(FaultKind::Unreachable, Phase::Connect, "a faulty store");
            Box::pin(std::future::ready(Err(fault)))
        } else {
            self.inner.open_mailbox(place, session, post, within)
        }
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.mailboxes_closed.fetch_add(1, Ordering::SeqCst);
        self.inner.close_mailbox(place, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// Returns true on the first call only.
pub(crate) fn once() -> impl Fn() -> bool + Send + Sync {
    let calls = AtomicU32::new(0);
    move || calls.fetch_add(1, Ordering::SeqCst) == 0
}

/// A counter that a test shares with a rule.
#[derive(Clone, Default)]
pub(crate) struct Counter(Arc<AtomicU32>);

impl Counter {
    /// Increments the counter and returns its former value.
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until the counter is at least this.
    pub(crate) async fn until(&self, least: u32) {
        let reached = async {
            while self.0.load(Ordering::SeqCst) < least {
                sleep(MS).await;
            }
        };
        timeout(Duration::from_secs(10), reached).await.expect("the store receives it");
    }
}
