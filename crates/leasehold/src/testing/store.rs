//! A memory store that fails when a test says so, and counts what it is asked.
//!
//! Owns the faults and the counts. What an operation means is up to the memory store, and time to the clock.
//!
//! 1. A request that fails as *not executed* has no effect, then or later.
//! 2. A request whose reply is lost is executed before its caller learns that.

use super::clock::TestClock;
use crate::client::Client;
use crate::client::builder::ClientBuilder;
use crate::store::{
    Capabilities, Executed, Fault, FaultKind, HoldWatcher, MemoryStore, NotificationSink, Outcome, Phase,
    Store, Subscription,
};
use futures_util::future::BoxFuture;
use leasehold_core::{
    Acquire, KeyError, Lock, LockName, MultiAcquired, Op, Partition, SessionId, SessionOp, SessionReply,
};
use leasehold_store::Environment;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The node that faults name.
const NODE: &str = "the test's store";

/// A memory store in a test's hands: its clock, its faults, and what it was asked. Clones are handles to the same store.
///
/// It behaves as a single Redis server does, with sessions, queues and messages. Each [`client`](Self::client) counts as a
/// process of its own.
///
/// A fault begins with the call that names it, for all clients, and for their renewals and heartbeats as well. It lasts until
/// [`up`](Self::up), [`lose_next_reply`](Self::lose_next_reply) and [`refuse_next`](Self::refuse_next) excepted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::testing::TestStore;
///
/// let store = TestStore::new();
/// let client = store.client().connect().await?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// assert!(store.is_held("orders/42"));
///
/// store.lose_lock("orders/42");
/// println!("{}", guard.lost().await); // … is lost: its key was removed before its lease ended
///
/// store.down();
/// let error = leasehold::Error::from(client.mutex("orders/43")?.try_acquire().await.unwrap_err());
/// assert!(error.is_transient());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TestStore {
    shared: Arc<Shared>,
}

struct Shared {
    memory: MemoryStore,
    clock: TestClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What happens to every request.
    lasting: Option<Failure>,
    /// What happens to the next request about a lock.
    next: Option<Failure>,
    /// How long each request takes.
    delay: Duration,
    requests: Requests,
    /// Where each session receives its notifications.
    mailboxes: HashMap<SessionId, Arc<dyn NotificationSink>>,
    watchers: Vec<Arc<dyn HoldWatcher>>,
}

#[derive(Debug, Clone)]
enum Failure {
    /// It is not executed, for this reason.
    Refused(FaultKind),
    /// It is executed, and its reply does not arrive.
    NoReply,
}

/// How many requests a [`TestStore`] received, those included that failed, and those that clients send by themselves: a
/// renewal is an extend.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::testing::TestStore;
///
/// let store = TestStore::new();
/// let client = store.client().connect().await?;
/// client.mutex("orders/42")?.acquire().await?.release().await?;
/// let requests = store.requests();
/// assert_eq!((requests.acquires, requests.releases, requests.extends), (1, 1, 0));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Acquires, polls of waiters included. One of several locks counts once for each.
    pub acquires: u64,
    /// Extends of holds, by callers and by renewals.
    pub extends: u64,
    /// Releases, those in the background included.
    pub releases: u64,
    /// All others about a lock: inspections, forced releases, evictions, numbers of permits.
    pub others: u64,
    /// About sessions: heartbeats, lists, statistics.
    pub sessions: u64,
}

impl Requests {
    fn count(&mut self, op: &Op) {
        *match op {
            Op::Acquire(_) => &mut self.acquires,
            Op::Extend(_) => &mut self.extends,
            Op::Release(_) => &mut self.releases,
            _ => &mut self.others,
        } += 1;
    }
}

/// What a [restart](TestStore::restart) leaves.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::testing::{Data, TestStore};
///
/// let store = TestStore::new();
/// let guard = store.client().connect().await?.mutex("orders/42")?.acquire().await?;
/// store.restart(Data::Kept);
/// assert!(store.is_held("orders/42"));
/// store.restart(Data::Lost);
/// assert!(!store.is_held("orders/42"));
/// guard.lost().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// All of it, as with an append-only file that is written at once.
    Kept,
    /// Nothing, as without persistence.
    Lost,
}

impl TestStore {
    /// Creates an empty store on [tokio's clock](TestClock::tokio). Call it within the test's runtime.
    pub fn new() -> Self {
        Self::with_clock(TestClock::tokio())
    }

    /// Creates an empty store on this clock.
    pub fn with_clock(clock: TestClock) -> Self {
        let time = clock.clone();
        let memory = MemoryStore::with_clock(move || time.store_us());
        Self { shared: Arc::new(Shared { memory, clock, state: Mutex::default() }) }
    }

    /// Creates a builder for a client of this store, on its clock: as another process, with a session and a keeper of its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Attempt;
    /// use leasehold::testing::TestStore;
    ///
    /// let store = TestStore::new();
    /// let one = store.client().label("one").connect().await?;
    /// let two = store.client().label("two").connect().await?;
    /// let _guard = one.mutex("orders/42")?.acquire().await?;
    /// assert!(matches!(two.mutex("orders/42")?.try_acquire().await?, Attempt::Taken(_)));
    /// # Ok(()) }
    /// ```
    pub fn client(&self) -> ClientBuilder {
        Client::with_store(self.clone()).environment(self.shared.clock.clone())
    }

    /// Returns the clock of the store and its clients.
    pub fn clock(&self) -> &TestClock {
        &self.shared.clock
    }

    /// Takes the store down: no request reaches it, and each fails as [`Unreachable`](FaultKind::Unreachable), without effect.
    /// Clients try again for as long as a call may take. What is held stays held in the store until its lease or its session
    /// ends.
    pub fn down(&self) {
        self.refuse(FaultKind::Unreachable);
    }

    /// Has each request fail with this reason, without effect.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::error::AcquireError;
    /// use leasehold::store::FaultKind;
    /// use leasehold::testing::TestStore;
    ///
    /// let store = TestStore::new();
    /// let orders = store.client().connect().await?.mutex("orders/42")?;
    /// store.refuse(FaultKind::OutOfMemory);
    /// let error = orders.acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::Store(fault) if fault.kind == FaultKind::OutOfMemory));
    /// # Ok(()) }
    /// ```
    pub fn refuse(&self, kind: FaultKind) {
        self.state().lasting = Some(Failure::Refused(kind));
    }

    /// Has the next request about a lock fail with this reason, without effect. If the fault is
    /// [transient](Fault::is_transient), its client sends the request again.
    pub fn refuse_next(&self, kind: FaultKind) {
        self.state().next = Some(Failure::Refused(kind));
    }

    /// Has each request be executed, and no reply arrive: callers wait for as long as a call may take, and cannot tell
    /// whether it was executed.
    pub fn lose_replies(&self) {
        self.state().lasting = Some(Failure::NoReply);
    }

    /// Has the next request about a lock be executed, and its reply not arrive. Its caller waits for it as long as the call may
    /// take. This may be a renewal: call it right before what the test sends.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::error::ReleaseError;
    /// use leasehold::testing::TestStore;
    ///
    /// let store = TestStore::new();
    /// let client = store.client().connect().await?;
    /// let guard = client.mutex("orders/42")?.acquire().await?;
    /// store.lose_next_reply();
    /// assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    /// assert!(!store.is_held("orders/42"));
    /// # Ok(()) }
    /// ```
    pub fn lose_next_reply(&self) {
        self.state().next = Some(Failure::NoReply);
    }

    /// Has each request take this long. If that is longer than its caller waits, it is executed when the caller gives up.
    pub fn slow(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Ends all faults. Clients notice at once, as after a reconnect.
    pub fn up(&self) {
        let mut state = self.state();
        (state.lasting, state.next, state.delay) = (None, None, Duration::ZERO);
        drop(state);
        self.reconnect();
    }

    /// Restarts the store in no time: all clients connect again, and compare what they hold with what the store has. Faults go
    /// on as before: between [`down`](Self::down) and [`up`](Self::up) the restart takes that long.
    pub fn restart(&self, data: Data) {
        if data == Data::Lost {
            self.shared.memory.clear();
        }
        self.reconnect();
    }

    /// Removes what is held under this name, of any kind, as `DEL` or an eviction by the server does. Returns whether it was held.
    ///
    /// The holder of a [`Mutex`](crate::Mutex) or an [`Election`](crate::Election) learns of it within a moment, like a client of
    /// Redis with `?tracking=1`; that of another kind with its next renewal, as without it.
    pub fn lose_lock(&self, name: &str) -> bool {
        let Ok(name) = LockName::new(name) else { return false };
        let was_held = self.shared.memory.remove(&name);
        for watcher in self.watchers() {
            watcher.changed(&name);
        }
        was_held
    }

    /// Returns whether the store has a hold under this name, of any kind.
    pub fn is_held(&self, name: &str) -> bool {
        LockName::new(name).is_ok_and(|name| self.shared.memory.is_held(&name))
    }

    /// Returns how many requests the store received so far.
    pub fn requests(&self) -> Requests {
        self.state().requests
    }

    /// Connections are made again.
    fn reconnect(&self) {
        let mailboxes: Vec<_> = self.state().mailboxes.values().cloned().collect();
        for mailbox in mailboxes {
            mailbox.resubscribed();
        }
        for watcher in self.watchers() {
            watcher.all_changed();
        }
        self.shared.clock.note_activity();
    }

    fn watchers(&self) -> Vec<Arc<dyn HoldWatcher>> {
        self.state().watchers.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request about a lock, and returns what happens to it.
    fn failure_of_next(&self, count: impl FnOnce(&mut Requests)) -> (Option<Failure>, Duration) {
        let mut state = self.state();
        count(&mut state.requests);
        let next = state.next.take();
        (next.or_else(|| state.lasting.clone()), state.delay)
    }

    /// The same for a request about a session.
    fn failure_of_session(&self) -> (Option<Failure>, Duration) {
        let mut state = self.state();
        state.requests.sessions += 1;
        (state.lasting.clone(), state.delay)
    }

    /// Performs a request as the faults say.
    async fn perform<T>(
        &self,
        (failure, delay): (Option<Failure>, Duration),
        within: Duration,
        request: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        let clock = &self.shared.clock;
        clock.note_activity();
        let begun = clock.now();
        if !delay.is_zero() {
            clock.sleep_until(begun + delay.min(within)).await;
        }
        let is_late = delay > within;
        match failure {
            Some(Failure::Refused(kind)) => Outcome::Failed(Executed::No, refusal(kind)),
            // (2)
            Some(Failure::NoReply) => {
                request.await;
                clock.sleep_until(begun + within).await;
                Outcome::Failed(Executed::Unknown, Fault::new(FaultKind::TimedOut, Phase::Reply, NODE))
            }
            None => match request.await {
                Outcome::Done(_) if is_late => {
                    Outcome::Failed(Executed::Unknown, Fault::new(FaultKind::TimedOut, Phase::Reply, NODE))
                }
                outcome => outcome,
            },
        }
    }

    /// Fails while requests are refused.
    fn check_up(&self) -> Result<(), Fault> {
        match &self.state().lasting {
            Some(Failure::Refused(kind)) => Err(refusal(kind.clone())),
            Some(Failure::NoReply) | None => Ok(()),
        }
    }
}

/// The fault of a request that is not executed.
fn refusal(kind: FaultKind) -> Fault {
    let phase = if kind == FaultKind::Unreachable { Phase::Connect } else { Phase::Send };
    Fault::new(kind, phase, NODE)
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestStore").field("requests", &self.requests()).finish_non_exhaustive()
    }
}

impl Store for TestStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let failure = self.failure_of_next(|counts| counts.count(op));
            self.perform(failure, within, self.shared.memory.execute(lock, op, within)).await
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move {
            let failure = self.failure_of_next(|counts| counts.acquires += requests.len() as u64);
            let request = async {
                let fault = || Fault::new(FaultKind::Failed("no reply".into()), Phase::Reply, NODE);
                let acquired = self.shared.memory.acquire_all(requests, within).await;
                acquired.unwrap_or_else(|| Outcome::Failed(Executed::No, fault()))
            };
            Some(self.perform(failure, within, request).await)
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.memory.capabilities()
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.check_up()?;
            self.state().mailboxes.insert(session, sink.clone());
            self.shared.memory.open_mailbox(partition, session, sink, within).await
        })
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        let closed = self.state().mailboxes.remove(&session);
        // Not under the lock: it may be the last reference to a client.
        drop(closed);
        self.shared.memory.close_mailbox(partition, session);
    }

    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(async move {
            self.check_up()?;
            self.shared.memory.subscribe(lock, within).await
        })
    }

    fn watch_holds(&self, watcher: Arc<dyn HoldWatcher>) -> bool {
        self.state().watchers.push(watcher);
        true
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            let failure = self.failure_of_session();
            self.perform(failure, within, self.shared.memory.execute_session(partition, op, within)).await
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.shared.memory.check(lock)
    }
}
