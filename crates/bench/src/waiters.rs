//! The role of `memory`: tasks that wait for what they do not get.

use crate::protocol::{LOCK, Requests, reply};
use anyhow::{Result, bail};
use clap::ValueEnum;
use leasehold::Client;
use std::sync::Arc;
use tokio::task::{JoinSet, yield_now};

/// Before what they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Before {
    /// All before one lock.
    One,
    /// Each before a lock of its own, as `hold` holds them.
    Many,
    /// All before a mutex of tokio's.
    Tokio,
}

/// `wait` lets all begin to wait.
pub(crate) async fn run(url: &str, before: Before, tasks: u64) -> Result<()> {
    let client = Client::connect(url).await?;
    // What a client has once is there before anything is measured.
    client.mutex(LOCK)?.acquire().await?.release().await?;
    let tokios = Arc::new(tokio::sync::Mutex::new(()));
    let _held = tokios.lock().await;
    let mut requests = Requests::new();
    reply("ready")?;
    let request = requests.next().await?;
    if request != "wait" {
        bail!("no such request: {request}");
    }
    let mut waiting = JoinSet::new();
    for n in 0..tasks {
        match before {
            Before::Tokio => {
                let tokios = tokios.clone();
                waiting.spawn(async move {
                    drop(tokios.lock().await);
                    anyhow::Ok(())
                });
            }
            Before::One | Before::Many => {
                let mutex = client.mutex(name(if before == Before::One { 0 } else { n }))?;
                waiting.spawn(async move { Ok(mutex.acquire().await?.release().await?) });
            }
        }
        if n % 64 == 63 {
            yield_now().await;
        }
    }
    yield_now().await;
    reply("waiting")?;
    tokio::select! {
        ended = waiting.join_next() => bail!("one did not wait: {ended:?}"),
        _ = requests.next() => Ok(()),
    }
}

/// What `hold` calls its locks.
pub(crate) fn name(n: u64) -> String {
    format!("bench/{n}")
}
