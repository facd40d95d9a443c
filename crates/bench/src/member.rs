//! The role of one process in a crowd: tasks that take a lock again and again, and keep what they saw until they are asked.
//!
//! Nothing is said while it is measured but how many sections went by: a pipe that is read slowly would be measured, too.

use crate::protocol::{LOCK, Requests, reply};
use crate::section::{Section, now_ns};
use anyhow::{Result, bail};
use leasehold::{Client, Guard, Mutex, Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long what dropped tasks have left may take to be given back.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is contended for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// A Mutex.
    Mutex,
    /// An RwLock, to read so many times of a hundred.
    RwLock(u8),
    /// A permit of so many.
    Semaphore(u32),
}

impl FromStr for Sought {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once(':') {
            None if text == "mutex" => Self::Mutex,
            Some(("rwlock", reads)) => Self::RwLock(reads.parse()?),
            Some(("semaphore", permits)) => Self::Semaphore(permits.parse()?),
            _ => bail!("`mutex`, `rwlock:READS` or `semaphore:PERMITS`, not `{text}`"),
        })
    }
}

/// One process.
pub(crate) struct Member {
    /// Which.
    pub(crate) process: u32,
    /// How many of its tasks contend.
    pub(crate) tasks: u32,
    /// How long each holds the lock; not at all, if it is zero.
    pub(crate) hold: Duration,
    pub(crate) sought: Sought,
}

/// A lock of one of the kinds.
#[derive(Clone)]
enum Lock {
    ByOne(Mutex),
    ToRead(RwLock, u8),
    BySome(Semaphore, u32),
}

/// A hold of one of the kinds.
#[allow(clippy::large_enum_variant, reason = "a task has one at a time, and none of them in a collection")]
enum Held {
    Alone(Guard),
    Reads(ReadGuard),
    Writes(WriteGuard),
    Permit(Permit, bool),
}

impl Lock {
    fn of(client: &Client, sought: Sought) -> Result<Self> {
        Ok(match sought {
            Sought::Mutex => Self::ByOne(client.mutex(LOCK)?),
            Sought::RwLock(reads) => Self::ToRead(client.rwlock(LOCK)?, reads),
            Sought::Semaphore(permits) => Self::BySome(client.semaphore(LOCK, permits)?, permits),
        })
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Self::ByOne(mutex) => Held::Alone(mutex.acquire().await?),
            Self::ToRead(lock, reads) if rand::random_range(0..100) < *reads => {
                Held::Reads(lock.read().await?)
            }
            Self::ToRead(lock, _) => Held::Writes(lock.write().await?),
            Self::BySome(semaphore, permits) => Held::Permit(semaphore.acquire().await?, *permits == 1),
        })
    }
}

impl Held {
    /// Its fencing token, and whether it is the only holder.
    fn shown(&self) -> (u64, bool) {
        let (guard, alone): (&Guard, bool) = match self {
            Self::Alone(guard) => (guard, true),
            Self::Reads(guard) => (guard, false),
            Self::Writes(guard) => (guard, true),
            Self::Permit(permit, alone) => (permit, *alone),
        };
        (guard.fencing_token().as_u64(), alone)
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::Alone(guard) => guard.release().await?,
            Self::Reads(guard) => guard.release().await?,
            Self::Writes(guard) => guard.release().await?,
            Self::Permit(permit, _) => permit.release().await?,
        }
        Ok(())
    }
}

/// What the tasks of a process have done.
#[derive(Default)]
struct Log {
    /// Since the last `mark`.
    sections: StdMutex<Vec<Section>>,
    /// Since they began.
    count: AtomicU64,
}

/// `go` starts all tasks; `count` says how many sections went by since then; `mark` forgets what was seen before; `stop`
/// ends the tasks wherever they are, and what was seen since the last `mark` is said.
pub(crate) async fn run(url: &str, member: Member) -> Result<()> {
    let client = Client::connect(url).await?;
    let lock = Lock::of(&client, member.sought)?;
    let log = Arc::<Log>::default();
    let mut requests = Requests::new();
    reply("ready")?;
    let mut running = JoinSet::new();
    loop {
        match requests.next().await?.as_str() {
            "go" => {
                for task in 0..member.tasks {
                    running.spawn(contend(lock.clone(), member.process, task, member.hold, log.clone()));
                }
            }
            "count" => reply(&log.count.load(Ordering::Relaxed).to_string())?,
            "mark" => log.sections().clear(),
            "stop" => break,
            other => bail!("no such request: {other}"),
        }
    }
    while let Some(ended) = running.try_join_next() {
        // They end by nothing but an error.
        ended??;
    }
    let sections = std::mem::take(&mut *log.sections());
    running.shutdown().await;
    say_all(&sections)?;
    // A server that is gone, or other processes, may keep it from that: then the leases end it.
    let _ = timeout(PATIENCE, client.flush()).await;
    reply("done")
}

fn say_all(sections: &[Section]) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for section in sections {
        writeln!(out, "{section}")?;
    }
    Ok(out.flush()?)
}

async fn contend(lock: Lock, process: u32, task: u32, hold: Duration, log: Arc<Log>) -> Result<()> {
    loop {
        let asked_ns = now_ns();
        let held = lock.acquire().await?;
        let got_ns = now_ns();
        let (fence, alone) = held.shown();
        if !hold.is_zero() {
            sleep(hold).await;
        }
        let released_ns = now_ns();
        held.release().await?;
        log.add(Section { process, task, alone, fence, asked_ns, got_ns, released_ns });
    }
}

impl Log {
    fn sections(&self) -> std::sync::MutexGuard<'_, Vec<Section>> {
        self.sections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, section: Section) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sections().push(section);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sought_is_said_in_a_word() {
        let check = |text: &str| text.parse::<Sought>().ok();
        assert_eq!(check("mutex"), Some(Sought::Mutex));
        assert_eq!(check("rwlock:90"), Some(Sought::RwLock(90)));
        assert_eq!(check("semaphore:4"), Some(Sought::Semaphore(4)));
        assert_eq!(check("latch:1").or(check("rwlock:")).or(check("")), None);
    }
}
