//! One process whose tasks acquire and release a lock in a loop, and record their sections.
//!
//! While it is measured it replies only with the number of sections: a pipe that is read slowly would be measured, too.

use super::bare_queue::BareQueue;
use super::protocol::{LOCK, Requests, reply};
use crate::critical_section::{CriticalSection, now_ns};
use anyhow::{Result, bail};
use leasehold::{Client, Guard, Mutex, Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long the cleanup after dropped tasks may take.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The contended lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContendedLock {
    /// A Mutex.
    Mutex,
    /// An RwLock, and how many of a hundred sections read.
    RwLock(u8),
    /// A Semaphore, and its permits.
    Semaphore(u32),
    /// A queue by hand.
    Bare,
}

impl FromStr for ContendedLock {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once(':') {
            None if text == "mutex" => Self::Mutex,
            None if text == "bare" => Self::Bare,
            Some(("rwlock", reads)) => Self::RwLock(reads.parse()?),
            Some(("semaphore", permits)) => Self::Semaphore(permits.parse()?),
            _ => bail!("`mutex`, `bare`, `rwlock:READS` or `semaphore:PERMITS`, not `{text}`"),
        })
    }
}

/// What one process does.
pub(crate) struct Contender {
    /// Its number.
    pub(crate) process: u32,
    /// How many of its tasks contend.
    pub(crate) tasks: u32,
    /// How long each task holds the lock. At zero it releases at once.
    pub(crate) hold: Duration,
    pub(crate) lock: ContendedLock,
}

/// A lock of any kind.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a worker has one of them")]
enum AnyLock {
    Mutex(Mutex),
    RwLock(RwLock, u8),
    Semaphore(Semaphore, u32),
    Bare(BareQueue),
}

/// A guard of any kind.
#[allow(clippy::large_enum_variant, reason = "a task holds one at a time")]
enum AnyGuard {
    Mutex(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    /// With whether it is the only permit.
    Permit(Permit, bool),
    /// With the number that stands for a fencing token.
    Bare(BareQueue, u64),
}

impl AnyLock {
    async fn new(url: &str, client: &Client, contender: &Contender) -> Result<Self> {
        Ok(match contender.lock {
            ContendedLock::Bare => Self::Bare(BareQueue::connect(url, LOCK, contender.process).await?),
            ContendedLock::Mutex => Self::Mutex(client.mutex(LOCK)?),
            ContendedLock::RwLock(reads) => Self::RwLock(client.rwlock(LOCK)?, reads),
            ContendedLock::Semaphore(permits) => Self::Semaphore(client.semaphore(LOCK, permits)?, permits),
        })
    }

    async fn acquire(&self) -> Result<AnyGuard> {
        Ok(match self {
            Self::Bare(queue) => AnyGuard::Bare(queue.clone(), queue.acquire().await?),
            Self::Mutex(mutex) => AnyGuard::Mutex(mutex.acquire().await?),
            Self::RwLock(lock, reads) if rand::random_range(0..100) < *reads => {
                AnyGuard::Read(lock.read().await?)
            }
            Self::RwLock(lock, _) => AnyGuard::Write(lock.write().await?),
            Self::Semaphore(semaphore, permits) => {
                AnyGuard::Permit(semaphore.acquire().await?, *permits == 1)
            }
        })
    }
}

impl AnyGuard {
    /// Its fencing token, and whether it is the only holder.
    fn token_and_exclusivity(&self) -> (u64, bool) {
        let (guard, is_exclusive): (&Guard, bool) = match self {
            Self::Mutex(guard) => (guard, true),
            Self::Read(guard) => (guard, false),
            Self::Write(guard) => (guard, true),
            Self::Permit(permit, is_only) => (permit, *is_only),
            Self::Bare(_, number) => return (*number, true),
        };
        (guard.fencing_token().as_u64(), is_exclusive)
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::Mutex(guard) => guard.release().await?,
            Self::Read(guard) => guard.release().await?,
            Self::Write(guard) => guard.release().await?,
            Self::Permit(permit, _) => permit.release().await?,
            Self::Bare(queue, _) => queue.release().await?,
        }
        Ok(())
    }
}

/// The sections of all tasks of a process.
#[derive(Default)]
struct Log {
    /// Since the last `discard`.
    sections: StdMutex<Vec<CriticalSection>>,
    /// Since the tasks began.
    count: AtomicU64,
}

/// Answers requests until `stop`.
///
/// `begin` starts all tasks. `count` replies with the number of sections since then. `discard` forgets the recorded
/// sections. `stop` ends the tasks wherever they are, and replies with the sections since the last `discard`.
pub(super) async fn run(url: &str, contender: Contender) -> Result<()> {
    let client = crate::client::connect(url).await?;
    let lock = AnyLock::new(url, &client, &contender).await?;
    let log = Arc::<Log>::default();
    let mut requests = Requests::new();
    reply("ready")?;
    let mut running = JoinSet::new();
    loop {
        match requests.next().await?.as_str() {
            "begin" => {
                for task in 0..contender.tasks {
                    running.spawn(contend(
                        lock.clone(),
                        contender.process,
                        task,
                        contender.hold,
                        log.clone(),
                    ));
                }
            }
            "count" => reply(&log.count.load(Ordering::Relaxed).to_string())?,
            "discard" => log.sections().clear(),
            "stop" => break,
            other => bail!("no such request: {other}"),
        }
    }
    while let Some(ended) = running.try_join_next() {
        // A task ends only by an error.
        ended??;
    }
    let sections = std::mem::take(&mut *log.sections());
    running.shutdown().await;
    print_all(&sections)?;
    // If the server does not answer, the holds end with their leases.
    let _ = timeout(CLEANUP_TIMEOUT, client.flush()).await;
    reply("done")
}

fn print_all(sections: &[CriticalSection]) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for section in sections {
        writeln!(out, "{section}")?;
    }
    Ok(out.flush()?)
}

async fn contend(lock: AnyLock, process: u32, task: u32, hold: Duration, log: Arc<Log>) -> Result<()> {
    loop {
        let called_ns = now_ns();
        let guard = lock.acquire().await?;
        let acquired_ns = now_ns();
        let (fence, exclusive) = guard.token_and_exclusivity();
        if !hold.is_zero() {
            sleep(hold).await;
        }
        let released_ns = now_ns();
        guard.release().await?;
        log.add(CriticalSection { process, task, exclusive, fence, called_ns, acquired_ns, released_ns });
    }
}

impl Log {
    fn sections(&self) -> std::sync::MutexGuard<'_, Vec<CriticalSection>> {
        self.sections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, section: CriticalSection) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sections().push(section);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_parsed() {
        let check = |text: &str| text.parse::<ContendedLock>().ok();
        assert_eq!(check("mutex"), Some(ContendedLock::Mutex));
        assert_eq!(check("bare"), Some(ContendedLock::Bare));
        assert_eq!(check("rwlock:90"), Some(ContendedLock::RwLock(90)));
        assert_eq!(check("semaphore:4"), Some(ContendedLock::Semaphore(4)));
        assert_eq!(check("latch:1").or(check("rwlock:")).or(check("")), None);
    }
}
