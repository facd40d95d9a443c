//! `cargo xtask nightly`: what takes hours.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use crate::{bench, dist, features, fuzz, history, mutate, package, shuttle, sim, verify};

/// In how many nights all mutants of the scripts are run.
const SHARDS: u64 = 50;

/// Runs one after the other; one that fails stops no other.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let [first, ..] = arguments {
        bail!("nightly takes no arguments, but was given `{first}`");
    }
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    // Another part of the scripts' mutants each night.
    let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    let steps: [(&str, Result<()>); 10] = [
        ("package", package::run(&words("--verify"))),
        ("features", features::run(&[])),
        ("dist", dist::run(&words("--install --twice"))),
        ("verify", verify::run(&[])),
        ("history", history::run(&[])),
        ("sim", sim::run(&words("--seeds 100000"))),
        ("fuzz", fuzz::run(&words("--for 1h --total"))),
        ("mutate", mutate::run(&words(&format!("lua --shard {}/{SHARDS}", day % SHARDS)))),
        ("shuttle", shuttle::run(&words("--iterations 1000000"))),
        ("bench", bench::run(&words("all"))),
    ];
    let mut failed = Vec::new();
    for (name, result) in steps {
        if let Err(error) = result {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
