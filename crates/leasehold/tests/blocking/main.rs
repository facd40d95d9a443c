//! The blocking API: from plain threads, from async contexts, and between the two.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

use leasehold::blocking::{AsyncContext, Client, Error, NotAttached};
use leasehold::{AcquireError, Attempt, DetachedHold, LostReason, ReleaseError, RunError};
use leasehold_testkit::{Proxy, RedisServer, Then, Worker, command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// The store of one case.
struct Site {
    url: String,
    _server: Option<RedisServer>,
    _dir: Option<tempfile::TempDir>,
}

impl Site {
    fn memory() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let url = format!("memory:blocking-{}", NEXT.fetch_add(1, Relaxed));
        Self { url, _server: None, _dir: None }
    }

    fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            url: format!("sqlite:{}", dir.path().join("locks.db").display()),
            _server: None,
            _dir: Some(dir),
        }
    }

    fn redis() -> Self {
        let server = RedisServer::start().unwrap();
        Self { url: server.url(), _server: Some(server), _dir: None }
    }

    fn client(&self) -> Client {
        Client::connect(&self.url).unwrap()
    }
}

/// Runs each case on each store.
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        on_every_store! { on memory sqlite redis: $($case),* }
    };
    (on $($store:ident)+: $($case:ident),* $(,)?) => {
        on_every_store! { @cases [$($store)+] [$($case)*] }
    };
    (@cases [$($store:ident)+] $cases:tt) => {
        $(on_every_store! { @those $store $cases })+
    };
    (@those $store:ident [$($case:ident)*]) => {
        on_every_store! { @store $store $($case)* }
    };
    (@store $store:ident $($case:ident)*) => {
        mod $store {
            $(#[test]
            fn $case() {
                super::$case(&crate::Site::$store());
            })*
        }
    };
}

// After the items of this file that they use.
mod reentrant;
mod several;
mod sharing;

on_every_store! {
    threads_and_clients_exclude_each_other,
    a_hold_is_renewed_while_its_thread_does_nothing,
    everything_can_be_dropped_in_any_order,
    a_guard_is_released_by_another_thread,
    a_thread_that_panics_gives_its_lock_back,
    a_run_ends_before_its_lock_is_given_back,
    a_run_whose_lock_was_lost_has_no_result,
    a_shutdown_tells_the_threads_that_wait,
    waiting_ends_at_its_limit,
    a_loss_wakes_the_thread_that_waits_for_it,
    detached_holds_pass_from_client_to_client,
    operators_calls_are_there,
}

fn threads_and_clients_exclude_each_other(site: &Site) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 25;
    let (clients, count) = ([site.client(), site.client()], AtomicU32::new(0));
    thread::scope(|threads| {
        for client in &clients {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    let counter = client.mutex("counter").unwrap();
                    for _ in 0..ROUNDS {
                        let guard = counter.acquire().unwrap();
                        let seen = count.load(Relaxed);
                        thread::yield_now();
                        count.store(seen + 1, Relaxed);
                        guard.release().unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(count.load(Relaxed), 2 * THREADS * ROUNDS);
}

fn a_hold_is_renewed_while_its_thread_does_nothing(site: &Site) {
    let client = Client::builder(&site.url).watchdog_lease(3 * S).connect_blocking().unwrap();
    let other = site.client().mutex("m").unwrap();
    let guard = client.mutex("m").unwrap().acquire().unwrap();
    let start = Instant::now();
    while start.elapsed() < 7 * S {
        // This thread drives no future meanwhile; only the other client sends requests.
        thread::sleep(200 * MS);
        let tried = other.try_acquire().unwrap();
        assert!(matches!(tried, Attempt::Taken(_)), "after {:?}: {:?}", start.elapsed(), guard.check());
    }
    guard.check().unwrap();
    assert!(guard.remaining() <= 3 * S);
    guard.release().unwrap();
    assert!(other.try_acquire().unwrap().granted().is_some());
}

/// Drops a client, a lock and a guard in all six orders.
fn everything_can_be_dropped_in_any_order(site: &Site) {
    let other = site.client().mutex("m").unwrap();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let client = site.client();
        let mutex = client.mutex("m").unwrap();
        let guard = mutex.acquire().unwrap();
        let (mut client, mut mutex, mut guard) = (Some(client), Some(mutex), Some(guard));
        for which in order {
            match which {
                0 => drop(client.take()),
                1 => drop(mutex.take()),
                _ => {
                    let held = guard.take().unwrap();
                    held.check().unwrap();
                    assert!(other.inspect().unwrap().held, "{order:?}");
                    drop(held);
                }
            }
        }
        // At once, and not only when a lease ends.
        other
            .acquire_timeout(2500 * MS)
            .unwrap_or_else(|error| panic!("{order:?}: {error}"))
            .release()
            .unwrap();
    }
}

fn a_guard_is_released_by_another_thread(site: &Site) {
    let client = site.client();
    let mutex = client.mutex("m").unwrap();
    let (sender, guards) = mpsc::channel();
    thread::scope(|threads| {
        threads.spawn(|| {
            for guard in guards {
                leasehold::blocking::Guard::release(guard).unwrap();
            }
        });
        for _ in 0..5 {
            sender.send(mutex.acquire_timeout(5 * S).unwrap()).unwrap();
        }
        drop(sender);
    });
    assert!(!mutex.inspect().unwrap().held);
}

fn a_thread_that_panics_gives_its_lock_back(site: &Site) {
    let client = site.client();
    let mutex = client.mutex("m").unwrap();
    let ended = thread::spawn({
        let mutex = mutex.clone();
        move || {
            let _guard = mutex.acquire().unwrap();
            std::panic::resume_unwind(Box::new("of the test's own"));
        }
    });
    assert!(ended.join().is_err());
    mutex.acquire_timeout(2500 * MS).unwrap().release().unwrap();
}

fn a_run_ends_before_its_lock_is_given_back(site: &Site) {
    let (client, other) = (site.client(), site.client().mutex("m").unwrap());
    let mutex = client.mutex("m").unwrap();
    let held = mutex.run(|guard| {
        guard.check().unwrap();
        other.inspect().unwrap().held
    });
    assert!(held.unwrap());
    assert!(!other.inspect().unwrap().held);
    let blocked = other.acquire().unwrap();
    let missed = mutex.clone().wait(50 * MS).run(|_| panic!("it must not run"));
    let missed: Error<RunError> = missed.map(|(): ()| ()).unwrap_err();
    assert!(matches!(missed, Error::Failed(RunError::Acquire(AcquireError::TimedOut { .. }))), "{missed:?}");
    blocked.release().unwrap();
}

fn a_run_whose_lock_was_lost_has_no_result(site: &Site) {
    let mutex = site.client().mutex("m").unwrap().max_hold(300 * MS);
    let result = mutex.run(|guard| {
        guard.lost(20 * S).unwrap().expect("it has a cap");
        7
    });
    let Err(Error::Failed(RunError::Lost(lost))) = result else { panic!("{result:?}") };
    assert_eq!(lost.reason, LostReason::Capped);
}

fn a_shutdown_tells_the_threads_that_wait(site: &Site) {
    let (client, other) = (site.client(), site.client());
    let (held, wanted) = (client.mutex("held").unwrap(), client.mutex("wanted").unwrap());
    let guard = held.acquire().unwrap();
    let elsewhere = other.mutex("wanted").unwrap().acquire().unwrap();
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..4).map(|_| threads.spawn(|| wanted.acquire())).collect();
        let watching = threads.spawn(|| guard.lost(20 * S));
        let start = Instant::now();
        while other.mutex("wanted").unwrap().inspect().unwrap().waiting == 0 {
            assert!(start.elapsed() < 5 * S, "nothing blocks");
        }
        client.shutdown(5 * S).unwrap();
        for thread in waiting {
            let result = thread.join().unwrap();
            assert!(matches!(result, Err(Error::Failed(AcquireError::Closed))), "{result:?}");
        }
        let lost = watching.join().unwrap().unwrap().expect("it was lost");
        assert_eq!(lost.reason, LostReason::ShutDown);
    });
    assert!(matches!(guard.release(), Err(Error::Failed(ReleaseError::Lost(LostReason::ShutDown)))));
    assert!(!other.mutex("held").unwrap().inspect().unwrap().held);
    elsewhere.release().unwrap();
    assert!(matches!(wanted.try_acquire(), Err(Error::Failed(AcquireError::Closed))));
}

fn waiting_ends_at_its_limit(site: &Site) {
    let (client, other) = (site.client(), site.client());
    let guard = other.mutex("m").unwrap().acquire().unwrap();
    let mutex = client.mutex("m").unwrap();
    let start = Instant::now();
    let missed = mutex.acquire_timeout(200 * MS);
    assert!(matches!(missed, Err(Error::Failed(AcquireError::TimedOut { .. }))), "{missed:?}");
    let missed = mutex.clone().wait(100 * MS).acquire();
    assert!(matches!(missed, Err(Error::Failed(AcquireError::TimedOut { .. }))), "{missed:?}");
    assert!((300 * MS..2 * S).contains(&start.elapsed()), "{:?}", start.elapsed());
    guard.release().unwrap();
}

fn a_loss_wakes_the_thread_that_waits_for_it(site: &Site) {
    let (client, other) = (site.client(), site.client());
    let guard = client.mutex("m").unwrap().max_hold(600 * MS).acquire().unwrap();
    assert_eq!(guard.lost(50 * MS), Ok(None));
    assert!(!guard.lost_signal().is_cancelled());
    let start = Instant::now();
    let lost = guard.lost(Duration::MAX).unwrap().expect("it has a cap");
    assert_eq!(lost.reason, LostReason::Capped);
    assert!(start.elapsed() < 2 * S, "{:?}", start.elapsed());
    assert!(guard.lost_signal().is_cancelled() && guard.check().is_err());
    other.mutex("m").unwrap().acquire_timeout(2500 * MS).unwrap().release().unwrap();
    assert!(matches!(guard.extend(), Err(Error::Failed(_))));
}

fn detached_holds_pass_from_client_to_client(site: &Site) {
    let (client, other) = (site.client(), site.client());
    let mutex = client.mutex("m").unwrap().lease(20 * S);
    let text = mutex.acquire_detached().unwrap().to_secret_text();
    assert!(mutex.try_acquire_detached().unwrap().granted().is_none());
    let mut hold: DetachedHold = text.parse().unwrap();
    other.extend_detached(&mut hold, 30 * S).unwrap();
    let guard = other.attach(hold).unwrap();
    guard.check().unwrap();
    guard.release().unwrap();
    let hold = mutex.try_acquire_detached().unwrap().granted().expect("it was released");
    other.release_detached(&hold).unwrap();
    let lost = other.extend_detached(&mut text.parse().unwrap(), S);
    assert!(matches!(lost, Err(Error::Failed(leasehold::ExtendError::Lost(_)))), "{lost:?}");
    let gone = other.attach(text.parse().unwrap());
    assert!(matches!(gone, Err(NotAttached::Failed(_))), "{gone:?}");
}

fn operators_calls_are_there(site: &Site) {
    let (client, other) = (site.client(), site.client());
    let guard = client.mutex("m").unwrap().acquire().unwrap();
    let start = Instant::now();
    while !other.locks().unwrap().iter().any(|lock| lock.name.as_str() == "m") {
        assert!(start.elapsed() < 10 * S, "no notification of the lock arrived");
        thread::sleep(20 * MS);
    }
    assert!(other.sessions().unwrap().iter().any(|session| session.session == client.session()));
    let mutex = other.mutex("m").unwrap();
    let seen = mutex.inspect_full().unwrap().seen.expect("it is held");
    mutex.force_release(seen).unwrap();
    let lost = guard.lost(10 * S).unwrap().expect("it was freed");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    assert_eq!(other.block_on(async { other.as_async().monitor().round().await }).unwrap().evicted, []);
}

#[test]
fn a_hundred_threads_wait_at_once() {
    let site = Site::redis();
    let client = site.client();
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
    proxy.swallow_replies(usize::MAX, Then::Stall, command("EVALSHA"));
    let missed = client.mutex("m").unwrap().try_acquire();
    assert!(matches!(missed, Err(Error::Failed(AcquireError::Unknown(_)))), "{missed:?}");
    drop(client);
    proxy.pass();
    proxy.cut();
    let other = Client::connect(&server.url()).unwrap().mutex("m").unwrap();
    other.acquire_timeout(3500 * MS).unwrap().release().unwrap();
}

#[test]
fn a_store_that_is_not_there_is_an_error() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    drop(server);
    let refused = Client::connect(&url);
    assert!(matches!(refused, Err(Error::Failed(leasehold::ConnectError::Store(_)))), "{refused:?}");
}

/// Every call that could block, from an async context, where blocking is not allowed.
async fn refuses_everything() {
    let connect = |url: String| move || Client::connect(&url).unwrap();
    let site = Site::memory();
    let client = tokio::task::spawn_blocking(connect(site.url.clone())).await.unwrap();
    let mutex = client.mutex("m").unwrap().lease(20 * S);
    let (guard, hold) = {
        let (mutex, detached) = (mutex.clone(), client.mutex("detached").unwrap().lease(20 * S));
        let both = move || (mutex.acquire().unwrap(), detached.acquire_detached().unwrap());
        tokio::task::spawn_blocking(both).await.unwrap()
    };
    macro_rules! refused {
        ($($call:expr),* $(,)?) => {
            $(let result = $call;
            assert!(matches!(result, Err(Error::AsyncContext(_))), "{}: {result:?}", stringify!($call));)*
        };
    }
    let mut text: DetachedHold = hold.to_secret_text().parse().unwrap();
    let (account, both) = (client.reentrant_mutex("r").unwrap(), client.multi_mutex(["a", "b"]).unwrap());
    let (entry, set) = {
        let (account, both) = (account.clone(), both.clone());
        tokio::task::spawn_blocking(move || (account.acquire().unwrap(), both.acquire().unwrap()))
            .await
            .unwrap()
    };
    refused!(
        Client::connect(&site.url),
        mutex.try_acquire(),
        mutex.acquire(),
        mutex.acquire_timeout(2500 * MS),
        mutex.try_acquire_detached(),
        mutex.acquire_detached(),
        mutex.inspect(),
        mutex.inspect_full(),
        mutex.force_release(leasehold::ObservedHolder::Hold(guard.fencing_token())),
        client.sessions(),
        client.locks(),
        client.extend_detached(&mut text, S),
        client.release_detached(&hold),
        client.shutdown(S),
        guard.extend(),
        guard.extend_to(S),
        mutex.run(|_| panic!("it must not run")).map(|(): ()| ()),
        account.try_acquire(),
        account.acquire(),
        account.acquire_timeout(S),
        account.run(|_| panic!("it must not run")).map(|(): ()| ()),
        account.inspect(),
        account.inspect_full(),
        account.hold_count(),
        account.force_release(leasehold::ObservedHolder::Hold(entry.fencing_token())),
        entry.extend(),
        entry.extend_to(S),
        both.try_acquire(),
        both.acquire(),
        both.acquire_timeout(S),
        set.extend(),
        set.extend_to(S),
    );
    assert!(entry.lost(S).is_err() && set.lost(S).is_err());
    entry.check().unwrap();
    set.check().unwrap();
    let refusal: Result<(), AsyncContext> = client.flush();
    assert!(refusal.unwrap_err().to_string().contains("spawn_blocking"));
    assert!(guard.lost(S).is_err());
    assert!(client.block_on(async {}).is_err());
    guard.check().unwrap();
    // The argument is not lost: the error returns it.
    let Err(NotAttached::AsyncContext { hold }) = client.attach(hold) else { panic!("it must be refused") };
    // Nothing was done, except that the guard was released as if dropped.
    let other = leasehold::Client::connect(&site.url).await.unwrap();
    assert!(other.mutex("m").unwrap().inspect().await.unwrap().held);
    refused!(guard.release(), entry.release(), set.release());
    drop((mutex, account, both, client));
    other.reentrant_mutex("r").unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    other.multi_mutex(["a", "b"]).unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    other.mutex("m").unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    hold.release(&other).await.unwrap();
}

#[tokio::test]
async fn every_call_is_refused_in_a_runtime_of_one_thread() {
    refuses_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_refused_in_a_task_of_a_runtime_of_many() {
    tokio::spawn(refuses_everything()).await.unwrap();
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
    let start = Instant::now();
    drop((client, mutex));
    drop(guard);
    assert!(start.elapsed() < S, "{:?}", start.elapsed());
    server.cont().unwrap();
    let other = leasehold::Client::connect(&server.url()).await.unwrap();
    other.mutex("m").unwrap().acquire_timeout(2 * S).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn where_tokio_lets_one_block_it_works() {
    let site = Site::redis();
    tokio::spawn(async move {
        tokio::task::block_in_place(|| {
            let mutex = site.client().mutex("m").unwrap();
            mutex.acquire().unwrap().release().unwrap();
        });
    })
    .await
    .unwrap();
}

/// An unconstrained future looks like a thread that may block. The call then blocks, without a panic.
#[tokio::test]
async fn in_an_unconstrained_future_it_works() {
    let site = Site::redis();
    tokio::task::unconstrained(async {
        let mutex = site.client().mutex("m").unwrap();
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
        let url = Worker::told().unwrap();
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
        Worker::say("none is left");
    }
}

#[test]
fn the_threads_end_with_the_last_that_needs_them() {
    let site = Site::redis();
    let mut process = Worker::of_test("worker", "threads").start().unwrap();
    process.tell(&site.url).unwrap();
    process.expect("none is left", 20 * S).unwrap();
}
