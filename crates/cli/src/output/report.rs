//! Reports on standard output, and the JSON that all reports share (docs/reference/json.md).

use crate::output::failure::Failure;
use crate::output::log;
use anyhow::Context;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Why the program failed. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorReport {
    kind: &'static str,
    reason: Option<&'static str>,
    message: String,
}

impl ErrorReport {
    /// The error of a result, if it is one.
    pub(crate) fn from_result<T>(result: &Result<T, Failure>) -> Option<Self> {
        let failure = result.as_ref().err()?;
        Some(Self { kind: failure.kind(), reason: failure.reason(), message: failure.message() })
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
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    printed(io::stdout().lock().write_all(text.as_bytes()))
}

/// The result of writing to standard output.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        // The reader has closed the pipe: it needs no more output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("failed to write to standard output").map_err(Failure::unavailable),
    }
}

/// Prints a text about something that has happened whether or not the output is read: a failure is a warning.
pub(crate) fn print_or_warn(text: &str) {
    if let Err(failure) = print(text) {
        log::warning(&failure.message());
    }
}
