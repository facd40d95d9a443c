//! The start of the runtime, and what it and the store need of the operating system.
//!
//! 1. What is missing is reported before anything is acquired. tokio panics if its signal handler gets no descriptors, or
//!    the lookup of a host name no thread; a file store without descriptors looks as if its path were wrong.

use crate::output::failure::Failure;
use anyhow::{Context, anyhow};
use std::io;
use tokio::runtime::{Builder, Runtime};

/// How many descriptors are free at the start at least: about 20 are in use with one server or file, and a command.
const DESCRIPTORS: usize = 32;

/// Builds the runtime, after a check of what it needs (1).
pub(crate) fn build() -> Result<Runtime, Failure> {
    check_descriptors()?;
    check_threads()?;
    // The kernel ties the end of a command under a lock to the thread that started it: this runtime runs on the main
    // thread.
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("failed to start the runtime").map_err(Failure::unavailable)
}

fn check_descriptors() -> Result<(), Failure> {
    let opened: Result<Vec<_>, _> =
        (0..DESCRIPTORS).map(|_| rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)).collect();
    opened.map(drop).map_err(|error| {
        let advice = anyhow!(
            "this process needs {DESCRIPTORS} more file descriptors than it may open: raise the limit (`ulimit -n`): \
             {error}"
        );
        Failure::unavailable(advice)
    })
}

/// Threads renew locks, work on a file, and look up host names.
fn check_threads() -> Result<(), Failure> {
    let started = std::thread::Builder::new().spawn(|| ());
    let thread = started
        .context(
            "this process cannot start a thread: raise the limit of processes (`ulimit -u`) or of memory",
        )
        .map_err(Failure::unavailable)?;
    // It does nothing that could panic.
    let _ = thread.join();
    Ok(())
}
