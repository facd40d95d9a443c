//! An observer of the ends of holds.

use crate::cases::store::TestStore;
use leasehold::inspect::{HoldEnd, HoldEnding, HoldEnds};
use leasehold::{Client, Mutex};
use std::collections::BTreeSet;
use std::time::Duration;

on_every_store! {
    asynchronous:
    an_observer_learns_how_a_hold_ended,
    an_observer_sees_each_of_several_holds,
    an_observer_sees_the_ends_of_each_kind,
    an_observer_that_is_dropped_in_a_wait_misses_nothing,
}

const MS: Duration = Duration::from_millis(1);

fn mutex(client: &Client) -> Mutex {
    client.mutex("m").expect("a good name")
}

async fn next(ends: &mut HoldEnds) -> HoldEnd {
    let next = tokio::time::timeout(60_000 * MS, ends.next()).await;
    next.expect("it ends soon").expect("an answer")
}

async fn an_observer_learns_how_a_hold_ended(store: &TestStore) {
    let (a, b) = (store.client("holder").await, store.client("observer").await);
    let mut ends = mutex(&b).observe_ends().await.expect("an answer");

    // Begun after the observer, and seen by it, since it lasts for longer than a poll takes.
    let guard = mutex(&a).acquire().await.expect("acquired");
    let fence = guard.fencing_token();
    let mut second = mutex(&b).observe_ends().await.expect("an answer");
    guard.release().await.expect("released");
    let end = next(&mut second).await;
    assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Released));
    assert!(end.holder.is_some_and(|holder| holder.contains("holder")));

    // If the process was held up when the lease ended, the end is not known.
    for attempt in 0.. {
        let guard = mutex(&a).lease(1_500 * MS).acquire().await.expect("acquired");
        let fence = guard.fencing_token();
        std::mem::forget(guard);
        let seen = loop {
            // The first may have been too short to be seen.
            let end = next(&mut ends).await;
            if end.fence == Some(fence) {
                break end;
            }
        };
        if seen.ending == HoldEnding::Expired {
            break;
        }
        assert_eq!(seen.ending, HoldEnding::Unknown);
        assert!(attempt < 10, "never known");
    }

    let guard = mutex(&a).acquire().await.expect("acquired");
    let mut third = mutex(&b).observe_ends().await.expect("an answer");
    let observed = mutex(&b).inspect_full().await.expect("an answer").observed.expect("it is held");
    mutex(&b).force_release(observed).await.expect("released by force");
    let end = next(&mut third).await;
    assert_eq!((end.fence, end.ending), (Some(guard.fencing_token()), HoldEnding::ForceReleased));
}

async fn an_observer_sees_each_of_several_holds(store: &TestStore) {
    let (a, b) = (store.client("holder").await, store.client("observer").await);
    let semaphore = a.semaphore("s", 3).expect("a good name");
    let (one, two) =
        (semaphore.acquire().await.expect("free"), semaphore.acquire_many(2).await.expect("free"));
    let expected: BTreeSet<_> = [&one, &two].map(|permit| permit.fencing_token()).into();
    let observing = b.semaphore("s", 3).expect("a good name");
    let mut ends = observing.observe_ends().await.expect("an answer");
    one.release().await.expect("released");
    two.release().await.expect("released");
    let (first, second) = (next(&mut ends).await, next(&mut ends).await);
    let seen = [&first, &second].map(|end| end.fence.expect("it has a token"));
    assert_eq!(BTreeSet::from(seen), expected);
    assert_eq!([first.ending, second.ending], [HoldEnding::Released; 2]);
}

async fn an_observer_sees_the_ends_of_each_kind(store: &TestStore) {
    let (a, b) = (store.client("holder").await, store.client("observer").await);
    let reentrant = a.reentrant_mutex("r").expect("a good name").acquire().await.expect("acquired");
    let writer = a.rwlock("w").expect("a good name").write().await.expect("acquired");
    let leader = a.election("e").expect("a good name").campaign().await.expect("it leads");
    let tokens = [reentrant.fencing_token(), writer.fencing_token(), leader.fencing_token()];
    let mut all = [
        b.reentrant_mutex("r").expect("a good name").observe_ends().await.expect("an answer"),
        b.rwlock("w").expect("a good name").observe_ends().await.expect("an answer"),
        b.election("e").expect("a good name").observe_ends().await.expect("an answer"),
    ];
    reentrant.release().await.expect("released");
    writer.release().await.expect("released");
    leader.resign().await.expect("resigned");
    for (ends, fence) in all.iter_mut().zip(tokens) {
        let end = next(ends).await;
        assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Released));
    }
}

async fn an_observer_that_is_dropped_in_a_wait_misses_nothing(store: &TestStore) {
    let (a, b) = (store.client("holder").await, store.client("observer").await);
    let guard = mutex(&a).acquire().await.expect("acquired");
    let fence = guard.fencing_token();
    let mut ends = mutex(&b).observe_ends().await.expect("an answer");
    for _ in 0..20 {
        let waits = tokio::time::timeout(30 * MS, ends.next()).await;
        assert!(waits.is_err(), "it is held: {waits:?}");
    }
    guard.release().await.expect("released");
    let end = loop {
        if let Ok(end) = tokio::time::timeout(30 * MS, ends.next()).await {
            break end.expect("an answer");
        }
    };
    assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Released));
}
