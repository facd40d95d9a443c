//! How many bytes a held lock and a waiter take, of the client and of the server.
//!
//! What the kernel counts as resident of a fresh process, and the server as used, before and after there are many of them.
//! Beside it, in the same rounds: what a bare key with a token and an expiry takes of the server, and a task that waits for
//! a mutex of tokio's of the client.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::handoff::{PATIENCE, worker};
use crate::meter::{Machine, Served, resident_bytes, used_bytes};
use crate::report::{Output, per};
use crate::waiters::name;
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What has been asked for is answered, and buffers have been given back, by then.
const SETTLED: Duration = Duration::from_millis(700);

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many locks are held, and how many tasks wait before one lock.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// How many tasks wait, each before a lock of its own: each of them looks now and then.
    #[arg(long, default_value_t = 4_000)]
    apart: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct MemoryReport {
    scenario: &'static str,
    /// Of the server a held lock, to a bare key; of the client a task that waits before one lock, to one that waits for
    /// tokio's mutex.
    held_server_ratio: f64,
    waiter_client_ratio: f64,
    held_server_ratio_spread: [f64; 2],
    waiter_client_ratio_spread: [f64; 2],
    /// Bytes each: of locks that are held,
    held_client_bytes: f64,
    held_server_bytes: f64,
    /// of tasks of one process that wait before one lock,
    waiter_client_bytes: f64,
    waiter_server_bytes: f64,
    /// and of tasks that wait before a lock each.
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

/// Bytes each, of the client and of the server.
#[derive(Clone, Copy)]
struct Each {
    client: f64,
    server: f64,
}

/// One round.
struct Round {
    held: Each,
    waiter: Each,
    apart: Each,
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
            held: held(count)?,
            waiter: waiting(count, "one", 1)?,
            apart: waiting(apart, "many", apart)?,
            bare_server: bare(count)?,
            tokio_client: waiting(count, "tokio", 0)?.client,
        });
        let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
        machine = Some(Machine::with(&server)?);
    }
    let report = report(options, &rounds, machine.context("no round")?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("memory", || report.chart(&rounds))
}

/// What both sides have at a time, in bytes.
struct Bytes {
    client: u64,
    server: u64,
}

impl Bytes {
    fn now(server: &RedisServer, worker: &Worker) -> Result<Self> {
        Ok(Self { client: resident_bytes(worker.pid())?, server: used_bytes(server)? })
    }

    /// How much more there is by now, for each of so many.
    fn grown(&self, server: &RedisServer, worker: &Worker, count: u64) -> Result<Each> {
        std::thread::sleep(SETTLED);
        let now = Self::now(server, worker)?;
        let each = |now: u64, before: u64| per(now.saturating_sub(before), count);
        Ok(Each { client: each(now.client, self.client), server: each(now.server, self.server) })
    }
}

fn boot() -> Result<RedisServer> {
    RedisServer::builder().pinned(0).start().context("booting redis-server")
}

/// Of many locks that one process holds.
fn held(count: u64) -> Result<Each> {
    let server = boot()?;
    let mut holder = holder(&server, count)?;
    let before = Bytes::now(&server, &holder)?;
    take(&mut holder)?;
    before.grown(&server, &holder, count)
}

/// Of many tasks of one process that wait, while another has so many locks.
fn waiting(count: u64, before: &str, locks: u64) -> Result<Each> {
    let server = boot()?;
    let mut holder = holder(&server, locks)?;
    take(&mut holder)?;
    std::thread::sleep(SETTLED);
    let (url, tasks) = (server.url(), count.to_string());
    let mut waiters = worker(&["wait", "--url", &url, "--before", before, "--tasks", &tasks])?;
    waiters.expect("ready", PATIENCE)?;
    let served = Served::of(&server)?;
    let bytes = Bytes::now(&server, &waiters)?;
    waiters.send("wait")?;
    waiters.expect("waiting", PATIENCE)?;
    // Each lock is requested at least once, with the name of the waiter.
    let start = Instant::now();
    while Served::of(&server)?.since(served).scripts < locks {
        ensure!(start.elapsed() < PATIENCE, "not all of them wait");
        std::thread::sleep(Duration::from_millis(50));
    }
    bytes.grown(&server, &waiters, count)
}

/// Of many bare keys with a token and an expiry, on the server.
fn bare(count: u64) -> Result<f64> {
    let server = boot()?;
    let mut conn = server.connect()?;
    let before = used_bytes(&server)?;
    for n in 0..count {
        conn.call(&["SET", &name(n), &format!("{n:039}"), "NX", "PX", "60000"])?.ok()?;
    }
    Ok(per(used_bytes(&server)?.saturating_sub(before), count))
}

fn holder(server: &RedisServer, locks: u64) -> Result<Worker> {
    let mut holder =
        worker(&["hold", "--url", &server.url(), "--locks", &locks.to_string(), "--over-ms", "0"])?;
    holder.expect("ready", PATIENCE)?;
    Ok(holder)
}

fn take(holder: &mut Worker) -> Result<()> {
    holder.send("acquire")?;
    Ok(holder.expect("held", PATIENCE).map(drop)?)
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
            "memory: a held lock has {:.0} bytes of the client and {:.0} of the server, {:.1} x a bare key ({:.0}); a task that waits \
             before one lock {:.0} of the client, {:.1} x one that waits for tokio's mutex ({:.0}), and {:.1} of the server; one \
             that waits before a lock of its own {:.0} and {:.0}",
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
        let groups = [
            "a held lock",
            "a task that waits\nbefore one lock",
            "a task that waits\nbefore its own",
            "bare",
        ];
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
