//! Stored values: custom ones, and locks of other libraries.

use crate::conformance::client::{LONG, millis};
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{Extended, HoldStatus, Op, Refused, Reply};
use std::time::Duration;

/// Two holds with the same value exclude each other: a value does not identify a hold.
pub async fn equal_values_exclude_each_other(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let own = a.claim_with_value("deploy-job");
    a.granted(&a.request(&own, LONG)).await;
    // With several servers, this also reaches those whose reply was not awaited.
    a.inspect().await;
    for other in [b.claim_with_value("deploy-job"), a.claim_with_value("deploy-job")] {
        b.taken(&b.request(&other, LONG)).await;
        assert_eq!(b.extend(&other, LONG * 2).await, Extended::NotHeld);
        assert_eq!(b.release(&other).await.status, HoldStatus::Superseded);
    }
    assert_eq!(a.granted(&a.request(&own, LONG)).await.remaining_ms / 3_600_001, 0);
    assert_eq!(a.release(&own).await.status, HoldStatus::Held);
}

/// Row 16 with values: a late release does not end the hold of a successor with the same value.
pub async fn a_late_release_leaves_an_equal_value_alone(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (late, successor) = (a.claim_with_value("deploy-job"), b.claim_with_value("deploy-job"));
    a.granted(&a.request(&late, fixture.short_lease())).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    b.granted(&b.request(&successor, LONG)).await;
    assert_eq!(a.release(&late).await.status, HoldStatus::Superseded);
    assert_eq!(b.status(&successor).await, HoldStatus::Held);
}

/// A hold with a value is granted from the queue like any other.
pub async fn a_value_is_granted_from_the_queue(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let claim = b.claim_with_value("{\"quoted\": \"%s * ? [x] \u{e9}\"}");
    let nonce = b.enqueue_as(&claim, LONG).await;
    a.release(&held).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
    assert_eq!(b.extend(&claim, LONG * 2).await, Extended::Extended);
    assert_eq!(b.release(&claim).await.status, HoldStatus::Held);
}

/// A foreign lock excludes Leasehold's clients. Only its remaining time is known.
pub async fn a_foreign_lock_excludes(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", Some(LONG)) else {
        return report_unsupported("key to set");
    };
    put.await;
    let claim = a.claim_with_value("their-token");
    let holder = a.taken(&a.request(&claim, LONG)).await.holder.expect("a holder");
    assert!(holder.is_foreign());
    assert_eq!((holder.fence, holder.since_ms), (None, None));
    assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(LONG) && ms > millis(LONG) - 60_000));
    assert_eq!(a.extend(&claim, LONG * 2).await, Extended::NotHeld);
    assert_eq!(a.release(&claim).await.status, HoldStatus::Superseded);
    let (queued, _) = b.enqueue().await;
    let Some(deleted) = fixture.subject.delete_key(&fixture.lock) else {
        return report_unsupported("key to delete");
    };
    deleted.await;
    b.granted(&b.queued_request(&queued, LONG, LONG)).await;
}

/// Row 16: a resent release does not release a foreign lock with the same value.
pub async fn a_resent_release_leaves_a_foreign_lock_alone(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.claim_with_value("deploy-job");
    a.granted(&a.request(&claim, LONG)).await;
    a.release(&claim).await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "deploy-job", Some(LONG)) else {
        return report_unsupported("key to set");
    };
    put.await;
    assert_eq!(a.extend(&claim, LONG * 2).await, Extended::NotHeld);
    assert_ne!(a.release(&claim).await.status, HoldStatus::Held);
    assert!(a.inspect().await.holder.is_some(), "the foreign client still holds it");
}

/// A foreign lock without an expiry gets one from the next waiter that requests it, once.
pub async fn a_lock_without_expiry_is_adopted_on_request(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) else {
        return report_unsupported("key to set");
    };
    put.await;
    let claim = a.claim();
    let taken = a.taken(&a.queued_request(&claim, LONG, LONG)).await;
    assert_eq!(taken.holder.map(|holder| holder.remaining_ms), Some(None), "it has no expiry");
    let lease = fixture.short_lease();
    for expiry in [lease, LONG] {
        let mut poll = a.queued_request(&claim, LONG, LONG);
        poll.expire_foreign_ms = Some(millis(expiry));
        let holder = a.taken(&poll).await.holder.expect("a holder");
        assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(lease)), "{holder:?}");
    }
    fixture.advance(lease + Duration::from_millis(2)).await;
    fixture.wait_until("the lease ends", async || a.inspect().await.holder.is_none()).await;
    a.granted(&a.queued_request(&claim, LONG, LONG)).await;
}

/// A key of another type is refused with its type, and stays unchanged.
pub async fn another_type_of_key_is_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(put) = fixture.subject.put_other_type(&fixture.lock) else {
        return report_unsupported("key of another type");
    };
    let found = put.await;
    let claim = a.claim();
    let refused = Reply::Refused(Refused::WrongKind { found });
    for request in [a.request(&claim, LONG), a.queued_request(&claim, LONG, LONG)] {
        assert_eq!(a.execute(&Op::Acquire(request)).await, refused);
    }
    assert_eq!(a.extend(&claim, LONG).await, Extended::NotHeld);
    assert_ne!(a.release(&claim).await.status, HoldStatus::Held);
    assert_eq!(a.execute(&Op::Acquire(a.request(&claim, LONG))).await, refused, "it is still there");
}
