//! `cargo xtask package`: whether the crates that are published can be packed, and contain what they must. With `--verify`, also
//! whether they compile as they are packed, in the order in which they are published.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, shell};

/// What each packed crate contains, as files of their own: links to them would be dangling.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Packs the crates, as `cargo publish` does before it builds and uploads them, and looks into each.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let verify = match arguments {
        [] => false,
        [option] if option == "--verify" => true,
        [first, ..] => bail!("package takes `--verify` at most, but was given `{first}`"),
    };
    let packages = cargo::metadata()?.published();
    // The working tree is checked, not a commit. The tests build the crates.
    let mut pack = shell::cargo(["package", "--no-verify", "--allow-dirty"]);
    pack.args(packages.iter().flat_map(|(name, _)| ["-p", name]));
    shell::run(pack)?;
    for (name, version) in &packages {
        let packed = format!("{name}-{version}");
        let file = shell::target_directory().join("package").join(format!("{packed}.crate"));
        for licence in LICENCES {
            let text = content(&file, &format!("{packed}/{licence}"))?;
            if text != fs::read(shell::root().join(licence))? {
                bail!("{packed}: {licence} is not that of the repository");
            }
        }
        if content(&file, &format!("{packed}/README.md"))?.is_empty() {
            bail!("{packed}: README.md is empty");
        }
    }
    if verify {
        // Builds each crate from what is packed, against the packed ones before it, and uploads nothing.
        shell::run(shell::cargo(["publish", "--workspace", "--locked", "--dry-run", "--allow-dirty"]))?;
    }
    Ok(())
}

/// Reads a file of a packed crate. A link has no content.
fn content(packed: &Path, path: &str) -> Result<Vec<u8>> {
    let read =
        Command::new("tar").arg("-xzOf").arg(packed).arg(path).output().context("failed to start `tar`")?;
    if !read.status.success() {
        bail!("{} has no {path}: {}", packed.display(), String::from_utf8_lossy(&read.stderr).trim());
    }
    Ok(read.stdout)
}
