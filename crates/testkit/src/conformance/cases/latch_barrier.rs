//! The Latch, which opens after a number of arrivals, and the Barrier, which opens for a number of parties.

use super::sessions::sessions_lapse;
use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquire, Acquired, Claim, Ended, Evicted, HoldStatus, LockMode, Nonce, Refused};
use std::time::Duration;

const ARRIVE: LockMode = LockMode::CountDown { count: 1, total: 3 };
const AWAIT: LockMode = LockMode::LatchWait { total: 3 };
const MEET: LockMode = LockMode::BarrierWait { total: 3 };

/// Waiters continue after all arrivals, all of them, and not before. Later waiters do not wait.
pub async fn a_latch_opens_when_all_have_arrived(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let waiting = [a.enqueue_mode(AWAIT).await, b.enqueue_mode(AWAIT).await];
    c.acquire_mode(ARRIVE).await;
    d.acquire_mode(ARRIVE).await;
    a.taken(&a.mode_request(&a.claim(), AWAIT)).await;
    for (client, (claim, _)) in [&a, &b].into_iter().zip(&waiting) {
        assert_eq!(client.status(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    assert_eq!(a.inspect().await.limit, Some(3));
    c.acquire_mode(ARRIVE).await;
    for (client, (claim, nonce)) in [&a, &b].into_iter().zip(&waiting) {
        assert_eq!(client.next_grant().await.nonce, *nonce);
        assert_eq!(client.status(claim).await, HoldStatus::Held);
    }
    d.acquire_mode(AWAIT).await;
}

/// An arrival may count for several.
pub async fn an_arrival_can_count_for_several(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (_, nonce) = a.enqueue_mode(AWAIT).await;
    b.acquire_mode(LockMode::CountDown { count: 2, total: 3 }).await;
    a.taken(&a.mode_request(&a.claim(), AWAIT)).await;
    b.acquire_mode(ARRIVE).await;
    assert_eq!(a.next_grant().await.nonce, nonce);
    for mode in [
        LockMode::CountDown { count: 0, total: 3 },
        LockMode::CountDown { count: 0, total: 0 },
        LockMode::LatchWait { total: 0 },
    ] {
        let refused = b.refused(&b.mode_request(&b.claim(), mode)).await;
        assert!(matches!(refused, Refused::OutOfRange { .. }), "{mode:?}: {refused:?}");
    }
}

/// Rows 1 and 2: a resent arrival counts once.
pub async fn a_resent_arrival_counts_once(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (waiting, _) = a.enqueue_mode(AWAIT).await;
    let claim = b.claim();
    let first = b.granted(&b.mode_request(&claim, ARRIVE)).await;
    for _ in 0..3 {
        assert_eq!(b.granted(&b.mode_request(&claim, ARRIVE)).await.fence, first.fence);
    }
    assert_eq!(a.status(&waiting).await, HoldStatus::Queued);
    a.taken(&a.queued_mode_request(&waiting, AWAIT)).await;
}

/// Rows 1, 2 and 16: a cancelled arrival does not count, even if it is executed after its cancellation.
pub async fn a_cancelled_arrival_never_counts(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (waiting, _) = a.enqueue_mode(AWAIT).await;
    let (late, gone) = (b.claim(), b.claim());
    b.granted(&b.mode_request(&gone, LockMode::CountDown { count: 2, total: 3 })).await;
    b.release(&gone).await;
    b.release(&late).await;
    assert_eq!(b.acquire(&b.mode_request(&late, ARRIVE)).await, Acquired::AlreadyEnded(Ended::Released));
    assert_eq!(b.release(&late).await.status, HoldStatus::Ended(Ended::Released));
    b.acquire_mode(LockMode::CountDown { count: 2, total: 3 }).await;
    a.taken(&a.queued_mode_request(&waiting, AWAIT)).await;
    assert_eq!(a.inspect().await.shared_holders.len(), 1);
}

/// Row 27: an arrival whose session has lapsed does not count.
pub async fn an_arrival_of_a_lapsed_session_does_not_count(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, LONG), (&b, fixture.short_lease()), (&c, LONG)] {
        client.begin(alive).await;
    }
    let (waiting, _) = a.enqueue_mode(AWAIT).await;
    b.acquire_mode(LockMode::CountDown { count: 2, total: 3 }).await;
    fixture.wait_lapsed(fixture.short_lease(), &b).await;
    assert!(matches!(c.evict(b.session).await, Evicted::Removed { fence: Some(_), was_queued: false }));
    c.acquire_mode(ARRIVE).await;
    a.taken(&a.queued_mode_request(&waiting, AWAIT)).await;
}

/// A client with another number is refused while others wait, so none continues by mistake.
pub async fn another_number_of_parties_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (first, modes): (LockMode, &[LockMode]) = match fixture.lock.kind {
        leasehold_core::Kind::Latch => {
            (AWAIT, &[LockMode::LatchWait { total: 2 }, LockMode::CountDown { count: 1, total: 2 }])
        }
        _ => (MEET, &[LockMode::BarrierWait { total: 2 }, LockMode::BarrierWait { total: 1 }]),
    };
    let (waiting, _) = a.enqueue_mode(first).await;
    for mode in modes {
        let asked = mode.total().unwrap_or_default();
        for request in [b.mode_request(&b.claim(), *mode), b.queued_mode_request(&b.claim(), *mode)] {
            assert_eq!(
                b.refused(&request).await,
                Refused::Disagreement { requested: asked, known: 3, limit: 3 }
            );
        }
    }
    assert_eq!(a.status(&waiting).await, HoldStatus::Queued);
    a.release(&waiting).await;
    let request = b.queued_mode_request(&b.claim(), modes[0]);
    let reply = b.acquire(&request).await;
    assert!(matches!(reply, Acquired::Taken { .. }), "now this client sets the number: {reply:?}");
}

/// No party continues before all have arrived. Then one operation releases and notifies all, and a new round begins.
pub async fn all_parties_of_a_barrier_continue_together(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    for _ in 0..2 {
        let waiting = [meet(&a).await, meet(&b).await];
        for (client, (claim, _)) in [&a, &b].into_iter().zip(&waiting) {
            assert_eq!(client.status(claim).await, HoldStatus::Queued);
            assert_eq!(fixture.grants_so_far(client).await, []);
        }
        let last = c.claim();
        c.granted(&c.queued_mode_request(&last, MEET)).await;
        for (client, (claim, nonce)) in [&a, &b].into_iter().zip(&waiting) {
            assert_eq!(client.next_grant().await.nonce, *nonce);
            assert_eq!(client.status(claim).await, HoldStatus::Held);
        }
        assert_eq!(fixture.grants_so_far(&c).await, [], "the last party has its reply");
        assert_eq!(c.inspect().await.waiters, 0);
        // A released party does not count for the next round.
    }
}

/// An attempt without queueing succeeds only for the last party, and does not count otherwise.
pub async fn a_try_at_a_barrier_counts_only_as_the_last_party(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (first, _) = meet(&a).await;
    c.taken(&c.mode_request(&c.claim(), MEET)).await;
    let (second, _) = meet(&b).await;
    assert_eq!(a.status(&first).await, HoldStatus::Queued, "an attempt does not count");
    c.granted(&c.mode_request(&c.claim(), MEET)).await;
    a.next_grant().await;
    b.next_grant().await;
    assert_eq!((a.status(&first).await, b.status(&second).await), (HoldStatus::Held, HoldStatus::Held));
}

/// Rows 1 and 2: a resent request counts once.
pub async fn a_resent_barrier_wait_counts_once(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (first, _) = meet(&a).await;
    let (second, _) = meet(&b).await;
    for _ in 0..2 {
        a.enqueue_mode_as(&first, MEET).await;
        b.enqueue_mode_as(&second, MEET).await;
    }
    assert_eq!(c.inspect().await.waiters, 2);
    c.granted(&c.queued_mode_request(&c.claim(), MEET)).await;
    let fence = a.next_grant().await.fence;
    for _ in 0..2 {
        let granted = a.granted(&a.queued_mode_request(&first, MEET)).await;
        assert_eq!(granted.fence, fence, "a repeated poll counts once");
    }
}

/// Rows 4 and 16: a party that has left does not count, even if its request is executed later.
pub async fn a_party_that_left_a_barrier_is_not_counted(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (left, late) = (meet(&a).await.0, a.claim());
    assert_eq!(a.release(&left).await.status, HoldStatus::Queued);
    a.release(&late).await;
    let (second, _) = meet(&b).await;
    for claim in [left, late] {
        let reply = a.acquire(&a.queued_mode_request(&claim, MEET)).await;
        assert_eq!(reply, Acquired::AlreadyEnded(Ended::Released));
    }
    let (third, _) = meet(&c).await;
    assert_eq!((b.status(&second).await, c.status(&third).await), (HoldStatus::Queued, HoldStatus::Queued));
}

/// Row 23: an expired queue entry does not count.
pub async fn an_expired_party_does_not_count(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let dead = a.claim();
    a.taken(&Acquire { mode: MEET, ..a.queued_request(&dead, LONG, fixture.short_lease()) }).await;
    let (second, _) = meet(&b).await;
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the first entry expires", async || b.inspect().await.waiters == 1).await;
    let (third, _) = meet(&c).await;
    assert_eq!((b.status(&second).await, c.status(&third).await), (HoldStatus::Queued, HoldStatus::Queued));
    a.granted(&a.queued_mode_request(&a.claim(), MEET)).await;
    b.next_grant().await;
    c.next_grant().await;
}

/// Queues at the barrier.
async fn meet(client: &TestClient) -> (Claim, Nonce) {
    client.enqueue_mode(MEET).await
}
