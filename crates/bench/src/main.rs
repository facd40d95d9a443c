//! Measures Leasehold as ratios to the limits of the machine, in one run.
//!
//! `cargo xtask bench SCENARIO [--json]` builds this in release mode and runs it. Every scenario boots
//! its own server, pins it to one core and its clients to another, and starts its clients as processes
//! of their own: this program again, in the role of a worker.

mod chart;
mod crowd;
mod fairness;
mod handoff;
mod held;
mod herd;
mod inside;
mod local;
mod marketplace;
mod member;
mod memory;
mod meter;
mod pairs;
mod peers;
mod protocol;
mod renewal;
mod report;
mod section;
mod sharing;
mod sqlite;
mod sticky;
mod uncontended;
mod waiters;
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
    /// Acquiring and releasing uncontended locks, beside a plain lock by hand.
    Uncontended(uncontended::Options),
    /// From the release in one process to the next holder in another, beside a bare message.
    Handoff(handoff::Options),
    /// What a hand-over costs, however many wait.
    Herd(herd::Options),
    /// Sellers and buyers with WATCH, one lock, and a lock an item.
    Marketplace(marketplace::Plan),
    /// What a hand-over inside a process costs, beside tokio's own mutex.
    Local(local::Options),
    /// Taking and releasing a lock that stays where it was.
    Sticky(sticky::Options),
    /// What it costs server and client to hold many locks, beside as many bare extends.
    Renewal(renewal::Options),
    /// How evenly tasks share a lock.
    Fairness(fairness::Options),
    /// How many bytes a held lock and a waiter take.
    Memory(memory::Options),
    /// Readers side by side, beside a Mutex.
    Rwlock {
        #[command(flatten)]
        options: sharing::Options,
        /// How many of a hundred sections read.
        #[arg(long, value_delimiter = ',', default_values_t = [100, 90, 50])]
        reads: Vec<u8>,
    },
    /// Several permits, beside a Mutex.
    Semaphore {
        #[command(flatten)]
        options: sharing::Options,
        /// How many permits there are.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
        permits: Vec<u32>,
    },
    /// What waiting costs between the processes of one machine, and how soon the next one wakes.
    Sqlite(sqlite::Options),
    /// Other libraries beside ours: passing a lock on, and many tasks that contend for one.
    Peers(peers::Options),
    /// Takes part in a scenario as one of its processes.
    #[command(hide = true)]
    Worker {
        #[command(subcommand)]
        role: worker::Role,
    },
}

fn main() -> Result<()> {
    match Args::parse().scenario {
        Scenario::Uncontended(options) => uncontended::run(&options),
        Scenario::Handoff(options) => handoff::run(&options),
        Scenario::Herd(options) => herd::run(&options),
        Scenario::Marketplace(plan) => marketplace::run(&plan),
        Scenario::Local(options) => local::run(&options),
        Scenario::Sticky(options) => sticky::run(&options),
        Scenario::Renewal(options) => renewal::run(&options),
        Scenario::Fairness(options) => fairness::run(&options),
        Scenario::Memory(options) => memory::run(&options),
        Scenario::Rwlock { options, reads } => sharing::rwlock(&options, &reads),
        Scenario::Semaphore { options, permits } => sharing::semaphore(&options, &permits),
        Scenario::Sqlite(options) => sqlite::run(&options),
        Scenario::Peers(options) => peers::run(&options),
        Scenario::Worker { role } => worker::run(role),
    }
}
