//! Releases: what they await, and what is sent after them.

use crate::environment::{PausedTime, SuspendableMachine, client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON, once};
use crate::until::until_waiting;
use futures_util::future::BoxFuture;
use leasehold::core::LockMode;
use leasehold::error::{ReleaseError, ReturnPermitsError};
use leasehold::inspect::{Holder, SessionId};
use leasehold::store::{Environment, Fault, Lock, MemoryStore, NotificationSink, Op, Outcome, Reply, Store};
use leasehold::{Client, FencingToken, LostReason};
use leasehold_core::{ForceReleased, KeyError, Partition};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

#[tokio::test(start_paused = true)]
async fn a_release_awaits_a_renewal_under_way_also_of_a_hold_that_was_found_gone() {
    let renewal = once();
    let store = FaultyStore::new(&memory(), move |_, op| match op {
        Op::Extend(_) if renewal() => Behavior::ExecuteAfter(100 * MS),
        Op::Extend(_) => Behavior::NotHeld,
        _ => Behavior::Execute,
    });
    let delayed = store.delayed.clone();
    let client = store.client(600 * MS).await;
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    while delayed.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    guard.extend().await.expect_err("the store reports the hold as gone");
    guard.release().await.expect("the store still had the hold");
    assert_eq!(delayed.load(Ordering::SeqCst), 0, "nothing about the hold is sent any more");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_though_an_unanswered_extend_was_executed() {
    let inner = memory();
    let begun = Instant::now();
    let store = FaultyStore::new(&inner, move |_, op| match op {
        Op::Extend(_) => Behavior::LoseReply,
        Op::Release(_) if begun.elapsed() < 1000 * MS => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let client = client_in_paused_time(store)
        .call_timeout(100 * MS)
        .watchdog_lease(400 * MS)
        .connect()
        .await
        .expect("open");
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    guard.extend_to(60_000 * MS).await.expect_err("there is no answer");
    drop(guard);
    let other = client_in_paused_time(inner).connect().await.expect("it connects");
    let mutex = other.mutex("m").expect("a good name").lease(1000 * MS);
    drop(mutex.acquire_timeout(SOON).await.expect("not after a minute"));
}

/// The guard is valid from when the request was sent that the grant answers. The store counts from the grant.
#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_for_as_long_as_the_store_may_keep_its_hold() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if down.load(Ordering::SeqCst) => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let suspended_us = Arc::new(AtomicU64::new(0));
    let machine = SuspendableMachine { booted: Instant::now(), suspended_us: suspended_us.clone() };
    let other = store.healthy_client().await;
    let builder = Client::with_store(store).environment(machine).call_timeout(500 * MS);
    let client = builder.connect().await.expect("open");
    let theirs = other.mutex("m").expect("a good name");
    let guard = theirs.acquire().await.expect("acquired");
    let ours = client.mutex("m").expect("a good name");
    let waiter = tokio::spawn(async move { ours.acquire().await });
    until_waiting(&theirs, 1).await;
    // The waiter sends nothing meanwhile.
    suspended_us.store(1_500_000, Ordering::SeqCst);
    guard.release().await.expect("released");
    let granted = Instant::now();
    let guard = waiter.await.expect("no panic").expect("granted");
    assert!(guard.remaining() < 1600 * MS, "it counts from the request: {:?}", guard.remaining());
    is_down.store(true, Ordering::SeqCst);
    drop(guard);
    sleep(1700 * MS).await;
    is_down.store(false, Ordering::SeqCst);
    drop(theirs.acquire_timeout(SOON).await.expect("acquired"));
    assert!(granted.elapsed() < 2900 * MS, "released, and not left to its lease: {:?}", granted.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_hold_lost_gives_the_signal() {
    let now_us = Arc::new(AtomicU64::new(1_000_000));
    let clock = now_us.clone();
    let store = MemoryStore::with_clock(move || clock.load(Ordering::SeqCst));
    let client = client_in_paused_time(store.clone()).connect().await.expect("it connects");
    let other = client_in_paused_time(store).connect().await.expect("it connects");
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let lost = guard.lost_signal();
    now_us.fetch_add(3_600_000_000, Ordering::SeqCst);
    let taken_over = other.mutex("m").expect("a good name").acquire().await.expect("the lease has ended");
    guard.release().await.expect_err("another client holds the lock");
    timeout(SOON, lost.cancelled()).await.expect("a task that continues is notified");
    taken_over.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_swallowed_release_of_a_dropped_guard_is_sent_again_within_the_call_timeout() {
    let memory = memory();
    let first = once();
    let store = FaultyStore::new(&memory, move |_, op| {
        if matches!(op, Op::Release(_)) && first() { Behavior::LoseRequest } else { Behavior::Execute }
    });
    let client = client_in_paused_time(store).call_timeout(200 * MS).connect().await.expect("it connects");
    drop(client.mutex("m").expect("a good name").acquire().await.expect("acquired"));
    timeout(SOON, client.flush()).await.expect("before the watchdog's lease ends");
    let status = client.mutex("m").expect("a good name").inspect().await.expect("an answer");
    assert!(!status.held, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_about_a_lost_hold_after_its_release() {
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let store = FaultyStore::new(&memory(), move |_, op| match op {
        Op::Extend(_) => Behavior::NotHeld,
        Op::Inspect(_) => {
            count.fetch_add(1, Ordering::SeqCst);
            Behavior::Fail
        }
        _ => Behavior::Execute,
    });
    let client = store.client(150 * MS).await;
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    while requests.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    guard.release().await.expect("the store has it still");
    let before = requests.load(Ordering::SeqCst);
    sleep(400 * MS).await;
    assert_eq!(requests.load(Ordering::SeqCst), before);
}

#[tokio::test(start_paused = true)]
async fn a_capped_hold_is_lost_before_its_release_is_sent() {
    let signal: Arc<OnceLock<CancellationToken>> = Arc::default();
    let (seen, sent) = (signal.clone(), Arc::new(AtomicU32::new(0)));
    let early = sent.clone();
    let store = FaultyStore::new(&memory(), move |_, op| {
        if matches!(op, Op::Release(_)) {
            let lost = seen.get().is_some_and(CancellationToken::is_cancelled);
            early.fetch_add(if lost { 1 } else { 1000 }, Ordering::SeqCst);
        }
        Behavior::Execute
    });
    let client = store.client(30_000 * MS).await;
    let guard = client.mutex("m").expect("a good name").max_hold(100 * MS).acquire().await.expect("acquired");
    signal.set(guard.lost_signal()).expect("set once");
    guard.lost().await;
    client.flush().await;
    assert_eq!(sent.load(Ordering::SeqCst), 1, "released once, and after it was lost");
    drop(guard);
    client.flush().await;
    assert_eq!(sent.load(Ordering::SeqCst), 1, "the keeper has done it already");
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_capped_hold_ends_within_a_call_and_nothing_is_sent_after_it() {
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    let store = FaultyStore::new(&memory(), move |_, op| match op {
        Op::Release(_) => {
            count.fetch_add(1, Ordering::SeqCst);
            Behavior::Fail
        }
        _ => Behavior::Execute,
    });
    let client = client_in_paused_time(store).call_timeout(300 * MS).connect().await.expect("it connects");
    let guard = client.mutex("m").expect("a good name").max_hold(100 * MS).acquire().await.expect("acquired");
    assert_eq!(guard.lost().await.reason, LostReason::Capped);
    let start = Instant::now();
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    assert!(start.elapsed() < 2 * 300 * MS, "{:?}", start.elapsed());
    let before = sent.load(Ordering::SeqCst);
    assert!(before > 1, "it was sent again");
    sleep(600 * MS).await;
    assert_eq!(sent.load(Ordering::SeqCst), before);
}

/// A write, the read under it, and a write that was downgraded are released by the keeper if the store did not reply at
/// the time and no caller tries again.
#[tokio::test(start_paused = true)]
async fn the_keeper_repeats_failed_releases_of_a_writer() {
    for (failing, downgraded, left) in [
        // The first release is that of the write: its caller receives the error, and drops it.
        (1, false, vec![]),
        (2, false, vec![]),
        (1, true, vec![LockMode::Read]),
        (2, true, vec![LockMode::Read]),
    ] {
        let environment = PausedTime(Instant::now());
        let (inner, seen) =
            (MemoryStore::with_clock(move || environment.now().as_micros()), AtomicU32::new(0));
        let is_down = Arc::new(AtomicBool::new(true));
        let down = is_down.clone();
        let store = FaultyStore::new(&inner, move |_, op| match op {
            Op::Release(_) if seen.fetch_add(1, Ordering::SeqCst) + 1 >= failing => {
                if down.load(Ordering::SeqCst) { Behavior::Fail } else { Behavior::Execute }
            }
            _ => Behavior::Execute,
        });
        let client = Client::with_store(store)
            .environment(environment)
            .call_timeout(200 * MS)
            .watchdog_lease(60_000 * MS);
        let client = client.connect().await.expect("it connects");
        let rwlock = client.rwlock("r").expect("a good name");
        let reading = rwlock.upgradable_read().await.expect("acquired");
        let writing = reading.upgrade().await.expect("there is no other reader");
        // By then both have been extended.
        sleep(1_000 * MS).await;
        let mut read = None;
        if downgraded {
            read = Some(writing.downgrade().await.expect("the read is still held"));
        } else {
            assert_eq!(writing.release().await.is_err(), failing == 1);
        }
        is_down.store(false, Ordering::SeqCst);
        sleep(3_000 * MS).await;
        let there = rwlock.inspect().await.expect("an answer").shared_holders;
        let there: Vec<_> = there.iter().map(|sharer| sharer.mode).collect();
        assert_eq!(there, left, "{failing}, {downgraded}");
        drop(read);
    }
}

/// A dropped guard is released in the background: its client does not find it in its own way.
#[tokio::test(start_paused = true)]
async fn a_request_that_a_release_of_its_own_client_forbids_waits_for_that() {
    let store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Release(_) => Behavior::ExecuteAfter(100 * MS),
        _ => Behavior::Execute,
    });
    let client = store.client(30_000 * MS).await;
    let lease = 60_000 * MS;
    let rwlock = client.rwlock("rw").expect("a good name").lease(lease).owned_by(&client.new_owner());
    drop(rwlock.read().await.expect("acquired"));
    let hold = rwlock.write_detached().await.expect("its owner reads no more");
    hold.release(&client).await.expect("released");
    drop(rwlock.read().await.expect("acquired"));
    drop(rwlock.write().await.expect("its owner reads no more"));
    drop(rwlock.try_write().await.expect("an answer").granted().expect("its owner writes no more"));
    drop(rwlock.upgradable_read().await.expect("its owner writes no more"));
    // Each number is that of all clients until the last permit is released.
    let semaphore = |permits| client.semaphore("s", permits).expect("a good name").lease(lease);
    drop(semaphore(2).acquire().await.expect("acquired"));
    drop(semaphore(3).acquire().await.expect("no client uses the other number any more"));
    drop(semaphore(4).try_acquire().await.expect("an answer").granted().expect("acquired"));
    let hold = semaphore(5).acquire_detached(1).await.expect("acquired");
    hold.release(&client).await.expect("released");
    drop(semaphore(6).acquire().await.expect("acquired"));
    let hold = semaphore(7).try_acquire_detached(1).await.expect("an answer").granted().expect("acquired");
    // What another client holds is not awaited.
    let start = Instant::now();
    assert!(semaphore(8).acquire().await.is_err() && start.elapsed() < 50 * MS);
    hold.release(&client).await.expect("released");
}

/// A store whose RwLock has as many readers as it lists, however many are released by force.
#[derive(Debug, Clone, Default)]
struct EndlessReaders {
    inner: MemoryStore,
    /// How many lists it has returned.
    lists: Arc<AtomicU64>,
}

impl Store for EndlessReaders {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        match op {
            Op::ForceRelease(_) => {
                Box::pin(async { Outcome::Done(Reply::ForceRelease(ForceReleased::Released)) })
            }
            Op::Inspect(_) => Box::pin(async move {
                let list = self.lists.fetch_add(1, Ordering::SeqCst);
                assert!(list < 1000, "there are always more");
                let mut outcome = self.inner.execute(lock, op, within).await;
                if let Outcome::Done(Reply::Inspect(inspection)) = &mut outcome {
                    inspection.shared_holders = (0..4096).map(|n| reader(list * 4096 + n)).collect();
                }
                outcome
            }),
            _ => self.inner.execute(lock, op, within),
        }
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

fn reader(n: u64) -> Holder {
    Holder {
        label: leasehold::Label::new("another client").ok(),
        owner: None,
        count: 1,
        remaining_ms: Some(1_000),
        fence: Some(FencingToken::new(n + 1)),
        since_ms: None,
        session: None,
        mode: LockMode::Read,
        in_cooldown: false,
    }
}

#[tokio::test]
async fn a_forced_release_of_all_ends_though_there_are_always_more() {
    let store = EndlessReaders::default();
    let client = Client::with_store(store.clone()).connect().await.expect("it connects");
    let rwlock = client.rwlock("rw").expect("a good name");
    let ended = rwlock.force_release_readers().await.expect("released");
    assert_eq!(ended, store.lists.load(Ordering::SeqCst) * 4096);
    // A list of readers alone does not say whether there is a writer.
    assert!(!rwlock.force_release_writer().await.expect("an answer"));
}

/// Permits whose return has no answer count as returned, since other clients may have them; the next call returns them if they
/// are not. A call that was not executed leaves them.
#[tokio::test(start_paused = true)]
async fn permits_whose_return_is_not_known_are_not_counted_and_returned_once() {
    for (behavior, held) in [(Behavior::LoseReply, 2), (Behavior::LoseRequest, 8)] {
        let memory = memory();
        let is_down = Arc::new(AtomicBool::new(true));
        let down = is_down.clone();
        let store = FaultyStore::new(&memory, move |_, op| match op {
            Op::Release(_) if down.load(Ordering::SeqCst) => behavior,
            _ => Behavior::Execute,
        });
        let client = store.client_with_timeout(100 * MS).await;
        let semaphore = client.semaphore("s", 8).expect("a good name");
        let mut permit = semaphore.acquire_many(8).await.expect("free");
        let returned = permit.return_permits(6).await;
        assert!(matches!(returned, Err(ReturnPermitsError::Unknown(_))), "{returned:?}");
        assert_eq!(permit.count(), 2);
        assert_eq!(semaphore.available_permits().await.expect("an answer"), 8 - held);
        // A smaller number does not claim them back.
        is_down.store(false, Ordering::SeqCst);
        permit.return_permits(1).await.expect("returned");
        assert_eq!(permit.count(), 1);
        assert_eq!(semaphore.available_permits().await.expect("an answer"), 7);
        permit.release().await.expect("released");

        // A dropped future is as one without an answer, and a call of none repeats it.
        is_down.store(true, Ordering::SeqCst);
        let mut permit = semaphore.acquire_many(8).await.expect("free");
        timeout(50 * MS, permit.return_permits(5)).await.expect_err("it waits for the reply");
        assert_eq!(permit.count(), 3);
        is_down.store(false, Ordering::SeqCst);
        permit.return_permits(0).await.expect("returned");
        assert_eq!((permit.count(), semaphore.available_permits().await.expect("an answer")), (3, 5));
        permit.release().await.expect("released");
    }
}
