//! Other libraries beside Leasehold, in one run on one server.
//!
//! `cargo xtask bench peers` prepares the drivers (`drivers/` at the repository's root) and starts this. It owns the
//! scenario: two processes of a library hand a lock to and fro; many tasks contend for one lock, in one process and in
//! several. In each round every library takes a turn. Leasehold has a driver as well, with the protocol of
//! `drivers/README.md`. Nothing is installed or built here.

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

/// The shortest hold before a hand-over: long enough that the next process waits.
const LEAST_HOLD_MS: u64 = 5;

/// What is measured, and of which libraries.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds there are; in each, every library takes a turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often two processes hand the lock over in a turn.
    #[arg(long, default_value_t = 40)]
    trials: usize,
    /// How many milliseconds the lock is held at most before a hand-over. A library that polls pauses between tries: the
    /// shorter the hold, the more of that pause is left at the release.
    #[arg(long, default_value_t = 40)]
    hold_ms: u64,
    /// How many seconds the tasks contend in a turn, in one process and again in several.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many seconds each library runs before its first turn.
    #[arg(long, default_value_t = 30)]
    warm_up: u64,
    /// The directory with the drivers, each in a directory with the name of its library.
    #[arg(long, hide = true)]
    drivers: PathBuf,
    /// A library to measure.
    #[arg(long, hide = true)]
    peer: Vec<String>,
    /// A library that cannot be measured here and the program that is missing, as `redisson:mvn`.
    #[arg(long, hide = true)]
    skipped: Vec<Skipped>,
}

/// Measures, and prints a line for each library, Leasehold first.
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
            // Each round begins with another library.
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
        bail!("not measured in all rounds: {}", troubled.join(", "));
    }
    Ok(())
}

impl Options {
    /// The plan of a round, the same for all libraries.
    fn turn(&self, random: &Random, trials: usize) -> Turn {
        let more_us = 1000 * self.hold_ms.saturating_sub(LEAST_HOLD_MS);
        let hold = || 1000 * LEAST_HOLD_MS + random.below(more_us + 1);
        Turn { holds_us: (0..trials).map(|_| hold()).collect(), herd: Duration::from_secs(self.seconds) }
    }
}
