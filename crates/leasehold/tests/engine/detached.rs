//! Detached holds over a store with injected faults.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON, once};
use leasehold::error::{AcquireError, AttachError, ExtendError, ReleaseError};
use leasehold::store::{Lock, Op};
use leasehold::{Client, DetachedHold, LostReason};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A client whose store has injected faults, and one of the same store without them.
async fn faulty_and_healthy(
    rule: impl Fn(&Lock, &Op) -> Behavior + Send + Sync + 'static,
) -> (Client, Client) {
    let memory = memory();
    let faulty = client_in_paused_time(FaultyStore::new(&memory, rule))
        .call_timeout(200 * MS)
        .watchdog_lease(900 * MS);
    let healthy = client_in_paused_time(memory).connect().await.expect("it connects");
    (faulty.connect().await.expect("it connects"), healthy)
}

async fn detached(client: &Client) -> Result<DetachedHold, AcquireError> {
    client.mutex("m").expect("a good name").lease(Duration::from_secs(3600)).acquire_detached().await
}

async fn is_free(client: &Client) -> bool {
    !client.mutex("m").expect("a good name").inspect().await.expect("an answer").held
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_whose_extend_is_not_answered_is_released() {
    for behavior in [Behavior::LoseReply, Behavior::LoseRequest] {
        let (faulty, healthy) =
            faulty_and_healthy(
                move |_, op| if matches!(op, Op::Extend(_)) { behavior } else { Behavior::Execute },
            )
            .await;
        let missed = detached(&faulty).await.expect_err("the remaining lease is unknown");
        let AcquireError::NotExtended(why) = &missed else { panic!("{missed:?}") };
        assert!(matches!(**why, ExtendError::Store(_)), "{why:?}");
        timeout(SOON, faulty.flush()).await.expect("the hold is undone, even with a lease of an hour");
        assert!(is_free(&healthy).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_that_is_gone_before_its_extend_is_an_error() {
    let (faulty, _) = faulty_and_healthy(|_, op| match op {
        Op::Extend(_) => Behavior::NotHeld,
        _ => Behavior::Execute,
    })
    .await;
    let missed = detached(&faulty).await.expect_err("it is gone");
    let AcquireError::NotExtended(why) = &missed else { panic!("{missed:?}") };
    assert!(matches!(**why, ExtendError::Lost(_)), "{why:?}");
    assert!(missed.to_string().starts_with("the lock was granted, but could not be held for its lease: "));
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_survives_replies_that_are_lost() {
    let (acquire, extend, release) = (once(), once(), once());
    let (faulty, healthy) = faulty_and_healthy(move |_, op| match op {
        Op::Acquire(_) if acquire() => Behavior::LoseReply,
        Op::Extend(_) if extend() => Behavior::Fail,
        Op::Release(_) if release() => Behavior::LoseReply,
        _ => Behavior::Execute,
    })
    .await;
    let hold = detached(&faulty).await.expect("requested again, and extended again");
    let unknown = hold.release(&faulty).await.expect_err("there is no answer");
    assert!(matches!(unknown, ReleaseError::Unknown { .. }), "{unknown:?}");
    hold.release(&faulty).await.expect("this hold was released before");
    assert!(is_free(&healthy).await);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_attach_returns_the_hold_and_can_be_repeated() {
    let first = once();
    let (faulty, healthy) = faulty_and_healthy(move |_, op| {
        if matches!(op, Op::Extend(_)) && first() { Behavior::LoseReply } else { Behavior::Execute }
    })
    .await;
    let hold = detached(&healthy).await.expect("acquired");
    let failed = hold.attach(&faulty).await.expect_err("there is no answer");
    let AttachError::NotExtended { hold, error: ExtendError::Store(_) } = failed else {
        panic!("{failed:?}")
    };
    let guard = hold.attach(&faulty).await.expect("attached");
    guard.check().expect("held");
    guard.release().await.expect("released");
    assert!(is_free(&healthy).await);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_released_while_it_is_attached_becomes_no_guard() {
    let (faulty, healthy) = faulty_and_healthy(|_, op| match op {
        Op::Extend(_) => Behavior::ExecuteAfter(100 * MS),
        // Delayed past the extend: by the store's reply alone the hold would still exist when the extend is
        // answered.
        Op::Release(_) => Behavior::ExecuteAfter(180 * MS),
        _ => Behavior::Execute,
    })
    .await;
    let hold = detached(&healthy).await.expect("acquired");
    let copy: DetachedHold = hold.to_secret_text().parse().expect("it was written by us");
    let (attached, released) = tokio::join!(hold.attach(&faulty), copy.release(&faulty));
    released.expect("released");
    let refused = attached.expect_err("a guard would outlive its hold");
    let AttachError::NotExtended { error: ExtendError::Lost(lost), .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(lost.reason, LostReason::Released);
}

#[tokio::test(start_paused = true)]
async fn a_guard_stops_renewing_a_hold_whose_release_elsewhere_failed() {
    let (faulty, healthy) = faulty_and_healthy(|_, op| match op {
        Op::Release(_) => Behavior::Fail,
        _ => Behavior::Execute,
    })
    .await;
    let hold = client_hold(&healthy, 300 * MS).await;
    let copy: DetachedHold = hold.to_secret_text().parse().expect("it was written by us");
    let guard = hold.attach(&faulty).await.expect("attached");
    copy.release(&faulty).await.expect_err("the store does not obey");
    assert!(guard.check().is_err());
    let mutex = healthy.mutex("m").expect("a good name");
    let next = mutex.acquire_timeout(SOON).await.expect("its lease ends without a renewal");
    next.release().await.expect("released");
}

async fn client_hold(client: &Client, lease: Duration) -> DetachedHold {
    let mutex = client.mutex("m").expect("a good name").lease(lease);
    mutex.acquire_detached().await.expect("acquired")
}

#[tokio::test(start_paused = true)]
async fn a_detached_acquire_polls_if_no_mailbox_can_be_opened() {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let held = other.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let store = FaultyStore::new(&memory, |_, _| Behavior::Execute);
    let mailboxes_fail = store.mailboxes_fail.clone();
    let client = store.client(900 * MS).await;
    mailboxes_fail.store(true, Ordering::SeqCst);
    let waiter = tokio::spawn(async move { detached(&client).await.expect("acquired") });
    while other.mutex("m").expect("a good name").inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    held.release().await.expect("released");
    let hold =
        timeout(700 * MS, waiter).await.expect("found by polling, every 250 ms at most").expect("no panic");
    hold.release(&other).await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn no_session_of_a_detached_hold_outlives_its_acquisition() {
    let memory = memory();
    let store = FaultyStore::new(&memory, |_, _| Behavior::Execute);
    let closed = store.mailboxes_closed.clone();
    let client = store.client(900 * MS).await;
    let hold = detached(&client).await.expect("acquired");
    assert_eq!(closed.load(Ordering::SeqCst), 1, "its mailbox, and not the client's");
    hold.release(&client).await.expect("released");
    let missed = client.mutex("m").expect("a good name").acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::NoLease)));
    drop(client);
    assert_eq!(closed.load(Ordering::SeqCst), 2);
}
