//! Tasks of one process, with a lock that no other process requests: for `local` and `sticky`.
//!
//! A holder yields once while it holds the lock. Otherwise the tasks of a single-threaded runtime would never contend, and
//! nothing would be handed off.

use super::protocol::{LOCK, Requests, reply};
use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail};
use leasehold::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

/// How long a task may take to end after the stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How many pairs are timed together: reading the clock takes a large part of the time of one.
pub(crate) const BATCH: u64 = 100;
/// How long the process keeps a sticky lock.
const KEEP_FOR: Duration = Duration::from_millis(500);

/// Counts hand-offs between tasks.
#[derive(Default)]
struct HandoverCounter {
    /// The last holder; 0 before the first.
    last: AtomicU32,
    handovers: AtomicU64,
    stop: AtomicBool,
}

impl HandoverCounter {
    /// Records an acquisition: a hand-off, if the last holder was another task.
    fn acquired(&self, task: u32) {
        if self.last.swap(task, Ordering::Relaxed) != task {
            self.handovers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Answers requests until `stop`. Each has a time in milliseconds.
///
/// `ours` and `tokio` let all tasks contend for Leasehold's lock or for tokio's, and reply with the number of hand-offs
/// and the elapsed nanoseconds. `sticky`, `plain` and `tokio-pair` let one task acquire and release a sticky lock, a plain
/// one, or tokio's; they reply with the number of batches of pairs, the elapsed nanoseconds, and the median and the 99th
/// percentile of a batch.
pub(super) async fn run(url: &str, tasks: u32) -> Result<()> {
    let client = crate::client::connect(url).await?;
    let plain = client.mutex(LOCK)?;
    let sticky = plain.clone().sticky(KEEP_FOR);
    let (contended, uncontended) = (Arc::new(tokio::sync::Mutex::new(())), tokio::sync::Mutex::new(()));
    let mut requests = Requests::new();
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, "0"));
        let time = Duration::from_millis(rest.parse()?);
        let line = match verb {
            "ours" => {
                contend(tasks, time, |task, counter| leasehold_task(plain.clone(), task, counter)).await?
            }
            "tokio" => {
                contend(tasks, time, |task, counter| tokio_task(contended.clone(), task, counter)).await?
            }
            "sticky" => pairs(time, async || Ok(sticky.acquire().await?.release().await?)).await?,
            "plain" => pairs(time, async || Ok(plain.acquire().await?.release().await?)).await?,
            "tokio-pair" => {
                pairs(time, async || {
                    drop(uncontended.lock().await);
                    Ok(())
                })
                .await?
            }
            "stop" => return Ok(()),
            other => bail!("no such request: {other}"),
        };
        reply(&line)?;
    }
}

async fn contend<F>(
    tasks: u32,
    time: Duration,
    task: impl Fn(u32, Arc<HandoverCounter>) -> F,
) -> Result<String>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let counter = Arc::<HandoverCounter>::default();
    let mut running = JoinSet::new();
    let from_ns = now_ns();
    for n in 1..=tasks {
        running.spawn(task(n, counter.clone()));
    }
    sleep(time).await;
    let (until_ns, handovers) = (now_ns(), counter.handovers.load(Ordering::Relaxed));
    counter.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = timeout(STOP_TIMEOUT, running.join_next()).await.context("a task does not end")? {
        ended??;
    }
    Ok(format!("{handovers} {}", until_ns - from_ns))
}

async fn leasehold_task(mutex: Mutex, task: u32, counter: Arc<HandoverCounter>) -> Result<()> {
    while counter.is_running() {
        let guard = mutex.acquire().await?;
        counter.acquired(task);
        yield_now().await;
        guard.release().await?;
    }
    Ok(())
}

async fn tokio_task(
    mutex: Arc<tokio::sync::Mutex<()>>,
    task: u32,
    counter: Arc<HandoverCounter>,
) -> Result<()> {
    while counter.is_running() {
        let guard = mutex.lock().await;
        counter.acquired(task);
        yield_now().await;
        drop(guard);
    }
    Ok(())
}

/// Acquires and releases in batches. Between two batches other tasks may run, above all the connection.
async fn pairs(time: Duration, pair: impl AsyncFn() -> Result<()>) -> Result<String> {
    let time_ns = u64::try_from(time.as_nanos())?;
    let from_ns = now_ns();
    let (mut batches, mut last_ns) = (Vec::new(), from_ns);
    while last_ns - from_ns < time_ns {
        for _ in 0..BATCH {
            pair().await?;
        }
        yield_now().await;
        let now_ns = now_ns();
        batches.push(now_ns - last_ns);
        last_ns = now_ns;
    }
    batches.sort_unstable();
    let at = |share: usize| batches.get(batches.len() * share / 100).copied().unwrap_or(0);
    Ok(format!("{} {} {} {}", batches.len(), last_ns - from_ns, at(50), at(99)))
}
