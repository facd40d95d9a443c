//! Forced release, and its audit trail.

use super::sessions::{keeps, take};
use crate::conformance::client::LONG;
use crate::conformance::fixture::{Fixture, not_applicable};
use leasehold_core::{
    Acquired, AuditEntry, Ended, Extended, FencingToken, Fingerprint, ForceReleased, HoldStatus,
    ObservedHolder,
};

/// The holder is notified and learns it from any later request. The first waiter acquires the lock.
pub async fn a_forced_release_grants_to_the_next_and_tells_the_holder(fixture: &Fixture) {
    let [a, b, c, person] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    for client in [&a, &b, &c] {
        client.begin(LONG).await;
    }
    let (lost, fence) = take(&a).await;
    let (claim, nonce) = b.enqueue().await;
    c.enqueue().await;
    let seen = person.inspect().await.holder.and_then(|holder| holder.fence);
    assert_eq!(seen, Some(fence));
    assert_eq!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(a.freed().await, fence);
    let message = b.message().await;
    assert_eq!(message.nonce, nonce);
    assert!(message.fence > fence);
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
    assert_eq!(a.extend(&lost, LONG).await, Extended::NotHeld);
    assert_eq!(a.fate(&lost).await, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!(a.release(&lost).await.status, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!(a.acquire(&a.ask(&lost, LONG)).await, Acquired::AlreadyEnded(Ended::ForceReleased));
    assert_eq!(b.granted(&b.ask(&claim, LONG)).await.fence, message.fence, "the successor has it still");
    assert_eq!(fixture.grants_so_far(&c).await, []);
}

/// Row 43: a hold acquired since the inspection is not released, nor is a free lock.
pub async fn a_forced_release_that_comes_too_late_takes_nothing(fixture: &Fixture) {
    let [a, b, person] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    a.begin(LONG).await;
    b.begin(LONG).await;
    let (first, old) = take(&a).await;
    let (claim, _) = b.enqueue().await;
    a.release(&first).await;
    let fence = b.message().await.fence;
    let token = ObservedHolder::Foreign(Fingerprint::of(&b.lock.kind.token(&claim)));
    for wrong in [
        ObservedHolder::Hold(old),
        ObservedHolder::Hold(FencingToken::new(0)),
        ObservedHolder::Foreign(Fingerprint::of("x")),
        token,
    ] {
        let ForceReleased::Changed { holder } = person.free(wrong).await else {
            panic!("{wrong:?} took it from another")
        };
        assert_eq!(holder.and_then(|holder| holder.fence), Some(fence), "who has it is told");
    }
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
    b.release(&claim).await;
    assert_eq!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Changed { holder: None });
    assert_eq!(person.inspect_full().await.audit, []);
}

/// Row 14: a client of another library is recognised by the fingerprint of its value, and by nothing else.
pub async fn a_stranger_is_freed_by_its_fingerprint(fixture: &Fixture) {
    let [a, person] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) else {
        return not_applicable("clients of other libraries");
    };
    put.await;
    let theirs = Fingerprint::of(&[a.lock.kind.token_prefix(), "their-token"].concat());
    a.begin(LONG).await;
    let (claim, nonce) = a.enqueue().await;
    let seen = person.inspect_full().await;
    assert_eq!(seen.foreign_fingerprint, Some(theirs));
    assert_eq!(person.inspect().await.foreign_fingerprint, None, "only people want to know it");
    for wrong in
        [ObservedHolder::Foreign(Fingerprint::of("another")), ObservedHolder::Hold(FencingToken::new(0))]
    {
        assert_eq!(person.free(wrong).await, ForceReleased::Changed { holder: seen.holder.clone() });
    }
    assert_eq!(person.free(ObservedHolder::Foreign(theirs)).await, ForceReleased::Released);
    assert_eq!(a.message().await.nonce, nonce);
    assert_eq!(a.fate(&claim).await, HoldStatus::Held);
    let audit = person.inspect_full().await.audit;
    let [AuditEntry { ended: Ended::ForceReleased, fence: None, holder: None, actor, .. }] = audit.as_slice()
    else {
        panic!("{audit:?}")
    };
    assert_eq!(*actor, person.label());
}

/// The audit trail lists the newest 32 entries, newest first.
pub async fn what_was_taken_is_written_down(fixture: &Fixture) {
    let [a, person] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    a.begin(LONG).await;
    let mut fences = Vec::new();
    for _ in 0..40 {
        let (_, fence) = take(&a).await;
        assert_eq!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
        assert_eq!(a.freed().await, fence);
        fences.insert(0, fence);
        let audit = person.inspect_full().await.audit;
        let found: Vec<_> = audit.iter().map(|entry| entry.fence).collect();
        let expected: Vec<_> = fences.iter().copied().map(Some).take(32).collect();
        assert_eq!(found, expected);
        assert!(audit.iter().all(|entry| entry.ended == Ended::ForceReleased));
        assert!(audit.iter().all(|entry| entry.holder == Some(a.label()) && entry.actor == person.label()));
        assert!(audit.is_sorted_by_key(|entry| std::cmp::Reverse(entry.at_ms)));
    }
    let quiet = person.inspect().await.audit;
    assert_eq!(quiet, [], "only people want to know it");
}
