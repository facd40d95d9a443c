//! A worker: a process that uses the locks of the workload, and reports all that it does.
//!
//! 1. It ends when its standard input does: the coordinator is gone.
//! 2. An event is written before the worker does what comes after it.

mod hold;
mod report;
mod tasks;

use super::clock::RunClock;
use super::plan::{LEASE, SESSION};
use super::protocol::{FromWorker, Setup, ToWorker};
use super::stall;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use anyhow::{Context, anyhow};
use hold::Orders;
use leasehold::Client;
use leasehold::error::ConnectError;
use leasehold::store::FindingCode;
use report::Reporter;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a store that cannot be reached is tried again.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// How long the release of everything may take at the end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Works until the coordinator says that it is enough.
pub(crate) async fn work() -> Result<Exit, Failure> {
    let setup = setup().map_err(Failure::usage)?;
    let reporter = Arc::new(Reporter::new(RunClock::at(setup.origin_us), setup.process));
    let orders = Arc::new(Orders::new());
    listen(Arc::clone(&reporter), Arc::clone(&orders)).map_err(Failure::unavailable)?;
    let client = match connect(&setup).await {
        Ok(client) => client,
        Err(error) => {
            reporter.send(&FromWorker::Unusable { error: error.to_string() });
            return Ok(Exit::UNAVAILABLE);
        }
    };
    tokio::select! {
        () = tasks::run_all(&client, &setup, &reporter, &orders) => {}
        never = stall::watch(reporter.clock(), |from_us, to_us| {
            reporter.send(&FromWorker::Stalled { from_us, to_us });
        }) => match never {},
    }
    // What is not released ends with its lease, and the history says so.
    let _ = client.shutdown(SHUTDOWN_LIMIT).await;
    Ok(Exit::SUCCESS)
}

/// The first line of standard input.
fn setup() -> anyhow::Result<Setup> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("failed to read standard input")?;
    // The error of the parser could show a part of the line, which can contain a password.
    serde_json::from_str(&line)
        .map_err(|_| anyhow!("`verify-worker` is started by `leasehold verify`, and is not for use by hand"))
}

/// Passes what the coordinator sends on, and ends the process when it is gone (1).
fn listen(reporter: Arc<Reporter>, orders: Arc<Orders>) -> io::Result<()> {
    let listen = move || {
        for line in io::stdin().lock().lines() {
            match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                Some(ToWorker::Value { call, value }) => reporter.answer(call, value),
                Some(ToWorker::Linger { ms }) => {
                    orders.linger.send_replace(Instant::now() + Duration::from_millis(ms));
                }
                Some(ToWorker::Stop) => orders.stopping.cancel(),
                None => break,
            }
        }
        std::process::exit(i32::from(Exit::UNAVAILABLE.status()));
    };
    std::thread::Builder::new().name("leasehold-inbox".to_owned()).spawn(listen).map(drop)
}

async fn connect(setup: &Setup) -> Result<Client, ConnectError> {
    let accepted: Vec<FindingCode> = setup.accepted.iter().filter_map(|code| code.parse().ok()).collect();
    let mut builder = Client::builder(&setup.url).accept(accepted).statistics(false);
    builder = builder.watchdog_lease(LEASE).session_ttl(SESSION).label(format!("verify/{}", setup.process));
    if let Some(username) = &setup.username {
        builder = builder.username(username);
    }
    if let Some(password) = &setup.password {
        builder = builder.password(password);
    }
    if let Some(prefix) = &setup.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(relay) = setup.relay {
        builder = builder.through_relay(relay);
    }
    builder.connect_within(CONNECT_LIMIT).await
}
