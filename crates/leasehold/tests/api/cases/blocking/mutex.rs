//! Guards of threads: what excludes, wakes and outlives what.

use super::{MS, S};
use crate::cases::store::TestStore;
use leasehold::blocking::{AttachError, Client, Error};
use leasehold::error::{AcquireError, ReleaseError, RunError};
use leasehold::inspect::HoldEnding;
use leasehold::{Attempt, DetachedHold, LostReason};
use leasehold_testkit::Stopwatch;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

on_every_store! {
    blocking:
    an_observer_for_threads,
    threads_and_clients_exclude_each_other,
    a_hold_is_renewed_while_its_thread_does_nothing,
    everything_can_be_dropped_in_any_order,
    a_guard_is_released_by_another_thread,
    a_thread_that_panics_releases_its_lock,
    a_run_ends_before_its_lock_is_released,
    a_run_whose_lock_was_lost_has_its_result_in_the_error,
    a_shutdown_wakes_the_waiting_threads,
    waiting_ends_at_its_limit,
    a_loss_wakes_the_thread_that_waits_for_it,
    detached_holds_pass_from_client_to_client,
    the_calls_of_operators_work_from_threads,
}

fn threads_and_clients_exclude_each_other(store: &TestStore) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 25;
    let (clients, count) = ([store.blocking_client(), store.blocking_client()], AtomicU32::new(0));
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

fn a_hold_is_renewed_while_its_thread_does_nothing(store: &TestStore) {
    let client = Client::builder(store.url()).watchdog_lease(3 * S).connect_blocking().unwrap();
    let other = store.blocking_client().mutex("m").unwrap();
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
fn everything_can_be_dropped_in_any_order(store: &TestStore) {
    let other = store.blocking_client().mutex("m").unwrap();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let client = store.blocking_client();
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

fn a_guard_is_released_by_another_thread(store: &TestStore) {
    let client = store.blocking_client();
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

fn a_thread_that_panics_releases_its_lock(store: &TestStore) {
    let client = store.blocking_client();
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

fn a_run_ends_before_its_lock_is_released(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client().mutex("m").unwrap());
    let mutex = client.mutex("m").unwrap();
    let held = mutex.run(|guard| {
        guard.check().unwrap();
        other.inspect().unwrap().held
    });
    assert!(held.unwrap());
    assert!(!other.inspect().unwrap().held);
    let blocked = other.acquire().unwrap();
    let missed = mutex.clone().max_wait(400 * MS).run(|_| panic!("it must not run"));
    let missed: Error<RunError> = missed.map(|(): ()| ()).unwrap_err();
    assert!(matches!(missed, Error::Failed(RunError::Acquire(AcquireError::TimedOut { .. }))), "{missed:?}");
    blocked.release().unwrap();
}

fn a_run_whose_lock_was_lost_has_its_result_in_the_error(store: &TestStore) {
    let mutex = store.blocking_client().mutex("m").unwrap().max_hold(300 * MS);
    let result = mutex.run(|guard| {
        guard.lost_timeout(20 * S).unwrap().expect("it has a cap");
        7
    });
    let Err(Error::Failed(RunError::LostAtRelease { result: 7, lost })) = result else {
        panic!("{result:?}")
    };
    assert_eq!(lost.reason, LostReason::Capped);
}

fn a_shutdown_wakes_the_waiting_threads(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let (held, wanted) = (client.mutex("held").unwrap(), client.mutex("wanted").unwrap());
    let guard = held.acquire().unwrap();
    let elsewhere = other.mutex("wanted").unwrap().acquire().unwrap();
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..4).map(|_| threads.spawn(|| wanted.acquire())).collect();
        let watching = threads.spawn(|| guard.lost_timeout(20 * S));
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

fn waiting_ends_at_its_limit(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let guard = other.mutex("m").unwrap().acquire().unwrap();
    let mutex = client.mutex("m").unwrap();
    let start = Instant::now();
    let missed = mutex.acquire_timeout(600 * MS);
    assert!(matches!(missed, Err(Error::Failed(AcquireError::TimedOut { .. }))), "{missed:?}");
    let missed = mutex.clone().max_wait(400 * MS).acquire();
    assert!(matches!(missed, Err(Error::Failed(AcquireError::TimedOut { .. }))), "{missed:?}");
    assert!((1000 * MS..2700 * MS).contains(&start.elapsed()), "{:?}", start.elapsed());
    guard.release().unwrap();
}

fn a_loss_wakes_the_thread_that_waits_for_it(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let guard = client.mutex("m").unwrap().max_hold(600 * MS).acquire().unwrap();
    assert_eq!(guard.lost_timeout(50 * MS), Ok(None));
    assert!(!guard.lost_signal().is_cancelled());
    let start = Stopwatch::start();
    let lost = guard.lost_timeout(Duration::MAX).unwrap().expect("it has a cap");
    assert_eq!(lost.reason, LostReason::Capped);
    start.assert_below(2 * S, "the thread is woken by the loss");
    assert!(guard.lost_signal().is_cancelled() && guard.check().is_err());
    other.mutex("m").unwrap().acquire_timeout(2500 * MS).unwrap().release().unwrap();
    assert!(matches!(guard.extend(), Err(Error::Failed(_))));
}

fn detached_holds_pass_from_client_to_client(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
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
    assert!(matches!(lost, Err(Error::Failed(leasehold::error::ExtendError::Lost(_)))), "{lost:?}");
    let gone = other.attach(text.parse().unwrap());
    assert!(matches!(gone, Err(AttachError::Failed(_))), "{gone:?}");
}

fn the_calls_of_operators_work_from_threads(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let guard = client.mutex("m").unwrap().acquire().unwrap();
    let start = Instant::now();
    while !other.locks().unwrap().iter().any(|lock| lock.name.as_str() == "m") {
        assert!(start.elapsed() < 10 * S, "no notification of the lock arrived");
        thread::sleep(20 * MS);
    }
    assert!(other.sessions().unwrap().iter().any(|session| session.id == client.session_id()));
    let mutex = other.mutex("m").unwrap();
    let seen = mutex.inspect_full().unwrap().observed.expect("it is held");
    mutex.force_release(seen).unwrap();
    let lost = guard.lost_timeout(10 * S).unwrap().expect("it was freed");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    assert_eq!(other.block_on(async { other.as_async().monitor().run_once().await }).unwrap().evicted, []);
}

fn an_observer_for_threads(store: &TestStore) {
    let client = store.blocking_client();
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().expect("acquired");
    let fence = guard.fencing_token();
    let mut ends = mutex.observe_ends().expect("an answer");
    assert_eq!(ends.next_timeout(50 * MS).expect("an answer"), None);
    guard.release().expect("released");
    let end = ends.next().expect("an answer");
    assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Released));
}
