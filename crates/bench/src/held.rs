//! The two roles of `renewal`: a process that holds many locks, and one that sends the same extends
//! with nothing around them.

use crate::protocol::{LOCK, Requests, reply};
use crate::section::now_ns;
use crate::waiters::name;
use anyhow::{Context, Result, bail, ensure};
use leasehold::core::FIRST_LEASE;
use leasehold::{Client, Guard, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How many acquires are on their way at once.
const AT_ONCE: u64 = 64;
/// How long all locks may take until they are held with their full lease, beyond the time over which they are taken.
const PATIENCE: Duration = Duration::from_secs(30);
/// The lease of a lock that its watchdog renews, and every how long it does.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// Every how long the bare client sends a batch.
const BARE_TICK: Duration = Duration::from_millis(200);
/// How many extends a call of the bare client has, as one of the keeper's has at most.
const AT_ONCE_BARE: usize = 64;
/// What the keeper sends, to the letter.
const EXTEND: &str = include_str!("../../redis/src/lua/extend.lua");

/// Told to `take`, takes that many locks, evenly over a time, and says `held` when each has its full lease. `check` answers how many
/// are held, and for how many milliseconds the shortest of them is.
pub(crate) async fn hold(url: &str, locks: u64, over: Duration) -> Result<()> {
    let client = Client::connect(url).await?;
    // What a client has once is there before anything is measured.
    client.mutex(LOCK)?.acquire().await?.release().await?;
    let mut requests = Requests::new();
    reply("ready")?;
    let request = requests.next().await?;
    ensure!(request == "acquire", "no such request: {request}");
    let guards = take(&client, locks, over).await?;
    let full = async {
        while guards.iter().any(|guard| guard.remaining() <= FIRST_LEASE) {
            let lost = guards.iter().try_for_each(leasehold::Guard::check);
            lost.context("a lock was lost before all had their full lease")?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, full).await.context("not all locks have their full lease")??;
    reply("held")?;
    loop {
        match requests.next().await?.as_str() {
            "check" => {
                let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
                let shortest = guards.iter().map(Guard::remaining).min().unwrap_or_default();
                reply(&format!("{held} {}", shortest.as_millis()))?;
            }
            "stop" => return Ok(()),
            other => bail!("no such request: {other}"),
        }
    }
}

/// Lock `n` of `locks` is asked for when `n / locks` of the time is over.
async fn take(client: &Client, locks: u64, over: Duration) -> Result<Vec<Guard>> {
    let start = Instant::now();
    let mut takers = JoinSet::new();
    for first in 0..AT_ONCE {
        let client = client.clone();
        takers.spawn(async move {
            let mut guards = Vec::new();
            for n in (first..locks).step_by(usize::try_from(AT_ONCE)?) {
                let at = over.mul_f64(crate::report::per(n, locks));
                sleep(at.saturating_sub(start.elapsed())).await;
                let mutex: Mutex = client.mutex(name(n))?;
                guards.push(mutex.acquire().await?);
            }
            anyhow::Ok(guards)
        });
    }
    let mut all = Vec::new();
    while let Some(guards) = takers.join_next().await {
        all.append(&mut guards??);
    }
    Ok(all)
}

/// Extends `keys` keys again and again, each once in a period, until the stop request.
pub(crate) async fn extend_bare(url: &str, locks: u64) -> Result<()> {
    let mut conn = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(EXTEND).query_async(&mut conn).await?;
    let keys: Vec<_> = (0..locks).map(|n| (name(n), format!("{:039}", now_ns() + n))).collect();
    for some in keys.chunks(256) {
        let mut pipeline = Pipeline::with_capacity(some.len());
        for (name, token) in some {
            pipeline.cmd("SET").arg(name).arg(token).arg("PX").arg(LEASE.as_millis().to_string()).ignore();
        }
        pipeline.exec_async(&mut conn).await?;
    }
    let mut requests = Requests::new();
    reply("ready")?;
    tokio::select! {
        ended = send_batches(&mut conn, &sha, &keys) => ended,
        request = requests.next() => request.map(drop),
    }
}

/// Sends a batch every tick, so that a period covers all keys.
async fn send_batches(conn: &mut MultiplexedConnection, sha: &str, keys: &[(String, String)]) -> Result<()> {
    let ticks = PERIOD.as_millis() / BARE_TICK.as_millis();
    let size = keys.len().div_ceil(usize::try_from(ticks)?);
    let mut tick = interval(BARE_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turns = keys.iter().cycle();
    loop {
        tick.tick().await;
        let some: Vec<_> = turns.by_ref().take(size).collect();
        let mut pipeline = Pipeline::with_capacity(some.len().div_ceil(AT_ONCE_BARE));
        for some in some.chunks(AT_ONCE_BARE) {
            let mut cmd = Cmd::with_capacity(3 + 3 * some.len(), 64 + 96 * some.len());
            cmd.arg("EVALSHA").arg(sha).arg(some.len());
            for (name, _) in some {
                cmd.arg(name);
            }
            for (_, token) in some {
                cmd.arg(token).arg(LEASE.as_millis().to_string());
            }
            pipeline.add_command(cmd);
        }
        let extended: Vec<Vec<u64>> = pipeline.query_async(conn).await?;
        ensure!(extended.iter().flatten().all(|extended| *extended == 1), "a bare key was not extended");
    }
}
