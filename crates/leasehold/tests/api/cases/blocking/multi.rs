//! Several locks at once, from threads.

use super::{MS, S};
use crate::cases::store::TestStore;
use leasehold::blocking::Error;
use leasehold::error::AcquireError;
use leasehold::{LockName, LostReason, MultiAttempt};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

on_every_store! {
    blocking:
    threads_that_want_several_locks_all_get_them,
    no_lock_is_held_if_one_is_taken,
    a_set_is_renewed_while_its_thread_does_nothing,
    a_set_is_lost_as_a_whole,
    a_dropped_set_is_released,
    a_thread_re_enters_its_set,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn threads_that_want_several_locks_all_get_them(store: &TestStore) {
    const ROUNDS: usize = 15;
    let client = store.blocking_client();
    let counts = [const { AtomicU32::new(0) }; NAMES.len()];
    // Each thread uses another order, and leaves out a name now and then.
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]];
    thread::scope(|threads| {
        for order in orders {
            let (client, counts) = (&client, &counts);
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let wanted = &order[..if round % 3 == 0 { 2 } else { 3 }];
                    let set = client.multi_mutex(wanted.iter().map(|at| NAMES[*at])).unwrap();
                    let guard = set.acquire_timeout(60 * S).unwrap();
                    let seen: Vec<_> = wanted.iter().map(|at| counts[*at].load(Relaxed)).collect();
                    thread::yield_now();
                    for (at, seen) in wanted.iter().zip(seen) {
                        counts[*at].store(seen + 1, Relaxed);
                    }
                    guard.release().unwrap();
                }
            });
        }
    });
    // Each thread leaves out the last name of its order in a third of the rounds.
    let wanted = |name| orders.map(|order| if order[2] == name { 10 } else { 15 }).into_iter().sum::<u32>();
    assert_eq!(ROUNDS, 15);
    assert_eq!(counts.map(AtomicU32::into_inner), [wanted(0), wanted(1), wanted(2)]);
    for name in NAMES {
        assert!(!client.mutex(name).unwrap().inspect().unwrap().held, "{name}");
    }
}

fn no_lock_is_held_if_one_is_taken(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let guard = other.mutex("b").unwrap().acquire().unwrap();
    let set = client.multi_mutex(NAMES).unwrap();
    assert_eq!(set.names().map(LockName::as_str).collect::<Vec<_>>(), NAMES);
    let tried = set.try_acquire().unwrap();
    assert!(matches!(&tried, MultiAttempt::Taken { lock, .. } if lock.as_str() == "b"), "{tried:?}");
    for missed in [set.acquire_timeout(S), set.clone().max_wait(S).acquire()] {
        let Err(Error::Failed(AcquireError::TimedOut { lock, .. })) = missed else { panic!("{missed:?}") };
        assert_eq!(lock.as_str(), "b");
    }
    for name in ["a", "c"] {
        other.mutex(name).unwrap().acquire_timeout(5 * S).unwrap().release().unwrap();
    }
    // The queue entries of calls that gave up are removed in the background: until then one may be granted the lock.
    client.flush().unwrap();
    guard.release().unwrap();
    let all = set.try_acquire().unwrap().granted().expect("all are free");
    assert_eq!(all.fencing_tokens().count(), 3);
    assert!(all.fencing_token("b").is_some() && all.fencing_token("d").is_none());
    all.release().unwrap();
    assert!(matches!(client.multi_mutex::<&str>([]), Err(leasehold::error::LockError::NoName)));
}

fn a_set_is_renewed_while_its_thread_does_nothing(store: &TestStore) {
    let client = leasehold::blocking::Client::builder(store.url()).watchdog_lease(2 * S);
    let set = client.connect_blocking().unwrap().multi_mutex(NAMES).unwrap().acquire().unwrap();
    let other = store.blocking_client();
    let start = Instant::now();
    while start.elapsed() < 5 * S {
        thread::sleep(200 * MS);
        for name in NAMES {
            let tried = other.mutex(name).unwrap().try_acquire().unwrap();
            assert!(tried.granted().is_none(), "{name} after {:?}: {:?}", start.elapsed(), set.check());
        }
    }
    assert!(set.remaining() <= 2 * S);
    set.extend_to(8 * S).unwrap();
    assert!(set.remaining() > 5 * S);
    set.release().unwrap();
}

fn a_set_is_lost_as_a_whole(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client().mutex("b").unwrap());
    let set = client.multi_mutex(NAMES).unwrap().acquire().unwrap();
    assert_eq!(set.lost_timeout(50 * MS), Ok(None));
    let seen = other.inspect_full().unwrap().observed.expect("it is held");
    other.force_release(seen).unwrap();
    let lost = set.lost_timeout(10 * S).unwrap().expect("one hold was evicted");
    assert_eq!((lost.lock.as_str(), &lost.reason), ("b", &LostReason::ForceReleased));
    assert!(set.lost_signal().is_cancelled() && set.check().is_err());
    let Err(Error::Failed(failed)) = set.release() else { panic!("a set with a lost hold was released") };
    assert_eq!(failed.failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b"]);
    let again = client.multi_mutex(NAMES).unwrap().acquire_timeout(5 * S).unwrap();
    again.release().unwrap();
}

fn a_dropped_set_is_released(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let set = client.multi_mutex(NAMES).unwrap().acquire().unwrap();
    // On another thread, and while it panics.
    let ended = thread::spawn(move || {
        let _set = set;
        std::panic::resume_unwind(Box::new("of the test's own"));
    });
    assert!(ended.join().is_err());
    other.multi_mutex(NAMES).unwrap().acquire_timeout(2500 * MS).unwrap().release().unwrap();
}

fn a_thread_re_enters_its_set(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let set = client.multi_reentrant_mutex(NAMES).unwrap();
    let guard = set.acquire_timeout(20 * S).unwrap();
    let again = set.try_acquire().unwrap().granted().expect("this thread holds them");
    assert_eq!(again.owner(), guard.owner());
    let one = client.reentrant_mutex("b").unwrap().acquire().unwrap();
    assert_eq!(one.count(), 3);
    thread::scope(|threads| {
        let tried = threads.spawn(|| set.try_acquire().unwrap().granted().is_none());
        assert!(tried.join().unwrap(), "another thread is another owner");
    });
    one.release().unwrap();
    guard.release().unwrap();
    again.check().unwrap();
    again.release().unwrap();
    other.multi_reentrant_mutex(NAMES).unwrap().acquire_timeout(20 * S).unwrap().release().unwrap();
}
