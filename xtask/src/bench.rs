//! `cargo xtask bench SCENARIO`: the measuring program, built in release mode.

use anyhow::Result;

use crate::{install, peers, shell};

/// Installs what is missing and runs a scenario. All arguments go to the measuring program.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    let mut bench = shell::cargo(["run", "--quiet", "--release", "--package", "leasehold-bench", "--"]);
    match arguments.split_first() {
        Some((scenario, rest)) if scenario == "peers" => bench.arg(scenario).args(peers::arguments(rest)?),
        _ => bench.args(arguments),
    };
    shell::run(bench)
}
