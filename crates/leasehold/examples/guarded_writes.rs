//! Writes that are rejected when they arrive too late.
//!
//! A holder can stall for longer than its lease: the machine is suspended, a debugger stops it, or a network
//! delivers a write minutes later. By then another client holds the lock, and no lock can recall the late
//! write. The resource that is written to can reject it: it stores the greatest fencing token it has seen,
//! and rejects smaller ones, in the same step as the write.
//!
//!     cargo run --example guarded_writes
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example guarded_writes

use leasehold::{Client, FencingToken};
use std::error::Error;
use std::time::Duration;

/// PostgreSQL: `$1` the item, `$2` the remaining stock, `$3` the token. It changes one row, or none if the
/// token is stale.
///
/// The token fits into a `bigint`. Equal tokens pass, so that one holder can write more than once.
const POSTGRESQL: &str = "\
INSERT INTO stock (item, remaining, fence) VALUES ($1, $2, $3)
ON CONFLICT (item) DO UPDATE SET remaining = excluded.remaining, fence = excluded.fence
WHERE stock.fence <= excluded.fence
";

/// The same for SQLite.
const SQLITE: &str = "\
INSERT INTO stock (item, remaining, fence) VALUES (?1, ?2, ?3)
ON CONFLICT (item) DO UPDATE SET remaining = excluded.remaining, fence = excluded.fence
WHERE stock.fence <= excluded.fence
";

/// Redis: one hash stores the value and its token. Tokens are below 2^53, so that Lua's numbers are exact.
const REDIS: &str = "\
-- KEYS[1] what is guarded; ARGV[1] the value, ARGV[2] the token. 1 if it was written, 0 if the token is stale.
local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and tonumber(seen) > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'remaining', ARGV[1], 'fence', ARGV[2])
return 1
";

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let slow = Client::builder(&store).label("slow").connect().await?;
    let quick = Client::builder(&store).label("quick").connect().await?;

    // The first holder reads, and then stalls until its lease is over.
    let lock = slow.mutex("example/guarded_writes")?.lease(Duration::from_millis(100));
    let guard = lock.acquire_timeout(Duration::from_secs(10)).await?;
    let stale = guard.fencing_token();
    println!("slow: {}", guard.lost().await);

    // The second holder gets the lock, with a greater token, and writes.
    let lock = quick.mutex("example/guarded_writes")?;
    let guard = lock.acquire_timeout(Duration::from_secs(10)).await?;
    let current = guard.fencing_token();

    println!("\nPostgreSQL:\n{POSTGRESQL}");
    in_sqlite(stale, current)?;
    if store.starts_with("redis") {
        in_redis(&store, stale, current).await?;
    } else {
        println!("Redis:\n{REDIS}");
    }
    guard.release().await?;
    println!("the late write was rejected");
    Ok(())
}

/// The second holder writes twice, and the first arrives too late.
fn in_sqlite(stale: FencingToken, current: FencingToken) -> Result<(), Box<dyn Error>> {
    let database = rusqlite::Connection::open_in_memory()?;
    let table =
        "CREATE TABLE stock (item TEXT PRIMARY KEY, remaining INTEGER NOT NULL, fence INTEGER NOT NULL)";
    database.execute(table, [])?;
    let write = |remaining: u32, fence: FencingToken| {
        database
            .execute(SQLITE, rusqlite::params!["lamp", remaining, i64::try_from(fence.as_u64())?])
            .map_err(Box::<dyn Error>::from)
    };
    assert_eq!(write(7, current)?, 1);
    assert_eq!(write(6, current)?, 1);
    let changed = write(9, stale)?;
    let remaining: u32 = database.query_row("SELECT remaining FROM stock", [], |row| row.get(0))?;
    println!("SQLite: the stale write changed {changed} rows, and {remaining} remain");
    assert_eq!((changed, remaining), (0, 6));
    Ok(())
}

/// The same on the server that stores the locks. Any other server would do: the script does not use the
/// locks.
async fn in_redis(store: &str, stale: FencingToken, current: FencingToken) -> Result<(), Box<dyn Error>> {
    let mut server = redis::Client::open(store)?.get_multiplexed_async_connection().await?;
    let script = redis::Script::new(REDIS);
    let key = "example:guarded_writes:lamp";
    let mut written = Vec::new();
    for (remaining, fence) in [(7, current), (6, current), (9, stale)] {
        let write =
            script.key(key).arg(remaining).arg(fence.as_u64()).invoke_async::<u32>(&mut server).await?;
        written.push(write);
    }
    let remaining: u32 = redis::cmd("HGET").arg(key).arg("remaining").query_async(&mut server).await?;
    redis::cmd("DEL").arg(key).exec_async(&mut server).await?;
    println!("Redis: the stale write changed {} keys, and {remaining} remain", written[2]);
    assert_eq!((written, remaining), (vec![1, 1, 0], 6));
    Ok(())
}
