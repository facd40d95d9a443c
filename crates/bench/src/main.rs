//! Measures Leasehold as ratios to the limits of the machine, in one run.
//!
//! `cargo xtask bench SCENARIO [--json]` builds this in release mode and runs it. Every scenario starts its own server on
//! one core, and its clients on another, each in a process of its own: this program again, in the role of a worker.

mod calls;
mod chart;
mod client;
mod cluster;
mod contention;
mod critical_section;
mod fairness;
mod grant;
mod handoff;
mod herd;
mod launch;
mod local;
mod marketplace;
mod memory;
mod meter;
mod monitor;
mod names;
mod observe;
mod peers;
mod quorum;
mod renewal;
mod report;
mod shared_locks;
mod sharing;
mod sqlite;
mod sticky;
mod top;
mod tracking;
mod uncontended;
mod worker;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measures Leasehold as ratios to the limits of the machine")]
struct Args {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Acquires and releases uncontended locks, beside a plain lock by hand.
    Uncontended(uncontended::Options),
    /// Measures what each command costs the server inside a script.
    Calls(calls::Options),
    /// Acquires and releases fresh names, on one server and in a cluster, beside a plain lock by hand.
    Names(names::Options),
    /// Measures from the release in one process to the next holder in another, beside a bare message.
    Handoff(handoff::Options),
    /// Hands one lock off among processes, beside a bare direct grant.
    Grant(grant::Options),
    /// Measures the cost of a hand-off with few and many waiters.
    Herd(herd::Options),
    /// Runs sellers and buyers with WATCH, one lock, and a lock for each item.
    Marketplace(marketplace::Plan),
    /// Measures the cost of a hand-off within a process, beside tokio's mutex.
    Local(local::Options),
    /// Acquires and releases a lock that the process keeps.
    Sticky(sticky::Options),
    /// Measures what many held locks cost server and client, beside as many bare extends.
    Renewal(renewal::Options),
    /// Measures what the screen of `leasehold top` costs the server.
    Top(top::Options),
    /// Measures how soon a deadlock is named, and what statistics cost the server.
    Observe(observe::Options),
    /// Measures what it costs the server that holders learn at once of a removed lock, and how soon they do.
    Tracking(tracking::Options),
    /// Measures what many held locks cost a cluster, beside a single server.
    Cluster(cluster::Options),
    /// Measures how evenly tasks share a lock.
    Fairness(fairness::Options),
    /// Measures the memory of a held lock and of a waiter.
    Memory(memory::Options),
    /// Runs concurrent readers, beside a Mutex.
    Rwlock {
        #[command(flatten)]
        options: shared_locks::Options,
        /// How many of a hundred sections read.
        #[arg(long, value_delimiter = ',', default_values_t = [100, 90, 50])]
        reads: Vec<u8>,
    },
    /// Runs holders of several permits, beside a Mutex.
    Semaphore {
        #[command(flatten)]
        options: shared_locks::Options,
        /// The numbers of permits.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
        permits: Vec<u32>,
    },
    /// Measures requests about a lock that many hold at once.
    Sharing(sharing::Options),
    /// Measures the waits for a lock of a quorum, beside a single server.
    Quorum(quorum::Options),
    /// Measures what waiting on an SQLite file costs, and how soon the next process wakes.
    Sqlite(sqlite::Options),
    /// Measures other libraries beside Leasehold: hand-offs, and many tasks that contend for one lock.
    Peers(peers::Options),
    /// Runs as one process of a scenario.
    #[command(hide = true)]
    Worker {
        #[command(subcommand)]
        role: worker::Role,
    },
}

fn main() -> Result<()> {
    match Args::parse().scenario {
        Scenario::Uncontended(options) => uncontended::run(&options),
        Scenario::Calls(options) => calls::run(&options),
        Scenario::Names(options) => names::run(&options),
        Scenario::Handoff(options) => handoff::run(&options),
        Scenario::Grant(options) => grant::run(&options),
        Scenario::Herd(options) => herd::run(&options),
        Scenario::Marketplace(plan) => marketplace::run(&plan),
        Scenario::Local(options) => local::run(&options),
        Scenario::Sticky(options) => sticky::run(&options),
        Scenario::Renewal(options) => renewal::run(&options),
        Scenario::Top(options) => top::run(&options),
        Scenario::Observe(options) => observe::run(&options),
        Scenario::Tracking(options) => tracking::run(&options),
        Scenario::Cluster(options) => cluster::run(&options),
        Scenario::Fairness(options) => fairness::run(&options),
        Scenario::Memory(options) => memory::run(&options),
        Scenario::Rwlock { options, reads } => shared_locks::rwlock(&options, &reads),
        Scenario::Semaphore { options, permits } => shared_locks::semaphore(&options, &permits),
        Scenario::Sharing(options) => sharing::run(&options),
        Scenario::Quorum(options) => quorum::run(&options),
        Scenario::Sqlite(options) => sqlite::run(&options),
        Scenario::Peers(options) => peers::run(&options),
        Scenario::Worker { role } => worker::run(role),
    }
}
