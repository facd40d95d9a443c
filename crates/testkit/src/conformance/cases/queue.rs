//! The queue: first come, first served, one entry for each session, lapsed entries skipped.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquired, HoldStatus};
use std::time::Duration;

/// Grants follow the order of enqueueing, and each waiter learns its position.
pub async fn the_queue_is_first_come_first_served(fixture: &Fixture) {
    let a = fixture.client().await;
    let mut held = a.acquire_new(LONG).await;
    let mut holder = a;
    let mut waiters = Vec::new();
    for expected in 0..5 {
        let client = fixture.client().await;
        let claim = client.claim();
        let taken = client.taken(&client.queued_request(&claim, LONG, LONG)).await;
        client.require_queue().await;
        assert_eq!(taken.position, Some(expected));
        waiters.push((client, claim));
    }
    for (client, claim) in waiters {
        assert_eq!(client.status(&claim).await, HoldStatus::Queued);
        holder.release(&held).await;
        client.next_grant().await;
        assert_eq!(client.status(&claim).await, HoldStatus::Held);
        (holder, held) = (client, claim);
    }
    assert_eq!(holder.inspect().await.waiters, 0);
}

/// A full inspection lists the waiters in the order in which they will be served, without those that have lapsed; any other
/// lists none.
pub async fn the_queue_is_listed_in_order(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    for (client, ttl) in [(&b, LONG), (&c, fixture.short_lease()), (&d, LONG)] {
        client.enqueue_as(&client.claim(), ttl).await;
    }
    let listed = async || {
        let seen = a.inspect_full().await;
        assert_eq!(seen.queue.len() as u64, seen.waiters);
        seen.queue.into_iter().map(|waiter| (waiter.session, waiter.label)).collect::<Vec<_>>()
    };
    let of = |client: &TestClient| (client.session, Some(client.label()));
    assert_eq!(listed().await, [of(&b), of(&c), of(&d)]);
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    assert_eq!(listed().await, [of(&b), of(&d)]);
    assert_eq!(a.inspect().await.queue, []);
    a.release(&held).await;
    b.next_grant().await;
    assert_eq!(listed().await, [of(&d)]);
}

/// A poll keeps the queue entry, and refreshes it.
pub async fn a_poll_keeps_the_queue_position(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let claim = b.claim();
    b.enqueue_as(&claim, fixture.short_lease()).await;
    c.enqueue().await;
    let taken = b.taken(&b.queued_request(&claim, LONG, LONG)).await;
    assert_eq!(taken.position, Some(0), "it is still ahead of the other");
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    assert_eq!(a.inspect().await.waiters, 2);
    a.release(&held).await;
    b.next_grant().await;
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

/// A session has one queue entry. Another hold of the session takes it over, and the former is no longer granted.
pub async fn a_session_has_one_queue_entry(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (old, _) = b.enqueue().await;
    c.enqueue().await;
    let (new, nonce) = b.enqueue().await;
    assert_eq!(a.inspect().await.waiters, 2);
    assert_eq!(b.status(&new).await, HoldStatus::Queued);
    assert_ne!(b.release(&old).await.status, HoldStatus::Queued, "that hold no longer waits");
    a.release(&held).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&new).await, HoldStatus::Held);
}

/// Each lock has its own queue.
pub async fn each_lock_has_its_own_queue(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let other = fixture.another_lock();
    let (here, there) = (a.acquire_new(LONG).await, a.at(&other).acquire_new(LONG).await);
    b.enqueue().await;
    let (claim, nonce) = b.at(&other).enqueue().await;
    a.at(&other).release(&there).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.at(&other).status(&claim).await, HoldStatus::Held);
    assert_eq!(a.status(&here).await, HoldStatus::Held);
}

/// A try does not overtake waiters: if the lock is free and has waiters, it grants the lock to the first waiter.
pub async fn a_try_does_not_overtake_waiters(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    a.acquire_new(fixture.short_lease()).await;
    let (claim, nonce) = b.enqueue().await;
    fixture.wait_expired(fixture.short_lease(), &a).await;
    let taken = c.taken(&c.request(&c.claim(), LONG)).await;
    assert_eq!(taken.holder.and_then(|holder| holder.label), Some(b.label()));
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&claim).await, HoldStatus::Held);
}

/// Row 20: the end of a lease publishes nothing. The first waiter finds it by polling.
pub async fn an_expired_hold_goes_to_the_first_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    a.acquire_new(fixture.short_lease()).await;
    let (first, _) = b.enqueue().await;
    let (second, nonce) = c.enqueue().await;
    fixture.wait_expired(fixture.short_lease(), &a).await;
    let granted = b.granted(&b.queued_request(&first, LONG, LONG)).await;
    assert!(granted.others_wait);
    b.release(&first).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!(c.status(&second).await, HoldStatus::Held);
}

/// Row 20: the same after an operator has deleted the key.
pub async fn a_deleted_key_goes_to_the_first_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (first, nonce) = b.enqueue().await;
    let (second, _) = c.enqueue().await;
    let Some(deleted) = fixture.subject.delete_key(&fixture.lock) else {
        return super::super::fixture::report_unsupported("key to delete");
    };
    deleted.await;
    assert_eq!(a.status(&held).await, HoldStatus::Vanished);
    c.taken(&c.queued_request(&second, LONG, LONG)).await;
    assert_eq!(b.next_grant().await.nonce, nonce, "the second waiter's poll granted it to the first");
    assert_eq!(b.status(&first).await, HoldStatus::Held);
}

/// Row 23: one operation skips fifty expired entries.
pub async fn expired_entries_are_skipped(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let kept = fixture.short_lease();
    for _ in 0..50 {
        let dead = fixture.client_without_mailbox().await;
        dead.enqueue_as(&dead.claim(), kept).await;
    }
    let (claim, nonce) = live.enqueue().await;
    fixture.advance(kept + Duration::from_millis(2)).await;
    fixture.wait_until("the entries expire", async || a.inspect().await.waiters == 1).await;
    a.release(&held).await;
    assert_eq!(live.next_grant().await.nonce, nonce);
    assert_eq!(live.status(&claim).await, HoldStatus::Held);
}

/// Row 23: one operation skips at most 64 expired entries, and a few polls reach the live ones.
pub async fn many_expired_entries_are_skipped_in_steps(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let kept = fixture.short_lease();
    let dead = fixture.client_without_mailbox().await;
    for _ in 0..150 {
        let dead = TestClient {
            session: leasehold_core::SessionId::from_random(fixture.random.bytes()),
            ..dead.clone()
        };
        dead.acquire(&dead.queued_request(&dead.claim(), LONG, kept)).await;
    }
    let (claim, _) = live.enqueue().await;
    fixture.advance(kept + Duration::from_millis(2)).await;
    fixture.wait_until("the entries expire", async || a.inspect().await.waiters == 1).await;
    a.release(&held).await;
    let mut polls = 0;
    while let Acquired::Taken { holder, position, .. } =
        live.acquire(&live.queued_request(&claim, LONG, LONG)).await
    {
        assert_eq!(holder, None, "no expired entry was granted");
        assert!(position.is_some());
        polls += 1;
        assert!(polls < 3, "three operations skip 150 entries");
    }
}

/// Row 23: entries that were withdrawn never block the queue, however many.
pub async fn withdrawn_entries_do_not_block_the_queue(fixture: &Fixture) {
    let [a, first, last] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let (claim, nonce) = first.enqueue().await;
    let left = fixture.client_without_mailbox().await;
    for _ in 0..150 {
        let left = TestClient {
            session: leasehold_core::SessionId::from_random(fixture.random.bytes()),
            ..left.clone()
        };
        let (claim, _) = left.enqueue().await;
        assert_eq!(left.release(&claim).await.status, HoldStatus::Queued);
    }
    let next = last.claim();
    let poll = last.queued_request(&next, LONG, LONG);
    assert_eq!(last.taken(&poll).await.position, Some(1));
    a.release(&held).await;
    assert_eq!(first.next_grant().await.nonce, nonce);
    first.release(&claim).await;
    assert_eq!(Some(last.next_grant().await.nonce), poll.queue.map(|queue| queue.nonce));
    assert!(!last.granted(&last.request(&next, LONG)).await.others_wait);
}
