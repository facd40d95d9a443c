//! A library in the run: its processes, its turns and its measurements.

use super::driver::{self, AcquireTimes, Count, Driver};
use super::own;
use crate::report::{self, quantile_us};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::RedisServer;
use std::fmt;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many processes each library has. The first two hand a lock over, the first runs all tasks alone, all run them
/// together.
const PROCESSES: usize = 8;
/// How many tasks contend, in one process or in all.
pub(crate) const TASKS: usize = 64;
/// How long two processes hand a lock over in a turn, at most; fewer trials are measured then.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// How long before a release the next holder must have called acquire. With less it may not have waited yet, and the trial is
/// not counted.
const CALLED_BEFORE_NS: u64 = 3_000_000;
/// Commands that only clients send, never a script of these libraries. Pings are not counted: they keep idle connections
/// of all libraries.
const REQUESTS: [&str; 6] = ["eval", "evalsha", "script|load", "script|exists", "subscribe", "unsubscribe"];
/// Other commands of a library's client, and of how many of them one is not sent by a script. Redisson deletes the lock in
/// a script, and another key after it.
const PLAIN: [(&str, &str, u64); 4] =
    [("rslock", "set", 1), ("redsync", "set", 1), ("redis-py", "set", 1), ("redisson", "del", 2)];

/// A library in the run.
pub(crate) struct Contestant {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Its processes; none once one of them has failed.
    drivers: Vec<Driver>,
    /// Its measurements by round; those before a failure count.
    pub(crate) rounds: Vec<Round>,
    /// Why not all rounds were measured.
    pub(crate) trouble: Option<String>,
}

/// The plan of a round.
pub(crate) struct Turn {
    /// How long the lock is held in each trial before its release.
    pub(crate) holds_us: Vec<u64>,
    /// How long the tasks contend in one process, and again in all.
    pub(crate) herd: Duration,
}

/// The measurements of a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// How often two processes handed the lock over.
    pub(crate) trials: usize,
    /// From the call of release to the return of acquire in the other process, where that one waited.
    pub(crate) handovers_ns: Vec<u64>,
    /// How many requests all trials took, with the tries of the waiting process.
    pub(crate) requests: u64,
    /// All tasks in one process.
    pub(crate) herd: Option<Herd>,
    /// As many tasks in all processes.
    pub(crate) crowd: Option<Herd>,
}

/// What contending tasks did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Herd {
    /// Acquisitions per second.
    pub(crate) sections_per_s: f64,
    /// Acquisitions per second by another task than before.
    pub(crate) handovers_per_s: f64,
    /// By how many tasks.
    pub(crate) served: u64,
}

impl Herd {
    fn during(took: Duration, count: Count) -> Self {
        let per_s = |count| report::per_s(count, took.as_nanos().try_into().unwrap_or(u64::MAX));
        Self {
            sections_per_s: per_s(count.sections),
            handovers_per_s: per_s(count.handovers),
            served: count.served,
        }
    }
}

impl Contestant {
    /// Leasehold, whose driver is in this program.
    pub(crate) fn ours(server: &RedisServer) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "peer", "--url"]);
        Self::by(own::NAME, &command, server)
    }

    /// Another library, whose driver is in a directory.
    pub(crate) fn start(name: &str, drivers: &Path, server: &RedisServer) -> Result<Self> {
        Self::by(name, &driver::command(name, drivers)?, server)
    }

    fn by(name: &str, command: &Command, server: &RedisServer) -> Result<Self> {
        let start = || Driver::start(name, command, &server.url());
        let drivers = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>>>();
        let drivers = drivers.with_context(|| format!("the driver of {name} does not start"))?;
        let version = drivers.first().map(|driver| driver.version.clone()).unwrap_or_default();
        Ok(Self { name: name.to_owned(), version, drivers, rounds: Vec::new(), trouble: None })
    }

    /// Runs for a while, and takes a turn that is not counted.
    pub(crate) fn warm_up(&mut self, server: &RedisServer, warm_up: Duration, turn: &Turn) {
        let mut round = Round::default();
        let done = self.run_alone(warm_up).and_then(|()| self.measure(server, turn, &mut round));
        eprintln!("peers: warm-up, {}: {round}", self.name);
        self.note("warming up", done);
    }

    /// Takes a turn. After a failure it takes no more.
    pub(crate) fn play(&mut self, server: &RedisServer, turn: &Turn) {
        if self.trouble.is_some() {
            return;
        }
        let mut round = Round::default();
        let done = self.measure(server, turn, &mut round);
        let which = format!("round {}", self.rounds.len() + 1);
        eprintln!("peers: {which}, {}: {round}", self.name);
        self.rounds.push(round);
        self.note(&which, done);
    }

    fn note(&mut self, when: &str, done: Result<()>) {
        if let Err(error) = done {
            eprintln!("peers: {when}, {}: {error:#}", self.name);
            self.trouble = Some(format!("{when}: {error:#}"));
            self.drivers.clear();
        }
    }

    /// Ends its processes.
    pub(crate) fn stop(&mut self) {
        self.drivers.drain(..).for_each(Driver::stop);
    }

    /// One process after the other contends for a lock of its own, so that programs compiled while they run are compiled
    /// before they are measured.
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

    fn measure(&mut self, server: &RedisServer, turn: &Turn, round: &mut Round) -> Result<()> {
        self.hand_over(server, &turn.holds_us, round).context("handing the lock over")?;
        round.herd = Some(self.herd(turn.herd).context("in a herd")?);
        round.crowd = Some(self.crowd(turn.herd).context("in a crowd")?);
        Ok(())
    }

    /// Two processes hand a lock to and fro: one holds it while the other waits.
    fn hand_over(&mut self, server: &RedisServer, holds_us: &[u64], round: &mut Round) -> Result<()> {
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
            // The release is read first: if it failed, that is the error to report, not the wait for the end of the lease.
            let released_ns = holder.released_ns()?;
            let AcquireTimes { called_ns, returned_ns } = waiter.acquired()?;
            ensure!(returned_ns >= released_ns, "two processes held the lock at once");
            round.trials += 1;
            if called_ns + CALLED_BEFORE_NS <= released_ns {
                round.handovers_ns.push(returned_ns - released_ns);
            }
            mem::swap(&mut holder, &mut waiter);
            if began.elapsed() > PAIR_LIMIT {
                break;
            }
        }
        round.requests = self.requests(server)?;
        let last = round.trials % 2;
        self.drivers[last].send(&format!("release {lock} 0"))?;
        self.drivers[last].released_ns().map(drop)
    }

    /// All tasks contend in one process.
    fn herd(&mut self, took: Duration) -> Result<Herd> {
        let request = format!("contend peers-herd-{} {TASKS} {}", self.name, took.as_millis());
        let driver = self.drivers.first_mut().context("it has no process")?;
        driver.send(&request)?;
        Ok(Herd::during(took, driver.contended(took)?))
    }

    /// As many tasks contend in all processes together.
    fn crowd(&mut self, took: Duration) -> Result<Herd> {
        let tasks = TASKS / PROCESSES;
        let request = format!("trace peers-crowd-{} {tasks} {}", self.name, took.as_millis());
        self.drivers.iter_mut().try_for_each(|driver| driver.send(&request))?;
        let traces: Result<Vec<_>> = self.drivers.iter_mut().map(|driver| driver.trace(took)).collect();
        Ok(Herd::during(took, driver::together(&traces?)))
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
        let per_s = |herd: Option<Herd>| herd.map(|herd| herd.handovers_per_s).unwrap_or_default();
        let (count, p50_us) = (self.handovers_ns.len(), quantile_us(&self.handovers_ns, 0.5));
        let (herd, crowd) = (per_s(self.herd), per_s(self.crowd));
        write!(f, "{count} at {p50_us:.0} us; herd {herd:.0} a second; crowd {crowd:.0} a second")
    }
}
