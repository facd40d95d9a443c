//! Semaphores with a limit for each key.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, LockError, NameError, Refused, RunError};
use leasehold::inspect::SharedHolder;
use leasehold::{Client, KeyedPermit, KeyedSemaphore, LockGuard, LostReason, MultiAttempt, Semaphore};
use leasehold_testkit::cancel_at_every_await;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

on_every_store! {
    asynchronous:
    neither_limit_is_exceeded,
    a_flood_of_one_key_delays_another_key_by_its_limit_at_most,
    a_try_names_the_semaphore_that_is_taken_and_keeps_nothing,
    the_time_limit_is_that_of_both,
    keys_of_any_text_are_different_keys,
    numbers_that_cannot_be_are_refused,
    either_number_is_refused_or_replaces_that_of_the_others,
    the_loss_of_either_hold_is_the_loss_of_the_permit,
    leases_and_caps_count_from_when_both_are_held,
    the_permits_of_the_key_are_kept_while_it_waits_for_those_of_all,
    work_runs_with_a_permit_of_its_key,
    acquiring_by_key_cancelled_at_every_await,
    waiting_for_all_cancelled_at_every_await,
    waiting_for_the_key_cancelled_at_every_await,
    releasing_by_key_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn keyed(client: &Client, permits: u32, per_key: u32) -> KeyedSemaphore {
    client.keyed_semaphore("s", permits, per_key).expect("good numbers")
}

/// Nothing is held of this key, nor in all, and no client waits.
async fn at_rest(keyed: &KeyedSemaphore, key: &str) {
    until_at_rest(&keyed.of_key(key)).await;
    until_at_rest(keyed.all()).await;
}

fn taken(attempt: Result<MultiAttempt<KeyedPermit>, AcquireError>) -> String {
    match attempt.expect("an answer") {
        MultiAttempt::Taken { lock, .. } => lock.to_string(),
        MultiAttempt::Granted(permit) => panic!("acquired {permit:?}"),
    }
}

async fn neither_limit_is_exceeded(store: &TestStore) {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let inside: Arc<[AtomicU32; 4]> = Arc::default();
    let (most, most_of_key) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for n in 0..3 {
        let client = store.client(&format!("client {n}")).await;
        for task in 0..6_usize {
            let keyed = keyed(&client, 4, 2);
            let (inside, most, most_of_key) = (inside.clone(), most.clone(), most_of_key.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..8_usize {
                    let at = (task + round) % KEYS.len();
                    let count = 1 + u32::from(round % 3 == 0);
                    let permit = keyed.acquire_many(KEYS[at], count).await.expect("acquired");
                    let now = inside[3].fetch_add(count, Ordering::SeqCst) + count;
                    let of_key = inside[at].fetch_add(count, Ordering::SeqCst) + count;
                    assert!(now <= 4 && of_key <= 2, "{now} of 4, {of_key} of 2");
                    most.fetch_max(now, Ordering::SeqCst);
                    most_of_key.fetch_max(of_key, Ordering::SeqCst);
                    tokio::time::sleep(MS).await;
                    permit.check().expect("held");
                    inside[3].fetch_sub(count, Ordering::SeqCst);
                    inside[at].fetch_sub(count, Ordering::SeqCst);
                    permit.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    let most = (most.load(Ordering::SeqCst), most_of_key.load(Ordering::SeqCst));
    assert_eq!(most, (4, 2), "all were used at some time");
    let after = keyed(&store.client("after").await, 4, 2);
    for key in KEYS {
        at_rest(&after, key).await;
    }
}

/// Of a hundred requests of one tenant, two are in the queue for all when another tenant comes, and no other passes it.
async fn a_flood_of_one_key_delays_another_key_by_its_limit_at_most(store: &TestStore) {
    const FLOOD: u32 = 100;
    let (first, second) = (store.client("first").await, store.client("second").await);
    let (first, second) = (keyed(&first, 2, 2), keyed(&second, 2, 2));
    let held = second.acquire_many("other", 2).await.expect("acquired");
    let (granted, mut grants) = mpsc::unbounded_channel();
    let request = |keyed: &KeyedSemaphore, key: &'static str| {
        let (keyed, granted) = (keyed.clone(), granted.clone());
        tokio::spawn(async move {
            let permit = keyed.acquire(key).await.expect("acquired");
            // Tokens grow in the order of the grants, whenever the tasks run.
            granted.send((permit.fencing_token(), key)).expect("the test counts");
            permit.release().await.expect("released");
        })
    };
    let mut tasks: Vec<_> =
        (0..FLOOD).map(|n| request(if n % 2 == 0 { &first } else { &second }, "flood")).collect();
    let (all, of_flood) = (first.all(), first.of_key("flood"));
    until_waiting(all, 2).await;
    until_waiting(&of_flood, u64::from(FLOOD - 2)).await;
    tasks.push(request(&second, "small"));
    until_waiting(all, 3).await;
    held.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut in_order = BTreeMap::new();
    while let Ok((token, key)) = grants.try_recv() {
        in_order.insert(token, key);
    }
    assert_eq!(in_order.len(), 101, "all were granted");
    let before = in_order.values().take_while(|key| **key == "flood").count();
    assert!(before <= 2, "{before} were granted before the other tenant");
    at_rest(&first, "flood").await;
    at_rest(&first, "small").await;
}

async fn a_try_names_the_semaphore_that_is_taken_and_keeps_nothing(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (keyed(&a, 3, 2), keyed(&b, 3, 2));
    let two = a.acquire_many("x", 2).await.expect("acquired");
    assert_eq!((two.count(), two.name().as_str()), (2, "s"));
    assert_eq!(taken(b.try_acquire("x").await), "s#key:x");
    assert_eq!(b.available_permits("x").await.expect("an answer"), 0);
    assert_eq!(b.available_permits("y").await.expect("an answer"), 1);
    assert_eq!(taken(b.try_acquire_many("y", 2).await), "s");
    let status = a.of_key("y").inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.waiting), (0, 0), "given back before it returned: {status:?}");
    let one = b.try_acquire("y").await.expect("an answer").granted().expect("one is left");
    assert!(one.fencing_token() > two.fencing_token());
    assert_eq!(a.all().inspect().await.expect("an answer").taken(), 3);
    one.release().await.expect("released");
    two.release().await.expect("released");
    at_rest(&a, "x").await;
    at_rest(&a, "y").await;
}

async fn the_time_limit_is_that_of_both(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (keyed(&a, 2, 1), keyed(&b, 2, 1));
    let of_x = b.acquire("x").await.expect("acquired");
    let rest = b.all().acquire().await.expect("acquired");
    let timed_out = |error: AcquireError| match error {
        AcquireError::TimedOut { lock, waited, .. } => (lock.to_string(), waited),
        other => panic!("{other:?}"),
    };
    let (lock, waited) = timed_out(a.acquire_timeout("x", 300 * MS).await.expect_err("taken"));
    assert!(lock == "s#key:x" && waited >= 300 * MS, "{lock} {waited:?}");
    // Two thirds of the time for the first, and the rest for the second.
    let waits = tokio::spawn({
        let a = a.clone().max_wait(3 * S);
        async move {
            let start = std::time::Instant::now();
            (a.acquire("x").await, start.elapsed())
        }
    });
    until_waiting(&b.of_key("x"), 1).await;
    let again = tokio::spawn({
        let all = b.all().clone();
        async move { all.acquire().await.expect("it is before the waiter") }
    });
    until_waiting(b.all(), 1).await;
    tokio::time::sleep(2 * S).await;
    of_x.release().await.expect("released");
    let again = again.await.expect("no panic");
    let (missed, waited) = waits.await.expect("no panic");
    let (lock, told) = timed_out(missed.expect_err("all are taken"));
    assert_eq!(lock, "s");
    assert!(told >= 3 * S && waited < 4800 * MS, "{told:?} {waited:?}: the limit is that of the call");
    // Without a wait it is one attempt.
    let (lock, _) = timed_out(a.acquire_timeout("x", Duration::ZERO).await.expect_err("all are taken"));
    assert_eq!(lock, "s");
    for permit in [rest, again] {
        permit.release().await.expect("released");
    }
    at_rest(&a, "x").await;
}

async fn keys_of_any_text_are_different_keys(store: &TestStore) {
    let client = store.client("a").await;
    let long = "k".repeat(2_000);
    let keys =
        ["", "a", "A", "#key:a", "%23key:a", "{a}", "}", "*", "a\0\r\nb", "日本", &long, &format!("{long}k")];
    let keyed = keyed(&client, 100, 1);
    let mut held = Vec::new();
    for key in keys {
        held.push(
            keyed.try_acquire(key).await.expect("an answer").granted().expect("no other key has its permit"),
        );
        assert_eq!(taken(keyed.try_acquire(key).await), keyed.of_key(key).name().as_str());
    }
    // A name that ends as the name of a key does.
    let other = client.keyed_semaphore("s#key:b", 100, 1).expect("a good name");
    held.push(other.try_acquire("a").await.expect("an answer").granted().expect("another semaphore"));
    for permit in held {
        permit.release().await.expect("released");
    }
}

async fn numbers_that_cannot_be_are_refused(store: &TestStore) {
    let client = store.client("a").await;
    let refused = |permits, per_key| client.keyed_semaphore("s", permits, per_key).expect_err("refused");
    assert_eq!(refused(2, 3), LockError::Count { what: "permits per key", given: 3, max: 2 });
    assert_eq!(refused(2, 0), LockError::Count { what: "permits per key", given: 0, max: 2 });
    assert!(matches!(refused(0, 1), LockError::Count { what: "permits", .. }));
    let long = client.keyed_semaphore("n".repeat(462), 2, 1).expect_err("too long");
    assert_eq!(long, LockError::Name(NameError::TooLongForKeys { len: 462 }));
    let keyed = keyed(&client, 3, 2);
    for count in [0, 3] {
        let refused = keyed.acquire_many("x", count).await;
        assert!(
            matches!(&refused, Err(AcquireError::Impossible(Refused::OutOfRange { limit: 2, .. }))),
            "{refused:?}"
        );
    }
    at_rest(&keyed, "x").await;
}

async fn either_number_is_refused_or_replaces_that_of_the_others(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let old = keyed(&a, 4, 1).acquire("x").await.expect("acquired");
    let disagreement = |refused: Result<KeyedPermit, AcquireError>| match refused {
        Err(AcquireError::Impossible(Refused::Disagreement { requested, known, .. })) => (requested, known),
        other => panic!("{other:?}"),
    };
    assert_eq!(disagreement(keyed(&b, 4, 2).acquire("x").await), (2, 1));
    assert_eq!(disagreement(keyed(&b, 5, 1).acquire("y").await), (5, 4));
    // What it had of its key is given back.
    until_at_rest(&keyed(&b, 4, 1).of_key("y")).await;
    let new = keyed(&b, 5, 2).resize_on_mismatch();
    let permit = new.acquire("x").await.expect("acquired");
    assert_eq!(new.all().inspect().await.expect("an answer").limit, Some(5));
    assert_eq!(new.of_key("x").inspect().await.expect("an answer").limit, Some(2));
    permit.release().await.expect("released");
    old.release().await.expect("released");
    // By an operator, for one key.
    new.of_key("z").resize(3).await.expect("resized");
    let three = new.acquire_many("z", 3).await.expect("acquired");
    three.release().await.expect("released");
}

async fn force_release(semaphore: &Semaphore) {
    let status = semaphore.inspect().await.expect("an answer");
    let seen = status.shared_holders.first().and_then(SharedHolder::observed).expect("it has a holder");
    semaphore.force_release(seen).await.expect("freed");
}

async fn the_loss_of_either_hold_is_the_loss_of_the_permit(store: &TestStore) {
    let client = store.client_with("a", 2 * S).await;
    let keyed = keyed(&client, 2, 1);
    for semaphore in [keyed.all().clone(), keyed.of_key("x")] {
        let permit = keyed.acquire("x").await.expect("acquired");
        let signal = permit.lost_signal();
        assert!(permit.check().is_ok() && !signal.is_cancelled());
        force_release(&semaphore).await;
        let lost = tokio::time::timeout(20 * S, permit.lost()).await.expect("the loss is reported");
        assert_eq!((&lost.lock, &lost.reason), (semaphore.name(), &LostReason::ForceReleased));
        assert!(signal.is_cancelled() && permit.check().is_err() && permit.remaining() == Duration::ZERO);
        assert_eq!(permit.extend().await.expect_err("lost").to_string(), lost.to_string());
        let error = permit.release().await.expect_err("one of them is lost");
        assert_eq!(error.failed.len(), 1, "the other is released: {error}");
        assert_eq!(&error.failed[0].0, semaphore.name());
        at_rest(&keyed, "x").await;
    }
}

async fn leases_and_caps_count_from_when_both_are_held(store: &TestStore) {
    let client = store.client("a").await;
    let plain = keyed(&client, 1, 1);
    let limited = [plain.clone().lease(2 * S), plain.clone().max_hold(2 * S)];
    for (keyed, reason) in limited.into_iter().zip([LostReason::Expired, LostReason::Capped]) {
        let held = plain.acquire("y").await.expect("acquired");
        let waits = tokio::spawn(async move {
            let permit = keyed.acquire("x").await.expect("acquired");
            permit.check().expect("held");
            permit
        });
        until_waiting(plain.all(), 1).await;
        tokio::time::sleep(2_500 * MS).await;
        held.release().await.expect("released");
        let permit = waits.await.expect("no panic");
        let left = permit.remaining();
        assert!(left > Duration::ZERO && left <= 2 * S, "{left:?}");
        let lost = tokio::time::timeout(20 * S, permit.lost()).await.expect("it ends");
        assert_eq!(lost.reason, reason);
        drop(permit);
        at_rest(&plain, "x").await;
    }
}

async fn the_permits_of_the_key_are_kept_while_it_waits_for_those_of_all(store: &TestStore) {
    let client = store.client_with("a", 2 * S).await;
    let keyed = keyed(&client, 1, 1);
    let held = keyed.acquire("y").await.expect("acquired");
    let waits = tokio::spawn({
        let keyed = keyed.clone();
        async move { keyed.acquire("x").await.expect("acquired") }
    });
    until_waiting(keyed.all(), 1).await;
    let fence = async || {
        let status = keyed.of_key("x").inspect().await.expect("an answer");
        status.shared_holders.first().and_then(|holder| holder.fence)
    };
    let first = fence().await;
    tokio::time::sleep(4_500 * MS).await;
    assert!(first.is_some() && fence().await == first, "the same hold");
    held.release().await.expect("released");
    let permit = waits.await.expect("no panic");
    permit.extend().await.expect("extended");
    permit.release().await.expect("released");
    at_rest(&keyed, "x").await;
}

async fn work_runs_with_a_permit_of_its_key(store: &TestStore) {
    let client = store.client_with("a", 2 * S).await;
    let keyed = keyed(&client, 2, 1);
    let result = keyed
        .run("x", async |permit| {
            let permit: &dyn LockGuard = &*permit;
            assert_eq!(permit.name().as_str(), "s");
            permit.check().expect("held");
            keyed.available_permits("x").await.expect("an answer")
        })
        .await;
    assert_eq!(result.expect("held to the end"), 0);
    at_rest(&keyed, "x").await;
    let lost = keyed
        .run("x", async |permit| {
            force_release(&keyed.of_key("x")).await;
            permit.lost_signal().cancelled().await;
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(&lost, Err(RunError::Lost(lost)) if lost.lock.as_str() == "s#key:x"), "{lost:?}");
    at_rest(&keyed, "x").await;
    let boxed: Box<dyn LockGuard> = Box::new(keyed.acquire("x").await.expect("acquired"));
    force_release(keyed.all()).await;
    boxed.lost().await;
    boxed.release().await.expect_err("one hold is lost");
    at_rest(&keyed, "x").await;
}

async fn acquiring_by_key_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let keyed = keyed(&client, 2, 2);
    cancel_at_every_await(
        || async { drop(keyed.try_acquire_many("x", 2).await.expect("an answer")) },
        async |_| at_rest(&keyed, "x").await,
    )
    .await;
    client.flush().await;
    at_rest(&keyed, "x").await;
}

async fn waiting_for_all_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mine, theirs) = (keyed(&a, 1, 1), keyed(&b, 1, 1));
    let held = theirs.acquire("y").await.expect("acquired");
    cancel_at_every_await(
        || async {
            let waited = mine.acquire_timeout("x", 600 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
        },
        async |_| {
            until_waiting(theirs.all(), 0).await;
            until_at_rest(&theirs.of_key("x")).await;
        },
    )
    .await;
    held.release().await.expect("released");
    at_rest(&theirs, "x").await;
}

async fn waiting_for_the_key_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mine, theirs) = (keyed(&a, 2, 1), keyed(&b, 2, 1));
    let held = theirs.acquire("x").await.expect("acquired");
    cancel_at_every_await(
        || async {
            let waited = mine.acquire_timeout("x", 600 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
        },
        async |_| until_waiting(&theirs.of_key("x"), 0).await,
    )
    .await;
    held.check().expect("untouched");
    held.release().await.expect("released");
    at_rest(&theirs, "x").await;
}

async fn releasing_by_key_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let keyed = keyed(&client, 2, 2);
    cancel_at_every_await(
        || async {
            let permit = keyed.acquire_many("x", 2).await.expect("acquired");
            permit.release().await.expect("released");
        },
        async |_| at_rest(&keyed, "x").await,
    )
    .await;
}
