//! The mailbox: what is promised of a message.

use crate::conformance::client::LONG;
use crate::conformance::fixture::Fixture;
use leasehold_core::Acquired;

/// Row 19: with the mailbox open before the first look, no grant is missed, however a release and an
/// enqueue meet.
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
    assert_eq!(fixture.letters_so_far(&b).await, [], "no message but those of grants");
}

/// A message goes to its session alone, also where several share a handle.
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
    assert_eq!(fixture.letters_so_far(&b).await, []);
}

/// A mailbox that is closed and opened again gets what comes then, however soon that is: the end of the one is not taken for
/// that of the other.
pub async fn a_mailbox_that_is_opened_again_at_once_gets_grants(fixture: &Fixture) {
    let a = fixture.client().await;
    for _ in 0..8 {
        a.store.close_mailbox(a.place(), a.session);
        let opened = a
            .store
            .open_mailbox(a.place(), a.session, a.inbox.clone(), crate::conformance::client::CALL_TIMEOUT)
            .await;
        opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened again: {fault}"));
        assert_eq!(fixture.letters_so_far(&a).await, []);
    }
}

/// Once a mailbox is closed nothing is delivered to it; the grant itself is none the worse, and is found
/// by a look. Others of the same handle keep theirs.
pub async fn a_closed_mailbox_gets_nothing(fixture: &Fixture) {
    let a = fixture.client().await;
    let [b, c] = [fixture.neighbour(&a).await, fixture.neighbour(&a).await];
    let holder = fixture.client().await;
    let held = holder.take(LONG).await;
    let (gone, _) = b.enqueue().await;
    let (_, nonce) = c.enqueue().await;
    b.store.close_mailbox(b.place(), b.session);
    b.store.close_mailbox(b.place(), b.session);
    // Closing waits for nothing, but the same handle does nothing later before it.
    b.inspect().await;
    holder.release(&held).await;
    b.granted(&b.look(&gone, LONG, LONG)).await;
    b.release(&gone).await;
    assert_eq!(c.message().await.nonce, nonce, "what was sent later has come");
    assert!(b.inbox.is_empty(), "delivered to a closed mailbox");
    let opened = b
        .store
        .open_mailbox(b.place(), b.session, b.inbox.clone(), crate::conformance::client::CALL_TIMEOUT)
        .await;
    opened.unwrap_or_else(|fault| panic!("the mailbox cannot be opened again: {fault}"));
    // It works when it is opened again. What was sent meanwhile may come late then: a message is a hint.
    fixture.letters_so_far(&b).await;
}
