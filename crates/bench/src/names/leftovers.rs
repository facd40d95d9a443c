//! What fresh names leave behind: requests of the idle client, and keys in the servers.
//!
//! Requests are counted by MONITOR, so nothing is timed here. The servers' clock is moved instead of waiting for an hour.

use super::{Options, start_client};
use crate::launch::{Deployment, REPLY_TIMEOUT, Topology};
use crate::meter::{KeyBytes, Machine};
use crate::monitor::{Monitor, RequestCounts};
use anyhow::{Result, ensure};
use leasehold_testkit::{RedisServer, ShiftedClock, Worker};
use std::time::Duration;

/// By then a client that has ended is gone from the servers.
const SETTLED: Duration = Duration::from_secs(1);
/// By then the client has opened the connection for its heartbeats, which the first of them does.
const FIRST_HEARTBEAT: Duration = Duration::from_secs(3);
const MINUTE_US: i64 = 60_000_000;
/// How many names are used before requests are counted: enough that each node of a cluster has the scripts.
const WARM_UP_NAMES: u64 = 32;

/// What the names left behind.
pub(super) struct Leftovers {
    /// The requests while names were used.
    pub(super) used: RequestCounts,
    /// The requests while the client was idle.
    pub(super) idle: RequestCounts,
    /// All keys when the last name was released.
    pub(super) at_once: KeyBytes,
    /// All keys so long after the client has ended.
    pub(super) after_1_min: KeyBytes,
    pub(super) after_61_min: KeyBytes,
    /// How many names these keys are of.
    pub(super) names: u64,
    pub(super) servers: usize,
    pub(super) machine: Machine,
}

/// Uses names, waits, ends the client, and moves the clock.
pub(super) fn measure(topology: Topology, options: &Options) -> Result<Leftovers> {
    let clock = ShiftedClock::new(0)?;
    let store = topology.start_with(&RedisServer::builder().clock(&clock))?;
    let servers = store.servers();
    let mut monitor = Monitor::start(&servers)?;
    let mut worker = start_client(&store, options.tasks)?;
    use_names(&mut worker, WARM_UP_NAMES)?;
    // The client is connected, and its scripts are loaded.
    monitor.take()?;
    use_names(&mut worker, options.names)?;
    let used = monitor.take()?;
    let at_once = KeyBytes::read(&servers)?;
    std::thread::sleep(FIRST_HEARTBEAT);
    monitor.take()?;
    std::thread::sleep(Duration::from_secs(options.idle));
    let idle = monitor.take()?;
    drop(monitor);
    worker.send("stop")?;
    worker.wait(REPLY_TIMEOUT)?;
    std::thread::sleep(SETTLED);
    let after = |minutes: i64| {
        clock.set_offset_us(minutes * MINUTE_US)?;
        // Expired keys are removed, and the nodes find each other again.
        std::thread::sleep(SETTLED);
        if let Deployment::Cluster(cluster, _) = &store {
            cluster.wait_agreed()?;
        }
        KeyBytes::read(&servers)
    };
    let (after_1_min, after_61_min) = (after(1)?, after(61)?);
    let (names, servers, machine) = (WARM_UP_NAMES + options.names, servers.len(), Machine::of(&store)?);
    Ok(Leftovers { used, idle, at_once, after_1_min, after_61_min, names, servers, machine })
}

fn use_names(worker: &mut Worker, names: u64) -> Result<()> {
    worker.send(&format!("ours {names}"))?;
    let done = worker.line(REPLY_TIMEOUT)?;
    ensure!(done.starts_with(&format!("{names} ")), "not all names were used: {done}");
    Ok(())
}
