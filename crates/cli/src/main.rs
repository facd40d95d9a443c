//! The program `leasehold`: runs commands under a lock, and inspects and manages locks.
//!
//! It knows of locks only what the library offers, and works on its main thread alone.

mod advice;
mod backoff;
mod board;
mod children;
mod commands;
mod daemon;
#[cfg(test)]
mod documented_commands;
mod duration;
mod environment;
mod fleet;
mod glob;
mod job;
mod lock;
mod output;
mod runtime;
mod store;
mod top;
mod verify;

use output::log;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = commands::execute().unwrap_or_else(|failure| log::failure(&failure));
    exit.into()
}
