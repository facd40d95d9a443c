//! Stored values: custom ones, and locks of other libraries.

use crate::conformance::client::{LONG, millis};
use crate::conformance::fixture::{Fixture, not_applicable};
use leasehold_core::{Extended, HoldStatus, Op, Refused, Reply};
use std::time::Duration;

/// Two holds with the same value exclude each other: the value is not the proof of a hold.
pub async fn equal_values_exclude_each_other(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let mine = a.claim_with("deploy-job");
    a.granted(&a.ask(&mine, LONG)).await;
    // With several servers, this also reaches those that no reply was awaited from.
    a.inspect().await;
    for other in [b.claim_with("deploy-job"), a.claim_with("deploy-job")] {
        b.taken(&b.ask(&other, LONG)).await;
        assert_eq!(b.extend(&other, LONG * 2).await, Extended::NotHeld);
        assert_eq!(b.release(&other).await.status, HoldStatus::Superseded);
    }
    assert_eq!(a.granted(&a.ask(&mine, LONG)).await.remaining_ms / 3_600_001, 0);
    assert_eq!(a.release(&mine).await.status, HoldStatus::Held);
}

/// Row 16 with values: a late release does not end the hold of a successor with the same value.
pub async fn a_late_release_leaves_an_equal_value_alone(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (late, successor) = (a.claim_with("deploy-job"), b.claim_with("deploy-job"));
    a.granted(&a.ask(&late, fixture.short())).await;
    fixture.outlast(fixture.short(), &b).await;
    b.granted(&b.ask(&successor, LONG)).await;
    assert_eq!(a.release(&late).await.status, HoldStatus::Superseded);
    assert_eq!(b.fate(&successor).await, HoldStatus::Held);
}

/// A hold with a value is granted from the queue as any other.
pub async fn a_value_is_granted_from_the_queue(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.take(LONG).await;
    let claim = b.claim_with("{\"quoted\": \"%s * ? [x] \u{e9}\"}");
    let nonce = b.enqueue_as(&claim, LONG).await;
    a.release(&held).await;
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
    assert_eq!(b.extend(&claim, LONG * 2).await, Extended::Extended);
    assert_eq!(b.release(&claim).await.status, HoldStatus::Held);
}

/// A foreign lock excludes ours. Only its remaining time is known.
pub async fn a_foreign_lock_excludes(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", Some(LONG)) else {
        return not_applicable("key to set");
    };
    put.await;
    let claim = a.claim_with("their-token");
    let holder = a.taken(&a.ask(&claim, LONG)).await.holder.expect("a holder");
    assert!(holder.is_foreign());
    assert_eq!((holder.fence, holder.since_ms), (None, None));
    assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(LONG) && ms > millis(LONG) - 60_000));
    assert_eq!(a.extend(&claim, LONG * 2).await, Extended::NotHeld);
    assert_eq!(a.release(&claim).await.status, HoldStatus::Superseded);
    let (queued, _) = b.enqueue().await;
    let Some(deleted) = fixture.subject.delete_key(&fixture.lock) else {
        return not_applicable("key to delete");
    };
    deleted.await;
    b.granted(&b.look(&queued, LONG, LONG)).await;
}

/// Row 16: a resent release does not release a foreign lock with the same value.
pub async fn a_resent_release_leaves_a_stranger_alone(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.claim_with("deploy-job");
    a.granted(&a.ask(&claim, LONG)).await;
    a.release(&claim).await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "deploy-job", Some(LONG)) else {
        return not_applicable("key to set");
    };
    put.await;
    assert_eq!(a.extend(&claim, LONG * 2).await, Extended::NotHeld);
    assert_ne!(a.release(&claim).await.status, HoldStatus::Held);
    assert!(a.inspect().await.holder.is_some(), "the stranger still has it");
}

/// A foreign lock without an expiry gets one from the next waiter that requests it, once.
pub async fn a_lock_without_expiry_is_adopted_if_asked(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) else {
        return not_applicable("key to set");
    };
    put.await;
    let claim = a.claim();
    let taken = a.taken(&a.look(&claim, LONG, LONG)).await;
    assert_eq!(taken.holder.map(|holder| holder.remaining_ms), Some(None), "it has no end");
    let lease = fixture.short();
    for adopt in [lease, LONG] {
        let mut look = a.look(&claim, LONG, LONG);
        look.adopt_ms = Some(millis(adopt));
        let holder = a.taken(&look).await.holder.expect("a holder");
        assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(lease)), "{holder:?}");
    }
    fixture.pass(lease + Duration::from_millis(2)).await;
    fixture.until("the lease ends", async || a.inspect().await.holder.is_none()).await;
    a.granted(&a.look(&claim, LONG, LONG)).await;
}

/// A key that is something else is a clear refusal, and stays as it is.
pub async fn another_type_of_key_is_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(put) = fixture.subject.put_other_type(&fixture.lock) else {
        return not_applicable("key of another type");
    };
    let found = put.await;
    let claim = a.claim();
    let refused = Reply::Refused(Refused::WrongKind { found });
    for ask in [a.ask(&claim, LONG), a.look(&claim, LONG, LONG)] {
        assert_eq!(a.execute(&Op::Acquire(ask)).await, refused);
    }
    assert_eq!(a.extend(&claim, LONG).await, Extended::NotHeld);
    assert_ne!(a.release(&claim).await.status, HoldStatus::Held);
    assert_eq!(a.execute(&Op::Acquire(a.ask(&claim, LONG))).await, refused, "it is still there");
}
