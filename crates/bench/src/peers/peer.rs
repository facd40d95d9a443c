//! A library in the run: its processes and its measurements.

use super::driver::{self, AcquireTimes, Count, Driver};
use super::leasehold_driver;
use crate::report::{self, quantile_us};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::RedisServer;
use std::fmt;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many processes each library has. The first two hand over a lock, the first runs all tasks alone, and all run them
/// together.
const PROCESSES: usize = 8;
/// How many tasks contend, in one process or in all.
pub(crate) const TASKS: usize = 64;
/// How long two processes hand over a lock in a round, at most; fewer trials are measured then.
const HANDOVER_TIME_LIMIT: Duration = Duration::from_secs(30);
/// How long before a release the next holder must have called acquire. Otherwise it may not have waited yet, and the trial
/// is not counted.
const CALLED_BEFORE_NS: u64 = 3_000_000;
/// Commands that only clients send, never a script of these libraries. Pings are not counted: they keep idle connections
/// of all libraries open.
const REQUESTS: [&str; 6] = ["eval", "evalsha", "script|load", "script|exists", "subscribe", "unsubscribe"];
/// Other commands of a library's client: one in so many is not sent by a script. Redisson deletes the lock in a script, and
/// another key after it.
const PLAIN: [(&str, &str, u64); 4] =
    [("rslock", "set", 1), ("redsync", "set", 1), ("redis-py", "set", 1), ("redisson", "del", 2)];

/// A library in the run.
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Its processes; none once one of them has failed.
    drivers: Vec<Driver>,
    /// Its measurements by round; those before a failure count.
    pub(crate) rounds: Vec<Round>,
    /// Why not all rounds were measured.
    pub(crate) failure: Option<String>,
}

/// The plan of a round.
pub(crate) struct RoundPlan {
    /// How long the lock is held in each trial before its release.
    pub(crate) holds_us: Vec<u64>,
    /// How long the tasks contend in one process, and again in all.
    pub(crate) contention: Duration,
}

/// The measurements of a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// How often two processes handed off the lock.
    pub(crate) trials: usize,
    /// From the call of release to the return of acquire in the other process, if that one waited.
    pub(crate) handovers_ns: Vec<u64>,
    /// The requests of all trials, with the tries of the waiting process.
    pub(crate) requests: u64,
    /// All tasks in one process.
    pub(crate) one_process: Option<Throughput>,
    /// As many tasks in all processes.
    pub(crate) all_processes: Option<Throughput>,
}

/// The throughput of contending tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    /// Acquisitions per second.
    pub(crate) sections_per_s: f64,
    /// Acquisitions per second by another task than before.
    pub(crate) handovers_per_s: f64,
    /// How many tasks acquired the lock.
    pub(crate) served: u64,
}

impl Throughput {
    fn during(took: Duration, count: Count) -> Self {
        let per_s = |count| report::per_s(count, took.as_nanos().try_into().unwrap_or(u64::MAX));
        Self {
            sections_per_s: per_s(count.sections),
            handovers_per_s: per_s(count.handovers),
            served: count.served,
        }
    }
}

impl Peer {
    /// Leasehold, whose driver is in this program.
    pub(crate) fn leasehold(server: &RedisServer) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "peer", "--url"]);
        Self::with_driver(leasehold_driver::NAME, &command, server)
    }

    /// Another library, whose driver is in a directory.
    pub(crate) fn start(name: &str, drivers: &Path, server: &RedisServer) -> Result<Self> {
        Self::with_driver(name, &driver::command(name, drivers)?, server)
    }

    fn with_driver(name: &str, command: &Command, server: &RedisServer) -> Result<Self> {
        let start = || Driver::start(name, command, &server.url());
        let drivers = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>>>();
        let drivers = drivers.with_context(|| format!("the driver of {name} does not start"))?;
        let version = drivers.first().map(|driver| driver.version.clone()).unwrap_or_default();
        Ok(Self { name: name.to_owned(), version, drivers, rounds: Vec::new(), failure: None })
    }

    /// Runs for a while, and measures a round that is not counted.
    pub(crate) fn warm_up(&mut self, server: &RedisServer, warm_up: Duration, plan: &RoundPlan) {
        let mut round = Round::default();
        let result = self.run_alone(warm_up).and_then(|()| self.measure(server, plan, &mut round));
        eprintln!("peers: warm-up, {}: {round}", self.name);
        self.note_failure("warming up", result);
    }

    /// Measures a round. After a failure it measures no more.
    pub(crate) fn measure_round(&mut self, server: &RedisServer, plan: &RoundPlan) {
        if self.failure.is_some() {
            return;
        }
        let mut round = Round::default();
        let result = self.measure(server, plan, &mut round);
        let which = format!("round {}", self.rounds.len() + 1);
        eprintln!("peers: {which}, {}: {round}", self.name);
        self.rounds.push(round);
        self.note_failure(&which, result);
    }

    fn note_failure(&mut self, when: &str, result: Result<()>) {
        if let Err(error) = result {
            eprintln!("peers: {when}, {}: {error:#}", self.name);
            self.failure = Some(format!("{when}: {error:#}"));
            self.drivers.clear();
        }
    }

    /// Ends its processes.
    pub(crate) fn stop(&mut self) {
        self.drivers.drain(..).for_each(Driver::stop);
    }

    /// One process after another contends for a lock of its own. Just-in-time compilers have then compiled the code that is
    /// measured.
    fn run_alone(&mut self, during: Duration) -> Result<()> {
        let (tasks, each) = (TASKS / PROCESSES, during / u32::try_from(PROCESSES)?);
        for (process, driver) in self.drivers.iter_mut().enumerate() {
            driver.send(&format!(
                "contend peers-alone-{}-{process} {tasks} {}",
                self.name,
                each.as_millis()
            ))?;
            driver.contended(each).context("alone")?;
        }
        Ok(())
    }

    fn measure(&mut self, server: &RedisServer, plan: &RoundPlan, round: &mut Round) -> Result<()> {
        self.hand_off(server, &plan.holds_us, round).context("handing off the lock")?;
        let one_process = self.contend_in_one_process(plan.contention);
        round.one_process = Some(one_process.context("contending in one process")?);
        let all_processes = self.contend_in_all_processes(plan.contention);
        round.all_processes = Some(all_processes.context("contending in all processes")?);
        Ok(())
    }

    /// Two processes hand over a lock: one holds it while the other waits.
    fn hand_off(&mut self, server: &RedisServer, holds_us: &[u64], round: &mut Round) -> Result<()> {
        let lock = format!("peers-pair-{}", self.name);
        let [holder, waiter, ..] = &mut self.drivers[..] else { return Ok(()) };
        let (mut holder, mut waiter) = (holder, waiter);
        holder.send(&format!("acquire {lock}"))?;
        holder.acquired()?;
        server.reset_counts()?;
        let began = Instant::now();
        for hold_us in holds_us {
            waiter.send(&format!("acquire {lock}"))?;
            holder.send(&format!("release {lock} {hold_us}"))?;
            // The reply to the release is read first: if it failed, that is the error to report.
            let released_ns = holder.released_ns()?;
            let AcquireTimes { called_ns, returned_ns } = waiter.acquired()?;
            ensure!(returned_ns >= released_ns, "two processes held the lock at once");
            round.trials += 1;
            if called_ns + CALLED_BEFORE_NS <= released_ns {
                round.handovers_ns.push(returned_ns - released_ns);
            }
            mem::swap(&mut holder, &mut waiter);
            if began.elapsed() > HANDOVER_TIME_LIMIT {
                break;
            }
        }
        round.requests = self.requests(server)?;
        let last = round.trials % 2;
        self.drivers[last].send(&format!("release {lock} 0"))?;
        self.drivers[last].released_ns().map(drop)
    }

    /// All tasks contend in one process.
    fn contend_in_one_process(&mut self, took: Duration) -> Result<Throughput> {
        let request = format!("contend peers-herd-{} {TASKS} {}", self.name, took.as_millis());
        let driver = self.drivers.first_mut().context("the library has no process")?;
        driver.send(&request)?;
        Ok(Throughput::during(took, driver.contended(took)?))
    }

    /// As many tasks contend in all processes together.
    fn contend_in_all_processes(&mut self, took: Duration) -> Result<Throughput> {
        let tasks = TASKS / PROCESSES;
        let request = format!("trace peers-crowd-{} {tasks} {}", self.name, took.as_millis());
        self.drivers.iter_mut().try_for_each(|driver| driver.send(&request))?;
        let traces: Result<Vec<_>> = self.drivers.iter_mut().map(|driver| driver.trace(took)).collect();
        Ok(Throughput::during(took, driver::merge(&traces?)))
    }

    /// How many requests the server received since its counts were reset.
    fn requests(&self, server: &RedisServer) -> Result<u64> {
        let counts = server.command_counts()?;
        let of = |command: &str| counts.get(command).copied().unwrap_or(0);
        let plain =
            PLAIN.iter().filter(|(name, ..)| *name == self.name).map(|(_, command, n)| of(command) / n);
        Ok(REQUESTS.iter().map(|command| of(command)).chain(plain).sum())
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_s =
            |throughput: Option<Throughput>| throughput.map(|it| it.handovers_per_s).unwrap_or_default();
        let (count, p50_us) = (self.handovers_ns.len(), quantile_us(&self.handovers_ns, 0.5));
        let (one, all) = (per_s(self.one_process), per_s(self.all_processes));
        write!(f, "{count} at {p50_us:.0} us; one process {one:.0} a second; all processes {all:.0} a second")
    }
}
