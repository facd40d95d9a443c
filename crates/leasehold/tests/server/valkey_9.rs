//! What a cluster of Valkey 9 has besides: several databases, and slots that move at once with all of their keys.
//!
//! `LEASEHOLD_TEST_SERVER` names such a server: `xtask/src/parts.rs` runs these cases nowhere else.

use leasehold::{Client, FencingToken};
use leasehold_testkit::{Cluster, RedisServer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// How often the slot moves.
const MOVES: usize = 12;
/// How many locks are in it that clients compete for, and how many clients for each.
const LOCKS: usize = 3;
const EACH: usize = 3;
/// Leases are short enough to be extended while the slot moves.
const LEASE: Duration = Duration::from_secs(3);

fn cluster() -> Cluster {
    let settings = RedisServer::builder().config("cluster-databases", "4");
    tokio::task::block_in_place(|| Cluster::with(3, 0, &settings)).expect("nodes of Valkey 9 that agree")
}

async fn client(url: &str) -> Client {
    let client = Client::builder(url).call_timeout(10 * S).watchdog_lease(LEASE);
    client.connect().await.expect("the cluster can be reached")
}

async fn waiters(client: &Client, name: &str) -> u64 {
    let mutex = client.mutex(name).expect("a good name");
    mutex.inspect().await.expect("the cluster answers").waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_of_a_cluster_have_locks_of_their_own() {
    let cluster = cluster();
    let [first, same, second] = ["/1", "?db=1", "/2"].map(|database| format!("{}{database}", cluster.url()));
    let (first, same, second) = (client(&first).await, client(&same).await, client(&second).await);
    for name in ["job", "{other}/job", "a third one"] {
        let held = first.mutex(name).expect("a good name").acquire().await.expect("it is free");
        let other = second.mutex(name).expect("a good name");
        let other =
            other.try_acquire().await.expect("reached").granted().expect("another database has another lock");
        let waiting = same.mutex(name).expect("a good name");
        assert!(
            waiting.try_acquire().await.expect("reached").granted().is_none(),
            "one database has one lock"
        );
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        while waiters(&first, name).await == 0 {
            tokio::time::sleep(10 * MS).await;
        }
        let start = Instant::now();
        held.release().await.expect("it is held");
        let next = waiting.await.expect("no panic").expect("it is free");
        assert!(start.elapsed() < 5 * S, "{:?}", start.elapsed());
        next.release().await.expect("it is held");
        other.release().await.expect("it is held");
    }
    let beyond =
        Client::connect(&format!("{}/9", cluster.url())).await.expect_err("there are four").to_string();
    assert!(beyond.contains("no database of that number"), "{beyond}");
}

/// One hold, as its holder saw it: the token, from when, and until when.
type Section = (FencingToken, Instant, Instant);

/// Acquires the lock again and again. Each hold must last until it is released.
async fn compete(client: Client, name: String, book: Arc<Mutex<Vec<Section>>>, over: Arc<AtomicBool>) {
    let mutex = client.mutex(&*name).expect("a good name");
    while !over.load(Ordering::Relaxed) {
        let guard = mutex.acquire().await.expect("no node is down");
        let from = Instant::now();
        tokio::time::sleep(5 * MS).await;
        guard.check().expect("no hold is lost");
        let (token, until) = (guard.fencing_token(), Instant::now());
        guard.release().await.expect("no hold is lost");
        book.lock().expect("no panic").push((token, from, until));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_at_once_take_their_locks_along_under_load() {
    let cluster = cluster();
    // Keys of database 1 move with the slot, too.
    let url = format!("{}/1", cluster.url());
    let slot = cluster.slot("{moving}").expect("a slot");
    let over = Arc::new(AtomicBool::new(false));
    let books: Vec<Arc<Mutex<Vec<Section>>>> = (0..LOCKS).map(|_| Arc::default()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for (at, book) in books.iter().enumerate() {
        for _ in 0..EACH {
            let name = format!("{{moving}}{at}");
            tasks.spawn(compete(client(&url).await, name, Arc::clone(book), Arc::clone(&over)));
        }
    }
    let holder = client(&url).await;
    let held = holder.mutex("{moving}held").expect("a good name").acquire().await.expect("it is free");
    let waiting = client(&url).await.mutex("{moving}held").expect("a good name");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    let start = Instant::now();
    for _ in 0..MOVES {
        let to = (cluster.owner(slot).expect("an owner") + 1) % 3;
        tokio::task::block_in_place(|| cluster.migrate_slot(slot, to)).expect("the slot moves");
        held.check().expect("the hold moves along");
        assert!(!waiting.is_finished(), "the lock is held");
    }
    // Past a lease, which was extended at the nodes that the slot has moved to.
    while start.elapsed() < 2 * LEASE {
        tokio::time::sleep(50 * MS).await;
        held.check().expect("the hold is extended");
    }
    let token = held.fencing_token();
    held.release().await.expect("no hold is lost");
    let next = waiting.await.expect("no panic").expect("it is free");
    assert!(token < next.fencing_token());
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no hold is lost");
    }
    for (at, book) in books.iter().enumerate() {
        let mut book = book.lock().expect("no panic").clone();
        book.sort_by_key(|(_, from, _)| *from);
        println!("lock {at} was acquired {} times", book.len());
        assert!(book.len() > 10, "lock {at} was acquired {} times", book.len());
        for pair in book.windows(2) {
            let [(first, _, until), (second, from, _)] = [pair[0], pair[1]];
            assert!(
                until <= from && first < second,
                "lock {at} had two holders, or no greater token: {pair:?}"
            );
        }
    }
}
