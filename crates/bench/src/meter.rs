//! Meters that the kernel and the server keep: processor time of processes, and what a server has executed.

use anyhow::{Context, Result};
use leasehold_testkit::RedisServer;
use serde::Serialize;
use std::{fmt, fs};

/// Commands that only clients send, never a script of Leasehold's; without INFO, most of which the benchmark sends.
const REQUESTS: [&str; 8] =
    ["evalsha", "eval", "script|load", "subscribe", "unsubscribe", "ping", "hello", "client|setinfo"];

/// What the threads of a process have used since they began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Threads {
    /// Processor time, in nanoseconds, as the scheduler counts it.
    pub(crate) cpu_ns: u64,
    /// How often they went to sleep by themselves, and so were woken.
    pub(crate) naps: u64,
}

impl Threads {
    /// Of the threads with this name, or of all. A thread that ends meanwhile counts for nothing.
    pub(crate) fn of(pid: u32, named: Option<&str>) -> Result<Self> {
        let mut all = Self::default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let read = |file: &str, path: &std::path::Path| fs::read_to_string(path.join(file));
            let path = thread?.path();
            // The kernel keeps 15 bytes of a name.
            let name = read("comm", &path).unwrap_or_default();
            if named.is_some_and(|wanted| wanted.get(..15).unwrap_or(wanted) != name.trim_end()) {
                continue;
            }
            let schedstat = read("schedstat", &path).unwrap_or_default();
            all.cpu_ns += first_number(&schedstat).unwrap_or(0);
            all.naps +=
                field(&read("status", &path).unwrap_or_default(), "voluntary_ctxt_switches:").unwrap_or(0);
        }
        Ok(all)
    }

    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            naps: self.naps.saturating_sub(earlier.naps),
        }
    }
}

/// What a server has done since it was booted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// Processor time of its process, in microseconds.
    pub(crate) cpu_us: u64,
    /// How many requests it got of the kinds that only a client sends, never a script of ours.
    pub(crate) requests: u64,
    /// How many scripts it ran by their names.
    pub(crate) scripts: u64,
    /// How long they ran, in microseconds, with the commands inside.
    pub(crate) scripts_us: u64,
    /// How many SETs it ran, by scripts or without, and how long they took.
    pub(crate) sets: u64,
    pub(crate) sets_us: u64,
    /// How many expiries were set, by scripts or without: one an extend, and one a beat.
    pub(crate) expiries: u64,
}

impl Served {
    /// Reads the server's own statistics.
    pub(crate) fn of(server: &RedisServer) -> Result<Self> {
        let cpu = info(server, "cpu")?;
        let seconds = |name| -> Result<f64> {
            let text = cpu.lines().find_map(|line| line.strip_prefix(name)).context("no processor time")?;
            Ok(text.trim().parse()?)
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a server that runs for minutes, with six digits behind the point"
        )]
        let cpu_us = ((seconds("used_cpu_user:")? + seconds("used_cpu_sys:")?) * 1e6) as u64;
        let counts = info(server, "commandstats")?;
        let part = |command: &str, name: &str| {
            let line = counts.lines().find_map(|line| line.strip_prefix(command)).unwrap_or_default();
            line.split([',', ':']).find_map(|part| first_number(part.strip_prefix(name)?)).unwrap_or(0)
        };
        let (scripts, sets) = ("cmdstat_evalsha:", "cmdstat_set:");
        Ok(Self {
            cpu_us,
            requests: REQUESTS.iter().map(|name| part(&format!("cmdstat_{name}:"), "calls=")).sum(),
            scripts: part(scripts, "calls="),
            scripts_us: part(scripts, "usec="),
            sets: part(sets, "calls="),
            sets_us: part(sets, "usec="),
            expiries: part("cmdstat_pexpire:", "calls="),
        })
    }

    /// What was done since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            requests: self.requests.saturating_sub(earlier.requests),
            scripts: self.scripts.saturating_sub(earlier.scripts),
            scripts_us: self.scripts_us.saturating_sub(earlier.scripts_us),
            sets: self.sets.saturating_sub(earlier.sets),
            sets_us: self.sets_us.saturating_sub(earlier.sets_us),
            expiries: self.expiries.saturating_sub(earlier.expiries),
        }
    }
}

/// What a process has in memory, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(field(&all, "Rss:").context("no resident memory")? * 1024)
}

/// What a server has in use, in bytes, by its own words.
pub(crate) fn used_bytes(server: &RedisServer) -> Result<u64> {
    field(&info(server, "memory")?, "used_memory:").context("no memory in use")
}

/// What stands behind the figures of a report: they cannot be compared with those of another.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The processor's own words of what it is.
    cpu: String,
    /// How many of its cores this program may use.
    cores: usize,
    /// The kernel, and its release.
    kernel: String,
    /// The server's own words of what it is.
    server: String,
}

impl Machine {
    /// The one that this program and that server run on.
    pub(crate) fn with(server: &RedisServer) -> Result<Self> {
        Self::here(server_version(server)?)
    }

    /// The one that this program runs on, with what is said of the server.
    pub(crate) fn here(server: String) -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpus.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cpu: model.unwrap_or("unknown").trim().to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: format!("Linux {}", release.trim()),
            server,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, server } = self;
        write!(f, "{cpu}, {cores} cores, {kernel}, {server}")
    }
}

/// The server's own words of what it is.
pub(crate) fn server_version(server: &RedisServer) -> Result<String> {
    let text = info(server, "server")?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    Ok(field("valkey_version:")
        .map(|version| format!("valkey {version}"))
        .or_else(|| field("redis_version:").map(|version| format!("redis {version}")))
        .unwrap_or_default())
}

fn info(server: &RedisServer, section: &str) -> Result<String> {
    let info = server.cli(&["INFO", section])?.ok()?;
    Ok(info.text().unwrap_or_default().to_owned())
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| first_number(line.strip_prefix(name)?))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_by_its_name_and_its_time_is_counted() {
        let pid = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::Builder::new().name("a-thread-with-a-long-name".into()).spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let counted = || Threads::of(pid, Some("a-thread-with-a-long-name")).expect("there is /proc");
        // How soon the thread gets a core depends on the load.
        while counted().cpu_ns <= 5_000_000 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let named = counted();
        let all = Threads::of(pid, None).expect("there is /proc");
        let none = Threads::of(pid, Some("no such thread")).expect("there is /proc");
        drop(stop);
        busy.expect("it starts").join().expect("no panic");
        assert!(named.cpu_ns > 5_000_000, "{named:?}");
        assert!(all.cpu_ns >= named.cpu_ns && none.cpu_ns == 0, "{all:?} {none:?}");
    }
}
