//! `cargo xtask test`: all tests, with what they need installed first.

use anyhow::Result;

use crate::{install, shell};

/// Installs what is missing and runs all tests. Further arguments go to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    install::openssl()?;
    let mut targets = shell::cargo(["test", "--workspace", "--all-targets"]);
    targets.args(arguments);
    shell::run(targets)?;
    // `--all-targets` leaves the examples in the docs out.
    let mut examples = shell::cargo(["test", "--workspace", "--doc"]);
    examples.args(arguments);
    shell::run(examples)
}
