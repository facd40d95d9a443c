//! Clients of theirs and of ours that count together: read a number, write it back one greater, under the lock.
//!
//! Owns the crowd and the proof: a step is lost where two are in at once, and each client's steps must lie among those
//! of all others, or they have not contended.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
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
/// How long it may take until all have finished.
const PATIENCE: Duration = Duration::from_secs(90);

/// Who counts together.
pub(crate) struct Crowd<'a> {
    /// The neighbours: one client each time that one stands here.
    pub(crate) theirs: Vec<&'a Neighbour>,
    /// How many clients of ours.
    pub(crate) ours: u32,
    /// How often each takes the lock.
    pub(crate) sections: u32,
}

impl Crowd<'_> {
    /// Has all of them count, on a server of their own, and tells what was seen.
    pub(crate) fn count(&self) -> Result<String> {
        let server = RedisServer::start()?;
        let url = server.url();
        let drivers: Result<Vec<_>> = self.theirs.iter().map(|who| Driver::start(who, &url)).collect();
        let mut drivers = drivers?;
        let start = Instant::now();
        for driver in &mut drivers {
            driver.tell(&format!("count {NAME} {NUMBER} {} {}", self.sections, LEASE.as_millis()))?;
        }
        let (theirs, ours) = thread::scope(|scope| {
            let ours: Vec<_> =
                (0..self.ours).map(|_| scope.spawn(|| count_ours(&server, self.sections))).collect();
            let theirs: Result<Vec<_>> =
                drivers.iter_mut().zip(&self.theirs).map(|(driver, who)| counted(driver, who)).collect();
            let ours: Result<Vec<_>> = ours
                .into_iter()
                .map(|ours| {
                    ours.join().map_err(|_| anyhow!("one of ours panicked"))?.context("one of ours counts")
                })
                .collect();
            Ok::<_, anyhow::Error>((theirs?, ours?))
        })?;
        let took = start.elapsed();
        let number = server.cli(&["GET", NUMBER])?.ok()?.integer().unwrap_or(0).unsigned_abs();
        let steps = u64::from(self.sections) * (theirs.len() + ours.len()) as u64;
        ensure!(number == steps, "{steps} steps were counted as {number}: two were in at once");
        contended(theirs.iter().chain(&ours))?;
        ensure!(took < PATIENCE, "it took {took:?}");
        Ok(format!(
            "{number} of {steps} steps in {:.1} s; the longest wait: theirs {} ms, ours {} ms",
            took.as_secs_f64(),
            longest(&theirs).as_millis(),
            longest(&ours).as_millis()
        ))
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
fn count_ours(server: &RedisServer, sections: u32) -> Result<Count> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut redis = server.connect()?;
    runtime.block_on(async {
        let client = Client::connect(&server.url()).await?;
        let mutex = client.mutex(NAME)?.lease(LEASE).share(FREE_EVERY);
        let mut count = Count { first: 0, last: 0, longest: Duration::ZERO };
        for section in 0..sections {
            let asked = Instant::now();
            let guard = mutex.acquire_timeout(PATIENCE).await?;
            count.longest = count.longest.max(asked.elapsed());
            count.last = redis.call(&["GET", NUMBER])?.ok()?.integer().unwrap_or(0).unsigned_abs();
            if section == 0 {
                count.first = count.last;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            redis.call(&["SET", NUMBER, &(count.last + 1).to_string()])?.ok()?;
            guard.release().await?;
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..10_000))).await;
        }
        Ok(count)
    })
}

/// Fails unless the steps of each overlap those of all others.
fn contended<'a>(counts: impl Iterator<Item = &'a Count> + Clone) -> Result<()> {
    let latest_first = counts.clone().map(|count| count.first).max();
    let earliest_last = counts.map(|count| count.last).min();
    ensure!(
        latest_first < earliest_last,
        "one began at {latest_first:?} when another had ended at {earliest_last:?}"
    );
    Ok(())
}

fn longest(counts: &[Count]) -> Duration {
    counts.iter().map(|count| count.longest).max().unwrap_or_default()
}
