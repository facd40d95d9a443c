//! A lock on a quorum of five independent servers, two of which are lost.
//!
//! It boots five servers itself, and needs `redis-server` on the path. With a quorum of yours it shows the same,
//! but loses no node:
//!
//!     cargo run --example quorum
//!     LEASEHOLD_STORE=redlock://a,b,c,d,e cargo run --example quorum

use leasehold::error::AcquireError;
use leasehold::{Attempt, Client, Guard};
use leasehold_testkit::Quorum;
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LOCK: &str = "example/quorum";
const MAX_WAIT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let (store, nodes) = if let Ok(store) = std::env::var("LEASEHOLD_STORE") {
        (store, None)
    } else {
        let nodes = Quorum::start(5)?;
        // A node votes only when it has been up for `min_uptime`, since it may have forgotten its votes. These
        // nodes are new, and none is restarted: only for that reason may it be 0. Leave the default in production.
        // The other limit is generous, so that the example works on a machine that is busy.
        (format!("{}?min_uptime=0s&node_timeout=1s", nodes.url()), Some(nodes))
    };
    let client = Client::builder(&store).label("client 1").connect().await?;
    let other = Client::builder(&store).label("client 2").connect().await?;

    let guard = client.mutex(LOCK)?.acquire_timeout(MAX_WAIT).await?;
    report(&guard).await?;

    let Some(mut nodes) = nodes else {
        guard.release().await?;
        println!("released");
        return Ok(());
    };
    for node in &mut nodes.servers()[..2] {
        node.kill()?;
    }
    println!("two nodes are lost");
    // Three of five are a majority: the hold is kept, and excludes other clients.
    report(&guard).await?;
    match other.mutex(LOCK)?.try_acquire().await? {
        Attempt::Granted(_) => println!("two clients hold the lock"),
        Attempt::Taken(_) => println!("another client does not get it"),
    }
    guard.release().await?;

    // Three also grant the lock anew.
    let guard = other.mutex(LOCK)?.acquire_timeout(MAX_WAIT).await?;
    println!("after the release, the other client has the lock");
    guard.release().await?;

    nodes.servers()[2].kill()?;
    println!("a third node is lost");
    // Two of five are not: rather no lock than two holders.
    match client.mutex(LOCK)?.try_acquire().await {
        Err(error @ (AcquireError::Store(_) | AcquireError::Unknown(_))) => println!("no lock: {error}"),
        Err(error) => return Err(error.into()),
        Ok(_) => println!("a minority has answered for all"),
    }
    Ok(())
}

/// Extends the hold, as the client itself does regularly, and prints how many nodes have it.
async fn report(guard: &Guard) -> Result<()> {
    guard.extend().await?;
    let votes = guard.votes().ok_or("this store is no quorum")?;
    println!("held on {votes} nodes; lost if {} of these forget it", votes.margin());
    Ok(())
}
