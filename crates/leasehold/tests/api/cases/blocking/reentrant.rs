//! The ReentrantMutex of threads: the owner of each thread, and the behaviour of guards.

use super::{MS, S};
use crate::cases::store::TestStore;
use leasehold::blocking::{Error, ReentrantGuard, ReentrantMutex};
use leasehold::error::{ReleaseError, RunError};
use leasehold::{Attempt, LostReason, Owner, Released};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

on_every_store! {
    blocking:
    a_thread_enters_again_and_counts,
    threads_exclude_each_other,
    clients_of_one_thread_exclude_each_other,
    threads_in_one_scope_are_inside_at_once,
    an_explicit_owner_precedes_the_scope_and_the_scope_the_thread,
    a_thread_does_not_enter_by_the_hold_of_an_ended_thread,
    a_run_works_for_the_owner_of_its_guard,
    a_dropped_guard_releases_its_reentry,
    an_entry_is_renewed_while_its_thread_does_nothing,
    a_loss_wakes_the_thread_that_waits_for_it,
    force_ends_all_guards_of_an_owner,
}

fn lock(store: &TestStore) -> ReentrantMutex {
    store.blocking_client().reentrant_mutex("r").unwrap()
}

fn is_taken(lock: &ReentrantMutex) -> bool {
    matches!(lock.try_acquire().unwrap(), Attempt::Taken(_))
}

fn a_thread_enters_again_and_counts(store: &TestStore) {
    let lock = lock(store);
    let outer = lock.acquire().unwrap();
    let inner = lock.acquire_timeout(5 * S).unwrap();
    let third = lock.try_acquire().unwrap().granted().expect("its thread has it");
    assert_eq!((outer.count(), inner.count(), third.count()), (1, 2, 3));
    assert_eq!((outer.owner(), outer.fencing_token()), (third.owner(), third.fencing_token()));
    assert_eq!(lock.hold_count().unwrap(), 3);
    thread::scope(|threads| {
        let elsewhere = threads.spawn(|| (is_taken(&lock), lock.hold_count().unwrap()));
        assert_eq!(elsewhere.join().unwrap(), (true, 0), "another thread is another owner");
    });
    let status = lock.inspect().unwrap();
    assert_eq!((status.owner.as_ref(), status.count), (Some(outer.owner()), 3));
    assert_eq!(outer.release().unwrap(), Released::StillHeld { count: 2 });
    assert_eq!(third.release().unwrap(), Released::StillHeld { count: 1 });
    inner.check().unwrap();
    assert_eq!(inner.release().unwrap(), Released::NoLongerHeld);
    assert!(!lock.inspect().unwrap().held);
}

fn threads_exclude_each_other(store: &TestStore) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 15;
    let (clients, count) = ([store.blocking_client(), store.blocking_client()], AtomicU32::new(0));
    thread::scope(|threads| {
        for n in 0..THREADS {
            let lock = clients[n as usize % 2].reentrant_mutex("r").unwrap();
            let count = &count;
            threads.spawn(move || {
                for _ in 0..ROUNDS {
                    let outer = lock.acquire().unwrap();
                    let seen = count.load(Relaxed);
                    let inner = lock.acquire().unwrap();
                    assert_eq!(inner.count(), 2);
                    thread::yield_now();
                    inner.release().unwrap();
                    count.store(seen + 1, Relaxed);
                    assert_eq!(outer.release().unwrap(), Released::NoLongerHeld);
                }
            });
        }
    });
    assert_eq!(count.load(Relaxed), THREADS * ROUNDS);
}

fn clients_of_one_thread_exclude_each_other(store: &TestStore) {
    let (one, other) = (lock(store), lock(store));
    let guard = one.acquire().unwrap();
    assert!(is_taken(&other));
    // Unless they declare the same owner.
    let again = other.owned_by(guard.owner()).try_acquire().unwrap().granted().expect("the owner holds it");
    assert_eq!(again.count(), 2);
    guard.release().unwrap();
    assert_eq!(again.release().unwrap(), Released::NoLongerHeld);
}

fn threads_in_one_scope_are_inside_at_once(store: &TestStore) {
    let client = store.blocking_client();
    let (lock, owner) = (client.reentrant_mutex("r").unwrap(), client.new_owner());
    let inside = Barrier::new(2);
    let enter = || {
        owner.sync_scope(|| {
            let guard = lock.acquire().unwrap();
            // Each waits inside for the other.
            inside.wait();
            assert_eq!(guard.owner(), &owner);
            guard.release().unwrap()
        })
    };
    let mut released = thread::scope(|threads| {
        let (one, other) = (threads.spawn(enter), threads.spawn(enter));
        [one.join().unwrap(), other.join().unwrap()]
    });
    released.sort_by_key(|released| *released == Released::NoLongerHeld);
    assert_eq!(released, [Released::StillHeld { count: 1 }, Released::NoLongerHeld]);
}

fn an_explicit_owner_precedes_the_scope_and_the_scope_the_thread(store: &TestStore) {
    let lock = lock(store);
    let (given, scope) = (Owner::new("given").unwrap(), Owner::new("scope").unwrap());
    let by = |lock: &ReentrantMutex| {
        let guard = lock.acquire().unwrap();
        let owner = guard.owner().clone();
        assert_eq!(lock.hold_count().unwrap(), 1);
        guard.release().unwrap();
        owner
    };
    let thread = by(&lock);
    assert_eq!(scope.sync_scope(|| by(&lock)), scope);
    assert_eq!(scope.sync_scope(|| by(&lock.clone().owned_by(&given))), given);
    assert_eq!(by(&lock.clone().owned_by(&given)), given);
    assert_eq!(by(&lock), thread, "the owner is unchanged");
    assert!(![given, scope].contains(&thread));
}

fn a_thread_does_not_enter_by_the_hold_of_an_ended_thread(store: &TestStore) {
    let lock = lock(store);
    let guard = thread::scope(|threads| threads.spawn(|| lock.acquire().unwrap()).join()).unwrap();
    for _ in 0..3 {
        thread::scope(|threads| threads.spawn(|| assert!(is_taken(&lock))).join()).unwrap();
    }
    // Code with access to the guard can enter and release in its owner's name.
    let again = guard.owner().sync_scope(|| lock.acquire()).unwrap();
    assert_eq!(guard.release().unwrap(), Released::StillHeld { count: 1 });
    assert_eq!(again.release().unwrap(), Released::NoLongerHeld);
}

fn a_run_works_for_the_owner_of_its_guard(store: &TestStore) {
    let lock = lock(store);
    let job = Owner::new("the job").unwrap();
    let count = lock.clone().owned_by(&job).run(|guard| {
        assert_eq!((Owner::current().as_ref(), guard.owner()), (Some(&job), &job));
        // Not of this thread, but of its scope.
        lock.run(ReentrantGuard::count).unwrap()
    });
    assert_eq!(count.unwrap(), 2);
    assert_ne!(Owner::current().as_ref(), Some(&job), "the scope has ended");
    assert!(!lock.inspect().unwrap().held);
    let result = lock.clone().max_hold(300 * MS).run(|guard| guard.lost_timeout(20 * S).unwrap().is_some());
    assert!(
        matches!(&result, Err(Error::Failed(RunError::LostAtRelease { result: true, .. }))),
        "{result:?}"
    );
}

fn a_dropped_guard_releases_its_reentry(store: &TestStore) {
    let (lock, other) = (lock(store), lock(store));
    let outer = lock.acquire().unwrap();
    drop(lock.acquire().unwrap());
    let start = Instant::now();
    while lock.hold_count().unwrap() > 1 {
        assert!(start.elapsed() < 2500 * MS, "the entry is there still");
    }
    assert!(is_taken(&other));
    drop(outer);
    other.acquire_timeout(2500 * MS).unwrap().release().unwrap();
}

fn an_entry_is_renewed_while_its_thread_does_nothing(store: &TestStore) {
    let client = leasehold::blocking::Client::builder(store.url()).watchdog_lease(2 * S);
    let lock = client.connect_blocking().unwrap().reentrant_mutex("r").unwrap();
    let other = self::lock(store);
    let (outer, inner) = (lock.acquire().unwrap(), lock.acquire().unwrap());
    let start = Instant::now();
    while start.elapsed() < 5 * S {
        thread::sleep(200 * MS);
        assert!(is_taken(&other), "after {:?}: {:?}", start.elapsed(), outer.check());
    }
    outer.check().unwrap();
    assert!(inner.remaining() <= 2 * S);
    inner.extend_to(8 * S).unwrap();
    assert!(inner.remaining() > 5 * S);
    inner.release().unwrap();
    outer.release().unwrap();
}

fn a_loss_wakes_the_thread_that_waits_for_it(store: &TestStore) {
    let lock = lock(store);
    let outer = lock.acquire().unwrap();
    let capped = lock.clone().max_hold(600 * MS).acquire().unwrap();
    assert_eq!(capped.lost_timeout(50 * MS), Ok(None));
    assert!(!capped.lost_signal().is_cancelled());
    let lost = capped.lost_timeout(20 * S).unwrap().expect("it has a cap");
    assert_eq!(lost.reason, LostReason::Capped);
    assert!(capped.lost_signal().is_cancelled() && capped.check().is_err());
    assert!(capped.is_capped() && !outer.is_capped());
    outer.check().unwrap();
    assert_eq!(outer.lost_timeout(50 * MS), Ok(None), "the others are left alone");
    assert_eq!(outer.release().unwrap(), Released::NoLongerHeld);
}

fn force_ends_all_guards_of_an_owner(store: &TestStore) {
    let (lock, other) = (lock(store), lock(store));
    let guards = [lock.acquire().unwrap(), lock.acquire().unwrap()];
    let seen = other.inspect_full().unwrap().observed.expect("it is held");
    other.force_release(seen).unwrap();
    for guard in guards {
        let lost = guard.lost_timeout(10 * S).unwrap().expect("it was freed");
        // The reason is recorded for the first of them only.
        assert!(matches!(lost.reason, LostReason::ForceReleased | LostReason::Removed), "{lost}");
        let released = guard.release();
        assert!(matches!(&released, Err(Error::Failed(ReleaseError::Lost(_)))), "{released:?}");
    }
    assert!(!lock.inspect().unwrap().held);
}
