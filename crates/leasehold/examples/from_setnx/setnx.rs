//! Step 2: `SETNX`. The process that holds the lock dies.

use super::{LIMIT, Result, client, connect, start_holder};
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};

fn acquire(redis: &mut Connection, me: &str) -> RedisResult<bool> {
    cmd("SETNX").arg("lock").arg(me).query(redis)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 2: SETNX");
    let server = RedisServer::start()?;
    let (mut a, mut b) = (connect(&server.url())?, connect(&server.url())?);
    let a_holds = acquire(&mut a, "A")?;
    drop(a); // its process dies, and releases nothing
    let b_holds = acquire(&mut b, "B")?;
    let left: i64 = cmd("TTL").arg("lock").query(&mut b)?;
    println!(
        "  by hand: A held the lock: {a_holds}, and died. B holds it: {b_holds}. Time to live: {left}, for ever"
    );

    let server = RedisServer::start()?;
    let mut a = start_holder(&server.url())?;
    let b = client(&server.url(), "B").await?.mutex("lock")?;
    let refused = b.try_acquire().await?.granted().is_none();
    a.kill()?;
    a.wait()?;
    let guard = b.acquire_timeout(LIMIT).await?;
    println!(
        "  Leasehold: taken while A lived: {refused}. A was killed, and B holds it: {}",
        guard.check().is_ok()
    );
    Ok(())
}
