//! A library in the run: its processes, its turns, and what was measured in them.

use super::driver::{self, Count, Driver, Got};
use super::own;
use crate::report::{self, quantile_us};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::RedisServer;
use std::fmt;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many processes each library has: all make up a crowd, the first is a herd, the first two pass a lock on.
const PROCESSES: usize = 8;
/// How many tasks contend, in one process or in all.
pub(crate) const TASKS: usize = 64;
/// How long two processes pass a lock on in a turn, at most; fewer trials are measured then.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// How long before a release the next one must have asked for the lock: else he was perhaps not waiting for it yet, and
/// the trial is not counted.
const ASKED_BEFORE_NS: u64 = 3_000_000;
/// What only clients send, never a script of any of these libraries. Pings are not counted: they keep idle
/// connections, whoever's turn it is.
const REQUESTS: [&str; 6] = ["eval", "evalsha", "script|load", "script|exists", "subscribe", "unsubscribe"];
/// What else the client of a library sends: the command, and of how many of them one is not a script's. Redisson
/// deletes the lock in a script, and another key after it.
const PLAIN: [(&str, &str, u64); 4] =
    [("rslock", "set", 1), ("redsync", "set", 1), ("redis-py", "set", 1), ("redisson", "del", 2)];

/// A library in the run.
pub(crate) struct Contestant {
    /// What it is called.
    pub(crate) name: String,
    /// Its own words of which version it is.
    pub(crate) version: String,
    /// Its processes; none once one of them has failed.
    drivers: Vec<Driver>,
    /// What was measured, a round each; what came before a failure counts.
    pub(crate) rounds: Vec<Round>,
    /// Why not everything was measured.
    pub(crate) trouble: Option<String>,
}

/// What each does in a round.
pub(crate) struct Turn {
    /// How long the lock is held in each trial before it is passed on.
    pub(crate) holds_us: Vec<u64>,
    /// How long a herd contends, and as long again a crowd.
    pub(crate) herd: Duration,
}

/// What was measured in a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// How often two processes passed the lock on.
    pub(crate) trials: usize,
    /// From the call of the release to the holder in the other process, where that one waited.
    pub(crate) handovers_ns: Vec<u64>,
    /// How many requests all trials cost, the tries of who waited included.
    pub(crate) requests: u64,
    /// All tasks in one process.
    pub(crate) herd: Option<Herd>,
    /// As many tasks in all processes.
    pub(crate) crowd: Option<Herd>,
}

/// What a herd or a crowd did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Herd {
    /// How often the lock was had, a second.
    pub(crate) sections_per_s: f64,
    /// How often by another task than before.
    pub(crate) handovers_per_s: f64,
    /// By how many tasks at all.
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
    /// Ours, which is a driver in this program.
    pub(crate) fn ours(server: &RedisServer) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "peer", "--url"]);
        Self::by(own::NAME, &command, server)
    }

    /// Another library, whose driver was made ready in a directory.
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

    /// Runs for a while, and has a turn that is not measured.
    pub(crate) fn warm_up(&mut self, server: &RedisServer, warm_up: Duration, turn: &Turn) {
        let mut round = Round::default();
        let done = self.run_alone(warm_up).and_then(|()| self.measure(server, turn, &mut round));
        eprintln!("peers: warm-up, {}: {round}", self.name);
        self.note("warming up", done);
    }

    /// Has its turn. If it fails, it has no more of them.
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

    /// One process after the other has a lock that only its own tasks contend for: a program that is compiled while it
    /// runs is to be so when it is measured.
    fn run_alone(&mut self, during: Duration) -> Result<()> {
        let (tasks, each) = (TASKS / PROCESSES, during / u32::try_from(PROCESSES)?);
        for (process, driver) in self.drivers.iter_mut().enumerate() {
            driver.tell(&format!("herd peers-alone-{}-{process} {tasks} {}", self.name, each.as_millis()))?;
            driver.herd(each).context("alone")?;
        }
        Ok(())
    }

    fn measure(&mut self, server: &RedisServer, turn: &Turn, round: &mut Round) -> Result<()> {
        self.pass_on(server, &turn.holds_us, round).context("passing the lock on")?;
        round.herd = Some(self.herd(turn.herd).context("in a herd")?);
        round.crowd = Some(self.crowd(turn.herd).context("in a crowd")?);
        Ok(())
    }

    /// Two processes pass a lock to and fro: one holds it while the other waits.
    fn pass_on(&mut self, server: &RedisServer, holds_us: &[u64], round: &mut Round) -> Result<()> {
        let lock = format!("peers-pair-{}", self.name);
        let [holder, waiter, ..] = &mut self.drivers[..] else { return Ok(()) };
        let (mut holder, mut waiter) = (holder, waiter);
        holder.tell(&format!("take {lock}"))?;
        holder.got()?;
        server.reset_counts()?;
        let began = Instant::now();
        for hold_us in holds_us {
            waiter.tell(&format!("take {lock}"))?;
            holder.tell(&format!("give {lock} {hold_us}"))?;
            // In this order: where the one could not give it, the other waits for the end of a lease, and that is not why.
            let gave_ns = holder.gave_ns()?;
            let Got { asked_ns, got_ns } = waiter.got()?;
            ensure!(got_ns >= gave_ns, "two processes had the lock at once");
            round.trials += 1;
            if asked_ns + ASKED_BEFORE_NS <= gave_ns {
                round.handovers_ns.push(got_ns - gave_ns);
            }
            mem::swap(&mut holder, &mut waiter);
            if began.elapsed() > PAIR_LIMIT {
                break;
            }
        }
        round.requests = self.requests(server)?;
        let last = round.trials % 2;
        self.drivers[last].tell(&format!("give {lock} 0"))?;
        self.drivers[last].gave_ns().map(drop)
    }

    /// All tasks contend in one process.
    fn herd(&mut self, took: Duration) -> Result<Herd> {
        let request = format!("herd peers-herd-{} {TASKS} {}", self.name, took.as_millis());
        let driver = self.drivers.first_mut().context("it has no process")?;
        driver.tell(&request)?;
        Ok(Herd::during(took, driver.herd(took)?))
    }

    /// As many tasks contend in all processes.
    fn crowd(&mut self, took: Duration) -> Result<Herd> {
        let tasks = TASKS / PROCESSES;
        let request = format!("turns peers-crowd-{} {tasks} {}", self.name, took.as_millis());
        self.drivers.iter_mut().try_for_each(|driver| driver.tell(&request))?;
        let turns: Result<Vec<_>> = self.drivers.iter_mut().map(|driver| driver.turns(took)).collect();
        Ok(Herd::during(took, driver::together(&turns?)))
    }

    /// How many requests the server got since its counts were reset.
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
