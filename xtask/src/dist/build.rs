//! Builds the program in the profile `dist`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Plan;
use crate::shell;

/// Builds the program into a directory, and returns its file.
pub(super) fn program(plan: &Plan, directory: &Path) -> Result<PathBuf> {
    let mut build =
        shell::cargo(["build", "--locked", "--profile", "dist", "--package", "leasehold-cli", "--target"]);
    build.arg(&plan.target).arg("--target-dir").arg(directory);
    // Where the sources are is not in the program: neither of this project, nor of others, nor of their C.
    let places = [(shell::root().to_owned(), "/leasehold"), (cargo_home()?, "/cargo")];
    let of_rust = places.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let of_c = places.iter().map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
    build.env("CARGO_ENCODED_RUSTFLAGS", of_rust.collect::<Vec<_>>().join("\u{1f}"));
    build.env("CFLAGS", of_c.collect::<Vec<_>>().join(" "));
    shell::run(plan.timed(build))?;
    Ok(directory.join(&plan.target).join("dist/leasehold"))
}

/// Builds it a second time from nothing, in another directory, and compares the two.
pub(super) fn compare(plan: &Plan, first: &Path) -> Result<()> {
    let directory = shell::target_directory().join("dist-again");
    if directory.is_dir() {
        fs::remove_dir_all(&directory)?;
    }
    let second = program(plan, &directory)?;
    let is_same = fs::read(first)? == fs::read(&second)?;
    if !is_same {
        bail!("two builds differ: {} and {}", first.display(), second.display());
    }
    Ok(fs::remove_dir_all(&directory)?)
}

fn cargo_home() -> Result<PathBuf> {
    let home = || env::home_dir().map(|home| home.join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("there is no home of cargo")
}
