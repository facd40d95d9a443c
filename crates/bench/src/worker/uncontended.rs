//! Tasks that each acquire and release an uncontended lock of their own.
//!
//! They use the library; a plain lock as it is written by hand; or the recorded requests of the library, sent by a bare
//! client.

use super::protocol::{Requests, reply};
use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail, ensure};
use leasehold::core::{HoldId, SessionId};
use leasehold::{Client, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value, cmd};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long a task may take to end after the stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Deletes a key if it has this value, as every hand-written lock does.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

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
    bare: MultiplexedConnection,
    /// The digest of the plain lock's script.
    sha: Arc<str>,
    lease_ms: u64,
    recorded: Option<RecordedRequests>,
}

/// Answers requests until `stop`.
///
/// `ours`, `plain` and `same` acquire and release for a time in milliseconds, and reply with the number of pairs and the
/// elapsed nanoseconds. `once` acquires and releases the first lock. `recorded` sets the requests of `same`.
pub(super) async fn run(url: &str, tasks: u32, lease_ms: u64) -> Result<()> {
    let client = Client::connect(url).await?;
    let mutex = |task| Ok(client.mutex(lock_of(task))?.lease(Duration::from_millis(lease_ms)));
    let mutexes = (0..tasks).map(mutex).collect::<Result<_>>()?;
    // Without a response timeout, which costs a timer for each request.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut bare = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let sha: String = cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut bare).await?;
    let mut sides = Sides { mutexes, bare, sha: sha.into(), lease_ms, recorded: None };
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
            _ => reply(&sides.measure(verb, Duration::from_millis(rest.parse()?)).await?)?,
        }
    }
}

impl Sides {
    async fn measure(&self, side: &str, time: Duration) -> Result<String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let from_ns = now_ns();
        for (task, mutex) in (0..).zip(&self.mutexes) {
            let (bare, stop) = (self.bare.clone(), stop.clone());
            match side {
                "ours" => running.spawn(leasehold_pairs(mutex.clone(), stop)),
                "plain" => running.spawn(plain_pairs(
                    bare,
                    format!("bare/{task:02}"),
                    self.sha.clone(),
                    self.lease_ms,
                    stop,
                )),
                "same" => {
                    let recorded = self.recorded.as_ref().context("nothing is recorded yet")?;
                    running.spawn(replayed_pairs(bare, Template::new(recorded, task)?, stop))
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

async fn plain_pairs(
    mut conn: MultiplexedConnection,
    key: String,
    sha: Arc<str>,
    lease_ms: u64,
    stop: Arc<AtomicBool>,
) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        let token = token();
        let mut set = Cmd::with_capacity(6, 128);
        set.arg("SET").arg(&key).arg(&token).arg("NX").arg("PX").arg(lease_ms);
        let is_set: bool = set.query_async(&mut conn).await?;
        ensure!(is_set, "{key} exists");
        let mut delete = Cmd::with_capacity(5, 128);
        delete.arg("EVALSHA").arg(&*sha).arg(1).arg(&key).arg(&token);
        let deleted: u64 = delete.query_async(&mut conn).await?;
        ensure!(deleted == 1, "{key} has another value");
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

/// A random token as long as the library's.
fn token() -> String {
    HoldId::from_random(SessionId::from_random([7; 12]), rand::random()).token()
}

/// A script's short reply: a fencing token, or a word.
fn short_reply(reply: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = reply { Some(bytes) } else { None }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
