//! The fixture of a case: the store under test, a fresh lock, and the clients that use it.

use super::client::{CALL_TIMEOUT, LONG, TestClient};
use super::inbox::GrantMessage;
use super::inbox::Inbox;
use super::store_under_test::StoreUnderTest;
use super::unsupported::Unsupported;
use crate::Random;
use futures_util::future::LocalBoxFuture;
use leasehold_core::{Kind, Lock, LockName, SessionId};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a whole case may take.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);
/// The interval between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// The fixture of one case.
pub struct Fixture {
    /// The store under test.
    pub subject: Box<dyn StoreUnderTest>,
    /// The lock of this case.
    pub lock: Lock,
    /// The source of random numbers.
    pub random: Arc<Random>,
    controls_clock: bool,
    /// The prefix of lock names. It places all locks in one partition, so that one mailbox is enough, and several can
    /// be acquired in one step.
    tag: String,
    unsupported: Arc<Unsupported>,
}

/// The store that a case runs against, once it is there.
pub type Subject = LocalBoxFuture<'static, Box<dyn StoreUnderTest>>;

/// Boxes a store. Called by [`suite!`](super::suite).
pub fn subject<S: StoreUnderTest>(subject: impl Future<Output = S> + 'static) -> Subject {
    Box::pin(async { Box::new(subject.await) as Box<dyn StoreUnderTest> })
}

/// Runs one case with locks of one kind, on its own runtime.
pub fn run_case<S: StoreUnderTest>(
    kind: Kind,
    store: impl Future<Output = S> + 'static,
    case: impl AsyncFnOnce(&Fixture) + 'static,
) {
    run_boxed(kind, subject(store), Box::new(|fixture| Box::pin(case(fixture))));
}

/// A boxed case.
pub(super) type Play = Box<dyn for<'a> FnOnce(&'a Fixture) -> LocalBoxFuture<'a, ()>>;

pub(super) fn run_boxed(kind: Kind, subject: Subject, case: Play) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime needs threads");
    let random = Arc::new(Random::from_env());
    println!("seed: {}", random.seed_setting());
    runtime.block_on(async {
        let fixture = Fixture::new(kind, subject.await, random).await;
        let running = async {
            tokio::select! {
                () = case(&fixture) => {}
                what = fixture.unsupported.reported() => report_unsupported(what),
            }
        };
        let in_time = tokio::time::timeout(CASE_TIMEOUT, running).await;
        assert!(in_time.is_ok(), "the case did not end in {CASE_TIMEOUT:?}");
    });
}

impl Fixture {
    async fn new(kind: Kind, subject: Box<dyn StoreUnderTest>, random: Arc<Random>) -> Self {
        let controls_clock = subject.advance(Duration::ZERO).is_some();
        let is_partitioned = subject.store().await.capabilities().partitioned;
        let tag = if is_partitioned { format!("{{{:016x}}}", random.bits()) } else { String::new() };
        let lock = fresh_lock(kind, &tag, &random);
        Self { subject, lock, random, controls_clock, tag, unsupported: Arc::default() }
    }

    /// A fresh lock of the same kind.
    pub fn another_lock(&self) -> Lock {
        fresh_lock(self.lock.kind, &self.tag, &self.random)
    }

    /// A new session with its own store handle and open mailbox.
    pub async fn client(&self) -> TestClient {
        let client = self.client_without_mailbox().await;
        let opened = client
            .store
            .open_mailbox(client.partition(), client.session, client.inbox.clone(), CALL_TIMEOUT)
            .await;
        opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened: {fault}"));
        client
    }

    /// A new session without an open mailbox.
    pub async fn client_without_mailbox(&self) -> TestClient {
        TestClient {
            store: self.subject.store().await,
            session: SessionId::from_random(self.random.bytes()),
            inbox: Arc::new(Inbox::default()),
            lock: self.lock.clone(),
            random: self.random.clone(),
            unsupported: Arc::clone(&self.unsupported),
        }
    }

    /// Several sessions.
    pub async fn clients<const N: usize>(&self) -> [TestClient; N] {
        let clients = futures_util::future::join_all((0..N).map(|_| self.client())).await;
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as requested"))
    }

    /// A new session with the store handle of another client and its own mailbox.
    pub async fn client_on_same_handle(&self, of: &TestClient) -> TestClient {
        let session = SessionId::from_random(self.random.bytes());
        let client = TestClient { session, inbox: Arc::new(Inbox::default()), ..of.clone() };
        let opened =
            client.store.open_mailbox(client.partition(), session, client.inbox.clone(), CALL_TIMEOUT).await;
        opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened: {fault}"));
        client
    }

    /// Whether the suite controls the store's clock.
    pub fn controls_clock(&self) -> bool {
        self.controls_clock
    }

    /// A lease that ends during the case, but not before [`advance`](Self::advance) is called. Without control of the
    /// clock, it is long enough for a few operations.
    pub fn short_lease(&self) -> Duration {
        if self.controls_clock { Duration::from_secs(10) } else { Duration::from_secs(1) }
    }

    /// Advances the store's clock, or waits.
    pub async fn advance(&self, by: Duration) {
        match self.subject.advance(by) {
            Some(advanced) => advanced.await,
            None => tokio::time::sleep(by).await,
        }
    }

    /// Advances the clock until the lease of the lock's holder has ended.
    pub async fn wait_expired(&self, lease: Duration, observer: &TestClient) {
        self.advance(lease + Duration::from_millis(2)).await;
        self.wait_until("the lease ends", async || observer.inspect().await.holder.is_none()).await;
    }

    /// Advances the clock until a session has lapsed that lives for `alive` without a heartbeat.
    pub async fn wait_lapsed(&self, alive: Duration, session: &TestClient) {
        self.advance(alive + Duration::from_millis(2)).await;
        let lapsed = async || {
            let entry = session.session_entry(session.session).await;
            entry.is_none_or(|entry| entry.alive_ms.is_none())
        };
        self.wait_until("the session lapses", lapsed).await;
    }

    /// Polls until a condition holds, within a time limit.
    pub async fn wait_until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !condition().await {
            assert!(start.elapsed() < CALL_TIMEOUT, "timed out waiting until {what}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// All grants that a session was sent and has not read.
    ///
    /// Then the session is granted another lock. All earlier notifications precede that grant, so none is missing.
    pub async fn grants_so_far(&self, to: &TestClient) -> Vec<GrantMessage> {
        let kind = if self.lock.kind.is_shared() { Kind::Mutex } else { self.lock.kind };
        let other_lock = fresh_lock(kind, &self.tag, &self.random);
        let holder = self.client_without_mailbox().await.at(&other_lock);
        let held = holder.acquire_new(LONG).await;
        let to = to.at(&other_lock);
        let (claim, nonce) = to.enqueue().await;
        holder.release(&held).await;
        let mut grants = Vec::new();
        loop {
            let grant = to.next_grant().await;
            if grant.nonce == nonce {
                break;
            }
            grants.push(grant);
        }
        to.release(&claim).await;
        grants
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("lock", &self.lock).finish_non_exhaustive()
    }
}

fn fresh_lock(kind: Kind, tag: &str, random: &Random) -> Lock {
    Lock { kind, name: name(&format!("{tag}conformance/{:016x}", random.bits())) }
}

/// Parses a valid lock name.
pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// Reports that a case needs a feature that the store lacks.
pub(super) fn report_unsupported(power: &str) {
    println!("not applicable: this store has no {power}");
}
