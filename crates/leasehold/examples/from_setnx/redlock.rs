//! Step 9: Redlock. A node of the majority restarts, and has forgotten its vote.

use super::{LIMIT, Result, connect};
use leasehold::Client;
use leasehold_testkit::{Quorum, RedisServer};
use redis::{RedisResult, cmd};
use std::time::Duration;

/// Asks each of these nodes. Three of five are a majority.
fn acquire(reachable: &[RedisServer], me: &str) -> Result<bool> {
    let mut votes = 0;
    for node in reachable {
        let vote: RedisResult<Option<String>> =
            cmd("SET").arg("lock").arg(me).arg("NX").arg("PX").arg(30_000).query(&mut connect(&node.url())?);
        votes += u32::from(matches!(vote, Ok(Some(_))));
    }
    Ok(votes >= 3)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 9: Redlock");
    let mut five = Quorum::start(5)?;
    let nodes = five.servers();
    let a_holds = acquire(&nodes[..3], "A")?; // the others do not answer A
    nodes[2].restart()?; // it keeps no data
    let b_holds = acquire(&nodes[2..], "B")?;
    println!("  by hand: a node restarted. A holds the lock: {a_holds}, B holds the lock: {b_holds}");

    let mut three = Quorum::start(3)?;
    let uptime = Duration::from_secs(3);
    let url = format!("{}?min_uptime=3s&node_timeout=250ms", three.url());
    let a = Client::builder(&url).label("A").watchdog_lease(uptime).connect().await?;
    let held = a.mutex("lock")?.acquire_timeout(LIMIT).await?;
    let b = Client::builder(&url).label("B").watchdog_lease(uptime).connect().await?;
    // A majority of the nodes forgets the hold of A.
    three.servers()[0].restart()?;
    three.servers()[1].restart()?;
    let guard = b.mutex("lock")?.acquire_timeout(LIMIT).await?;
    println!(
        "  Leasehold: two of three nodes restarted. A holds the lock: {}, B holds the lock: {}",
        held.check().is_ok(),
        guard.check().is_ok()
    );
    Ok(())
}
