//! A lock that is left taken without a holder for a time.

use crate::conformance::client::{LONG, TestClient, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Extended, FencingToken, ForceReleased, HoldStatus, Liveness,
    ObservedHolder, Op, ReleaseAction, Released, Reply,
};
use std::time::Duration;

/// Longer than any case runs, and shorter than the leases here.
const REST: Duration = Duration::from_secs(1_800);

async fn rest(client: &TestClient, claim: &Claim, rest: Duration) -> Released {
    client.release_and(claim, ReleaseAction::Cooldown { for_ms: millis(rest) }, None).await
}

async fn take(client: &TestClient) -> (Claim, FencingToken) {
    let claim = client.claim();
    let fence = client.granted(&client.ask(&claim, LONG)).await.fence;
    (claim, fence)
}

/// A resting lock is granted to no client, waiting or new. An inspection reports the rest and its duration.
pub async fn a_resting_lock_has_no_owner(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (held, fence) = take(&a).await;
    b.enqueue().await;
    assert_eq!(rest(&a, &held, REST).await.status, HoldStatus::Held);
    let tried = c.taken(&c.ask(&c.claim(), LONG)).await;
    for holder in [tried.holder, c.inspect().await.holder] {
        let holder = holder.expect("it rests");
        assert!(holder.in_cooldown && holder.session.is_none() && !holder.is_foreign(), "{holder:?}");
        assert_eq!((holder.fence, holder.label.as_ref()), (Some(fence), Some(&a.label())));
        let left = holder.remaining_ms.expect("a rest ends");
        assert!(left <= millis(REST) && left > millis(REST) - 60_000, "{left}");
    }
    assert_eq!(fixture.grants_so_far(&b).await, []);
    assert_eq!(c.inspect().await.waiters, 1);
    assert_eq!(a.fate(&held).await, HoldStatus::Ended(Ended::Released));
}

/// Row 5: a resent rest is the same operation, and is reported as released.
pub async fn a_resent_rest_says_released(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = take(&a).await;
    rest(&a, &held, REST).await;
    for again in [REST, LONG * 2, Duration::ZERO] {
        assert_eq!(rest(&a, &held, again).await.status, HoldStatus::Ended(Ended::Released));
    }
    let left = b.remaining_ms().await;
    assert!(left <= millis(REST) && left > millis(REST) - 60_000, "{left}");
}

/// Requests about the ended hold neither extend nor end the rest.
pub async fn a_rest_is_beyond_the_hold_before(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = take(&a).await;
    rest(&a, &held, REST).await;
    assert_eq!(a.extend(&held, LONG * 9).await, Extended::NotHeld);
    assert_eq!(a.release(&held).await.status, HoldStatus::Ended(Ended::Released));
    assert_eq!(a.acquire(&a.ask(&held, LONG)).await, Acquired::AlreadyEnded(Ended::Released));
    let holder = b.inspect().await.holder.expect("it rests");
    assert!(holder.in_cooldown && holder.remaining_ms.is_some_and(|left| left <= millis(REST)), "{holder:?}");
}

/// The time counts from when the lock was given: where it is over the next in the queue gets the lock.
pub async fn a_rest_whose_time_is_over_is_a_release(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, first) = take(&a).await;
    let (claim, nonce) = b.enqueue().await;
    fixture.pass(Duration::from_millis(20)).await;
    assert_eq!(rest(&a, &held, Duration::from_millis(10)).await.status, HoldStatus::Held);
    let message = b.message().await;
    assert!(message.nonce == nonce && message.fence > first);
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
}

/// After the rest the lock is free for the first poll, with a greater token.
pub async fn a_rest_ends_by_itself(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, first) = take(&a).await;
    rest(&a, &held, fixture.short()).await;
    fixture.pass(fixture.short() + Duration::from_millis(2)).await;
    fixture.until("the rest is over", async || b.inspect().await.holder.is_none()).await;
    assert!(take(&b).await.1 > first);
    assert_eq!(a.fate(&held).await, HoldStatus::Ended(Ended::Released));
}

/// Row 23: the lapse of the former holder's session does not end the rest.
pub async fn a_rest_ends_with_no_session(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.claim();
    let liveness = Liveness::Session { alive_ms: 1 };
    a.granted(&Acquire { liveness, ..a.ask(&claim, LONG) }).await;
    rest(&a, &claim, REST).await;
    fixture.pass(Duration::from_millis(5)).await;
    b.evict(a.session).await;
    let look = Acquire { predecessor: Some(a.session), ..b.look(&b.claim(), LONG, LONG) };
    let taken = b.taken(&look).await;
    assert!(taken.holder.is_some_and(|holder| holder.in_cooldown) && taken.predecessor.is_none());
}

/// Row 14: a person can end it, and the next in the queue gets the lock.
pub async fn a_rest_is_ended_by_force(fixture: &Fixture) {
    let [a, b, person] = fixture.clients().await;
    let (held, fence) = take(&a).await;
    let (claim, nonce) = b.enqueue().await;
    rest(&a, &held, REST).await;
    assert_eq!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
}

/// A release that leaves the lock resting and acquires again queues behind the others.
pub async fn a_rest_that_acquires_again_waits(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = take(&a).await;
    b.enqueue().await;
    let look = a.look(&a.claim(), LONG, LONG);
    for _ in 0..2 {
        let released =
            a.release_and(&held, ReleaseAction::Cooldown { for_ms: millis(REST) }, Some(look.clone())).await;
        let Some(Ok(Acquired::Taken { holder, position, .. })) = released.next else {
            panic!("{released:?}")
        };
        assert_eq!(position, Some(1));
        assert!(holder.is_some_and(|holder| holder.in_cooldown));
    }
}

/// Only the holder can leave the lock resting.
pub async fn a_rest_by_another_hold_changes_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = take(&a).await;
    assert_eq!(rest(&b, &b.claim(), REST).await.status, HoldStatus::Superseded);
    assert_eq!(a.fate(&held).await, HoldStatus::Held);
    a.release(&held).await;
    let op = Op::Release(leasehold_core::Release {
        claim: held,
        action: ReleaseAction::Cooldown { for_ms: 9 },
        next: None,
    });
    let reply = a.execute(&op).await;
    assert!(
        matches!(reply, Reply::Release(released) if released.status == HoldStatus::Ended(Ended::Released))
    );
    assert!(b.inspect().await.holder.is_none());
}
