//! Work that is done once per period.

use crate::cases::store::TestStore;
use leasehold::{Attempt, Client, DetachedHold, Mutex, OncePer, PeriodGuard};
use leasehold_testkit::cancel_at_every_await;
use std::time::{Duration, Instant};

on_every_store! {
    asynchronous:
    one_instance_runs_and_a_late_one_continues,
    a_finished_run_blocks_others_until_its_period_is_over,
    a_run_longer_than_its_period_blocks_no_other_after_it,
    an_abandoned_run_frees_its_period_at_once,
    a_finished_period_outlives_its_client,
    no_waiter_is_woken_early,
    no_late_request_about_the_hold_ends_or_lengthens_the_cooldown,
    a_cooldown_can_be_ended_by_force,
    try_start_cancelled_at_every_await,
    finish_cancelled_at_every_await,
    run_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(20);

fn once(client: &Client, period: Duration) -> OncePer {
    client.once_per("digest", period).expect("a good name")
}

fn mutex(client: &Client) -> Mutex {
    client.mutex("digest").expect("a good name")
}

async fn start(once: &OncePer) -> PeriodGuard {
    once.try_start().await.expect("an answer").granted().expect("it is its turn")
}

async fn is_taken(once: &OncePer) -> bool {
    matches!(once.try_start().await.expect("an answer"), Attempt::Taken(_))
}

async fn one_instance_runs_and_a_late_one_continues(store: &TestStore) {
    let mut instances = tokio::task::JoinSet::new();
    for n in 0..6 {
        let once = once(&store.client(&format!("instance {n}")).await, HOUR);
        instances.spawn(async move { once.run(async |_| n).await.expect("an answer") });
    }
    let ran: Vec<_> = instances.join_all().await.into_iter().flatten().collect();
    assert_eq!(ran.len(), 1, "{ran:?}");
    let late = once(&store.client("late").await, HOUR);
    assert_eq!(late.run(async |_| 7).await.expect("an answer"), None);
    let Attempt::Taken(contention) = late.try_start().await.expect("an answer") else { panic!("twice") };
    let text = contention.to_string();
    assert!(
        text.starts_with("in cooldown for ")
            && text.ends_with(&format!("s, released by instance {}", ran[0])),
        "{text}"
    );
    let status = late.inspect().await.expect("an answer");
    assert!(status.held && status.in_cooldown && status.session.is_none(), "{status:?}");
    assert!(status.remaining.is_some_and(|left| left <= HOUR && left > HOUR / 2), "{status:?}");
}

/// The period counts from when the run was granted, however long the work took.
async fn a_finished_run_blocks_others_until_its_period_is_over(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (once(&a, 1_500 * MS).max_duration(HOUR), once(&b, 1_500 * MS).max_duration(HOUR));
    let begun = Instant::now();
    let first = start(&a).await;
    let given = Instant::now();
    tokio::time::sleep(300 * MS).await;
    let fence = first.fencing_token();
    first.finish().await.expect("finished");
    let second = loop {
        match b.try_start().await.expect("an answer") {
            Attempt::Granted(turn) => break turn,
            Attempt::Taken(_) => assert!(given.elapsed() < LIMIT, "the cooldown never ends"),
        }
        tokio::time::sleep(10 * MS).await;
    };
    // The server's clock counts whole milliseconds.
    assert!(begun.elapsed() + 2 * MS >= 1_500 * MS, "too soon: {:?}", begun.elapsed());
    assert!(second.fencing_token() > fence);
    second.fail().await.expect("given up");
}

async fn a_run_longer_than_its_period_blocks_no_other_after_it(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let turn = start(&once(&a, 100 * MS).max_duration(HOUR)).await;
    tokio::time::sleep(150 * MS).await;
    assert!(is_taken(&once(&b, 100 * MS)).await, "the work goes on");
    turn.check().expect("its turn lasts");
    turn.finish().await.expect("finished");
    start(&once(&b, 100 * MS)).await.fail().await.expect("given up");
}

async fn an_abandoned_run_frees_its_period_at_once(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    start(&once(&a, HOUR)).await.fail().await.expect("given up");
    start(&once(&b, HOUR)).await.finish().await.expect("finished");
    assert!(is_taken(&once(&a, HOUR)).await);
}

/// The instance that runs disappears: no other instance runs before the period is over.
async fn a_finished_period_outlives_its_client(store: &TestStore) {
    let short = store.builder().label("short").session_ttl(Duration::from_secs(1)).connect().await;
    let short = short.expect("the store of a case can be reached");
    drop(start(&once(&short, HOUR)).await);
    short.shutdown(LIMIT).await.expect("nothing is left");
    drop(short);
    tokio::time::sleep(1_200 * MS).await;
    let other = once(&store.client("other").await, HOUR);
    assert!(is_taken(&other).await);
    assert!(!other.inspect().await.expect("an answer").in_cooldown, "the work has not been reported as done");
}

/// A waiter for the lock is not granted it during the rest of the period, and acquires it afterwards.
async fn no_waiter_is_woken_early(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let begun = Instant::now();
    let turn = start(&once(&a, 1_500 * MS)).await;
    let waiting = tokio::spawn({
        let mutex = mutex(&b);
        async move { mutex.acquire().await.expect("acquired") }
    });
    crate::until::until_waiting(&mutex(&a), 1).await;
    turn.finish().await.expect("finished");
    let guard = tokio::time::timeout(LIMIT, waiting).await.expect("it is served").expect("no panic");
    assert!(begun.elapsed() + 2 * MS >= 1_500 * MS, "too soon: {:?}", begun.elapsed());
    guard.release().await.expect("released");
}

async fn no_late_request_about_the_hold_ends_or_lengthens_the_cooldown(store: &TestStore) {
    let client = store.client("a").await;
    let lock = mutex(&client).lease(HOUR);
    let mut hold = lock.acquire_detached().await.expect("acquired");
    let copy: DetachedHold = hold.to_secret_text().parse().expect("its own text");
    hold.release_not_before(&client, Duration::from_secs(30)).await.expect("released");
    // Again, by the holder: the hold was released.
    hold.release_not_before(&client, HOUR).await.expect("released before");
    copy.release(&client).await.expect("released before");
    hold.extend(&client, HOUR).await.expect_err("it is over");
    copy.attach(&client).await.expect_err("it is over");
    let status = lock.inspect().await.expect("an answer");
    assert!(
        status.in_cooldown && status.remaining.is_some_and(|left| left <= Duration::from_secs(30)),
        "{status:?}"
    );
    assert!(status.remaining.is_some_and(|left| left > Duration::from_secs(10)), "{status:?}");
}

async fn a_cooldown_can_be_ended_by_force(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    start(&once(&a, HOUR)).await.finish().await.expect("finished");
    let details = mutex(&b).inspect_full().await.expect("an answer");
    assert!(details.status.in_cooldown && details.holder_session.is_none());
    mutex(&b).force_release(details.observed.expect("it is in cooldown")).await.expect("freed");
    start(&once(&b, HOUR)).await.fail().await.expect("given up");
}

/// A run that was begun is undone: another instance can run.
async fn try_start_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let once = once(&a, HOUR);
    let free = async |_| {
        crate::until::until_at_rest(&mutex(&b)).await;
    };
    cancel_at_every_await(|| async { once.try_start().await.expect("an answer") }, free).await;
}

/// The lock is in cooldown, or is held until its lease ends. No other instance runs in either case, and every key has an
/// expiry.
async fn finish_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (one, other) = (once(&a, HOUR), mutex(&b));
    cancel_at_every_await(
        || async {
            let turn = start(&one).await;
            turn.finish().await.expect("finished");
        },
        async |_| {
            let mut status = other.inspect().await.expect("an answer");
            let begun = Instant::now();
            while status.held && status.remaining.is_some_and(|left| left <= Duration::from_secs(3)) {
                // Not extended yet: it is undone in the background.
                assert!(begun.elapsed() < LIMIT, "never undone: {status:?}");
                tokio::time::sleep(5 * MS).await;
                status = other.inspect().await.expect("an answer");
            }
            // A request in flight may still arrive.
            a.flush().await;
            while let Some(seen) = other.inspect_full().await.expect("an answer").observed {
                let _ = other.force_release(seen).await;
            }
        },
    )
    .await;
}

async fn run_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (one, other) = (once(&a, HOUR), mutex(&b));
    cancel_at_every_await(
        || async { one.run(async |_| tokio::task::yield_now().await).await.expect("an answer") },
        async |_| {
            a.flush().await;
            while let Some(seen) = other.inspect_full().await.expect("an answer").observed {
                let _ = other.force_release(seen).await;
            }
        },
    )
    .await;
}
