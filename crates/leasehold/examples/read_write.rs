//! A price list that many tasks read and one rebuilds now and then: readers share the lock, the writer holds
//! it alone.
//!
//!     cargo run --example read_write
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example read_write

use leasehold::{Attempt, Client, RwLock};
use std::error::Error;
use std::time::Duration;
use tokio::sync::Barrier;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = Client::connect(&store).await?;
    let prices = locks.rwlock("example/read_write/prices")?.max_wait(MAX_WAIT);

    look_up_together(&prices).await?;
    refresh(&prices, true).await?;
    refresh(&prices, false).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Two tasks read at the same time. Each waits for the other while it reads, so that reading one after the
/// other would never end.
async fn look_up_together(prices: &RwLock) -> Result<()> {
    let both = Barrier::new(2);
    let look_up = || async {
        let reading = prices.read().await?;
        both.wait().await;
        reading.release().await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    tokio::try_join!(look_up(), look_up())?;
    println!("two have read at the same time");
    Ok(())
}

/// A task that may have to write starts with an upgradable read: no other task writes between the read and
/// the write.
async fn refresh(prices: &RwLock, outdated: bool) -> Result<()> {
    let reading = prices.upgradable_read().await?;
    if !outdated {
        println!("the prices are fresh: nothing to write");
        return Ok(reading.release().await?);
    }
    let writing = reading.upgrade().await?;
    if let Attempt::Taken(contention) = prices.try_read().await? {
        println!("no reader is admitted during the write: {contention}");
    }
    writing.check()?; // still held? before the step that matters
    println!("written, as hold {}", writing.fencing_token());

    // Other readers are admitted again beside this one, which still reads what it has written.
    let reading = writing.downgrade().await?;
    let beside = prices.read().await?;
    println!("read again, beside another reader");
    beside.release().await?;
    Ok(reading.release().await?)
}
