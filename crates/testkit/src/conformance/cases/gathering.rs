//! The Latch, which opens after a number of arrivals, and the Barrier, which opens for a number of parties.

use super::sessions::lapses;
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
    let waiting = [a.enqueue_part(AWAIT).await, b.enqueue_part(AWAIT).await];
    c.take_part(ARRIVE).await;
    d.take_part(ARRIVE).await;
    a.taken(&a.ask_part(&a.claim(), AWAIT)).await;
    for (client, (claim, _)) in [&a, &b].into_iter().zip(&waiting) {
        assert_eq!(client.fate(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    assert_eq!(a.inspect().await.limit, Some(3));
    c.take_part(ARRIVE).await;
    for (client, (claim, nonce)) in [&a, &b].into_iter().zip(&waiting) {
        assert_eq!(client.message().await.nonce, *nonce);
        assert_eq!(client.fate(claim).await, HoldStatus::Held);
    }
    d.take_part(AWAIT).await;
}

/// An arrival may count for several.
pub async fn one_may_arrive_for_several(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (_, nonce) = a.enqueue_part(AWAIT).await;
    b.take_part(LockMode::CountDown { count: 2, total: 3 }).await;
    a.taken(&a.ask_part(&a.claim(), AWAIT)).await;
    b.take_part(ARRIVE).await;
    assert_eq!(a.message().await.nonce, nonce);
    for mode in [
        LockMode::CountDown { count: 0, total: 3 },
        LockMode::CountDown { count: 0, total: 0 },
        LockMode::LatchWait { total: 0 },
    ] {
        let refused = b.refused(&b.ask_part(&b.claim(), mode)).await;
        assert!(matches!(refused, Refused::OutOfRange { .. }), "{mode:?}: {refused:?}");
    }
}

/// Rows 1 and 2: a resent arrival counts once.
pub async fn a_resent_arrival_counts_once(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (waiting, _) = a.enqueue_part(AWAIT).await;
    let claim = b.claim();
    let first = b.granted(&b.ask_part(&claim, ARRIVE)).await;
    for _ in 0..3 {
        assert_eq!(b.granted(&b.ask_part(&claim, ARRIVE)).await.fence, first.fence);
    }
    assert_eq!(a.fate(&waiting).await, HoldStatus::Queued);
    a.taken(&a.look_part(&waiting, AWAIT)).await;
}

/// Rows 1, 2 and 16: a cancelled arrival does not count, even if it is executed after its cancellation.
pub async fn an_arrival_that_was_given_up_never_counts(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (waiting, _) = a.enqueue_part(AWAIT).await;
    let (late, gone) = (b.claim(), b.claim());
    b.granted(&b.ask_part(&gone, LockMode::CountDown { count: 2, total: 3 })).await;
    b.release(&gone).await;
    b.release(&late).await;
    assert_eq!(b.acquire(&b.ask_part(&late, ARRIVE)).await, Acquired::AlreadyEnded(Ended::Released));
    assert_eq!(b.release(&late).await.status, HoldStatus::Ended(Ended::Released));
    b.take_part(LockMode::CountDown { count: 2, total: 3 }).await;
    a.taken(&a.look_part(&waiting, AWAIT)).await;
    assert_eq!(a.inspect().await.shared_holders.len(), 1);
}

/// Row 27: an arrival whose session has lapsed does not count.
pub async fn an_arrival_of_the_dead_does_not_count(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, LONG), (&b, fixture.short()), (&c, LONG)] {
        client.begin(alive).await;
    }
    let (waiting, _) = a.enqueue_part(AWAIT).await;
    b.take_part(LockMode::CountDown { count: 2, total: 3 }).await;
    fixture.outlive(fixture.short(), &b).await;
    assert!(matches!(c.evict(b.session).await, Evicted::Removed { fence: Some(_), was_queued: false }));
    c.take_part(ARRIVE).await;
    a.taken(&a.look_part(&waiting, AWAIT)).await;
}

/// A client with another number is refused while others are there. None continues by mistake.
pub async fn another_number_of_parties_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (first, modes): (LockMode, &[LockMode]) = match fixture.lock.kind {
        leasehold_core::Kind::Latch => {
            (AWAIT, &[LockMode::LatchWait { total: 2 }, LockMode::CountDown { count: 1, total: 2 }])
        }
        _ => (MEET, &[LockMode::BarrierWait { total: 2 }, LockMode::BarrierWait { total: 1 }]),
    };
    let (waiting, _) = a.enqueue_part(first).await;
    for mode in modes {
        let requested = mode.total().unwrap_or_default();
        for ask in [b.ask_part(&b.claim(), *mode), b.look_part(&b.claim(), *mode)] {
            assert_eq!(b.refused(&ask).await, Refused::Disagreement { requested, known: 3 });
        }
    }
    assert_eq!(a.fate(&waiting).await, HoldStatus::Queued);
    a.release(&waiting).await;
    let ask = b.look_part(&b.claim(), modes[0]);
    let reply = b.acquire(&ask).await;
    assert!(matches!(reply, Acquired::Taken { .. }), "now this client sets the number: {reply:?}");
}

/// No party continues before all have come. Then one operation releases and notifies all, and a new round begins.
pub async fn all_parties_of_a_barrier_continue_together(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    for _ in 0..2 {
        let waiting = [meet(&a).await, meet(&b).await];
        for (client, (claim, _)) in [&a, &b].into_iter().zip(&waiting) {
            assert_eq!(client.fate(claim).await, HoldStatus::Queued);
            assert_eq!(fixture.grants_so_far(client).await, []);
        }
        let last = c.claim();
        c.granted(&c.look_part(&last, MEET)).await;
        for (client, (claim, nonce)) in [&a, &b].into_iter().zip(&waiting) {
            assert_eq!(client.message().await.nonce, *nonce);
            assert_eq!(client.fate(claim).await, HoldStatus::Held);
        }
        assert_eq!(fixture.grants_so_far(&c).await, [], "the last party has its reply");
        assert_eq!(c.inspect().await.waiters, 0);
        // A released party does not count for the next round.
    }
}

/// An attempt without queueing succeeds only for the last party, and does not count otherwise.
pub async fn a_try_to_meet_counts_only_as_the_last(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (first, _) = meet(&a).await;
    c.taken(&c.ask_part(&c.claim(), MEET)).await;
    let (second, _) = meet(&b).await;
    assert_eq!(a.fate(&first).await, HoldStatus::Queued, "an attempt does not count");
    c.granted(&c.ask_part(&c.claim(), MEET)).await;
    a.message().await;
    b.message().await;
    assert_eq!((a.fate(&first).await, b.fate(&second).await), (HoldStatus::Held, HoldStatus::Held));
}

/// Rows 1 and 2: a resent request counts once.
pub async fn a_resent_meeting_counts_once(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (first, _) = meet(&a).await;
    let (second, _) = meet(&b).await;
    for _ in 0..2 {
        a.enqueue_part_as(&first, MEET).await;
        b.enqueue_part_as(&second, MEET).await;
    }
    assert_eq!(c.inspect().await.waiters, 2);
    c.granted(&c.look_part(&c.claim(), MEET)).await;
    let fence = a.message().await.fence;
    for _ in 0..2 {
        let granted = a.granted(&a.look_part(&first, MEET)).await;
        assert_eq!(granted.fence, fence, "who looks again has reached once");
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
        let reply = a.acquire(&a.look_part(&claim, MEET)).await;
        assert_eq!(reply, Acquired::AlreadyEnded(Ended::Released));
    }
    let (third, _) = meet(&c).await;
    assert_eq!((b.fate(&second).await, c.fate(&third).await), (HoldStatus::Queued, HoldStatus::Queued));
}

/// Row 23: an expired queue entry does not count.
pub async fn the_dead_do_not_meet(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let dead = a.claim();
    a.taken(&Acquire { mode: MEET, ..a.look(&dead, LONG, fixture.short()) }).await;
    let (second, _) = meet(&b).await;
    fixture.pass(fixture.short() + Duration::from_millis(2)).await;
    fixture.until("the dead one is dead", async || b.inspect().await.waiters == 1).await;
    let (third, _) = meet(&c).await;
    assert_eq!((b.fate(&second).await, c.fate(&third).await), (HoldStatus::Queued, HoldStatus::Queued));
    a.granted(&a.look_part(&a.claim(), MEET)).await;
    b.message().await;
    c.message().await;
}

/// Queues at the barrier.
async fn meet(client: &TestClient) -> (Claim, Nonce) {
    client.enqueue_part(MEET).await
}
