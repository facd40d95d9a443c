//! Mutual exclusion, and what is reported about the holder.

use crate::conformance::client::{LONG, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquired, Ended, HoldStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Row 17: two holds exclude each other: of two processes, of one session, or of a session and its keeper's fork.
pub async fn two_holds_exclude_each_other(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    a.acquire_new(LONG).await;
    let taken = b.taken(&b.request(&b.claim(), LONG)).await;
    assert_eq!(taken.holder.and_then(|holder| holder.label), Some(a.label()));
    assert_eq!(taken.position, None, "a try does not queue");
    a.taken(&a.request(&a.claim(), LONG)).await;
    let mut fork = a.clone();
    fork.store = a.store.fork();
    fork.taken(&fork.request(&fork.claim(), LONG)).await;
}

/// Rows 1 and 2: a resent acquire is the same acquire. It gets the same token, does not restart the lease, and one
/// release ends it.
pub async fn a_resent_acquire_is_one_acquire(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.claim();
    let first = a.granted(&a.request(&claim, LONG)).await;
    for lease in [LONG, LONG * 2] {
        let again = a.granted(&a.queued_request(&claim, lease, LONG)).await;
        assert_eq!(again.fence, first.fence);
        assert!(again.remaining_ms <= first.remaining_ms, "{again:?} after {first:?}");
    }
    assert_eq!(a.inspect().await.waiters, 0, "a holder does not wait");
    a.release(&claim).await;
    b.acquire_new(LONG).await;
}

/// Row 41: the holder, its remaining time, its age, its token, and the number of waiters.
pub async fn an_inspection_shows_holder_and_remaining_time(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    assert_eq!(a.inspect().await.holder, None);
    let claim = a.claim();
    let granted = a.granted(&a.request(&claim, LONG)).await;
    b.enqueue().await;
    c.enqueue().await;
    let inspection = b.inspect().await;
    assert_eq!(inspection.waiters, 2);
    let holder = inspection.holder.expect("it is held");
    assert_eq!(holder.label, Some(a.label()));
    assert_eq!(holder.fence, Some(granted.fence));
    assert!(holder.since_ms.is_some());
    assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(LONG) && ms + 60_000 > millis(LONG)));
    assert!(!holder.is_foreign());
}

/// An inspection changes nothing: it grants nothing, and refreshes no queue entry.
pub async fn an_inspection_changes_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    a.acquire_new(fixture.short_lease()).await;
    b.enqueue().await;
    fixture.wait_expired(fixture.short_lease(), &a).await;
    let inspection = b.inspect().await;
    assert_eq!((inspection.holder, inspection.waiters), (None, 1), "it is free, and one client waits");
    assert_eq!(fixture.grants_so_far(&b).await, []);
}

/// Rows 1 and 41: the status of every hold can be queried, which makes up for a lost reply.
pub async fn every_hold_status_is_reported(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let lost = a.claim();
    assert_eq!(a.status(&lost).await, HoldStatus::Forgotten);
    a.granted(&a.request(&lost, fixture.short_lease())).await;
    assert_eq!(a.status(&lost).await, HoldStatus::Held);
    fixture.wait_expired(fixture.short_lease(), &a).await;
    assert_eq!(a.status(&lost).await, HoldStatus::Vanished);
    let held = b.acquire_new(LONG).await;
    assert_eq!(a.status(&lost).await, HoldStatus::Superseded);
    let (queued, _) = c.enqueue().await;
    assert_eq!(c.status(&queued).await, HoldStatus::Queued);
    b.release(&held).await;
    assert_eq!(b.status(&held).await, HoldStatus::Ended(Ended::Released));
    assert_eq!(c.status(&queued).await, HoldStatus::Held);
}

/// Rows 19 and 24: many tasks of many processes, at most one holds the lock. Waiters rely on notifications and never poll
/// without one.
pub async fn at_most_one_client_holds_the_lock(fixture: &Fixture) {
    let inside = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let workers = fixture.clients::<6>().await.map(|client| {
        let (inside, last) = (inside.clone(), last.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let mut claim = client.claim();
                let fence = loop {
                    let poll = client.queued_request(&claim, LONG, LONG);
                    match client.acquire(&poll).await {
                        Acquired::Granted { fence, .. } => break fence,
                        Acquired::Taken { .. } if !client.store.capabilities().queue => {
                            claim = client.claim();
                            let pause = Duration::from_millis(1 + client.random.below(20));
                            tokio::time::sleep(pause).await;
                        }
                        Acquired::Taken { .. } => {
                            client.next_grant().await;
                        }
                        Acquired::AlreadyEnded(how) => panic!("a fresh hold was ended: {how:?}"),
                    }
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another holder is inside");
                assert!(last.swap(fence.as_u64(), Ordering::SeqCst) < fence.as_u64(), "tokens grow");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                client.release(&claim).await;
            }
        })
    });
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a task panicked: {error}"));
    }
}
