//! The mailbox: which notifications are guaranteed.

use crate::conformance::client::LONG;
use crate::conformance::fixture::Fixture;
use leasehold_core::Acquired;

/// Row 19: with an open mailbox before the first poll, no grant is missed, whatever the order of release and enqueue.
pub async fn no_grant_is_missed(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    for round in 0..100 {
        let (held, claim) = (a.take(LONG).await, b.claim());
        let look = b.look(&claim, LONG, LONG);
        let (_, reply) = if round % 2 == 0 {
            futures_util::future::join(a.release(&held), b.acquire(&look)).await
        } else {
            let (reply, released) = futures_util::future::join(b.acquire(&look), a.release(&held)).await;
            (released, reply)
        };
        if let Acquired::Taken { .. } = reply {
            assert_eq!(Some(b.message().await.nonce), look.queue.map(|queue| queue.nonce), "round {round}");
        }
        b.release(&claim).await;
    }
    assert_eq!(fixture.grants_so_far(&b).await, [], "no message but those of grants");
}

/// A notification goes to its session only, even if sessions share a store handle.
pub async fn sessions_of_one_handle_have_two_mailboxes(fixture: &Fixture) {
    let a = fixture.client().await;
    let b = fixture.neighbour(&a).await;
    let holder = fixture.client().await;
    let held = holder.take(LONG).await;
    let (mine, nonce) = b.enqueue().await;
    let (_, later) = a.enqueue().await;
    holder.release(&held).await;
    assert_eq!(b.message().await.nonce, nonce);
    b.release(&mine).await;
    assert_eq!(a.message().await.nonce, later);
    assert_eq!(fixture.grants_so_far(&b).await, []);
}

/// A mailbox that is closed and reopened at once gets new notifications: the end of the first does not close the
/// second.
pub async fn a_mailbox_that_is_opened_again_at_once_gets_grants(fixture: &Fixture) {
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
pub async fn a_closed_mailbox_gets_nothing(fixture: &Fixture) {
    let a = fixture.client().await;
    let [b, c] = [fixture.neighbour(&a).await, fixture.neighbour(&a).await];
    let holder = fixture.client().await;
    let held = holder.take(LONG).await;
    let (gone, _) = b.enqueue().await;
    let (_, nonce) = c.enqueue().await;
    b.store.close_mailbox(b.partition(), b.session);
    b.store.close_mailbox(b.partition(), b.session);
    // Closing waits for nothing, but the same handle does nothing later before it.
    b.inspect().await;
    holder.release(&held).await;
    b.granted(&b.look(&gone, LONG, LONG)).await;
    b.release(&gone).await;
    assert_eq!(c.message().await.nonce, nonce, "what was sent later has come");
    assert!(b.inbox.is_empty(), "delivered to a closed mailbox");
    let opened = b
        .store
        .open_mailbox(b.partition(), b.session, b.inbox.clone(), crate::conformance::client::CALL_TIMEOUT)
        .await;
    opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened again: {fault}"));
    // A reopened mailbox works. Earlier notifications may arrive late: they are hints.
    fixture.grants_so_far(&b).await;
}
