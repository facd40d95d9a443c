//! `cargo xtask interop [--prepare] [LIBRARY…]`: other libraries' locks against Leasehold's, with the libraries installed
//! first. With `--prepare` they are only installed: the tests do that beside others, as it takes minutes.
//!
//! A library is skipped only if a program that it needs is missing; the last line counts these. Redisson is never skipped:
//! no other library has its format, which is the format of the `ReentrantMutex`.

use std::process::ExitStatus;

use anyhow::{Result, bail};

use crate::driver::{self, Chosen};
use crate::{install, shell};

/// The exit code of `leasehold-interop` if a lock was not exclusive.
const VIOLATION: i32 = 1;
/// Its exit code if there was no violation, but a case could not be tested.
const NOT_TESTED: i32 = 3;

/// The option that installs the libraries and tests none.
pub(crate) const PREPARE: &str = "--prepare";

/// Installs what is missing and tests the named libraries, or all.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (options, names): (Vec<_>, Vec<_>) =
        arguments.iter().cloned().partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| *option != PREPARE) {
        bail!("there is no option `{unknown}`: there is {PREPARE}");
    }
    let chosen = choose(&names, |tool| shell::find(tool).is_some())?;
    for (driver, tool) in &chosen.skipped {
        eprintln!("xtask: SKIPPED {}: there is no `{tool}` on the path", driver.name);
    }
    install::redis()?;
    let drivers = chosen.prepare_each()?;
    for (driver, error) in &drivers.failed {
        println!("{}: could not be tested: {error:#}", driver.name);
    }
    let failed: Vec<&str> = drivers.failed.iter().map(|(driver, _)| driver.name).collect();
    let is_ready = |name: &&str| !failed.contains(name);
    let ready: Vec<&str> = chosen.run.iter().map(|driver| driver.name).filter(is_ready).collect();
    if ready.is_empty() {
        bail!("no library could be tested: see above");
    }
    if !options.is_empty() {
        return judge(ExitStatus::default(), &failed);
    }
    // As the tests are built, whose features are not those of the program alone: otherwise all would be compiled once more.
    shell::run(shell::cargo([
        "test",
        "--no-run",
        "--quiet",
        "--locked",
        "--workspace",
        "--test",
        "mutants",
    ]))?;
    let mut interop = shell::in_root(shell::target_directory().join("debug/leasehold-interop"));
    interop.arg("--drivers").arg(&drivers.directory).args(&ready);
    let status = shell::status(interop)?;
    println!(
        "interop: {} libraries tested, {} skipped, {} not ready",
        ready.len(),
        chosen.skipped.len(),
        failed.len()
    );
    judge(status, &failed)
}

fn judge(status: ExitStatus, failed: &[&str]) -> Result<()> {
    match status.code() {
        Some(0) if failed.is_empty() => Ok(()),
        Some(0) => bail!("no violation, but {} could not be tested: see above", failed.join(", ")),
        Some(NOT_TESTED) => bail!("no violation, but a case could not be tested: see above"),
        Some(VIOLATION) => bail!("a lock was not exclusive: see VIOLATION above"),
        _ => bail!("leasehold-interop failed ({status})"),
    }
}

fn choose(names: &[String], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    driver::choose(names, &["redisson"], is_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn redisson_is_never_skipped() {
        for missing in ["java", "javac", "mvn"] {
            let error = choose(&[], |tool| tool != missing).err().expect("a refusal").to_string();
            assert!(error.starts_with(&format!("redisson cannot run: there is no `{missing}`")), "{error}");
        }
    }

    #[test]
    fn only_a_violation_is_reported_as_one() {
        let judge = |code: i32, failed: &[&str]| {
            judge(ExitStatus::from_raw(code << 8), failed).map_err(|error| error.to_string())
        };
        assert_eq!(judge(0, &[]), Ok(()));
        for (code, failed) in [(0, &["redsync"][..]), (NOT_TESTED, &[]), (101, &[])] {
            let error = judge(code, failed).expect_err("it is no success");
            assert!(!error.contains("VIOLATION"), "{code}: {error}");
        }
        assert!(judge(VIOLATION, &[]).expect_err("a violation").contains("VIOLATION"));
    }
}
