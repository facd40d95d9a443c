//! The role of `uncontended`: tasks that each acquire and release an uncontended lock of their own.
//!
//! By the library; by a plain lock as it is written by hand; and by the very requests of the library, sent with nothing
//! around them.

use crate::protocol::{Requests, reply};
use crate::section::now_ns;
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
const PATIENCE: Duration = Duration::from_secs(30);
/// Deletes a key if it has this value, as every hand-written lock does.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The two requests of a pair, as the library has sent them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Heard {
    pub(crate) acquire: Vec<String>,
    pub(crate) release: Vec<String>,
}

/// The lock of a task of the library's.
pub(crate) fn lock_of(task: u32) -> String {
    format!("ours/{task:02}")
}

/// Whose turn it is.
struct Sides {
    ours: Vec<Mutex>,
    bare: MultiplexedConnection,
    /// The name that the server has for the plain lock's script.
    sha: Arc<str>,
    lease_ms: u64,
    heard: Option<Heard>,
}

/// `ours`, `plain` and `same` with a time in milliseconds take and release for so long, and say how many pairs went by
/// in how many nanoseconds; `once` takes and releases the first lock; `heard` gives the requests of `same`.
pub(crate) async fn run(url: &str, tasks: u32, lease_ms: u64) -> Result<()> {
    let client = Client::connect(url).await?;
    let mutex = |task| Ok(client.mutex(lock_of(task))?.lease(Duration::from_millis(lease_ms)));
    let ours = (0..tasks).map(mutex).collect::<Result<_>>()?;
    // As bare as can be: without a limit for the answer, which costs a timer a request.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut bare = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let sha: String = cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut bare).await?;
    let mut sides = Sides { ours, bare, sha: sha.into(), lease_ms, heard: None };
    let mut requests = Requests::new();
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
        match verb {
            "once" => {
                sides.ours.first().context("no task")?.acquire().await?.release().await?;
                reply("done")?;
            }
            "heard" => sides.heard = Some(serde_json::from_str(rest)?),
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
        for (task, mutex) in (0..).zip(&self.ours) {
            let (bare, stop) = (self.bare.clone(), stop.clone());
            match side {
                "ours" => running.spawn(ours(mutex.clone(), stop)),
                "plain" => running.spawn(plain(
                    bare,
                    format!("bare/{task:02}"),
                    self.sha.clone(),
                    self.lease_ms,
                    stop,
                )),
                "same" => {
                    let heard = self.heard.as_ref().context("nothing heard yet")?;
                    running.spawn(same(bare, Template::new(heard, task)?, stop))
                }
                other => bail!("no such request: {other}"),
            };
        }
        sleep(time).await;
        stop.store(true, Ordering::Relaxed);
        let mut pairs = 0;
        while let Some(done) = timeout(PATIENCE, running.join_next()).await.context("a task does not end")? {
            pairs += done??;
        }
        Ok(format!("{pairs} {}", now_ns() - from_ns))
    }
}

async fn ours(mutex: Mutex, stop: Arc<AtomicBool>) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        mutex.acquire().await?.release().await?;
        pairs += 1;
    }
    Ok(pairs)
}

async fn plain(
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
        let taken: bool = set.query_async(&mut conn).await?;
        ensure!(taken, "{key} was taken");
        let mut delete = Cmd::with_capacity(5, 128);
        delete.arg("EVALSHA").arg(&*sha).arg(1).arg(&key).arg(&token);
        let deleted: u64 = delete.query_async(&mut conn).await?;
        ensure!(deleted == 1, "{key} was not held");
        pairs += 1;
    }
    Ok(pairs)
}

async fn same(mut conn: MultiplexedConnection, template: Template, stop: Arc<AtomicBool>) -> Result<u64> {
    let mut pairs = 0;
    while !stop.load(Ordering::Relaxed) {
        let token = token();
        let granted: Value = request(&template.acquire, &token).query_async(&mut conn).await?;
        ensure!(said(&granted).is_some_and(is_number), "not granted: {granted:?}");
        let held: Value = request(&template.release, &token).query_async(&mut conn).await?;
        ensure!(said(&held) == Some(b"held"), "not held: {held:?}");
        pairs += 1;
    }
    Ok(pairs)
}

/// The requests of one task, in which only the token is missing.
struct Template {
    acquire: Vec<Option<String>>,
    release: Vec<Option<String>>,
}

impl Template {
    /// The same requests about another lock, whose name is as long.
    fn new(heard: &Heard, task: u32) -> Result<Self> {
        let keys: usize = heard.acquire.get(2).context("no number of keys")?.parse()?;
        let token = heard.acquire.get(3 + keys).context("no token")?;
        let (from, to) = (lock_of(0), format!("same/{task:02}"));
        let fill = |arguments: &[String]| -> Vec<Option<String>> {
            arguments.iter().map(|part| (part != token).then(|| part.replace(&from, &to))).collect()
        };
        Ok(Self { acquire: fill(&heard.acquire), release: fill(&heard.release) })
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
fn said(reply: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = reply { Some(bytes) } else { None }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
