//! Clients of both sides that count together: under the lock, each reads a number and writes it back one greater.
//!
//! Owns the clients and the proof: two holders at once read the same number. The lock must also go to and fro between the
//! libraries, or they have not contended.

use std::iter;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use leasehold_testkit::RedisServer;

use crate::driver::{Answer, Count, Driver};
use crate::ground::NAME;
use crate::neighbour::{Format, Neighbour, OURS};
use crate::wire::Wire;

/// The number's key.
const NUMBER: &str = "number";
/// The lease of all of them: none shall end by it.
const LEASE: Duration = Duration::from_secs(20);
/// In how many steps the lock has to go from one library to another once: less often, they did not contend.
const CONTENDED: usize = 50;
/// How long it may take until all have finished.
const PATIENCE: Duration = Duration::from_secs(90);

/// The clients that count together.
pub(crate) struct Crowd<'a> {
    /// The neighbours: one client each time that one stands here.
    pub(crate) theirs: Vec<&'a Neighbour>,
    /// How many clients of ours, each a process of its own.
    pub(crate) ours: u32,
    pub(crate) work: Work,
}

/// What each of them does.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Work {
    /// How often each client that counts takes the lock; by default 125 times, and 250 times one that can be entered
    /// again.
    #[arg(long)]
    pub(crate) sections: Option<u32>,
    /// How long ours pause at most after each time; theirs 40 ms.
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pub(crate) pause_ms: u64,
}

impl Crowd<'_> {
    /// Has all of them count, on a server of their own, and tells what was seen.
    pub(crate) fn count(&self) -> Result<String> {
        let server = RedisServer::start()?;
        let format = self.theirs.first().map_or(Format::String, |who| who.format);
        let sections = self.work.sections.unwrap_or(match format {
            Format::String => 125,
            Format::Hash => 250,
        });
        let ours = Neighbour::ours(format, self.work.pause_ms)?;
        let who: Vec<&Neighbour> =
            self.theirs.iter().copied().chain(iter::repeat_n(&ours, self.ours as usize)).collect();
        let start = Instant::now();
        let counts = all(&server, &who, sections)?;
        let took = start.elapsed();

        let holders = holders(who.iter().map(|who| who.name.as_str()).zip(&counts))?;
        let steps = sections as usize * counts.len();
        let number = server.cli(&["GET", NUMBER])?.ok()?.integer();
        let all = holders.len() == steps && number == i64::try_from(steps).ok();
        ensure!(all, "{} of {steps} steps were made, and the number is {number:?}", holders.len());
        let passed = holders.windows(2).filter(|pair| pair[0] != pair[1]).count();
        ensure!(passed >= steps / CONTENDED, "the lock went from one library to another {passed} times only");
        ensure!(took < PATIENCE, "it took {took:?}");
        let together = holders.iter().rposition(|who| *who == OURS).unwrap_or(0);
        let in_between = holders[..together].iter().filter(|who| **who != OURS).count();
        let (theirs, ours) = counts.split_at(self.theirs.len());
        Ok(format!(
            "{steps} of {steps} steps in {:.1} s, {passed} times from one to another; {in_between} of theirs before our \
             last; longest wait: theirs {} ms, ours {} ms",
            took.as_secs_f64(),
            longest(theirs).as_millis(),
            longest(ours).as_millis()
        ))
    }
}

/// What all of them have counted at the same time.
fn all(server: &RedisServer, who: &[&Neighbour], sections: u32) -> Result<Vec<Count>> {
    let fault = who.iter().find_map(|who| who.ours);
    let wire = fault.map(|fault| Wire::to(server, fault)).transpose()?;
    let direct = server.url();
    let planted = wire.map(|wire| wire.url());
    let way = |who: &Neighbour| planted.as_ref().filter(|_| who.name == OURS).unwrap_or(&direct);
    let drivers: Result<Vec<_>> = who.iter().map(|who| Driver::start(who, way(who), LEASE)).collect();
    let mut drivers = drivers?;
    for driver in &mut drivers {
        driver.send(&format!("count {NAME} {NUMBER} {sections} {}", LEASE.as_millis()))?;
    }
    drivers.iter_mut().zip(who).map(|(driver, who)| counted(driver, who)).collect()
}

/// What one of them has counted.
fn counted(driver: &mut Driver, who: &Neighbour) -> Result<Count> {
    match driver.answer(PATIENCE).with_context(|| format!("{} counts", who.name))? {
        Answer::Counted(count) => Ok(count),
        other => bail!("`count` was answered {other:?}"),
    }
}

/// The holder at each step, in order; fails if two steps began from the same number.
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
