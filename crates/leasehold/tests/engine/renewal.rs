//! When holds are renewed, and the effect of a failed renewal.

use crate::environment::{PausedTime, client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, once};
use crate::fixture::mutex;
use futures_util::future::BoxFuture;
use leasehold::inspect::SessionId;
use leasehold::store::Environment;
use leasehold::store::{Fault, Lock, MemoryStore, NotificationSink, Op, Outcome, Store};
use leasehold::{Client, Guard, LostReason};
use leasehold_core::KeyError;
use leasehold_core::Partition;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio::time::{sleep, timeout};

const S: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_repeated_while_another_of_its_batch_is_inspected() {
    let first = once();
    let store = FaultyStore::new(&memory(), move |lock, op| match op {
        Op::Extend(_) if lock.name.as_str() == "gone" => Behavior::NotHeld,
        Op::Extend(_) if first() => Behavior::Fail,
        Op::Inspect(_) => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    let client = store.client(600 * MS).await;
    let gone = client.mutex("gone").expect("a good name").acquire().await.expect("acquired");
    let kept = client.mutex("kept").expect("a good name").acquire().await.expect("acquired");
    sleep(900 * MS).await;
    assert!(gone.check().is_err());
    kept.check().expect("renewed at the second try");
    kept.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_long_extend_by_the_user_keeps_the_record_beside_the_lock() {
    let now_us = Arc::new(AtomicU64::new(1_762_000_000_000_000));
    let clock = now_us.clone();
    let store = MemoryStore::with_clock(move || clock.load(Ordering::SeqCst));
    let client = client_in_paused_time(store).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name").value("mine").expect("a good value");
    let guard = mutex.lease(60_000 * MS).acquire().await.expect("acquired");
    let hours = |n: u64| Duration::from_secs(n * 3600);
    guard.extend_to(hours(3)).await.expect("extended");
    now_us.fetch_add(7_200_000_000, Ordering::SeqCst);
    guard.extend_to(hours(3)).await.expect("held for another hour, and known as ours");
    guard.release().await.expect("released");
}

/// A store that counts batches of extends, and replies to each after a millisecond.
#[derive(Debug, Clone)]
struct Counted {
    inner: MemoryStore,
    sizes: Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Counted {
    fn new(environment: PausedTime) -> Self {
        let now_us = move || environment.now().as_micros();
        Self { inner: MemoryStore::with_clock(now_us), sizes: Arc::default() }
    }

    fn take_sizes(&self) -> Vec<usize> {
        std::mem::take(&mut self.sizes.lock().expect("no task panics with the mutex locked"))
    }

    async fn holding(
        &self,
        environment: PausedTime,
        watchdog: Duration,
        locks: u32,
        over: Duration,
    ) -> Vec<leasehold::Guard> {
        let client =
            Client::with_store(self.clone()).environment(environment).watchdog_lease(watchdog).connect();
        let client = client.await.expect("it connects");
        let mut guards = Vec::new();
        for n in 0..locks {
            guards
                .push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
            sleep(over / locks).await;
        }
        guards
    }
}

impl Store for Counted {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        self.inner.execute(lock, op, within)
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        self.sizes.lock().expect("no task panics with the mutex locked").push(ops.len());
        Box::pin(async move {
            sleep(MS).await;
            let all = ops.iter().map(|(lock, op)| self.inner.execute(lock, op, within));
            futures_util::future::join_all(all).await
        })
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

/// When the keeper wakes for one hold, it takes those due soon after into the same batch.
#[tokio::test(start_paused = true)]
async fn many_holds_are_renewed_in_few_batches() {
    let environment = PausedTime(Instant::now());
    let store = Counted::new(environment);
    let guards = store.holding(environment, 30_000 * MS, 1000, 10_000 * MS).await;
    sleep(15_000 * MS).await;
    store.take_sizes();
    sleep(60_000 * MS).await;
    let sizes = store.take_sizes();
    assert!(guards.iter().all(|guard| guard.remaining() > 19_000 * MS), "renewed after a third of the lease");
    assert!(sizes.len() <= 60 * 5, "{} batches in a minute", sizes.len());
    let extends: usize = sizes.iter().sum();
    assert!((6000..6150).contains(&extends), "{extends} extends, where 6000 are due");
}

#[tokio::test(start_paused = true)]
async fn holds_that_are_due_at_once_are_renewed_one_batch_after_the_other() {
    let environment = PausedTime(Instant::now());
    let store = Counted::new(environment);
    let guards = store.holding(environment, 30_000 * MS, 1000, Duration::ZERO).await;
    sleep(15_000 * MS).await;
    store.take_sizes();
    sleep(30_000 * MS).await;
    let sizes = store.take_sizes();
    assert_eq!(sizes.len(), 3 * 4, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 256), "{sizes:?}");
    assert!(guards.iter().all(|guard| guard.remaining() > 19_000 * MS));
}

#[tokio::test(start_paused = true)]
async fn short_leases_are_renewed_in_time_and_not_all_the_time() {
    for lease_ms in [9, 30, 300, 2000] {
        let environment = PausedTime(Instant::now());
        let store = Counted::new(environment);
        let lease = Duration::from_millis(lease_ms);
        let guards = store.holding(environment, lease, 20, Duration::ZERO).await;
        sleep(4000 * MS).await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lease of {lease:?}");
        let extends = store.take_sizes().iter().sum::<usize>() as u64;
        // Every third of the lease, minus the lateness of timers.
        let due = 20 * 4000 / (lease_ms / 3 - 2);
        assert!(extends <= due, "{extends} extends of {lease:?}, where {due} are due");
    }
}

/// The first lease alone would end in it.
#[tokio::test(start_paused = true)]
async fn a_hold_outlives_an_outage_that_begins_soon_after_the_grant() {
    let is_out = Arc::new(AtomicBool::new(false));
    let out = is_out.clone();
    let store = FaultyStore::with_sessions(move |_, _| {
        if out.load(Ordering::SeqCst) { Behavior::Fail } else { Behavior::Execute }
    });
    let heartbeats_fail = store.heartbeats_fail.clone();
    let client = store.client_with_timeout(2000 * MS).await;
    let watchdog = mutex(&client, "watchdog").acquire().await.expect("acquired");
    let leased = mutex(&client, "leased").lease(Duration::from_secs(60)).acquire().await.expect("acquired");
    sleep(200 * MS).await;
    for outage in [&is_out, &heartbeats_fail] {
        outage.store(true, Ordering::SeqCst);
    }
    sleep(4000 * MS).await;
    for outage in [&is_out, &heartbeats_fail] {
        outage.store(false, Ordering::SeqCst);
    }
    sleep(4000 * MS).await;
    for guard in [watchdog, leased] {
        guard.check().expect("held all the time");
        guard.release().await.expect("released");
    }
}

/// Whether the holder is warned within that time.
async fn is_warned(guard: &Guard, left: Duration, within: Duration) -> bool {
    timeout(within, guard.warn_before(left)).await.is_ok_and(|warned| warned.is_ok())
}

/// A store that keeps sessions or not, and from which no extend gets an answer once the flag is set.
fn muted(keeps_sessions: bool) -> (FaultyStore, Arc<AtomicBool>) {
    let is_mute = Arc::new(AtomicBool::new(false));
    let mute = is_mute.clone();
    let store = FaultyStore::new(&memory(), move |_, op| match op {
        Op::Extend(_) if mute.load(Ordering::SeqCst) => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    (FaultyStore { keeps_sessions, ..store }, is_mute)
}

/// Each hold begins with a lease of 3 s at most.
#[tokio::test(start_paused = true)]
async fn a_new_hold_does_not_warn_before_its_first_extension_is_due() {
    let (store, _) = muted(false);
    let client = store.client(60 * S).await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    assert!(!is_warned(&guard, 20 * S, 300 * S).await, "a watchdog renews it");
    guard.release().await.expect("released");
    let guard = mutex.clone().lease(60 * S).acquire().await.expect("acquired");
    assert!(!is_warned(&guard, 20 * S, 38 * S).await, "its lease ends in a minute");
    assert!(is_warned(&guard, 20 * S, 2 * S).await);
    assert!(guard.remaining() > 19 * S && guard.remaining() < 20 * S, "{:?}", guard.remaining());
    guard.release().await.expect("released");
    // What a cap leaves is known from the start.
    let guard = mutex.max_hold(100 * S).acquire().await.expect("acquired");
    assert!(!is_warned(&guard, 50 * S, 49 * S).await);
    assert!(is_warned(&guard, 50 * S, 2 * S).await);
}

/// A session lives for 10 s without a heartbeat, and its holds no longer.
#[tokio::test(start_paused = true)]
async fn a_healthy_hold_does_not_warn_because_its_session_is_shorter() {
    let (store, is_mute) = muted(true);
    let heartbeats_fail = store.heartbeats_fail.clone();
    let client = store.client(60 * S).await;
    let mutex = client.mutex("m").expect("a good name");
    for mutex in [mutex.clone(), mutex.clone().lease(600 * S)] {
        let guard = mutex.acquire().await.expect("acquired");
        assert!(guard.remaining() < 10 * S);
        assert!(!is_warned(&guard, 20 * S, 300 * S).await);
        guard.release().await.expect("released");
    }
    // The known end of a lease is not cut to what the session has left.
    let guard = mutex.clone().lease(60 * S).acquire().await.expect("acquired");
    assert!(!is_warned(&guard, 20 * S, 38 * S).await);
    assert!(is_warned(&guard, 20 * S, 2 * S).await);
    guard.release().await.expect("released");
    // No heartbeat succeeds any more: there is half of the session's time for what is left to do.
    let guard = mutex.acquire().await.expect("acquired");
    sleep(30 * S).await;
    heartbeats_fail.store(true, Ordering::SeqCst);
    assert!(is_warned(&guard, 20 * S, 10 * S).await);
    assert!(guard.remaining() > 4 * S && guard.remaining() < 5 * S, "{:?}", guard.remaining());
    // And it is not too late yet.
    heartbeats_fail.store(false, Ordering::SeqCst);
    is_mute.store(true, Ordering::SeqCst);
    assert!(is_warned(&guard, 3 * S, 60 * S).await, "the lease ends first");
    assert!(guard.remaining() < 3 * S && guard.remaining() > 2 * S, "{:?}", guard.remaining());
    let lost = timeout(10 * S, guard.warn_before(Duration::ZERO)).await.expect("it ends").expect_err("lost");
    assert_eq!(lost.reason, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_holder_is_warned_when_the_store_stops_answering() {
    // After the acquire, within its first lease, and later.
    for (after, left, soonest) in [(0, 20, 1), (15, 5, 4), (15, 25, 14), (100, 10, 9)] {
        let (store, is_mute) = muted(false);
        let client = store.client(30 * S).await;
        let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
        sleep(after * S).await;
        is_mute.store(true, Ordering::SeqCst);
        assert!(is_warned(&guard, left * S, 40 * S).await);
        let remaining = guard.remaining();
        assert!(remaining > soonest * S && remaining < (soonest + 1) * S, "{remaining:?} of {left}");
        is_mute.store(false, Ordering::SeqCst);
        while guard.remaining() < 29 * S {
            sleep(MS).await;
            guard.check().expect("it is not too late");
        }
        assert!(!is_warned(&guard, left * S, 60 * S).await, "it is renewed again");
    }
}
