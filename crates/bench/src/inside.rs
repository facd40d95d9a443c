//! The role of `local` and `sticky`: tasks of one process, with a lock that no other process wants.
//!
//! A holder lets the others run once while it has the lock. Without that, the tasks of a single-threaded runtime would never
//! meet, and nothing would be handed over.

use crate::protocol::{LOCK, Requests, reply};
use crate::section::now_ns;
use anyhow::{Context, Result, bail};
use leasehold::{Client, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

/// How long a task may take to end after the stop request.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many pairs are timed together: reading a clock takes as long as a part of one.
pub(crate) const BATCH: u64 = 100;
/// How long a sticky lock stays where it was.
const IDLE: Duration = Duration::from_millis(500);

/// The last holder of the lock.
#[derive(Default)]
struct Tally {
    /// 0 before the first.
    last: AtomicU32,
    handovers: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// Records an acquisition: a hand-over, if the last holder was another task.
    fn enter(&self, task: u32) {
        if self.last.swap(task, Ordering::Relaxed) != task {
            self.handovers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// `ours` and `tokio`, with a time in milliseconds, let all tasks contend for so long, and say how many hand-overs there were
/// in how many nanoseconds. `sticky`, `plain` and `alone` let one task take and release for so long a sticky lock, the same
/// without that, and one of tokio's; they say how many batches of pairs went by in how many nanoseconds, and the median
/// and the 99th percentile of a batch.
pub(crate) async fn run(url: &str, tasks: u32) -> Result<()> {
    let client = Client::connect(url).await?;
    let plain = client.mutex(LOCK)?;
    let sticky = plain.clone().sticky(IDLE);
    let (crowded, alone) = (Arc::new(tokio::sync::Mutex::new(())), tokio::sync::Mutex::new(()));
    let mut requests = Requests::new();
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, "0"));
        let time = Duration::from_millis(rest.parse()?);
        let line = match verb {
            "ours" => contend(tasks, time, |task, tally| ours(plain.clone(), task, tally)).await?,
            "tokio" => contend(tasks, time, |task, tally| tokios(crowded.clone(), task, tally)).await?,
            "sticky" => pairs(time, async || Ok(sticky.acquire().await?.release().await?)).await?,
            "plain" => pairs(time, async || Ok(plain.acquire().await?.release().await?)).await?,
            "alone" => {
                pairs(time, async || {
                    drop(alone.lock().await);
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

async fn contend<F>(tasks: u32, time: Duration, task: impl Fn(u32, Arc<Tally>) -> F) -> Result<String>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let tally = Arc::<Tally>::default();
    let mut running = JoinSet::new();
    let from_ns = now_ns();
    for n in 1..=tasks {
        running.spawn(task(n, tally.clone()));
    }
    sleep(time).await;
    let (until_ns, handovers) = (now_ns(), tally.handovers.load(Ordering::Relaxed));
    tally.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = timeout(PATIENCE, running.join_next()).await.context("a task does not end")? {
        ended??;
    }
    Ok(format!("{handovers} {}", until_ns - from_ns))
}

async fn ours(mutex: Mutex, task: u32, tally: Arc<Tally>) -> Result<()> {
    while tally.goes_on() {
        let guard = mutex.acquire().await?;
        tally.enter(task);
        yield_now().await;
        guard.release().await?;
    }
    Ok(())
}

async fn tokios(mutex: Arc<tokio::sync::Mutex<()>>, task: u32, tally: Arc<Tally>) -> Result<()> {
    while tally.goes_on() {
        let guard = mutex.lock().await;
        tally.enter(task);
        yield_now().await;
        drop(guard);
    }
    Ok(())
}

/// Between two batches other tasks may run, above all the connection.
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
