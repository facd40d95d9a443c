//! How soon two processes that wait for each other are named, and what it costs the server to keep statistics.
//!
//! Each client of the first part has a session of its own, as a process has. In the second part clients come and go, with and
//! without statistics in the same rounds: each holds a lock of each class once, and merges at its end, which is the only merge
//! of so short a life.

use crate::launch::{REPLY_TIMEOUT, start_server};
use crate::meter::{Machine, ServerStats};
use crate::report::{Output, median, per, quantile_us, spread};
use anyhow::{Context, Result, ensure};
use leasehold::Client;
use leasehold_testkit::RedisServer;
use serde::Serialize;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How soon after the second wait began a deadlock has to be named.
const NAMED_WITHIN_MS: f64 = 2000.0;
/// How long a shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// How often a client merges its statistics while it runs.
const MERGE_EVERY: Duration = Duration::from_secs(60);

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct ObserveReport {
    scenario: &'static str,
    /// From the call of the second wait until the graph of a third client has the cycle.
    named_p50_ms: f64,
    named_longest_ms: f64,
    deadlocks: usize,
    /// Cycles that the graph had while only one of both waited.
    named_early: usize,
    /// Processor time of the server for a client's life, in addition to that of one without statistics.
    merge_us: f64,
    merge_us_spread: [f64; 2],
    /// The same, for the whole life without statistics.
    plain_us: f64,
    /// Of a core, for each client that merges every minute.
    merge_cpu_share: f64,
    classes: usize,
    clients: usize,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many deadlocks are made.
    #[arg(long, default_value_t = 20)]
    deadlocks: usize,
    /// How many classes of locks each client uses.
    #[arg(long, default_value_t = 20)]
    classes: usize,
    /// How many clients of each sort a round has.
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// How many rounds are measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0 && options.clients > 0, "there must be a round with a client");
    let server = start_server()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (mut named, mut named_early) = (Vec::new(), 0);
    let [one, other, observer] = runtime.block_on(async {
        let url = server.url();
        let connect = || crate::client::connect(&url);
        anyhow::Ok([connect().await?, connect().await?, connect().await?])
    })?;
    for n in 0..options.deadlocks {
        let (early, took_ns) = runtime.block_on(deadlock(&one, &other, &observer, n))?;
        named_early += usize::from(early);
        named.push(took_ns);
    }
    let (mut costs, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let [without, with] =
            [false, true].map(|statistics| runtime.block_on(clients(&server, options, statistics)));
        let (without, with) = (without?, with?);
        costs.push(with - without);
        plain.push(without);
    }
    let ms = |quantile: f64| if named.is_empty() { 0.0 } else { quantile_us(&named, quantile) / 1000.0 };
    let report = ObserveReport {
        scenario: "observe",
        named_p50_ms: ms(0.5),
        named_longest_ms: ms(1.0),
        deadlocks: named.len(),
        named_early,
        merge_us: median(&costs),
        merge_us_spread: spread(&costs),
        plain_us: median(&plain),
        merge_cpu_share: median(&costs) / (MERGE_EVERY.as_secs_f64() * 1e6),
        classes: options.classes,
        clients: options.clients,
        rounds: options.rounds,
        machine: Machine::with(&server)?,
    };
    options.output.print(&report, || report.sentence())
}

/// Makes a deadlock and ends it. Returns whether it was named early, and the nanoseconds until it was named.
async fn deadlock(one: &Client, other: &Client, observer: &Client, n: usize) -> Result<(bool, u64)> {
    let names = [format!("one/{n}"), format!("other/{n}")];
    let (first, second) =
        (Process::start(one, &names[0], &names[1]), Process::start(other, &names[1], &names[0]));
    let (mut first, mut second) = (first.await?, second.await?);
    first.go_on();
    let limit = Instant::now() + REPLY_TIMEOUT;
    while observer.wait_graph().await?.waits.is_empty() {
        ensure!(Instant::now() < limit, "the first wait is not reported");
    }
    let early = !observer.wait_graph().await?.cycles.is_empty();
    let start = Instant::now();
    second.go_on();
    while observer.wait_graph().await?.cycles.is_empty() {
        ensure!(Instant::now() < limit, "the deadlock is not named");
    }
    let took_ns = u64::try_from(start.elapsed().as_nanos())?;
    second.task.abort();
    first.task.await.context("the first process ended")??;
    // The next deadlock starts with no wait.
    while !observer.wait_graph().await?.waits.is_empty() {
        ensure!(Instant::now() < limit, "a wait does not end");
    }
    Ok((early, took_ns))
}

/// A task that holds one lock, and waits for another one when it may go on.
struct Process {
    task: JoinHandle<Result<()>>,
    go: Option<oneshot::Sender<()>>,
}

impl Process {
    /// Returns once the lock is held.
    async fn start(client: &Client, held: &str, wanted: &str) -> Result<Self> {
        let (go, may_go_on) = oneshot::channel();
        let (report, holds) = oneshot::channel();
        let (held, wanted) = (client.mutex(held)?, client.mutex(wanted)?);
        let task = tokio::spawn(async move {
            let guard = held.acquire().await?;
            // The other side waits for as long as this task lives.
            let _ = report.send(());
            may_go_on.await?;
            let both = (wanted.acquire().await?, guard);
            both.0.release().await?;
            both.1.release().await?;
            Ok(())
        });
        holds.await.context("the lock is held")?;
        Ok(Self { task, go: Some(go) })
    }

    fn go_on(&mut self) {
        if let Some(go) = self.go.take() {
            // A task that has ended is found when it is joined.
            let _ = go.send(());
        }
    }
}

/// Clients that come and go, one after the other. Returns the server's processor time for each, in microseconds.
async fn clients(server: &RedisServer, options: &Options, statistics: bool) -> Result<f64> {
    let before = ServerStats::read(server)?;
    for _ in 0..options.clients {
        let client = crate::client::builder(&server.url()).statistics(statistics).connect().await?;
        for class in 0..options.classes {
            let lock = client.mutex(format!("job {class}"))?.class(&format!("class {class}"));
            lock.acquire().await?.release().await?;
        }
        client.shutdown(SHUTDOWN).await?;
    }
    let cost = ServerStats::read(server)?.since(before);
    Ok(per(cost.cpu_us, u64::try_from(options.clients)?))
}

impl ObserveReport {
    fn sentence(&self) -> String {
        format!(
            "observe: of {} deadlocks each was named {:.0} ms after the second wait began (median; {:.0} ms at most; bound \
             {NAMED_WITHIN_MS} ms), and {} before; a merge of {} classes costs the server {:.0} us ({:.0} to {:.0}; a client's \
             life without it {:.0} us), which is {:.4} % of a core for a client that merges every minute",
            self.deadlocks,
            self.named_p50_ms,
            self.named_longest_ms,
            self.named_early,
            self.classes,
            self.merge_us,
            self.merge_us_spread[0],
            self.merge_us_spread[1],
            self.plain_us,
            self.merge_cpu_share * 100.0,
        )
    }
}
