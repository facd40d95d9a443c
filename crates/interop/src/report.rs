//! Prints the result of each case, a line each.

use anyhow::Result;

/// Counts the cases that failed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    violations: u32,
}

impl Report {
    /// Prints the result of a case: what it observed, or what is wrong.
    pub(crate) fn add(&mut self, neighbour: &str, case: &str, outcome: Result<String>) {
        match outcome {
            Ok(seen) => println!("{neighbour:<13}  {case:<32}  {seen}"),
            Err(violation) => {
                self.violations += 1;
                println!("{neighbour:<13}  {case:<32}  VIOLATION: {violation:#}");
            }
        }
    }

    /// Whether no case failed.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations == 0
    }
}
