//! Step 8: a monitor of dead holders. Between its look and its `DEL` the lock passes on.

use super::own_value::acquire;
use super::{LIMIT, Result, client, connect, lease_runs_out, start_holder};
use leasehold_testkit::RedisServer;
use redis::{Connection, cmd};
use std::time::Duration;

/// Each holder keeps a key `alive:<holder>` with a short expiry.
fn monitor(redis: &mut Connection, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let holder: Option<String> = cmd("GET").arg("lock").query(redis)?;
    if let Some(holder) = holder {
        let alive: bool = cmd("EXISTS").arg(format!("alive:{holder}")).query(redis)?;
        meanwhile()?;
        if !alive {
            cmd("DEL").arg("lock").exec(redis)?;
        }
    }
    Ok(())
}

pub(crate) async fn run() -> Result<()> {
    println!("step 8: a monitor of dead holders");
    let server = RedisServer::start()?;
    let (mut a, mut b, mut c) = (connect(&server.url())?, connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A")?;
    let mut b_holds = false;
    monitor(&mut a, || {
        lease_runs_out(&server, "lock")?;
        b_holds = acquire(&mut b, "B")?;
        Ok(cmd("SET").arg("alive:B").arg(1).arg("PX").arg(5000).exec(&mut b)?)
    })?;
    let c_holds = acquire(&mut c, "C")?;
    println!("  by hand: A was dead, and B lost its lock. B holds it: {b_holds}, C holds it: {c_holds}");

    let server = RedisServer::start()?;
    let mut a = start_holder(&server.url())?;
    let (b, watcher) = (client(&server.url(), "B").await?, client(&server.url(), "monitor").await?);
    let seen = watcher.mutex("lock")?.inspect_full().await?.observed.ok_or("A holds the lock")?;
    // The monitor goes by what the sessions report.
    while watcher.locks().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    a.kill()?;
    a.wait()?;
    let mut monitor = watcher.monitor();
    let evicted = loop {
        let round = monitor.run_once().await;
        if !round.evicted.is_empty() {
            break round.evicted.len();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let guard = b.mutex("lock")?.acquire_timeout(LIMIT).await?;
    // What was seen is out of date: it frees nothing, and neither does another round.
    let refused = watcher.mutex("lock")?.force_release(seen).await.is_err();
    let again = monitor.run_once().await.evicted.len();
    guard.extend().await?;
    println!("  Leasehold: freed from the dead A: {evicted}, from the living B: {again}");
    println!("  Leasehold: to free what A held is refused: {refused}. B holds it: {}", guard.check().is_ok());
    Ok(())
}
