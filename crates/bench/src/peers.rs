//! Other libraries beside ours, in one run on one server.
//!
//! `cargo xtask bench peers` makes their drivers ready (`benches/peers/` at the repository's root) and starts this. It
//! owns the scenario: two processes of a library that pass a lock to and fro, a herd of tasks in one process, and a
//! crowd of as many in several; in each round all libraries have their turns. What a driver does is in
//! `benches/peers/README.md`; ours is a driver as theirs are. It installs and builds nothing.

mod contestant;
mod driver;
mod figures;
mod machine;
pub(crate) mod own;

use anyhow::{Result, bail};
use contestant::{Contestant, Turn};
use figures::{Figures, Skipped};
use leasehold_testkit::{Random, RedisServer};
use machine::Machine;
use std::path::PathBuf;

/// The shortest that a lock is held which is passed on, so that the next one waits, and how much longer it may be:
/// one that polls is then met at any time between two tries.
const HOLD_US: (u64, u64) = (5_000, 35_000);

/// What is measured, and of whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object a line and library.
    #[arg(long)]
    json: bool,
    /// How many rounds there are; in each, every library has a turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often two processes pass the lock on in a turn.
    #[arg(long, default_value_t = 40)]
    trials: usize,
    /// How long a herd contends in a turn, and as long again a crowd.
    #[arg(long, default_value_t = 3000)]
    herd_ms: u64,
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
pub(crate) fn run(args: &Args) -> Result<()> {
    let server = RedisServer::builder().pinned(0).start()?;
    let mut all = vec![Contestant::ours(&server)?];
    for peer in &args.peer {
        eprintln!("peers: starting {peer}");
        all.push(Contestant::start(peer, &args.drivers, &server)?);
    }
    let random = Random::from_env();
    all.iter_mut().try_for_each(|one| one.warm_up(&server, &args.turn(&random, args.trials / 4 + 1)))?;
    for round in 0..args.rounds {
        let turn = args.turn(&random, args.trials);
        let count = all.len();
        for at in 0..count {
            all[(round + at) % count].play(&server, &turn);
        }
    }
    all.iter_mut().for_each(Contestant::stop);
    report(&all, &Machine::with(&server)?, args)
}

fn report(all: &[Contestant], machine: &Machine, args: &Args) -> Result<()> {
    let Some(ours) = all.first() else { return Ok(()) };
    for one in all {
        Figures::of(one, ours, args.herd_ms, machine).print(args.json);
    }
    args.skipped.iter().for_each(|skipped| skipped.print(args.json));
    let troubled: Vec<&str> =
        all.iter().filter(|one| one.trouble.is_some()).map(|one| one.name.as_str()).collect();
    if !troubled.is_empty() {
        bail!("not measured to the end: {}", troubled.join(", "));
    }
    Ok(())
}

impl Args {
    /// What everybody does in a round: all get the same pauses.
    fn turn(&self, random: &Random, trials: usize) -> Turn {
        let hold = || HOLD_US.0 + random.below(HOLD_US.1);
        Turn { holds_us: (0..trials).map(|_| hold()).collect(), herd_ms: self.herd_ms }
    }
}
