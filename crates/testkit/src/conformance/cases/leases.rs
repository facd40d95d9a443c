//! How long a hold lasts.

use crate::conformance::client::{LONG, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Extended, HoldStatus, drift};
use std::time::{Duration, Instant};

/// An extend never brings the expiry nearer, however late it comes or however little it requests.
pub async fn an_extend_only_raises(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.take(LONG).await;
    assert_eq!(a.extend(&claim, LONG * 3).await, Extended::Extended);
    let raised = a.remaining_ms().await;
    assert!(raised > millis(LONG * 3) - 60_000 && raised <= millis(LONG * 3), "{raised}");
    assert_eq!(a.extend(&claim, Duration::from_millis(1)).await, Extended::Extended);
    assert!(a.remaining_ms().await > millis(LONG * 3) - 120_000);
    let again = a.granted(&a.ask(&claim, Duration::from_millis(1))).await;
    assert!(again.remaining_ms > millis(LONG * 3) - 120_000, "a look does not shorten either");
}

/// Row 7: a hold that was released, has expired or never existed cannot be extended. The attempt extends no other
/// hold.
pub async fn a_hold_that_is_gone_cannot_be_extended(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    assert_eq!(a.extend(&a.claim(), LONG).await, Extended::NotHeld);
    let expired = a.take(fixture.short()).await;
    fixture.outlast(fixture.short(), &a).await;
    assert_eq!(a.extend(&expired, LONG).await, Extended::NotHeld);
    assert_eq!(a.inspect().await.holder, None, "the extend did not revive it");
    let released = a.take(LONG).await;
    a.release(&released).await;
    assert_eq!(a.extend(&released, LONG).await, Extended::NotHeld);
    b.take(LONG).await;
    assert_eq!(a.extend(&released, LONG * 5).await, Extended::NotHeld);
    let (queued, _) = a.enqueue().await;
    assert_eq!(a.extend(&queued, LONG * 5).await, Extended::NotHeld, "who waits does not hold");
    assert!(b.remaining_ms().await <= millis(LONG));
}

/// Row 13: counted from before the request was sent, and less the drift, the hold is there for as long
/// as its client may believe. And it ends.
pub async fn a_lease_lasts_as_long_as_it_is_believed(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let lease = fixture.short();
    let believed = lease.saturating_sub(drift(lease));
    if fixture.moves_clock() {
        let claim = a.take(lease).await;
        // Such a clock may run on by itself as well.
        fixture.pass(lease.saturating_sub(Duration::from_millis(1500))).await;
        assert_eq!(a.fate(&claim).await, HoldStatus::Held);
    } else {
        let sent = Instant::now();
        let claim = a.take(lease).await;
        loop {
            let fate = a.fate(&claim).await;
            if sent.elapsed() >= believed {
                break;
            }
            assert_eq!(fate, HoldStatus::Held, "{:?} after it was sent", sent.elapsed());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    fixture.outlast(lease, &b).await;
    b.take(LONG).await;
}

/// Row 15: any lease from a millisecond to a month, none cut to nothing and none without an end.
pub async fn any_lease_from_a_millisecond_to_a_month(fixture: &Fixture) {
    let month = Duration::from_secs(30 * 86_400);
    for lease in [Duration::from_millis(1), Duration::from_millis(999), month] {
        let a = fixture.client().await.at(&fixture.another_lock());
        let claim = a.claim();
        let granted = a.granted(&a.ask(&claim, lease)).await;
        assert!(granted.remaining_ms <= millis(lease), "{granted:?} of {lease:?}");
        // The hold is new: reply and lease come from one operation.
        assert!(granted.remaining_ms + 10 >= millis(lease), "{granted:?} of {lease:?}");
        if lease == month {
            assert_eq!(a.release(&claim).await.status, HoldStatus::Held);
        } else {
            fixture.outlast(lease, &a).await;
            assert_eq!(a.fate(&claim).await, HoldStatus::Vanished);
        }
    }
    let a = fixture.client().await;
    let claim = a.take(LONG).await;
    assert_eq!(a.extend(&claim, month).await, Extended::Extended);
    assert!(a.remaining_ms().await > millis(month) - 60_000);
}
