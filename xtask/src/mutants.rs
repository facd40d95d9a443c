//! `cargo xtask verify mutants`: puts defects that were mended back into the source, one at a time. A test must find each.
//!
//! Owns the copy of the tree, and what counts as found. The mutants are in [`table`].
//!
//! 1. Only a copy of the tree is changed. It has what git tracks or would add, so that work that is not committed counts.
//! 2. The tests pass without a mutant. With one its test fails, for the reason that the table names. A mutant that cannot be
//!    built, and a test that passes, does not run or fails for another reason, are errors that name the mutant.
//! 3. A file is written only if it differs, since cargo builds again what is newer.

mod table;

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Metadata};
use crate::shell;
use table::{MUTANTS, Mutant, Test};

/// Selects mutants by a part of their names, or by one of several: `row 47|row 49`.
const VARIABLE: &str = "LEASEHOLD_MUTANT";

/// Longer than any of the tests takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Tests all mutants, or those whose names contain the value of [`VARIABLE`].
pub(crate) fn run() -> Result<()> {
    let parts = env::var(VARIABLE).unwrap_or_default();
    let is_selected = |mutant: &&Mutant| parts.split('|').any(|part| mutant.name.contains(part));
    let mutants: Vec<&Mutant> = MUTANTS.iter().filter(is_selected).collect();
    ensure!(!mutants.is_empty(), "no mutant has `{parts}` in its name, as {VARIABLE} demands");
    let bench = Bench::new()?;
    bench.check_without_mutant(&mutants)?;
    let mut failed = Vec::new();
    for mutant in &mutants {
        let start = Instant::now();
        match bench.find(mutant) {
            Ok(()) => println!("found   {:>6.1} s  {}", start.elapsed().as_secs_f64(), mutant.name),
            Err(error) => {
                println!("MISSED  {:>6.1} s  {}: {error:#}", start.elapsed().as_secs_f64(), mutant.name);
                failed.push(mutant.name);
            }
        }
    }
    ensure!(failed.is_empty(), "mutants that were not found: {}", failed.join("; "));
    println!("all {} mutants were found", mutants.len());
    Ok(())
}

/// The copy of the tree, and where it is built.
struct Bench {
    tree: PathBuf,
    build: PathBuf,
    log: PathBuf,
    metadata: Metadata,
}

impl Bench {
    fn new() -> Result<Self> {
        let home = shell::target_directory().join("mutants");
        let (tree, build, log) = (home.join("tree"), home.join("build"), home.join("log"));
        fs::create_dir_all(&tree).with_context(|| format!("failed to make {}", tree.display()))?;
        let metadata = cargo::metadata()?;
        table::check(shell::root(), &metadata)?;
        copy(shell::root(), &tree)?;
        Ok(Self { tree, build, log, metadata })
    }

    /// Checks that each test passes in the unchanged copy (2).
    fn check_without_mutant(&self, mutants: &[&Mutant]) -> Result<()> {
        let targets: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.test.target).collect();
        eprintln!("xtask: building the tests in {}", self.tree.display());
        self.cargo_test(&targets)?;
        let mut checked = Vec::new();
        for Mutant { test, .. } in mutants {
            if !checked.contains(test) {
                checked.push(*test);
                let (outcome, output) = self.test(*test)?;
                ensure!(
                    outcome == Outcome::Passed,
                    "without a mutant, `{}` does not pass ({outcome:?}):\n{output}",
                    test.name
                );
                println!("passes  without a mutant: {}", test.name);
            }
        }
        Ok(())
    }

    /// Checks that the test of a mutant finds it. Restores the copy.
    fn find(&self, mutant: &Mutant) -> Result<()> {
        let path = self.tree.join(mutant.file);
        let original =
            fs::read_to_string(&path).with_context(|| format!("failed to read {}", mutant.file))?;
        let write = |text: &str| {
            fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
        };
        write(&mutant.apply_to(&original)?)?;
        let found = self.test(mutant.test);
        write(&original)?;
        let (outcome, output) = found?;
        judge(mutant, outcome, &output)
    }

    /// Builds a test and runs it alone. Returns what it printed.
    fn test(&self, test: Test) -> Result<(Outcome, String)> {
        let executables = self.cargo_test(&BTreeSet::from([test.target]))?;
        // The copy has the same directories.
        let package = self.metadata.directory(test.package)?.strip_prefix(shell::root())?;
        let directory = self.tree.join(package);
        let own = executables.into_iter().find(|(manifest, _)| manifest.parent() == Some(&*directory));
        let (_, executable) =
            own.with_context(|| format!("{} has no test target `{}`", test.package, test.target))?;
        let log =
            File::create(&self.log).with_context(|| format!("failed to make {}", self.log.display()))?;
        let mut command = Command::new(executable);
        command.args([test.name, "--exact"]).current_dir(directory).stdin(Stdio::null());
        let mut child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let deadline = Instant::now() + LIMIT;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("`{}` has not ended within {LIMIT:?}", test.name);
            }
            thread::sleep(Duration::from_millis(20));
        }
        let output = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        Ok((Outcome::read(&output), output))
    }

    /// Builds test targets of the copy. Returns the executables of those with these names, each with its manifest. The
    /// whole workspace is selected, so that all are built with the same features.
    fn cargo_test(&self, targets: &BTreeSet<&str>) -> Result<Vec<(PathBuf, PathBuf)>> {
        let mut build = shell::cargo(["test", "--no-run", "--workspace", "--locked", "--quiet"]);
        for target in targets {
            build.args(["--test", target]);
        }
        build.arg("--message-format=json-render-diagnostics").current_dir(&self.tree);
        build.env("CARGO_TARGET_DIR", &self.build);
        let output = build.stderr(Stdio::piped()).output().context("failed to start cargo")?;
        if !output.status.success() {
            bail!("it cannot be built ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8(output.stdout).context("cargo's messages are no UTF-8")?;
        cargo::test_executables(&text)
    }
}

/// What libtest reports of one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// No test has the name, or it is ignored.
    NotRun,
    /// It has ended without a result, or there are several.
    Unclear,
}

impl Outcome {
    fn read(output: &str) -> Self {
        let Some(result) = output.lines().rev().find_map(|line| line.strip_prefix("test result: ")) else {
            return Self::Unclear;
        };
        let count = |what: &str| {
            let part = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|count| count.trim().parse::<u32>().ok())
        };
        match (count("passed"), count("failed")) {
            (Some(1), Some(0)) => Self::Passed,
            (Some(0), Some(1)) => Self::Failed,
            (Some(0), Some(0)) => Self::NotRun,
            _ => Self::Unclear,
        }
    }
}

/// Whether a test has found its mutant (2).
fn judge(mutant: &Mutant, outcome: Outcome, output: &str) -> Result<()> {
    let Mutant { test: Test { package, target, name }, report, .. } = mutant;
    match outcome {
        Outcome::Failed if output.contains(report) => Ok(()),
        Outcome::Failed => bail!("`{name}` fails, but without `{report}`:\n{output}"),
        Outcome::Passed => bail!("`{name}` passes"),
        Outcome::NotRun => bail!("{package} {target} has no test `{name}`, or ignores it"),
        Outcome::Unclear => bail!("`{name}` ended without a result:\n{output}"),
    }
}

/// Makes `tree` a copy of what git tracks, or would add, below `root` (1).
fn copy(root: &Path, tree: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = list.output().context("failed to start git")?;
    ensure!(output.status.success(), "git lists no files ({}): the copy needs a git tree", output.status);
    let names = String::from_utf8(output.stdout).context("a file's name is no UTF-8")?;
    let names: BTreeSet<&str> = names.split_terminator('\0').collect();
    let mut copied = BTreeSet::new();
    for name in names {
        if copy_file(&root.join(name), &tree.join(name)).with_context(|| format!("failed to copy {name}"))? {
            copied.insert(tree.join(name));
        }
    }
    remove_others(tree, &copied)
}

/// Copies a file, unless the copy is the same (3). Returns false if there is none: git does not know yet that it was deleted.
fn copy_file(from: &Path, to: &Path) -> Result<bool> {
    let bytes = match fs::read(from) {
        Ok(bytes) => bytes,
        // A repository inside this one is listed as a directory.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    if fs::read(to).ok().as_ref() != Some(&bytes) {
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(to, bytes)?;
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    Ok(true)
}

/// Removes what an earlier copy had, and this one has not.
fn remove_others(directory: &Path, kept: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str =
        "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.07s";
    const FAILED: &str =
        "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.07s";

    #[test]
    fn the_outcome_of_a_test_is_read() {
        let nothing = PASSED.replace("1 passed", "0 passed");
        let ignored = nothing.replace("0 ignored", "1 ignored");
        let several = PASSED.replace("1 passed", "2 passed");
        for (output, outcome) in [
            (PASSED, Outcome::Passed),
            (FAILED, Outcome::Failed),
            (&nothing, Outcome::NotRun),
            (&ignored, Outcome::NotRun),
            (&several, Outcome::Unclear),
            ("running 1 test\n", Outcome::Unclear),
            // A worker of the test is the same executable.
            (&format!("{PASSED}\nmore\n{FAILED}\n\n"), Outcome::Failed),
        ] {
            assert_eq!(Outcome::read(output), outcome, "{output}");
        }
    }

    #[test]
    fn only_a_failure_for_the_named_reason_finds_a_mutant() {
        let mutant = &MUTANTS[0];
        judge(mutant, Outcome::Failed, &format!("panicked: {}\n", mutant.report)).expect("found");
        for (outcome, part) in [
            (Outcome::Failed, "fails, but without"),
            (Outcome::Passed, "passes"),
            (Outcome::NotRun, "has no test"),
            (Outcome::Unclear, "without a result"),
        ] {
            let error =
                judge(mutant, outcome, "panicked: no port is free").expect_err("not found").to_string();
            assert!(error.contains(part) && error.contains(mutant.test.name), "{error}");
        }
    }

    #[test]
    fn a_copy_has_what_git_would_add_and_no_more() {
        let home = env::temp_dir().join(format!("leasehold-mutants-{}", std::process::id()));
        let (root, tree) = (home.join("root"), home.join("tree"));
        let text = |path: &str| fs::read_to_string(tree.join(path)).ok();
        let written =
            |path: &str| fs::metadata(tree.join(path)).and_then(|file| file.modified()).expect("a time");
        fs::create_dir_all(root.join("src")).expect("made");
        fs::create_dir_all(&tree).expect("made");
        fs::write(root.join(".gitignore"), "/ignored\n").expect("written");
        fs::write(root.join("src/a.rs"), "a").expect("written");
        fs::write(root.join("src/b.rs"), "b").expect("written");
        fs::write(root.join("ignored"), "c").expect("written");
        let made = Command::new("git").args(["init", "--quiet"]).current_dir(&root).status().expect("git");
        assert!(made.success());
        copy(&root, &tree).expect("copied");
        assert_eq!((text("src/a.rs").as_deref(), text("ignored")), (Some("a"), None));
        let before = written("src/a.rs");
        fs::remove_file(root.join("src/b.rs")).expect("removed");
        fs::write(tree.join(".gitignore"), "a mutant that was left").expect("written");
        copy(&root, &tree).expect("copied");
        assert_eq!((text("src/b.rs"), text(".gitignore").as_deref()), (None, Some("/ignored\n")));
        assert_eq!(written("src/a.rs"), before, "it is not written again");
        fs::remove_dir_all(&home).expect("removed");
    }
}
