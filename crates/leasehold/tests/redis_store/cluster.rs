//! A cluster, and the ways to its nodes.

use crate::scene::{acquire, claim, found, granted, release};
use leasehold::store::{RedisConfig, RedisStore};
use leasehold_core::Fate;
use leasehold_testkit::{Cluster, Proxy};
use std::collections::BTreeMap;
use tokio::net::TcpStream;

/// A store whose way to each node leads through a proxy: the nodes say themselves where they are.
async fn proxied(cluster: &Cluster) -> (RedisStore, Vec<Proxy>) {
    let proxies: Vec<_> = (0..3).map(|at| Proxy::to_server(cluster.node(at)).unwrap()).collect();
    let ways: BTreeMap<_, _> =
        (0..3).map(|at| (format!("127.0.0.1:{}", cluster.node(at).port()), proxies[at].port())).collect();
    let config = RedisConfig::from_url(&cluster.url()).unwrap();
    let config = config.connector(move |node| TcpStream::connect(("127.0.0.1", ways[&node])));
    (RedisStore::connect(config).await.unwrap(), proxies)
}

/// Streams that the client library has not opened, as by TLS, are moved by a task of the connection: it has to live until the
/// nodes have said who has which slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_by_whatever_way() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    assert!(proxies.iter().all(|proxy| proxy.accepted() > 0));
}
