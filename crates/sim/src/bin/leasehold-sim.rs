//! Runs the simulated world: many seeds, or one with its trace, or until each planted bug is found.
//!
//! `cargo xtask sim` is the usual way to it.

use leasehold_sim::{Bug, Climate, Counts, Outcome, Run, run};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const USAGE: &str = "\
usage: sim [--seeds N] [--from SEED]     run N seeds (5000 if nothing is said), from SEED on (1)
       sim --seed SEED [--bug BUG]       run one seed, and show everything that happens
       sim --bugs [--bug BUG] [--seeds N]  run each planted bug, or one, until it is found, for N seeds at most";

/// What is asked for.
#[derive(Default)]
struct Asked {
    seeds: Option<u64>,
    from: Option<u64>,
    seed: Option<u64>,
    bug: Option<Bug>,
    bugs: bool,
}

fn main() -> ExitCode {
    let result = match parse(std::env::args().skip(1)) {
        Ok(asked) => match asked.seed {
            Some(seed) => show(seed, asked.bug),
            None if asked.bugs => find_bugs(asked.bug, asked.seeds.unwrap_or(1_000)),
            None => run_many(asked.from.unwrap_or(1), asked.seeds.unwrap_or(5_000)),
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

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked::default();
    while let Some(argument) = arguments.next() {
        let mut number = |of: &str| {
            let text = arguments.next().unwrap_or_default();
            text.replace('_', "").parse().map_err(|_| format!("{of} needs a number, and has `{text}`"))
        };
        match argument.as_str() {
            "--seeds" => asked.seeds = Some(number("--seeds")?),
            "--from" => asked.from = Some(number("--from")?),
            "--seed" => asked.seed = Some(number("--seed")?),
            "--bugs" => asked.bugs = true,
            "--bug" => {
                let name = arguments.next().unwrap_or_default();
                let bug = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
                asked.bug = Some(bug.ok_or_else(|| format!("no bug is called `{name}`: {:?}", Bug::ALL))?);
            }
            other => return Err(format!("what is `{other}`?")),
        }
    }
    Ok(asked)
}

/// Runs one seed, and shows everything that happens.
fn show(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let outcome = run(&Run { seed, bug, with_trace: true });
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("\n{:?} weather; {:?}", outcome.climate, outcome.counts);
    match outcome.violation {
        Some(violation) => Err(format!("{}: at {}: {}", violation.check, violation.at, violation.what)),
        None => Ok(()),
    }
}

/// A run that is wrong where it ends by a panic as well.
fn tried(asked: &Run) -> Result<Outcome, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(asked))).map_err(|_| "it panicked".to_owned())?;
    match &outcome.violation {
        Some(violation) => Err(format!("{}: at {}: {}", violation.check, violation.at, violation.what)),
        None => Ok(outcome),
    }
}

/// What many runs came to.
#[derive(Default)]
struct Sum {
    climates: BTreeMap<&'static str, u64>,
    counts: Counts,
    failures: Vec<(u64, String)>,
}

/// Runs many seeds, on as many threads as there are cores.
fn run_many(from: u64, seeds: u64) -> Result<(), String> {
    let (next, is_over, sum, started) =
        (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(Sum::default()), Instant::now());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut mine = Sum::default();
                while !is_over.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= from.saturating_add(seeds) {
                        break;
                    }
                    match tried(&Run::new(seed)) {
                        Ok(outcome) => {
                            *mine.climates.entry(name(outcome.climate)).or_default() += 1;
                            mine.counts += outcome.counts;
                        }
                        Err(what) => {
                            eprintln!("seed {seed}: {what}");
                            mine.failures.push((seed, what));
                            is_over.fetch_or(mine.failures.len() >= 5, Relaxed);
                        }
                    }
                    if (seed - from + 1).is_multiple_of(100_000) {
                        eprintln!("{} seeds in {:.0?}", seed - from + 1, started.elapsed());
                    }
                }
                let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                sum.counts += mine.counts;
                sum.failures.append(&mut mine.failures);
                for (climate, runs) in mine.climates {
                    *sum.climates.entry(climate).or_default() += runs;
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{seeds} seeds from {from} in {:.1?}: {:?}\n{:#?}", started.elapsed(), sum.climates, sum.counts);
    match sum.failures.iter().min() {
        None => Ok(()),
        Some((seed, what)) => Err(format!(
            "{} seeds failed, the first is {seed}: {what}\nsee it by `cargo xtask sim --seed {seed}`",
            sum.failures.len()
        )),
    }
}

fn name(climate: Climate) -> &'static str {
    match climate {
        Climate::Calm => "calm",
        Climate::Rough => "rough",
        Climate::Forgetful => "forgetful",
        Climate::BadClocks => "bad clocks",
    }
}

/// Runs each planted bug until it is found, or one of them.
fn find_bugs(only: Option<Bug>, seeds: u64) -> Result<(), String> {
    let mut missed = Vec::new();
    for bug in Bug::ALL.into_iter().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let runs = (1..=seeds).map(|seed| Run { seed, bug: Some(bug), with_trace: false });
        let found = runs
            .filter(|asked| bug.suits(asked))
            .find_map(|asked| tried(&asked).err().map(|what| (asked.seed, what)));
        if let Some((seed, what)) = found {
            println!("{bug:?}: seed {seed}: {what}");
        } else {
            println!("{bug:?}: not found in {seeds} seeds");
            missed.push(bug);
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {missed:?}")) }
}
