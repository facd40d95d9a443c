//! Tasks that wait for a lock that they do not acquire.

use super::protocol::{LOCK, Requests, reply};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::sync::Arc;
use tokio::task::{JoinSet, yield_now};

/// What the tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitFor {
    /// One lock.
    One,
    /// A lock for each task, as the role `hold` holds them.
    Many,
    /// A mutex of tokio's.
    Tokio,
}

/// Lets all tasks wait at the request `wait`.
pub(super) async fn run(url: &str, wait_for: WaitFor, tasks: u64) -> Result<()> {
    let client = crate::client::connect(url).await?;
    // What a client allocates once is allocated before anything is measured.
    client.mutex(LOCK)?.acquire().await?.release().await?;
    let tokio_mutex = Arc::new(tokio::sync::Mutex::new(()));
    let _held = tokio_mutex.lock().await;
    let mut requests = Requests::new();
    reply("ready")?;
    let request = requests.next().await?;
    if request != "wait" {
        bail!("no such request: {request}");
    }
    let mut waiting = JoinSet::new();
    for n in 0..tasks {
        match wait_for {
            WaitFor::Tokio => {
                let tokio_mutex = tokio_mutex.clone();
                waiting.spawn(async move {
                    drop(tokio_mutex.lock().await);
                    anyhow::Ok(())
                });
            }
            WaitFor::One | WaitFor::Many => {
                let mutex = client.mutex(lock_name(if wait_for == WaitFor::One { 0 } else { n }))?;
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
        ended = waiting.join_next() => bail!("a task did not wait: {ended:?}"),
        _ = requests.next() => Ok(()),
    }
}

/// The name of a lock of the role `hold`.
pub(crate) fn lock_name(n: u64) -> String {
    format!("bench/{n}")
}
