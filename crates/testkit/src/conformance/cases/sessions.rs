//! Sessions: which are alive, and the end of the holds of lapsed ones.
//!
//! In a store that tracks sessions itself, sessions do not lapse by time. Its own tests kill a process.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Evicted, Extended, Heartbeat, HeartbeatReply, HoldStatus, Liveness,
    Predecessor,
};
use leasehold_store::SessionTracking;
use std::time::Duration;

/// A heartbeat keeps a session alive and never shortens it. A lapsed session stays lapsed, even if it begins again.
pub async fn heartbeats_keep_a_session_alive(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    assert_eq!(a.heartbeat(a.heartbeat_request(LONG)).await, HeartbeatReply::Lapsed, "it has not begun");
    a.begin(fixture.short_lease()).await;
    b.begin(LONG).await;
    assert_eq!(b.heartbeat(b.heartbeat_request(Duration::from_millis(1))).await, HeartbeatReply::Alive);
    fixture.advance(fixture.short_lease() / 2).await;
    assert_eq!(a.heartbeat(a.heartbeat_request(fixture.short_lease())).await, HeartbeatReply::Alive);
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    assert_eq!(a.heartbeat(a.heartbeat_request(LONG)).await, HeartbeatReply::Lapsed);
    let again = a.heartbeat_request(LONG);
    let again = leasehold_core::Heartbeat { begin: Some(a.metadata()), ..again };
    assert_eq!(a.heartbeat(again).await, HeartbeatReply::Lapsed, "a lapsed session cannot begin again");
    assert_eq!(
        b.heartbeat(b.heartbeat_request(LONG)).await,
        HeartbeatReply::Alive,
        "a shorter heartbeat shortens nothing"
    );
}

/// An ended session is removed at once, and others are unaffected.
pub async fn an_ended_session_is_over(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    a.begin(LONG).await;
    b.begin(LONG).await;
    a.end().await;
    a.end().await;
    assert_eq!(b.session_entry(a.session).await, None);
    assert!(b.session_entry(b.session).await.is_some_and(|entry| entry.alive_ms.is_some()));
    if sessions_lapse(&a) {
        assert_eq!(a.heartbeat(a.heartbeat_request(LONG)).await, HeartbeatReply::Lapsed);
    }
}

/// A list shows a session with its metadata and held locks.
pub async fn a_session_is_listed_with_its_locks(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    a.begin(LONG).await;
    let elsewhere = fixture.another_lock();
    let claim = a.acquire_new(LONG).await;
    a.at(&elsewhere).acquire_new(LONG).await;
    let held = vec![a.lock.clone(), elsewhere.clone()];
    a.heartbeat(leasehold_core::Heartbeat { acquired: held.clone(), ..a.heartbeat_request(LONG) }).await;
    let entry = b.session_entry(a.session).await.expect("it is alive");
    let mut expected = held;
    expected.sort();
    let mut found = entry.held;
    found.sort();
    assert_eq!((entry.metadata, found), (a.metadata(), expected));
    assert!(entry.alive_ms.is_some());
    a.release(&claim).await;
    a.heartbeat(leasehold_core::Heartbeat { released: vec![a.lock.clone()], ..a.heartbeat_request(LONG) })
        .await;
    assert_eq!(b.session_entry(a.session).await.map(|entry| entry.held), Some(vec![elsewhere]));
}

/// A session is listed with what its client reported last that it does, and with nothing once that is withdrawn.
pub async fn a_session_is_listed_with_its_activity(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    a.begin(LONG).await;
    b.begin(LONG).await;
    let longest = "\u{e9}".repeat(Heartbeat::MAX_ACTIVITY / 2);
    for (activity, expected) in [
        (None, ""),
        (Some("{\"waits\": 1}"), "{\"waits\": 1}"),
        (None, "{\"waits\": 1}"),
        (Some(&*longest), &*longest),
        (Some(""), ""),
        (Some("="), "="),
    ] {
        let activity = activity.map(str::to_owned);
        let reply = a.heartbeat(Heartbeat { activity: activity.clone(), ..a.heartbeat_request(LONG) }).await;
        assert_eq!(reply, HeartbeatReply::Alive);
        let entry = b.session_entry(a.session).await.expect("it is alive");
        assert_eq!((entry.activity.as_str(), entry.metadata), (expected, a.metadata()), "after {activity:?}");
    }
    assert_eq!(b.session_entry(b.session).await.map(|entry| entry.activity), Some(String::new()));
    a.end().await;
    assert_eq!(b.session_entry(a.session).await, None);
}

/// Row 23: the first waiter watches the holder. A poll reports how long it lives; once it has lapsed, the same poll
/// acquires the lock, whatever the lease.
pub async fn a_poll_evicts_a_lapsed_predecessor(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    a.begin(fixture.short_lease()).await;
    b.begin(LONG).await;
    c.begin(LONG).await;
    let (lost, fence) = a.acquire_with_token().await;
    let claim = b.claim();
    assert_eq!(b.taken(&b.queued_request(&claim, LONG, LONG)).await.predecessor, Some(unchecked(&a)));
    let (_, nonce) = c.enqueue().await;
    let poll = b.taken(&behind(&b, &claim, &a)).await;
    let alive_ms = poll
        .predecessor
        .filter(|predecessor| predecessor.session == a.session)
        .and_then(|predecessor| predecessor.alive_ms);
    assert!(alive_ms.is_some_and(|ms| u128::from(ms) <= fixture.short_lease().as_millis()), "{alive_ms:?}");
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    b.taken(&b.queued_request(&claim, LONG, LONG)).await;
    let granted = b.granted(&behind(&b, &claim, &a)).await;
    assert!(granted.fence > fence && granted.others_wait, "{granted:?} after {fence}");
    assert_eq!(a.extend(&lost, LONG).await, Extended::NotHeld);
    assert_eq!(a.acquire(&a.request(&lost, LONG)).await, Acquired::AlreadyEnded(Ended::Evicted));
    b.release(&claim).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
}

/// Row 23: each poll evicts the predecessor and returns the next. A row of lapsed sessions costs one poll each.
pub async fn polls_evict_a_row_of_lapsed_sessions(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    live.begin(LONG).await;
    a.begin(fixture.short_lease()).await;
    a.acquire_new(LONG).await;
    let mut last = a.clone();
    for _ in 0..10 {
        last = fixture.client_on_same_handle(&a).await;
        last.begin(fixture.short_lease()).await;
        last.enqueue().await;
    }
    fixture.wait_lapsed(fixture.short_lease(), &last).await;
    let claim = live.claim();
    let mut predecessor = live.taken(&live.queued_request(&claim, LONG, LONG)).await.predecessor;
    for _ in 0..10 {
        let poll = Acquire {
            predecessor: predecessor.map(|predecessor| predecessor.session),
            ..live.queued_request(&claim, LONG, LONG)
        };
        let next = live.taken(&poll).await.predecessor;
        assert_ne!(
            next.map(|next| next.session),
            predecessor.map(|predecessor| predecessor.session),
            "the predecessor has changed"
        );
        predecessor = next;
    }
    assert_eq!(predecessor, Some(unchecked(&a)), "the holder is the last of them");
    live.granted(&behind(&live, &claim, &a)).await;
    assert_eq!(live.status(&claim).await, HoldStatus::Held);
}

/// A client that does not want the lock also evicts lapsed holders. The lock is granted to the next waiter, which is
/// notified.
pub async fn a_lapsed_session_is_evicted_by_any_client(fixture: &Fixture) {
    let [a, b, c, observer] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let (_, fence) = a.acquire_with_token().await;
    let (claim, nonce) = b.enqueue().await;
    c.enqueue().await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    assert_eq!(observer.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    assert_eq!(b.next_grant().await.nonce, nonce, "the next in order");
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
    assert_eq!(observer.evict(a.session).await, Evicted::Removed { fence: None, was_queued: false }, "once");
    assert_eq!(fixture.grants_so_far(&c).await, []);
}

/// Row 10: holds of a live session are never evicted.
pub async fn live_sessions_are_not_evicted(fixture: &Fixture) {
    let [a, b, observer] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b] {
        client.begin(LONG).await;
    }
    let held = a.acquire_new(LONG).await;
    let (claim, _) = b.enqueue().await;
    for living in [&a, &b] {
        assert_eq!(observer.evict(living.session).await, Evicted::Alive);
    }
    let predecessor = b.taken(&behind(&b, &claim, &a)).await.predecessor;
    assert!(
        predecessor
            .is_some_and(|predecessor| predecessor.session == a.session && predecessor.alive_ms.is_some()),
        "{predecessor:?}"
    );
    assert_eq!(a.status(&held).await, HoldStatus::Held);
    assert_eq!(b.status(&claim).await, HoldStatus::Queued);
    assert_eq!(observer.inspect_full().await.audit, []);
}

/// A hold that depends on its lease alone is not evicted.
pub async fn a_hold_without_a_session_is_not_evicted(fixture: &Fixture) {
    let [a, b, observer] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    let (held, claim) = (a.claim(), b.claim());
    a.granted(&Acquire { liveness: Liveness::Lease, ..a.request(&held, LONG) }).await;
    let poll = Acquire { liveness: Liveness::Lease, ..behind(&b, &claim, &a) };
    let taken = b.taken(&poll).await;
    assert_eq!((taken.predecessor, taken.holder.and_then(|holder| holder.session)), (None, None));
    for (client, claim, fate) in [(&a, &held, HoldStatus::Held), (&b, &claim, HoldStatus::Queued)] {
        assert_eq!(observer.evict(client.session).await, Evicted::Removed { fence: None, was_queued: false });
        assert_eq!(client.status(claim).await, fate);
    }
}

/// An evicted holder learns it from any request, and affects no other hold.
pub async fn an_evicted_holder_is_informed(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    a.begin(fixture.short_lease()).await;
    b.begin(LONG).await;
    let lost = a.acquire_new(LONG).await;
    let (claim, _) = b.enqueue().await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    let fence = b.granted(&behind(&b, &claim, &a)).await.fence;
    let entry = b.inspect_full().await.audit.into_iter().next().expect("it is audited");
    assert_eq!((entry.ended, entry.holder, entry.actor), (Ended::Evicted, Some(a.label()), b.label()));
    assert_eq!(a.status(&lost).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(a.release(&lost).await.status, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(b.granted(&b.request(&claim, LONG)).await.fence, fence, "the successor still holds it");
}

/// Whether the store tracks sessions. Reports if it does not.
pub(super) fn tracks_sessions(client: &TestClient) -> bool {
    let tracks_sessions = client.store.capabilities().sessions != SessionTracking::Never;
    if !tracks_sessions {
        report_unsupported("sessions");
    }
    tracks_sessions
}

/// Whether sessions lapse by time. Reports if they do not.
pub(super) fn sessions_lapse(client: &TestClient) -> bool {
    let sessions_lapse = client.store.capabilities().sessions == SessionTracking::ByHeartbeat;
    if !sessions_lapse {
        report_unsupported("sessions that lapse");
    }
    sessions_lapse
}

/// A poll that checks the predecessor.
fn behind(client: &TestClient, claim: &Claim, predecessor: &TestClient) -> Acquire {
    Acquire { predecessor: Some(predecessor.session), ..client.queued_request(claim, LONG, LONG) }
}

/// The predecessor, as reported to a client that did not check it.
fn unchecked(client: &TestClient) -> Predecessor {
    Predecessor { session: client.session, alive_ms: None }
}
