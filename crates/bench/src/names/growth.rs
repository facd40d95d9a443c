//! How much memory or space a store takes while one client uses fresh names for minutes.

use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, resident_bytes, used_bytes};
use crate::report::{Output, per};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The interval of the lines, for long times.
const INTERVAL: Duration = Duration::from_secs(30);
/// How many lines there are at least.
const LINES_AT_LEAST: u32 = 3;

/// A store whose growth is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum StoreKind {
    /// The memory that a server reports as used.
    Redis,
    /// The size of the database and its log.
    Sqlite,
    /// The resident memory of the process.
    Memory,
}

/// What was measured at one time. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct GrowthReport {
    scenario: &'static str,
    store: &'static str,
    at_s: f64,
    bytes: u64,
    /// The growth since the start, divided by the pairs.
    bytes_per_pair: f64,
    pairs: u64,
    tasks: u32,
    #[serde(flatten)]
    machine: Machine,
}

/// A running store.
enum Store {
    Redis(RedisServer),
    Sqlite(TempDir),
    Memory,
}

/// Measures each store for that time.
pub(super) fn run(output: &Output, stores: &[StoreKind], tasks: u32, time: Duration) -> Result<()> {
    for kind in stores {
        let store = Store::start(*kind)?;
        let (url, tasks_text) = (store.url(), tasks.to_string());
        let mut worker = start_worker(&["names", "--url", &url, "--tasks", &tasks_text])?;
        worker.expect("ready", REPLY_TIMEOUT)?;
        let (start, before) = (Instant::now(), store.bytes(&worker)?);
        worker.send("begin")?;
        let mut elapsed = Duration::ZERO;
        while elapsed < time {
            std::thread::sleep(INTERVAL.min(time / LINES_AT_LEAST).min(time.saturating_sub(elapsed)));
            elapsed = start.elapsed();
            worker.send("count")?;
            let pairs = worker.line(REPLY_TIMEOUT)?.parse()?;
            let bytes = store.bytes(&worker)?;
            let report = GrowthReport {
                scenario: "names-growth",
                store: store.name(),
                at_s: elapsed.as_secs_f64(),
                bytes,
                bytes_per_pair: per(bytes.saturating_sub(before), pairs),
                pairs,
                tasks,
                machine: store.machine()?,
            };
            output.print(&report, || report.sentence())?;
        }
        worker.send("stop")?;
        worker.wait(REPLY_TIMEOUT)?;
    }
    Ok(())
}

impl Store {
    fn start(kind: StoreKind) -> Result<Self> {
        Ok(match kind {
            StoreKind::Redis => Self::Redis(start_server()?),
            StoreKind::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            StoreKind::Memory => Self::Memory,
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Sqlite(_) => "sqlite",
            Self::Memory => "memory",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Sqlite(dir) => format!("sqlite:{}", database(dir).display()),
            Self::Memory => "memory:".to_owned(),
        }
    }

    fn bytes(&self, worker: &Worker) -> Result<u64> {
        match self {
            Self::Redis(server) => used_bytes(server),
            Self::Sqlite(dir) => file_bytes(dir.path()),
            Self::Memory => resident_bytes(worker.pid()),
        }
    }

    fn machine(&self) -> Result<Machine> {
        match self {
            Self::Redis(server) => Machine::with(server),
            Self::Sqlite(_) | Self::Memory => Machine::here("no server".to_owned()),
        }
    }
}

fn database(dir: &TempDir) -> PathBuf {
    dir.path().join("locks.db")
}

/// The size of all files of a directory.
fn file_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in dir.read_dir()? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// Parses `30s`, `5m` or `1h`.
pub(super) fn parse_time(text: &str) -> Result<Duration> {
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).context("not a time")?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => bail!("a time such as `30s`, `5m` or `1h`, not `{text}`"),
    };
    Ok(Duration::from_secs(number.parse::<u64>()? * seconds))
}

impl GrowthReport {
    fn sentence(&self) -> String {
        format!(
            "names, {}: {:.1} MB after {:.0} s and {} pairs, {:.1} bytes a pair",
            self.store,
            per(self.bytes, 1_000_000),
            self.at_s,
            self.pairs,
            self.bytes_per_pair,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_parsed() {
        let check = |text: &str| parse_time(text).map(|time| time.as_secs()).ok();
        assert_eq!([check("30s"), check("5m"), check("1h")], [Some(30), Some(300), Some(3600)]);
        assert_eq!([check(""), check("5"), check("m"), check("5 m"), check("ß")], [None; 5]);
    }
}
