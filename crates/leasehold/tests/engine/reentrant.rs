//! A ReentrantMutex over a store that loses replies, or that a client of another library uses too.

use crate::environment::{client_in_paused_time, memory};
use crate::until::until;
use futures_util::future::BoxFuture;
use leasehold::error::AcquireError;
use leasehold::inspect::{Holder, SessionId};
use leasehold::store::{
    Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase, Publisher, Reply,
    Store, Subscription,
};
use leasehold::{Client, Owner, ReentrantGuard, ReentrantMutex, Released};
use leasehold_core::{Acquire, Acquired, KeyError, LockMode, Partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);

/// The lock of these tests, for that owner.
fn lock(client: &Client, owner: &Owner) -> ReentrantMutex {
    client.reentrant_mutex("m").expect("a good name").owned_by(owner)
}

async fn acquired(lock: &ReentrantMutex) -> ReentrantGuard {
    tokio::time::timeout(Duration::from_secs(10), lock.acquire()).await.expect("in time").expect("acquired")
}

/// A memory store with these faults.
#[derive(Clone, Debug, Default)]
struct FaultyStore {
    inner: MemoryStore,
    /// How many of the next replies to acquires are lost.
    mute: Arc<AtomicU32>,
    /// Set while acquires are neither executed nor answered.
    silent: Arc<AtomicBool>,
    /// Set while a client of another library holds the lock.
    stranger: Arc<AtomicBool>,
    /// How many acquire requests were sent.
    requests: Arc<AtomicU32>,
    bell: Publisher,
    /// How many subscriptions are open.
    listen: Arc<AtomicU32>,
    /// Set if the other client releases the lock while a waiter subscribes, before the subscription is effective.
    leaves_unheard: bool,
}

impl FaultyStore {
    fn new() -> Self {
        Self { inner: memory(), ..Self::default() }
    }

    async fn client(&self) -> Client {
        let builder = client_in_paused_time(self.clone()).call_timeout(100 * MS);
        builder.outage_limit(1_000 * MS).connect().await.expect("it connects")
    }

    async fn acquire(&self, lock: &Lock, op: &Op, request: &Acquire, within: Duration) -> Outcome {
        let lost = || {
            Outcome::Failed(
                Executed::Unknown,
                Fault::new(FaultKind::TimedOut, Phase::Reply, "a faulty store"),
            )
        };
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.silent.load(Ordering::SeqCst) {
            tokio::time::sleep(within).await;
            return lost();
        }
        if self.stranger.load(Ordering::SeqCst) {
            let holder = Holder {
                label: None,
                owner: None,
                count: 1,
                remaining_ms: Some(30_000),
                fence: None,
                since_ms: None,
                session: None,
                mode: LockMode::Exclusive,
                in_cooldown: false,
            };
            let position = request.queue.as_ref().map(|_| 0);
            let taken = Acquired::Taken {
                holder: Some(holder),
                position,
                predecessor: None,
                other_holders: Vec::new(),
            };
            return Outcome::Done(Reply::Acquire(taken));
        }
        let outcome = self.inner.execute(lock, op, within).await;
        let mute = self.mute.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |mute| mute.checked_sub(1));
        if mute.is_ok() {
            tokio::time::sleep(within).await;
            return lost();
        }
        outcome
    }
}

impl Store for FaultyStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        match op {
            Op::Acquire(request) => Box::pin(self.acquire(lock, op, request, within)),
            _ => self.inner.execute(lock, op, within),
        }
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn subscribe<'a>(
        &'a self,
        _lock: &'a Lock,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(async move {
            tokio::time::sleep(20 * MS).await;
            if self.leaves_unheard {
                self.stranger.store(false, Ordering::SeqCst);
            }
            self.listen.fetch_add(1, Ordering::SeqCst);
            let listen = self.listen.clone();
            let end = move || {
                listen.fetch_sub(1, Ordering::SeqCst);
            };
            Ok(Some(Subscription::new(&self.bell, end)))
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.inner.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// The parent waits for the child: after a lost reply the child's re-entry must not queue behind the parent.
#[tokio::test(start_paused = true)]
async fn a_re_entry_whose_reply_is_lost_is_repeated_and_counts_once() {
    let store = FaultyStore::new();
    let client = store.client().await;
    let ours = lock(&client, &client.new_owner());
    let outer = acquired(&ours).await;
    store.mute.store(2, Ordering::SeqCst);
    let inner = acquired(&ours).await;
    assert_eq!(inner.count(), 2, "sent three times, entered once");
    assert_eq!(inner.release().await.expect("released"), Released::StillHeld { count: 1 });
    assert_eq!(outer.release().await.expect("released"), Released::NoLongerHeld);
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_gives_up_with_the_store() {
    let store = FaultyStore::new();
    let client = store.client().await;
    let ours = lock(&client, &client.new_owner());
    let outer = acquired(&ours).await;
    store.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let missed = ours.acquire().await.expect_err("the store does not reply");
    assert!(matches!(missed, AcquireError::Unknown(_)), "{missed:?}");
    assert!(start.elapsed() >= 1_000 * MS && start.elapsed() < 3_000 * MS, "{:?}", start.elapsed());
    let tried = ours.try_acquire().await.expect_err("the store does not reply");
    assert!(matches!(tried, AcquireError::Unknown(_)), "{tried:?}");
    store.silent.store(false, Ordering::SeqCst);
    assert_eq!(acquired(&ours).await.release().await.expect("released"), Released::StillHeld { count: 1 });
    outer.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_foreign_client_is_woken_by_its_message_and_polls_rarely() {
    let store = FaultyStore::new();
    store.stranger.store(true, Ordering::SeqCst);
    let client = store.client().await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock(&client, &client.new_owner());
            tokio::spawn(async move { acquired(&lock).await.release().await })
        })
        .collect();
    until("one waiter subscribes", async || store.listen.load(Ordering::SeqCst) == 1).await;
    tokio::time::sleep(100 * MS).await;
    let before = store.requests.load(Ordering::SeqCst);
    tokio::time::sleep(2_000 * MS).await;
    let looks = store.requests.load(Ordering::SeqCst) - before;
    assert!((1..=4).contains(&looks), "one poll a second, and not {looks} in two");
    assert_eq!(store.listen.load(Ordering::SeqCst), 1);
    store.stranger.store(false, Ordering::SeqCst);
    let start = Instant::now();
    store.bell.notify();
    for task in waiting {
        task.await.expect("no panic").expect("released");
    }
    assert!(start.elapsed() < 400 * MS, "with the message: {:?}", start.elapsed());
    assert_eq!(store.listen.load(Ordering::SeqCst), 0, "no subscription is left");
}

#[tokio::test(start_paused = true)]
async fn what_a_foreign_client_does_before_the_subscription_is_polled_for() {
    let store = FaultyStore { leaves_unheard: true, ..FaultyStore::new() };
    store.stranger.store(true, Ordering::SeqCst);
    let client = store.client().await;
    let start = Instant::now();
    acquired(&lock(&client, &client.new_owner())).await.release().await.expect("released");
    assert!(start.elapsed() < 200 * MS, "at the poll after subscribing: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_unsubscribes() {
    let store = FaultyStore::new();
    store.stranger.store(true, Ordering::SeqCst);
    let client = store.client().await;
    let missed = lock(&client, &client.new_owner()).acquire_timeout(300 * MS).await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    assert_eq!(store.listen.load(Ordering::SeqCst), 0);
    // A single try does not wait, and so does not subscribe.
    let tried = lock(&client, &client.new_owner()).try_acquire().await.expect("an answer");
    assert!(tried.granted().is_none());
}
