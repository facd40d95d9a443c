//! `cargo xtask api`: the public API of each published library, as a listing in `docs/reference/api`, and whether it breaks what
//! was released.
//!
//! A change of the API shows as a change of these files. They are made from the documentation that rustdoc writes as JSON. Its format
//! has a number, so cargo-public-api must be of a version that reads that of the toolchain in use.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, extension, shell};

/// The version that reads what rustdoc 1.95 writes.
const CARGO_PUBLIC_API: &str = "0.52.0";
const CARGO_SEMVER_CHECKS: &str = "0.51.0";
/// The release of Rust whose rustdoc makes the listings: another one may name a few items in another way.
const RUST: &str = "rustc 1.95.";

/// Compares the listings with the code, or writes them. `--breaks` compares the code with a release.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => listings(|file, now| {
            let listed = fs::read_to_string(file).unwrap_or_default();
            if listed == now {
                return Ok(true);
            }
            print!("{}", difference(&listed, now));
            Ok(false)
        }),
        ["--write"] => listings(|file, now| {
            fs::write(file, now).with_context(|| format!("failed to write {}", file.display()))?;
            Ok(true)
        }),
        ["--breaks"] => {
            if let Some(tag) = last_tag()? {
                return breaks(&tag);
            }
            println!("skipped: there is no tag `v…` yet, so there is no release that could be broken");
            Ok(())
        }
        ["--breaks", revision] => breaks(revision),
        _ => bail!("api takes no arguments, `--write`, `--breaks`, or `--breaks REVISION`"),
    }
}

/// Makes the listing of each library, and hands it over with the path of its file; `false` if it differs.
fn listings(compare: impl Fn(&PathBuf, &str) -> Result<bool>) -> Result<()> {
    let mut version = Command::new("rustc");
    version.arg("--version");
    let version = shell::output(version)?;
    ensure!(version.starts_with(RUST), "the listings are made by {RUST}x, and this is {}", version.trim());
    let directory = shell::root().join("docs/reference/api");
    fs::create_dir_all(&directory)?;
    let mut differing = Vec::new();
    for name in cargo::metadata()?.published_libraries() {
        let json = rustdoc_json(&name)?;
        let mut list = extension::cargo("public-api", CARGO_PUBLIC_API)?;
        // Without what the compiler derives and implements by itself.
        list.args(["-sss", "--color", "never", "--rustdoc-json"]).arg(json);
        let now = shell::output(list)?;
        if !compare(&directory.join(format!("{name}.txt")), &now)? {
            differing.push(name);
        }
    }
    ensure!(
        differing.is_empty(),
        "the public API of {} is not as listed: if that is meant, `cargo xtask api --write`",
        differing.join(", ")
    );
    Ok(())
}

/// Documents a crate as JSON, which only nightly toolchains do without being asked to behave like one.
fn rustdoc_json(name: &str) -> Result<PathBuf> {
    let mut document = shell::cargo(["rustdoc", "--locked", "--lib", "--all-features", "-p", name, "--"]);
    document.args(["-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    document.env("RUSTC_BOOTSTRAP", "1");
    shell::run(document)?;
    Ok(shell::target_directory().join("doc").join(format!("{}.json", name.replace('-', "_"))))
}

/// The lines that only one of the listings has.
fn difference(listed: &str, now: &str) -> String {
    let only = |these: &str, others: &str, sign| -> String {
        these
            .lines()
            .filter(|line| !others.lines().any(|other| other == *line))
            .fold(String::new(), |text, line| text + sign + line + "\n")
    };
    only(listed, now, "-") + &only(now, listed, "+")
}

/// The tag of the last release that this commit descends from.
fn last_tag() -> Result<Option<String>> {
    let mut describe = Command::new("git");
    describe.args(["describe", "--tags", "--abbrev=0", "--match", "v*"]).current_dir(shell::root());
    let output = describe.output().context("failed to start git")?;
    let tag = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Some(tag).filter(|tag| output.status.success() && !tag.is_empty()))
}

/// Whether the libraries break programs that were written against a revision, beyond what their version allows.
fn breaks(revision: &str) -> Result<()> {
    let mut check = extension::cargo("semver-checks", CARGO_SEMVER_CHECKS)?;
    check.args(["--all-features", "--baseline-rev", revision]);
    check.args(cargo::metadata()?.published_libraries().iter().flat_map(|name| ["-p", name]));
    shell::run(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_the_lines_of_one_listing_alone() {
        let (listed, now) = ("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n");
        assert_eq!(difference(listed, now), "-pub fn a()\n+pub fn c()\n");
        assert_eq!(difference(listed, listed), "");
    }
}
