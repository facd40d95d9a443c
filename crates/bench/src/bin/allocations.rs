//! How often the client allocates memory for a free lock that is acquired and released.
//!
//! `cargo xtask bench allocations` builds this program apart from the other scenarios, because it counts in the allocator,
//! which would slow them down. It counts on the thread of the tasks, and not on that of the keeper. Beside it, in the same
//! run: two commands of a bare client, which are built once, so that the client library alone allocates.

use allocation_counter::AllocationInfo;
use anyhow::{Context, Result, ensure};
use clap::Parser;
use leasehold::{Client, Mutex};
use leasehold_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd};
use serde::Serialize;
use std::future::Future;
use std::path::PathBuf;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

#[derive(Parser)]
#[command(name = "cargo xtask bench allocations", about = "Counts the allocations for a free lock")]
struct Options {
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
    /// Accepted because `bench all` passes it to all scenarios: this one has no picture.
    #[arg(long, hide = true)]
    draw: Option<PathBuf>,
    /// How many tasks acquire and release, each its own lock; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    tasks: Vec<u32>,
    /// How many pairs each task makes.
    #[arg(long, default_value_t = 1000)]
    pairs: u32,
}

/// What was counted. Every field is documented in docs/reference/benchmarks.md.
#[derive(Serialize)]
struct AllocationsReport {
    scenario: &'static str,
    tasks: u32,
    pairs: u64,
    /// Allocations and bytes for a pair, and for two commands of a bare client.
    allocations_per_pair: f64,
    bytes_per_pair: f64,
    bare_allocations_per_pair: f64,
    bare_bytes_per_pair: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.pairs > 0 && options.tasks.iter().all(|tasks| *tasks > 0), "nothing to count");
    let server = RedisServer::builder().pinned(0).start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::builder(server.url()).metrics(false).connect())?;
    let bare = runtime.block_on(connect(&server.url()))?;
    for tasks in &options.tasks {
        let report = count(&runtime, &client, &bare, *tasks, options.pairs)?;
        if options.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{}", report.sentence());
        }
    }
    Ok(())
}

/// A connection without a response timeout, which allocates for each request.
async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn count(
    runtime: &Runtime,
    client: &Client,
    bare: &MultiplexedConnection,
    tasks: u32,
    pairs: u32,
) -> Result<AllocationsReport> {
    let mutexes: Vec<_> =
        (0..tasks).map(|task| client.mutex(format!("ours/{task:02}"))).collect::<Result<_, _>>()?;
    let ours = || all_tasks(mutexes.iter().map(|mutex| acquire_and_release(mutex.clone(), pairs)));
    let bare =
        || all_tasks((0..tasks).map(|task| two_commands(bare.clone(), format!("bare/{task:02}"), pairs)));
    let (ours, bare) = (counted(runtime, ours)?, counted(runtime, bare)?);
    let pairs = u64::from(tasks) * u64::from(pairs);
    let (allocations_per_pair, bytes_per_pair) = per_pair(&ours, pairs);
    let (bare_allocations_per_pair, bare_bytes_per_pair) = per_pair(&bare, pairs);
    Ok(AllocationsReport {
        scenario: "allocations",
        tasks,
        pairs,
        allocations_per_pair,
        bytes_per_pair,
        bare_allocations_per_pair,
        bare_bytes_per_pair,
    })
}

/// What a run allocates after another one, which fills what is allocated once.
fn counted<F: Future<Output = Result<()>>>(runtime: &Runtime, run: impl Fn() -> F) -> Result<AllocationInfo> {
    runtime.block_on(run())?;
    let mut done = Ok(());
    let info = allocation_counter::measure(|| done = runtime.block_on(run()));
    done.map(|()| info)
}

async fn all_tasks(
    tasks: impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static>,
) -> Result<()> {
    let mut running = JoinSet::new();
    for task in tasks {
        running.spawn(task);
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

async fn acquire_and_release(mutex: Mutex, pairs: u32) -> Result<()> {
    for _ in 0..pairs {
        mutex.acquire().await?.release().await?;
    }
    Ok(())
}

async fn two_commands(mut conn: MultiplexedConnection, key: String, pairs: u32) -> Result<()> {
    let (mut set, mut delete) = (Cmd::new(), Cmd::new());
    set.arg("SET").arg(&key).arg("a value");
    delete.arg("DEL").arg(&key);
    for _ in 0..pairs {
        conn.send_packed_command(&set).await.context("SET failed")?;
        conn.send_packed_command(&delete).await.context("DEL failed")?;
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "a mean needs no more than the leading bits")]
fn per_pair(info: &AllocationInfo, pairs: u64) -> (f64, f64) {
    (info.count_total as f64 / pairs as f64, info.bytes_total as f64 / pairs as f64)
}

impl AllocationsReport {
    fn sentence(&self) -> String {
        format!(
            "allocations, {} tasks: {:.2} a pair ({:.0} bytes), two commands of a bare client {:.2} ({:.0} bytes)",
            self.tasks,
            self.allocations_per_pair,
            self.bytes_per_pair,
            self.bare_allocations_per_pair,
            self.bare_bytes_per_pair,
        )
    }
}
