//! The commands of the project, as `cargo xtask COMMAND`.
//!
//! Owns what a machine needs before the project's own programs run, and which tests make up a lane. Does not own any
//! test or measurement: these are in the crates.

mod api;
mod audit;
mod bench;
mod book;
mod cargo;
mod circles;
mod dist;
mod driver;
mod extension;
mod features;
mod fuzz;
mod history;
mod install;
mod interop;
mod lane;
mod mutants;
mod mutate;
mod nightly;
mod package;
mod parts;
mod peers;
mod processor;
mod prose;
mod quoted_tests;
mod recording;
#[cfg(test)]
mod runbook;
mod rust_source;
mod servers;
mod shell;
mod shuttle;
mod sim;
#[cfg(test)]
mod track_record;
mod verify;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

commands:
  check    what needs no server: format, lints, import circles, prose, and the tests of the locks in memory
  test     install what is missing, then run `check`, the tests on real servers, the program and the examples;
           `test --all` adds what CI runs besides, `test NAME` runs the tests with NAME in their name, and
           `test --server valkey-9.1 NAME` runs them on another version of a server
  nightly  the long proofs, simulations and benchmarks, for hours

  circles  find files of a crate that import each other in a circle (`circles leasehold`)
  prose    check spelling and wording (`prose docs crates/core`), or count what is left (`prose --count`)

  bench    measure a scenario as a ratio to the limits of this machine (`bench handoff --json`), or all of them
           (`bench all`), or beside other libraries (`bench peers rslock redisson`)
  sim      run the simulated environment (`sim --seeds 5000`), or one seed with its trace (`sim --seed 7`); also `--two-primaries`, `--quorum`
  shuttle  explore the races between the engine's threads (`shuttle --iterations 1000000`)
  fuzz     run the fuzz targets, guided by coverage (`fuzz server --for 10m`), or repeat a finding
           (`fuzz server --repeat FILE`)
  verify   run proofs at their full length (`verify rounds quorum split rotation cluster cutoffs scripts board
           valkey versions mutants`)
  history  judge recorded histories with Porcupine (`history run.jsonl`), or compare it with our checks on planted ones
  mutate   change the code a little, and see that a test finds it (`mutate lua`, `mutate core`, `mutate engine --shard 0/8`);
           `mutate diff` does so for what was committed since origin/main, or since another base (`--base HEAD~3`)
  interop  test other libraries' locks against ours (`interop redis-py redsync node-redlock rslock`)
  book     build the documentation as a book in target/book, and check its links and those of all documents
  audit    check licences, bans, sources and advisories of all dependencies with cargo-deny
  package  check that the published crates can be packed, and contain their README and licences; `package --verify` also builds
           what is packed, and `package --profile` prepares the program's manifest for a release
  features check that the published crates compile with each of their features, and for Windows
  api      compare the public API of the libraries with docs/reference/api; `api --write` writes that, and `api --breaks` looks for
           what breaks programs written for the last release (`api --breaks REVISION` for a commit)
  dist     make and check the files of a release: packages, archives, a list of components, checksums (`dist --install` also
           installs and removes them, `dist --twice` builds twice and compares, `dist --target x86_64-unknown-linux-musl`)
  recording  record the program in two terminals, as the picture docs/pictures/run.svg";

fn main() -> ExitCode {
    match run(env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<String>) -> Result<()> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    match command.as_deref() {
        Some("check") => lane::check(&rest),
        Some("test") => lane::test(&rest),
        Some("nightly") => nightly::run(&rest),
        Some("circles") => circles::run(&rest),
        Some("prose") => prose::run(&rest),
        Some("shuttle") => shuttle::run(&rest),
        Some("bench") => bench::run(&rest),
        Some("sim") => sim::run(&rest),
        Some("fuzz") => fuzz::run(&rest),
        Some("verify") => verify::run(&rest),
        Some("history") => history::run(&rest),
        Some("mutate") => mutate::run(&rest),
        Some("book") => book::run(&rest),
        Some("interop") => interop::run(&rest),
        Some("api") => api::run(&rest),
        Some("features") => features::run(&rest),
        Some("audit") => audit::run(&rest),
        Some("package") => package::run(&rest),
        Some("dist") => dist::run(&rest),
        Some("recording") => recording::run(&rest),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("there is no command `{other}`\n\n{USAGE}"),
        None => bail!("no command was given\n\n{USAGE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_named_and_the_known_ones_are_listed() {
        for arguments in [&["tset"][..], &[]] {
            let error =
                run(arguments.iter().map(ToString::to_string).collect()).expect_err("it is no command");
            assert!(error.to_string().contains("commands:\n  check"), "{error}");
        }
    }
}
