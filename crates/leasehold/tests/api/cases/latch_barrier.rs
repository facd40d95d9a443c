//! Latches and barriers.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, Refused};
use leasehold::{Barrier, Client, Latch};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

on_every_store! {
    asynchronous:
    a_latch_opens_when_all_have_arrived,
    an_arrival_outlives_its_client,
    a_latch_is_counted_to_one_number,
    an_operator_shuts_a_latch_again,
    arriving_cancelled_at_every_await,
    a_barrier_releases_all_parties_together_and_repeatedly,
    a_party_that_gives_up_is_not_counted,
    a_dead_party_of_a_barrier_is_not_counted,
    waiting_at_a_barrier_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn latch(client: &Client, of: u32) -> Latch {
    client.latch("l", of).expect("a good name")
}

fn barrier(client: &Client, of: u32) -> Barrier {
    client.barrier("b", of).expect("a good name")
}

async fn an_operator_shuts_a_latch_again(store: &TestStore) {
    let (a, operator) = (store.client("a").await, store.client("operator").await);
    let (a, operator) = (latch(&a, 3), latch(&operator, 3));
    assert_eq!(operator.reset().await.expect("done"), 0);
    a.arrive().await.expect("arrived");
    a.arrive_many(2).await.expect("arrived");
    a.wait().await.expect("it is open");
    assert_eq!(operator.reset().await.expect("done"), 2, "two holds, of one and of two arrivals");
    assert!(!a.is_open().await.expect("an answer"));
    assert_eq!(operator.arrived().await.expect("an answer"), 0);
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.wait().await }
    });
    until_waiting(&a, 1).await;
    a.arrive().await.expect("arrived");
    assert_eq!(operator.reset().await.expect("done"), 1);
    a.arrive_many(3).await.expect("arrived");
    waiting.await.expect("no panic").expect("it is open");
}

async fn a_latch_opens_when_all_have_arrived(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (latch(&a, 3), latch(&b, 3));
    let waiting: Vec<_> = [&a, &b, &b]
        .map(|latch| {
            let latch = latch.clone();
            tokio::spawn(async move { latch.wait().await })
        })
        .into();
    until_waiting(&a, 3).await;
    a.arrive().await.expect("arrived");
    assert!(matches!(b.wait_timeout(400 * MS).await, Err(AcquireError::TimedOut { .. })), "one of three");
    assert_eq!(b.arrived().await.expect("an answer"), 1);
    let start = Stopwatch::start();
    b.arrive_many(2).await.expect("arrived");
    for waiter in waiting {
        waiter.await.expect("no panic").expect("it is open");
    }
    start.assert_below(900 * MS, "woken by messages, not by polling");
    assert!(a.is_open().await.expect("an answer"));
    a.wait().await.expect("a late waiter passes at once");
    // An arrival beyond the count does no harm.
    a.arrive().await.expect("arrived");
    b.wait().await.expect("it is open");
}

async fn an_arrival_outlives_its_client(store: &TestStore) {
    let live = store.client("live").await;
    {
        let gone = store.client("gone").await;
        latch(&gone, 2).arrive().await.expect("arrived");
        gone.shutdown(5 * S).await.expect("nothing is left to release");
    }
    let latch = latch(&live, 2).arrival_ttl(700 * MS);
    assert_eq!(latch.arrived().await.expect("an answer"), 1);
    latch.arrive().await.expect("arrived");
    latch.wait().await.expect("both have arrived");
    tokio::time::sleep(900 * MS).await;
    assert_eq!(
        latch.arrived().await.expect("an answer"),
        1,
        "one arrival is remembered for an hour, the other is not"
    );
}

async fn a_latch_is_counted_to_one_number(store: &TestStore) {
    let a = store.client("a").await;
    latch(&a, 3).arrive().await.expect("arrived");
    let refused = latch(&a, 2).wait().await;
    assert!(
        matches!(
            &refused,
            Err(AcquireError::Impossible(Refused::Disagreement { requested: 2, known: 3, .. }))
        ),
        "{refused:?}"
    );
    assert!(a.latch("l", 0).is_err() && a.barrier("b", 65).is_err() && a.semaphore("s", 0).is_err());
}

async fn arriving_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let latch = latch(&client, 2).arrival_ttl(400 * MS);
    cancel_at_every_await(
        || async { latch.arrive().await.expect("arrived") },
        // At the latest the request's lease ends.
        async |_| until_at_rest(&latch).await,
    )
    .await;
    until_at_rest(&latch).await;
}

async fn a_barrier_releases_all_parties_together_and_repeatedly(store: &TestStore) {
    const PARTIES: u32 = 6;
    let clients = [store.client("a").await, store.client("b").await, store.client("c").await];
    let come: Arc<Vec<AtomicU32>> = Arc::new((0..5).map(|_| AtomicU32::new(0)).collect());
    let tasks: Vec<_> = (0..PARTIES)
        .map(|n| {
            let (barrier, come) = (barrier(&clients[n as usize % 3], PARTIES), come.clone());
            tokio::spawn(async move {
                for (round, come) in come.iter().enumerate() {
                    tokio::time::sleep(MS * n).await;
                    come.fetch_add(1, Ordering::SeqCst);
                    barrier.wait_timeout(10 * S).await.expect("all come");
                    let come = come.load(Ordering::SeqCst);
                    assert_eq!(come, PARTIES, "let in too early in round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panicked");
    }
    until_at_rest(&barrier(&clients[0], PARTIES)).await;
}

async fn a_party_that_gives_up_is_not_counted(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (barrier(&a, 2), barrier(&b, 2));
    let alone = a.wait_timeout(400 * MS).await;
    assert!(matches!(alone, Err(AcquireError::TimedOut { .. })), "{alone:?}");
    until_waiting(&b, 0).await;
    let alone = b.wait_timeout(400 * MS).await;
    assert!(
        matches!(alone, Err(AcquireError::TimedOut { .. })),
        "counted a participant that had left: {alone:?}"
    );
    until_waiting(&a, 0).await;
    let (one, other) = tokio::join!(a.wait(), b.wait());
    assert_ne!(one.expect("met").fence, other.expect("met").fence);
}

/// Its queue entry ends when no heartbeat keeps it.
async fn a_dead_party_of_a_barrier_is_not_counted(store: &TestStore) {
    let live = store.client("live").await;
    let live = barrier(&live, 2);
    let dead = {
        let dying = store.builder().label("dying").session_ttl(S).connect().await.expect("connected");
        let barrier = barrier(&dying, 2);
        let waiting = tokio::spawn(async move { barrier.wait().await });
        until_waiting(&live, 1).await;
        (dying, waiting)
    };
    // Aborting the task makes its process leave the queue, which is milder than a crash.
    dead.1.abort();
    dead.0.shutdown(5 * S).await.expect("it leaves");
    let alone = live.wait_timeout(400 * MS).await;
    assert!(matches!(alone, Err(AcquireError::TimedOut { .. })), "counted a dead participant: {alone:?}");
}

async fn waiting_at_a_barrier_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mine, theirs) = (barrier(&a, 2), barrier(&b, 2));
    cancel_at_every_await(
        || async {
            let alone = mine.wait_timeout(600 * MS).await;
            assert!(matches!(alone, Err(AcquireError::TimedOut { .. })), "{alone:?}");
        },
        // An arrival that is still on its way does not wait yet, and would count beside the next one.
        async |_| {
            a.flush().await;
            until_waiting(&theirs, 0).await;
        },
    )
    .await;
    until_waiting(&theirs, 0).await;
}
