//! Releases.

use crate::conformance::client::LONG;
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquired, Ended, HoldStatus};

/// A release makes the lock available to the next acquire.
pub async fn a_release_frees(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.acquire_new(LONG).await;
    let released = a.release(&claim).await;
    assert_eq!((released.status, released.holder, released.next), (HoldStatus::Held, None, None));
    assert_eq!(b.inspect().await.holder, None);
    b.acquire_new(LONG).await;
}

/// Rows 16 and 17: a release by another hold changes nothing, and reports the holder.
pub async fn a_release_by_another_hold_changes_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.acquire_new(LONG).await;
    for other in [b.claim(), a.claim()] {
        let released = b.release(&other).await;
        assert_eq!(released.status, HoldStatus::Superseded);
        assert_eq!(released.holder.and_then(|holder| holder.label), Some(a.label()));
    }
    assert_eq!(a.status(&claim).await, HoldStatus::Held);
}

/// Rows 2, 5 and 6: a resent release reports that the hold was released, and leaves a later holder alone.
pub async fn a_resent_release_reports_released(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.acquire_new(LONG).await;
    a.release(&claim).await;
    assert_eq!(a.release(&claim).await.status, HoldStatus::Ended(Ended::Released));
    let other = b.acquire_new(LONG).await;
    assert_eq!(a.release(&claim).await.status, HoldStatus::Ended(Ended::Released));
    assert_eq!(b.status(&other).await, HoldStatus::Held);
}

/// Rows 1 and 2: an acquire that arrives after the release of its hold grants nothing.
pub async fn an_ended_hold_cannot_be_acquired_again(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.acquire_new(LONG).await;
    a.release(&claim).await;
    for request in [a.request(&claim, LONG), a.queued_request(&claim, LONG, LONG)] {
        assert_eq!(a.acquire(&request).await, Acquired::AlreadyEnded(Ended::Released));
    }
    let other = b.acquire_new(LONG).await;
    assert_eq!(
        a.acquire(&a.queued_request(&claim, LONG, LONG)).await,
        Acquired::AlreadyEnded(Ended::Released)
    );
    assert_eq!(a.inspect().await.waiters, 0, "it does not queue either");
    assert_eq!(b.status(&other).await, HoldStatus::Held);
}

/// Row 16: A expires, B acquires, A releases.
pub async fn a_late_release_leaves_the_successor_alone(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let late = a.acquire_new(fixture.short_lease()).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    let claim = b.acquire_new(LONG).await;
    let released = a.release(&late).await;
    assert_eq!(released.status, HoldStatus::Superseded);
    assert_eq!(released.holder.and_then(|holder| holder.label), Some(b.label()));
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
    assert!(b.remaining_ms().await > 60_000, "its lease is untouched");
}

/// Rows 4 and 6: a waiter that gives up leaves the queue, and is not granted.
pub async fn a_release_leaves_the_queue(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (queued, _) = b.enqueue().await;
    let (_, nonce) = c.enqueue().await;
    assert_eq!(b.release(&queued).await.status, HoldStatus::Queued);
    assert_eq!(a.inspect().await.waiters, 1);
    assert_eq!(a.status(&held).await, HoldStatus::Held);
    a.release(&held).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!(fixture.grants_so_far(&b).await, []);
}

/// Row 4: a grant that its waiter releases goes to the next waiter.
pub async fn a_released_grant_goes_to_the_next_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (granted, _) = b.enqueue().await;
    let (_, nonce) = c.enqueue().await;
    a.release(&held).await;
    assert_eq!(b.release(&granted).await.status, HoldStatus::Held);
    assert_eq!(c.next_grant().await.nonce, nonce);
}
