//! `cargo xtask interop [LIBRARY…]`: other libraries' locks against Leasehold's, with the libraries installed first.
//!
//! A library is skipped only if a program that it needs is missing; the last line counts these. Redisson is never skipped:
//! no other library has its format, which is the format of the `ReentrantMutex`.

use anyhow::{Result, bail};

use crate::driver::{self, Chosen};
use crate::{install, shell};

/// Installs what is missing and tests the named libraries, or all.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let chosen = choose(arguments, |tool| shell::find(tool).is_some())?;
    for (driver, tool) in &chosen.skipped {
        eprintln!("xtask: SKIPPED {}: there is no `{tool}` on the path", driver.name);
    }
    install::redis()?;
    let drivers = chosen.prepare()?;
    // `cargo run` builds one program, and that one starts the others of its package.
    shell::run(shell::cargo(["build", "--quiet", "--package", "leasehold-interop", "--bins"]))?;
    let mut interop = shell::cargo(["run", "--quiet", "--package", "leasehold-interop", "--", "--drivers"]);
    interop.arg(drivers).args(chosen.run.iter().map(|driver| driver.name));
    let status = shell::status(interop)?;
    println!("interop: {} libraries tested, {} skipped", chosen.run.len(), chosen.skipped.len());
    if !status.success() {
        bail!("a lock was not exclusive, or could not be tested: see VIOLATION above");
    }
    Ok(())
}

fn choose(names: &[String], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    driver::choose(names, &["redisson"], is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redisson_is_never_skipped() {
        for missing in ["java", "javac", "mvn"] {
            let error = choose(&[], |tool| tool != missing).err().expect("a refusal").to_string();
            assert!(error.starts_with(&format!("redisson cannot run: there is no `{missing}`")), "{error}");
        }
    }
}
