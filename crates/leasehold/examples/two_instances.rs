//! Two instances of a service that numbers invoices: one works, the other waits. [The tutorial][t] kills one, and stops
//! the other for so long that its write comes too late.
//!
//!     INSTANCE=one LEASEHOLD_STORE=redis://127.0.0.1:7379 cargo run -p leasehold --example two_instances
//!
//! [t]: ../../../docs/tutorial/two-instances.md

use leasehold::redis::aio::MultiplexedConnection;
use leasehold::redis::{self, Script};
use leasehold::{Client, FencingToken};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// KEYS[1] the invoices; ARGV[1] the token, ARGV[2] a number to write, if any. The last number; -1 if the token is
/// stale. A read leaves its token, too: from then on no earlier holder can write.
const INVOICES: &str = "\
local greatest = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
if greatest > tonumber(ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
if ARGV[2] then redis.call('HSET', KEYS[1], 'number', ARGV[2]) end
return tonumber(redis.call('HGET', KEYS[1], 'number') or 0)";

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or("redis://127.0.0.1:7379".into());
    let name = std::env::var("INSTANCE").unwrap_or("one".into());
    let work = Duration::from_secs_f64(std::env::var("WORK_SECONDS").unwrap_or("3".into()).parse()?);

    let locks = Client::builder(&store).label(&name).connect().await?;
    let mut database = redis::Client::open(store)?.get_multiplexed_async_connection().await?;
    let invoices = locks.mutex("invoices")?;
    loop {
        println!("{name}: waits for the lock");
        let guard = invoices.acquire().await?;
        let fence = guard.fencing_token();
        println!("{name}: holds the lock, with the token {fence}");

        // Still held? This reads a local clock, and needs no network.
        while guard.check().is_ok() {
            let Some(last) = read(&mut database, fence).await? else { break };
            let next = last + 1;
            println!("{name}: works on invoice {next}");
            tokio::time::sleep(work).await;
            match write(&mut database, fence, next).await? {
                Some(_) => println!("{name}: wrote invoice {next}"),
                None => println!("{name}: refused: a later holder has the invoices"),
            }
        }
        println!("{name}: the lock is lost");
    }
}

/// Returns the number of the last invoice; `None` if the token is stale.
async fn read(database: &mut MultiplexedConnection, fence: FencingToken) -> Result<Option<u64>> {
    let script = Script::new(INVOICES);
    let last: i64 = script.key("invoices:last").arg(fence.as_u64()).invoke_async(database).await?;
    Ok(u64::try_from(last).ok())
}

/// Writes an invoice; `None` if the token is stale, and nothing was written.
async fn write(
    database: &mut MultiplexedConnection,
    fence: FencingToken,
    number: u64,
) -> Result<Option<u64>> {
    let script = Script::new(INVOICES);
    let last: i64 =
        script.key("invoices:last").arg(fence.as_u64()).arg(number).invoke_async(database).await?;
    Ok(u64::try_from(last).ok())
}
