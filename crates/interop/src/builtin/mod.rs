//! Drivers without a library: this program, in the role of a client.
//!
//! `mutex` and `rlock` lock as other libraries do, with one fault or with none; each fault shows that a case can fail
//! (`tests/mutants.rs`). `leasehold` is a client of Leasehold's. All speak the protocol of `drivers/README.md`.

mod leasehold;
mod mutex;
mod rlock;

use anyhow::{Context, Result};
use clap::Subcommand;

/// A built-in driver, with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Driver {
    /// Locks as a Mutex does.
    Mutex(mutex::Options),
    /// Locks as Redisson's `RLock` does.
    Rlock(rlock::Options),
    /// A client of Leasehold's, which counts together with others.
    Leasehold(leasehold::Options),
}

/// Answers requests until the end of the input.
pub(crate) fn serve(driver: Driver) -> Result<()> {
    match driver {
        Driver::Mutex(options) => mutex::serve(&options),
        Driver::Rlock(options) => rlock::serve(&options),
        Driver::Leasehold(options) => leasehold::serve(&options),
    }
}

/// The port of a URL such as `redis://127.0.0.1:PORT/`.
fn port_of(url: &str) -> Result<u16> {
    let port = url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
    port.context("the URL has no port")
}

/// One of two answers.
fn choose(condition: bool, yes: &str, no: &str) -> String {
    if condition { yes.to_owned() } else { no.to_owned() }
}
