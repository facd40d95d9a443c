//! Programs that extend cargo, each at one version: what they find depends on it.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{install, shell};

/// `cargo NAME`, by the program `cargo-NAME`, which is installed into the target directory if it is missing.
pub(crate) fn cargo(name: &str, version: &str) -> Result<Command> {
    let program = install::cargo_program_at(&format!("cargo-{name}"), version)?;
    let directory = program.parent().context("a program is in a directory")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([directory].into_iter().chain(env::split_paths(&path)))?;
    let mut cargo = shell::cargo([name]);
    cargo.env("PATH", path);
    Ok(cargo)
}
