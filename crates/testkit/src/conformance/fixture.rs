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
    moves_clock: bool,
    /// The prefix of lock names. It places all locks in one partition, so that one mailbox is enough, and several can
    /// be acquired in one step.
    tag: String,
    unsupported: Arc<Unsupported>,
}

/// Runs one case with locks of one kind, on its own runtime. Called by [`suite!`](super::suite).
///
/// Boxes the case early: with thousands of callers, each must add little code.
pub fn run_case<S: StoreUnderTest>(
    kind: Kind,
    subject: impl Future<Output = S>,
    case: impl AsyncFnOnce(&Fixture) + 'static,
) {
    let subject = async { Box::new(subject.await) as Box<dyn StoreUnderTest> };
    run_boxed(kind, Box::pin(subject), Box::new(|fixture| Box::pin(case(fixture))));
}

/// A boxed case.
type Case<'a> = Box<dyn for<'s> FnOnce(&'s Fixture) -> LocalBoxFuture<'s, ()> + 'a>;

fn run_boxed(kind: Kind, subject: LocalBoxFuture<'_, Box<dyn StoreUnderTest>>, case: Case<'_>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime needs threads");
    let random = Arc::new(Random::from_env());
    println!("seed: {}", random.seed_setting());
    runtime.block_on(async {
        let fixture = Fixture::new(kind, subject.await, random).await;
        let played = async {
            tokio::select! {
                () = case(&fixture) => {}
                what = fixture.unsupported.reached() => not_applicable(what),
            }
        };
        let in_time = tokio::time::timeout(CASE_TIMEOUT, played).await;
        assert!(in_time.is_ok(), "the case did not end in {CASE_TIMEOUT:?}");
    });
}

impl Fixture {
    async fn new(kind: Kind, subject: Box<dyn StoreUnderTest>, random: Arc<Random>) -> Self {
        let moves_clock = subject.advance(Duration::ZERO).is_some();
        let has_places = subject.store().await.capabilities().partitioned;
        let tag = if has_places { format!("{{{:016x}}}", random.bits()) } else { String::new() };
        let lock = fresh_lock(kind, &tag, &random);
        Self { subject, lock, random, moves_clock, tag, unsupported: Arc::default() }
    }

    /// A fresh lock of the same kind.
    pub fn another_lock(&self) -> Lock {
        fresh_lock(self.lock.kind, &self.tag, &self.random)
    }

    /// A new session with a store handle and an open mailbox of its own.
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
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// A session of the same store handle as another, with a mailbox of its own.
    pub async fn neighbour(&self, of: &TestClient) -> TestClient {
        let session = SessionId::from_random(self.random.bytes());
        let client = TestClient { session, inbox: Arc::new(Inbox::default()), ..of.clone() };
        let opened =
            client.store.open_mailbox(client.partition(), session, client.inbox.clone(), CALL_TIMEOUT).await;
        opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened: {fault}"));
        client
    }

    /// Whether the store's clock is the suite's to move.
    pub fn moves_clock(&self) -> bool {
        self.moves_clock
    }

    /// A lease that ends while the case runs, but not before [`pass`](Self::pass) is called: where the
    /// clock cannot be moved, a few operations have to fit in.
    pub fn short(&self) -> Duration {
        if self.moves_clock { Duration::from_secs(10) } else { Duration::from_millis(500) }
    }

    /// Lets time go by on the store's clock.
    pub async fn pass(&self, by: Duration) {
        match self.subject.advance(by) {
            Some(advanced) => advanced.await,
            None => tokio::time::sleep(by).await,
        }
    }

    /// Lets the lease of the lock's holder end, and sees that it does.
    pub async fn outlast(&self, lease: Duration, onlooker: &TestClient) {
        self.pass(lease + Duration::from_millis(2)).await;
        self.until("the lease ends", async || onlooker.inspect().await.holder.is_none()).await;
    }

    /// Lets a session lapse that lives for `alive` without a beat, and sees that it does.
    pub async fn outlive(&self, alive: Duration, session: &TestClient) {
        self.pass(alive + Duration::from_millis(2)).await;
        let lapsed = async || {
            let entry = session.listed(session.session).await;
            entry.is_none_or(|entry| entry.alive_ms.is_none())
        };
        self.until("the session lapses", lapsed).await;
    }

    /// Looks again and again until something is so, within a bound.
    pub async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !is_so().await {
            assert!(start.elapsed() < CALL_TIMEOUT, "in vain: until {what}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// All inbox that a session has been sent so far.
    ///
    /// The absence of a message is proved by order: the session is granted another lock, and all earlier messages
    /// precede that grant.
    pub async fn grants_so_far(&self, to: &TestClient) -> Vec<GrantMessage> {
        let kind = if self.lock.kind.is_shared() { Kind::Mutex } else { self.lock.kind };
        let elsewhere = fresh_lock(kind, &self.tag, &self.random);
        let holder = self.client_without_mailbox().await.at(&elsewhere);
        let held = holder.take(LONG).await;
        let to = to.at(&elsewhere);
        let (claim, nonce) = to.enqueue().await;
        holder.release(&held).await;
        let mut inbox = Vec::new();
        loop {
            let wake = to.message().await;
            if wake.nonce == nonce {
                break;
            }
            inbox.push(wake);
        }
        to.release(&claim).await;
        inbox
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

/// Reports that a case needs a power that the test lacks.
pub(super) fn not_applicable(power: &str) {
    println!("not applicable: this store has no {power}");
}
