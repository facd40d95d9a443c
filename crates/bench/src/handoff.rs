//! From the release in one process to the next holder in another.
//!
//! `pair`: two processes pass the lock to and fro, and in alternating rounds a bare PUBLISH to its
//! subscriber: the same two processes, the same client library, runtime and pauses. `herd`: 64 tasks in
//! 8 processes take one lock with nothing to do inside; its ratio is to the same bare message.

use crate::meter::server_version;
use crate::report::{Report, median, per, quantile_us, spread};
use crate::section::{Section, handovers_ns};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use std::process::Command;
use std::time::Duration;

/// How long any answer of a worker may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before each trial, on both sides of the ratio.
const PAUSE_US: u64 = 1500;
/// What only a client sends, never a script of ours.
const REQUESTS: [&str; 9] =
    ["evalsha", "eval", "script|load", "subscribe", "unsubscribe", "ping", "info", "hello", "client|setinfo"];
/// The processes of the herd, and the tasks of each.
const HERD: (u32, u32) = (8, 8);

/// Runs both scenarios.
pub(crate) fn run(sections: u64, rounds: u32, trials: u32, json: bool) -> Result<()> {
    let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
    let mut pair = Pair::start(&server)?;
    pair.round(trials / 4 + 1, &mut Passes::default())?; // a warm-up
    let mut passes = Vec::new();
    server.reset_counts()?;
    for _ in 0..rounds {
        let mut pass = Passes::default();
        pair.round(trials, &mut pass)?;
        passes.push(pass);
    }
    let requests = requests(&server)?;
    pair.stop()?;
    report_pair(&server, &passes, requests)?.print(json);
    report_herd(&server, sections, &passes)?.print(json);
    Ok(())
}

/// What one round of the pair measured, in nanoseconds.
#[derive(Default)]
struct Passes {
    /// From the call of the release to the holder in the other process.
    lock: Vec<u64>,
    /// From the call of PUBLISH to the task that waits for it in the other process.
    bare: Vec<u64>,
    /// How long each waited for the lock.
    waits: Vec<u64>,
    /// How long the lock's half of the round took.
    lock_took: u64,
}

/// Two processes that pass something to and fro.
struct Pair {
    workers: [Worker; 2],
}

impl Pair {
    fn start(server: &RedisServer) -> Result<Self> {
        let start = |process: u32| -> Result<Worker> {
            let process = process.to_string();
            worker(&["pair", "--url", &server.url(), "--process", &process])
        };
        let mut workers = [start(0)?, start(1)?];
        for worker in &mut workers {
            worker.expect("ready", PATIENCE)?;
        }
        Ok(Self { workers })
    }

    /// Half of the trials with the lock, half with the bare message, and again: each gets what the
    /// machine gives at that time.
    fn round(&mut self, trials: u32, passes: &mut Passes) -> Result<()> {
        let [a, b] = &mut self.workers;
        let first = take(a)?;
        let mut from_ns = first.got_ns;
        for trial in 0..trials {
            let (giver, taker) = if trial % 2 == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            taker.tell("take")?;
            giver.tell(&format!("give {PAUSE_US}"))?;
            let section: Section = serde_json::from_str(&taker.line(PATIENCE)?)?;
            let released_ns: u64 = giver.line(PATIENCE)?.parse()?;
            passes.lock.push(section.got_ns.saturating_sub(released_ns));
            passes.waits.push(section.got_ns - section.asked_ns);
            passes.lock_took += section.got_ns.saturating_sub(from_ns);
            from_ns = section.got_ns;

            let to = (trial + 1) % 2;
            let (speaker, listener) = (giver, taker);
            listener.tell("listen")?;
            speaker.tell(&format!("publish {PAUSE_US} {to}"))?;
            let heard_ns: u64 = listener.line(PATIENCE)?.parse()?;
            let sent_ns: u64 = speaker.line(PATIENCE)?.parse()?;
            passes.bare.push(heard_ns.saturating_sub(sent_ns));
        }
        let last = if trials.is_multiple_of(2) { a } else { b };
        last.tell("give 0")?;
        last.line(PATIENCE)?;
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        tell_all(&mut self.workers, "stop")
    }
}

fn take(worker: &mut Worker) -> Result<Section> {
    worker.tell("take")?;
    Ok(serde_json::from_str(&worker.line(PATIENCE)?)?)
}

fn report_pair(server: &RedisServer, passes: &[Passes], requests: u64) -> Result<Report> {
    let lock: Vec<u64> = passes.iter().flat_map(|pass| pass.lock.clone()).collect();
    let bare: Vec<u64> = passes.iter().flat_map(|pass| pass.bare.clone()).collect();
    let waits: Vec<u64> = passes.iter().flat_map(|pass| pass.waits.clone()).collect();
    let took_ns: u64 = passes.iter().map(|pass| pass.lock_took).sum();
    let ratios = |share: f64| -> Vec<f64> {
        let ratio = |pass: &Passes| quantile_us(&pass.lock, share) / quantile_us(&pass.bare, share);
        passes.iter().map(ratio).collect()
    };
    let p50 = ratios(0.5);
    Ok(Report {
        scenario: "pair",
        p50_ratio: median(&p50),
        p99_ratio: median(&ratios(0.99)),
        // The first section of a round is not handed over.
        requests_per_section: per(requests, (lock.len() + passes.len()) as u64),
        handoffs_per_s: per(lock.len() as u64 * 1_000_000_000, took_ns),
        longest_wait_ms: quantile_us(&waits, 1.0) / 1000.0,
        longest_to_mean_wait: longest_to_mean(&waits),
        sections: lock.len(),
        handoff_p50_us: quantile_us(&lock, 0.5),
        handoff_p99_us: quantile_us(&lock, 0.99),
        bare_p50_us: quantile_us(&bare, 0.5),
        bare_p99_us: quantile_us(&bare, 0.99),
        p50_ratio_spread: spread(&p50),
        processes: 2,
        tasks: 2,
        server: server_version(server)?,
    })
}

/// 64 tasks in 8 processes, until that many sections have gone by after a warm-up.
fn report_herd(server: &RedisServer, sections: u64, passes: &[Passes]) -> Result<Report> {
    let bare: Vec<u64> = passes.iter().flat_map(|pass| pass.bare.clone()).collect();
    let mut workers = Vec::new();
    for process in 0..HERD.0 {
        let (process, tasks) = (process.to_string(), HERD.1.to_string());
        let url = server.url();
        workers.push(worker(&["herd", "--url", &url, "--process", &process, "--tasks", &tasks])?);
    }
    for worker in &mut workers {
        worker.expect("ready", PATIENCE)?;
    }
    tell_all(&mut workers, "go")?;
    until_released(server, sections / 10)?; // a warm-up
    tell_all(&mut workers, "mark")?;
    server.reset_counts()?;
    // What a section sends is counted over the same time in which the sections are.
    until_released(server, sections + sections / 20)?;
    let requests = requests(server)?;
    let released = released(server)?;
    let mut all = stop_herd(&mut workers)?;
    ensure!(all.len() as u64 >= sections, "only {} of {sections} sections were measured", all.len());
    let from_ns = all.iter().map(|section| section.got_ns).min().unwrap_or(0);
    let until_ns = all.iter().map(|section| section.got_ns).max().unwrap_or(0);
    let waits: Vec<u64> = all.iter().map(|section| section.got_ns - section.asked_ns).collect();
    let lock = handovers_ns(&mut all);
    let ratio = |share: f64| quantile_us(&lock, share) / quantile_us(&bare, share);
    Ok(Report {
        scenario: "herd",
        p50_ratio: ratio(0.5),
        p99_ratio: ratio(0.99),
        requests_per_section: per(requests, released),
        handoffs_per_s: per(all.len() as u64 * 1_000_000_000, until_ns - from_ns),
        longest_wait_ms: quantile_us(&waits, 1.0) / 1000.0,
        longest_to_mean_wait: longest_to_mean(&waits),
        sections: all.len(),
        handoff_p50_us: quantile_us(&lock, 0.5),
        handoff_p99_us: quantile_us(&lock, 0.99),
        bare_p50_us: quantile_us(&bare, 0.5),
        bare_p99_us: quantile_us(&bare, 0.99),
        p50_ratio_spread: [ratio(0.5), ratio(0.5)],
        processes: HERD.0,
        tasks: HERD.0 * HERD.1,
        server: server_version(server)?,
    })
}

/// This program again, in a role, on the core of the clients.
pub(crate) fn worker(role: &[&str]) -> Result<Worker> {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(std::env::current_exe()?).arg("worker").args(role);
    Worker::of_command(command).start().context("starting a worker (is `taskset` there?)")
}

pub(crate) fn tell_all(workers: &mut [Worker], order: &str) -> Result<()> {
    Ok(workers.iter_mut().try_for_each(|worker| worker.tell(order))?)
}

/// Ends a herd, and collects its sections.
pub(crate) fn stop_herd(workers: &mut [Worker]) -> Result<Vec<Section>> {
    tell_all(workers, "stop")?;
    let mut all = Vec::new();
    for worker in workers {
        loop {
            let line = worker.line(PATIENCE)?;
            if line == "done" {
                break;
            }
            all.push(serde_json::from_str(&line)?);
        }
    }
    Ok(all)
}

/// How many requests the server got from clients since the counts were reset.
fn requests(server: &RedisServer) -> Result<u64> {
    let counts = server.command_counts()?;
    Ok(REQUESTS.iter().filter_map(|command| counts.get(*command)).sum())
}

/// How many locks were released since the counts were reset: every release deletes the key once.
fn released(server: &RedisServer) -> Result<u64> {
    Ok(server.command_counts()?.get("del").copied().unwrap_or(0))
}

fn until_released(server: &RedisServer, sections: u64) -> Result<()> {
    let start = std::time::Instant::now();
    while released(server)? < sections {
        ensure!(start.elapsed() < PATIENCE, "{} sections in {PATIENCE:?}", released(server)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn longest_to_mean(waits_ns: &[u64]) -> f64 {
    let longest = waits_ns.iter().max().copied().unwrap_or(0);
    per(longest * waits_ns.len() as u64, waits_ns.iter().sum())
}
