//! `cargo xtask mutate core`, `engine` and `diff`: cargo-mutants on the crates whose tests need no server.
//!
//! Owns which files are mutated, and which tests must find each mutant. Functions that are left out, with the reason, are in
//! `.cargo/mutants.toml`.
//!
//! 1. cargo-mutants changes a copy of the tree, and builds and tests it for each mutant. A shard is a part of the list that one
//!    run can do.
//! 2. A group's results are in `target/mutate/GROUP`, those of a shard beside them: the files `missed.txt` and `caught.txt` add up.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Selection;
use crate::{install, shell};

/// Files of one package, and the tests that must find their mutants.
pub(super) struct Group {
    name: &'static str,
    package: &'static str,
    /// All files of the package, if there is none.
    files: &'static [&'static str],
    /// What `cargo test` runs.
    tests: &'static [&'static str],
}

pub(super) const CORE: Group = Group {
    name: "core",
    package: "leasehold-core",
    files: &[],
    tests: &["--lib", "--test", "model", "--test", "watching", "--test", "lock_table"],
};

/// The state machines alone: what they send is tested over the memory store and over faulty ones.
pub(super) const ENGINE: Group = Group {
    name: "engine",
    package: "leasehold",
    files: &["crates/leasehold/src/engine/local/**", "crates/leasehold/src/engine/keeper/**"],
    tests: &["--lib", "--test", "engine", "--test", "api"],
};

/// Where `mutate diff` begins, unless another commit is given.
const BASE: &str = "origin/main";
/// How many mutants of each group `mutate diff` runs at most.
const MOST: usize = 20;

/// Runs the selected mutants of a group.
pub(super) fn run(group: &Group, selection: &Selection) -> Result<()> {
    install::cargo_program("cargo-mutants")?;
    let mut command = group.command();
    if selection.lists {
        command.arg("--list");
    }
    if let Some((own, all)) = selection.shard {
        command.args(["--sharding", "round-robin", "--shard", &format!("{own}/{all}")]);
    }
    if let Some(only) = &selection.only {
        command.args(["--re", only]);
    }
    let directory = match selection.shard {
        Some((own, all)) => format!("{}/{own}-of-{all}", group.name),
        None => group.name.to_owned(),
    };
    group.finish(command, &directory)
}

/// Runs mutants of what was committed since the base.
pub(super) fn run_diff(selection: &Selection) -> Result<()> {
    ensure!(
        selection.shard.is_none() && selection.only.is_none(),
        "`mutate diff` takes --base and --list alone"
    );
    install::cargo_program("cargo-mutants")?;
    let base = selection.base.as_deref().unwrap_or(BASE);
    let home = shell::target_directory().join("mutate");
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    let mut git = Command::new("git");
    git.args(["diff", "--no-ext-diff", &format!("{base}...HEAD"), "--", "*.rs"]).current_dir(shell::root());
    let output = git.stderr(Stdio::inherit()).output().context("failed to start git")?;
    ensure!(output.status.success(), "git knows no commit `{base}`: name one by --base");
    let diff = home.join("commits.diff");
    fs::write(&diff, &output.stdout)?;
    let mut failed = Vec::new();
    for group in [CORE, ENGINE] {
        let mut list = group.command();
        list.arg("--list").arg("--in-diff").arg(&diff);
        // A diff without a line of the group is an error of cargo-mutants, and no mutant of ours.
        let listed = list.stderr(Stdio::null()).output().context("failed to start cargo-mutants")?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let count = text.lines().count();
        println!("{}: {count} mutants since {base}", group.name);
        if selection.lists {
            print!("{text}");
        }
        if count == 0 || selection.lists {
            continue;
        }
        let mut command = group.command();
        command.arg("--in-diff").arg(&diff);
        if count > MOST {
            println!("{}: one of {} is run", group.name, count.div_ceil(MOST));
            command.args(["--sharding", "round-robin", "--shard", &format!("0/{}", count.div_ceil(MOST))]);
        }
        if let Err(error) = group.finish(command, &format!("diff/{}", group.name)) {
            failed.push(error.to_string());
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

impl Group {
    fn command(&self) -> Command {
        let mut command =
            shell::cargo(["mutants", "--package", self.package, "--colors", "never", "--no-shuffle"]);
        for file in self.files {
            command.args(["--file", file]);
        }
        command
    }

    /// Adds where the results go, and the tests.
    fn finish(&self, mut command: Command, directory: &str) -> Result<()> {
        let home = shell::target_directory().join("mutate").join(directory);
        fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
        command.arg("--output").arg(&home).args(["--", "--locked"]).args(self.tests);
        let status = shell::status(command)?;
        match status.code() {
            Some(0) => Ok(()),
            Some(2) => {
                bail!("mutants of {} were not found: {}/mutants.out/missed.txt", self.name, home.display())
            }
            Some(3) => bail!(
                "tests of {} did not end with a mutant: {}/mutants.out/timeout.txt",
                self.name,
                home.display()
            ),
            _ => bail!("cargo-mutants failed on {} ({status})", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_and_tests_of_each_group_exist() {
        let metadata = crate::cargo::metadata().expect("metadata of the workspace");
        let targets = metadata.test_targets();
        for Group { package, files, tests, .. } in [CORE, ENGINE] {
            for test in tests.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1]) {
                let is_target = |(of, target): &(String, crate::parts::TargetName)| {
                    of == package && target.to_string() == test
                };
                assert!(targets.iter().any(is_target), "{package} {test}");
            }
            for file in files {
                let directory = file.strip_suffix("/**").expect("a directory");
                assert!(shell::root().join(directory).is_dir(), "{file}");
            }
        }
    }
}
