//! Speaks the protocol of `../README.md` for rslock.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::io::{self, BufRead};
use std::time::Duration;

use rslock::{LockGuard, LockManager};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// It has no default.
const LEASE: Duration = Duration::from_secs(30);

struct Driver {
    manager: LockManager,
    locks: BTreeMap<String, LockGuard>,
}

/// A section: since when somebody had the lock, and who.
type Section = (u64, u32);

impl Driver {
    async fn take(&mut self, name: &str) -> Result<String> {
        let asked_ns = now_ns();
        let lock = self.manager.acquire(name, LEASE).await?;
        let got_ns = now_ns();
        self.locks.insert(name.to_owned(), lock);
        Ok(format!("got {asked_ns} {got_ns}"))
    }

    async fn give(&mut self, name: &str, pause: Duration) -> Result<String> {
        tokio::time::sleep(pause).await;
        let lock = self.locks.remove(name).ok_or("it is not held")?;
        let gave_ns = now_ns();
        lock.release().await;
        Ok(format!("gave {gave_ns}"))
    }

    async fn herd(&self, name: &str, tasks: u32, during: Duration) -> Result<String> {
        let all = self.sections(name, tasks, during).await?;
        let handovers = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        let served: BTreeSet<u32> = all.iter().map(|(_, task)| *task).collect();
        Ok(format!("herd {} {handovers} {}", all.len(), served.len()))
    }

    async fn turns(&self, name: &str, tasks: u32, during: Duration) -> Result<String> {
        let mut answer = "turns".to_owned();
        for (got_ns, task) in self.sections(name, tasks, during).await? {
            write!(answer, " {task}@{got_ns}")?;
        }
        Ok(answer)
    }

    /// What all tasks had, in the order of time.
    async fn sections(&self, name: &str, tasks: u32, during: Duration) -> Result<Vec<Section>> {
        let until_ns = now_ns() + u64::try_from(during.as_nanos())?;
        let herd: Vec<_> = (0..tasks)
            .map(|task| tokio::spawn(contend(self.manager.clone(), name.to_owned(), task, until_ns)))
            .collect();
        let mut all = Vec::new();
        for task in herd {
            all.extend(task.await?.map_err(|error| error.to_string())?);
        }
        all.sort_unstable();
        Ok(all)
    }

    async fn answer(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let ms = |word: &str| word.parse().map(Duration::from_millis);
        match words[..] {
            ["take", name] => self.take(name).await,
            ["give", name, pause] => self.give(name, Duration::from_micros(pause.parse()?)).await,
            ["herd", name, tasks, during] => self.herd(name, tasks.parse()?, ms(during)?).await,
            ["turns", name, tasks, during] => self.turns(name, tasks.parse()?, ms(during)?).await,
            _ => Err("there is no such request".into()),
        }
    }
}

async fn contend(
    manager: LockManager,
    name: String,
    task: u32,
    until_ns: u64,
) -> std::result::Result<Vec<Section>, rslock::LockError> {
    let mut seen = Vec::new();
    while now_ns() < until_ns {
        let lock = manager.acquire(name.as_str(), LEASE).await?;
        let got_ns = now_ns();
        lock.release().await;
        if got_ns < until_ns {
            seen.push((got_ns, task));
        }
    }
    Ok(seen)
}

/// Nanoseconds of a clock that all processes of the machine share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn version() -> Result<&'static str> {
    let lock_file = include_str!("../Cargo.lock");
    let package = lock_file.split_once("name = \"rslock\"\nversion = \"").ok_or("it is in the lock file")?.1;
    Ok(package.split('"').next().unwrap_or_default())
}

fn main() -> Result<()> {
    let url = std::env::args().nth(1).ok_or("which server?")?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut driver = Driver { manager: LockManager::new(vec![url]), locks: BTreeMap::new() };
    println!("ready rslock {} {}", version()?, now_ns());
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line == "stop" {
            break;
        }
        match runtime.block_on(driver.answer(&line)) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error}"),
        }
    }
    Ok(())
}
