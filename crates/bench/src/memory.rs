//! The memory of a held lock and of a waiter, in the client and in the server.
//!
//! The kernel's count of resident memory of a fresh process, and the server's count of used memory, before and after there
//! are many of them. Beside it, in the same rounds: a bare key with a token and an expiry in the server, and a task that
//! waits for tokio's mutex in the client.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, ServerStats, resident_bytes, used_bytes};
use crate::report::{Output, per};
use crate::worker::memory::lock_name;
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;
use std::time::{Duration, Instant};

/// By then requests are answered, and buffers are freed.
const SETTLED: Duration = Duration::from_millis(700);

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many locks are held, and how many tasks wait for one lock.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// How many tasks wait, each for a lock of its own, which each of them polls.
    #[arg(long, default_value_t = 4_000)]
    apart: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct MemoryReport {
    scenario: &'static str,
    /// A held lock in the server, relative to a bare key; a task that waits for one lock in the client, relative to one that
    /// waits for tokio's mutex.
    held_server_ratio: f64,
    waiter_client_ratio: f64,
    held_server_ratio_spread: [f64; 2],
    waiter_client_ratio_spread: [f64; 2],
    /// Bytes of each held lock,
    held_client_bytes: f64,
    held_server_bytes: f64,
    /// of each task of one process that waits for the same lock,
    waiter_client_bytes: f64,
    waiter_server_bytes: f64,
    /// and of each task that waits for a lock of its own.
    apart_client_bytes: f64,
    apart_server_bytes: f64,
    bare_server_bytes: f64,
    tokio_client_bytes: f64,
    count: u64,
    apart: u64,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// Bytes for each lock or task, of the client and of the server.
#[derive(Clone, Copy)]
struct BytesEach {
    client: f64,
    server: f64,
}

/// One round.
struct Round {
    held: BytesEach,
    waiter: BytesEach,
    apart: BytesEach,
    bare_server: f64,
    tokio_client: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { count, apart, .. } = *options;
    let mut rounds = Vec::new();
    let mut machine = None;
    for _ in 0..options.rounds {
        rounds.push(Round {
            held: measure_held(count)?,
            waiter: measure_waiting(count, "one", 1)?,
            apart: measure_waiting(apart, "many", apart)?,
            bare_server: measure_bare(count)?,
            tokio_client: measure_waiting(count, "tokio", 0)?.client,
        });
        let server = start_server()?;
        machine = Some(Machine::with(&server)?);
    }
    let report = report(options, &rounds, machine.context("no round")?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("memory", || report.chart(&rounds))
}

/// The memory of both sides, in bytes.
struct Bytes {
    client: u64,
    server: u64,
}

impl Bytes {
    fn now(server: &RedisServer, worker: &Worker) -> Result<Self> {
        Ok(Self { client: resident_bytes(worker.pid())?, server: used_bytes(server)? })
    }

    /// The growth since then, divided by a number of locks or tasks.
    fn grown(&self, server: &RedisServer, worker: &Worker, count: u64) -> Result<BytesEach> {
        std::thread::sleep(SETTLED);
        let now = Self::now(server, worker)?;
        let each = |now: u64, before: u64| per(now.saturating_sub(before), count);
        Ok(BytesEach { client: each(now.client, self.client), server: each(now.server, self.server) })
    }
}

/// Measures many locks that one process holds.
fn measure_held(count: u64) -> Result<BytesEach> {
    let server = start_server()?;
    let mut holder = start_holder(&server, count)?;
    let before = Bytes::now(&server, &holder)?;
    acquire_all(&mut holder)?;
    before.grown(&server, &holder, count)
}

/// Measures many tasks of one process that wait, while another process holds so many locks.
fn measure_waiting(count: u64, wait_for: &str, locks: u64) -> Result<BytesEach> {
    let server = start_server()?;
    let mut holder = start_holder(&server, locks)?;
    acquire_all(&mut holder)?;
    std::thread::sleep(SETTLED);
    let (url, tasks) = (server.url(), count.to_string());
    let mut waiters = start_worker(&["wait", "--url", &url, "--wait-for", wait_for, "--tasks", &tasks])?;
    waiters.expect("ready", REPLY_TIMEOUT)?;
    let served = ServerStats::read(&server)?;
    let bytes = Bytes::now(&server, &waiters)?;
    waiters.send("wait")?;
    waiters.expect("waiting", REPLY_TIMEOUT)?;
    // Each lock is requested at least once, with the name of the waiter.
    let start = Instant::now();
    while ServerStats::read(&server)?.since(served).scripts < locks {
        ensure!(start.elapsed() < REPLY_TIMEOUT, "not all tasks wait");
        std::thread::sleep(Duration::from_millis(50));
    }
    bytes.grown(&server, &waiters, count)
}

/// Measures many bare keys with a token and an expiry.
fn measure_bare(count: u64) -> Result<f64> {
    let server = start_server()?;
    let mut conn = server.connect()?;
    let before = used_bytes(&server)?;
    for n in 0..count {
        conn.call(&["SET", &lock_name(n), &format!("{n:039}"), "NX", "PX", "60000"])?.ok()?;
    }
    Ok(per(used_bytes(&server)?.saturating_sub(before), count))
}

fn start_holder(server: &RedisServer, locks: u64) -> Result<Worker> {
    let mut holder =
        start_worker(&["hold", "--url", &server.url(), "--locks", &locks.to_string(), "--over-ms", "0"])?;
    holder.expect("ready", REPLY_TIMEOUT)?;
    Ok(holder)
}

fn acquire_all(holder: &mut Worker) -> Result<()> {
    holder.send("acquire")?;
    Ok(holder.expect("held", REPLY_TIMEOUT).map(drop)?)
}

fn report(options: &Options, rounds: &[Round], machine: Machine) -> MemoryReport {
    let middle = |figure: fn(&Round) -> f64| Spread::over(rounds, figure).median;
    let held = Spread::over(rounds, |round| round.held.server / round.bare_server);
    let waiter = Spread::over(rounds, |round| round.waiter.client / round.tokio_client);
    MemoryReport {
        scenario: "memory",
        held_server_ratio: held.median,
        waiter_client_ratio: waiter.median,
        held_server_ratio_spread: held.ends(),
        waiter_client_ratio_spread: waiter.ends(),
        held_client_bytes: middle(|round| round.held.client),
        held_server_bytes: middle(|round| round.held.server),
        waiter_client_bytes: middle(|round| round.waiter.client),
        waiter_server_bytes: middle(|round| round.waiter.server),
        apart_client_bytes: middle(|round| round.apart.client),
        apart_server_bytes: middle(|round| round.apart.server),
        bare_server_bytes: middle(|round| round.bare_server),
        tokio_client_bytes: middle(|round| round.tokio_client),
        count: options.count,
        apart: options.apart,
        rounds: rounds.len(),
        machine,
    }
}

impl MemoryReport {
    fn sentence(&self) -> String {
        format!(
            "memory: a held lock takes {:.0} bytes of the client and {:.0} of the server, {:.1} x a bare key ({:.0}); a task that \
             waits for one lock {:.0} of the client, {:.1} x one that waits for tokio's mutex ({:.0}), and {:.1} of the server; \
             a task that waits for a lock of its own {:.0} and {:.0}",
            self.held_client_bytes,
            self.held_server_bytes,
            self.held_server_ratio,
            self.bare_server_bytes,
            self.waiter_client_bytes,
            self.waiter_client_ratio,
            self.tokio_client_bytes,
            self.waiter_server_bytes,
            self.apart_client_bytes,
            self.apart_server_bytes,
        )
    }

    fn chart(&self, rounds: &[Round]) -> Chart {
        let series = |name: &str, figures: [fn(&Round) -> f64; 4]| {
            let values = figures.map(|figure| Spread::over(rounds, figure)).to_vec();
            Series { name: name.to_owned(), values }
        };
        let groups =
            ["a held lock", "a task that waits\nfor one lock", "a task that waits\nfor its own", "bare"];
        Chart {
            title: "Bytes of a held lock, and of a waiter".to_owned(),
            note: self.machine.to_string(),
            y: Axis { label: "bytes each".to_owned(), log: false },
            kind: Kind::Bars {
                groups: groups.map(str::to_owned).to_vec(),
                series: vec![
                    series(
                        "of the client (bare: a task that waits for tokio's mutex)",
                        [
                            |round| round.held.client,
                            |round| round.waiter.client,
                            |round| round.apart.client,
                            |round| round.tokio_client,
                        ],
                    ),
                    series(
                        "of the server (bare: a key with an expiry)",
                        [
                            |round| round.held.server,
                            |round| round.waiter.server,
                            |round| round.apart.server,
                            |round| round.bare_server,
                        ],
                    ),
                ],
            },
            limits: Vec::new(),
        }
    }
}
