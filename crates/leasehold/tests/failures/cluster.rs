//! What happens in a cluster, while slots move and primaries die: rows 3, 21, 25, 34, 35 and 39.

use crate::scene::{MS, S, client, mutex, until_waiting, within};
use leasehold_testkit::Cluster;
use std::time::Instant;

/// Three primaries.
fn primaries() -> Cluster {
    Cluster::start(3, 0).expect("nodes that agree")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debug_wake() {
    let cluster = tokio::task::block_in_place(primaries);
    let (ours, theirs) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let (ours, theirs) = (mutex(&ours), mutex(&theirs));
    let guard = ours.acquire().await.expect("acquired");
    let waits = tokio::spawn(async move { theirs.acquire().await });
    until_waiting(&ours, 1).await;
    tokio::time::sleep(300 * MS).await;
    for at in 0..3 {
        let node = cluster.node(at);
        println!(
            "{at}: {:?} {:?}",
            node.cli(&["PUBSUB", "SHARDCHANNELS"]),
            node.cli(&["PUBSUB", "CHANNELS"])
        );
    }
    let t = Instant::now();
    guard.release().await.expect("released");
    let theirs = within(5 * S, waits).await.expect("no panic").expect("acquired");
    println!("handed over in {:?}", t.elapsed());
    for at in 0..3 {
        println!("{at}: {:?}", cluster.node(at).command_counts());
    }
    theirs.release().await.expect("released");
}
