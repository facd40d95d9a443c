//! `cargo xtask audit`: licences, bans, sources and advisories of the dependencies.

use anyhow::{Result, bail};

use crate::shell;

/// Runs cargo-deny by deny.toml, and installs it first if it is missing.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let [first, ..] = arguments {
        bail!("audit takes no arguments, but was given `{first}`");
    }
    if shell::find("cargo-deny").is_none() {
        eprintln!("xtask: cargo-deny is not installed; installing it, which takes a few minutes");
        shell::run(shell::cargo(["install", "cargo-deny", "--locked"]))?;
    }
    // Separate, since only the advisories need the network: the rest is checked without it.
    let own = shell::status(shell::cargo(["deny", "check", "licenses", "bans", "sources"]))?;
    let advisories = shell::status(shell::cargo(["deny", "check", "advisories"]))?;
    match (own.success(), advisories.success()) {
        (true, true) => Ok(()),
        (false, true) => bail!("licences, bans or sources failed; no advisory applies"),
        (true, false) => bail!(
            "licences, bans and sources are in order, but the advisories check FAILED: see above whether an advisory \
             applies or the database could not be fetched. In either case this is no pass"
        ),
        (false, false) => bail!("licences, bans or sources failed, and so did the advisories check"),
    }
}
