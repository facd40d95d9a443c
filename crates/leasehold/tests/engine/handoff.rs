//! A hold that its process keeps, for the next local waiter or for later tasks, and that no task uses.

use crate::environment::PausedTime;
use crate::faulty_store::{Behavior, FaultyStore, MS, once};
use leasehold::store::Environment;
use leasehold::store::{MemoryStore, Op};
use leasehold::{Client, Mutex, RetryPolicy};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(600);

/// Two clients of one store in paused time; the first one's store has injected faults.
struct Pair {
    faulty: Client,
    other: Client,
}

impl Pair {
    async fn new(rule: impl Fn(&Op) -> Behavior + Send + Sync + 'static) -> Self {
        Self::with_watchdog(LONG, rule).await
    }

    async fn with_watchdog(lease: Duration, rule: impl Fn(&Op) -> Behavior + Send + Sync + 'static) -> Self {
        let environment = PausedTime(Instant::now());
        let memory = MemoryStore::with_clock(move || environment.now().as_micros());
        let faulty = FaultyStore::new(&memory, move |_, op| rule(op));
        let faulty =
            Client::with_store(faulty).environment(environment).call_timeout(200 * MS).watchdog_lease(lease);
        let other = Client::with_store(memory).environment(environment).connect().await.expect("it connects");
        Self { faulty: faulty.connect().await.expect("it connects"), other }
    }

    fn mutex(&self) -> Mutex {
        self.faulty.mutex("m").expect("a good name")
    }

    async fn is_held(&self) -> bool {
        self.other.mutex("m").expect("a good name").inspect().await.expect("an answer").held
    }
}

async fn use_once(mutex: &Mutex) {
    mutex.acquire().await.expect("acquired").release().await.expect("released");
}

/// The first waiter cannot use the kept hold, so releases it, without a reply: only the keeper can retry.
#[tokio::test(start_paused = true)]
async fn the_keeper_repeats_an_unanswered_release_of_the_front_task() {
    let first = once();
    let pair = Pair::new(move |op| match op {
        Op::Release(_) if first() => Behavior::LoseRequest,
        _ => Behavior::Execute,
    })
    .await;
    let kept = pair.mutex().sticky(LONG);
    use_once(&kept).await;
    // By then the hold has been extended.
    sleep(LONG / 100).await;
    let own = pair.mutex().value("a value of one's own").expect("a good value");
    let guard = timeout(LONG / 10, own.acquire()).await.expect("before the lease ends");
    guard.expect("acquired").release().await.expect("released");
}

/// A polling task cannot use the kept hold, whose renewal has no reply yet. It waits for that no longer than its limit.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_releases_a_kept_hold_ends_at_its_limit() {
    let pair = Pair::with_watchdog(3_000 * MS, move |op| match op {
        Op::Extend(extend) if extend.reserve.is_none() => Behavior::ExecuteAfter(150 * MS),
        _ => Behavior::Execute,
    })
    .await;
    let kept = pair.mutex().sticky(LONG);
    let guard = kept.acquire().await.expect("acquired");
    sleep(700 * MS).await;
    guard.release().await.expect("kept");
    // Its first renewal goes a second after the acquire.
    sleep(295 * MS).await;
    assert!(pair.is_held().await, "it is kept");
    let polling = pair.mutex().retry(RetryPolicy::constant(5 * MS)).max_wait(20 * MS);
    let begun = Instant::now();
    polling.acquire().await.expect_err("the renewal has no reply");
    assert_eq!(begun.elapsed(), 20 * MS);
    let acquired = timeout(LONG / 10, pair.mutex().acquire()).await;
    let guard = acquired.expect("the keeper released the kept hold");
    guard.expect("acquired").release().await.expect("released");
}

/// The kept hold is used again after the keeper has scheduled its wake-up.
#[tokio::test(start_paused = true)]
async fn a_sticky_hold_is_kept_from_its_last_use_on() {
    let pair = Pair::new(|_| Behavior::Execute).await;
    let kept = pair.mutex().sticky(700 * MS);
    let guard = kept.acquire().await.expect("acquired");
    // The hold has been extended, and nothing else wakes the keeper for some time.
    sleep(LONG / 100).await;
    guard.release().await.expect("released");
    sleep(400 * MS).await;
    use_once(&kept).await;
    sleep(650 * MS).await;
    assert!(pair.is_held().await, "it is kept from the last use on");
    sleep(100 * MS).await;
    assert!(!pair.is_held().await);
}

#[tokio::test(start_paused = true)]
async fn a_sticky_hold_is_kept_as_its_last_handle_asks() {
    let pair = Pair::new(|_| Behavior::Execute).await;
    let (long, brief) = (pair.mutex().sticky(LONG), pair.mutex().sticky(1_000 * MS));
    use_once(&long).await;
    use_once(&brief).await;
    sleep(900 * MS).await;
    assert!(pair.is_held().await);
    sleep(200 * MS).await;
    assert!(!pair.is_held().await);
}

/// A task with a sticky handle held the lock earlier: the keeper was scheduled for that.
#[tokio::test(start_paused = true)]
async fn a_hold_kept_for_a_waiter_that_leaves_is_released() {
    for sticky in [None, Some(LONG)] {
        let pair = Pair::new(|_| Behavior::Execute).await;
        let first = pair.mutex().sticky(LONG / 2);
        use_once(&first).await;
        let last = sticky.map_or(pair.mutex(), |keep_for| pair.mutex().sticky(keep_for));
        let (guard, next) = (last.acquire().await.expect("acquired"), pair.mutex());
        {
            let mut next = pin!(next.acquire());
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            guard.release().await.expect("released");
        }
        sleep(100 * MS).await;
        assert_eq!(pair.is_held().await, sticky.is_some(), "kept only if the handle is sticky");
        sleep(LONG).await;
        assert!(!pair.is_held().await);
    }
}

/// The token block of a sticky handle was reserved while a plain handle held the lock, without a request to be
/// notified of waiters.
#[tokio::test(start_paused = true)]
async fn a_cached_hold_is_released_when_another_client_requests_the_lock() {
    let pair = Pair::new(|op| match op {
        Op::Extend(_) => Behavior::ExecuteAfter(20 * MS),
        _ => Behavior::Execute,
    })
    .await;
    let guard = pair.mutex().acquire().await.expect("acquired");
    let (plain, kept) = (pair.mutex(), pair.mutex().sticky(LONG));
    let other = pair.other.mutex("m").expect("a good name");
    // They queue in this order. When the last one acquires, more tokens are reserved on behalf of a plain handle,
    // which releases before they arrive.
    let (first, last) = (use_once(&plain), use_once(&kept));
    let ((), (), released) = tokio::join!(first, last, async { guard.release().await });
    released.expect("released");
    sleep(1_000 * MS).await;
    assert!(pair.is_held().await, "it is kept");
    let guard = other
        .acquire_timeout(1_000 * MS)
        .await
        .expect("the client that keeps the hold is notified of the waiter");
    guard.release().await.expect("released");
}

/// The same when the waiter for which the tokens were reserved leaves the queue after they have arrived.
#[tokio::test(start_paused = true)]
async fn a_hold_kept_for_a_waiter_that_leaves_is_released_on_request() {
    let pair = Pair::new(|_| Behavior::Execute).await;
    let (kept, plain) = (pair.mutex().sticky(LONG), pair.mutex());
    let other = pair.other.mutex("m").expect("a good name");
    let guard = pair.mutex().acquire().await.expect("acquired");
    {
        let (mut second, mut third) = (pin!(kept.acquire()), pin!(plain.acquire()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending());
        guard.release().await.expect("released");
        sleep(20 * MS).await;
        let Poll::Ready(second) = second.as_mut().poll(cx) else { panic!("it was handed off") };
        second.expect("acquired").release().await.expect("released");
        sleep(20 * MS).await;
    }
    let guard = other
        .acquire_timeout(1_000 * MS)
        .await
        .expect("the client that keeps the hold is notified of the waiter");
    guard.release().await.expect("released");
}
