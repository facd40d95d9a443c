//! A hold handed off inside a process, and a sticky hold that is kept for later tasks.

use crate::cases::store::TestStore;
use crate::until::until_at_rest;
use leasehold::{Client, FencingToken, Guard, LostReason, Mutex};
use leasehold_testkit::cancel_at_every_await;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex as Log;

on_every_store! {
    asynchronous:
    tasks_hand_a_hold_off_in_order_and_tokens_grow,
    later_tasks_do_not_overtake_another_process,
    waiting_for_a_handed_off_hold_cancelled_at_every_await,
    a_sticky_hold_is_released_when_another_client_waits,
    a_sticky_hold_is_kept_for_the_requested_time,
    a_sticky_hold_is_released_with_its_client,
    a_try_of_the_same_process_gets_the_sticky_hold,
    a_hold_released_by_force_is_not_handed_off,
    each_hold_has_the_lease_it_requested,
}

const MS: Duration = Duration::from_millis(1);
/// Longer than any of these tests waits for anything but a message.
const LONG: Duration = Duration::from_secs(600);

type Sections = Arc<Log<Vec<(u32, FencingToken)>>>;

fn mutex(client: &Client) -> Mutex {
    client.mutex("m").expect("a good name")
}

async fn section(guard: Guard, task: u32, log: &Sections) {
    guard.check().expect("held");
    log.lock().await.push((task, guard.fencing_token()));
    tokio::task::yield_now().await;
    guard.release().await.expect("released");
}

fn grow(log: &[(u32, FencingToken)]) {
    assert!(log.windows(2).all(|pair| pair[0].1 < pair[1].1), "each token is greater: {log:?}");
}

/// More hand-offs than a token block has tokens, in the order of arrival.
async fn tasks_hand_a_hold_off_in_order_and_tokens_grow(store: &TestStore) {
    let client = store.client("one").await;
    let (mutex, log) = (mutex(&client), Sections::default());
    let first = mutex.acquire().await.expect("acquired");
    let mut tasks = Vec::new();
    for task in 0..100 {
        let (mutex, log) = (mutex.clone(), log.clone());
        let mut task = Box::pin(async move {
            section(mutex.acquire().await.expect("acquired"), task, &log).await;
        });
        assert!(futures_util::poll!(&mut task).is_pending(), "it stands in line from here on");
        tasks.push(tokio::spawn(task));
    }
    section(first, 1_000, &log).await;
    for task in tasks {
        task.await.expect("no panic");
    }
    let log = log.lock().await;
    grow(&log);
    assert_eq!(log.iter().skip(1).map(|(task, _)| *task).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    let other = store.client("another").await;
    let next = self::mutex(&other).acquire().await.expect("acquired");
    assert!(next.fencing_token() > log[100].1, "greater than all that were reserved");
    next.release().await.expect("released");
    until_at_rest(&mutex).await;
}

/// Tasks that queued before another process arrived go first, and no later task does.
async fn later_tasks_do_not_overtake_another_process(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let log = Sections::default();
    let busy = tokio::spawn({
        let (mutex, log) = (mutex(&a), log.clone());
        async move {
            let again = |task: u32| {
                let (mutex, log) = (mutex.clone(), log.clone());
                async move {
                    for _ in 0..200 {
                        let guard = mutex.acquire().await.expect("acquired");
                        tokio::time::sleep(MS).await;
                        section(guard, task, &log).await;
                    }
                }
            };
            tokio::join!(again(0), again(1), again(2));
        }
    });
    let mut waits = 0;
    while !busy.is_finished() && waits < 10 {
        let before = log.lock().await.len();
        let guard = mutex(&b).acquire().await.expect("acquired");
        let passed = log.lock().await.len() - before;
        section(guard, 9, &log).await;
        // The current window, another one from the reply that reports the waiter, and the hand-offs while that reply
        // is on its way.
        assert!(passed <= 200, "{passed} went before");
        waits += 1;
    }
    busy.await.expect("no panic");
    grow(&log.lock().await);
    until_at_rest(&mutex(&b)).await;
}

async fn waiting_for_a_handed_off_hold_cancelled_at_every_await(store: &TestStore) {
    let (client, other) = (store.client("one").await, store.client("another").await);
    for keep_for in [None, Some(LONG)] {
        let mutex = keep_for.map_or(mutex(&client), |keep_for| mutex(&client).sticky(keep_for));
        let once = async || mutex.acquire().await.expect("acquired").release().await.expect("released");
        let cancelled = cancel_at_every_await(
            || async {
                let guard = mutex.acquire().await.expect("acquired");
                let release = async {
                    tokio::task::yield_now().await;
                    guard.release().await.expect("released");
                };
                tokio::join!(once(), release, once());
            },
            async |_| {
                // A sticky hold is released when another client waits.
                self::mutex(&other).acquire().await.expect("acquired").release().await.expect("released");
                until_at_rest(&self::mutex(&other)).await;
            },
        );
        Box::pin(cancelled).await;
        drop(mutex);
        until_at_rest(&self::mutex(&other)).await;
    }
}

/// Kept for a long time, and released as soon as another process waits.
async fn a_sticky_hold_is_released_when_another_client_waits(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (kept, other) = (mutex(&a).sticky(LONG), mutex(&b));
    let mut last = kept.acquire().await.expect("acquired");
    for _ in 0..200 {
        let token = last.fencing_token();
        last.release().await.expect("released");
        last = kept.acquire().await.expect("acquired");
        assert!(last.fencing_token() > token);
        last.check().expect("held");
    }
    let token = last.fencing_token();
    last.release().await.expect("released");
    for _ in 0..3 {
        let start = Instant::now();
        let guard = other.acquire().await.expect("acquired");
        assert!(start.elapsed() < 5_000 * MS, "by a message: {:?}", start.elapsed());
        assert!(guard.fencing_token() > token);
        guard.release().await.expect("released");
        kept.acquire().await.expect("acquired").release().await.expect("released");
    }
    drop(kept);
    until_at_rest(&other).await;
}

async fn a_sticky_hold_is_kept_for_the_requested_time(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let kept = mutex(&a).sticky(100 * MS);
    for _ in 0..3 {
        kept.acquire().await.expect("acquired").release().await.expect("released");
    }
    // No other client waits, and the lock becomes free all the same.
    until_at_rest(&mutex(&b)).await;
    kept.acquire().await.expect("acquired").release().await.expect("released");
    until_at_rest(&mutex(&b)).await;
}

/// The sticky hold is released with the last handle that could use it.
async fn a_sticky_hold_is_released_with_its_client(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let kept = mutex(&a).sticky(LONG);
    kept.acquire().await.expect("acquired").release().await.expect("released");
    drop(kept);
    until_at_rest(&mutex(&b)).await;
    let kept = mutex(&a).sticky(LONG);
    kept.acquire().await.expect("acquired").release().await.expect("released");
    a.shutdown(Duration::from_secs(5)).await.expect("every hold is released");
    until_at_rest(&mutex(&b)).await;
    let kept = {
        let c = store.client("c").await;
        mutex(&c).sticky(LONG)
    };
    kept.acquire().await.expect("acquired").release().await.expect("released");
    drop(kept);
    until_at_rest(&mutex(&b)).await;
}

async fn a_try_of_the_same_process_gets_the_sticky_hold(store: &TestStore) {
    let a = store.client("a").await;
    let kept = mutex(&a).sticky(LONG);
    for _ in 0..100 {
        let guard = kept.try_acquire().await.expect("an answer").granted().expect("it is free");
        drop(guard);
    }
    let own = mutex(&a).value("a value of one's own").expect("a good value");
    let guard = own.acquire_timeout(5_000 * MS).await.expect("the sticky hold is not handed to it");
    guard.release().await.expect("released");
}

/// The next local waiter sends its own request to the store.
async fn a_hold_released_by_force_is_not_handed_off(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let kept = mutex(&a).sticky(LONG);
    kept.acquire().await.expect("acquired").release().await.expect("released");
    let guard = kept.acquire().await.expect("acquired");
    let seen = mutex(&b).inspect_full().await.expect("an answer").observed.expect("the lock has a holder");
    mutex(&b).force_release(seen).await.expect("freed");
    let lost =
        tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("the loss is reported");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    let waiter = tokio::spawn({
        let kept = kept.clone();
        async move { kept.acquire().await.expect("acquired").release().await }
    });
    guard.release().await.expect_err("it was lost");
    waiter.await.expect("no panic").expect("released");
    drop(kept);
    until_at_rest(&mutex(&b)).await;
}

/// A lease shorter than the one that the store has granted, and a longer one.
async fn each_hold_has_the_lease_it_requested(store: &TestStore) {
    let client = store.client("one").await;
    let (brief, long) = (mutex(&client).lease(2000 * MS), mutex(&client).lease(Duration::from_secs(20)));
    let first = brief.acquire().await.expect("acquired");
    let waiting = tokio::spawn({
        let (long, brief) = (long.clone(), brief.clone());
        async move {
            let guard = long.acquire().await.expect("acquired");
            tokio::time::sleep(2500 * MS).await;
            guard.check().expect("its lease is long");
            let next = tokio::spawn(async move { brief.acquire().await.expect("acquired") });
            until_waiting_in_line().await;
            guard.release().await.expect("released");
            let guard = next.await.expect("no panic");
            assert!(guard.remaining() <= 2000 * MS, "{:?}", guard.remaining());
            assert_eq!(guard.lost().await.reason, LostReason::Expired);
        }
    });
    until_waiting_in_line().await;
    first.release().await.expect("released");
    waiting.await.expect("no panic");
    let other = store.client("another").await;
    until_at_rest(&mutex(&other)).await;
}

/// Lets spawned tasks run up to the point where they wait.
async fn until_waiting_in_line() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(20 * MS).await;
}
