//! The protocol between a worker and the process that measures: requests and replies, a line each.

use anyhow::{Context, Result};
use std::io::Write;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};

/// The name of the lock that workers contend for.
pub(crate) const LOCK: &str = "bench";

/// The requests of the process that measures, on standard input.
pub(crate) struct Requests(Lines<BufReader<Stdin>>);

impl Requests {
    pub(crate) fn new() -> Self {
        Self(BufReader::new(stdin()).lines())
    }

    pub(crate) async fn next(&mut self) -> Result<String> {
        self.0.next_line().await?.context("the measuring process has ended")
    }
}

/// Prints a reply.
pub(crate) fn reply(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
