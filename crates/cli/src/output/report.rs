//! Reports for programs: one line of JSON with stable fields (docs/reference/json.md).

use crate::output::exit::Failure;
use anyhow::Context;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Why something was not done.
#[derive(Debug, Serialize)]
pub(crate) struct Trouble {
    kind: &'static str,
    reason: Option<&'static str>,
    message: String,
}

impl From<&Failure> for Trouble {
    fn from(failure: &Failure) -> Self {
        Self { kind: failure.kind(), reason: failure.reason(), message: failure.message() }
    }
}

/// A report as a line of JSON.
pub(crate) fn json_line(report: &impl Serialize) -> String {
    let line = serde_json::to_string(report).expect("strings, numbers and nulls are JSON");
    line + "\n"
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Prints a text on standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe: it needs no more output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("failed to write to standard output"),
    }
}
