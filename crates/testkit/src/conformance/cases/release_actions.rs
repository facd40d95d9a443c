//! Release actions: grant to the next waiter, acquire again, or leave free for others.

use crate::conformance::client::{LONG, granted, millis, taken};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquired, Ended, HoldStatus, ReleaseAction, Released};
use std::time::Duration;

/// Rows 24 and 44: a release sends one notification, to the first waiter, with the nonce of its last poll and the
/// token of its hold.
pub async fn a_grant_notifies_exactly_one_waiter(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let claim = b.claim();
    b.enqueue_as(&claim, LONG).await;
    c.enqueue().await;
    d.enqueue().await;
    let nonce = b.enqueue_as(&claim, LONG).await;
    a.release(&held).await;
    let grant = b.next_grant().await;
    assert_eq!(grant.nonce, nonce, "the nonce of the last poll");
    assert_eq!(grant.fence, b.granted(&b.request(&claim, LONG)).await.fence);
    for client in [&a, &b, &c, &d] {
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
}

/// A grant lasts for the lease that its waiter requested, counted from the grant.
pub async fn a_grant_lasts_for_the_requested_lease(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let claim = b.claim();
    b.taken(&b.queued_request(&claim, LONG * 4, LONG)).await;
    b.require_queue().await;
    b.taken(&b.queued_request(&claim, LONG * 2, LONG)).await;
    a.release(&held).await;
    let remaining_ms = b.remaining_ms().await;
    assert!(remaining_ms <= millis(LONG * 2) && remaining_ms > millis(LONG * 2) - 60_000, "{remaining_ms}");
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

/// A release that queues again in the same step is behind the current waiters.
pub async fn a_release_queues_again_behind_the_others(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (claim, nonce) = b.enqueue().await;
    let next = a.claim();
    let poll = a.queued_request(&next, LONG, LONG);
    let again = next_of(a.release_and(&held, ReleaseAction::Grant, Some(poll.clone())).await);
    let taken = taken(again);
    assert_eq!(taken.position, Some(0));
    assert_eq!(taken.holder.and_then(|holder| holder.label), Some(b.label()));
    assert_eq!(b.next_grant().await.nonce, nonce);
    b.release(&claim).await;
    assert_eq!(Some(a.next_grant().await.nonce), poll.queue.map(|queue| queue.nonce));
    assert_eq!(a.status(&next).await, HoldStatus::Held);
}

/// Without other waiters, the same release acquires at once, with a new hold and token.
pub async fn a_release_without_waiters_acquires_at_once(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.claim();
    let first = a.granted(&a.request(&claim, LONG)).await;
    let next = a.claim();
    let released =
        a.release_and(&claim, ReleaseAction::Grant, Some(a.queued_request(&next, LONG, LONG))).await;
    assert_eq!(released.status, HoldStatus::Held);
    let second = granted(next_of(released));
    assert!(second.fence > first.fence && !second.others_wait, "{second:?} after {first:?}");
    assert_eq!(a.status(&claim).await, HoldStatus::Ended(Ended::Released));
    assert_eq!(a.status(&next).await, HoldStatus::Held);
}

/// Row 2: a resent release that acquires again is the same operation, even if it comes after the new hold has ended.
pub async fn a_resent_release_that_acquires_is_one(fixture: &Fixture) {
    for pass in [ReleaseAction::Grant, ReleaseAction::Free] {
        let a = fixture.client().await.at(&fixture.another_lock());
        let held = a.acquire_new(LONG).await;
        let next = a.claim();
        let poll = a.queued_request(&next, LONG, LONG);
        let first = a.release_and(&held, pass, Some(poll.clone())).await;
        assert_eq!(first.status, HoldStatus::Held);
        let own = a.granted(&poll).await;
        let second = a.release_and(&held, pass, Some(poll.clone())).await;
        assert_eq!(second.status, HoldStatus::Ended(Ended::Released));
        assert_eq!(granted(next_of(second)).fence, own.fence);
        assert_eq!(a.inspect().await.waiters, 0, "a holder does not wait");
        a.release(&next).await;
        let third = a.release_and(&held, pass, Some(poll)).await;
        assert_eq!(next_of(third), Acquired::AlreadyEnded(Ended::Released));
        let inspection = a.inspect().await;
        assert_eq!((inspection.holder, inspection.waiters), (None, 0));
    }
}

/// A release can leave the lock free for clients of other libraries. The queue stays, no waiter is notified, and the
/// next poll by any waiter grants to the first.
pub async fn a_lock_left_free_keeps_its_queue(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (first, nonce) = b.enqueue().await;
    let (second, _) = c.enqueue().await;
    let own = a.claim();
    let next = a.queued_request(&own, LONG, LONG);
    let released = a.release_and(&held, ReleaseAction::Free, Some(next)).await;
    assert_eq!(released.status, HoldStatus::Held);
    let taken = taken(next_of(released));
    assert_eq!((taken.holder, taken.position), (None, Some(2)));
    let inspection = a.inspect().await;
    assert_eq!((inspection.holder, inspection.waiters), (None, 3));
    assert_eq!(fixture.grants_so_far(&b).await, []);
    c.taken(&c.queued_request(&second, LONG, LONG)).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&first).await, HoldStatus::Held);
    b.release_and(&first, ReleaseAction::Free, None).await;
    assert_eq!(a.inspect().await.holder, None);
}

/// Every operation that finds the lock free grants it, even the release of a hold that has ended before.
pub async fn a_late_release_grants_a_free_lock(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let late = a.acquire_new(fixture.short_lease()).await;
    let (claim, nonce) = b.enqueue().await;
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the lease ends", async || b.inspect().await.holder.is_none()).await;
    assert_eq!(a.release(&late).await.status, HoldStatus::Vanished);
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

fn next_of(released: Released) -> Acquired {
    match released.next {
        Some(Ok(acquired)) => acquired,
        other => panic!("the acquire that came with the release was answered by {other:?}"),
    }
}
