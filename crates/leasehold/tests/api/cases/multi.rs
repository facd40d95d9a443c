//! Several locks held together.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, LockError};
use leasehold::{Attempt, Client, LostReason, MultiAttempt, MultiMutex, Mutex, ReentrantMutex, Released};
use leasehold_testkit::{Random, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

on_every_store! {
    asynchronous:
    all_are_held_or_none,
    a_set_is_neither_empty_nor_without_a_bound,
    a_waiter_for_several_locks_holds_none,
    tasks_of_a_process_take_turns,
    the_loss_of_one_is_the_loss_of_all,
    a_lease_of_several_ends_when_it_ends,
    several_cancelled_at_every_await,
    an_owner_holds_several_reentrant_locks_and_re_enters_each,
    a_waiter_for_several_reentrant_locks_holds_none,
    owners_of_several_reentrant_locks_take_turns,
    the_loss_of_one_reentrant_lock_is_the_loss_of_all,
    several_reentrant_locks_cancelled_at_every_await,
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const SOON: Duration = Duration::from_secs(20);

fn mutex(client: &Client, name: &str) -> Mutex {
    client.mutex(name).expect("a good name")
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

async fn a_set_is_neither_empty_nor_without_a_bound(store: &TestStore) {
    let client = store.client("a").await;
    let names = |many: usize| (0..many).map(|n| format!("{n}"));
    let most = client.multi_mutex(names(MultiMutex::MAX_LOCKS).chain(names(3))).expect("each counts once");
    let all = most.acquire().await.expect("acquired");
    all.check().expect("held");
    all.release().await.expect("released");
    let many = client.multi_mutex(names(MultiMutex::MAX_LOCKS + 1)).expect_err("too many");
    assert_eq!(many, LockError::TooManyNames { given: 65, max: 64 });
    assert_eq!(client.multi_mutex(names(0)).expect_err("none"), LockError::NoName);
}

async fn all_are_held_or_none(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let both = a.multi_mutex(["b", "a", "b"]).expect("good names");
    assert_eq!(both.names().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b"]);
    let guard = both.acquire().await.expect("acquired");
    assert!(guard.check().is_ok());
    let tokens: Vec<_> = guard.fencing_tokens().map(|(name, token)| (name.to_string(), token)).collect();
    assert_eq!(guard.fencing_token("b"), Some(tokens[1].1));
    assert_eq!(guard.fencing_token("c"), None);
    for name in ["a", "b"] {
        assert!(
            matches!(mutex(&b, name).try_acquire().await.expect("an answer"), Attempt::Taken(_)),
            "{name}"
        );
    }
    guard.release().await.expect("released");
    let only = mutex(&b, "b").acquire().await.expect("acquired");
    match both.try_acquire().await.expect("an answer") {
        MultiAttempt::Taken { lock, contention } => {
            assert_eq!(lock.as_str(), "b");
            assert!(contention.to_string().starts_with("held by another for "), "{contention}");
        }
        MultiAttempt::Granted(_) => panic!("b is taken"),
    }
    let free = mutex(&b, "a").try_acquire().await.expect("an answer");
    assert!(matches!(free, Attempt::Granted(_)), "no lock of a set that could not be completed is held");
    drop(free);
    at_rest(&b, &["a"]).await;
    let missed = both.acquire_timeout(Duration::ZERO).await;
    assert!(
        matches!(&missed, Err(AcquireError::TimedOut { lock, .. }) if lock.as_str() == "b"),
        "{missed:?}"
    );
    let missed = both.acquire_timeout(Duration::from_millis(400)).await;
    assert!(
        matches!(&missed, Err(AcquireError::TimedOut { lock, .. }) if lock.as_str() == "b"),
        "{missed:?}"
    );
    only.release().await.expect("released");
    at_rest(&a, &["a", "b"]).await;
}

/// A task that waits for one of several locks blocks none of the others.
async fn a_waiter_for_several_locks_holds_none(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let taken = mutex(&b, "b").acquire().await.expect("acquired");
    let all = a.multi_mutex(["a", "b", "c"]).expect("good names");
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&mutex(&b, "b"), 1).await;
    for name in ["a", "c"] {
        let free = mutex(&b, name).try_acquire().await.expect("an answer");
        assert!(matches!(free, Attempt::Granted(_)), "{name} is held by a waiter");
    }
    taken.release().await.expect("released");
    let guard =
        tokio::time::timeout(SOON, waits).await.expect("in time").expect("no panic").expect("acquired");
    assert_eq!(guard.fencing_tokens().count(), 3);
    guard.release().await.expect("released");
    at_rest(&a, &["a", "b", "c"]).await;
}

/// Tasks of one process queue for each of the locks as for a single lock.
async fn tasks_of_a_process_take_turns(store: &TestStore) {
    let client = store.client("one").await;
    let inside = Arc::new([const { AtomicU32::new(0) }; NAMES.len()]);
    let tasks: Vec<_> = (0..6_u64)
        .map(|seed| {
            let (client, inside) = (client.clone(), inside.clone());
            tokio::spawn(async move {
                let random = Random::from_seed(seed);
                for _ in 0..10 {
                    let names = some(&random);
                    let all = client.multi_mutex(names.iter().copied()).expect("good names");
                    let guard = all.acquire().await.expect("acquired");
                    for at in names
                        .iter()
                        .map(|name| NAMES.iter().position(|n| n == name).expect("it is one of the names"))
                    {
                        assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two are in");
                        tokio::task::yield_now().await;
                        inside[at].fetch_sub(1, Ordering::SeqCst);
                    }
                    guard.release().await.expect("released");
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(SOON * 2, task).await.expect("every task has its turn").expect("no panic");
    }
    at_rest(&client, &NAMES).await;
}

/// The loss of one hold is the loss of all of them.
async fn the_loss_of_one_is_the_loss_of_all(store: &TestStore) {
    let [a, b] = [store.client_with("one", Duration::from_secs(2)).await, store.client("another").await];
    let guard = a.multi_mutex(["a", "b"]).expect("good names").acquire().await.expect("acquired");
    let signal = guard.lost_signal();
    let seen =
        mutex(&b, "b").inspect_full().await.expect("an answer").observed.expect("the lock has a holder");
    assert!(!signal.is_cancelled());
    mutex(&b, "b").force_release(seen).await.expect("freed");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is reported");
    assert_eq!((lost.lock.as_str(), &lost.reason), ("b", &LostReason::ForceReleased));
    assert!(signal.is_cancelled() && guard.check().is_err());
    let error = guard.release().await.expect_err("one of them is lost");
    assert_eq!(error.failed.len(), 1, "{error}");
    assert!(error.to_string().starts_with("`b`: "), "{error}");
    at_rest(&a, &["a", "b"]).await;
}

/// An explicit lease counts from when all locks are held, and is not renewed.
async fn a_lease_of_several_ends_when_it_ends(store: &TestStore) {
    let client = store.client("one").await;
    let all = client.multi_mutex(["a", "b"]).expect("good names").lease(Duration::from_secs(1));
    let guard = all.acquire().await.expect("acquired");
    assert!(guard.remaining() <= Duration::from_secs(1));
    guard.extend_to(Duration::from_secs(3)).await.expect("extended");
    assert!(guard.remaining() > Duration::from_secs(1), "{:?}", guard.remaining());
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is reported");
    assert_eq!(lost.reason, LostReason::Expired);
    drop(guard);
    at_rest(&client, &["a", "b"]).await;
}

/// Failure row 4.
async fn several_cancelled_at_every_await(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let all = a.multi_mutex(["a", "b", "c"]).expect("good names");
    let points = cancel_at_every_await(
        || async { drop(all.acquire().await.expect("acquired")) },
        async |_| at_rest(&b, &["a", "b", "c"]).await,
    )
    .await;
    println!("{points} points");
    at_rest(&b, &["a", "b", "c"]).await;
    // One of the locks is held at first, and released while the acquire runs.
    let mut taken = None;
    for k in 0..12 {
        taken = Some(mutex(&b, "b").acquire().await.expect("acquired"));
        let waits = tokio::time::timeout(Duration::from_millis(k * 3), all.acquire());
        let free = async {
            tokio::time::sleep(Duration::from_millis(12)).await;
            drop(taken.take());
        };
        let (waited, ()) = tokio::join!(waits, free);
        drop(waited);
        at_rest(&b, &["a", "b", "c"]).await;
    }
    drop(taken);
}

fn reentrant(client: &Client, name: &str) -> ReentrantMutex {
    client.reentrant_mutex(name).expect("a good name")
}

async fn reentrant_at_rest(client: &Client, names: &[&str]) {
    for name in names {
        until_at_rest(&reentrant(client, name)).await;
    }
}

async fn an_owner_holds_several_reentrant_locks_and_re_enters_each(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let owner = a.new_owner();
    let both = a.multi_reentrant_mutex(["b", "a", "b"]).expect("good names").owned_by(&owner);
    assert_eq!(both.names().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b"]);
    let alone = reentrant(&a, "b").owned_by(&owner).acquire().await.expect("acquired");
    let guard = both.acquire().await.expect("it holds one of them already");
    assert_eq!(guard.owner(), &owner);
    assert_eq!(guard.fencing_token("b"), Some(alone.fencing_token()), "one token for each owner's turn");
    guard.check().expect("held");
    let again = both.try_acquire().await.expect("an answer").granted().expect("it holds them");
    let inner = reentrant(&a, "a").owned_by(&owner).acquire().await.expect("it holds it");
    assert_eq!(inner.count(), 3);
    assert_eq!(alone.release().await.expect("released"), Released::StillHeld { count: 2 });
    guard.release().await.expect("released");
    inner.release().await.expect("released");
    again.check().expect("a hold of its own");
    match b.multi_reentrant_mutex(["a", "b"]).expect("good names").try_acquire().await.expect("an answer") {
        MultiAttempt::Taken { lock, .. } => assert_eq!(lock.as_str(), "a"),
        MultiAttempt::Granted(_) => panic!("both are taken"),
    }
    again.release().await.expect("released");
    reentrant_at_rest(&b, &["a", "b"]).await;
    let many = a.multi_reentrant_mutex((0..65).map(|n| n.to_string())).expect_err("too many");
    assert_eq!(many, LockError::TooManyNames { given: 65, max: 64 });
    assert_eq!(a.multi_reentrant_mutex::<&str>([]).expect_err("none"), LockError::NoName);
}

async fn a_waiter_for_several_reentrant_locks_holds_none(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let taken = reentrant(&b, "b").acquire().await.expect("acquired");
    let all = a.multi_reentrant_mutex(["a", "b", "c"]).expect("good names");
    let missed = all.acquire_timeout(Duration::ZERO).await;
    assert!(
        matches!(&missed, Err(AcquireError::TimedOut { lock, .. }) if lock.as_str() == "b"),
        "{missed:?}"
    );
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&reentrant(&b, "b"), 1).await;
    for name in ["a", "c"] {
        let free = reentrant(&b, name).try_acquire().await.expect("an answer");
        assert!(matches!(free, Attempt::Granted(_)), "{name} is held by a waiter");
    }
    taken.release().await.expect("released");
    let guard =
        tokio::time::timeout(SOON, waits).await.expect("in time").expect("no panic").expect("acquired");
    assert_eq!(guard.fencing_tokens().count(), 3);
    guard.release().await.expect("released");
    reentrant_at_rest(&a, &["a", "b", "c"]).await;
}

/// Owners in two processes, with random sets in random order: none waits for ever.
async fn owners_of_several_reentrant_locks_take_turns(store: &TestStore) {
    let clients = [store.client("one").await, store.client("another").await];
    let inside = Arc::new([const { AtomicU32::new(0) }; NAMES.len()]);
    let tasks: Vec<_> = (0..6_u64)
        .map(|seed| {
            let client = clients[usize::try_from(seed % 2).expect("0 or 1")].clone();
            let inside = inside.clone();
            tokio::spawn(async move {
                let random = Random::from_seed(seed);
                for _ in 0..6 {
                    let names = some(&random);
                    let all = client.multi_reentrant_mutex(names.iter().copied()).expect("good names");
                    let guard = all.acquire().await.expect("acquired");
                    for at in names
                        .iter()
                        .map(|name| NAMES.iter().position(|n| n == name).expect("it is one of the names"))
                    {
                        assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two are in");
                        tokio::task::yield_now().await;
                        inside[at].fetch_sub(1, Ordering::SeqCst);
                    }
                    guard.release().await.expect("released");
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(SOON * 3, task).await.expect("every task has its turn").expect("no panic");
    }
    reentrant_at_rest(&clients[0], &NAMES).await;
}

async fn the_loss_of_one_reentrant_lock_is_the_loss_of_all(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let all = a.multi_reentrant_mutex(["a", "b"]).expect("good names").owned_by(&a.new_owner());
    let guard = all.acquire().await.expect("acquired");
    let seen = reentrant(&b, "b").inspect_full().await.expect("an answer").observed.expect("it has a holder");
    reentrant(&b, "b").force_release(seen).await.expect("freed");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is reported");
    assert_eq!((lost.lock.as_str(), &lost.reason), ("b", &LostReason::ForceReleased));
    assert!(guard.check().is_err());
    let error = guard.release().await.expect_err("one of them is lost");
    assert!(error.failed.len() == 1 && error.to_string().starts_with("`b`: "), "{error}");
    reentrant_at_rest(&a, &["a", "b"]).await;
}

/// Failure row 4.
async fn several_reentrant_locks_cancelled_at_every_await(store: &TestStore) {
    let [a, b] = [store.client("one").await, store.client("another").await];
    let all = a.multi_reentrant_mutex(["a", "b"]).expect("good names").owned_by(&a.new_owner());
    let points = cancel_at_every_await(
        || async { drop(all.acquire().await.expect("acquired")) },
        async |_| reentrant_at_rest(&b, &["a", "b"]).await,
    )
    .await;
    println!("{points} points");
    reentrant_at_rest(&b, &["a", "b"]).await;
}
