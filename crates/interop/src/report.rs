//! What was seen, a line a case, printed as it comes.

use anyhow::Result;

/// The tally of all cases.
#[derive(Debug, Default)]
pub(crate) struct Report {
    violations: u32,
}

impl Report {
    /// Adds what came of a case: what was seen, or what is wrong.
    pub(crate) fn add(&mut self, neighbour: &str, case: &str, outcome: Result<String>) {
        match outcome {
            Ok(seen) => println!("{neighbour:<13}  {case:<32}  {seen}"),
            Err(violation) => {
                self.violations += 1;
                println!("{neighbour:<13}  {case:<32}  VIOLATION: {violation:#}");
            }
        }
    }

    /// Whether nothing was wrong.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations == 0
    }
}
