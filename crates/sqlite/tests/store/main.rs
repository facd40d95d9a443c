//! The SQLite store between real processes, and its refusals.
//!
//! The test binary runs itself as a worker, which executes the commands on its standard input and replies with lines
//! that begin with `@`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod files;
mod processes;
mod session;
mod worker;
