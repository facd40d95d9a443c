//! The faults of a run: which, when, and to which worker.
//!
//! 1. Two lanes cause faults at the same time, each to its own workers, so that at most a part of the workers is in a fault.
//! 2. The pauses between faults are shorter than half of the shortest fault: two thirds of the time is in faults at least.
//! 3. The run begins with a time without faults: what must hold only without them is judged then.
//! 4. A fault that has begun is ended in the history, and what it hit works again, however the run ends.
//! 5. While the command of the user runs, half of the workers have no network: what they hold must be remembered by the store.

use super::clock::RunClock;
use super::plan::{LEASE, SESSION, WORKERS};
use super::recorder::Recorder;
use super::relay::Relay;
use crate::children::{Helper, HelperEnd};
use crate::output::log;
use leasehold_history::{Event, FaultKind, What};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The pause between two faults of a lane (2).
const PAUSE_MS: std::ops::Range<u64> = 100..300;

/// Longer than any lease or session of the run.
const PAST_THE_LEASE: Duration = Duration::from_millis(2000);

/// For how long workers keep what they acquire before the command of the user runs.
const LINGER_BEFORE: Duration = Duration::from_millis(600);

/// How long the command of the user may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// How often the command of the user runs at most.
const MAX_COMMANDS: u32 = 5;

/// What a fault does to a worker's process, which the coordinator has.
pub(crate) trait Workers {
    /// The number of the worker in this place, if it runs.
    fn number(&self, place: usize) -> Option<u32>;
    /// Kills it.
    fn kill(&self, place: usize);
    /// Stops it, or lets it go on.
    fn stop(&self, place: usize, stops: bool);
    /// Has it keep what it holds for so long.
    fn linger(&self, place: usize, time: Duration);
    /// Starts another one in this place, if none runs.
    fn restart(&self, place: usize);
}

/// What the lanes share.
pub(crate) struct Faults<'a, W> {
    recorder: &'a Recorder,
    workers: &'a W,
    /// One for each place; empty for a store without servers.
    relays: &'a [Relay],
    kinds: &'static [FaultKind],
    seed: u64,
    next: AtomicU64,
}

/// A fault that goes on until this is dropped (4).
struct Fault<'a> {
    recorder: &'a Recorder,
    fault: u64,
}

impl Drop for Fault<'_> {
    fn drop(&mut self) {
        self.recorder.record(What::FaultEnded { fault: self.fault });
    }
}

/// Ends what a fault has done, when this is dropped (4).
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<'a, W: Workers> Faults<'a, W> {
    pub(crate) const fn new(
        recorder: &'a Recorder,
        workers: &'a W,
        relays: &'a [Relay],
        kinds: &'static [FaultKind],
        seed: u64,
    ) -> Self {
        Self { recorder, workers, relays, kinds, seed, next: AtomicU64::new(1) }
    }

    /// Causes faults to every second worker, one after the other, after a quiet time (3) and until it is dropped.
    pub(crate) async fn lane(&self, lane: usize, quiet: Duration) {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(lane as u64));
        // The lanes begin at different ends, so that a short run has each kind.
        let half = self.kinds.len() / 2;
        let mut kinds: Vec<_> =
            if lane == 0 { self.kinds[..half].to_vec() } else { self.kinds[half..].to_vec() };
        let mut place = lane;
        sleep(quiet).await;
        loop {
            for kind in std::mem::take(&mut kinds) {
                sleep(Duration::from_millis(random.random_range(PAUSE_MS))).await;
                self.cause(kind, place, &mut random).await;
                place = if place + 2 < WORKERS { place + 2 } else { lane };
            }
            kinds = self.kinds.to_vec();
            kinds.shuffle(&mut random);
        }
    }

    async fn cause(&self, kind: FaultKind, place: usize, random: &mut StdRng) {
        let Some(worker) = self.workers.number(place) else {
            self.workers.restart(place);
            return;
        };
        let begin = |detail: &str| self.begin(kind, Some(worker), detail);
        let Some(relay) = self.relays.get(place) else {
            return self.cause_to_process(kind, place, begin).await;
        };
        match kind {
            FaultKind::Cut => {
                let _fault = begin("its connections are cut, again and again");
                for _ in 0..4 {
                    relay.cut();
                    sleep(Duration::from_millis(random.random_range(100..400))).await;
                }
            }
            FaultKind::Delay => {
                let delay = Duration::from_millis(random.random_range(30..250));
                let _fault = begin(&format!("all its bytes come {delay:?} late"));
                let _undo = Undo(|| relay.delay(Duration::ZERO));
                relay.delay(delay);
                sleep(Duration::from_millis(1200)).await;
            }
            FaultKind::SwallowReplies => {
                let _fault = begin("what it sends arrives, and no reply does; then its connections are cut");
                let _undo = Undo(|| relay.swallow(false));
                relay.swallow(true);
                sleep(Duration::from_millis(random.random_range(600..1000))).await;
            }
            FaultKind::Partition => {
                let _fault = begin("nothing passes between it and the store");
                let _partition = relay.partition();
                sleep(PAST_THE_LEASE).await;
            }
            _ => self.cause_to_process(kind, place, begin).await,
        }
    }

    async fn cause_to_process(&self, kind: FaultKind, place: usize, begin: impl Fn(&str) -> Fault<'a>) {
        if kind == FaultKind::Kill {
            let _fault = begin("its process is killed, and another one started after its lease");
            self.workers.kill(place);
            sleep(PAST_THE_LEASE).await;
            self.workers.restart(place);
        } else {
            let _fault = begin("its process is stopped past its lease, and goes on");
            // SQLite has no server: what has the file locked is a process of a client.
            let _file = self.relays.is_empty().then(|| {
                self.begin(FaultKind::Delay, None, "a process that is stopped may have the file locked")
            });
            let _undo = Undo(|| self.workers.stop(place, false));
            self.workers.stop(place, true);
            sleep(PAST_THE_LEASE.max(LEASE.max(SESSION) * 5 / 4)).await;
        }
    }

    /// Runs the command of the user a few times within the length of the run. Returns once it has failed, or has run often enough.
    pub(crate) async fn commands(&self, kind: FaultKind, command: &OsString, length: Duration) {
        let runs = u32::try_from(length.as_secs() / 4).unwrap_or(MAX_COMMANDS).clamp(1, MAX_COMMANDS);
        let mut random = StdRng::seed_from_u64(self.seed ^ 0xc0_44a4d);
        for run in 1..=runs {
            until(self.recorder.clock(), length * run / (runs + 1)).await;
            let mut places: Vec<_> = (0..self.relays.len()).collect();
            places.shuffle(&mut random);
            places.truncate(self.relays.len() / 2);
            for place in &places {
                // They believe that they hold it for as long as it is valid.
                self.workers.linger(*place, LINGER_BEFORE + LEASE * 2);
            }
            sleep(LINGER_BEFORE).await;
            let partitions: Vec<_> = places.iter().map(|place| self.partition(*place)).collect();
            let ended = {
                let _fault = self.begin(kind, None, &command.to_string_lossy());
                timeout(COMMAND_LIMIT, run_command(command)).await
            };
            // As long as what they hold is valid, as they see it.
            sleep(LEASE).await;
            drop(partitions);
            let option = if kind == FaultKind::Restart { "--allow-restart" } else { "--allow-failover" };
            let failed = match ended {
                Ok(Ok(HelperEnd::Status(0) | HelperEnd::Unknown)) => continue,
                Ok(Ok(HelperEnd::Status(status))) => format!("ended with status {status}"),
                Ok(Ok(HelperEnd::Signal(signal))) => format!("was ended by signal {signal}"),
                Ok(Err(error)) => format!("could not be started: {error}"),
                Err(_) => format!("did not end within {COMMAND_LIMIT:?}"),
            };
            log::warning(&format!("the command of {option} {failed}, and is not run again"));
            return;
        }
    }

    /// A worker without a network, until both are dropped (5).
    fn partition(&self, place: usize) -> (Option<Fault<'a>>, super::relay::Partition) {
        let worker = self.workers.number(place);
        let fault = worker.map(|worker| {
            let detail = "nothing passes between it and the store, while the command of the user runs";
            self.begin(FaultKind::Partition, Some(worker), detail)
        });
        (fault, self.relays[place].partition())
    }

    /// Records that the machine did not run a worker, or this process and so its relays.
    pub(crate) fn stalled(&self, worker: Option<u32>, from_us: u64, to_us: u64) {
        self.not_caused(worker, from_us, to_us, "this machine did not run it");
    }

    /// Records that a server took long to answer this process, which asks it without a relay.
    pub(crate) fn was_slow(&self, from_us: u64, to_us: u64) {
        self.not_caused(None, from_us, to_us, "a server did not answer");
    }

    fn not_caused(&self, worker: Option<u32>, from_us: u64, to_us: u64, what: &str) {
        let fault = self.next.fetch_add(1, Ordering::Relaxed);
        let time = Duration::from_millis(to_us.saturating_sub(from_us) / 1000);
        let (kind, detail) = (FaultKind::Delay, format!("not caused: {what} for {time:?}"));
        let event = |at_us, what| self.recorder.add(Event { at_us, process: 0, what });
        event(from_us, What::FaultBegan { fault, kind, worker, detail });
        event(to_us, What::FaultEnded { fault });
    }

    fn begin(&self, kind: FaultKind, worker: Option<u32>, detail: &str) -> Fault<'a> {
        let fault = self.next.fetch_add(1, Ordering::Relaxed);
        self.recorder.record(What::FaultBegan { fault, kind, worker, detail: detail.to_owned() });
        Fault { recorder: self.recorder, fault }
    }
}

/// Runs a command of the user to its end. Dropping the future kills it.
async fn run_command(command: &OsString) -> std::io::Result<HelperEnd> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(std::io::stderr());
    let (helper, _) = Helper::start(shell)?;
    loop {
        if let Some(end) = helper.poll() {
            return Ok(end);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn until(clock: RunClock, at: Duration) {
    sleep(at.saturating_sub(clock.elapsed())).await;
}
