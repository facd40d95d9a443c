//! Other libraries beside Leasehold, in one run on one server.
//!
//! `cargo xtask bench peers` prepares the drivers (`drivers/` at the repository's root) and starts this. It owns the
//! scenario: two processes of a library hand over a lock; many tasks contend for one lock, in one process and in several.
//! Each round measures every library. Leasehold has a driver as well, with the protocol of `drivers/README.md`. Nothing is
//! installed or built here.

mod driver;
mod figures;
pub(crate) mod leasehold_driver;
mod peer;

use crate::launch::start_server;
use crate::meter::Machine;
use crate::report::Output;
use anyhow::{Result, bail, ensure};
use figures::{Figures, Skipped};
use leasehold_testkit::Random;
use peer::{Peer, RoundPlan};
use std::path::PathBuf;
use std::time::Duration;

/// The shortest hold before a hand-off: long enough that the next process waits.
const LEAST_HOLD_MS: u64 = 5;

/// What is measured, and of which libraries.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds there are; each measures every library.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often two processes hand over the lock in a round.
    #[arg(long, default_value_t = 40)]
    trials: usize,
    /// How many milliseconds the lock is held at most before a hand-off. A library that polls pauses between tries: the
    /// shorter the hold, the more of that pause is left at the release.
    #[arg(long, default_value_t = 40)]
    hold_ms: u64,
    /// How many seconds the tasks contend in a round, in one process and again in several.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many seconds each library runs before the first round.
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
    let server = start_server()?;
    let random = Random::from_env();
    let mut all = vec![Peer::leasehold(&server)?];
    for peer in &options.peer {
        all.push(Peer::start(peer, &options.drivers, &server)?);
    }
    let (warm_up, few) = (Duration::from_secs(options.warm_up), options.trials.div_ceil(4));
    for peer in &mut all {
        peer.warm_up(&server, warm_up, &options.plan(&random, few));
    }
    for round in 0..options.rounds {
        let plan = options.plan(&random, options.trials);
        let count = all.len();
        for at in 0..count {
            // Each round begins with another library.
            all[(round + at) % count].measure_round(&server, &plan);
        }
    }
    all.iter_mut().for_each(Peer::stop);
    show(&all, &Machine::with(&server)?, options)
}

fn show(all: &[Peer], machine: &Machine, options: &Options) -> Result<()> {
    let Some(leasehold) = all.first() else { return Ok(()) };
    let output = &options.output;
    for peer in all {
        let figures = Figures::of(peer, leasehold, machine);
        output.print(&figures, || figures.sentence())?;
    }
    for skipped in &options.skipped {
        output.print(skipped, || skipped.sentence())?;
    }
    output.draw("peers-handover", || figures::handover_chart(all, machine))?;
    output.draw("peers-herd", || figures::herd_chart(all, machine))?;
    let failed: Vec<&str> =
        all.iter().filter(|peer| peer.failure.is_some()).map(|peer| peer.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("not measured in all rounds: {}", failed.join(", "));
    }
    Ok(())
}

impl Options {
    /// The plan of a round, the same for all libraries.
    fn plan(&self, random: &Random, trials: usize) -> RoundPlan {
        let more_us = 1000 * self.hold_ms.saturating_sub(LEAST_HOLD_MS);
        let hold = || 1000 * LEAST_HOLD_MS + random.below(more_us + 1);
        RoundPlan {
            holds_us: (0..trials).map(|_| hold()).collect(),
            contention: Duration::from_secs(self.seconds),
        }
    }
}
