//! Step 4: `SET NX PX` with a value of one's own; `GET`, then `DEL`. The lease ends between the two.

use super::{LIMIT, Result, client, connect, lease_runs_out};
use leasehold::error::ReleaseError;
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};
use std::time::Duration;

pub(crate) fn acquire(redis: &mut Connection, me: &str) -> RedisResult<bool> {
    let reply: Option<String> =
        cmd("SET").arg("lock").arg(me).arg("NX").arg("PX").arg(30_000).query(redis)?;
    Ok(reply.is_some())
}

fn release(redis: &mut Connection, me: &str, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let holder: Option<String> = cmd("GET").arg("lock").query(redis)?;
    meanwhile()?;
    if holder.as_deref() == Some(me) {
        cmd("DEL").arg("lock").exec(redis)?;
    }
    Ok(())
}

pub(crate) async fn run() -> Result<()> {
    println!("step 4: a value of one's own: GET, then DEL");
    let server = RedisServer::start()?;
    let (mut a, mut b, mut c) = (connect(&server.url())?, connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A")?;
    let mut b_holds = false;
    release(&mut a, "A", || {
        lease_runs_out(&server, "lock")?;
        b_holds = acquire(&mut b, "B")?;
        Ok(())
    })?;
    let c_holds = acquire(&mut c, "C")?;
    println!("  by hand: A deleted the lock of B. B holds it: {b_holds}, C holds it: {c_holds}");

    let server = RedisServer::start()?;
    let (a, b, c) = (
        client(&server.url(), "A").await?,
        client(&server.url(), "B").await?,
        client(&server.url(), "C").await?,
    );
    let late = a.mutex("lock")?.lease(Duration::from_millis(200)).acquire().await?;
    late.lost().await;
    let guard = b.mutex("lock")?.acquire_timeout(LIMIT).await?;
    let lost = matches!(late.release().await, Err(ReleaseError::Lost(_)));
    let c_holds = c.mutex("lock")?.try_acquire().await?.granted().is_some();
    println!(
        "  Leasehold: the release of A says that the lock was lost: {lost}. B holds it: {}, C holds it: {c_holds}",
        guard.check().is_ok()
    );
    Ok(())
}
