//! The queue: first come, first served, one entry for each session, lapsed entries skipped.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquired, HoldStatus};
use std::time::Duration;

/// Grants follow the order of enqueueing, and each waiter learns its position.
pub async fn the_queue_is_first_come_first_served(fixture: &Fixture) {
    let a = fixture.client().await;
    let mut held = a.take(LONG).await;
    let mut holder = a;
    let mut waiters = Vec::new();
    for expected in 0..5 {
        let client = fixture.client().await;
        let claim = client.claim();
        let taken = client.taken(&client.look(&claim, LONG, LONG)).await;
        client.needs_queue().await;
        assert_eq!(taken.position, Some(expected));
        waiters.push((client, claim));
    }
    for (client, claim) in waiters {
        assert_eq!(client.fate(&claim).await, HoldStatus::Queued);
        holder.release(&held).await;
        client.message().await;
        assert_eq!(client.fate(&claim).await, HoldStatus::Held);
        (holder, held) = (client, claim);
    }
    assert_eq!(holder.inspect().await.waiters, 0);
}

/// A poll keeps the queue entry, and refreshes it.
pub async fn a_look_keeps_the_place(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.take(LONG).await;
    let claim = b.claim();
    b.enqueue_as(&claim, fixture.short()).await;
    c.enqueue().await;
    let taken = b.taken(&b.look(&claim, LONG, LONG)).await;
    assert_eq!(taken.position, Some(0), "still before the other");
    fixture.pass(fixture.short() + Duration::from_millis(2)).await;
    assert_eq!(a.inspect().await.waiters, 2);
    a.release(&held).await;
    b.message().await;
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
}

/// A session has one queue entry. Another hold of the session takes it over, and the former is no longer granted.
pub async fn a_session_has_one_place(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.take(LONG).await;
    let (old, _) = b.enqueue().await;
    c.enqueue().await;
    let (new, nonce) = b.enqueue().await;
    assert_eq!(a.inspect().await.waiters, 2);
    assert_eq!(b.fate(&new).await, HoldStatus::Queued);
    assert_ne!(b.release(&old).await.status, HoldStatus::Queued, "that hold waits no more");
    a.release(&held).await;
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.fate(&new).await, HoldStatus::Held);
}

/// Each lock has its own queue.
pub async fn the_queues_of_two_locks_are_two(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let other = fixture.another_lock();
    let (here, there) = (a.take(LONG).await, a.at(&other).take(LONG).await);
    b.enqueue().await;
    let (claim, nonce) = b.at(&other).enqueue().await;
    a.at(&other).release(&there).await;
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.at(&other).fate(&claim).await, HoldStatus::Held);
    assert_eq!(a.fate(&here).await, HoldStatus::Held);
}

/// An attempt does not barge: a free lock with waiters is granted to the first waiter, which the attempt triggers.
pub async fn a_try_does_not_barge(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    a.take(fixture.short()).await;
    let (claim, nonce) = b.enqueue().await;
    fixture.outlast(fixture.short(), &a).await;
    let taken = c.taken(&c.ask(&c.claim(), LONG)).await;
    assert_eq!(taken.holder.and_then(|holder| holder.label), Some(b.label()));
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.fate(&claim).await, HoldStatus::Held);
}

/// Row 20: a lease that ends publishes nothing, so the first in the queue finds out by looking.
pub async fn an_expired_hold_goes_to_the_first_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    a.take(fixture.short()).await;
    let (first, _) = b.enqueue().await;
    let (second, nonce) = c.enqueue().await;
    fixture.outlast(fixture.short(), &a).await;
    let granted = b.granted(&b.look(&first, LONG, LONG)).await;
    assert!(granted.others_wait);
    b.release(&first).await;
    assert_eq!(c.message().await.nonce, nonce);
    assert_eq!(c.fate(&second).await, HoldStatus::Held);
}

/// Row 20: the same where an operator deleted the key.
pub async fn a_deleted_key_goes_to_the_first_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.take(LONG).await;
    let (first, nonce) = b.enqueue().await;
    let (second, _) = c.enqueue().await;
    let Some(deleted) = fixture.subject.delete_key(&fixture.lock) else {
        return super::super::fixture::not_applicable("key to delete");
    };
    deleted.await;
    assert_eq!(a.fate(&held).await, HoldStatus::Vanished);
    c.taken(&c.look(&second, LONG, LONG)).await;
    assert_eq!(b.message().await.nonce, nonce, "the second's look granted it to the first");
    assert_eq!(b.fate(&first).await, HoldStatus::Held);
}

/// Row 23: one operation skips fifty expired entries.
pub async fn the_dead_are_skipped(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    let held = a.take(LONG).await;
    let kept = fixture.short();
    for _ in 0..50 {
        let dead = fixture.client_without_mailbox().await;
        dead.enqueue_as(&dead.claim(), kept).await;
    }
    let (claim, nonce) = live.enqueue().await;
    fixture.pass(kept + Duration::from_millis(2)).await;
    fixture.until("the dead are dead", async || a.inspect().await.waiters == 1).await;
    a.release(&held).await;
    assert_eq!(live.message().await.nonce, nonce);
    assert_eq!(live.fate(&claim).await, HoldStatus::Held);
}

/// Row 23: one operation skips at most 64 expired entries, and a few polls reach the live ones.
pub async fn many_dead_are_skipped_a_few_at_a_time(fixture: &Fixture) {
    let [a, live] = fixture.clients().await;
    let held = a.take(LONG).await;
    let kept = fixture.short();
    let dead = fixture.client_without_mailbox().await;
    for _ in 0..150 {
        let dead = TestClient {
            session: leasehold_core::SessionId::from_random(fixture.random.bytes()),
            ..dead.clone()
        };
        dead.acquire(&dead.look(&dead.claim(), LONG, kept)).await;
    }
    let (claim, _) = live.enqueue().await;
    fixture.pass(kept + Duration::from_millis(2)).await;
    fixture.until("the dead are dead", async || a.inspect().await.waiters == 1).await;
    a.release(&held).await;
    let mut looks = 0;
    while let Acquired::Taken { holder, position, .. } = live.acquire(&live.look(&claim, LONG, LONG)).await {
        assert_eq!(holder, None, "the dead were granted nothing");
        assert!(position.is_some());
        looks += 1;
        assert!(looks < 3, "150 dead are three operations");
    }
}

/// Row 23: entries that were withdrawn never block the queue, however many.
pub async fn withdrawn_entries_do_not_block_the_queue(fixture: &Fixture) {
    let [a, first, last] = fixture.clients().await;
    let held = a.take(LONG).await;
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
    let look = last.look(&next, LONG, LONG);
    assert_eq!(last.taken(&look).await.position, Some(1));
    a.release(&held).await;
    assert_eq!(first.message().await.nonce, nonce);
    first.release(&claim).await;
    assert_eq!(Some(last.message().await.nonce), look.queue.map(|queue| queue.nonce));
    assert!(!last.granted(&last.ask(&next, LONG)).await.others_wait);
}
