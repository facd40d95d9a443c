//! `cargo xtask bench SCENARIO`: the measuring program, built in release mode.

use anyhow::Result;

use crate::{install, shell};

/// Installs what is missing and runs a scenario. All arguments go to the measuring program.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    let mut bench = shell::cargo(["run", "--quiet", "--release", "--package", "leasehold-bench", "--"]);
    bench.args(arguments);
    shell::run(bench)
}
