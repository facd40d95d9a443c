//! Waiters of a low priority, which ages.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::AcquireError;
use leasehold::{Attempt, Mutex};
use leasehold_testkit::cancel_at_every_await;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;
use tokio::task::JoinHandle;

on_every_store! {
    asynchronous:
    waiters_of_low_priority_go_last,
    a_low_priority_ages,
    a_low_priority_ends_at_the_limit_of_the_wait,
    a_free_lock_is_acquired_at_once,
    each_kind_has_priorities,
    waiting_at_low_priority_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Acquires the lock, notes its name, and releases it.
fn waits(mutex: &Mutex, name: &'static str, order: &Arc<StdMutex<Vec<&'static str>>>) -> JoinHandle<()> {
    let (mutex, order) = (mutex.clone(), order.clone());
    tokio::spawn(async move {
        let guard = mutex.acquire().await.expect("acquired");
        order.lock().expect("no panic").push(name);
        guard.release().await.expect("released");
    })
}

async fn waiters_of_low_priority_go_last(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (own, other) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let held = own.acquire().await.expect("acquired");
    let order = Arc::default();
    let low = waits(&other.clone().low_priority_for(HOUR), "low", &order);
    let low_here = waits(&own.clone().low_priority_for(HOUR), "low", &order);
    // Each comes after them, and waits in the queue, where they are not.
    let first = waits(&other, "first", &order);
    until_waiting(&own, 1).await;
    let second = waits(&store.client("c").await.mutex("m").expect("a good name"), "second", &order);
    until_waiting(&own, 2).await;
    held.release().await.expect("released");
    for waiter in [low, low_here, first, second] {
        waiter.await.expect("acquired");
    }
    assert_eq!(*order.lock().expect("no panic"), ["first", "second", "low", "low"]);
    until_at_rest(&own).await;
}

async fn a_low_priority_ages(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (own, other) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let held = own.acquire().await.expect("acquired");
    let order = Arc::default();
    let low = waits(&other.clone().low_priority_for(100 * MS), "low", &order);
    until_waiting(&own, 1).await;
    let later = waits(&store.client("c").await.mutex("m").expect("a good name"), "later", &order);
    until_waiting(&own, 2).await;
    held.release().await.expect("released");
    for waiter in [low, later] {
        waiter.await.expect("acquired");
    }
    assert_eq!(*order.lock().expect("no panic"), ["low", "later"]);
}

async fn a_low_priority_ends_at_the_limit_of_the_wait(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (own, other) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let held = own.acquire().await.expect("acquired");
    for low_for in [HOUR, 50 * MS] {
        let waited = other.clone().low_priority_for(low_for).acquire_timeout(200 * MS).await;
        let Err(AcquireError::TimedOut { contention, .. }) = waited else { panic!("{waited:?}") };
        assert!(contention.to_string().contains('a'), "it names the holder: {contention}");
    }
    let tried = other.clone().low_priority_for(HOUR).acquire_timeout(Duration::ZERO).await;
    assert!(matches!(tried, Err(AcquireError::TimedOut { .. })), "{tried:?}");
    until_waiting(&own, 0).await;
    held.release().await.expect("released");
}

async fn a_free_lock_is_acquired_at_once(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name").low_priority_for(HOUR);
    mutex.acquire().await.expect("acquired").release().await.expect("released");
    let detached = mutex.lease(30_000 * MS).acquire_detached().await.expect("acquired");
    detached.release(&client).await.expect("released");
}

async fn each_kind_has_priorities(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let permits = a.semaphore("s", 2).expect("a good name");
    let one = permits.acquire().await.expect("acquired");
    let low = b.semaphore("s", 2).expect("a good name").low_priority_for(HOUR);
    let waits = tokio::spawn(async move { low.acquire_many(2).await.expect("acquired").release().await });
    // It is in no queue, so it keeps no single permit from others.
    let two = permits.try_acquire().await.expect("an answer").granted().expect("one is free");
    for permit in [one, two] {
        permit.release().await.expect("released");
    }
    waits.await.expect("no panic").expect("released");

    let election = a.election("e").expect("a good name").low_priority_for(HOUR);
    election.campaign().await.expect("it leads").resign().await.expect("resigned");

    let reentrant = a.reentrant_mutex("r").expect("a good name").low_priority_for(HOUR);
    let outer = reentrant.acquire().await.expect("acquired");
    outer.release().await.expect("released");

    // An upgrade is waited for by all, and has no priority.
    let owner = leasehold::Owner::new("editor").expect("a good name");
    let low = a.rwlock("w").expect("a good name").owned_by(&owner).low_priority_for(HOUR);
    let upgradable = low.upgradable_read().await.expect("acquired");
    let reader = b.rwlock("w").expect("a good name").read().await.expect("acquired");
    let upgrades = tokio::spawn(async move {
        let Ok(writer) = upgradable.upgrade().await else { panic!("it waits") };
        writer.release().await
    });
    let seen = b.rwlock("w").expect("a good name");
    until_waiting(&seen, 1).await;
    assert!(matches!(seen.try_read().await.expect("an answer"), Attempt::Taken(_)), "it waits first");
    reader.release().await.expect("released");
    upgrades.await.expect("no panic").expect("released");
}

async fn waiting_at_low_priority_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (own, other) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let held = own.acquire().await.expect("acquired");
    let low = other.low_priority_for(60 * MS);
    cancel_at_every_await(
        || async {
            let waited = low.acquire_timeout(200 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
        },
        async |_| until_waiting(&own, 0).await,
    )
    .await;
    held.release().await.expect("released");
    until_at_rest(&own).await;
}
