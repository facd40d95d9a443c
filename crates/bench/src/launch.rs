//! Starts the processes of a scenario: a server on one core, and workers on another.

use anyhow::{Context, Result};
use leasehold_testkit::{RedisServer, Worker};
use std::process::Command;
use std::time::Duration;

/// How long any reply of a worker may take.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A server on a core of its own.
pub(crate) fn start_server() -> Result<RedisServer> {
    RedisServer::builder().pinned(0).start().context("failed to start redis-server")
}

/// This program again, in a role, on the core of the clients.
pub(crate) fn start_worker(role: &[&str]) -> Result<Worker> {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(std::env::current_exe()?).arg("worker").args(role);
    Worker::of_command(command).start().context("failed to start a worker (is `taskset` on the path?)")
}

/// Sends a request to all workers.
pub(crate) fn tell_all(workers: &mut [Worker], request: &str) -> Result<()> {
    Ok(workers.iter_mut().try_for_each(|worker| worker.send(request))?)
}
