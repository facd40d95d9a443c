//! Releases whose first reply is lost: what they return.

use crate::faulty_store::{Behavior, Counter, FaultyStore, MS};
use crate::fixture::{force_release, mutex};
use crate::until::until_waiting;
use leasehold::store::Op;
use leasehold::{Client, LostReason, ReleaseError, Released};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(2);

/// A waiter for the lock that then acquires it so often that the store forgets the earlier holds.
async fn waited_for(other: &Client) -> tokio::task::JoinHandle<()> {
    let theirs = mutex(other, "a");
    let visit = tokio::spawn({
        let theirs = theirs.clone();
        async move {
            for _ in 0..leasehold::core::model::EndedHolds::MAX_LEN {
                theirs.acquire().await.expect("acquired").release().await.expect("released");
            }
        }
    });
    until_waiting(&theirs, 1).await;
    visit
}

/// The release was executed and its reply lost. By the time it is repeated, so many other holds have ended that the
/// store no longer remembers: it cannot report whether the release or a loss ended the hold.
#[tokio::test(start_paused = true)]
async fn a_release_that_may_have_worked_is_not_reported_as_a_loss() {
    let releases = Counter::default();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if releases.next() == 0 => Behavior::ExecuteAndDisconnect,
        Op::Release(_) => Behavior::ExecuteAfter(300 * MS),
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    let lost = guard.lost_signal();
    let visit = waited_for(&other).await;
    let released = guard.release().await;
    visit.await.expect("no panic");
    assert!(matches!(released, Err(ReleaseError::Unknown(_))), "{released:?}");
    assert!(!lost.is_cancelled(), "no loss is known");
}

/// Two holds of one owner are released at the same time over a connection that breaks: the store remembers both.
#[tokio::test(start_paused = true)]
async fn two_repeated_releases_of_one_owner_report_no_loss() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() < 2 => Behavior::ExecuteAndDisconnect,
        _ => Behavior::Execute,
    });
    let client = store.client_with_timeout(CALL).await;
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&client.new_owner());
    let one = ours.acquire().await.expect("acquired");
    let other = ours.acquire().await.expect("entered again");
    let (one, other) = tokio::join!(one.release(), other.release());
    assert_eq!(
        (one.expect("released"), other.expect("released")),
        (Released::NoLongerHeld, Released::NoLongerHeld)
    );
    assert_eq!(releases.next(), 4, "both were sent again");
}

/// A loss that the store reports for certain is reported, even if the release may have been executed before.
#[tokio::test(start_paused = true)]
async fn a_forced_release_is_reported_by_whichever_request_finds_it() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Behavior::Disconnect,
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    force_release(&mutex(&other, "a")).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ForceReleased))), "{released:?}");
    assert_eq!(releases.next(), 2, "it was sent again");
}

/// A shutdown during a release learns its result by a second release request, sent after the first.
#[tokio::test(start_paused = true)]
async fn a_release_taken_over_by_a_shutdown_reports_its_outcome() {
    for visited in [false, true] {
        let releases = Counter::default();
        let count = releases.clone();
        let store = FaultyStore::with_sessions(move |_, op| match op {
            Op::Release(_) if count.next() == 0 => Behavior::LoseReply,
            _ => Behavior::Execute,
        });
        let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
        let guard = mutex(&client, "a").acquire().await.expect("acquired");
        let visit = if visited { Some(waited_for(&other).await) } else { None };
        let release = tokio::spawn(guard.release());
        releases.until(1).await;
        if let Some(visit) = visit {
            visit.await.expect("no panic");
        }
        client.shutdown(SOON).await.expect("the store answers");
        let released = release.await.expect("no panic");
        if visited {
            assert!(matches!(released, Err(ReleaseError::Unknown(_))), "{released:?}");
        } else {
            released.expect("it was executed");
        }
        assert_eq!(releases.next(), 2, "the user's release, and one after it");
    }
}

/// The result includes the owner's remaining hold count, whichever client released.
#[tokio::test(start_paused = true)]
async fn a_release_taken_over_by_a_shutdown_reports_the_remaining_count() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Behavior::LoseReply,
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let owner = client.new_owner();
    let elsewhere = other.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let elsewhere = elsewhere.acquire().await.expect("acquired");
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let guard = ours.acquire().await.expect("entered");
    let release = tokio::spawn(guard.release());
    releases.until(1).await;
    client.shutdown(SOON).await.expect("the store answers");
    let released = release.await.expect("no panic").expect("it was executed");
    assert_eq!(released, Released::StillHeld { count: 1 });
    elsewhere.release().await.expect("released");
}
