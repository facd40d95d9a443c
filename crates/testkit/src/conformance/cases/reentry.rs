//! Re-entry: which owner may re-enter, how holds are counted, and when they end.

use super::sessions::{sessions_lapse, tracks_sessions};
use crate::conformance::client::{LONG, TestClient, millis, owner_holds};
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{
    Acquire, Acquired, Ended, Evicted, Extended, ForceReleased, HoldStatus, Kind, Liveness, Lock,
    ObservedHolder, Op, Refused, ReleaseAction, Reply,
};
use std::time::Duration;

/// R4: the same owner re-enters at once, from any process; another owner never does. The reply has the count, and all
/// holds share one token.
pub async fn the_same_owner_reenters_at_once(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (outer, inner) = (a.claim_with_value("trace-7"), b.claim_with_value("trace-7"));
    let first = a.granted(&a.request(&outer, LONG)).await;
    let second = b.granted(&b.request(&inner, LONG)).await;
    assert_eq!((second.fence, owner_holds(&first).count, owner_holds(&second).count), (first.fence, 1, 2));
    for other in [
        c.claim_with_value("trace-70"),
        c.claim_with_value("trace-"),
        c.claim_with_value("TRACE-7"),
        a.claim(),
    ] {
        let holder = c.taken(&c.request(&other, LONG)).await.holder.expect("it is held");
        assert_eq!(holder.owner, outer.value);
        assert_eq!((holder.count, holder.fence, holder.label), (2, Some(first.fence), Some(a.label())));
    }
    for (client, claim) in [(&a, &outer), (&b, &inner)] {
        assert_eq!(client.status(claim).await, HoldStatus::Held);
    }
}

/// Row 2: a resent re-entrant acquire counts once, as does its release. A resent release gets the same count.
pub async fn a_resent_reentry_counts_once(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    let inner = a.same_owner_claim(&outer);
    a.granted(&a.request(&outer, LONG)).await;
    for _ in 0..3 {
        let granted = a.granted(&a.queued_request(&inner, LONG, LONG)).await;
        assert_eq!(owner_holds(&granted).count, 2);
    }
    let first = a.release(&inner).await;
    assert_eq!((first.status, first.remaining_holds), (HoldStatus::Held, 1));
    let second = a.release(&inner).await;
    assert_eq!((second.status, second.remaining_holds), (HoldStatus::Ended(Ended::Released), 1));
    assert_eq!(
        a.acquire(&a.request(&inner, LONG)).await,
        Acquired::AlreadyEnded(Ended::Released),
        "a late request"
    );
    assert_eq!(count(&b).await, 1);
    assert_eq!(a.release(&outer).await.remaining_holds, 0);
    b.acquire_new(LONG).await;
}

/// R11 and R16: the lock is free after as many releases as acquires, in any order. A release distinguishes still
/// held, free, and not held.
pub async fn a_release_reports_the_remaining_holds(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let outer = a.claim();
    let (middle, inner) = (b.same_owner_claim(&outer), a.same_owner_claim(&outer));
    for (client, claim) in [(&a, &outer), (&b, &middle), (&a, &inner)] {
        client.granted(&client.request(claim, LONG)).await;
    }
    if !c.store.capabilities().queue {
        for (client, claim, left) in [(&a, &outer, 2), (&a, &inner, 1), (&b, &middle, 0)] {
            let released = client.release(claim).await;
            assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, left));
        }
    }
    let (waiting, nonce) = c.enqueue().await;
    let strange = c.release(&c.claim()).await;
    assert_eq!((strange.status, strange.remaining_holds), (HoldStatus::Superseded, 0));
    assert_eq!(strange.holder.map(|holder| (holder.owner, holder.count)), Some((outer.value.clone(), 3)));
    for (client, claim, left) in [(&a, &outer, 2), (&a, &inner, 1)] {
        let released = client.release(claim).await;
        assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, left));
        assert_eq!(c.status(&waiting).await, HoldStatus::Queued);
        c.taken(&c.request(&waiting, LONG)).await;
        assert_eq!(count(&c).await, left);
    }
    assert_eq!(fixture.grants_so_far(&c).await, [], "no grant before the last release");
    let released = b.release(&middle).await;
    assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, 0));
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!(c.status(&waiting).await, HoldStatus::Held);
}

/// A release by an unknown hold ends none, even with the same owner.
pub async fn a_release_by_an_unknown_hold_ends_none(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    let inner = a.same_owner_claim(&outer);
    a.granted(&a.request(&outer, LONG)).await;
    a.granted(&a.request(&inner, LONG)).await;
    for other in [b.claim(), a.claim(), a.same_owner_claim(&outer), b.same_owner_claim(&outer)] {
        assert_ne!(b.release(&other).await.status, HoldStatus::Held);
        assert_eq!(b.extend(&other, LONG * 9).await, Extended::NotHeld);
    }
    assert_eq!(count(&b).await, 2);
    assert!(b.remaining_ms().await <= millis(LONG));
}

/// R10: re-entry shortens nothing, and the reply has the longest lease requested.
pub async fn a_reentry_shortens_no_lease(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    a.granted(&a.request(&outer, LONG)).await;
    assert_eq!(a.extend(&outer, LONG * 4).await, Extended::Extended);
    let inner = b.same_owner_claim(&outer);
    let granted = b.granted(&b.request(&inner, fixture.short_lease())).await;
    assert_eq!(owner_holds(&granted).lease_ms, millis(LONG * 4), "the longest requested lease");
    assert!(
        granted.remaining_ms <= millis(fixture.short_lease()),
        "it lasts for the requested lease: {granted:?}"
    );
    assert!(b.remaining_ms().await > millis(LONG * 4) - 60_000);
    assert_eq!(b.release(&inner).await.remaining_holds, 1);
    assert!(b.remaining_ms().await > millis(LONG * 4) - 60_000, "nor does its release");
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    assert_eq!(a.status(&outer).await, HoldStatus::Held);
}

/// Each hold expires on its own: an expired hold no longer counts, and the others keep their leases.
pub async fn each_hold_expires_on_its_own(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    let inner = a.same_owner_claim(&outer);
    a.granted(&a.request(&inner, LONG)).await;
    a.granted(&a.request(&outer, fixture.short_lease())).await;
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the first lease ends", async || count(&b).await == 1).await;
    assert_eq!(a.status(&outer).await, HoldStatus::Vanished);
    assert_eq!(a.extend(&outer, LONG).await, Extended::NotHeld);
    let late = a.release(&outer).await;
    assert_eq!((late.status, late.remaining_holds), (HoldStatus::Vanished, 1));
    assert_eq!(a.status(&inner).await, HoldStatus::Held);
    assert_eq!(a.release(&inner).await.remaining_holds, 0);
    b.acquire_new(LONG).await;
}

/// Rows 1, 2 and 4: a hold whose client does not know of the grant ends with its own lease, whatever its owner does, and
/// leaves no count.
pub async fn an_unknown_hold_expires_and_leaves_no_count(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    a.granted(&a.request(&outer, fixture.short_lease())).await;
    a.extend(&outer, LONG).await;
    a.granted(&a.request(&a.same_owner_claim(&outer), fixture.short_lease())).await;
    fixture.advance(fixture.short_lease() / 2).await;
    let inner = a.same_owner_claim(&outer);
    a.granted(&a.request(&inner, fixture.short_lease())).await;
    a.extend(&inner, LONG).await;
    a.extend(&outer, LONG).await;
    a.release(&inner).await;
    fixture.advance(fixture.short_lease() / 2 + Duration::from_millis(2)).await;
    fixture.wait_until("the unknown hold expires", async || count(&b).await == 1).await;
    assert_eq!(a.release(&outer).await.remaining_holds, 0);
    b.acquire_new(LONG).await;
}

/// The same with no other hold left: the first waiter acquires the lock after that lease.
pub async fn an_unknown_hold_alone_expires(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    a.granted(&a.request(&outer, LONG)).await;
    a.granted(&a.request(&a.same_owner_claim(&outer), fixture.short_lease())).await;
    assert_eq!(a.release(&outer).await.remaining_holds, 1);
    let (claim, _) = b.enqueue().await;
    assert!(b.remaining_ms().await <= millis(fixture.short_lease()), "the reported time is no longer");
    fixture.wait_expired(fixture.short_lease(), &a).await;
    b.granted(&b.queued_request(&claim, LONG, LONG)).await;
}

/// Only re-entry overtakes waiters. A waiter whose owner acquires the lock enters with its next poll.
pub async fn only_a_reentry_overtakes_the_queue(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let outer = a.claim();
    a.granted(&a.request(&outer, LONG)).await;
    let (first, nonce) = b.enqueue().await;
    c.enqueue().await;
    let last = d.same_owner_claim(&first);
    d.enqueue_as(&last, LONG).await;
    let inner = a.same_owner_claim(&outer);
    assert!(a.granted(&a.queued_request(&inner, LONG, LONG)).await.others_wait);
    assert_eq!(a.inspect().await.waiters, 3);
    a.release(&inner).await;
    a.release(&outer).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    a.taken(&a.request(&a.same_owner_claim(&outer), LONG)).await;
    let granted = d.granted(&d.queued_request(&last, LONG, LONG)).await;
    assert_eq!(owner_holds(&granted).count, 2);
    assert_eq!(a.inspect().await.waiters, 1, "the waiter has left the queue");
    assert_eq!(fixture.grants_so_far(&c).await, []);
}

/// A release that acquires in the same step re-enters if the owner still holds the lock, whatever the release action
/// says about a free lock. A resend is the same operation.
pub async fn a_release_that_acquires_reenters(fixture: &Fixture) {
    for pass in [ReleaseAction::Grant, ReleaseAction::Free] {
        let a = fixture.client().await.at(&fixture.another_lock());
        let outer = a.claim();
        let (inner, next) = (a.same_owner_claim(&outer), a.same_owner_claim(&outer));
        a.granted(&a.request(&outer, LONG)).await;
        a.granted(&a.request(&inner, LONG)).await;
        let poll = a.queued_request(&next, LONG, LONG);
        for found in [HoldStatus::Held, HoldStatus::Ended(Ended::Released)] {
            let released = a.release_and(&inner, pass, Some(poll.clone())).await;
            assert_eq!(released.status, found);
            assert!(matches!(released.next, Some(Ok(Acquired::Granted { .. }))), "{released:?}");
            let inspection = a.inspect().await;
            assert_eq!((inspection.holder.map(|holder| holder.count), inspection.waiters), (Some(2), 0));
        }
    }
}

/// One tenure has one token, and the next a greater one.
pub async fn one_tenure_has_one_token(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let mut last = None;
    for _ in 0..3 {
        let outer = a.claim();
        let fence = a.granted(&a.request(&outer, LONG)).await.fence;
        assert!(last < Some(fence), "{fence:?} after {last:?}");
        let inner = b.same_owner_claim(&outer);
        assert_eq!(b.granted(&b.request(&inner, LONG)).await.fence, fence);
        a.release(&outer).await;
        let again = a.same_owner_claim(&inner);
        assert_eq!(a.granted(&a.request(&again, LONG)).await.fence, fence, "the other hold remains");
        b.release(&inner).await;
        a.release(&again).await;
        last = Some(fence);
    }
}

/// A session lapses: its holds are evicted, and the owner's holds in other processes stay.
pub async fn a_lapsed_session_loses_only_its_own_holds(fixture: &Fixture) {
    let [a, b, c, observer] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    a.begin(fixture.short_lease()).await;
    b.begin(LONG).await;
    c.begin(LONG).await;
    let (dead, living, detached) =
        (a.claim_with_value("trace-7"), b.claim_with_value("trace-7"), a.claim_with_value("trace-7"));
    let fence = a.granted(&a.request(&dead, LONG)).await.fence;
    b.granted(&b.request(&living, LONG)).await;
    a.granted(&Acquire { liveness: Liveness::Lease, ..a.request(&detached, LONG) }).await;
    let (waiting, _) = c.enqueue().await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    assert_eq!(observer.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    assert_eq!(observer.evict(a.session).await, Evicted::Removed { fence: None, was_queued: false }, "once");
    assert_eq!(a.status(&dead).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(a.extend(&dead, LONG).await, Extended::NotHeld);
    for (client, claim) in [(&b, &living), (&a, &detached)] {
        assert_eq!(client.status(claim).await, HoldStatus::Held);
    }
    assert_eq!((count(&c).await, c.status(&waiting).await), (2, HoldStatus::Queued));
}

/// A forced release ends all holds of an owner, and notifies each session once.
pub async fn a_forced_release_ends_all_holds_of_an_owner(fixture: &Fixture) {
    let [a, b, c, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b, &c] {
        client.begin(LONG).await;
    }
    let (outer, inner, other) =
        (a.claim_with_value("trace-7"), a.claim_with_value("trace-7"), b.claim_with_value("trace-7"));
    let mut fence = None;
    for (client, claim) in [(&a, &outer), (&a, &inner), (&b, &other)] {
        fence = Some(client.granted(&client.request(claim, LONG)).await.fence);
    }
    let fence = fence.expect("it was granted");
    let (waiting, nonce) = c.enqueue().await;
    assert_eq!(operator.force_release(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!((a.next_force_release().await, b.next_force_release().await), (fence, fence));
    assert_eq!(c.next_grant().await.nonce, nonce);
    for (client, claim) in [(&a, &outer), (&a, &inner), (&b, &other)] {
        assert_eq!(client.extend(claim, LONG).await, Extended::NotHeld);
        assert_ne!(client.release(claim).await.status, HoldStatus::Held);
    }
    assert_eq!(c.status(&waiting).await, HoldStatus::Held);
    assert_eq!(count(&operator).await, 1);
    assert_eq!(operator.inspect_full().await.audit.len(), 1);
}

/// R9 and R11: a client of another library and one of Leasehold's have the same owner. Both are counted, and neither
/// releases the other's holds.
pub async fn a_foreign_hold_of_the_same_owner_counts(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let foreign_value = "6f1c0b0e-8f5e-4b0a-9a53-0d7e6a9f4c11:58";
    let Some(put) = fixture.subject.put_foreign(&fixture.lock, foreign_value, Some(LONG)) else {
        return report_unsupported("key to set");
    };
    put.await;
    let holder = b.taken(&b.request(&b.claim(), LONG)).await.holder.expect("a holder");
    assert!(holder.is_foreign());
    assert_eq!(
        (holder.owner.as_ref().map(leasehold_core::OwnValue::as_str), holder.count),
        (Some(foreign_value), 1)
    );
    let claim = a.claim_with_value(foreign_value);
    let granted = a.granted(&a.request(&claim, fixture.short_lease())).await;
    assert_eq!(
        (owner_holds(&granted).count, owner_holds(&granted).lease_ms),
        (2, millis(fixture.short_lease()))
    );
    assert!(b.remaining_ms().await > millis(LONG) - 60_000, "it is not shortened");
    let holder = b.inspect().await.holder.expect("it is held");
    assert_eq!((holder.count, holder.fence), (2, Some(granted.fence)));
    let released = a.release(&claim).await;
    assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, 1));
    assert!(b.taken(&b.request(&b.claim(), LONG)).await.holder.is_some_and(|holder| holder.is_foreign()));
    let again = a.granted(&a.request(&a.claim_with_value(foreign_value), fixture.short_lease())).await;
    assert!(again.fence > granted.fence, "Leasehold held nothing in between");
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("Leasehold's hold expires", async || count(&b).await == 1).await;
    assert!(b.inspect().await.holder.is_some_and(|holder| holder.is_foreign()));
}

/// A lock of another kind with the same name is refused with its kind, in both directions, and stays unchanged.
pub async fn another_kind_of_lock_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    for (first, found, second) in [
        (Kind::Mutex, "string", Kind::Reentrant),
        (Kind::Reentrant, "hash", Kind::Mutex),
        (Kind::Election, "string", Kind::Mutex),
        (Kind::Mutex, "string", Kind::Election),
        (Kind::Election, "string", Kind::Reentrant),
        (Kind::Reentrant, "hash", Kind::Election),
    ] {
        let name = fixture.another_lock().name;
        let (a, b) = (a.at(&Lock { kind: first, name: name.clone() }), b.at(&Lock { kind: second, name }));
        if [&a, &b].iter().any(|client| client.store.check(&client.lock).is_err()) {
            report_unsupported("lock of both kinds");
            continue;
        }
        let held = a.acquire_new(LONG).await;
        let other = b.claim();
        let refused = Reply::Refused(Refused::WrongKind { found: found.into() });
        for request in [b.request(&other, LONG), b.queued_request(&other, LONG, LONG)] {
            assert_eq!(b.execute(&Op::Acquire(request)).await, refused);
        }
        assert_eq!(b.extend(&other, LONG * 9).await, Extended::NotHeld);
        assert_ne!(b.release(&other).await.status, HoldStatus::Held);
        assert_eq!(a.status(&held).await, HoldStatus::Held);
        assert!(a.remaining_ms().await <= millis(LONG));
        a.release(&held).await;
        b.acquire_new(LONG).await;
    }
}

/// Many tasks of one owner acquire and release concurrently. No count is lost, and none is left.
pub async fn concurrent_reentries_are_counted(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let outer = a.claim();
    a.granted(&a.request(&outer, LONG)).await;
    let workers = fixture.clients::<4>().await.map(|client| {
        let outer = outer.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let claim = client.same_owner_claim(&outer);
                let granted = client.granted(&client.request(&claim, LONG)).await;
                assert!((2..=5).contains(&owner_holds(&granted).count), "{granted:?}");
                let released = client.release(&claim).await;
                let left = (1..=4).contains(&released.remaining_holds);
                assert!(released.status == HoldStatus::Held && left, "{released:?}");
            }
        })
    });
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a task panicked: {error}"));
    }
    assert_eq!(count(&b).await, 1);
    assert_eq!(a.release(&outer).await.remaining_holds, 0);
    b.acquire_new(LONG).await;
}

/// The number of holds of the current owner.
async fn count(observer: &TestClient) -> u64 {
    observer.inspect().await.holder.map_or(0, |holder| holder.count)
}
