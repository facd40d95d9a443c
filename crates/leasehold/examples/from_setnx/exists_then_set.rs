//! Step 1: `EXISTS`, then `SET`. Another client looks between the two.

use super::{Result, client, connect};
use leasehold::Attempt;
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};

fn acquire(redis: &mut Connection, me: &str, meanwhile: impl FnOnce()) -> RedisResult<bool> {
    let taken: bool = cmd("EXISTS").arg("lock").query(redis)?;
    meanwhile();
    if !taken {
        cmd("SET").arg("lock").arg(me).exec(redis)?;
    }
    Ok(!taken)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 1: EXISTS, then SET");
    let server = RedisServer::start()?;
    let (mut a, mut b) = (connect(&server.url())?, connect(&server.url())?);
    let mut b_holds = Ok(false);
    let a_holds = acquire(&mut a, "A", || b_holds = acquire(&mut b, "B", || ()))?;
    println!("  by hand: A holds the lock: {a_holds}, B holds the lock: {}", b_holds?);

    let server = RedisServer::start()?;
    let (a, b) = (client(&server.url(), "A").await?, client(&server.url(), "B").await?);
    let (a, b) = (a.mutex("lock")?, b.mutex("lock")?);
    let (a, b) = tokio::join!(a.try_acquire(), b.try_acquire());
    let holders = [a?, b?].into_iter().filter(|tried| matches!(tried, Attempt::Granted(_))).count();
    println!("  Leasehold: {holders} of the two holds the lock");
    Ok(())
}
