//! The blocking API on a server: many threads, lost connections, async contexts, and the threads of a client.

use crate::cases::store::TestStore;
use leasehold::blocking::{Client, Error};
use leasehold::error::AcquireError;
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, Stopwatch, Worker, command};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

#[test]
fn a_hundred_threads_wait_at_once() {
    let store = TestStore::redis();
    let client = store.blocking_client();
    let barrier = Barrier::new(100);
    thread::scope(|threads| {
        for n in 0..100 {
            let (client, barrier) = (&client, &barrier);
            threads.spawn(move || {
                barrier.wait();
                // Ten locks, ten threads each.
                let mutex = client.mutex(format!("m{}", n % 10)).unwrap();
                mutex.acquire_timeout(30 * S).unwrap().release().unwrap();
            });
        }
    });
}

/// The client's own thread undoes, over its connection, what an acquire may have left, even after the client was
/// dropped.
#[test]
fn what_a_lost_acquire_left_is_undone_after_the_client_is_gone() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let client = Client::builder(proxy.url()).call_timeout(300 * MS).connect_blocking().unwrap();
    // The first call loads the script.
    client.mutex("m").unwrap().acquire().unwrap().release().unwrap();
    proxy.drop_replies(usize::MAX, AfterDrop::Stall, command("EVALSHA"));
    let missed = client.mutex("m").unwrap().try_acquire();
    assert!(matches!(missed, Err(Error::Failed(AcquireError::Unknown(_)))), "{missed:?}");
    drop(client);
    proxy.clear_faults();
    proxy.disconnect();
    let other = Client::connect(&server.url()).unwrap().mutex("m").unwrap();
    other.acquire_timeout(3500 * MS).unwrap().release().unwrap();
}

#[test]
fn a_store_that_is_not_there_is_an_error() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    drop(server);
    let refused = Client::connect(&url);
    assert!(matches!(refused, Err(Error::Failed(leasehold::error::ConnectError::Store(_)))), "{refused:?}");
}

/// The last clone is dropped while futures are being polled: nothing panics, and nothing blocks.
#[tokio::test]
async fn everything_can_be_dropped_in_an_async_context() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    let held = move || {
        let client = Client::connect(&url).unwrap();
        let mutex = client.mutex("m").unwrap();
        let guard = mutex.acquire().unwrap();
        (client, mutex, guard)
    };
    let (client, mutex, guard) = tokio::task::spawn_blocking(held).await.unwrap();
    server.stop().unwrap();
    let start = Stopwatch::start();
    drop((client, mutex));
    drop(guard);
    start.assert_below(S, "a drop blocks nothing");
    server.resume().unwrap();
    let other = leasehold::Client::connect(&server.url()).await.unwrap();
    other.mutex("m").unwrap().acquire_timeout(2 * S).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_work_in_block_in_place() {
    let store = TestStore::redis();
    tokio::spawn(async move {
        tokio::task::block_in_place(|| {
            let mutex = store.blocking_client().mutex("m").unwrap();
            mutex.acquire().unwrap().release().unwrap();
        });
    })
    .await
    .unwrap();
}

/// An unconstrained future looks like a thread that may block. The call then blocks, without a panic.
#[tokio::test]
async fn calls_work_in_an_unconstrained_future() {
    let store = TestStore::redis();
    tokio::task::unconstrained(async {
        let mutex = store.blocking_client().mutex("m").unwrap();
        mutex.acquire().unwrap().release().unwrap();
    })
    .await;
}

/// The names of the threads of this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may have ended since.
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

/// The entry point of the worker processes of this file.
#[test]
fn worker() {
    if Worker::role().as_deref() == Some("threads") {
        let url = Worker::receive().unwrap();
        // A thread sets its own name shortly after it starts.
        let until = |n: usize| {
            let start = Instant::now();
            while threads().iter().filter(|name| name.starts_with("leasehold-")).count() != n {
                assert!(start.elapsed() < 5 * S, "not {n}: {:?}", threads());
                thread::sleep(MS);
            }
        };
        let client = Client::connect(&url).unwrap();
        let guard = client.mutex("m").unwrap().acquire().unwrap();
        until(2);
        drop(client);
        guard.extend().unwrap();
        until(2);
        drop(guard);
        until(0);
        Worker::report("none is left");
    }
}

#[test]
fn the_threads_end_with_the_last_that_needs_them() {
    let store = TestStore::redis();
    let mut process = Worker::of_test("blocking::worker", "threads").start().unwrap();
    process.send(store.url()).unwrap();
    process.expect("none is left", 20 * S).unwrap();
}

/// A client for threads waits for a server that starts late, or connects when it is used.
#[test]
fn a_thread_connects_later() {
    let start = Instant::now();
    let refused = Client::builder("redis://127.0.0.1:1").connect_blocking_within(300 * MS);
    assert!(refused.is_err());
    assert!(start.elapsed() >= 300 * MS, "it tries again until the limit");
    Client::builder("memory:").connect_blocking_within(S).unwrap();
    let lazy = Client::builder("redis://127.0.0.1:1").call_timeout(50 * MS).connect_blocking_lazy().unwrap();
    lazy.mutex("m").unwrap().try_acquire().expect_err("no server listens there");
    let lazy = Client::connect_lazy("memory:").unwrap();
    lazy.mutex("m").unwrap().acquire().unwrap().release().unwrap();
    assert!(Client::connect_lazy("nonsense:").is_err());
}
