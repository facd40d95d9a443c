//! A cluster, whose messages arrive on connections of their own.

use crate::fixture::{
    LONG, Mailbox, Received, acquire, claim, execute_on, found, granted, nonce, receive, release, session,
    take,
};
use leasehold_core::{HoldStatus, Partition};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::Store;
use leasehold_testkit::{AfterDrop, Cluster, Proxy, command};
use std::collections::BTreeMap;
use tokio::net::TcpStream;

/// A store that reaches each node through a proxy, although the nodes announce their own addresses.
async fn proxied(cluster: &Cluster) -> (RedisStore, Vec<Proxy>) {
    let proxies: Vec<_> = (0..3).map(|at| Proxy::to_server(cluster.node(at)).unwrap()).collect();
    let ways: BTreeMap<_, _> =
        (0..3).map(|at| (format!("127.0.0.1:{}", cluster.node(at).port()), proxies[at].port())).collect();
    let config = RedisConfig::from_url(&cluster.url()).unwrap();
    let config = config.connector(move |node| TcpStream::connect(("127.0.0.1", ways[&node])));
    (RedisStore::connect(config).await.unwrap(), proxies)
}

/// For streams that the Redis client library does not open itself, such as TLS, a task of the connection moves the
/// bytes: it must live until the nodes have returned the slot map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_by_a_custom_connector() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    assert!(proxies.iter().all(|proxy| proxy.accepted() > 0));
}

/// Locks with a common hash tag share calls, also after their slot has moved.
#[tokio::test]
async fn operations_in_one_slot_of_a_cluster_share_calls() {
    let cluster = Cluster::start(3, 0).unwrap();
    let store = RedisStore::connect(cluster.url().parse().unwrap()).await.unwrap();
    let (slot, from) = (cluster.slot("{orders}").unwrap(), cluster.owner_of("{orders}").unwrap());
    let to = (from + 1) % 3;
    let acquire_each = |first: u8| {
        let each = (first..first + 20).map(|n| {
            let store = &store;
            async move { execute_on(store, &format!("{{orders}}/{n}"), take(&claim(n), None), LONG).await }
        });
        futures_util::future::join_all(each)
    };
    let mut sent = Vec::new();
    for (first, at) in [(0, from), (20, from), (40, to), (60, to)] {
        if first == 40 {
            cluster.move_slot(slot, to).unwrap();
        }
        cluster.node(at).reset_counts().unwrap();
        acquire_each(first).await.into_iter().for_each(granted);
        sent.push(cluster.node(at).command_counts().unwrap()["evalsha"]);
    }
    // One alone, then 8, 8 and 3 together. At a node that does not know the script, these are sent twice at most. Right after
    // the move, each goes to the old node first, and then alone to the new one.
    assert_eq!(sent[1], 4, "{sent:?}");
    assert!(sent[0] <= 7 && sent[2] >= 20 && sent[3] <= 7, "{sent:?}");
}

/// An idle subscription connection is pinged: kept if the reply arrives, replaced if not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_detects_that_messages_stopped() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let at = cluster.owner(0).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::new(0), session(1), mailbox, LONG).await.unwrap();
    let before = proxies[at].accepted();
    proxies[at].until_counted("PING", 1, LONG).await.unwrap();
    proxies[at].drop_replies(1, AfterDrop::Stall, command("PING"));
    let received = receive(&mut inbox).await;
    assert!(matches!(received, Some(Received::Resubscribed)), "{received:?}");
    assert_eq!((proxies[at].count("PING"), proxies[at].accepted()), (2, before + 1));
    let channels = cluster.node(at).cli(&["PUBSUB", "SHARDCHANNELS"]).unwrap();
    let channel = channels.elements()[0].text().unwrap();
    cluster.node(at).cli(&["SPUBLISH", channel, &format!("grant {} 1", nonce(5))]).unwrap();
    let received = receive(&mut inbox).await;
    assert!(
        matches!(received, Some(Received::Notification(notification)) if notification.nonce() == Some(nonce(5)))
    );
}
