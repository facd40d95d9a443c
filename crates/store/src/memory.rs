//! The memory store: the model behind a mutex, inside one process.
//!
//! It does not outlive the process and has no faults. Its clock is the machine's, which runs during a suspend.

use crate::capabilities::{Capabilities, SessionTracking};
use crate::clock;
use crate::fault::Fault;
use crate::notification_sink::NotificationSink;
use crate::outcome::Outcome;
use crate::store::Store;
use crate::subscription::{Publisher, Subscription};
use crate::sync::{Mutex, MutexGuard, OnceLock};
use futures_util::future::{BoxFuture, ready};
use leasehold_core::model::{Content, LockState, Sessions, Watermark};
use leasehold_core::{
    Acquire, KeyError, Kind, Label, Lock, LockName, MultiAcquired, Op, Partition, Reply, SessionId,
    SessionOp, SessionReply,
};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The least number of operations between two sweeps of expired locks.
const SWEEP_EVERY: usize = 4096;

/// How many idle locks the store remembers. No reply is lost inside a process, so none is needed for a release that is sent
/// again.
const MAX_IDLE: usize = 1 << 15;

/// Locks inside one process.
///
/// ```
/// use leasehold::store::MemoryStore;
///
/// let store = MemoryStore::new();
/// assert_eq!(store.locks(), 0);
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    now_us: Box<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Default)]
struct State {
    locks: HashMap<Lock, LockState>,
    mailboxes: HashMap<SessionId, Arc<dyn NotificationSink>>,
    sessions: Sessions,
    /// The subscriptions to changes of an Election's leader.
    publishers: HashMap<Lock, Vec<(u64, Publisher)>>,
    last_subscription: u64,
    /// The greatest fencing token of idle locks.
    watermark: Watermark,
    /// The locks that became idle, in this order. A lock that was used again may be in it several times.
    idle: VecDeque<Lock>,
    since_sweep: usize,
}

impl MemoryStore {
    /// Creates a private store.
    pub fn new() -> Self {
        // The clock starts at the wall clock's time, so that fencing tokens look alike in every store.
        let wall_clock =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let start = clock::boottime();
        Self::with_clock(move || {
            let now = wall_clock + clock::boottime().since(start);
            u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
        })
    }

    /// The store with this name that the whole process shares: what the URL `memory:NAME` opens.
    pub fn named(name: &str) -> Self {
        static SHARED: OnceLock<Mutex<HashMap<String, MemoryStore>>> = OnceLock::new();
        let shared = SHARED.get_or_init(Mutex::default);
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.entry(name.to_owned()).or_default().clone()
    }

    /// Creates a store whose clock is `now_us`, in microseconds.
    pub fn with_clock(now_us: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), now_us: Box::new(now_us) }) }
    }

    /// The number of locks that the store remembers, held or not.
    pub fn locks(&self) -> usize {
        let now_us = (self.shared.now_us)();
        let mut state = self.lock();
        state.locks.retain(|_, lock| !lock.is_empty_at(now_us));
        state.locks.len()
    }

    /// Whether anything is held under this name, by a lock of any kind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, LockName, store::MemoryStore};
    ///
    /// let (store, name) = (MemoryStore::new(), LockName::new("orders/42")?);
    /// let guard = Client::with_store(store.clone()).connect().await?.mutex(name.clone())?.acquire().await?;
    /// assert!(store.is_held(&name));
    /// guard.release().await?;
    /// assert!(!store.is_held(&name));
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self, name: &LockName) -> bool {
        let now_us = (self.shared.now_us)();
        let mut state = self.lock();
        of_every_kind(name)
            .any(|lock| state.locks.get_mut(&lock).is_some_and(|lock| lock.value_at(now_us).is_some()))
    }

    /// Removes what is held under this name, by locks of any kind, as `DEL` does on a server: for tests of what becomes of the
    /// holder. The queue and the fencing tokens stay. Returns whether anything was held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, LockName, store::MemoryStore};
    /// use std::time::Duration;
    ///
    /// let (store, name) = (MemoryStore::new(), LockName::new("orders/42")?);
    /// let guard = Client::with_store(store.clone()).connect().await?.mutex(name.clone())?.acquire().await?;
    /// assert!(store.remove(&name));
    /// assert!(guard.extend_to(Duration::from_secs(60)).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn remove(&self, name: &LockName) -> bool {
        let now_us = (self.shared.now_us)();
        let mut state = self.lock();
        let mut was_held = false;
        for lock in of_every_kind(name) {
            let Some(found) = state.locks.get_mut(&lock) else { continue };
            was_held |= found.value_at(now_us).is_some();
            found.value = None;
            state.notify_observers(&lock);
        }
        was_held
    }

    /// Forgets all locks and sessions, as a restart without persistence does. Mailboxes and subscriptions stay open.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, store::MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let _guard = Client::with_store(store.clone()).connect().await?.mutex("orders/42")?.acquire().await?;
    /// store.clear();
    /// assert_eq!(store.locks(), 0);
    /// # Ok(()) }
    /// ```
    pub fn clear(&self) {
        let mut state = self.lock();
        state.locks.clear();
        state.idle.clear();
        state.sessions = Sessions::default();
        state.watermark = Watermark::default();
        let observed: Vec<_> = state.publishers.keys().cloned().collect();
        for lock in &observed {
            state.notify_observers(lock);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only the model changes the state, and the model does not panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now_us = (self.shared.now_us)();
        state.sweep(now_us);
        let State { locks, mailboxes, sessions, publishers, watermark, idle, .. } = state;
        let alive = |session| sessions.status(now_us / 1000, session);
        let other = others(lock).find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
        let state = match locks.get_mut(lock) {
            Some(state) => state,
            None => locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind)),
        };
        let subscribers = publishers.get(lock).filter(|_| lock.kind == Kind::Election);
        let before = subscribers.map(|_| leader_of(state));
        let was_settled = state.is_settled();
        state.watermark = *watermark;
        let (reply, notifications) = match other {
            None => state.apply(now_us, op, &alive),
            Some(other) => state.apply_to_occupied_key(&other, now_us, op, &alive),
        };
        *watermark = state.watermark;
        if state.is_settled() && !was_settled {
            idle.push_back(lock.clone());
        }
        if before.is_some_and(|before| before != leader_of(state)) {
            subscribers.into_iter().flatten().for_each(|(_, publisher)| publisher.notify());
        }
        let deliveries: Vec<_> = notifications
            .into_iter()
            .filter_map(|notification| Some((mailboxes.get(&notification.to())?.clone(), notification)))
            .collect();
        drop(guard);
        for (sink, notification) in deliveries {
            sink.deliver(notification);
        }
        reply
    }
}

/// The locks of all kinds with this name: they share one key.
fn of_every_kind(name: &LockName) -> impl Iterator<Item = Lock> {
    Kind::ALL.into_iter().map(|kind| Lock { kind, name: name.clone() })
}

/// The locks of other kinds with the same name.
fn others(lock: &Lock) -> impl Iterator<Item = Lock> {
    of_every_kind(&lock.name).filter(|other| other.kind != lock.kind)
}

impl MemoryStore {
    fn apply_all(&self, requests: &[(Lock, Acquire)]) -> Vec<MultiAcquired> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now_us = (self.shared.now_us)();
        state.sweep(now_us);
        let State { locks, watermark, .. } = state;
        let mut together = Vec::with_capacity(requests.len());
        for (lock, _) in requests {
            let mut state = locks.remove(lock).unwrap_or_else(|| LockState::new(lock.kind));
            let other = others(lock).find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
            if let Some(other) = &other {
                state.value = Some(other.type_only());
            }
            together.push((state, other.is_some()));
        }
        let mut pairs: Vec<_> =
            together.iter_mut().zip(requests).map(|((state, _), (_, request))| (state, request)).collect();
        for (state, _) in &mut pairs {
            state.watermark = *watermark;
        }
        let results = LockState::acquire_all(&mut pairs, now_us);
        for ((mut state, beside_another), (lock, _)) in together.into_iter().zip(requests) {
            if beside_another {
                state.value = None;
            }
            locks.insert(lock.clone(), state);
        }
        results
    }
}

impl State {
    /// Notifies those that observe the leader of an Election.
    fn notify_observers(&self, lock: &Lock) {
        self.publishers.get(lock).into_iter().flatten().for_each(|(_, publisher)| publisher.notify());
    }

    /// Removes idle locks once they have expired or are too many, and other expired locks now and then: after as many
    /// operations as there are locks, so that an operation costs the same however many there are.
    fn sweep(&mut self, now_us: u64) {
        for _ in 0..2 {
            let too_many = self.idle.len() > MAX_IDLE;
            let Some(oldest) = self.idle.front().and_then(|lock| self.locks.get_mut(lock)) else {
                // It was swept before.
                self.idle.pop_front();
                continue;
            };
            if oldest.is_settled() && too_many {
                oldest.record = None;
            }
            let is_over = oldest.is_empty_at(now_us);
            if !is_over && oldest.is_settled() {
                break;
            }
            if let Some(lock) = self.idle.pop_front().filter(|_| is_over) {
                self.locks.remove(&lock);
            }
        }
        self.since_sweep += 1;
        if self.since_sweep >= SWEEP_EVERY.max(self.locks.len()) {
            self.since_sweep = 0;
            self.locks.retain(|_, lock| !lock.is_empty_at(now_us));
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move { Outcome::Done(self.apply(lock, op)) })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move { Some(Outcome::Done(self.apply_all(requests))) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionTracking::ByHeartbeat)
    }

    fn open_mailbox(
        &self,
        _partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.lock().mailboxes.insert(session, sink);
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _partition: Partition, session: SessionId) {
        self.lock().mailboxes.remove(&session);
    }

    /// For an Election: changes of its leader. Other libraries have no locks here.
    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        let subscription = (lock.kind == Kind::Election).then(|| {
            let publisher = Publisher::default();
            let mut state = self.lock();
            state.last_subscription += 1;
            let number = state.last_subscription;
            state.publishers.entry(lock.clone()).or_default().push((number, publisher.clone()));
            let (store, lock) = (self.clone(), lock.clone());
            Subscription::new(&publisher, move || {
                let mut state = store.lock();
                let Some(publishers) = state.publishers.get_mut(&lock) else { return };
                publishers.retain(|(other, _)| *other != number);
                if publishers.is_empty() {
                    state.publishers.remove(&lock);
                }
            })
        });
        Box::pin(ready(Ok(subscription)))
    }

    fn execute_session<'a>(
        &'a self,
        _partition: Partition,
        op: &'a SessionOp,
        _within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            let mut state = self.lock();
            let now_ms = (self.shared.now_us)() / 1000;
            Outcome::Done(state.sessions.apply(now_ms, op))
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}

/// What observers of an Election see change: the hold at its key, and the text of its holder.
fn leader_of(state: &LockState) -> (Option<Content>, Option<Label>) {
    let content = state.value.as_ref().map(|value| value.content.clone());
    let holder = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
    (content, holder.map(|holder| holder.label.clone()))
}
