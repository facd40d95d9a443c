//! rslock, measured: the tasks are tasks of tokio, on one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use rslock::{LockGuard, LockManager};
use rustix::time::{ClockId, clock_gettime};

use crate::{Answer, Error, version};

/// The library has no default.
const LEASE: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    manager: LockManager,
    locks: BTreeMap<String, LockGuard>,
}

/// One acquisition: when, and by which task.
type Section = (u64, u32);

impl Bench {
    pub(crate) fn new(url: String) -> Result<Self, Error> {
        println!("ready rslock {} {}", version()?, now_ns());
        Ok(Self { manager: LockManager::new(vec![url]), locks: BTreeMap::new() })
    }

    async fn acquire(&mut self, name: &str) -> Answer {
        let called_ns = now_ns();
        let lock = self.manager.acquire(name, LEASE).await?;
        let returned_ns = now_ns();
        self.locks.insert(name.to_owned(), lock);
        Ok(format!("acquired {called_ns} {returned_ns}"))
    }

    async fn release(&mut self, name: &str, pause: Duration) -> Answer {
        tokio::time::sleep(pause).await;
        let lock = self.locks.remove(name).ok_or("it is not held")?;
        let called_ns = now_ns();
        lock.release().await;
        Ok(format!("released {called_ns}"))
    }

    async fn contend(&self, name: &str, tasks: u32, during: Duration) -> Answer {
        let all = self.sections(name, tasks, during).await?;
        let handovers = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        let served: BTreeSet<u32> = all.iter().map(|(_, task)| *task).collect();
        Ok(format!("contended {} {handovers} {}", all.len(), served.len()))
    }

    async fn trace(&self, name: &str, tasks: u32, during: Duration) -> Answer {
        let mut answer = "trace".to_owned();
        for (acquired_ns, task) in self.sections(name, tasks, during).await? {
            write!(answer, " {task}@{acquired_ns}")?;
        }
        Ok(answer)
    }

    /// The acquisitions of all tasks, in the order of time.
    async fn sections(&self, name: &str, tasks: u32, during: Duration) -> Result<Vec<Section>, Error> {
        let until_ns = now_ns() + u64::try_from(during.as_nanos())?;
        let tasks: Vec<_> = (0..tasks)
            .map(|task| tokio::spawn(run_task(self.manager.clone(), name.to_owned(), task, until_ns)))
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await?.map_err(|error| error.to_string())?);
        }
        all.sort_unstable();
        Ok(all)
    }

    pub(crate) async fn answer(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        let ms = |word: &str| word.parse().map(Duration::from_millis);
        match words[..] {
            ["acquire", name] => self.acquire(name).await,
            ["release", name, pause] => self.release(name, Duration::from_micros(pause.parse()?)).await,
            ["contend", name, tasks, during] => self.contend(name, tasks.parse()?, ms(during)?).await,
            ["trace", name, tasks, during] => self.trace(name, tasks.parse()?, ms(during)?).await,
            _ => Err("there is no such request".into()),
        }
    }
}

async fn run_task(
    manager: LockManager,
    name: String,
    task: u32,
    until_ns: u64,
) -> Result<Vec<Section>, rslock::LockError> {
    let mut seen = Vec::new();
    while now_ns() < until_ns {
        let lock = manager.acquire(name.as_str(), LEASE).await?;
        let acquired_ns = now_ns();
        lock.release().await;
        if acquired_ns < until_ns {
            seen.push((acquired_ns, task));
        }
    }
    Ok(seen)
}

/// Nanoseconds of a clock that all processes of the machine share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
