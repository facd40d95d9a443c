//! Shutdowns of clients over a store with injected faults.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON, once};
use leasehold::LostReason;
use leasehold::error::{AcquireError, ExtendError, ReleaseError};
use leasehold::store::Op;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Counts the operations sent about holds.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU32>);

impl Sent {
    fn note(&self, op: &Op) {
        if !matches!(op, Op::Inspect(_)) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Fails if anything is sent from now on.
    async fn assert_silent(&self) {
        let before = self.0.load(Ordering::SeqCst);
        sleep(400 * MS).await;
        assert_eq!(self.0.load(Ordering::SeqCst), before, "sent after the shutdown");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_invalidates_all_guards_before_it_releases_anything() {
    let signals: Arc<OnceLock<Vec<CancellationToken>>> = Arc::default();
    let (seen, early) = (signals.clone(), Arc::new(AtomicU32::new(0)));
    let (count, sent) = (early.clone(), Sent::default());
    let noted = sent.clone();
    let store = FaultyStore::new(&memory(), move |_, op| {
        noted.note(op);
        let all_lost = seen.get().is_some_and(|all| all.iter().all(CancellationToken::is_cancelled));
        if matches!(op, Op::Release(_)) && !all_lost {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Behavior::Execute
    });
    let client = store.client(300 * MS).await;
    let mut guards = Vec::new();
    for n in 0..8 {
        guards.push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    let all = guards.iter().map(leasehold::Guard::lost_signal).collect();
    signals.set(all).expect("set once");
    client.shutdown(SOON).await.expect("the store answers");
    assert_eq!(early.load(Ordering::SeqCst), 0, "released before its loss was signalled");
    drop(guards);
    sent.assert_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_a_silent_store_ends_in_time_and_reports_what_is_left() {
    let silent = Arc::new(AtomicU32::new(0));
    let (is_silent, sent) = (silent.clone(), Sent::default());
    let noted = sent.clone();
    let store = FaultyStore::new(&memory(), move |_, op| {
        noted.note(op);
        if is_silent.load(Ordering::SeqCst) == 0 { Behavior::Execute } else { Behavior::LoseRequest }
    });
    let client = store.client(30_000 * MS).await;
    let mutex = |name: &str| client.mutex(name).expect("a good name");
    let guard = mutex("a").acquire().await.expect("acquired");
    guard.extend_to(60_000 * MS).await.expect("extended");
    // With a value of its own, since otherwise it would be handed off to the waiter below.
    let released = mutex("b").value("own").expect("a good value").acquire().await.expect("acquired");
    let extended = mutex("c").acquire().await.expect("acquired");
    silent.store(1, Ordering::SeqCst);
    let waits = mutex("d");
    let waits = tokio::spawn(async move { waits.acquire().await.map(drop) });
    let releases = tokio::spawn(async move { released.release().await });
    let extends = tokio::spawn(async move { extended.extend().await });
    drop(mutex("b").acquire_timeout(MS).await.map(drop));
    let start = Instant::now();
    let left = client.shutdown(300 * MS).await.expect_err("the store does not answer");
    assert!(start.elapsed() >= 300 * MS && start.elapsed() < 1500 * MS, "{:?}", start.elapsed());
    let names: Vec<_> = left.unreleased.iter().map(|left| left.lock.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let lasts = left.unreleased[0].until.since(client.now());
    assert!(lasts > 58_000 * MS && lasts < 64_000 * MS, "{lasts:?}");
    assert!(left.to_string().contains("`a`, `b`, `c`, `d`"), "{left}");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let released = releases.await.expect("no panic");
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ShutDown))), "{released:?}");
    let extended = extends.await.expect("no panic");
    assert!(matches!(extended, Err(ExtendError::Lost(_))), "{extended:?}");
    silent.store(0, Ordering::SeqCst);
    assert!(guard.check().is_err());
    drop(guard);
    assert_eq!(client.shutdown(SOON).await.expect_err("the same again").unreleased, left.unreleased);
    sent.assert_silent().await;
}

/// It has no place in the queue, so nothing is granted to it later.
#[tokio::test(start_paused = true)]
async fn a_single_try_that_a_shutdown_leaves_is_reported_for_a_first_lease_only() {
    let store = FaultyStore::new(&memory(), |_, _| Behavior::LoseRequest);
    let client = store.client(30_000 * MS).await;
    let tried = client.mutex("m").expect("a good name").try_acquire().await;
    assert!(matches!(tried, Err(AcquireError::Unknown(_))), "{tried:?}");
    let left = client.shutdown(300 * MS).await.expect_err("the store does not answer");
    let lasts = left.unreleased[0].until.since(client.now());
    assert!(lasts < 10_000 * MS, "{lasts:?}");
}

/// It may be granted when its place in the queue expires, and then has no short first lease.
#[tokio::test(start_paused = true)]
async fn a_wait_at_a_barrier_that_a_shutdown_leaves_is_reported_for_its_whole_lease() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = is_silent.clone();
    let store = FaultyStore::new(&memory(), move |_, _| {
        if silent.load(Ordering::SeqCst) { Behavior::LoseRequest } else { Behavior::Execute }
    });
    let client = store.client(30_000 * MS).await;
    let barrier = client.barrier("b", 2).expect("a good name");
    let waits = tokio::spawn(async move { barrier.wait().await });
    sleep(500 * MS).await;
    is_silent.store(true, Ordering::SeqCst);
    let left = client.shutdown(300 * MS).await.expect_err("the store does not answer");
    let lasts = left.unreleased[0].until.since(client.now());
    // A pass of 60 s, a place in the queue of up to 21 s, and a call of 2 s that may be in flight.
    assert!(lasts >= 83_000 * MS && lasts < 90_000 * MS, "{lasts:?}");
    waits.await.expect("no panic").expect_err("the client is closed");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_over_a_release_and_its_acquire_request() {
    let inner = memory();
    let first = once();
    let store = FaultyStore::new(&inner, move |_, op| match op {
        Op::Release(_) if first() => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let delayed = store.delayed.clone();
    let client = store.client(30_000 * MS).await;
    // With a value of its own, since otherwise it would be handed off without a release.
    let mutex = client.mutex("m").expect("a good name").value("own").expect("a good value");
    let guard = mutex.acquire().await.expect("acquired");
    let waits = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await.map(drop) }
    });
    sleep(20 * MS).await;
    let lost = guard.lost_signal();
    let releases = tokio::spawn(async move { guard.release().await });
    while delayed.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    client.shutdown(SOON).await.expect("the store answers");
    releases.await.expect("no panic").expect("the hold was released");
    assert!(!lost.is_cancelled(), "it was released, not lost");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let status = mutex.inspect().await.expect("an answer");
    assert!(!status.held && status.waiting == 0, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_grant_to_a_client_that_shuts_down_goes_to_the_next() {
    let inner = memory();
    let other = client_in_paused_time(inner.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    // Its reply is lost: the queue entry exists, and the client does not know.
    let store = FaultyStore::new(&inner, |_, op| {
        if matches!(op, Op::Acquire(_)) { Behavior::LoseReply } else { Behavior::Execute }
    });
    let client = store.client(30_000 * MS).await;
    let ours = client.mutex("m").expect("a good name");
    let waits = tokio::spawn(async move { ours.acquire().await.map(drop) });
    while others.inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    let next = tokio::spawn(async move { others.acquire().await.expect("acquired") });
    sleep(20 * MS).await;
    let (released, shut) = tokio::join!(held.release(), client.shutdown(SOON));
    released.expect("released");
    shut.expect("the store answers");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let next = timeout(500 * MS, next).await.expect("no abandoned hold is left");
    next.expect("no panic").release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_tries_again_what_failed_and_does_what_was_dropped() {
    let inner = memory();
    let failed = AtomicU32::new(0);
    let store = FaultyStore::new(&inner, move |_, op| match op {
        Op::Release(_) if failed.fetch_add(1, Ordering::SeqCst) < 12 => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let client = store.client(30_000 * MS).await;
    let mutex = |n: u32| client.mutex(format!("m{n}")).expect("a good name");
    let mut guards = Vec::new();
    for n in 0..4 {
        guards.push(mutex(n).acquire().await.expect("acquired"));
    }
    drop(guards.pop());
    client.shutdown(SOON).await.expect("at a later try");
    for n in 0..4 {
        assert!(!mutex(n).inspect().await.expect("an answer").held, "{n}");
    }
}
