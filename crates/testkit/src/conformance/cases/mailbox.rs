//! The mailbox: which notifications are guaranteed.

use crate::conformance::client::LONG;
use crate::conformance::fixture::Fixture;
use leasehold_core::Acquired;

/// Row 19: if the mailbox is open before the first poll, no grant is missed, in any order of release and enqueue.
pub async fn no_grant_is_missed(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    for round in 0..100 {
        let (held, claim) = (a.acquire_new(LONG).await, b.claim());
        let poll = b.queued_request(&claim, LONG, LONG);
        let (_, reply) = if round % 2 == 0 {
            futures_util::future::join(a.release(&held), b.acquire(&poll)).await
        } else {
            let (reply, released) = futures_util::future::join(b.acquire(&poll), a.release(&held)).await;
            (released, reply)
        };
        if let Acquired::Taken { .. } = reply {
            assert_eq!(
                Some(b.next_grant().await.nonce),
                poll.queue.map(|queue| queue.nonce),
                "round {round}"
            );
        }
        b.release(&claim).await;
    }
    assert_eq!(fixture.grants_so_far(&b).await, [], "there are no other notifications");
}

/// A notification goes to its session only, even if sessions share a store handle.
pub async fn sessions_of_one_handle_have_separate_mailboxes(fixture: &Fixture) {
    let a = fixture.client().await;
    let b = fixture.client_on_same_handle(&a).await;
    let holder = fixture.client().await;
    let held = holder.acquire_new(LONG).await;
    let (own, nonce) = b.enqueue().await;
    let (_, later) = a.enqueue().await;
    holder.release(&held).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    b.release(&own).await;
    assert_eq!(a.next_grant().await.nonce, later);
    assert_eq!(fixture.grants_so_far(&b).await, []);
}

/// A mailbox that is closed and reopened at once gets new notifications: the end of the first does not close the
/// second.
pub async fn a_reopened_mailbox_receives_grants(fixture: &Fixture) {
    let a = fixture.client().await;
    for _ in 0..8 {
        a.store.close_mailbox(a.partition(), a.session);
        let opened = a
            .store
            .open_mailbox(a.partition(), a.session, a.inbox.clone(), crate::conformance::client::CALL_TIMEOUT)
            .await;
        opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened again: {fault}"));
        assert_eq!(fixture.grants_so_far(&a).await, []);
    }
}

/// A closed mailbox receives nothing. The grant still stands, and a poll finds it. Other mailboxes of the handle are
/// unaffected.
pub async fn a_closed_mailbox_receives_nothing(fixture: &Fixture) {
    let a = fixture.client().await;
    let [b, c] = [fixture.client_on_same_handle(&a).await, fixture.client_on_same_handle(&a).await];
    let holder = fixture.client().await;
    let held = holder.acquire_new(LONG).await;
    let (gone, _) = b.enqueue().await;
    let (_, nonce) = c.enqueue().await;
    b.store.close_mailbox(b.partition(), b.session);
    b.store.close_mailbox(b.partition(), b.session);
    // Closing does not wait, but precedes later calls on the same handle.
    b.inspect().await;
    holder.release(&held).await;
    b.granted(&b.queued_request(&gone, LONG, LONG)).await;
    b.release(&gone).await;
    assert_eq!(c.next_grant().await.nonce, nonce, "a later notification has arrived");
    assert!(b.inbox.is_empty(), "delivered to a closed mailbox");
    let opened = b
        .store
        .open_mailbox(b.partition(), b.session, b.inbox.clone(), crate::conformance::client::CALL_TIMEOUT)
        .await;
    opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened again: {fault}"));
    // A reopened mailbox works. Earlier notifications may arrive late: they are hints.
    fixture.grants_so_far(&b).await;
}
