//! The cost of waiting for a lock in an SQLite file, and how soon the next process wakes.
//!
//! 64 processes wait for one lock, which this process holds; their processor time is read from the kernel's scheduler. Then
//! they hand the lock over among themselves.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::contention::Contenders;
use crate::critical_section::{handovers_ns, now_ns};
use crate::launch::REPLY_TIMEOUT;
use crate::meter::{Machine, ThreadStats};
use crate::report::{Output, per, quantile_us};
use crate::worker::protocol::LOCK;
use anyhow::{Context, Result, ensure};
use leasehold_testkit::Worker;
use serde::Serialize;
use std::process::Command;
use std::time::{Duration, Instant};

/// The acceptable 99th percentile of a wake-up.
const WAKE_AT_MOST_MS: f64 = 20.0;
/// How long each process holds the lock before it hands it over.
const HOLD_US: u64 = 5_000;

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct SqliteReport {
    scenario: &'static str,
    /// Processor time of all waiting processes together, divided by the elapsed time.
    waiting_cpu_share: f64,
    /// From the call of the release to the next holder running in another process, in milliseconds.
    wake_p50_ms: f64,
    wake_p99_ms: f64,
    wake_longest_ms: f64,
    handoffs: usize,
    processes: u32,
    waited_s: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many processes wait.
    #[arg(long, default_value_t = 64)]
    processes: u32,
    /// How long they wait, and how long they then hand the lock over.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { processes, seconds, .. } = *options;
    let dir = tempfile::tempdir()?;
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let holder = runtime.block_on(crate::client::connect(&url))?;
    let mutex = holder.mutex(LOCK)?;
    let guard = runtime.block_on(mutex.acquire())?;
    let mut workers = Vec::new();
    for process in 0..processes {
        workers.push(start_worker(&url, process)?);
    }
    let mut contenders = Contenders::connect(workers)?;
    contenders.begin()?;
    let start = Instant::now();
    while runtime.block_on(mutex.inspect())?.waiting < u64::from(processes) {
        ensure!(start.elapsed() < REPLY_TIMEOUT, "not all processes wait");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The cost of joining the queue is not measured.
    std::thread::sleep(Duration::from_secs(3));
    let (start, before) = (Instant::now(), cpu_ns(contenders.workers())?);
    std::thread::sleep(Duration::from_secs(seconds));
    let (waited, after) = (start.elapsed(), cpu_ns(contenders.workers())?);
    contenders.discard()?;
    runtime.block_on(guard.release())?;
    std::thread::sleep(Duration::from_secs(seconds));
    let until_ns = now_ns();
    let mut sections = contenders.stop()?;
    // The processes stop one after another, so later hand-offs are not recorded completely.
    sections.retain(|section| section.acquired_ns < until_ns);
    let wakes = handovers_ns(&mut sections);
    let report = SqliteReport {
        scenario: "sqlite",
        waiting_cpu_share: per(after - before, u64::try_from(waited.as_nanos())?),
        wake_p50_ms: quantile_us(&wakes, 0.5) / 1000.0,
        wake_p99_ms: quantile_us(&wakes, 0.99) / 1000.0,
        wake_longest_ms: quantile_us(&wakes, 1.0) / 1000.0,
        handoffs: wakes.len(),
        processes,
        waited_s: waited.as_secs_f64(),
        machine: Machine::here("no server".to_owned())?,
    };
    options.output.print(&report, || report.sentence())?;
    options.output.draw("sqlite", || report.chart())
}

impl SqliteReport {
    fn sentence(&self) -> String {
        format!(
            "sqlite: {} processes wait with {:.2} % of a core together; woken after {:.2} ms (p50), {:.2} ms (p99), \
             {:.1} ms at most, in {} hand-offs",
            self.processes,
            self.waiting_cpu_share * 100.0,
            self.wake_p50_ms,
            self.wake_p99_ms,
            self.wake_longest_ms,
            self.handoffs,
        )
    }

    fn chart(&self) -> Chart {
        let values = [self.wake_p50_ms, self.wake_p99_ms, self.wake_longest_ms].map(|ms| Spread::of(&[ms]));
        let groups = ["median", "99th percentile", "longest"].map(str::to_owned).to_vec();
        let name = "from release to the next holder".to_owned();
        Chart {
            title: format!("A lock in an SQLite file, handed off among {} processes", self.processes),
            note: self.machine.to_string(),
            y: Axis { label: "milliseconds".to_owned(), log: false },
            kind: Kind::Bars { groups, series: vec![Series { name, values: values.to_vec() }] },
            limits: vec![Limit { at: WAKE_AT_MOST_MS, label: "at most, at the 99th percentile".to_owned() }],
        }
    }
}

fn start_worker(url: &str, process: u32) -> Result<Worker> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "contend", "--url", url, "--tasks", "1"]);
    command.args(["--process", &process.to_string(), "--hold-us", &HOLD_US.to_string()]);
    Worker::of_command(command).start().context("failed to start a worker")
}

/// Processor time of all threads of all workers, in nanoseconds.
fn cpu_ns(workers: &[Worker]) -> Result<u64> {
    workers.iter().map(|worker| Ok(ThreadStats::read(worker.pid(), None)?.cpu_ns)).sum()
}
