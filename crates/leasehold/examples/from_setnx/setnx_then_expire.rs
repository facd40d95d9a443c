//! Step 3: `SETNX`, then `EXPIRE`. The process dies between the two.

use super::{Result, client, connect};
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};

fn acquire(redis: &mut Connection, me: &str, dies: bool) -> RedisResult<bool> {
    let acquired: bool = cmd("SETNX").arg("lock").arg(me).query(redis)?;
    if dies {
        return Ok(acquired);
    }
    if acquired {
        cmd("EXPIRE").arg("lock").arg(30).exec(redis)?;
    }
    Ok(acquired)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 3: SETNX, then EXPIRE");
    let server = RedisServer::start()?;
    let (mut a, mut b) = (connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A", true)?;
    drop(a);
    let b_holds = acquire(&mut b, "B", false)?;
    let left: i64 = cmd("TTL").arg("lock").query(&mut b)?;
    println!(
        "  by hand: A died between the two. B holds the lock: {b_holds}. Time to live: {left}, for ever"
    );

    let server = RedisServer::start()?;
    let a = client(&server.url(), "A").await?;
    let _guard = a.mutex("lock")?.acquire().await?;
    let mut redis = connect(&server.url())?;
    let keys: Vec<String> = cmd("KEYS").arg("*").query(&mut redis)?;
    let mut for_ever = 0;
    for key in &keys {
        for_ever += u32::from(cmd("PTTL").arg(key).query::<i64>(&mut redis)? == -1);
    }
    let left: i64 = cmd("PTTL").arg("lock").query(&mut redis)?;
    println!("  Leasehold: keys without an expiry: {for_ever}. The lock has one, of a lease: {}", left > 0);
    Ok(())
}
