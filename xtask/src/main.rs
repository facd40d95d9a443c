//! The project's chores, as `cargo xtask <chore>`.
//!
//! Owns what a machine needs before the project's own commands run, and which of these make up a chore. What is tested
//! and measured lives in the crates.

mod audit;
mod bench;
mod driver;
mod install;
mod interop;
mod peers;
mod shell;
mod shuttle;
mod sim;
mod test;
mod verify;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  test     install what the tests need, then run all of them, examples in the docs included
  shuttle  explore the races between the engine's threads (`shuttle --iterations 1000000`)
  bench    measure a scenario as a ratio to the limits of this machine (`bench handoff --json`), or all of them
           (`bench all`), or beside other libraries (`bench peers rslock redisson`)
  sim      run the simulated world (`sim --seeds 5000`), or one seed with its trace (`sim --seed 7`)
  verify   run proofs at their full length (`verify rounds quorum cluster cutoffs scripts valkey`),
           of which `test` has a short form, or none
  interop  try other libraries' locks against ours (`interop redis-py redsync node-redlock rslock`)
  audit    check licences, bans, sources and advisories of all dependencies with cargo-deny";

fn main() -> ExitCode {
    match run(env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line a chore, each with a file of its own.
fn run(arguments: Vec<String>) -> Result<()> {
    let mut arguments = arguments.into_iter();
    let chore = arguments.next();
    let rest: Vec<String> = arguments.collect();
    match chore.as_deref() {
        Some("test") => test::run(&rest),
        Some("shuttle") => shuttle::run(&rest),
        Some("bench") => bench::run(&rest),
        Some("sim") => sim::run(&rest),
        Some("verify") => verify::run(&rest),
        Some("interop") => interop::run(&rest),
        Some("audit") => audit::run(&rest),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("there is no chore `{other}`\n\n{USAGE}"),
        None => bail!("which chore?\n\n{USAGE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_chore_is_named_and_the_known_ones_are_listed() {
        for arguments in [&["tset"][..], &[]] {
            let error = run(arguments.iter().map(ToString::to_string).collect()).expect_err("it is no chore");
            assert!(error.to_string().contains("chores:\n  test"), "{error}");
        }
    }
}
