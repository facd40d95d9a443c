//! Tasks that acquire and release a fresh name each time.
//!
//! They use the library, or a plain lock as it is written by hand.

use super::plain::PlainLock;
use super::protocol::{Requests, reply};
use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail};
use leasehold::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

/// How long the tasks may take to end after the stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// After how many pairs a task yields.
const PAIRS_UNTIL_YIELD: u64 = 64;
/// The lease of the plain lock.
const LEASE_MS: u64 = 30_000;

/// What acquires and releases.
#[derive(Clone)]
enum Side {
    Ours(Client),
    Plain(PlainLock),
}

/// What all tasks of one request share.
struct Progress {
    /// The start of each name.
    prefix: String,
    /// The next name.
    next: AtomicU64,
    /// How many names there are.
    names: u64,
    /// How many pairs are complete.
    pairs: AtomicU64,
    stop: AtomicBool,
}

/// Answers requests until `stop`.
///
/// `ours` and `plain` acquire and release a number of fresh names, and reply with that number and the elapsed
/// nanoseconds. `begin` does so with the library without end; then `count` replies with the number of pairs.
pub(super) async fn run(url: &str, tasks: u32, nodes: &[String]) -> Result<()> {
    let ours = Side::Ours(crate::client::connect(url).await?);
    let plain = match nodes {
        [] => None,
        nodes => Some(Side::Plain(PlainLock::connect(nodes, LEASE_MS).await?)),
    };
    let mut requests = Requests::new();
    let mut running = JoinSet::new();
    let mut endless = None;
    let mut calls = 0;
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, names) = request.split_once(' ').unwrap_or((&request, ""));
        match verb {
            "ours" | "plain" => {
                let side =
                    if verb == "ours" { &ours } else { plain.as_ref().context("no nodes were given")? };
                calls += 1;
                let progress = Arc::new(Progress::new(format!("{verb}/{calls}"), names.parse()?));
                let from_ns = now_ns();
                spawn_all(&mut running, side, tasks, &progress);
                while let Some(ended) = running.join_next().await {
                    ended??;
                }
                reply(&format!("{} {}", progress.pairs.load(Ordering::Relaxed), now_ns() - from_ns))?;
            }
            "begin" => {
                let progress = Arc::new(Progress::new("endless".to_owned(), u64::MAX));
                spawn_all(&mut running, &ours, tasks, &progress);
                endless = Some(progress);
            }
            "count" => {
                if let Some(ended) = running.try_join_next() {
                    ended??;
                }
                let progress = endless.as_ref().context("nothing has begun")?;
                reply(&progress.pairs.load(Ordering::Relaxed).to_string())?;
            }
            "stop" => break,
            other => bail!("no such request: {other}"),
        }
    }
    if let Some(progress) = endless {
        progress.stop.store(true, Ordering::Relaxed);
    }
    while let Some(ended) = timeout(STOP_TIMEOUT, running.join_next()).await.context("a task does not end")? {
        ended??;
    }
    Ok(())
}

impl Progress {
    fn new(prefix: String, names: u64) -> Self {
        Self {
            prefix,
            next: AtomicU64::new(0),
            names,
            pairs: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// A name that no task has used.
    fn fresh_name(&self) -> Option<String> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        (n < self.names && !self.stop.load(Ordering::Relaxed)).then(|| format!("{}/{n}", self.prefix))
    }
}

fn spawn_all(running: &mut JoinSet<Result<()>>, side: &Side, tasks: u32, progress: &Arc<Progress>) {
    for _ in 0..tasks {
        running.spawn(use_names(side.clone(), progress.clone()));
    }
}

async fn use_names(mut side: Side, progress: Arc<Progress>) -> Result<()> {
    while let Some(name) = progress.fresh_name() {
        match &mut side {
            Side::Ours(client) => client.mutex(name)?.acquire().await?.release().await?,
            Side::Plain(lock) => lock.pair(&name).await?,
        }
        // A store in memory never lets a task wait, so that nothing else would run.
        if progress.pairs.fetch_add(1, Ordering::Relaxed).is_multiple_of(PAIRS_UNTIL_YIELD) {
            yield_now().await;
        }
    }
    Ok(())
}
