//! Semaphores.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, Refused, ReleaseError, ReturnPermitsError};
use leasehold::{Attempt, Client, LostReason, Semaphore};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

on_every_store! {
    asynchronous:
    no_more_permits_are_held_than_there_are,
    the_number_is_known_before_the_first_acquire,
    several_permits_are_acquired_at_once_or_none,
    permits_are_granted_in_order_of_arrival,
    one_release_admits_all_that_fit,
    more_permits_than_there_are_are_refused_at_once,
    the_number_can_be_changed_while_permits_are_held,
    another_number_is_refused_or_replaces_that_of_the_others,
    a_resize_leaves_the_number_that_clients_are_given,
    all_free_permits_are_acquired_at_once,
    all_free_permits_are_those_of_the_number_that_the_next_acquire_sets,
    some_permits_are_returned_and_the_hold_goes_on,
    permits_of_dead_clients_come_back,
    a_release_after_the_expiry_adds_no_permit,
    a_watchdog_keeps_permits_and_a_lease_ends,
    a_client_that_drops_its_permits_can_acquire_them_at_once,
    a_shutdown_releases_permits,
    one_hold_is_force_released_and_no_other,
    acquiring_permits_cancelled_at_every_await,
    waiting_for_permits_cancelled_at_every_await,
    releasing_permits_cancelled_at_every_await,
    returning_permits_cancelled_at_every_await,
    another_kind_of_the_same_name_is_refused,
}

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

pub(crate) fn semaphore(client: &Client, permits: u32) -> Semaphore {
    client.semaphore("s", permits).expect("a good name")
}

async fn the_number_is_known_before_the_first_acquire(store: &TestStore) {
    let (a, b) = (semaphore(&store.client("a").await, 3), semaphore(&store.client("b").await, 5));
    assert_eq!(a.inspect().await.expect("an answer").limit, Some(3));
    assert_eq!(a.inspect_full().await.expect("an answer").status.limit, Some(3));
    let permit = a.acquire().await.expect("acquired");
    assert_eq!(b.inspect().await.expect("an answer").limit, Some(3), "that of the store");
    permit.release().await.expect("released");
}

/// A task that waits for `count` permits and releases them once acquired.
fn waits(semaphore: &Semaphore, count: u32) -> tokio::task::JoinHandle<()> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move {
        let permit = semaphore.acquire_many(count).await.expect("acquired");
        permit.release().await.expect("released");
    })
}

async fn no_more_permits_are_held_than_there_are(store: &TestStore) {
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for n in 0..3 {
        let client = store.client(&format!("client {n}")).await;
        for task in 0..4 {
            let semaphore = semaphore(&client, 3);
            let (inside, most) = (inside.clone(), most.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..15 {
                    let count = 1 + (task + round) % 3;
                    let permit = semaphore.acquire_many(count).await.expect("acquired");
                    let now = inside.fetch_add(count, Ordering::SeqCst) + count;
                    assert!(now <= 3, "{now} of 3");
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(MS).await;
                    permit.check().expect("held");
                    inside.fetch_sub(count, Ordering::SeqCst);
                    permit.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    assert_eq!(most.load(Ordering::SeqCst), 3, "all were used at some time");
    until_at_rest(&semaphore(&store.client("after").await, 3)).await;
}

async fn several_permits_are_acquired_at_once_or_none(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 3), semaphore(&b, 3));
    let two = a.acquire_many(2).await.expect("acquired");
    assert_eq!(two.count(), 2);
    assert!(matches!(b.try_acquire_many(2).await.expect("an answer"), Attempt::Taken(_)));
    let one = b.try_acquire().await.expect("an answer").granted().expect("one is left");
    assert!(one.fencing_token() > two.fencing_token());
    let status = b.inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.limit, status.shared_holders.len()), (3, Some(3), 2));
    assert!(status.held_by_this_client && status.held);
    one.release().await.expect("released");
    two.release().await.expect("released");
    until_at_rest(&a).await;
}

async fn permits_are_granted_in_order_of_arrival(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 2), semaphore(&b, 2));
    let one = a.acquire().await.expect("acquired");
    let wants_two = waits(&b, 2);
    until_waiting(&a, 1).await;
    // One is free, but the earlier waiter wants two.
    assert!(
        matches!(a.try_acquire().await.expect("an answer"), Attempt::Taken(_)),
        "bypassed the earlier waiter"
    );
    let wants_one = waits(&a, 1);
    until_waiting(&b, 2).await;
    one.release().await.expect("released");
    wants_two.await.expect("no panic");
    wants_one.await.expect("no panic");
    until_at_rest(&a).await;
}

async fn one_release_admits_all_that_fit(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 3), semaphore(&b, 3));
    let all = a.acquire_many(3).await.expect("acquired");
    let together = Arc::new(tokio::sync::Barrier::new(3));
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (semaphore, together) = (if n == 1 { a.clone() } else { b.clone() }, together.clone());
            tokio::spawn(async move {
                let permit = semaphore.acquire().await.expect("acquired");
                // No task continues before all three are inside.
                together.wait().await;
                permit.release().await.expect("released");
            })
        })
        .collect();
    until_waiting(&a, 3).await;
    let start = Stopwatch::start();
    all.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    start.assert_below(700 * MS, "woken by messages, not by polling");
    until_at_rest(&a).await;
}

async fn more_permits_than_there_are_are_refused_at_once(store: &TestStore) {
    let a = store.client("a").await;
    let a = semaphore(&a, 2);
    let _one = a.acquire().await.expect("acquired");
    for count in [0, 3] {
        let refused = a.acquire_many(count).await;
        assert!(
            matches!(&refused, Err(AcquireError::Impossible(Refused::OutOfRange { limit: 2, .. }))),
            "{refused:?}"
        );
    }
}

async fn the_number_can_be_changed_while_permits_are_held(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 1), semaphore(&b, 1));
    let first = a.acquire().await.expect("acquired");
    let second = tokio::spawn({
        let b = b.clone();
        async move { b.acquire().await.expect("acquired") }
    });
    until_waiting(&a, 1).await;
    a.resize(2).await.expect("resized");
    let second = second.await.expect("let in at once");
    // More permits are held than now exist: no holder loses its permit, and no waiter acquires one.
    b.resize(1).await.expect("resized");
    second.check().expect("held");
    second.release().await.expect("released");
    assert!(matches!(b.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    first.release().await.expect("released");
    let only = b.try_acquire().await.expect("an answer").granted().expect("there is room again");
    only.release().await.expect("released");
    assert_eq!(a.inspect().await.expect("an answer").limit, Some(1));
}

async fn all_free_permits_are_acquired_at_once(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 5), semaphore(&b, 5));
    assert_eq!(a.available_permits().await.expect("an answer"), 5);
    let two = b.acquire_many(2).await.expect("acquired");
    assert_eq!(a.available_permits().await.expect("an answer"), 3);
    let rest = a.drain().await.expect("an answer").granted().expect("three are free");
    assert_eq!((rest.count(), a.available_permits().await.expect("an answer")), (3, 0));
    assert!(matches!(b.drain().await.expect("an answer"), Attempt::Taken(_)), "none is free");
    two.release().await.expect("released");
    // Fewer than are held.
    b.resize(1).await.expect("resized");
    assert_eq!(b.available_permits().await.expect("an answer"), 0);
    rest.release().await.expect("released");
    assert_eq!(b.available_permits().await.expect("an answer"), 1);
    // What a waiter wants is not taken from it.
    let one = a.acquire().await.expect("acquired");
    let waiter = waits(&b, 1);
    until_waiting(&a, 1).await;
    a.resize(2).await.expect("resized");
    waiter.await.expect("let in");
    one.release().await.expect("released");
}

async fn all_free_permits_are_those_of_the_number_that_the_next_acquire_sets(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (three, five) = (semaphore(&a, 3), semaphore(&b, 5));
    for (before, next) in [(&three, &five), (&five, &three)] {
        before.acquire().await.expect("acquired").release().await.expect("released");
        let (known, given) =
            if next.available_permits().await.expect("an answer") == 5 { (3, 5) } else { (5, 3) };
        assert_eq!(before.available_permits().await.expect("an answer"), known, "no client uses it");
        let all = next.drain().await.expect("an answer").granted().expect("all are free");
        assert_eq!(all.count(), given);
        assert_eq!(before.available_permits().await.expect("an answer"), 0);
        assert_eq!(disagreement(before.drain().await), (known, given));
        all.release().await.expect("released");
    }
    // A resize stays for clients that ask for their number.
    three.resize(4).await.expect("resized");
    let all = five.drain().await.expect("an answer").granted().expect("all are free");
    assert_eq!(all.count(), 5, "no client uses it, and the resize was not for this number");
    three.resize(4).await.expect("resized");
    all.release().await.expect("released");
    let all = five.drain().await.expect("an answer").granted().expect("all are free");
    assert_eq!(all.count(), 4);
    all.release().await.expect("released");
}

async fn some_permits_are_returned_and_the_hold_goes_on(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 5), semaphore(&b, 5));
    let mut permit = a.acquire_many(5).await.expect("acquired");
    let fence = permit.fencing_token();
    let waiter = waits(&b, 3);
    until_waiting(&a, 1).await;
    permit.return_permits(0).await.expect("nothing to do");
    permit.return_permits(3).await.expect("returned");
    waiter.await.expect("let in");
    assert_eq!((permit.count(), permit.fencing_token()), (2, fence));
    permit.check().expect("held");
    for count in [2, 3, u32::MAX] {
        let refused = permit.return_permits(count).await;
        assert!(
            matches!(refused, Err(ReturnPermitsError::TooMany { returned, held: 2 }) if returned == count),
            "{refused:?}"
        );
    }
    let rest = b.acquire_many(3).await.expect("acquired");
    assert!(matches!(b.try_acquire().await.expect("an answer"), Attempt::Taken(_)), "two are held");
    permit.release().await.expect("released, with what it had left");
    assert_eq!(b.available_permits().await.expect("an answer"), 2);
    rest.release().await.expect("released");
    let mut lost = a.acquire_many(2).await.expect("acquired");
    let held = b.inspect().await.expect("an answer").shared_holders;
    b.force_release(held[0].observed().expect("it has a token")).await.expect("released by force");
    let gone = lost.return_permits(1).await;
    assert!(
        matches!(&gone, Err(ReturnPermitsError::Lost(loss)) if matches!(loss.reason, LostReason::ForceReleased)),
        "{gone:?}"
    );
    assert_eq!(b.available_permits().await.expect("an answer"), 5);
}

async fn returning_permits_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let semaphore = semaphore(&client, 5);
    cancel_at_every_await(
        || async {
            let mut permit = semaphore.acquire_many(5).await.expect("acquired");
            permit.return_permits(3).await.expect("returned");
            assert_eq!(semaphore.available_permits().await.expect("an answer"), 3);
            permit.release().await.expect("released");
        },
        async |_| until_at_rest(&semaphore).await,
    )
    .await;
    assert_eq!(semaphore.available_permits().await.expect("an answer"), 5);
}

/// The numbers in the refusal of an acquire.
fn disagreement<T>(refused: Result<T, AcquireError>) -> (u32, u32) {
    match refused {
        Err(AcquireError::Impossible(Refused::Disagreement { requested, known, .. })) => (requested, known),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("acquired"),
    }
}

async fn another_number_is_refused_or_replaces_that_of_the_others(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (old, new) = (semaphore(&a, 2), semaphore(&b, 4));
    let first = old.acquire().await.expect("acquired");
    assert_eq!(disagreement(new.try_acquire().await), (4, 2));
    assert_eq!(disagreement(new.acquire().await), (4, 2));
    assert_eq!(disagreement(new.acquire_timeout(5 * S).await), (4, 2));
    let waits = waits(&old, 2);
    until_waiting(&old, 1).await;
    let replacing = new.clone().resize_on_mismatch();
    let third = replacing.acquire_timeout(10 * S).await.expect("it has made room for itself and the waiter");
    waits.await.expect("let in at once");
    assert_eq!(old.inspect().await.expect("an answer").limit, Some(4));
    assert_eq!(disagreement(old.try_acquire().await), (2, 4));
    let fourth = new.try_acquire().await.expect("an answer").granted().expect("a free permit");
    // Changed back by a client that may.
    let back = old.clone().resize_on_mismatch().try_acquire_many(2).await.expect("an answer");
    assert!(matches!(back, Attempt::Taken(_)), "three of two are held");
    assert_eq!(new.inspect().await.expect("an answer").limit, Some(2));
    for permit in [first, third, fourth] {
        permit.release().await.expect("released");
    }
    let next = new.try_acquire().await.expect("no client uses it").granted().expect("it is free");
    assert_eq!(old.inspect().await.expect("an answer").limit, Some(4));
    next.release().await.expect("released");
}

async fn a_resize_leaves_the_number_that_clients_are_given(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let operator = semaphore(&store.client("operator").await, 9);
    operator.resize(1).await.expect("resized");
    let (a, b) = (semaphore(&a, 3), semaphore(&b, 3));
    let one = a.acquire().await.expect("acquired");
    assert!(matches!(b.try_acquire().await.expect("an answer"), Attempt::Taken(_)), "there is only one");
    operator.resize(2).await.expect("resized");
    let two = b.try_acquire().await.expect("an answer").granted().expect("there are two now");
    assert_eq!(
        disagreement(operator.try_acquire().await),
        (9, 3),
        "the number of the clients, not of the resize"
    );
    one.release().await.expect("released");
    two.release().await.expect("released");
    // It stays so while it is free.
    let all = b.try_acquire_many(2).await.expect("an answer").granted().expect("it is free");
    assert!(matches!(a.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    all.release().await.expect("released");
}

async fn permits_of_dead_clients_come_back(store: &TestStore) {
    let live = store.client("live").await;
    let live = semaphore(&live, 2);
    let gone = {
        // Its leases end without renewal.
        let dying = store.client_of_leases("dying").await;
        let permit = semaphore(&dying, 2).lease(300 * MS).acquire_many(2).await.expect("acquired");
        std::mem::forget(permit);
        Instant::now()
    };
    let two = live.acquire_many_timeout(2, 5 * S).await.expect("the permits are free again");
    assert!(gone.elapsed() >= 250 * MS, "after the leases ended: {:?}", gone.elapsed());
    two.release().await.expect("released");
    until_at_rest(&live).await;
}

/// Failure row 27.
async fn a_release_after_the_expiry_adds_no_permit(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (semaphore(&a, 1), semaphore(&b, 1));
    let late = a.clone().lease(100 * MS).acquire().await.expect("acquired");
    let lost = late.lost().await;
    assert!(matches!(lost.reason, LostReason::Expired | LostReason::Removed), "{lost}");
    let next = b.acquire().await.expect("acquired");
    let released = late.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(_))), "{released:?}");
    assert!(matches!(a.try_acquire().await.expect("an answer"), Attempt::Taken(_)), "a permit too many");
    next.check().expect("held");
    next.release().await.expect("released");
    until_at_rest(&a).await;
}

async fn a_watchdog_keeps_permits_and_a_lease_ends(store: &TestStore) {
    let client = store.client_with("a", 2000 * MS).await;
    let semaphore = semaphore(&client, 2);
    let kept = semaphore.acquire().await.expect("acquired");
    let ends = semaphore.clone().lease(700 * MS).acquire().await.expect("acquired");
    tokio::time::sleep(3000 * MS).await;
    kept.check().expect("renewed");
    assert!(ends.check().is_err(), "an explicit lease ends");
    let status = semaphore.inspect().await.expect("an answer");
    assert_eq!(status.taken(), 1, "{status:?}");
    kept.release().await.expect("released");
}

/// A request for permits waits for those that its own client is giving back, and so needs no flush before it.
async fn a_client_that_drops_its_permits_can_acquire_them_at_once(store: &TestStore) {
    let semaphore = semaphore(&store.client("a").await, 3);
    for round in 0..50 {
        let permits = [semaphore.acquire_many(2).await, semaphore.acquire().await];
        drop(permits.map(|permit| permit.expect("acquired")));
        let again = semaphore.try_acquire_many(3).await.expect("an answer");
        drop(again.granted().unwrap_or_else(|| panic!("its own permits, in round {round}")));
        drop(semaphore.acquire_timeout(Duration::ZERO).await.expect("acquired"));
    }
}

async fn a_shutdown_releases_permits(store: &TestStore) {
    let (ending, other) = (store.client("ending").await, store.client("other").await);
    let (all, other) = (semaphore(&ending, 3), semaphore(&other, 3));
    let held = (all.acquire().await.expect("acquired"), all.acquire_many(2).await.expect("acquired"));
    let waiting = tokio::spawn({
        let all = all.clone();
        async move { all.acquire().await }
    });
    until_waiting(&other, 1).await;
    ending.shutdown(5 * S).await.expect("every hold is released");
    assert!(matches!(waiting.await.expect("no panic"), Err(AcquireError::Closed)));
    assert!(held.0.check().is_err() && held.1.check().is_err());
    let status = other.inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.waiting), (0, 0), "{status:?}");
    other
        .try_acquire_many(3)
        .await
        .expect("an answer")
        .granted()
        .expect("free")
        .release()
        .await
        .expect("released");
}

async fn one_hold_is_force_released_and_no_other(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mine, theirs) = (semaphore(&a, 2), semaphore(&b, 2));
    let (first, second) =
        (mine.acquire().await.expect("acquired"), theirs.acquire().await.expect("acquired"));
    let status = theirs.inspect().await.expect("an answer");
    let of_first = status.shared_holders.iter().find(|sharer| sharer.fence == Some(first.fencing_token()));
    let seen = of_first.and_then(leasehold::inspect::SharedHolder::observed).expect("the holder is reported");
    theirs.force_release(seen).await.expect("freed");
    let lost = tokio::time::timeout(5 * S, first.lost()).await.expect("reported by a message");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    second.check().expect("held");
    second.release().await.expect("it was not touched");
    let audit = theirs.inspect_full().await.expect("an answer").audit;
    assert_eq!((audit.len(), audit[0].fence), (1, Some(first.fencing_token())));
    until_at_rest(&theirs).await;
}

async fn acquiring_permits_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let semaphore = semaphore(&client, 2);
    cancel_at_every_await(
        || async { drop(semaphore.try_acquire_many(2).await.expect("an answer")) },
        async |_| until_at_rest(&semaphore).await,
    )
    .await;
    client.flush().await;
    until_at_rest(&semaphore).await;
}

async fn waiting_for_permits_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mine, theirs) = (semaphore(&a, 2), semaphore(&b, 2));
    let held = theirs.acquire().await.expect("acquired");
    cancel_at_every_await(
        || async {
            let waited = mine.acquire_many_timeout(2, 600 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
        },
        async |_| {
            until_waiting(&theirs, 0).await;
        },
    )
    .await;
    until_waiting(&theirs, 0).await;
    held.release().await.expect("released");
    until_at_rest(&theirs).await;
}

async fn releasing_permits_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let semaphore = semaphore(&client, 2);
    cancel_at_every_await(
        || async {
            let permit = semaphore.acquire_many(2).await.expect("acquired");
            permit.release().await.expect("released");
        },
        async |_| until_at_rest(&semaphore).await,
    )
    .await;
}

async fn another_kind_of_the_same_name_is_refused(store: &TestStore) {
    let client = store.client("a").await;
    let permit = semaphore(&client, 2).acquire().await.expect("acquired");
    let refused = client.rwlock("s").expect("a good name").try_read().await;
    let Err(AcquireError::Store(fault)) = refused else { panic!("{refused:?}") };
    assert!(fault.to_string().contains("used for something else"), "{fault}");
    let refused = client.mutex("s").expect("a good name").try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Store(_))), "{refused:?}");
    permit.check().expect("untouched");
    permit.release().await.expect("released");
}
