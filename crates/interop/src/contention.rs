//! Clients of theirs and of ours that count together: read a number, write it back one greater, under the lock.
//!
//! Owns the crowd and the proof: two that are in at once see the same number. And the lock must have gone to and fro
//! between the libraries, or they have not contended.

use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use leasehold::Client;
use leasehold_testkit::RedisServer;

use crate::driver::{Answer, Count, Driver};
use crate::ground::NAME;
use crate::neighbour::Neighbour;

/// The number's key.
const NUMBER: &str = "number";
/// The lease of all of them: none shall end by it.
const LEASE: Duration = Duration::from_secs(20);
/// At how many of our releases the lock is left free once for those who do not queue.
const FREE_EVERY: u32 = 4;
/// In how many steps the lock has to go from one library to another once: less often, they did not contend.
const CONTENDED: usize = 50;
/// How long it may take until all have finished.
const PATIENCE: Duration = Duration::from_secs(90);

/// Who counts together.
pub(crate) struct Crowd<'a> {
    /// The neighbours: one client each time that one stands here.
    pub(crate) theirs: Vec<&'a Neighbour>,
    /// How many clients of ours.
    pub(crate) ours: u32,
    pub(crate) work: Work,
}

/// What each of them does.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Work {
    /// How often each client that counts takes the lock.
    #[arg(long, default_value_t = 125)]
    pub(crate) sections: u32,
    /// How long ours pause at most after each time; theirs 40 ms.
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pub(crate) pause_ms: u64,
}

impl Crowd<'_> {
    /// Has all of them count, on a server of their own, and tells what was seen.
    pub(crate) fn count(&self) -> Result<String> {
        let server = RedisServer::start()?;
        let url = server.url();
        let drivers: Result<Vec<_>> = self.theirs.iter().map(|who| Driver::start(who, &url, LEASE)).collect();
        let start = Instant::now();
        let (theirs, ours) = self.all(&server, &mut drivers?)?;
        let took = start.elapsed();

        let names = self.theirs.iter().map(|who| who.name.as_str()).chain(iter::repeat("ours"));
        let holders = holders(names.zip(theirs.iter().chain(&ours)))?;
        let steps = self.work.sections as usize * (theirs.len() + ours.len());
        let number = server.cli(&["GET", NUMBER])?.ok()?.integer();
        let all = holders.len() == steps && number == i64::try_from(steps).ok();
        ensure!(all, "{} of {steps} steps were made, and the number is {number:?}", holders.len());
        let passed = holders.windows(2).filter(|pair| pair[0] != pair[1]).count();
        ensure!(passed >= steps / CONTENDED, "the lock went from one library to another {passed} times only");
        ensure!(took < PATIENCE, "it took {took:?}");
        let together = holders.iter().rposition(|who| *who == "ours").unwrap_or(0);
        let in_between = holders[..together].iter().filter(|who| **who != "ours").count();
        Ok(format!(
            "{steps} of {steps} steps in {:.1} s, {passed} times from one to another; {in_between} of theirs before our \
             last; longest wait: theirs {} ms, ours {} ms",
            took.as_secs_f64(),
            longest(&theirs).as_millis(),
            longest(&ours).as_millis()
        ))
    }

    /// What all of theirs and all of ours have counted at the same time.
    fn all(&self, server: &RedisServer, drivers: &mut [Driver]) -> Result<(Vec<Count>, Vec<Count>)> {
        for driver in &mut *drivers {
            driver.tell(&format!("count {NAME} {NUMBER} {} {}", self.work.sections, LEASE.as_millis()))?;
        }
        thread::scope(|scope| {
            let ours = (0..self.ours).map(|_| scope.spawn(|| count_ours(server, self.work)));
            let ours: Vec<_> = ours.collect();
            let theirs = drivers.iter_mut().zip(&self.theirs).map(|(driver, who)| counted(driver, who));
            let theirs: Result<Vec<_>> = theirs.collect();
            let ours = ours.into_iter().map(|ours| {
                let count = ours.join().map_err(|_| anyhow!("one of ours panicked"))?;
                count.context("one of ours counts")
            });
            let ours: Result<Vec<_>> = ours.collect();
            Ok((theirs?, ours?))
        })
    }
}

/// What one of theirs has counted.
fn counted(driver: &mut Driver, who: &Neighbour) -> Result<Count> {
    match driver.answer(PATIENCE).with_context(|| format!("{} counts", who.name))? {
        Answer::Counted(count) => Ok(count),
        other => bail!("`count` was answered {other:?}"),
    }
}

/// What one of ours counts, in a thread with a runtime and connections of its own: a process of its own but for that.
fn count_ours(server: &RedisServer, work: Work) -> Result<Count> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut redis = server.connect()?;
    runtime.block_on(async {
        let client = Client::connect(&server.url()).await?;
        let mutex = client.mutex(NAME)?.lease(LEASE).share(FREE_EVERY);
        let mut count = Count::default();
        for _ in 0..work.sections {
            let asked = Instant::now();
            let guard = mutex.acquire_timeout(PATIENCE).await?;
            count.longest = count.longest.max(asked.elapsed());
            let number = redis
                .call(&["GET", NUMBER])
                .context("to read the number")?
                .ok()?
                .integer()
                .unwrap_or(0)
                .unsigned_abs();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let next = (number + 1).to_string();
            redis.call(&["SET", NUMBER, &next]).context("to write the number")?.ok()?;
            guard.release().await?;
            count.seen.push(number);
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..=work.pause_ms * 1_000))).await;
        }
        Ok(count)
    })
}

/// Who had the lock at each step, in order; fails if two began one from the same number.
fn holders<'a>(counts: impl Iterator<Item = (&'a str, &'a Count)>) -> Result<Vec<&'a str>> {
    let mut steps: Vec<_> =
        counts.flat_map(|(who, count)| count.seen.iter().map(move |number| (*number, who))).collect();
    steps.sort_unstable();
    for pair in steps.windows(2) {
        let ((number, one), (next, other)) = (pair[0], pair[1]);
        ensure!(number != next, "two were in at once: {one} and {other} both counted from {number}");
    }
    Ok(steps.into_iter().map(|(_, who)| who).collect())
}

fn longest(counts: &[Count]) -> Duration {
    counts.iter().map(|count| count.longest).max().unwrap_or_default()
}
