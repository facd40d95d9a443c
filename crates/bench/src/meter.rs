//! Counters that the kernel and the server keep: processor time of processes, and what a server has executed.

use crate::launch::{Deployment, REPLY_TIMEOUT};
use anyhow::{Context, Result, anyhow, bail};
use leasehold_testkit::{RedisServer, RespConnection, Value, Worker};
use serde::Serialize;
use std::{fmt, fs};

/// Commands that only clients send, never a script of Leasehold's; without INFO, most of which the benchmark sends.
const REQUESTS: [&str; 12] = [
    "evalsha",
    "eval",
    "script|load",
    "subscribe",
    "unsubscribe",
    "ssubscribe",
    "sunsubscribe",
    "ping",
    "hello",
    "client|setinfo",
    "cluster|slots",
    "cluster|shards",
];

/// What the threads of a process have used since they started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadStats {
    /// Processor time, in nanoseconds, as the scheduler counts it.
    pub(crate) cpu_ns: u64,
    /// How often they blocked, and so were woken.
    pub(crate) wake_ups: u64,
}

impl ThreadStats {
    /// Reads those of the threads with this name, or of all. A thread that ends meanwhile is left out.
    pub(crate) fn read(pid: u32, named: Option<&str>) -> Result<Self> {
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
            all.wake_ups +=
                field(&read("status", &path).unwrap_or_default(), "voluntary_ctxt_switches:").unwrap_or(0);
        }
        Ok(all)
    }

    /// The usage since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            wake_ups: self.wake_ups.saturating_sub(earlier.wake_ups),
        }
    }
}

/// What a server has done since it started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerStats {
    /// Processor time of its process, in microseconds.
    pub(crate) cpu_us: u64,
    /// Requests of the kinds that only clients send, never a script of Leasehold's.
    pub(crate) requests: u64,
    /// How long these took, in microseconds, with the commands in them.
    pub(crate) requests_us: u64,
    /// Calls of scripts by their digests.
    pub(crate) scripts: u64,
    /// How long they ran, in microseconds, with the commands in them.
    pub(crate) scripts_us: u64,
    /// SETs, in scripts or outside, and how long they took.
    pub(crate) sets: u64,
    pub(crate) sets_us: u64,
    /// Expiries that were set, in scripts or outside: one for each extend, and one for each heartbeat.
    pub(crate) expiries: u64,
}

impl ServerStats {
    /// Reads the server's own statistics.
    pub(crate) fn read(server: &RedisServer) -> Result<Self> {
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
            requests_us: REQUESTS.iter().map(|name| part(&format!("cmdstat_{name}:"), "usec=")).sum(),
            scripts: part(scripts, "calls="),
            scripts_us: part(scripts, "usec="),
            sets: part(sets, "calls="),
            sets_us: part(sets, "usec="),
            expiries: part("cmdstat_pexpire:", "calls="),
        })
    }

    /// Reads those of several servers, and adds them up.
    pub(crate) fn read_all(servers: &[&RedisServer]) -> Result<Self> {
        servers.iter().try_fold(Self::default(), |sum, server| Ok(sum.zip(Self::read(server)?, |a, b| a + b)))
    }

    /// The difference to `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    fn zip(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_us: with(self.cpu_us, other.cpu_us),
            requests: with(self.requests, other.requests),
            requests_us: with(self.requests_us, other.requests_us),
            scripts: with(self.scripts, other.scripts),
            scripts_us: with(self.scripts_us, other.scripts_us),
            sets: with(self.sets, other.sets),
            sets_us: with(self.sets_us, other.sets_us),
            expiries: with(self.expiries, other.expiries),
        }
    }
}

/// A reply of a worker, and what its request has cost.
pub(crate) struct Metered {
    pub(crate) reply: String,
    pub(crate) server: ServerStats,
    pub(crate) client: ThreadStats,
}

impl Metered {
    /// Sends a request to a worker of one server, and waits for the reply.
    pub(crate) fn request(server: &RedisServer, worker: &mut Worker, request: &str) -> Result<Self> {
        Self::request_of(&[server], worker, request)
    }

    /// Sends a request to a worker of several servers, and waits for the reply.
    pub(crate) fn request_of(servers: &[&RedisServer], worker: &mut Worker, request: &str) -> Result<Self> {
        let before = (ServerStats::read_all(servers)?, ThreadStats::read(worker.pid(), None)?);
        worker.send(request)?;
        let reply = worker.line(REPLY_TIMEOUT)?;
        let (server, client) = (ServerStats::read_all(servers)?, ThreadStats::read(worker.pid(), None)?);
        Ok(Self { reply, server: server.since(before.0), client: client.since(before.1) })
    }

    /// The numbers of the reply.
    pub(crate) fn numbers<const N: usize>(&self) -> Result<[u64; N]> {
        let numbers = self.reply.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        <[u64; N]>::try_from(numbers).map_err(|_| anyhow!("{N} numbers were expected, not `{}`", self.reply))
    }
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(field(&all, "Rss:").context("no resident memory")? * 1024)
}

/// The memory that a server reports as used, in bytes.
pub(crate) fn used_bytes(server: &RedisServer) -> Result<u64> {
    field(&info(server, "memory")?, "used_memory:").context("no memory in use")
}

/// The keys of a server and their memory, as MEMORY USAGE counts it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeyBytes {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
}

impl KeyBytes {
    /// Of all keys of several servers. A key that expires meanwhile is left out.
    pub(crate) fn read(servers: &[&RedisServer]) -> Result<Self> {
        let mut all = Self::default();
        for server in servers {
            let mut conn = server.connect()?;
            let mut cursor = Some("0".to_owned());
            while let Some(at) = cursor {
                cursor = all.add_page(&mut conn, &at)?;
            }
        }
        Ok(all)
    }

    /// Adds the keys at a cursor of SCAN. Returns the next cursor.
    fn add_page(&mut self, conn: &mut RespConnection, cursor: &str) -> Result<Option<String>> {
        let page = conn.call(&["SCAN", cursor, "COUNT", "1000"])?.ok()?;
        let [next, keys] = page.elements() else { bail!("not a page of keys: {page:?}") };
        let keys: Vec<_> = keys.elements().iter().filter_map(Value::bytes).collect();
        for key in &keys {
            conn.send(&[&b"MEMORY"[..], b"USAGE", key, b"SAMPLES", b"0"])?;
        }
        for _ in &keys {
            if let Some(bytes) = conn.receive()?.ok()?.integer() {
                self.keys += 1;
                self.bytes += u64::try_from(bytes)?;
            }
        }
        Ok(next.text().filter(|next| *next != "0").map(str::to_owned))
    }
}

/// Where a report was measured. Figures of different machines cannot be compared.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The model of the processor.
    cpu: String,
    /// The cores that this program may use.
    cores: usize,
    /// The kernel and its release.
    kernel: String,
    /// The server and its version.
    server: String,
}

impl Machine {
    /// The machine of this program, with a server.
    pub(crate) fn with(server: &RedisServer) -> Result<Self> {
        Self::here(server_version(server)?)
    }

    /// The machine of this program, with the servers of a store.
    pub(crate) fn of(store: &Deployment) -> Result<Self> {
        Self::with(store.servers().first().context("a store without a server")?)
    }

    /// The machine of this program, with a description of the server.
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

/// The server and its version.
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
        let counted = || ThreadStats::read(pid, Some("a-thread-with-a-long-name")).expect("there is /proc");
        // How soon the thread gets a core depends on the load.
        while counted().cpu_ns <= 5_000_000 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let named = counted();
        let all = ThreadStats::read(pid, None).expect("there is /proc");
        let none = ThreadStats::read(pid, Some("no such thread")).expect("there is /proc");
        drop(stop);
        busy.expect("it starts").join().expect("no panic");
        assert!(named.cpu_ns > 5_000_000, "{named:?}");
        assert!(all.cpu_ns >= named.cpu_ns && none.cpu_ns == 0, "{all:?} {none:?}");
    }
}
