//! Grants, and the mailboxes that receive them.

use crate::fixture::{
    LONG, Mailbox, Received, SHORT, acquire, claim, connect, eventually, execute, found, granted, in_time,
    nonce, notified, receive, refused, release, session, take,
};
use leasehold_core::{HoldStatus, Partition};
use leasehold_redis::RedisStore;
use leasehold_store::{FaultKind, Store};
use leasehold_testkit::{Proxy, RedisServer, command};

#[tokio::test]
async fn a_grant_arrives_in_the_mailbox() {
    let server = RedisServer::start().unwrap();
    let (holder, waiter) = (connect(&server).await, connect(&server).await);
    let (mut inbox, mailbox) = Mailbox::open();
    waiter.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&holder, &claim(1), None).await);
    acquire(&waiter, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&holder, &claim(1)).await), HoldStatus::Held);
    let notification = notified(&mut inbox).await;
    assert_eq!((notification.to(), notification.nonce()), (session(2), Some(nonce(7))));
    assert!(server.cli(&["GET", "job"]).unwrap().text() == Some(&*claim(2).token()));
    waiter.close_mailbox(Partition::ONLY, session(2));
    eventually(|| server.cli(&["PUBSUB", "CHANNELS"]).unwrap().elements().is_empty()).await;
    // A mailbox on the connection that publishes.
    let (mut inbox, mailbox) = Mailbox::open();
    holder.open_mailbox(Partition::ONLY, session(3), mailbox, LONG).await.unwrap();
    acquire(&holder, &claim(3), Some(nonce(8))).await;
    assert_eq!(found(release(&holder, &claim(2)).await), HoldStatus::Held);
    assert_eq!(notified(&mut inbox).await.nonce(), Some(nonce(8)));
}

/// Failure row 44.
#[tokio::test]
async fn what_is_no_grant_is_ignored() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    let channel = format!("leasehold:mailbox:{}", session(1));
    let grant = format!("grant {} 17", nonce(3));
    for message in
        ["", "grant", "released", "grant x y", &format!("{grant} more"), "\u{0}", &"x".repeat(1 << 20)]
    {
        server.cli(&["PUBLISH", &channel, message]).unwrap().ok().unwrap();
    }
    server.cli(&["PUBLISH", "leasehold:mailbox:", &grant]).unwrap().ok().unwrap();
    // A well-formed grant is passed on: the nonce decides whether it is genuine.
    server.cli(&["PUBLISH", &channel, &grant]).unwrap().ok().unwrap();
    assert!(
        matches!(receive(&mut inbox).await, Some(Received::Notification(notification)) if notification.fence().as_u64() == 17)
    );
    assert!(inbox.try_recv().is_err());
    granted(acquire(&store, &claim(1), None).await);
}

/// Failure row 21.
#[tokio::test]
async fn a_mailbox_is_resubscribed_after_a_restart_and_notified() {
    let mut server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    for round in 0..3 {
        server.restart().unwrap();
        let received = receive(&mut inbox).await;
        assert!(matches!(received, Some(Received::Resubscribed)), "{received:?}");
        let channel = format!("leasehold:mailbox:{}", session(1));
        let receivers = server.cli(&["PUBLISH", &channel, &format!("grant {} 1", nonce(round))]).unwrap();
        assert_eq!(receivers.integer(), Some(1));
        assert_eq!(notified(&mut inbox).await.nonce(), Some(nonce(round)));
    }
}

#[tokio::test]
async fn mailboxes_are_subscribed_before_the_first_call() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    proxy.pause_requests(1, command("SUBSCRIBE"));
    proxy.disconnect();
    proxy.until_paused(1, LONG).await.unwrap();
    let fault = refused(in_time(execute(&store, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    let _late = proxy.resume_requests();
    granted(acquire(&store, &claim(1), None).await);
    assert!(matches!(receive(&mut inbox).await, Some(Received::Resubscribed)));
}
