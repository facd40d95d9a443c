//! Forced release, and its audit trail.

use super::sessions::tracks_sessions;
use crate::conformance::client::LONG;
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{
    Acquired, AuditEntry, Ended, Extended, FencingToken, Fingerprint, ForceReleased, HoldStatus,
    ObservedHolder,
};

/// The holder is notified and learns it from any later request. The first waiter acquires the lock.
pub async fn a_forced_release_grants_to_the_next_and_notifies_the_holder(fixture: &Fixture) {
    let [a, b, c, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b, &c] {
        client.begin(LONG).await;
    }
    let (lost, fence) = a.acquire_with_token().await;
    let (claim, nonce) = b.enqueue().await;
    c.enqueue().await;
    let seen = operator.inspect().await.holder.and_then(|holder| holder.fence);
    assert_eq!(seen, Some(fence));
    assert_eq!(operator.force_release(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(a.next_force_release().await, fence);
    let message = b.next_grant().await;
    assert_eq!(message.nonce, nonce);
    assert!(message.fence > fence);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
    assert_eq!(a.extend(&lost, LONG).await, Extended::NotHeld);
    assert_eq!(a.status(&lost).await, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!(a.release(&lost).await.status, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!(a.acquire(&a.request(&lost, LONG)).await, Acquired::AlreadyEnded(Ended::ForceReleased));
    assert_eq!(
        b.granted(&b.request(&claim, LONG)).await.fence,
        message.fence,
        "the successor still holds it"
    );
    assert_eq!(fixture.grants_so_far(&c).await, []);
}

/// Row 43: a hold acquired since the inspection is not released, nor is a free lock.
pub async fn a_late_forced_release_ends_nothing(fixture: &Fixture) {
    let [a, b, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    a.begin(LONG).await;
    b.begin(LONG).await;
    let (first, old) = a.acquire_with_token().await;
    let (claim, _) = b.enqueue().await;
    a.release(&first).await;
    let fence = b.next_grant().await.fence;
    let token = ObservedHolder::Foreign(Fingerprint::of(&b.lock.kind.token(&claim)));
    for wrong in [
        ObservedHolder::Hold(old),
        ObservedHolder::Hold(FencingToken::new(0)),
        ObservedHolder::Foreign(Fingerprint::of("x")),
        token,
    ] {
        let ForceReleased::Changed { holder } = operator.force_release(wrong).await else {
            panic!("{wrong:?} released another hold")
        };
        assert_eq!(holder.and_then(|holder| holder.fence), Some(fence), "the reply has the holder");
    }
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
    b.release(&claim).await;
    assert_eq!(
        operator.force_release(ObservedHolder::Hold(fence)).await,
        ForceReleased::Changed { holder: None }
    );
    assert_eq!(operator.inspect_full().await.audit, []);
}

/// Row 14: a client of another library is recognised by the fingerprint of its value, and by nothing else.
pub async fn a_foreign_hold_is_released_by_its_fingerprint(fixture: &Fixture) {
    let [a, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) else {
        return report_unsupported("clients of other libraries");
    };
    put.await;
    let foreign_value = Fingerprint::of(&[a.lock.kind.token_prefix(), "their-token"].concat());
    a.begin(LONG).await;
    let (claim, nonce) = a.enqueue().await;
    let seen = operator.inspect_full().await;
    assert_eq!(seen.foreign_fingerprint, Some(foreign_value));
    assert_eq!(operator.inspect().await.foreign_fingerprint, None, "only a full inspection reports it");
    for wrong in
        [ObservedHolder::Foreign(Fingerprint::of("another")), ObservedHolder::Hold(FencingToken::new(0))]
    {
        assert_eq!(
            operator.force_release(wrong).await,
            ForceReleased::Changed { holder: seen.holder.clone() }
        );
    }
    assert_eq!(operator.force_release(ObservedHolder::Foreign(foreign_value)).await, ForceReleased::Released);
    assert_eq!(a.next_grant().await.nonce, nonce);
    assert_eq!(a.status(&claim).await, HoldStatus::Held);
    let audit = operator.inspect_full().await.audit;
    let [AuditEntry { ended: Ended::ForceReleased, fence: None, holder: None, actor: by, .. }] =
        audit.as_slice()
    else {
        panic!("{audit:?}")
    };
    assert_eq!(*by, operator.label());
}

/// The audit trail lists the newest 32 entries, newest first.
pub async fn forced_releases_are_audited(fixture: &Fixture) {
    let [a, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    a.begin(LONG).await;
    let mut fences = Vec::new();
    for _ in 0..40 {
        let (_, fence) = a.acquire_with_token().await;
        assert_eq!(operator.force_release(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
        assert_eq!(a.next_force_release().await, fence);
        fences.insert(0, fence);
        let audit = operator.inspect_full().await.audit;
        let found: Vec<_> = audit.iter().map(|entry| entry.fence).collect();
        let expected: Vec<_> = fences.iter().copied().map(Some).take(32).collect();
        assert_eq!(found, expected);
        assert!(audit.iter().all(|entry| entry.ended == Ended::ForceReleased));
        assert!(audit.iter().all(|entry| entry.holder == Some(a.label()) && entry.actor == operator.label()));
        assert!(audit.is_sorted_by_key(|entry| std::cmp::Reverse(entry.at_ms)));
    }
    let quiet = operator.inspect().await.audit;
    assert_eq!(quiet, [], "only a full inspection reports it");
}
