//! Many tasks in several processes that contend for one lock, and what was seen of them over a time.

use crate::handoff::{PATIENCE, tell_all, worker};
use crate::meter::{Machine, Served};
use crate::report::{mean_us, per, per_s, quantile_us};
use crate::section::{Section, now_ns};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use std::time::{Duration, Instant};

/// Every how long they are asked how far they are.
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// A process of a crowd.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) tasks: u32,
    pub(crate) hold_us: u64,
}

/// For how long a crowd is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Until so many sections went by since it began,
    pub(crate) sections: u64,
    /// but not for less than this,
    pub(crate) least: Duration,
    /// nor for more than this.
    pub(crate) most: Duration,
}

/// A crowd that is compared with others.
pub(crate) struct Side {
    /// What it contends for, as `member` knows it.
    pub(crate) sought: String,
    pub(crate) posts: Vec<Post>,
    pub(crate) warm_up: Span,
    pub(crate) span: Span,
}

/// Processes that contend.
pub(crate) struct Crowd {
    workers: Vec<Worker>,
}

/// What was seen of a crowd.
pub(crate) struct Lap {
    /// All sections that began within it.
    pub(crate) sections: Vec<Section>,
    pub(crate) took_ns: u64,
    pub(crate) served: Served,
}

/// So many tasks in so many processes at most, as evenly as it goes.
pub(crate) fn posts(tasks: u32, processes: u32, hold_us: u64) -> Vec<Post> {
    let processes = processes.min(tasks);
    let tasks = |process| tasks / processes + u32::from(process < tasks % processes);
    (0..processes).map(|process| Post { tasks: tasks(process), hold_us }).collect()
}

/// Watches each side in each round, with a server and processes of its own, and gives what was seen by sides.
pub(crate) fn alternate<T>(
    sides: &[Side],
    rounds: usize,
    seen: impl Fn(&Side, &mut Lap) -> T,
) -> Result<(Vec<Vec<T>>, Machine)> {
    let mut all: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    let mut machine = None;
    for round in 0..rounds {
        let mut order: Vec<_> = sides.iter().zip(&mut all).collect();
        // Each is as early as it is late.
        if round % 2 == 1 {
            order.reverse();
        }
        for (side, laps) in order {
            let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
            let crowd = Crowd::start(&server, &side.sought, &side.posts)?;
            laps.push(seen(side, &mut crowd.watch(&server, side.warm_up, side.span)?));
            if machine.is_none() {
                machine = Some(Machine::with(&server)?);
            }
        }
    }
    Ok((all, machine.context("no round")?))
}

impl Span {
    /// A time.
    pub(crate) fn of(time: Duration) -> Self {
        Self { sections: 0, least: time, most: time }
    }
}

impl Crowd {
    /// Starts the processes, on the core of the clients.
    fn start(server: &RedisServer, sought: &str, posts: &[Post]) -> Result<Self> {
        let mut workers = Vec::new();
        for (process, Post { tasks, hold_us }) in posts.iter().enumerate() {
            let [process, tasks, hold_us] = [process.to_string(), tasks.to_string(), hold_us.to_string()];
            let url = server.url();
            let role = ["member", "--url", &url, "--process", &process, "--tasks", &tasks];
            workers.push(worker(&[&role[..], &["--hold-us", &hold_us, "--sought", sought]].concat())?);
        }
        Self::of(workers)
    }

    /// Of processes that were started as members.
    pub(crate) fn of(mut workers: Vec<Worker>) -> Result<Self> {
        for worker in &mut workers {
            worker.expect("ready", PATIENCE)?;
        }
        Ok(Self { workers })
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Lets all tasks begin.
    pub(crate) fn go(&mut self) -> Result<()> {
        tell_all(&mut self.workers, "go")
    }

    /// Lets what was seen before be forgotten.
    pub(crate) fn mark(&mut self) -> Result<()> {
        tell_all(&mut self.workers, "mark")
    }

    /// How many sections went by since they began.
    fn count(&mut self) -> Result<u64> {
        tell_all(&mut self.workers, "count")?;
        self.workers.iter_mut().map(|worker| Ok(worker.line(PATIENCE)?.parse::<u64>()?)).sum()
    }

    /// Lets some time go by.
    fn pass(&mut self, span: Span) -> Result<()> {
        let (start, from) = (Instant::now(), self.count()?);
        loop {
            std::thread::sleep(ASKED_EVERY.min(span.most));
            let enough = self.count()? - from >= span.sections && start.elapsed() >= span.least;
            if enough || start.elapsed() >= span.most {
                return Ok(());
            }
        }
    }

    /// Lets them contend, and watches them after a warm-up.
    fn watch(mut self, server: &RedisServer, warm_up: Span, span: Span) -> Result<Lap> {
        self.go()?;
        self.pass(warm_up)?;
        self.mark()?;
        let (from_ns, before) = (now_ns(), Served::of(server)?);
        self.pass(span)?;
        let (until_ns, after) = (now_ns(), Served::of(server)?);
        let mut sections = self.stop()?;
        sections.retain(|section| (from_ns..until_ns).contains(&section.got_ns));
        ensure!(!sections.is_empty(), "no section went by in {:?}", span.most);
        Ok(Lap { sections, took_ns: until_ns - from_ns, served: after.since(before) })
    }

    /// Ends them, and collects what they have seen since the mark.
    pub(crate) fn stop(mut self) -> Result<Vec<Section>> {
        tell_all(&mut self.workers, "stop")?;
        let mut all = Vec::new();
        for worker in &mut self.workers {
            loop {
                let line = worker.line(PATIENCE)?;
                if line == "done" {
                    break;
                }
                all.push(line.parse()?);
            }
        }
        Ok(all)
    }
}

impl Lap {
    /// How many sections went by.
    pub(crate) fn count(&self) -> u64 {
        self.sections.len() as u64
    }

    /// How many sections a second.
    pub(crate) fn each_s(&self) -> f64 {
        per_s(self.count(), self.took_ns)
    }

    /// What the server was asked for each.
    pub(crate) fn requests_each(&self) -> f64 {
        per(self.served.requests, self.count())
    }

    /// The longest and the mean wait, in milliseconds, of those that are meant.
    pub(crate) fn waits_ms(&self, meant: impl Fn(&Section) -> bool) -> (f64, f64) {
        let waits: Vec<_> =
            self.sections.iter().filter(|section| meant(section)).map(Section::wait_ns).collect();
        (quantile_us(&waits, 1.0) / 1000.0, mean_us(&waits) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_spread_evenly() {
        let tasks =
            |tasks, processes| posts(tasks, processes, 0).iter().map(|post| post.tasks).collect::<Vec<_>>();
        assert_eq!(tasks(2, 8), [1, 1]);
        assert_eq!(tasks(64, 8), [8; 8]);
        assert_eq!(tasks(10, 4), [3, 3, 2, 2]);
    }
}
