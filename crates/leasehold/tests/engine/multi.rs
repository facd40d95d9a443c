//! A `MultiMutex` over stores that are slow, lose replies, or lack an acquire of several locks in one step.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, Counter, FaultyStore, MS, force_release_in};
use crate::fixture::{both, force_release, mutex};
use crate::until::{until_at_rest, until_waiting};
use futures_util::future::BoxFuture;
use leasehold::core::{Acquire, Inspect, MultiAcquired, Partition};
use leasehold::error::{AcquireError, KeyError};
use leasehold::inspect::SessionId;
use leasehold::store::{Fault, Lock, MemoryStore, NotificationSink, Op, Outcome, Store};
use leasehold::{Attempt, Client, LostReason, MultiAttempt, MultiGuard};
use leasehold_testkit::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const SOON: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(2);

/// The reason for the loss of the first hold is learned although the second is known to be lost before that.
#[tokio::test(start_paused = true)]
async fn the_loss_of_another_lock_hides_no_reason() {
    let store = FaultyStore::with_sessions(|lock, op| match op {
        Op::Inspect(_) if lock.name.as_str() == "a" => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = both(&client).acquire().await.expect("acquired");
    let signal = guard.lost_signal();
    force_release(&mutex(&other, "a")).await;
    force_release(&mutex(&other, "b")).await;
    guard.extend().await.expect_err("both are gone");
    let lost = timeout(SOON, guard.lost()).await.expect("the loss is reported");
    assert_eq!(lost.reason, LostReason::ForceReleased, "{lost}");
    assert!(signal.is_cancelled());
    let reported = async {
        while guard.check().expect_err("it is gone").reason != LostReason::ForceReleased {
            sleep(MS).await;
        }
    };
    timeout(SOON, reported).await.expect("the loss of the first is reported, too");
}

/// Acquires both in two rounds: the first round acquires one lock, and the reply about the other is lost. It takes
/// more than 400 ms to recover the result.
async fn acquired_slowly(lease: Duration) -> MultiGuard {
    let requests = Counter::default();
    let store = FaultyStore::with_sessions(move |lock, op| match op {
        Op::Acquire(_) if lock.name.as_str() == "b" && requests.next() == 1 => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(400 * MS).await, store.healthy_client().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let all = both(&client).lease(lease);
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    timeout(SOON, waits).await.expect("in time").expect("no panic").expect("acquired")
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ended_during_the_acquire_is_not_handed_out() {
    let guard = acquired_slowly(300 * MS).await;
    guard.check().expect("all are held when it is returned");
    assert!(guard.remaining() > 150 * MS, "{:?}", guard.remaining());
}

/// Its session lapses while the reply about one of the locks is on its way: other clients may have held the locks since.
#[tokio::test(start_paused = true)]
async fn locks_whose_session_lapsed_during_the_acquire_are_requested_again() {
    let requests = Counter::default();
    let store = FaultyStore::with_sessions(move |lock, op| match op {
        Op::Acquire(_) if lock.name.as_str() == "b" && requests.next() == 0 => {
            Behavior::ExecuteAfter(1_500 * MS)
        }
        _ => Behavior::Execute,
    });
    let builder = client_in_paused_time(store.clone()).call_timeout(CALL).session_ttl(1_000 * MS);
    let client = builder.connect().await.expect("it connects");
    store.heartbeats_fail.store(true, Ordering::SeqCst);
    let acquiring = tokio::spawn({
        let all = both(&client);
        async move { all.acquire().await }
    });
    sleep(1_100 * MS).await;
    store.heartbeats_fail.store(false, Ordering::SeqCst);
    let guard = timeout(SOON, acquiring).await.expect("in time").expect("no panic").expect("acquired");
    guard.check().expect("all are held when it is returned");
    guard.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn the_lease_counts_from_the_last_acquired_lock() {
    let guard = acquired_slowly(1_500 * MS).await;
    assert!(guard.remaining() > 1_200 * MS, "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_holds_though_acquired_locks_cannot_be_released() {
    let store = FaultyStore::with_sessions(|_, op| {
        if matches!(op, Op::Release(_)) { Behavior::LoseRequest } else { Behavior::Execute }
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let kept = mutex(&other, "b").acquire().await.expect("acquired");
    let all = both(&client);
    let waits = tokio::spawn(async move {
        let start = Instant::now();
        (all.acquire_timeout(500 * MS).await, start.elapsed())
    });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    let (missed, waited) = waits.await.expect("no panic");
    assert!(
        matches!(&missed, Err(AcquireError::TimedOut { lock, .. }) if lock.as_str() == "b"),
        "{missed:?}"
    );
    assert!(waited < 1_500 * MS, "{waited:?}");
    kept.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_holds_though_acquired_locks_cannot_be_extended() {
    let store = FaultyStore::with_sessions(|_, op| {
        if matches!(op, Op::Extend(_)) { Behavior::LoseRequest } else { Behavior::Execute }
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let all = both(&client).lease(10_000 * MS);
    let waits = tokio::spawn(async move {
        let start = Instant::now();
        (all.acquire_timeout(500 * MS).await, start.elapsed())
    });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    let (acquired, waited) = waits.await.expect("no panic");
    acquired.expect("all are held").check().expect("as long as the first lease");
    assert!(waited < 1_500 * MS, "{waited:?}");
}

/// Waits for the second lock in order, holding the first; then the first is released by force.
#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_waiting_for_the_next_is_acquired_anew() {
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let (first, second) = (mutex(&other, "a"), mutex(&other, "b"));
    let taken = first.acquire().await.expect("acquired");
    let kept = second.acquire().await.expect("acquired");
    let all = both(&client);
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&first, 1).await;
    taken.release().await.expect("released");
    until_waiting(&second, 1).await;
    force_release(&first).await;
    let held_again = async {
        while first.inspect().await.expect("an answer").holder.is_none() {
            sleep(MS).await;
        }
    };
    timeout(2 * SOON, held_again).await.expect("it does not wait for the second without the first");
    until_waiting(&second, 1).await;
    kept.release().await.expect("released");
    let guard = timeout(SOON, waits).await.expect("in time").expect("no panic").expect("acquired");
    guard.check().expect("both are held");
}

/// The reply to the multi-lock request is lost, and no session can begin before the deadline: whether anything was
/// acquired is unknown.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_unknown_though_the_session_lapses_afterwards() {
    let heartbeats_fail = Arc::new(AtomicBool::new(false));
    let (silent, requests) = (heartbeats_fail.clone(), Counter::default());
    let mut store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Acquire(_) if requests.next() < 2 => {
            silent.store(true, Ordering::SeqCst);
            Behavior::ExecuteAndDisconnect
        }
        Op::Acquire(_) => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    store.heartbeats_fail = heartbeats_fail;
    let builder = client_in_paused_time(store.clone()).session_ttl(1_000 * MS).call_timeout(200 * MS);
    let client = builder.connect().await.expect("it connects");
    let missed = both(&client).acquire_timeout(2_500 * MS).await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    let other = store.healthy_client().await;
    for name in ["a", "b"] {
        let free = async {
            while !matches!(mutex(&other, name).try_acquire().await, Ok(Attempt::Granted(_))) {
                sleep(MS).await;
            }
        };
        timeout(SOON, free).await.expect("any hold of it is undone");
    }
}

async fn at_rest(client: &Client, names: &[&str]) {
    for name in names {
        until_at_rest(&mutex(client, name)).await;
    }
}

/// Two to five of the names, in random order.
fn some(random: &Random) -> Vec<&'static str> {
    let mut names = NAMES.to_vec();
    let wanted = usize::try_from(random.between(2, 5)).expect("a small number");
    while names.len() > wanted {
        names.swap_remove(usize::try_from(random.below(names.len() as u64)).expect("a small number"));
    }
    names.reverse();
    names
}

/// A store without an atomic acquire of several locks.
#[derive(Debug, Clone)]
struct OneByOne(MemoryStore);

impl Store for OneByOne {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        self.0.execute(lock, op, within)
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.0.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.0.close_mailbox(place, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.0.check(lock)
    }
}

/// On such a store the locks are tried one by one: if one is taken, those acquired before are released.
#[tokio::test(start_paused = true)]
async fn without_an_atomic_acquire_it_is_all_or_none_as_well() {
    let store = OneByOne(memory());
    let connect = async |label: &str| {
        let client = client_in_paused_time(store.clone()).label(label).connect().await;
        client.expect("the store can be reached")
    };
    let [a, b] = [connect("one").await, connect("another").await];
    let taken = mutex(&b, "b").acquire().await.expect("acquired");
    let all = a.multi_mutex(["a", "b", "c"]).expect("good names");
    let attempt = all.try_acquire().await.expect("an answer");
    assert!(matches!(attempt, MultiAttempt::Taken { lock, .. } if lock.as_str() == "b"));
    at_rest(&b, &["a", "c"]).await;
    taken.release().await.expect("released");
    all.acquire().await.expect("acquired").release().await.expect("released");
    let tasks = [a, b].map(|client| {
        tokio::spawn(async move {
            let random = Random::from_seed(client.session_id().to_string().len() as u64);
            for _ in 0..40 {
                let all = client.multi_mutex(some(&random)).expect("good names");
                all.acquire().await.expect("acquired").release().await.expect("released");
            }
        })
    });
    for task in tasks {
        timeout(2 * SOON, task).await.expect("every task has its turn").expect("no panic");
    }
}

/// A store that evicts the hold already acquired, once, while the rest is requested.
#[derive(Debug, Clone)]
struct Interrupted {
    inner: MemoryStore,
    once: Arc<AtomicU32>,
    /// Notified when the keeper requests why a hold is gone, when no guard counts as held any more.
    noticed: Arc<tokio::sync::Notify>,
}

impl Store for Interrupted {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        if matches!(op, Op::Inspect(Inspect { claim: Some(_), .. })) {
            self.noticed.notify_one();
        }
        self.inner.execute(lock, op, within)
    }

    fn acquire_all<'a>(
        &'a self,
        acquires: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move {
            if acquires.len() == 1 && self.once.fetch_add(1, Ordering::SeqCst) == 0 {
                let second = Lock::mutex("b".parse().expect("a good name"));
                force_release_in(&self.inner, &second, within).await;
                self.noticed.notified().await;
            }
            self.inner.acquire_all(acquires, within).await
        })
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

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// The hold that was waited for can end while the rest is requested: then not all locks are held.
#[tokio::test(start_paused = true)]
async fn all_locks_are_held_when_the_guard_is_returned() {
    let store = Interrupted { inner: memory(), once: Arc::default(), noticed: Arc::default() };
    let one = client_in_paused_time(store.clone()).watchdog_lease(Duration::from_millis(600)).connect().await;
    let one = one.expect("the store can be reached");
    let another =
        client_in_paused_time(store.inner.clone()).connect().await.expect("the store can be reached");
    let taken = mutex(&another, "b").acquire().await.expect("acquired");
    let all = one.multi_mutex(["a", "b"]).expect("good names");
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&mutex(&another, "b"), 1).await;
    taken.release().await.expect("released");
    let guard = timeout(2 * SOON, waits).await.expect("in time").expect("no panic").expect("acquired");
    assert_eq!(store.once.load(Ordering::SeqCst), 1, "it was interrupted");
    assert!(guard.check().is_ok(), "{:?}", guard.check());
    guard.release().await.expect("released");
    at_rest(&another, &["a", "b"]).await;
}
