//! `cargo xtask audit`: licences, bans, sources and advisories of the dependencies.

use anyhow::{Result, bail};

use crate::{install, shell};

/// Runs cargo-deny by deny.toml, and installs it first if it is missing.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let [first, ..] = arguments {
        bail!("audit takes no arguments, but was given `{first}`");
    }
    install::cargo_program("cargo-deny")?;
    // Separate, since only the advisories need the network: the rest is checked without it.
    let is_in_order =
        shell::status(shell::cargo(["deny", "check", "licenses", "bans", "sources"]))?.success();
    let advisories = if !shell::status(shell::cargo(["deny", "fetch", "db"]))?.success() {
        Advisories::NotChecked
    } else if shell::status(shell::cargo(["deny", "check", "advisories"]))?.success() {
        Advisories::None
    } else {
        Advisories::Found
    };
    judge(is_in_order, advisories)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advisories {
    /// No advisory applies.
    None,
    Found,
    /// Their database could not be fetched.
    NotChecked,
}

/// Only a complete check is a success.
fn judge(is_in_order: bool, advisories: Advisories) -> Result<()> {
    let rest = if is_in_order { "are in order" } else { "FAILED" };
    let found = match advisories {
        Advisories::None if is_in_order => return Ok(()),
        Advisories::None => "no advisory applies",
        Advisories::Found => "an advisory applies",
        Advisories::NotChecked => {
            "advisories were NOT CHECKED: their database could not be fetched from github.com"
        }
    };
    bail!("licences, bans and sources {rest}; {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_checked_is_no_success_and_no_finding() {
        let judge =
            |is_in_order, advisories| judge(is_in_order, advisories).map_err(|error| error.to_string());
        assert_eq!(judge(true, Advisories::None), Ok(()));
        let error = judge(true, Advisories::NotChecked).expect_err("it is no success");
        assert!(
            error.starts_with("licences, bans and sources are in order; advisories were NOT CHECKED"),
            "{error}"
        );
        assert!(judge(true, Advisories::Found).expect_err("a finding").ends_with("an advisory applies"));
        assert!(judge(false, Advisories::None).expect_err("a finding").contains("FAILED"));
    }
}
