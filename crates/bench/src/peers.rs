//! Other libraries beside ours, in one run on one server.
//!
//! `cargo xtask bench peers` makes their drivers ready (`benches/peers/` at the repository's root) and starts this. It
//! owns the scenario: two processes of a library that pass a lock to and fro, a herd of tasks in one process, and a
//! crowd of as many in several; in each round all libraries have their turns. What a driver does is said in
//! `benches/peers/README.md`; ours is a driver as theirs are. It installs and builds nothing.

mod contestant;
mod driver;
mod figures;
pub(crate) mod own;

use crate::meter::Machine;
use crate::report::Output;
use anyhow::{Context, Result, bail, ensure};
use contestant::{Contestant, Turn};
use figures::{Figures, Skipped};
use leasehold_testkit::{Random, RedisServer};
use std::path::PathBuf;
use std::time::Duration;

/// The shortest that a lock is held before it is passed on: long enough that the next one waits for it.
const LEAST_HOLD_MS: u64 = 5;

/// What is measured, and of whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds there are; in each, every library has a turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often two processes pass the lock on in a turn.
    #[arg(long, default_value_t = 40)]
    trials: usize,
    /// How many milliseconds the lock is held at most before it is passed on. One that polls looks again after a pause of
    /// its own: the shorter the hold is to that pause, the more of it is still to come.
    #[arg(long, default_value_t = 40)]
    hold_ms: u64,
    /// How many seconds a herd contends in a turn, and as many again a crowd.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many seconds each library runs before its first turn.
    #[arg(long, default_value_t = 30)]
    warm_up: u64,
    /// Where the drivers are, each in a directory called like its library.
    #[arg(long, hide = true)]
    drivers: PathBuf,
    /// A library beside ours.
    #[arg(long, hide = true)]
    peer: Vec<String>,
    /// A library that cannot be measured here, and the program that it lacks, as `redisson:mvn`.
    #[arg(long, hide = true)]
    skipped: Vec<Skipped>,
}

/// Measures, and prints a line for each library, ours first.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.trials > 0 && options.seconds > 0, "there is nothing to measure");
    let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
    let random = Random::from_env();
    let mut all = vec![Contestant::ours(&server)?];
    for peer in &options.peer {
        all.push(Contestant::start(peer, &options.drivers, &server)?);
    }
    let (warm_up, few) = (Duration::from_secs(options.warm_up), options.trials.div_ceil(4));
    for one in &mut all {
        one.warm_up(&server, warm_up, &options.turn(&random, few));
    }
    for round in 0..options.rounds {
        let turn = options.turn(&random, options.trials);
        let count = all.len();
        for at in 0..count {
            // Who is first is not so in the next round.
            all[(round + at) % count].play(&server, &turn);
        }
    }
    all.iter_mut().for_each(Contestant::stop);
    show(&all, &Machine::with(&server)?, options)
}

fn show(all: &[Contestant], machine: &Machine, options: &Options) -> Result<()> {
    let Some(ours) = all.first() else { return Ok(()) };
    let output = &options.output;
    for one in all {
        let figures = Figures::of(one, ours, machine);
        output.print(&figures, || figures.sentence())?;
    }
    for skipped in &options.skipped {
        output.print(skipped, || skipped.sentence())?;
    }
    output.draw("peers-handover", || figures::handover_chart(all, machine))?;
    output.draw("peers-herd", || figures::herd_chart(all, machine))?;
    let troubled: Vec<&str> =
        all.iter().filter(|one| one.trouble.is_some()).map(|one| one.name.as_str()).collect();
    if !troubled.is_empty() {
        bail!("not measured to the end: {}", troubled.join(", "));
    }
    Ok(())
}

impl Options {
    /// What everybody does in a round: all get the same pauses.
    fn turn(&self, random: &Random, trials: usize) -> Turn {
        let more_us = 1000 * self.hold_ms.saturating_sub(LEAST_HOLD_MS);
        let hold = || 1000 * LEAST_HOLD_MS + random.below(more_us + 1);
        Turn { holds_us: (0..trials).map(|_| hold()).collect(), herd: Duration::from_secs(self.seconds) }
    }
}
