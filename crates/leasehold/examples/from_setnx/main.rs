//! From `SETNX` to a lock that can be relied on: each step is a lock as it is often written by hand, its failure, and
//! the same situation with Leasehold. [The page](../../../../docs/explanation/from-setnx.md) explains the steps.
//!
//! No step depends on luck: where two clients race, the code says what the other client does in between. Each step
//! starts servers of its own, so `redis-server` must be on the path.
//!
//!     cargo run -p leasehold --example from_setnx           # all steps
//!     cargo run -p leasehold --example from_setnx step 4    # one step

use leasehold::Client;
use leasehold_testkit::RedisServer;
use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

mod compare_and_delete;
mod direct_grant;
mod exists_then_set;
mod fencing;
mod monitor;
mod own_value;
mod redlock;
mod reentry;
mod setnx;
mod setnx_then_expire;
mod watchdog;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Longer than any wait of the steps takes.
const LIMIT: Duration = Duration::from_secs(30);
/// Set for a process that holds the lock until it is killed, or its input ends: the URL of its store.
const HOLDER: &str = "FROM_SETNX_HOLDER";
/// What that process prints when it holds the lock.
const HOLDS: &str = "the other process holds the lock";

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    if let Ok(store) = std::env::var(HOLDER) {
        return hold_until_killed(&store).await;
    }
    let mut arguments = std::env::args().skip_while(|argument| argument != "step").skip(1);
    if let Some(number) = arguments.next() {
        return step(number.parse()?).await;
    }
    for number in 1..=11 {
        step(number).await?;
    }
    Ok(())
}

async fn step(number: u32) -> Result<()> {
    match number {
        1 => exists_then_set::run().await,
        2 => setnx::run().await,
        3 => setnx_then_expire::run().await,
        4 => own_value::run().await,
        5 => compare_and_delete::run().await,
        6 => reentry::run().await,
        7 => watchdog::run().await,
        8 => monitor::run().await,
        9 => redlock::run().await,
        10 => fencing::run().await,
        11 => direct_grant::run().await,
        _ => Err(format!("there is no step {number}: they are 1 to 11").into()),
    }
}

/// A connection for what is written by hand.
fn connect(url: &str) -> Result<redis::Connection> {
    Ok(redis::Client::open(url)?.get_connection()?)
}

async fn client(url: &str, label: &str) -> Result<Client> {
    Ok(Client::builder(url).label(label).connect().await?)
}

/// Lets the lease of the key run out. The server shortens it to a millisecond, so that the example need not wait.
fn lease_runs_out(server: &RedisServer, key: &str) -> Result<()> {
    let mut redis = connect(&server.url())?;
    redis::cmd("PEXPIRE").arg(key).arg(1).exec(&mut redis)?;
    while redis::cmd("EXISTS").arg(key).query(&mut redis)? {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Another process, which holds the lock `lock` of Leasehold, and is killed by the step.
fn start_holder(store: &str) -> Result<Child> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(HOLDER, store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().ok_or("its output is piped")?;
    for line in BufReader::new(output).lines() {
        if line?.contains(HOLDS) {
            return Ok(process);
        }
    }
    Err(format!("the other process did not acquire the lock: {}", process.wait()?).into())
}

async fn hold_until_killed(store: &str) -> Result<()> {
    let client = Client::builder(store).label("A").session_ttl(Duration::from_secs(4)).connect().await?;
    let _guard = client.mutex("lock")?.acquire().await?;
    println!("{HOLDS}");
    // The input ends with a step that has failed before it killed this process.
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}
