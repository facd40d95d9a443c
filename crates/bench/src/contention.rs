//! Many tasks in several processes that contend for one lock, and what they measure over some time.

use crate::critical_section::{CriticalSection, now_ns};
use crate::launch::{Deployment, REPLY_TIMEOUT, Topology, start_worker, tell_all};
use crate::meter::{Machine, ServerStats};
use crate::report::{mean_us, per, per_s, quantile_us};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::Worker;
use std::time::{Duration, Instant};

/// The pause between two requests for the number of sections.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What one process does.
#[derive(Debug, Clone)]
pub(crate) struct ProcessLoad {
    pub(crate) tasks: u32,
    pub(crate) hold_us: u64,
}

/// When to stop measuring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// After so many sections,
    pub(crate) sections: u64,
    /// but not before this time,
    pub(crate) least: Duration,
    /// and not after this one.
    pub(crate) most: Duration,
}

/// What is compared with others.
pub(crate) struct Variant {
    pub(crate) topology: Topology,
    /// The contended lock, as the argument of a worker.
    pub(crate) lock: String,
    pub(crate) processes: Vec<ProcessLoad>,
    pub(crate) warm_up: Window,
    pub(crate) window: Window,
}

/// Processes whose tasks contend.
pub(crate) struct Contenders {
    workers: Vec<Worker>,
}

/// What was measured in one window.
pub(crate) struct Measurement {
    /// All sections that began within it.
    pub(crate) sections: Vec<CriticalSection>,
    pub(crate) took_ns: u64,
    pub(crate) server: ServerStats,
}

/// Spreads tasks over that many processes at most, as evenly as possible.
pub(crate) fn spread_tasks(tasks: u32, processes: u32, hold_us: u64) -> Vec<ProcessLoad> {
    let processes = processes.min(tasks);
    let tasks = |process| tasks / processes + u32::from(process < tasks % processes);
    (0..processes).map(|process| ProcessLoad { tasks: tasks(process), hold_us }).collect()
}

/// Measures each variant in each round, with a server and processes of its own. Returns the results by variant.
pub(crate) fn measure_alternating<T>(
    variants: &[Variant],
    rounds: usize,
    figures: impl Fn(&Variant, &mut Measurement) -> T,
) -> Result<(Vec<Vec<T>>, Machine)> {
    let mut all: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
    let mut machine = None;
    for round in 0..rounds {
        let mut order: Vec<_> = variants.iter().zip(&mut all).collect();
        // Each is as early as it is late.
        if round % 2 == 1 {
            order.reverse();
        }
        for (variant, results) in order {
            let store = variant.topology.start()?;
            let contenders = Contenders::start(&store, &variant.lock, &variant.processes)?;
            let mut measurement = contenders.measure(&store, variant.warm_up, variant.window)?;
            results.push(figures(variant, &mut measurement));
            if machine.is_none() {
                machine = Some(Machine::of(&store)?);
            }
        }
    }
    Ok((all, machine.context("no round")?))
}

impl Window {
    /// A fixed time.
    pub(crate) fn of(time: Duration) -> Self {
        Self { sections: 0, least: time, most: time }
    }
}

impl Contenders {
    /// Starts the processes, on the core of the clients.
    fn start(store: &Deployment, lock: &str, processes: &[ProcessLoad]) -> Result<Self> {
        let mut workers = Vec::new();
        for (process, ProcessLoad { tasks, hold_us }) in processes.iter().enumerate() {
            let [process, tasks, hold_us] = [process.to_string(), tasks.to_string(), hold_us.to_string()];
            let url = store.url();
            let role = ["contend", "--url", &url, "--process", &process, "--tasks", &tasks];
            workers.push(start_worker(&[&role[..], &["--hold-us", &hold_us, "--lock", lock]].concat())?);
        }
        Self::connect(workers)
    }

    /// Waits until workers in the role `contend` are ready.
    pub(crate) fn connect(mut workers: Vec<Worker>) -> Result<Self> {
        for worker in &mut workers {
            worker.expect("ready", REPLY_TIMEOUT)?;
        }
        Ok(Self { workers })
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Lets all tasks begin.
    pub(crate) fn begin(&mut self) -> Result<()> {
        tell_all(&mut self.workers, "begin")
    }

    /// Discards the sections that were recorded so far.
    pub(crate) fn discard(&mut self) -> Result<()> {
        tell_all(&mut self.workers, "discard")
    }

    /// The number of sections since the tasks began.
    fn count(&mut self) -> Result<u64> {
        tell_all(&mut self.workers, "count")?;
        self.workers.iter_mut().map(|worker| Ok(worker.line(REPLY_TIMEOUT)?.parse::<u64>()?)).sum()
    }

    /// Waits until a window is over.
    fn wait_for(&mut self, window: Window) -> Result<()> {
        let (start, first) = (Instant::now(), self.count()?);
        loop {
            std::thread::sleep(POLL_INTERVAL.min(window.most));
            let is_enough = self.count()? - first >= window.sections && start.elapsed() >= window.least;
            if is_enough || start.elapsed() >= window.most {
                return Ok(());
            }
        }
    }

    /// Lets the tasks contend, and measures them after a warm-up.
    fn measure(mut self, store: &Deployment, warm_up: Window, window: Window) -> Result<Measurement> {
        self.begin()?;
        self.wait_for(warm_up)?;
        self.discard()?;
        let (from_ns, before) = (now_ns(), ServerStats::read_all(&store.servers())?);
        self.wait_for(window)?;
        let (until_ns, after) = (now_ns(), ServerStats::read_all(&store.servers())?);
        let mut sections = self.stop()?;
        sections.retain(|section| (from_ns..until_ns).contains(&section.acquired_ns));
        ensure!(!sections.is_empty(), "no section began in {:?}", window.most);
        Ok(Measurement { sections, took_ns: until_ns - from_ns, server: after.since(before) })
    }

    /// Ends the processes, and returns the sections that were not discarded.
    pub(crate) fn stop(mut self) -> Result<Vec<CriticalSection>> {
        tell_all(&mut self.workers, "stop")?;
        let mut all = Vec::new();
        for worker in &mut self.workers {
            loop {
                let line = worker.line(REPLY_TIMEOUT)?;
                if line == "done" {
                    break;
                }
                all.push(line.parse()?);
            }
        }
        Ok(all)
    }
}

impl Measurement {
    /// The number of sections.
    pub(crate) fn count(&self) -> u64 {
        self.sections.len() as u64
    }

    pub(crate) fn sections_per_s(&self) -> f64 {
        per_s(self.count(), self.took_ns)
    }

    pub(crate) fn requests_per_section(&self) -> f64 {
        per(self.server.requests, self.count())
    }

    /// The longest and the mean wait of the selected sections, in milliseconds.
    pub(crate) fn waits_ms(&self, is_selected: impl Fn(&CriticalSection) -> bool) -> (f64, f64) {
        let selected = self.sections.iter().filter(|section| is_selected(section));
        let waits: Vec<_> = selected.map(CriticalSection::wait_ns).collect();
        (quantile_us(&waits, 1.0) / 1000.0, mean_us(&waits) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_spread_evenly() {
        let tasks = |tasks, processes| -> Vec<u32> {
            spread_tasks(tasks, processes, 0).iter().map(|process| process.tasks).collect()
        };
        assert_eq!(tasks(2, 8), [1, 1]);
        assert_eq!(tasks(64, 8), [8; 8]);
        assert_eq!(tasks(10, 4), [3, 3, 2, 2]);
    }
}
