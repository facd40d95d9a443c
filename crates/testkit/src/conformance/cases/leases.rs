//! How long a hold lasts.

use crate::conformance::client::{LONG, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Extended, FencingToken, HoldStatus, drift};
use std::time::{Duration, Instant};

/// An extend never shortens the lease, however late it arrives or however little it requests.
pub async fn an_extend_never_shortens(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.acquire_new(LONG).await;
    assert_eq!(a.extend(&claim, LONG * 3).await, Extended::Extended);
    let raised = a.remaining_ms().await;
    assert!(raised > millis(LONG * 3) - 60_000 && raised <= millis(LONG * 3), "{raised}");
    assert_eq!(a.extend(&claim, Duration::from_millis(1)).await, Extended::Extended);
    assert!(a.remaining_ms().await > millis(LONG * 3) - 120_000);
    let again = a.granted(&a.request(&claim, Duration::from_millis(1))).await;
    assert!(again.remaining_ms > millis(LONG * 3) - 120_000, "a poll does not shorten it either");
}

/// Row 7: a hold that was released, has expired or never existed cannot be extended. The attempt extends no other
/// hold.
pub async fn a_hold_that_has_ended_cannot_be_extended(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    assert_eq!(a.extend(&a.claim(), LONG).await, Extended::NotHeld);
    let expired = a.acquire_new(fixture.short_lease()).await;
    fixture.wait_expired(fixture.short_lease(), &a).await;
    assert_eq!(a.extend(&expired, LONG).await, Extended::NotHeld);
    assert_eq!(a.inspect().await.holder, None, "the extend did not revive it");
    let released = a.acquire_new(LONG).await;
    a.release(&released).await;
    assert_eq!(a.extend(&released, LONG).await, Extended::NotHeld);
    b.acquire_new(LONG).await;
    assert_eq!(a.extend(&released, LONG * 5).await, Extended::NotHeld);
    let (queued, _) = a.enqueue().await;
    assert_eq!(a.extend(&queued, LONG * 5).await, Extended::NotHeld, "a waiter does not hold the lock");
    assert!(b.remaining_ms().await <= millis(LONG));
}

/// Row 51: an extend that names a fencing token extends the hold only if it was granted with that token. A promoted replica
/// may have granted the same hold anew.
pub async fn an_extend_that_names_a_token_extends_only_that_grant(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (claim, fence) = a.acquire_with_token().await;
    assert_eq!(a.extend_grant(&claim, fence, LONG * 2).await, Extended::Extended);
    for other in [fence.as_u64() - 1, fence.as_u64() + 1] {
        assert_eq!(a.extend_grant(&claim, FencingToken::new(other), LONG * 5).await, Extended::NotHeld);
    }
    let left = b.remaining_ms().await;
    assert!(left > millis(LONG) && left <= millis(LONG * 2), "{left}");
    assert_eq!(b.extend_grant(&b.claim(), fence, LONG * 5).await, Extended::NotHeld);
    assert_eq!(a.status(&claim).await, HoldStatus::Held);
    a.release(&claim).await;
    assert_eq!(a.extend_grant(&claim, fence, LONG).await, Extended::NotHeld);
}

/// Row 13: the hold lasts as long as its client assumes: the lease counted from before the request was sent, less the
/// allowance for drift. Then it ends.
pub async fn a_lease_lasts_as_long_as_its_client_assumes(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let lease = fixture.short_lease();
    let assumed = lease.saturating_sub(drift(lease));
    if fixture.controls_clock() {
        let claim = a.acquire_new(lease).await;
        // This clock may advance on its own as well.
        fixture.advance(lease.saturating_sub(Duration::from_millis(1500))).await;
        assert_eq!(a.status(&claim).await, HoldStatus::Held);
    } else {
        let sent = Instant::now();
        let claim = a.acquire_new(lease).await;
        loop {
            let fate = a.status(&claim).await;
            if sent.elapsed() >= assumed {
                break;
            }
            assert_eq!(fate, HoldStatus::Held, "{:?} after the request was sent", sent.elapsed());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    fixture.wait_expired(lease, &b).await;
    b.acquire_new(LONG).await;
}

/// Row 15: any lease from a millisecond to a month is granted in full, and ends.
pub async fn any_lease_from_a_millisecond_to_a_month(fixture: &Fixture) {
    let month = Duration::from_secs(30 * 86_400);
    for lease in [Duration::from_millis(1), Duration::from_millis(999), month] {
        let a = fixture.client().await.at(&fixture.another_lock());
        let claim = a.claim();
        let granted = a.granted(&a.request(&claim, lease)).await;
        assert!(granted.remaining_ms <= millis(lease), "{granted:?} of {lease:?}");
        // The hold is new: reply and lease come from one operation.
        assert!(granted.remaining_ms + 10 >= millis(lease), "{granted:?} of {lease:?}");
        if lease == month {
            assert_eq!(a.release(&claim).await.status, HoldStatus::Held);
        } else {
            fixture.wait_expired(lease, &a).await;
            assert_eq!(a.status(&claim).await, HoldStatus::Vanished);
        }
    }
    let a = fixture.client().await;
    let claim = a.acquire_new(LONG).await;
    assert_eq!(a.extend(&claim, month).await, Extended::Extended);
    assert!(a.remaining_ms().await > millis(month) - 60_000);
}
