//! Prints the result of each case, a line each.
//!
//! 1. A case that could not be set up proves nothing: it is neither a success nor a violation.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// The exit code if no lock was seen to fail, but some cases could not be tested (1).
const NOT_TESTED: u8 = 3;

/// The context of an error that occurred while a case was set up (1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetupFailed;

impl fmt::Display for SetupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to set up the case")
    }
}

/// Marks an error as one of the set-up (1).
pub(crate) fn setup<T>(result: Result<T>) -> Result<T> {
    result.context(SetupFailed)
}

/// Counts the cases that did not succeed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    violations: u32,
    not_tested: u32,
}

impl Report {
    /// Prints the result of a case: what it observed, or what is wrong.
    pub(crate) fn add(&mut self, library: &str, case: &str, result: Result<String>) {
        let line = match result {
            Ok(observed) => observed,
            Err(error) if error.downcast_ref::<SetupFailed>().is_some() => {
                self.not_tested += 1;
                format!("could not be tested: {error:#}")
            }
            Err(violation) => {
                self.violations += 1;
                format!("VIOLATION: {violation:#}")
            }
        };
        println!("{library:<13}  {case:<36}  {line}");
    }

    /// Success only if every case was tested and no lock failed.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match (self.violations, self.not_tested) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(NOT_TESTED),
            _ => ExitCode::FAILURE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn only_a_failed_setup_is_not_a_violation() {
        let mut report = Report::default();
        report.add("redsync", "a case", Ok("it is exclusive".into()));
        assert_eq!((report.violations, report.not_tested), (0, 0));
        report.add("redsync", "a case", setup(Err(anyhow!("no such file"))).context("the driver"));
        assert_eq!((report.violations, report.not_tested), (0, 1));
        report.add("redsync", "a case", Err(anyhow!("both hold the lock")));
        assert_eq!((report.violations, report.not_tested), (1, 1));
    }
}
