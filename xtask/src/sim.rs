//! `cargo xtask sim`: the simulated world, built in release mode.

use anyhow::Result;

use crate::shell;

/// Builds the simulator and passes all arguments to it.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut sim = shell::cargo_with_lines(["run", "--quiet", "--release", "--bin", "leasehold-sim", "--"]);
    sim.args(arguments);
    shell::run(sim)
}
