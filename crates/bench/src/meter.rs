//! Meters that the kernel and the server keep: processor time of processes, and what a server has executed.

use anyhow::{Context, Result};
use leasehold_testkit::RedisServer;
use std::fs;

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
    /// How many scripts it ran by their names.
    pub(crate) scripts: u64,
    /// How long they ran, in microseconds.
    pub(crate) scripts_us: u64,
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
            line.split(',').find_map(|part| first_number(part.strip_prefix(name)?)).unwrap_or(0)
        };
        let scripts = "cmdstat_evalsha:";
        Ok(Self {
            cpu_us,
            scripts: part(scripts, "calls="),
            scripts_us: part(scripts, "usec="),
            expiries: part("cmdstat_pexpire:", "calls="),
        })
    }

    /// What was done since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            scripts: self.scripts.saturating_sub(earlier.scripts),
            scripts_us: self.scripts_us.saturating_sub(earlier.scripts_us),
            expiries: self.expiries.saturating_sub(earlier.expiries),
        }
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
        let (begun, begins) = std::sync::mpsc::channel();
        let busy = std::thread::Builder::new().name("a-thread-with-a-long-name".into()).spawn(move || {
            let start = std::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            begun.send(()).expect("the test waits");
            stopped.recv().expect_err("only closed");
        });
        begins.recv().expect("it says so");
        let named = Threads::of(pid, Some("a-thread-with-a-long-name")).expect("there is /proc");
        let all = Threads::of(pid, None).expect("there is /proc");
        let none = Threads::of(pid, Some("no such thread")).expect("there is /proc");
        drop(stop);
        busy.expect("it starts").join().expect("no panic");
        assert!(named.cpu_ns > 5_000_000, "{named:?}");
        assert!(all.cpu_ns >= named.cpu_ns && none.cpu_ns == 0, "{all:?} {none:?}");
    }
}
