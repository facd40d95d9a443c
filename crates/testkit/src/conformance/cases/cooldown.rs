//! A lock in cooldown: taken for a time, without a holder.

use crate::conformance::client::{LONG, TestClient, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Extended, ForceReleased, HoldStatus, Liveness, ObservedHolder, Op,
    ReleaseAction, Released, Reply,
};
use std::time::Duration;

/// Longer than any case runs, and shorter than the leases here.
const COOLDOWN: Duration = Duration::from_secs(1_800);

async fn cooldown(client: &TestClient, claim: &Claim, cooldown: Duration) -> Released {
    client.release_and(claim, ReleaseAction::Cooldown { for_ms: millis(cooldown) }, None).await
}

/// A lock in cooldown is granted to no client, waiting or new. An inspection reports the cooldown and its duration.
pub async fn a_lock_in_cooldown_has_no_owner(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (held, fence) = a.acquire_with_token().await;
    b.enqueue().await;
    assert_eq!(cooldown(&a, &held, COOLDOWN).await.status, HoldStatus::Held);
    let tried = c.taken(&c.request(&c.claim(), LONG)).await;
    for holder in [tried.holder, c.inspect().await.holder] {
        let holder = holder.expect("it is in cooldown");
        assert!(holder.in_cooldown && holder.session.is_none() && !holder.is_foreign(), "{holder:?}");
        assert_eq!((holder.fence, holder.label.as_ref()), (Some(fence), Some(&a.label())));
        let left = holder.remaining_ms.expect("a cooldown ends");
        assert!(left <= millis(COOLDOWN) && left > millis(COOLDOWN) - 60_000, "{left}");
    }
    assert_eq!(fixture.grants_so_far(&b).await, []);
    assert_eq!(c.inspect().await.waiters, 1);
    assert_eq!(a.status(&held).await, HoldStatus::Ended(Ended::Released));
}

/// Row 5: a resent cooldown is the same operation, and is reported as released.
pub async fn a_resent_cooldown_reports_released(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = a.acquire_with_token().await;
    cooldown(&a, &held, COOLDOWN).await;
    for again in [COOLDOWN, LONG * 2, Duration::ZERO] {
        assert_eq!(cooldown(&a, &held, again).await.status, HoldStatus::Ended(Ended::Released));
    }
    let left = b.remaining_ms().await;
    assert!(left <= millis(COOLDOWN) && left > millis(COOLDOWN) - 60_000, "{left}");
}

/// Requests about the ended hold neither extend nor end the cooldown.
pub async fn a_cooldown_ignores_requests_of_the_ended_hold(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = a.acquire_with_token().await;
    cooldown(&a, &held, COOLDOWN).await;
    assert_eq!(a.extend(&held, LONG * 9).await, Extended::NotHeld);
    assert_eq!(a.release(&held).await.status, HoldStatus::Ended(Ended::Released));
    assert_eq!(a.acquire(&a.request(&held, LONG)).await, Acquired::AlreadyEnded(Ended::Released));
    let holder = b.inspect().await.holder.expect("it is in cooldown");
    assert!(
        holder.in_cooldown && holder.remaining_ms.is_some_and(|left| left <= millis(COOLDOWN)),
        "{holder:?}"
    );
}

/// The time counts from the grant of the lock. If it is over, the next waiter is granted the lock.
pub async fn a_cooldown_whose_time_is_over_is_a_release(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, first) = a.acquire_with_token().await;
    let (claim, nonce) = b.enqueue().await;
    fixture.advance(Duration::from_millis(20)).await;
    assert_eq!(cooldown(&a, &held, Duration::from_millis(10)).await.status, HoldStatus::Held);
    let message = b.next_grant().await;
    assert!(message.nonce == nonce && message.fence > first);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

/// After the cooldown the lock is free for the first poll, with a greater token.
pub async fn a_cooldown_expires(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, first) = a.acquire_with_token().await;
    cooldown(&a, &held, fixture.short_lease()).await;
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the cooldown is over", async || b.inspect().await.holder.is_none()).await;
    assert!(b.acquire_with_token().await.1 > first);
    assert_eq!(a.status(&held).await, HoldStatus::Ended(Ended::Released));
}

/// Row 23: the lapse of the former holder's session does not end the cooldown.
pub async fn a_cooldown_outlasts_its_session(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.claim();
    let liveness = Liveness::Session { alive_ms: 1 };
    a.granted(&Acquire { liveness, ..a.request(&claim, LONG) }).await;
    cooldown(&a, &claim, COOLDOWN).await;
    fixture.advance(Duration::from_millis(5)).await;
    b.evict(a.session).await;
    let poll = Acquire { predecessor: Some(a.session), ..b.queued_request(&b.claim(), LONG, LONG) };
    let taken = b.taken(&poll).await;
    assert!(taken.holder.is_some_and(|holder| holder.in_cooldown) && taken.predecessor.is_none());
}

/// Row 14: a forced release ends the cooldown, and the next waiter is granted the lock.
pub async fn a_forced_release_ends_a_cooldown(fixture: &Fixture) {
    let [a, b, operator] = fixture.clients().await;
    let (held, fence) = a.acquire_with_token().await;
    let (claim, nonce) = b.enqueue().await;
    cooldown(&a, &held, COOLDOWN).await;
    assert_eq!(operator.force_release(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

/// A release that starts a cooldown and acquires again queues behind the others.
pub async fn a_cooldown_that_acquires_again_waits(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = a.acquire_with_token().await;
    b.enqueue().await;
    let poll = a.queued_request(&a.claim(), LONG, LONG);
    for _ in 0..2 {
        let released = a
            .release_and(&held, ReleaseAction::Cooldown { for_ms: millis(COOLDOWN) }, Some(poll.clone()))
            .await;
        let Some(Ok(Acquired::Taken { holder, position, .. })) = released.next else {
            panic!("{released:?}")
        };
        assert_eq!(position, Some(1));
        assert!(holder.is_some_and(|holder| holder.in_cooldown));
    }
}

/// Only the holder can start a cooldown.
pub async fn a_cooldown_by_another_hold_changes_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, _) = a.acquire_with_token().await;
    assert_eq!(cooldown(&b, &b.claim(), COOLDOWN).await.status, HoldStatus::Superseded);
    assert_eq!(a.status(&held).await, HoldStatus::Held);
    a.release(&held).await;
    let op = Op::Release(leasehold_core::Release {
        claim: held,
        action: ReleaseAction::Cooldown { for_ms: 9 },
        next: None,
        history: 0,
    });
    let reply = a.execute(&op).await;
    assert!(
        matches!(reply, Reply::Release(released) if released.status == HoldStatus::Ended(Ended::Released))
    );
    assert!(b.inspect().await.holder.is_none());
}
