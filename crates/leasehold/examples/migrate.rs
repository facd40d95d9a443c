//! What the calls of other lock libraries become. [The page][page] shows each beside its original.
//!
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run -p leasehold --example migrate
//!
//! [page]: ../../../docs/how-to/migrate.md

use leasehold::{Attempt, Client, FencingToken};
use redis::aio::MultiplexedConnection;
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let locks = Client::builder(&store).label("migrated").connect().await?;
    let mut other = redis::Client::open(store.as_str())?.get_multiplexed_async_connection().await?;
    println!("by hand: {}", from_set_nx(&locks).await?);
    println!("redsync: {}", from_redsync(&locks).await?);
    println!("rslock: {}", from_rslock(&locks).await?);
    println!("Redisson: {}", from_redisson(&locks).await?);
    println!("ShedLock: {}", from_shedlock(&store).await?);
    println!("ShedLock, again: {}", from_shedlock(&store).await?);
    share(&locks, &mut other).await?;
    // So that the example can be run again at once.
    redis::cmd("DEL").arg("job-lock:prod:report").exec_async(&mut other).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// `SET NX PX` and a script that compares and deletes.
async fn from_set_nx(locks: &Client) -> Result<bool> {
    match locks.mutex("orders/42")?.try_acquire().await? {
        Attempt::Granted(guard) => {
            work(guard.fencing_token()).await;
            guard.release().await?;
            Ok(true)
        }
        Attempt::Taken(contention) => {
            println!("skipped: {contention}");
            Ok(false)
        }
    }
}

/// A Mutex of redsync, with an expiry of 8 s and 32 tries.
async fn from_redsync(locks: &Client) -> Result<bool> {
    let orders = locks.mutex("orders/42")?;
    let guard = orders.acquire_timeout(Duration::from_secs(10)).await?;
    work(guard.fencing_token()).await;
    // Ok: held until now. An error says that the lock was lost, or that no answer came.
    guard.release().await?;
    Ok(true)
}

/// A lock of rslock, for 30 s.
async fn from_rslock(locks: &Client) -> Result<bool> {
    let orders = locks.mutex("orders/42")?.lease(Duration::from_secs(30));
    let guard = orders.acquire_timeout(Duration::from_secs(10)).await?;
    work(guard.fencing_token()).await;
    guard.release().await?;
    Ok(true)
}

/// An `RLock` of Redisson: an owner enters it again.
async fn from_redisson(locks: &Client) -> Result<bool> {
    let account = locks.reentrant_mutex("accounts/7")?;
    let transfer = async {
        let outer = account.acquire_timeout(Duration::from_secs(10)).await?;
        let inner = account.acquire_timeout(Duration::from_secs(10)).await?;
        work(inner.fencing_token()).await;
        inner.release().await?;
        outer.release().await?;
        Ok(true)
    };
    locks.new_owner().scope(transfer).await
}

/// A `@SchedulerLock` of ShedLock, with `lockAtLeastFor` 5 minutes and `lockAtMostFor` 1 hour.
async fn from_shedlock(store: &str) -> Result<bool> {
    let locks = Client::builder(store).prefix("job-lock:prod:").connect().await?;
    let report = locks.once_per("report", Duration::from_secs(5 * 60))?;
    let turn = report.max_duration(Duration::from_secs(3600)).try_start().await?;
    let Attempt::Granted(turn) = turn else { return Ok(false) };
    work(turn.fencing_token()).await;
    turn.finish().await?;
    Ok(true)
}

/// Clients of the old kind and of the new exclude each other at the same key.
async fn share(locks: &Client, other: &mut MultiplexedConnection) -> Result<()> {
    let set = redis::cmd("SET").arg(&["orders/42", "a random value", "NX", "PX", "30000"]).clone();
    let orders = locks.mutex("orders/42")?.yield_every(4);
    let guard = orders.acquire().await?;
    let acquired: Option<String> = set.query_async(other).await?;
    println!("while a migrated client holds the lock, SET NX acquires it: {}", acquired.is_some());
    guard.release().await?;
    let acquired: Option<String> = set.query_async(other).await?;
    let refused = orders.try_acquire().await?.granted().is_none();
    println!("SET NX acquires it: {}, and a migrated client is refused: {refused}", acquired.is_some());
    // Not a key that was there before.
    if acquired.is_some() {
        redis::cmd("DEL").arg("orders/42").exec_async(other).await?;
    }
    let guard = orders.acquire_timeout(Duration::from_secs(30)).await?;
    println!("after its DEL, a migrated client acquires it: {}", guard.check().is_ok());
    guard.release().await?;
    Ok(())
}

/// What the lock is for. A resource that compares tokens refuses a late write.
async fn work(_fence: FencingToken) {
    tokio::task::yield_now().await;
}
