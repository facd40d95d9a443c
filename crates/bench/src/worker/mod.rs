//! The roles in which this program takes part in a scenario, as a process of its own.

mod bare_queue;
pub(crate) mod contention;
mod handoff;
pub(crate) mod local;
pub(crate) mod memory;
mod names;
mod plain;
pub(crate) mod protocol;
pub(crate) mod renewal;
mod share;
pub(crate) mod uncontended;

use crate::marketplace;
use crate::peers::leasehold_driver;
use anyhow::Result;
use clap::Subcommand;
use contention::{ContendedLock, Contender};
use memory::WaitFor;
use share::SharedKind;
use std::time::Duration;

/// A role.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// One process whose tasks contend for a lock with those of other processes.
    Contend {
        #[arg(long)]
        url: String,
        #[arg(long)]
        process: u32,
        #[arg(long)]
        tasks: u32,
        /// How long each holds the lock.
        #[arg(long, default_value_t = 0)]
        hold_us: u64,
        /// `mutex`, `bare`, `rwlock:READS`, `semaphore:PERMITS`
        #[arg(long, default_value = "mutex")]
        lock: ContendedLock,
    },
    /// One of two processes that hand over a lock, or a bare message.
    Handoff {
        #[arg(long)]
        url: String,
        #[arg(long)]
        process: u32,
    },
    /// Holds many locks.
    Hold {
        #[arg(long)]
        url: String,
        #[arg(long)]
        locks: u64,
        #[arg(long)]
        over_ms: u64,
        /// The watchdog lease.
        #[arg(long, default_value_t = 30_000)]
        lease_ms: u64,
    },
    /// Extends as many keys with bare commands.
    Extend {
        #[arg(long)]
        url: String,
        #[arg(long)]
        locks: u64,
    },
    /// Tasks of one process that contend for a lock of their own.
    Local {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
    },
    /// Holds a shared lock many times, and measures the next request about it.
    Share {
        #[arg(long)]
        url: String,
        #[arg(long)]
        kind: SharedKind,
        #[arg(long)]
        holders: u64,
    },
    /// Many tasks that wait for a lock that stays held.
    Wait {
        #[arg(long)]
        url: String,
        #[arg(long)]
        wait_for: WaitFor,
        #[arg(long)]
        tasks: u64,
    },
    /// Acquires and releases fresh names.
    Names {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
        /// The URLs of the servers on which plain locks are.
        #[arg(long, value_delimiter = ',')]
        nodes: Vec<String>,
    },
    /// Acquires and releases uncontended locks, by the library or by hand.
    Uncontended {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
        #[arg(long)]
        lease_ms: u64,
    },
    /// Sells or buys.
    Trade(marketplace::Trader),
    /// Leasehold's driver among the peers.
    Peer {
        #[arg(long)]
        url: String,
    },
}

/// Runs a role to its end.
pub(crate) fn run(role: Role) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match role {
            Role::Contend { url, process, tasks, hold_us, lock } => {
                let hold = Duration::from_micros(hold_us);
                contention::run(&url, Contender { process, tasks, hold, lock }).await
            }
            Role::Handoff { url, process } => handoff::run(&url, process).await,
            Role::Hold { url, locks, over_ms, lease_ms } => {
                let [over, lease] = [over_ms, lease_ms].map(Duration::from_millis);
                renewal::hold(&url, locks, over, lease).await
            }
            Role::Extend { url, locks } => renewal::extend_bare(&url, locks).await,
            Role::Local { url, tasks } => local::run(&url, tasks).await,
            Role::Share { url, kind, holders } => share::run(&url, kind, holders).await,
            Role::Wait { url, wait_for, tasks } => memory::run(&url, wait_for, tasks).await,
            Role::Names { url, tasks, nodes } => names::run(&url, tasks, &nodes).await,
            Role::Uncontended { url, tasks, lease_ms } => uncontended::run(&url, tasks, lease_ms).await,
            Role::Trade(trader) => marketplace::trade(trader).await,
            Role::Peer { url } => leasehold_driver::run(&url).await,
        }
    })
}
