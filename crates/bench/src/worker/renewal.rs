//! A process that holds many locks, and one that sends the same extends by a bare client.

use super::memory::lock_name;
use super::protocol::{LOCK, Requests, reply};
use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail, ensure};
use leasehold::core::FIRST_LEASE;
use leasehold::{Client, Guard, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How many acquires are in flight at once.
const AT_ONCE: u64 = 64;
/// How long it may take until all locks have their full lease, beyond the time over which they are acquired.
const FULL_LEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// The lease of a lock that the watchdog renews, and the interval of the renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// The interval of the bare client's batches.
const BARE_TICK: Duration = Duration::from_millis(200);
/// How many extends a call of the bare client has: as many as a call of the keeper has at most.
const EXTENDS_PER_CALL: usize = 64;
/// The script that the keeper calls.
const EXTEND: &str = include_str!("../../../redis/src/lua/extend.lua");

/// Holds locks until `stop`.
///
/// `acquire` acquires them evenly over a time, and replies `held` when each has its full lease. `check` replies with the
/// number of valid guards and the shortest remaining lease in milliseconds.
pub(super) async fn hold(url: &str, locks: u64, over: Duration, lease: Duration) -> Result<()> {
    let client = crate::client::builder(url).watchdog_lease(lease).connect().await?;
    // What a client allocates once is allocated before anything is measured.
    client.mutex(LOCK)?.acquire().await?.release().await?;
    let mut requests = Requests::new();
    reply("ready")?;
    let request = requests.next().await?;
    ensure!(request == "acquire", "no such request: {request}");
    let guards = acquire_all(&client, locks, over).await?;
    let full = async {
        while guards.iter().any(|guard| guard.remaining() <= FIRST_LEASE) {
            let lost = guards.iter().try_for_each(Guard::check);
            lost.context("a lock was lost before all had their full lease")?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(FULL_LEASE_TIMEOUT, full).await.context("not all locks have their full lease")??;
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

/// Acquires lock `n` when `n / locks` of the time is over.
async fn acquire_all(client: &Client, locks: u64, over: Duration) -> Result<Vec<Guard>> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let client = client.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for n in (first..locks).step_by(usize::try_from(AT_ONCE)?) {
                let at = over.mul_f64(crate::report::per(n, locks));
                sleep(at.saturating_sub(start.elapsed())).await;
                let mutex: Mutex = client.mutex(lock_name(n))?;
                guards.push(mutex.acquire().await?);
            }
            anyhow::Ok(guards)
        });
    }
    let mut all = Vec::new();
    while let Some(guards) = tasks.join_next().await {
        all.append(&mut guards??);
    }
    Ok(all)
}

/// Extends keys, each once in a period, until `stop`.
pub(super) async fn extend_bare(url: &str, locks: u64) -> Result<()> {
    let mut conn = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(EXTEND).query_async(&mut conn).await?;
    let keys: Vec<_> = (0..locks).map(|n| (lock_name(n), format!("{:039}", now_ns() + n))).collect();
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
    let mut next_keys = keys.iter().cycle();
    loop {
        tick.tick().await;
        let some: Vec<_> = next_keys.by_ref().take(size).collect();
        let mut pipeline = Pipeline::with_capacity(some.len().div_ceil(EXTENDS_PER_CALL));
        for some in some.chunks(EXTENDS_PER_CALL) {
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
