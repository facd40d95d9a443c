//! A process that holds a shared lock many times, and measures single requests about it.

use super::protocol::{LOCK, Requests, reply};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold::core::FIRST_LEASE;
use leasehold::{Guard, Permit, ReadGuard, RwLock, Semaphore};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use std::ops::Deref;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How many acquires are in flight at once: so few that the extends of first leases do not wait for long behind them.
const AT_ONCE: u64 = 8;
/// So long that no renewal is due while anything is measured.
const LEASE: Duration = Duration::from_secs(3600);
/// How long it may take until all holds have their full lease.
const FULL_LEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many times a sample is repeated if another request ran meanwhile.
const TRIES: u32 = 100;

/// The shared lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharedKind {
    Rwlock,
    Semaphore,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a worker has one of them")]
enum SharedLock {
    RwLock(RwLock),
    Semaphore(Semaphore),
}

enum SharedGuard {
    Read(ReadGuard),
    Permit(Permit),
}

impl SharedLock {
    async fn acquire(&self) -> Result<SharedGuard> {
        Ok(match self {
            Self::RwLock(lock) => SharedGuard::Read(lock.read().await?),
            Self::Semaphore(semaphore) => SharedGuard::Permit(semaphore.acquire().await?),
        })
    }
}

impl Deref for SharedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Read(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }
}

impl SharedGuard {
    async fn release(self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.release().await?,
            Self::Permit(permit) => permit.release().await?,
        }
        Ok(())
    }
}

/// Holds a lock `holders` times, and answers requests until `stop`.
///
/// `hold` acquires them, and replies `held` when each has its full lease. `measure` acquires once more, extends and releases,
/// and replies with the server's time in each of the three scripts, in microseconds.
pub(super) async fn run(url: &str, kind: SharedKind, holders: u64) -> Result<()> {
    let client = crate::client::connect(url).await?;
    let lock = match kind {
        SharedKind::Rwlock => SharedLock::RwLock(client.rwlock(LOCK)?.lease(LEASE)),
        SharedKind::Semaphore => {
            SharedLock::Semaphore(client.semaphore(LOCK, u32::try_from(holders)? + 1)?.lease(LEASE))
        }
    };
    let mut scripts = ScriptTimes(redis::Client::open(url)?.get_multiplexed_async_connection().await?);
    let mut requests = Requests::new();
    let mut held = Vec::new();
    reply("ready")?;
    loop {
        match requests.next().await?.as_str() {
            "hold" => {
                held = hold(&lock, holders).await?;
                reply("held")?;
            }
            "measure" => {
                let [acquire, extend, release] = scripts.measure(&lock).await?;
                reply(&format!("{acquire} {extend} {release}"))?;
            }
            "stop" => break,
            other => bail!("no such request: {other}"),
        }
    }
    check_all(&held)
}

async fn hold(lock: &SharedLock, holders: u64) -> Result<Vec<SharedGuard>> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let lock = lock.clone();
        let share = holders / AT_ONCE + u64::from(first < holders % AT_ONCE);
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for _ in 0..share {
                guards.push(lock.acquire().await?);
            }
            anyhow::Ok(guards)
        });
    }
    let mut all = Vec::new();
    while let Some(guards) = tasks.join_next().await {
        all.append(&mut guards??);
    }
    let full = async {
        while all.iter().any(|guard| guard.remaining() <= FIRST_LEASE) {
            check_all(&all)?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(FULL_LEASE_TIMEOUT, full).await.context("not all holds have their full lease")??;
    Ok(all)
}

/// Fails if a hold was lost.
fn check_all(held: &[SharedGuard]) -> Result<()> {
    let lost: Vec<_> = held.iter().filter_map(|guard| guard.check().err()).collect();
    match lost.first() {
        Some(first) => bail!("{} of {} holds were lost, one since {first}", lost.len(), held.len()),
        None => Ok(()),
    }
}

/// Reads how often scripts ran and how long they took, as the server counts them.
struct ScriptTimes(MultiplexedConnection);

impl ScriptTimes {
    /// Acquires once more, extends and releases. Repeats it until no other script ran meanwhile.
    async fn measure(&mut self, lock: &SharedLock) -> Result<[u64; 3]> {
        for _ in 0..TRIES {
            let start = self.read().await?;
            let guard = lock.acquire().await?;
            let acquired = self.read().await?;
            guard.extend().await?;
            let extended = self.read().await?;
            guard.release().await?;
            let released = self.read().await?;
            let steps = [(start, acquired), (acquired, extended), (extended, released)];
            if steps.iter().all(|(before, after)| after.0 == before.0 + 1) {
                return Ok(steps.map(|(before, after)| after.1 - before.1));
            }
        }
        bail!("other scripts ran in each of {TRIES} tries")
    }

    /// The calls of scripts, and their microseconds.
    async fn read(&mut self) -> Result<(u64, u64)> {
        let info: String = cmd("INFO").arg("commandstats").query_async(&mut self.0).await?;
        let line =
            info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).context("no script ran")?;
        let part = |name: &str| -> Result<u64> {
            let part = line.split(',').find_map(|part| part.strip_prefix(name)).context("no such count")?;
            Ok(part.parse()?)
        };
        Ok((part("calls=")?, part("usec=")?))
    }
}
