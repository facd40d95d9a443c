//! Runs the simulated world: many seeds, or one seed with its trace, or each mutant until a check finds it.
//!
//! `cargo xtask sim` is the usual way to it.

use leasehold_sim::{Counts, FaultProfile, Mutant, Outcome, Run, html, run};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: sim [--two-primaries|--quorum] [--seeds N] [--from SEED]        run N seeds, starting at SEED (default 1)
       sim [--two-primaries|--quorum] --seed SEED [--mutant MUTANT]    run one seed, and print its trace
           [--html FILE]                                           or write it as a page with a time line
       sim --mutants [--mutant MUTANT] [--seeds N]                     run each mutant, or one, until a check finds it, for at most N seeds

--two-primaries has a primary and a replica, and partitions that make both a primary. --quorum has five nodes that are away
now and then, and forget; each client has a quorum of them. Otherwise there is one server. A
mutant selects the world that can show it. N is 5000 if it is not given, and 20000 for mutants.";

/// A seed that takes longer is named. It is one in some 10 000.
const SLOW: Duration = Duration::from_secs(10);

/// The command-line arguments.
#[derive(Default)]
struct Args {
    seeds: Option<u64>,
    from: Option<u64>,
    seed: Option<u64>,
    mutant: Option<Mutant>,
    mutants: bool,
    two_primaries: bool,
    quorum: bool,
    html: Option<PathBuf>,
}

impl Args {
    /// The run of a seed.
    fn run(&self, seed: u64) -> Run {
        match self.mutant {
            Some(mutant) => Run::with_mutant(seed, mutant),
            None if self.two_primaries => Run::with_two_primaries(seed),
            None if self.quorum => Run::with_quorum(seed),
            None => Run::new(seed),
        }
    }
}

fn main() -> ExitCode {
    let result = match parse(std::env::args().skip(1)) {
        Ok(args) => match args.seed {
            Some(seed) => show(args.run(seed), args.html.as_deref()),
            None if args.html.is_some() => Err(format!("--html needs --seed\n\n{USAGE}")),
            None if args.mutants => find_mutants(args.mutant, args.seeds.unwrap_or(20_000)),
            None => run_many(&args, args.from.unwrap_or(1), args.seeds.unwrap_or(5_000)),
        },
        Err(error) => Err(format!("{error}\n\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args::default();
    while let Some(argument) = arguments.next() {
        let mut number = |of: &str| {
            let text = arguments.next().unwrap_or_default();
            text.replace('_', "").parse().map_err(|_| format!("{of} needs a number, not `{text}`"))
        };
        match argument.as_str() {
            "--seeds" => args.seeds = Some(number("--seeds")?),
            "--from" => args.from = Some(number("--from")?),
            "--seed" => args.seed = Some(number("--seed")?),
            "--mutants" => args.mutants = true,
            "--two-primaries" => args.two_primaries = true,
            "--quorum" => args.quorum = true,
            "--html" => args.html = Some(arguments.next().ok_or("--html needs a file")?.into()),
            "--mutant" => {
                let name = arguments.next().unwrap_or_default();
                let mutant = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name);
                args.mutant =
                    Some(mutant.ok_or_else(|| format!("no mutant is named `{name}`: {:?}", Mutant::ALL))?);
            }
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(args)
}

/// Runs one seed, and prints its trace, or writes it as a page.
fn show(one: Run, page: Option<&Path>) -> Result<(), String> {
    let one = Run { with_trace: true, ..one };
    let outcome = run(&one);
    if let Some(path) = page {
        let written = std::fs::write(path, html::page(&one, &outcome));
        written.map_err(|error| format!("{} was not written: {error}", path.display()))?;
        println!("{}: {} events", path.display(), outcome.trace.len());
    } else {
        for line in &outcome.trace {
            println!("{line}");
        }
    }
    println!("\nfaults: {:?}; {:?}", outcome.profile, outcome.counts);
    match outcome.violation {
        Some(violation) => Err(format!("{}: at {}: {}", violation.check, violation.at, violation.what)),
        None => Ok(()),
    }
}

/// Runs one seed. A panic is a violation as well.
fn run_one(args: &Run) -> Result<Outcome, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(args))).map_err(|_| "it panicked".to_owned())?;
    match &outcome.violation {
        Some(violation) => Err(format!("{}: at {}: {}", violation.check, violation.at, violation.what)),
        None => Ok(outcome),
    }
}

/// The totals of many runs.
#[derive(Default)]
struct Sum {
    profiles: BTreeMap<&'static str, u64>,
    counts: Counts,
    failures: Vec<(u64, String)>,
}

/// Runs many seeds, on as many threads as there are cores.
fn run_many(args: &Args, from: u64, seeds: u64) -> Result<(), String> {
    let (next, is_stopped, sum, started) =
        (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(Sum::default()), Instant::now());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut own = Sum::default();
                while !is_stopped.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= from.saturating_add(seeds) {
                        break;
                    }
                    let began = Instant::now();
                    let outcome = run_one(&args.run(seed));
                    if began.elapsed() > SLOW {
                        eprintln!("seed {seed} took {:.0?}", began.elapsed());
                    }
                    match outcome {
                        Ok(outcome) => {
                            *own.profiles.entry(name(outcome.profile)).or_default() += 1;
                            own.counts += outcome.counts;
                        }
                        Err(what) => {
                            eprintln!("seed {seed}: {what}");
                            own.failures.push((seed, what));
                            is_stopped.fetch_or(own.failures.len() >= 5, Relaxed);
                        }
                    }
                    if (seed - from + 1).is_multiple_of(100_000) {
                        eprintln!("{} seeds in {:.0?}", seed - from + 1, started.elapsed());
                    }
                }
                let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                sum.counts += own.counts;
                sum.failures.append(&mut own.failures);
                for (profile, runs) in own.profiles {
                    *sum.profiles.entry(profile).or_default() += runs;
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Fewer than asked for, if so many failed that the run was stopped.
    let ran = sum.profiles.values().sum::<u64>() + sum.failures.len() as u64;
    println!("{ran} seeds from {from} in {:.1?}: {:?}\n{:#?}", started.elapsed(), sum.profiles, sum.counts);
    match sum.failures.iter().min() {
        None => Ok(()),
        Some((seed, what)) => Err(format!(
            "{} seeds failed, the first is {seed}: {what}\nrepeat it with `{}`",
            sum.failures.len(),
            html::command(&args.run(*seed)),
        )),
    }
}

fn name(profile: FaultProfile) -> &'static str {
    match profile {
        FaultProfile::None => "no faults",
        FaultProfile::Tolerated => "tolerated faults",
        FaultProfile::DataLoss => "data loss",
        FaultProfile::ClockFaults => "clock faults",
        FaultProfile::TwoPrimaries => "two primaries",
    }
}

/// Runs each mutant, or one, until a check finds it.
fn find_mutants(only: Option<Mutant>, seeds: u64) -> Result<(), String> {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL.into_iter().filter(|mutant| only.is_none_or(|only| only == *mutant)) {
        let runs = (1..=seeds).map(|seed| Run::with_mutant(seed, mutant));
        let found = runs
            .filter(|args| mutant.applies_to(args))
            .find_map(|args| run_one(&args).err().map(|what| (args.seed, what)));
        if let Some((seed, what)) = found {
            println!("{mutant:?}: seed {seed}: {what}");
        } else {
            println!("{mutant:?}: not found in {seeds} seeds");
            missed.push(mutant);
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {missed:?}")) }
}
