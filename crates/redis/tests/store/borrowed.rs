//! A connection that the user supplies.

use crate::fixture::{
    LONG, Mailbox, acquire, claim, connections, found, granted, heartbeat, job, listed, nonce, notified,
    release, session, take, unknown,
};
use leasehold_core::{HeartbeatReply, HoldStatus, Partition};
use leasehold_redis::RedisStore;
use leasehold_store::{FaultKind, Store};
use leasehold_testkit::RedisServer;

#[tokio::test]
async fn a_users_connection_carries_messages_that_the_user_forwards() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let (sender, pushes) = tokio::sync::broadcast::channel(16);
    let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let store = RedisStore::from_connection(connection, "app:", Some(pushes)).unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    assert_eq!(notified(&mut inbox).await.nonce(), Some(nonce(7)));
    assert_eq!(server.cli(&["GET", "app:job"]).unwrap().text(), Some(&*claim(2).token()));
    let outcome = store.fork().execute(&job(), &take(&claim(2), None), LONG).await;
    granted(outcome);
    assert_eq!(connections(&server), 1);
}

#[tokio::test]
async fn a_users_connection_without_messages_works_by_polling() {
    let mut server = RedisServer::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    assert!(RedisStore::from_connection(connection.clone(), "{", None).is_err());
    let store = RedisStore::from_connection(connection, "", None).unwrap();
    let (_, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    granted(acquire(&store, &claim(2), Some(nonce(8))).await);
    assert_eq!(heartbeat(&store, 1, Some("{}"), vec![job()]).await, HeartbeatReply::Alive);
    assert_eq!(listed(&store).await[0].held, [job()]);
    server.kill().unwrap();
    assert_eq!(unknown(acquire(&store, &claim(3), None).await).kind, FaultKind::Disconnected);
}
