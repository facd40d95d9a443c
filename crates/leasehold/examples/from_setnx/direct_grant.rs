//! Step 11: direct grant. A waiter that polls is overtaken by others; one that queues is not.

use super::own_value::acquire;
use super::{LIMIT, Result, client, connect};
use leasehold_testkit::RedisServer;
use redis::{Connection, cmd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn poll(redis: &mut Connection, me: &str, mut sleep: impl FnMut() -> Result<()>) -> Result<()> {
    while !acquire(redis, me)? {
        sleep()?;
    }
    Ok(())
}

pub(crate) async fn run() -> Result<()> {
    println!("step 11: direct grant");
    let server = RedisServer::start()?;
    let (mut a, mut b, mut c) = (connect(&server.url())?, connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A")?;
    let mut overtaken = 0;
    poll(&mut b, "B", || {
        // While B sleeps, the lock is released, and C, which comes later, acquires it; three times.
        cmd("DEL").arg("lock").exec(&mut c)?;
        overtaken += u32::from(overtaken < 3 && acquire(&mut c, "C")?);
        Ok(())
    })?;
    println!("  by hand: B came first, and was overtaken {overtaken} times");

    let server = RedisServer::start()?;
    let held = client(&server.url(), "A").await?.mutex("lock")?;
    let guard = held.acquire().await?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for (waiting, label) in (1..).zip(["B", "C", "D"]) {
        let (lock, order) = (client(&server.url(), label).await?.mutex("lock")?, order.clone());
        waiters.spawn(async move {
            let guard = lock.acquire_timeout(LIMIT).await?;
            order.lock().map_err(|_| "a waiter panicked")?.push(label);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(guard.release().await?)
        });
        while held.inspect().await?.waiting < waiting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    guard.release().await?;
    // A comes again at once, and does not overtake them.
    let again = held.try_acquire().await?.granted().is_some();
    for waited in waiters.join_all().await {
        waited?;
    }
    let order = order.lock().map_err(|_| "a waiter panicked")?;
    println!("  Leasehold: A overtakes: {again}. The order of the others: {}", order.join(", "));
    Ok(())
}
