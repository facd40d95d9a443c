//! `cargo xtask package`: whether the crates that are published can be packed, and contain what they must. With `--verify`, also
//! whether they compile as they are packed, in the order in which they are published. With `--profile`, it instead writes how the
//! program is optimised into its own manifest, for a release.
//!
//! `cargo install` uses the profile `release` of the manifest in the package. Within a workspace cargo ignores that section, and warns
//! of it at each command, so it is there in the commit of a release only.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, shell};

/// What each packed crate contains, as files of their own: links to them would be dangling.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The manifest of the program.
const PROGRAM: &str = "crates/cli/Cargo.toml";
/// What a package is built with.
const RELEASE: &str = "[profile.release]";
/// What the files of a release are built with, in the manifest of the workspace.
const DIST: &str = "[profile.dist]";

/// Packs the crates, as `cargo publish` does before it builds and uploads them, and looks into each.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let verify = match arguments {
        [] => false,
        [option] if option == "--verify" => true,
        [option] if option == "--profile" => return write_profile(),
        [first, ..] => bail!("package takes `--verify` or `--profile` at most, but was given `{first}`"),
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
    let [root, program] = manifests()?;
    if is_prepared(&program) && with_profile(&root, &without_profile(&program)?)? != program {
        bail!("{PROGRAM} has another profile than `dist` of Cargo.toml: run `cargo xtask package --profile`");
    }
    if verify {
        // Builds each crate from what is packed, against the packed ones before it, and uploads nothing.
        shell::run(shell::cargo(["publish", "--workspace", "--locked", "--dry-run", "--allow-dirty"]))?;
    }
    Ok(())
}

/// Gives the program the profile of a release.
fn write_profile() -> Result<()> {
    let [root, program] = manifests()?;
    let written = with_profile(&root, &without_profile(&program)?)?;
    fs::write(shell::root().join(PROGRAM), written)?;
    println!("xtask: wrote the profile of a release into {PROGRAM}, for the commit that is published");
    Ok(())
}

/// The manifests of the workspace and of the program.
fn manifests() -> Result<[String; 2]> {
    let read =
        |path| fs::read_to_string(shell::root().join(path)).with_context(|| format!("failed to read {path}"));
    Ok([read("Cargo.toml")?, read(PROGRAM)?])
}

/// The manifest of the program without its profile, which is the last section.
fn without_profile(program: &str) -> Result<String> {
    let mut lines = program.lines();
    let kept: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != RELEASE).collect();
    if let Some(section) = lines.find(|line| is_header(line)) {
        bail!("{PROGRAM}: `{section}` is after `{RELEASE}`, which must be the last section");
    }
    Ok(kept.join("\n").trim_end().to_owned() + "\n")
}

/// That manifest with the settings of the workspace's profile `dist`.
fn with_profile(root: &str, program: &str) -> Result<String> {
    let mut lines = root.lines().skip_while(|line| line.trim() != DIST);
    lines.next().context("Cargo.toml has no profile `dist`")?;
    let settings = lines.take_while(|line| !is_header(line)).map(str::trim);
    let settings =
        settings.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("inherits"));
    Ok(settings.fold(format!("{program}\n{RELEASE}\n"), |text, line| text + line + "\n"))
}

/// Whether the manifest has a profile.
fn is_prepared(program: &str) -> bool {
    program.lines().any(|line| line.trim() == RELEASE)
}

/// Whether a section begins.
fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_published_with_the_settings_of_the_files_of_a_release() {
        let root = "[profile.dist]\ninherits = \"release\"\n# Why.\nlto = \"fat\"\n\nstrip = true\n[profile.bench]\n";
        let program = "[package]\nname = \"p\" # not [profile.release]\n";
        let written = with_profile(root, program).expect("there is such a profile");
        assert_eq!(written, format!("{program}\n[profile.release]\nlto = \"fat\"\nstrip = true\n"));
        assert_eq!(without_profile(&written).expect("it is the last section"), program);
        assert_eq!(without_profile(program).expect("there is none"), program);
        assert!(is_prepared(&written) && !is_prepared(program));
        with_profile("[profile.bench]\n", program).expect_err("nothing says how a release is optimised");
        let error = without_profile(&format!("{written}[lints]\nworkspace = true\n"));
        let error = error.expect_err("nothing that is written by hand is removed").to_string();
        assert!(error.contains("`[lints]` is after"), "{error}");
    }

    #[test]
    fn the_workspace_says_how_a_release_is_optimised() {
        let [root, program] = manifests().expect("they can be read");
        let program = without_profile(&program).expect("it is the last section");
        let written = with_profile(&root, &program).expect("there is such a profile");
        let profile = written.split(RELEASE).nth(1).expect("it was written");
        for setting in ["strip = true", "lto = \"fat\"", "codegen-units = 1", "opt-level = \"s\""] {
            assert!(profile.lines().any(|line| line == setting), "{setting}: {profile}");
        }
        assert!(!profile.contains("inherits"), "{profile}");
    }
}
