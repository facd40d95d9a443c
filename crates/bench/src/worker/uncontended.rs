//! Tasks that each acquire and release an uncontended lock of their own.
//!
//! They use the library; a plain lock as it is written by hand; the recorded requests of the library, sent by a bare
//! client; or rslock.

use super::plain::{PlainLock, bare_connection, token};
use super::protocol::{Requests, reply};
use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail, ensure};
use leasehold::{Client, Mutex};
use metrics_util::debugging::DebuggingRecorder;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use rslock::LockManager;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long a task may take to end after the stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The two requests of a pair, as the library sends them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RecordedRequests {
    pub(crate) acquire: Vec<String>,
    pub(crate) release: Vec<String>,
}

/// The lock of a task that uses the library.
pub(crate) fn lock_of(task: u32) -> String {
    format!("ours/{task:02}")
}

/// The clients of all sides.
struct Sides {
    mutexes: Vec<Mutex>,
    /// The same with metrics.
    recorded_mutexes: Vec<Mutex>,
    plain: PlainLock,
    bare: MultiplexedConnection,
    rslock: LockManager,
    lease: Duration,
    recorded: Option<RecordedRequests>,
}

/// Answers requests until `stop`.
///
/// `ours`, `metrics`, `plain`, `same` and `rslock` acquire and release for a time in milliseconds, and reply with the number of pairs
/// and the elapsed nanoseconds. `once` acquires and releases the first lock. `recorded` sets the requests of `same`.
pub(super) async fn run(url: &str, tasks: u32, lease_ms: u64) -> Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().context("there is a recorder already")?;
    let client = crate::client::connect(url).await?;
    let with_metrics = Client::builder(url).connect().await?;
    let lease = Duration::from_millis(lease_ms);
    let mutex = |task| Ok(client.mutex(lock_of(task))?.lease(lease));
    let mutexes = (0..tasks).map(mutex).collect::<Result<_>>()?;
    let mutex = |task| Ok(with_metrics.mutex(format!("seen/{task:02}"))?.lease(lease));
    let recorded_mutexes = (0..tasks).map(mutex).collect::<Result<_>>()?;
    let plain = PlainLock::connect(&[url.to_owned()], lease_ms).await?;
    let bare = bare_connection(url).await?;
    let rslock = LockManager::from_clients(vec![redis::Client::open(url)?]);
    let mut sides = Sides { mutexes, recorded_mutexes, plain, bare, rslock, lease, recorded: None };
    let mut requests = Requests::new();
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
        match verb {
            "once" => {
                sides.mutexes.first().context("no task")?.acquire().await?.release().await?;
                reply("done")?;
            }
            "recorded" => sides.recorded = Some(serde_json::from_str(rest)?),
            "stop" => return Ok(()),
            _ => {
                let measured = sides.measure(verb, Duration::from_millis(rest.parse()?)).await?;
                // As an exporter does when it is scraped. Otherwise the values of the histograms pile up.
                drop(snapshotter.snapshot());
                reply(&measured)?;
            }
        }
    }
}

impl Sides {
    async fn measure(&self, side: &str, time: Duration) -> Result<String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let from_ns = now_ns();
        for (task, (mutex, recorded)) in (0..).zip(self.mutexes.iter().zip(&self.recorded_mutexes)) {
            let stop = stop.clone();
            match side {
                "metrics" => running.spawn(leasehold_pairs(recorded.clone(), stop)),
                "ours" => running.spawn(leasehold_pairs(mutex.clone(), stop)),
                "plain" => running.spawn(plain_pairs(self.plain.clone(), format!("bare/{task:02}"), stop)),
                "rslock" => {
                    let name = format!("rslock/{task:02}");
                    running.spawn(rslock_pairs(self.rslock.clone(), name, self.lease, stop))
                }
                "same" => {
                    let recorded = self.recorded.as_ref().context("nothing is recorded yet")?;
                    running.spawn(replayed_pairs(self.bare.clone(), Template::new(recorded, task)?, stop))
                }
                other => bail!("no such request: {other}"),
            };
        }
        sleep(time).await;
        stop.store(true, Ordering::Relaxed);
        let mut pairs = 0;
        while let Some(done) =
            timeout(STOP_TIMEOUT, running.join_next()).await.context("a task does not end")?
        {
            pairs += done??;
        }
        Ok(format!("{pairs} {}", now_ns() - from_ns))
    }
}

async fn leasehold_pairs(mutex: Mutex, stop: Arc<AtomicBool>) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        mutex.acquire().await?.release().await?;
        pairs += 1;
    }
    Ok(pairs)
}

async fn plain_pairs(mut lock: PlainLock, key: String, stop: Arc<AtomicBool>) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        lock.pair(&key).await?;
        pairs += 1;
    }
    Ok(pairs)
}

async fn rslock_pairs(
    locks: LockManager,
    name: String,
    lease: Duration,
    stop: Arc<AtomicBool>,
) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        locks.acquire(name.as_str(), lease).await?.release().await;
        pairs += 1;
    }
    Ok(pairs)
}

async fn replayed_pairs(
    mut conn: MultiplexedConnection,
    template: Template,
    stop: Arc<AtomicBool>,
) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        let token = token();
        let granted: Value = request(&template.acquire, &token).query_async(&mut conn).await?;
        ensure!(short_reply(&granted).is_some_and(is_number), "not granted: {granted:?}");
        let held: Value = request(&template.release, &token).query_async(&mut conn).await?;
        ensure!(short_reply(&held) == Some(b"held"), "not held: {held:?}");
        pairs += 1;
    }
    Ok(pairs)
}

/// The requests of one task, without the token.
struct Template {
    acquire: Vec<Option<String>>,
    release: Vec<Option<String>>,
}

impl Template {
    /// The same requests about another lock, whose name is as long.
    fn new(recorded: &RecordedRequests, task: u32) -> Result<Self> {
        let keys: usize = recorded.acquire.get(2).context("no number of keys")?.parse()?;
        let token = recorded.acquire.get(3 + keys).context("no token")?;
        let (from, to) = (lock_of(0), format!("same/{task:02}"));
        let fill = |arguments: &[String]| -> Vec<Option<String>> {
            arguments.iter().map(|part| (part != token).then(|| part.replace(&from, &to))).collect()
        };
        Ok(Self { acquire: fill(&recorded.acquire), release: fill(&recorded.release) })
    }
}

fn request(template: &[Option<String>], token: &str) -> Cmd {
    let mut cmd = Cmd::with_capacity(template.len(), 320);
    for part in template {
        cmd.arg(part.as_deref().unwrap_or(token));
    }
    cmd
}

/// A script's short reply: a fencing token, or a word.
fn short_reply(reply: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = reply { Some(bytes) } else { None }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
