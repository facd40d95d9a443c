//! Programs that extend cargo, each at one version: what they find depends on it.

use std::process::Command;

use anyhow::Result;

use crate::{install, shell};

/// `cargo NAME`, by the program `cargo-NAME`, which is installed into the target directory if it is missing. It is started without
/// cargo, which could find another version first.
pub(crate) fn cargo(name: &str, version: &str) -> Result<Command> {
    let mut extension = shell::in_root(install::cargo_program_at(&format!("cargo-{name}"), version)?);
    extension.arg(name);
    Ok(extension)
}
