//! Step 7: a watchdog. The work hangs, and the watchdog does not.

use super::own_value::acquire;
use super::{LIMIT, Result, client, connect};
use leasehold::LostReason;
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Renews a lease of eight seconds every 0.7 s, for as long as the process lives.
fn watchdog(mut redis: Connection, renewed: &SyncSender<()>) -> RedisResult<()> {
    loop {
        cmd("PEXPIRE").arg("lock").arg(8000).exec(&mut redis)?;
        if renewed.send(()).is_err() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(700));
    }
}

pub(crate) async fn run() -> Result<()> {
    println!("step 7: a watchdog");
    let server = RedisServer::start()?;
    let (mut a, mut b) = (connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A")?;
    let (renewed, renewals) = sync_channel(0);
    let thread = std::thread::spawn(move || watchdog(a, &renewed));
    // The task of A waits for a reply that never comes. Twelve renewals last longer than a lease.
    let seen = renewals.iter().take(12).count();
    let b_holds = acquire(&mut b, "B")?;
    println!("  by hand: A hangs, and its lock was renewed {seen} times. B holds it: {b_holds}");
    drop(renewals);
    thread.join().map_err(|_| "the watchdog panicked")??;

    let server = RedisServer::start()?;
    let (a, b) = (client(&server.url(), "A").await?, client(&server.url(), "B").await?);
    let hangs = a.mutex("lock")?.max_hold(Duration::from_secs(1)).acquire().await?;
    let guard = b.mutex("lock")?.acquire_timeout(LIMIT).await?;
    let capped = hangs.lost().await.reason == LostReason::Capped;
    println!("  Leasehold: the hold of A ended by its cap: {capped}. B holds it: {}", guard.check().is_ok());
    Ok(())
}
