//! `cargo xtask sim`: the simulated world, built in release mode.

use anyhow::Result;

use crate::shell;

/// Runs the world. All arguments go to its program, which tells how it is used.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut sim = shell::cargo([
        "run",
        "--quiet",
        "--release",
        "--package",
        "leasehold-sim",
        "--bin",
        "leasehold-sim",
        "--",
    ]);
    sim.args(arguments);
    shell::run(sim)
}
