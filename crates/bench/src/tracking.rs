//! What it costs the server that holders learn at once of a removed lock (`?tracking=1`), and how soon they do.
//!
//! Two servers on one core each have a process that holds as many locks, one with and one without the setting, and both are
//! measured in the same rounds. Then this process holds locks on the first server, and deletes their keys one after the other.

use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, ServerStats, used_bytes};
use crate::report::{Output, median, per, quantile_us, spread};
use crate::worker::renewal::PERIOD;
use anyhow::{Context, Result, ensure};
use leasehold::Guard;
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The greatest ratio at which the setting would be on by default.
const DEFAULT_BELOW: f64 = 1.05;
/// How soon a holder has to learn of it.
const NOTICED_WITHIN_MS: f64 = 50.0;
/// How long after the acquire its key is deleted: by then each hold is watched.
const WATCHED_AFTER: Duration = Duration::from_millis(500);

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct TrackingReport {
    scenario: &'static str,
    /// Processor time of the server with the setting, relative to the one without.
    server_ratio: f64,
    server_ratio_spread: [f64; 2],
    /// Processor time divided by the elapsed time.
    server_cpu_share: f64,
    plain_server_cpu_share: f64,
    /// Memory that the server uses in addition, for a lock.
    bytes_per_lock: f64,
    /// From the DEL to `lost()`, in milliseconds.
    noticed_p50_ms: f64,
    noticed_p99_ms: f64,
    noticed_longest_ms: f64,
    deletions: usize,
    locks: u64,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many locks each process holds.
    #[arg(long, default_value_t = 10_000)]
    locks: u64,
    /// How many renewal periods are measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many keys are deleted.
    #[arg(long, default_value_t = 100)]
    deletions: usize,
}

/// A server, and the process that holds locks on it.
struct Side {
    server: RedisServer,
    url: String,
    worker: Worker,
}

impl Side {
    fn start(locks: u64, query: &str) -> Result<Self> {
        let server = start_server()?;
        let url = format!("{}{query}", server.url());
        let (locks, over_ms) = (locks.to_string(), PERIOD.as_millis().to_string());
        let mut worker = start_worker(&["hold", "--url", &url, "--locks", &locks, "--over-ms", &over_ms])?;
        worker.expect("ready", REPLY_TIMEOUT)?;
        Ok(Self { server, url, worker })
    }
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0, "at least one renewal period must be measured");
    let mut sides = [Side::start(options.locks, "?tracking=1")?, Side::start(options.locks, "")?];
    for side in &mut sides {
        side.worker.send("acquire")?;
    }
    for side in &mut sides {
        side.worker.expect("held", REPLY_TIMEOUT + PERIOD)?;
    }
    let read = || -> Result<[ServerStats; 2]> {
        Ok([ServerStats::read(&sides[0].server)?, ServerStats::read(&sides[1].server)?])
    };
    let (mut ratios, mut shares, mut plain_shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (start, before) = (Instant::now(), read()?);
        std::thread::sleep(PERIOD);
        let (after, took_us) = (read()?, u64::try_from(start.elapsed().as_micros())?);
        let [ours, plain] = [0, 1].map(|side| after[side].since(before[side]));
        // The processes renew independently, so a period of one can have a few more.
        let each = |stats: ServerStats| per(stats.cpu_us, stats.expiries);
        ratios.push(each(ours) / each(plain));
        shares.push(per(ours.cpu_us, took_us));
        plain_shares.push(per(plain.cpu_us, took_us));
    }
    let [ours, plain] = [used_bytes(&sides[0].server)?, used_bytes(&sides[1].server)?];
    let noticed = notice(&sides[0], options.deletions)?;
    let ms = |quantile: f64| quantile_us(&noticed, quantile) / 1000.0;
    let report = TrackingReport {
        scenario: "tracking",
        server_ratio: median(&ratios),
        server_ratio_spread: spread(&ratios),
        server_cpu_share: median(&shares),
        plain_server_cpu_share: median(&plain_shares),
        bytes_per_lock: per(ours.saturating_sub(plain), options.locks),
        noticed_p50_ms: ms(0.5),
        noticed_p99_ms: ms(0.99),
        noticed_longest_ms: ms(1.0),
        deletions: noticed.len(),
        locks: options.locks,
        rounds: options.rounds,
        machine: Machine::with(&sides[0].server)?,
    };
    options.output.print(&report, || report.sentence())
}

/// Holds locks, deletes their keys one after the other, and returns the nanoseconds until each loss was reported.
fn notice(side: &Side, deletions: usize) -> Result<Vec<u64>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut connection = side.server.connect()?;
    runtime.block_on(async {
        let client = crate::client::connect(&side.url).await?;
        let mut guards: Vec<(String, Guard)> = Vec::new();
        for n in 0..deletions {
            let name = format!("deleted/{n}");
            guards.push((name.clone(), client.mutex(name)?.acquire().await?));
        }
        tokio::time::sleep(WATCHED_AFTER).await;
        let mut noticed = Vec::new();
        for (name, guard) in &guards {
            let start = Instant::now();
            connection.call(&["DEL", name])?.ok()?;
            tokio::time::timeout(REPLY_TIMEOUT, guard.lost()).await.context("a loss was not noticed")?;
            noticed.push(u64::try_from(start.elapsed().as_nanos())?);
        }
        Ok(noticed)
    })
}

impl TrackingReport {
    fn sentence(&self) -> String {
        format!(
            "tracking: with {} locks a renewal costs the server {:.2} x as much ({:.2} to {:.2}), {:.2} % of a core in place \
             of {:.2} %, and {:.0} bytes a lock (on by default below {DEFAULT_BELOW}); of {} deletions the holder learns after \
             {:.2} ms (median; {:.2} ms p99, {:.2} ms at most; bound {NOTICED_WITHIN_MS} ms)",
            self.locks,
            self.server_ratio,
            self.server_ratio_spread[0],
            self.server_ratio_spread[1],
            self.server_cpu_share * 100.0,
            self.plain_server_cpu_share * 100.0,
            self.bytes_per_lock,
            self.deletions,
            self.noticed_p50_ms,
            self.noticed_p99_ms,
            self.noticed_longest_ms,
        )
    }
}
