//! Locks that several threads hold or use at once: permits, reads, latches and barriers.

use super::{MS, S};
use crate::cases::store::TestStore;
use leasehold::blocking::{Client, ConversionError, Error, LockGuard, RwLock};
use leasehold::error::{AcquireError, Refused, ReleaseError, RunError};
use leasehold::inspect::LockMode;
use leasehold::{Attempt, LostReason, MultiAttempt, Owner};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

on_every_store! {
    blocking:
    no_more_threads_enter_than_there_are_permits,
    permits_are_taken_together_and_their_number_can_change,
    permits_by_key_are_taken_of_both,
    readers_of_all_threads_read_at_once_and_a_writer_is_alone,
    a_thread_reads_again_and_does_not_wait_for_itself,
    an_explicit_owner_precedes_the_scope_and_the_scope_the_thread,
    an_upgrade_waits_for_the_readers_and_a_downgrade_admits_them,
    an_upgrade_that_fails_returns_the_read,
    a_waiter_that_gave_up_does_not_block_its_owner,
    a_run_works_for_the_owner_of_its_guard,
    a_guard_of_any_kind_is_used_and_released_as_one,
    a_latch_releases_all_waiting_threads,
    threads_meet_at_a_barrier_repeatedly,
    dropped_guards_are_released,
    each_hold_is_renewed_while_its_thread_does_nothing,
    each_hold_is_lost_by_itself,
    a_shutdown_wakes_the_waiting_threads,
}

fn a_guard_of_any_kind_is_used_and_released_as_one(store: &TestStore) {
    let client = store.blocking_client();
    let rwlock = client.rwlock("document").expect("a good name");
    let acquire = |kind: usize| -> Box<dyn LockGuard> {
        match kind {
            0 => Box::new(client.mutex("job").expect("a good name").acquire().expect("acquired")),
            1 => {
                Box::new(client.reentrant_mutex("account").expect("a good name").acquire().expect("acquired"))
            }
            2 => Box::new(rwlock.read().expect("acquired")),
            3 => Box::new(rwlock.upgradable_read().expect("acquired")),
            4 => Box::new(rwlock.write().expect("acquired")),
            5 => Box::new(client.semaphore("uploads", 1).expect("a good name").acquire().expect("acquired")),
            6 => Box::new(client.election("leader").expect("a good name").campaign().expect("elected")),
            7 => {
                let exports = client.keyed_semaphore("exports", 1, 1).expect("a good name");
                Box::new(exports.acquire("tenant").expect("acquired"))
            }
            _ => {
                let report = client.once_per("report", MS).expect("a good name").max_duration(S);
                loop {
                    if let Attempt::Granted(period) = report.try_start().expect("an answer") {
                        break Box::new(period);
                    }
                }
            }
        }
    };
    for (kind, name) in
        ["job", "account", "document", "document", "document", "uploads", "leader", "exports", "report"]
            .iter()
            .enumerate()
    {
        let first = acquire(kind);
        first.check().expect("held");
        assert_eq!(first.name().as_str(), *name);
        assert!(first.remaining() > Duration::ZERO && first.lost_timeout(MS).expect("a thread").is_none());
        let token = first.fencing_token();
        first.release().expect("released");
        // It waits for no lease, so the first one was released.
        let begun = Instant::now();
        let second = acquire(kind);
        assert!(second.fencing_token() > token && begun.elapsed() < S, "{name}");
        second.release().expect("released");
    }
}

fn is_taken<H>(tried: &Attempt<H>) -> bool {
    matches!(tried, Attempt::Taken(_))
}

/// Waits, within a bound, until the condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < 20 * S, "never: {what}");
        thread::sleep(2 * MS);
    }
}

/// Whether an acquire failed because the thread would wait for itself.
fn deadlocks<T>(acquired: &Result<T, Error<AcquireError>>) -> bool {
    matches!(acquired, Err(Error::Failed(AcquireError::Impossible(Refused::WouldDeadlock))))
}

fn no_more_threads_enter_than_there_are_permits(store: &TestStore) {
    let clients = [store.blocking_client(), store.blocking_client()];
    let (inside, most, done) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|threads| {
        for n in 0..8_usize {
            let permits = clients[n % 2].semaphore("s", 3).unwrap();
            let (inside, most, done) = (&inside, &most, &done);
            threads.spawn(move || {
                for _ in 0..8 {
                    let permit = permits.acquire().unwrap();
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, SeqCst);
                    permit.release().unwrap();
                    done.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 64);
    assert!((1..=3).contains(&most.load(SeqCst)), "{most:?}");
}

fn permits_are_taken_together_and_their_number_can_change(store: &TestStore) {
    let permits = store.blocking_client().semaphore("s", 3).unwrap();
    let two = permits.acquire_many(2).unwrap();
    assert_eq!((two.count(), two.name().as_str()), (2, "s"));
    assert!(is_taken(&permits.try_acquire_many(2).unwrap()));
    let one = permits.try_acquire().unwrap().granted().expect("there is one left");
    assert!(one.fencing_token() > two.fencing_token());
    let status = permits.inspect().unwrap();
    assert_eq!((status.taken(), status.limit, status.shared_holders.len()), (3, Some(3), 2));
    let impossible = permits.acquire_many(4).expect_err("there are fewer");
    assert!(matches!(impossible, Error::Failed(AcquireError::Impossible(_))), "{impossible:?}");
    thread::scope(|threads| {
        let waiting = threads.spawn(|| permits.acquire_many_timeout(2, 20 * S).unwrap().release());
        until("it waits", || permits.inspect().unwrap().waiting == 1);
        permits.resize(5).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(permits.inspect().unwrap().limit, Some(5));
    let timed_out = permits.acquire_many_timeout(3, 400 * MS).expect_err("three are taken");
    assert!(matches!(timed_out, Error::Failed(AcquireError::TimedOut { .. })), "{timed_out:?}");
    one.release().unwrap();
    two.release().unwrap();
}

fn permits_by_key_are_taken_of_both(store: &TestStore) {
    let keyed = store.blocking_client().keyed_semaphore("s", 3, 2).unwrap();
    let two = keyed.acquire_many("x", 2).unwrap();
    assert_eq!((two.count(), two.name().as_str()), (2, "s"));
    let taken = |attempt: MultiAttempt<_>| match attempt {
        MultiAttempt::Taken { lock, .. } => lock.to_string(),
        MultiAttempt::Granted(_) => panic!("acquired"),
    };
    assert_eq!(taken(keyed.try_acquire("x").unwrap()), "s#key:x");
    assert_eq!(taken(keyed.try_acquire_many("y", 2).unwrap()), "s");
    assert_eq!((keyed.available_permits("x").unwrap(), keyed.available_permits("y").unwrap()), (0, 1));
    let timed_out = keyed.acquire_timeout("x", 300 * MS).expect_err("two are taken");
    assert!(matches!(timed_out, Error::Failed(AcquireError::TimedOut { .. })), "{timed_out:?}");
    let status = keyed.run("y", |permit| {
        permit.check().unwrap();
        (keyed.all().inspect().unwrap().taken(), keyed.of_key("y").inspect().unwrap().taken())
    });
    assert_eq!(status.unwrap(), (3, 1));
    let lost =
        keyed.clone().max_hold(300 * MS).run("y", |permit| permit.lost_timeout(20 * S).unwrap().is_some());
    assert!(matches!(&lost, Err(Error::Failed(RunError::LostAtRelease { result: true, .. }))), "{lost:?}");
    two.extend().unwrap();
    two.release().unwrap();
    until("all are released", || keyed.all().inspect().unwrap().taken() == 0);
    assert_eq!(keyed.available_permits("x").unwrap(), 2);
}

fn readers_of_all_threads_read_at_once_and_a_writer_is_alone(store: &TestStore) {
    let clients = [store.blocking_client(), store.blocking_client()];
    let (readers, writers, met) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|threads| {
        for n in 0..6_usize {
            let lock = clients[n % 2].rwlock("rw").unwrap();
            let (readers, writers, met) = (&readers, &writers, &met);
            threads.spawn(move || {
                for _ in 0..6 {
                    if n < 4 {
                        let guard = lock.read().unwrap();
                        met.fetch_max(readers.fetch_add(1, SeqCst) + 1, SeqCst);
                        assert_eq!(writers.load(SeqCst), 0);
                        thread::sleep(MS);
                        readers.fetch_sub(1, SeqCst);
                        guard.release().unwrap();
                    } else {
                        let guard = lock.write().unwrap();
                        assert_eq!((writers.fetch_add(1, SeqCst), readers.load(SeqCst)), (0, 0));
                        thread::yield_now();
                        writers.fetch_sub(1, SeqCst);
                        guard.release().unwrap();
                    }
                }
            });
        }
    });
    // Readers do not exclude each other, however the threads are scheduled.
    let (one, other) = (clients[0].rwlock("rw").unwrap(), clients[1].rwlock("rw").unwrap());
    let guards = [one.read().unwrap(), other.read().unwrap()];
    assert!(is_taken(&one.owned("a writer").try_write().unwrap()));
    let modes: Vec<_> = one.inspect().unwrap().shared_holders.iter().map(|sharer| sharer.mode).collect();
    assert_eq!(modes, [LockMode::Read, LockMode::Read]);
    for guard in guards {
        guard.release().unwrap();
    }
}

/// Locks with an explicit owner.
trait Owned {
    fn owned(&self, name: &str) -> Self;
}

impl Owned for RwLock {
    fn owned(&self, name: &str) -> Self {
        self.clone().owned_by(&Owner::new(name).unwrap())
    }
}

fn a_thread_reads_again_and_does_not_wait_for_itself(store: &TestStore) {
    let lock = store.blocking_client().rwlock("rw").unwrap();
    let reading = lock.read().unwrap();
    thread::scope(|threads| {
        let writing = threads.spawn(|| lock.write_timeout(20 * S).unwrap().release());
        until("a writer waits", || lock.inspect().unwrap().waiting == 1);
        // The re-entry bypasses the writer, which waits for this thread; another thread queues behind the writer.
        let again = lock.read_timeout(5 * S).unwrap();
        assert_eq!(again.owner(), reading.owner());
        threads.spawn(|| assert!(is_taken(&lock.try_read().unwrap()))).join().unwrap();
        assert!(deadlocks(&lock.write()));
        assert!(deadlocks(&lock.upgradable_read()));
        again.release().unwrap();
        reading.release().unwrap();
        writing.join().unwrap().unwrap();
    });
    let writing = lock.write().unwrap();
    thread::scope(|threads| {
        let waiting = threads.spawn(|| lock.write_timeout(20 * S).unwrap().release());
        until("another thread waits", || lock.inspect().unwrap().waiting == 1);
        let again = lock.write_timeout(5 * S).unwrap();
        let reading = lock.read().unwrap();
        assert!(writing.fencing_token() < again.fencing_token());
        assert!(again.fencing_token() < reading.fencing_token());
        writing.release().unwrap();
        reading.release().unwrap();
        assert!(!waiting.is_finished(), "one of its writes is still held");
        again.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

fn an_explicit_owner_precedes_the_scope_and_the_scope_the_thread(store: &TestStore) {
    let lock = store.blocking_client().rwlock("rw").unwrap();
    let (given, scope) = (Owner::new("given").unwrap(), Owner::new("scope").unwrap());
    let by = |lock: &RwLock| {
        let guard = lock.read().unwrap();
        let owner = guard.owner().clone();
        assert_eq!(lock.inspect().unwrap().shared_holders[0].owner.as_ref(), Some(&owner));
        guard.release().unwrap();
        owner
    };
    let thread = by(&lock);
    assert_eq!(scope.sync_scope(|| by(&lock)), scope);
    assert_eq!(scope.sync_scope(|| by(&lock.owned("given"))), given);
    assert_eq!(by(&lock), thread, "the owner is unchanged");
    assert!(![given, scope].contains(&thread));
}

fn an_upgrade_waits_for_the_readers_and_a_downgrade_admits_them(store: &TestStore) {
    let (lock, other) =
        (store.blocking_client().rwlock("rw").unwrap(), store.blocking_client().rwlock("rw").unwrap());
    let (reading, beside) = (lock.upgradable_read().unwrap(), other.read().unwrap());
    thread::scope(|threads| {
        let third = threads.spawn(|| is_taken(&other.try_upgradable_read().unwrap()));
        assert!(third.join().unwrap(), "one upgradable guard at a time");
        let leaving = threads.spawn(|| {
            until("the upgrade waits", || other.inspect().unwrap().waiting == 1);
            beside.release().unwrap();
        });
        let token = reading.fencing_token();
        let writing = reading.upgrade().unwrap();
        leaving.join().unwrap();
        assert!(writing.fencing_token() > token);
        let next = threads.spawn(|| other.read_timeout(20 * S).unwrap().release());
        until("it waits", || lock.inspect().unwrap().waiting == 1);
        let reading = writing.downgrade().unwrap();
        next.join().unwrap().unwrap();
        reading.check().unwrap();
        reading.release().unwrap();
    });
    assert!(!lock.inspect().unwrap().held);
}

fn an_upgrade_that_fails_returns_the_read(store: &TestStore) {
    let (lock, other) =
        (store.blocking_client().rwlock("rw").unwrap(), store.blocking_client().rwlock("rw").unwrap());
    let (reading, beside) = (lock.upgradable_read().unwrap(), other.read().unwrap());
    let ConversionError { guard, error } =
        reading.upgrade_timeout(400 * MS).expect_err("there is another reader");
    assert!(matches!(error, Error::Failed(AcquireError::TimedOut { .. })), "{error:?}");
    // In a context where blocking is not allowed, the call does nothing and returns the guard.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(async { guard.upgrade() });
    let ConversionError { guard, error } = refused.expect_err("a future must not wait");
    assert!(matches!(error, Error::AsyncContext(_)), "{error:?}");
    guard.check().unwrap();
    beside.release().unwrap();
    let writing = guard.upgrade_timeout(20 * S).unwrap();
    let refused = runtime.block_on(async { writing.downgrade() });
    let ConversionError { guard: writing, error } = refused.expect_err("a future must not wait");
    assert!(matches!(error, Error::AsyncContext(_)), "{error:?}");
    // Together with the read under it. The upgrade that timed out is undone in the background: it may have been granted beside
    // the later one, which its owner need not wait for.
    writing.release().unwrap();
    let released = Instant::now();
    while lock.inspect().unwrap().held {
        assert!(released.elapsed() < 20 * S, "it is held for ever");
        thread::sleep(MS);
    }
}

/// An abandoned request is undone in the background. Until then it may be granted; its owner must not count as
/// waiting for itself.
fn a_waiter_that_gave_up_does_not_block_its_owner(store: &TestStore) {
    let (lock, other) =
        (store.blocking_client().rwlock("rw").unwrap(), store.blocking_client().rwlock("rw").unwrap());
    for _ in 0..20 {
        let beside = other.read().unwrap();
        lock.write_timeout(3 * MS).expect_err("there is another reader");
        beside.release().unwrap();
        lock.write_timeout(20 * S).unwrap().release().unwrap();
    }
    for _ in 0..20 {
        let (reading, beside) = (lock.upgradable_read().unwrap(), other.read().unwrap());
        let reading = reading.upgrade_timeout(3 * MS).expect_err("there is another reader").guard;
        beside.release().unwrap();
        reading.upgrade_timeout(20 * S).unwrap().release().unwrap();
    }
}

fn a_run_works_for_the_owner_of_its_guard(store: &TestStore) {
    let client = store.blocking_client();
    let lock = client.rwlock("rw").unwrap();
    let job = Owner::new("the job").unwrap();
    let twice = lock.clone().owned_by(&job).run_reading(|guard| {
        assert_eq!((Owner::current().as_ref(), guard.owner()), (Some(&job), &job));
        lock.run_reading(|_| lock.inspect().unwrap().shared_holders.len()).unwrap()
    });
    assert_eq!(twice.unwrap(), 2);
    assert!(lock.run_writing(|_| is_taken(&lock.owned("another").try_read().unwrap())).unwrap());
    let permits = client.semaphore("s", 2).unwrap();
    assert_eq!(permits.run(|_| permits.inspect().unwrap().taken()).unwrap(), 1);
    let lost =
        permits.clone().max_hold(300 * MS).run(|permit| permit.lost_timeout(20 * S).unwrap().is_some());
    assert!(matches!(&lost, Err(Error::Failed(RunError::LostAtRelease { result: true, .. }))), "{lost:?}");
}

fn a_latch_releases_all_waiting_threads(store: &TestStore) {
    let (one, other) =
        (store.blocking_client().latch("l", 3).unwrap(), store.blocking_client().latch("l", 3).unwrap());
    let timed_out = one.wait_timeout(400 * MS).expect_err("no arrival yet");
    assert!(matches!(timed_out, Error::Failed(AcquireError::TimedOut { .. })), "{timed_out:?}");
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..4)
            .map(|n| if n % 2 == 0 { &one } else { &other })
            .map(|latch| threads.spawn(|| latch.wait()))
            .collect();
        until("they wait", || one.inspect().unwrap().waiting == 4);
        other.arrive().unwrap();
        assert_eq!((one.arrived().unwrap(), one.is_open().unwrap()), (1, false));
        other.arrive_many(2).unwrap();
        for thread in waiting {
            thread.join().unwrap().unwrap();
        }
    });
    // It stays open.
    assert!(other.is_open().unwrap());
    one.wait_timeout(5 * S).unwrap();
    let differs =
        store.blocking_client().latch("l", 4).unwrap().wait().expect_err("the latch counts to three");
    assert!(matches!(differs, Error::Failed(AcquireError::Impossible(_))), "{differs:?}");
}

fn threads_meet_at_a_barrier_repeatedly(store: &TestStore) {
    let clients = [store.blocking_client(), store.blocking_client()];
    let barriers = clients.each_ref().map(|client| client.barrier("b", 4).unwrap());
    let timed_out = barriers[0].wait_timeout(400 * MS).expect_err("there is no other participant");
    assert!(matches!(timed_out, Error::Failed(AcquireError::TimedOut { .. })), "{timed_out:?}");
    // Until the store has processed its leaving, it would count among the first four.
    clients[0].flush().unwrap();
    let arrived = AtomicU32::new(0);
    let mut last = Vec::new();
    for round in 1..=3 {
        let mut fences = thread::scope(|threads| {
            let meeting: Vec<_> = (0..4_usize)
                .map(|n| {
                    let (barrier, arrived) = (&barriers[n % 2], &arrived);
                    threads.spawn(move || {
                        arrived.fetch_add(1, SeqCst);
                        let met = barrier.wait().unwrap();
                        assert_eq!(
                            arrived.load(SeqCst),
                            4 * round,
                            "no thread continues before all have arrived"
                        );
                        met.fence
                    })
                })
                .collect();
            meeting.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        fences.sort();
        fences.dedup();
        assert_eq!(fences.len(), 4);
        assert!(last.last() < fences.first(), "{last:?} {fences:?}");
        last = fences;
    }
}

fn dropped_guards_are_released(store: &TestStore) {
    let client = store.blocking_client();
    let (permits, lock) = (client.semaphore("s", 1).unwrap(), client.rwlock("rw").unwrap());
    drop(permits.acquire().unwrap());
    permits.acquire_timeout(20 * S).unwrap().release().unwrap();
    drop(lock.upgradable_read().unwrap().upgrade().unwrap());
    let other = store.blocking_client().rwlock("rw").unwrap();
    let writing = other.write_timeout(20 * S).unwrap();
    // A thread that panics releases its holds.
    let panicked = thread::scope(|threads| {
        let panics = move || {
            let _writing = writing;
            std::panic::resume_unwind(Box::new("it is on purpose"));
        };
        threads.spawn(panics).join()
    });
    assert!(panicked.is_err());
    lock.read_timeout(20 * S).unwrap().release().unwrap();
}

fn each_hold_is_renewed_while_its_thread_does_nothing(store: &TestStore) {
    let client = Client::builder(store.url()).watchdog_lease(2 * S).connect_blocking().unwrap();
    let (permits, lock) = (client.semaphore("s", 2).unwrap(), client.rwlock("rw").unwrap());
    let (one, two) = (permits.acquire().unwrap(), permits.acquire().unwrap());
    let reading = lock.read().unwrap();
    let (others, writer) =
        (store.blocking_client().semaphore("s", 2).unwrap(), store.blocking_client().rwlock("rw").unwrap());
    let start = Instant::now();
    while start.elapsed() < 5 * S {
        thread::sleep(200 * MS);
        assert!(is_taken(&others.try_acquire().unwrap()), "after {:?}", start.elapsed());
        assert!(is_taken(&writer.try_write().unwrap()), "after {:?}", start.elapsed());
    }
    assert!(one.remaining() <= 2 * S);
    one.extend_to(8 * S).unwrap();
    assert!(one.remaining() > 5 * S);
    two.check().unwrap();
    reading.release().unwrap();
    two.release().unwrap();
    one.release().unwrap();
}

fn each_hold_is_lost_by_itself(store: &TestStore) {
    let permits = store.blocking_client().semaphore("s", 3).unwrap();
    let (stays, freed) = (permits.acquire().unwrap(), permits.acquire_many(2).unwrap());
    let capped = |cap: Duration| permits.clone().max_hold(cap);
    let operator = store.blocking_client().semaphore("s", 3).unwrap();
    let details = operator.inspect_full().unwrap();
    let seen =
        details.status.shared_holders.iter().find(|sharer| sharer.fence == Some(freed.fencing_token()));
    operator
        .force_release(seen.and_then(leasehold::inspect::SharedHolder::observed).expect("it is held"))
        .unwrap();
    let lost = freed.lost_timeout(20 * S).unwrap().expect("it was freed");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    let released = freed.release();
    assert!(matches!(&released, Err(Error::Failed(ReleaseError::Lost(_)))), "{released:?}");
    let short = capped(600 * MS).acquire_timeout(20 * S).unwrap();
    assert_eq!(short.lost_timeout(50 * MS), Ok(None));
    assert_eq!(short.lost_timeout(20 * S).unwrap().expect("it has a cap").reason, LostReason::Capped);
    assert!(short.lost_signal().is_cancelled() && short.is_capped() && !stays.is_capped());
    stays.check().unwrap();
    stays.release().unwrap();
}

fn a_shutdown_wakes_the_waiting_threads(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let held = other.rwlock("rw").unwrap().write().unwrap();
    let (lock, latch, barrier) =
        (client.rwlock("rw").unwrap(), client.latch("l", 1).unwrap(), client.barrier("b", 2).unwrap());
    let closed = |error: Error<AcquireError>| matches!(error, Error::Failed(AcquireError::Closed));
    thread::scope(|threads| {
        let reading = threads.spawn(|| lock.read().expect_err("it is written"));
        let waiting = threads.spawn(|| latch.wait().expect_err("it is shut"));
        let meeting = threads.spawn(|| barrier.wait().expect_err("no other participant arrives"));
        until("they wait", || {
            let waiting = [lock.inspect(), latch.inspect(), barrier.inspect()];
            waiting.into_iter().all(|status| status.unwrap().waiting == 1)
        });
        client.shutdown(5 * S).unwrap();
        for thread in [reading, waiting, meeting] {
            assert!(closed(thread.join().unwrap()));
        }
    });
    assert_eq!(other.barrier("b", 2).unwrap().inspect().unwrap().waiting, 0);
    held.release().unwrap();
}
