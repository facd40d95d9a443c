//! Futures dropped at each of their awaits leave no entry, no queue entry and no count.

use super::fixture::{MS, acquired, lock};
use crate::cases::store::TestStore;
use crate::until::{until, until_at_rest, until_waiting};
use leasehold::error::AcquireError;
use leasehold::{Client, Owner, ReentrantMutex};
use leasehold_testkit::cancel_at_every_await;

on_every_store! {
    asynchronous:
    an_acquire_cancelled_at_every_await,
    a_try_cancelled_at_every_await,
    a_re_entry_cancelled_at_every_await,
    a_re_entry_past_waiters_cancelled_at_every_await,
    waiting_cancelled_at_every_await,
    releases_cancelled_at_every_await,
    a_release_with_local_waiters_cancelled_at_every_await,
}

/// Two clients, an owner of the first, and its lock.
async fn fixture(store: &TestStore) -> (Client, Client, Owner, ReentrantMutex, ReentrantMutex) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let owner = a.new_owner();
    let (ours, theirs) = (lock(&a, &owner), lock(&b, &b.new_owner()));
    (a, b, owner, ours, theirs)
}

async fn until_entered(lock: &ReentrantMutex, times: u64) {
    until("the count matches the holds", async || lock.hold_count().await.expect("an answer") == times).await;
}

async fn an_acquire_cancelled_at_every_await(store: &TestStore) {
    let (_a, _b, _, ours, theirs) = fixture(store).await;
    cancel_at_every_await(|| ours.acquire(), async |_| until_at_rest(&theirs).await).await;
    until_at_rest(&theirs).await;
}

async fn a_try_cancelled_at_every_await(store: &TestStore) {
    let (_a, _b, _, ours, theirs) = fixture(store).await;
    cancel_at_every_await(|| ours.try_acquire(), async |_| until_at_rest(&theirs).await).await;
    until_at_rest(&theirs).await;
}

async fn a_re_entry_cancelled_at_every_await(store: &TestStore) {
    let (_a, b, owner, ours, theirs) = fixture(store).await;
    let outer = acquired(&ours).await;
    for lock in [&ours, &lock(&b, &owner)] {
        let points = cancel_at_every_await(|| lock.acquire(), async |_| until_entered(&ours, 1).await).await;
        assert!(points > 0, "{points} points");
        until_entered(&ours, 1).await;
        outer.check().expect("held");
    }
    outer.release().await.expect("released");
    until_at_rest(&theirs).await;
}

async fn a_re_entry_past_waiters_cancelled_at_every_await(store: &TestStore) {
    let (a, b, owner, ours, theirs) = fixture(store).await;
    let outer = acquired(&ours).await;
    // Tasks of other owners wait in both processes.
    let waiting = [&a, &b].map(|client| {
        let lock = lock(client, &client.new_owner());
        tokio::spawn(async move { acquired(&lock).await.release().await })
    });
    until_waiting(&ours, 1).await;
    for lock in [&ours, &lock(&b, &owner)] {
        cancel_at_every_await(|| lock.acquire(), async |_| until_entered(&ours, 1).await).await;
        until_entered(&ours, 1).await;
    }
    assert!(waiting.iter().all(|task| !task.is_finished()));
    outer.release().await.expect("released");
    for task in waiting {
        task.await.expect("no panic").expect("released");
    }
    until_at_rest(&theirs).await;
}

async fn waiting_cancelled_at_every_await(store: &TestStore) {
    let (_a, _b, _, ours, theirs) = fixture(store).await;
    let points = cancel_at_every_await(
        || async {
            let guard = theirs.acquire().await.expect("acquired");
            let waited = ours.acquire_timeout(600 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
            drop(guard);
        },
        async |_| until_at_rest(&theirs).await,
    )
    .await;
    assert!(points > 1, "{points} points");
    until_at_rest(&theirs).await;
}

async fn releases_cancelled_at_every_await(store: &TestStore) {
    let (_a, _b, _, ours, theirs) = fixture(store).await;
    cancel_at_every_await(
        || async {
            let (outer, inner) = (acquired(&ours).await, acquired(&ours).await);
            outer.release().await.expect("released");
            inner.extend().await.expect("extended");
            inner.release().await.expect("released");
        },
        async |_| until_at_rest(&theirs).await,
    )
    .await;
    until_at_rest(&theirs).await;
}

async fn a_release_with_local_waiters_cancelled_at_every_await(store: &TestStore) {
    let (a, _b, _, ours, theirs) = fixture(store).await;
    cancel_at_every_await(
        || async {
            let (outer, inner) = (acquired(&ours).await, acquired(&ours).await);
            let waiter = lock(&a, &a.new_owner());
            let waiter = tokio::spawn(async move { acquired(&waiter).await.release().await });
            tokio::task::yield_now().await;
            outer.release().await.expect("released");
            inner.release().await.expect("released");
            waiter.await.expect("no panic").expect("released");
        },
        async |_| until_at_rest(&theirs).await,
    )
    .await;
    until_at_rest(&theirs).await;
}
