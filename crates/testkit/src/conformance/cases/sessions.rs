//! Sessions: which are alive, and what happens to the holds of those that have lapsed.
//!
//! A store that tracks sessions itself has no lapse by time. Its own tests kill a process.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::{Fixture, not_applicable};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Evicted, Extended, FencingToken, HeartbeatReply, HoldStatus, Liveness,
    Predecessor,
};
use leasehold_store::SessionTracking;
use std::time::Duration;

/// A heartbeat keeps a session alive and never shortens it. A lapsed session stays lapsed, even if it begins again.
pub async fn a_session_lives_as_long_as_it_beats(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    assert_eq!(a.beat(a.beat_for(LONG)).await, HeartbeatReply::Lapsed, "it has not begun");
    a.begin(fixture.short()).await;
    b.begin(LONG).await;
    assert_eq!(b.beat(b.beat_for(Duration::from_millis(1))).await, HeartbeatReply::Alive);
    fixture.pass(fixture.short() / 2).await;
    assert_eq!(a.beat(a.beat_for(fixture.short())).await, HeartbeatReply::Alive);
    fixture.outlive(fixture.short(), &a).await;
    assert_eq!(a.beat(a.beat_for(LONG)).await, HeartbeatReply::Lapsed);
    let again = a.beat_for(LONG);
    let again = leasehold_core::Heartbeat { begin: Some(a.about()), ..again };
    assert_eq!(a.beat(again).await, HeartbeatReply::Lapsed, "who has lapsed begins as another");
    assert_eq!(
        b.beat(b.beat_for(LONG)).await,
        HeartbeatReply::Alive,
        "a beat that asks for less takes nothing away"
    );
}

/// An ended session is gone at once, and others are unaffected.
pub async fn a_session_that_ended_is_over(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    a.begin(LONG).await;
    b.begin(LONG).await;
    a.end().await;
    a.end().await;
    assert_eq!(b.listed(a.session).await, None);
    assert!(b.listed(b.session).await.is_some_and(|entry| entry.alive_ms.is_some()));
    if lapses(&a) {
        assert_eq!(a.beat(a.beat_for(LONG)).await, HeartbeatReply::Lapsed);
    }
}

/// A list shows a session with its metadata and held locks.
pub async fn a_session_is_listed_with_what_it_holds(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    a.begin(LONG).await;
    let elsewhere = fixture.another_lock();
    let claim = a.take(LONG).await;
    a.at(&elsewhere).take(LONG).await;
    let held = vec![a.lock.clone(), elsewhere.clone()];
    a.beat(leasehold_core::Heartbeat { acquired: held.clone(), ..a.beat_for(LONG) }).await;
    let entry = b.listed(a.session).await.expect("it is alive");
    let mut expected = held;
    expected.sort();
    let mut found = entry.held;
    found.sort();
    assert_eq!((entry.metadata, found), (a.about(), expected));
    assert!(entry.alive_ms.is_some());
    a.release(&claim).await;
    a.beat(leasehold_core::Heartbeat { released: vec![a.lock.clone()], ..a.beat_for(LONG) }).await;
    assert_eq!(b.listed(a.session).await.map(|entry| entry.held), Some(vec![elsewhere]));
}

/// Row 23: the first waiter watches the holder. A poll reports how long it lives; once it has lapsed, the same poll
/// acquires the lock, whatever the lease.
pub async fn a_look_takes_the_lock_from_the_dead_ahead(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    a.begin(fixture.short()).await;
    b.begin(LONG).await;
    c.begin(LONG).await;
    let (lost, fence) = take(&a).await;
    let claim = b.claim();
    assert_eq!(b.taken(&b.look(&claim, LONG, LONG)).await.predecessor, Some(unasked(&a)));
    let (_, nonce) = c.enqueue().await;
    let look = b.taken(&behind(&b, &claim, &a)).await;
    let alive_ms =
        look.predecessor.filter(|ahead| ahead.session == a.session).and_then(|ahead| ahead.alive_ms);
    assert!(alive_ms.is_some_and(|ms| u128::from(ms) <= fixture.short().as_millis()), "{alive_ms:?}");
    fixture.outlive(fixture.short(), &a).await;
    b.taken(&b.look(&claim, LONG, LONG)).await;
    let granted = b.granted(&behind(&b, &claim, &a)).await;
    assert!(granted.fence > fence && granted.others_wait, "{granted:?} after {fence}");
    assert_eq!(a.extend(&lost, LONG).await, Extended::NotHeld);
    assert_eq!(a.acquire(&a.ask(&lost, LONG)).await, Acquired::AlreadyEnded(Ended::Evicted));
    b.release(&claim).await;
    assert_eq!(c.message().await.nonce, nonce);
}

/// Row 23: each poll evicts the predecessor and names the next: a row of lapsed sessions costs one poll each.
pub async fn a_row_of_dead_sessions_is_cleared_from_behind(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    live.begin(LONG).await;
    a.begin(fixture.short()).await;
    a.take(LONG).await;
    let mut last = a.clone();
    for _ in 0..10 {
        last = fixture.neighbour(&a).await;
        last.begin(fixture.short()).await;
        last.enqueue().await;
    }
    fixture.outlive(fixture.short(), &last).await;
    let claim = live.claim();
    let mut ahead = live.taken(&live.look(&claim, LONG, LONG)).await.predecessor;
    for _ in 0..10 {
        let look = Acquire { predecessor: ahead.map(|ahead| ahead.session), ..live.look(&claim, LONG, LONG) };
        let next = live.taken(&look).await.predecessor;
        assert_ne!(
            next.map(|next| next.session),
            ahead.map(|ahead| ahead.session),
            "it does not come nearer"
        );
        ahead = next;
    }
    assert_eq!(ahead, Some(unasked(&a)), "the holder is the last of them");
    live.granted(&behind(&live, &claim, &a)).await;
    assert_eq!(live.fate(&claim).await, HoldStatus::Held);
}

/// A client that does not want the lock also evicts lapsed holders. The lock is granted to the next waiter, which is
/// notified.
pub async fn a_dead_session_is_evicted_by_any_client(fixture: &Fixture) {
    let [a, b, c, watch] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let (_, fence) = take(&a).await;
    let (claim, nonce) = b.enqueue().await;
    c.enqueue().await;
    fixture.outlive(fixture.short(), &a).await;
    assert_eq!(watch.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    assert_eq!(b.message().await.nonce, nonce, "the next in order");
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
    assert_eq!(watch.evict(a.session).await, Evicted::Removed { fence: None, was_queued: false }, "once");
    assert_eq!(fixture.grants_so_far(&c).await, []);
}

/// Row 10: holds of a live session are never evicted.
pub async fn the_living_are_not_evicted(fixture: &Fixture) {
    let [a, b, watch] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    for client in [&a, &b] {
        client.begin(LONG).await;
    }
    let held = a.take(LONG).await;
    let (claim, _) = b.enqueue().await;
    for living in [&a, &b] {
        assert_eq!(watch.evict(living.session).await, Evicted::Alive);
    }
    let ahead = b.taken(&behind(&b, &claim, &a)).await.predecessor;
    assert!(ahead.is_some_and(|ahead| ahead.session == a.session && ahead.alive_ms.is_some()), "{ahead:?}");
    assert_eq!(a.fate(&held).await, HoldStatus::Held);
    assert_eq!(b.fate(&claim).await, HoldStatus::Queued);
    assert_eq!(watch.inspect_full().await.audit, []);
}

/// A hold that lives by its lease alone has no session that could be missed.
pub async fn a_hold_without_a_session_is_not_evicted(fixture: &Fixture) {
    let [a, b, watch] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    let (held, claim) = (a.claim(), b.claim());
    a.granted(&Acquire { liveness: Liveness::Lease, ..a.ask(&held, LONG) }).await;
    let look = Acquire { liveness: Liveness::Lease, ..behind(&b, &claim, &a) };
    let standing = b.taken(&look).await;
    assert_eq!((standing.predecessor, standing.holder.and_then(|holder| holder.session)), (None, None));
    for (client, claim, fate) in [(&a, &held, HoldStatus::Held), (&b, &claim, HoldStatus::Queued)] {
        assert_eq!(watch.evict(client.session).await, Evicted::Removed { fence: None, was_queued: false });
        assert_eq!(client.fate(claim).await, fate);
    }
}

/// An evicted holder learns it from any request, and affects no other hold.
pub async fn an_evicted_hold_learns_its_fate(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    a.begin(fixture.short()).await;
    b.begin(LONG).await;
    let lost = a.take(LONG).await;
    let (claim, _) = b.enqueue().await;
    fixture.outlive(fixture.short(), &a).await;
    let fence = b.granted(&behind(&b, &claim, &a)).await.fence;
    let entry = b.inspect_full().await.audit.into_iter().next().expect("it is written down");
    assert_eq!((entry.ended, entry.holder, entry.actor), (Ended::Evicted, Some(a.label()), b.label()));
    assert_eq!(a.fate(&lost).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(a.release(&lost).await.status, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(b.granted(&b.ask(&claim, LONG)).await.fence, fence, "the successor has it still");
}

/// Whether the store tracks sessions. Reports if it does not.
pub(super) fn keeps(client: &TestClient) -> bool {
    let keeps = client.store.capabilities().sessions != SessionTracking::Never;
    if !keeps {
        not_applicable("sessions");
    }
    keeps
}

/// Whether sessions lapse by time. Reports if they do not.
pub(super) fn lapses(client: &TestClient) -> bool {
    let lapses = client.store.capabilities().sessions == SessionTracking::ByHeartbeat;
    if !lapses {
        not_applicable("sessions that lapse");
    }
    lapses
}

/// Takes the free lock, and gives the fencing token as well.
pub(super) async fn take(client: &TestClient) -> (Claim, FencingToken) {
    let claim = client.claim();
    let granted = client.granted(&client.ask(&claim, LONG)).await;
    (claim, granted.fence)
}

/// A poll that checks the predecessor.
fn behind(client: &TestClient, claim: &Claim, ahead: &TestClient) -> Acquire {
    Acquire { predecessor: Some(ahead.session), ..client.look(claim, LONG, LONG) }
}

/// The predecessor, as reported to a client that did not ask for it.
fn unasked(client: &TestClient) -> Predecessor {
    Predecessor { session: client.session, alive_ms: None }
}
