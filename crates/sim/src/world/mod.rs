//! The simulated world of one run: its parts, its loop, and the faults that it injects.

pub(crate) mod environment;
pub(crate) mod faults;
pub(crate) mod link;
pub(crate) mod network;
pub(crate) mod partition;
pub(crate) mod scheduler;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod time;

use crate::any_guard::AnyGuard;
use crate::checks::recorder::{Counts, Recorder, Violation};
use crate::config::{HandoffConfig, LockDelays, Period, SharedLimits, WorkloadConfig};
use crate::event::{
    Event, GuardId, HostEvent, LockId, NewGuard, OwnerId, ProclaimedText, TaskEvent, TaskId, Validity,
};
use crate::mutants::Mutant;
use crate::timeline::Timeline;
use environment::ProcessEnvironment;
use faults::{Fault, FaultPlan, FaultProfile, PrimaryIsolation};
use leasehold::Owner;
use leasehold_core::{AUDIT_TTL, Kind, Lock};
use leasehold_testkit::Random;
use network::Net;
use scheduler::{HostId, Scheduler, StepResult};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use store::SimStore;
use time::{Clock, Instant};

/// How long tasks may take to end after the last fault: each waits for at most a few others.
const TASKS_END_WITHIN: Duration = Duration::from_secs(150);
/// How long after that queue entries and holds of crashed processes may last.
const CRASHED_EXPIRE_WITHIN: Duration = Duration::from_secs(40);
/// The longest expiry of a lock's record, with a margin.
const RECORD_EXPIRES_WITHIN: Duration = Duration::from_secs(2 * 3600);
/// An upper bound on the steps of a run. A run that exceeds it loops forever.
const MAX_STEPS: u64 = 5_000_000;

/// Runs a process on a host, from its start to its end.
pub(crate) type StartProcess = fn(Arc<Sim>, HostId, Random) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// The parts of a world.
pub(crate) struct SimConfig {
    pub(crate) scheduler_random: Random,
    pub(crate) fault_plan: FaultPlan,
    pub(crate) workload: WorkloadConfig,
    pub(crate) handoff: HandoffConfig,
    pub(crate) lock_delays: LockDelays,
    pub(crate) limits: SharedLimits,
    pub(crate) locks: Vec<Lock>,
    pub(crate) period: Option<Period>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) net: Net,
    pub(crate) recorder: Recorder,
    pub(crate) start_process: StartProcess,
}

/// The state of one run.
pub(crate) struct Sim {
    pub(crate) scheduler: Scheduler,
    pub(crate) fault_plan: FaultPlan,
    pub(crate) config: WorkloadConfig,
    pub(crate) handoff: HandoffConfig,
    pub(crate) lock_delays: LockDelays,
    pub(crate) limits: SharedLimits,
    pub(crate) locks: Vec<Lock>,
    /// The parameters of `once_per`, if this run uses it.
    pub(crate) period: Option<Period>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) net: Mutex<Net>,
    pub(crate) recorder: Mutex<Recorder>,
    guards: Mutex<Vec<WatchedGuard>>,
    processes: Mutex<Vec<RestartableProcess>>,
    stop_times: Mutex<BTreeMap<HostId, StopTime>>,
    pub(crate) last_guard_id: AtomicU32,
    last_text: AtomicU32,
    owners: Mutex<OwnerRegistry>,
    start_process: StartProcess,
}

/// The owners of a run.
#[derive(Default)]
struct OwnerRegistry {
    /// In order of first use.
    known: Vec<String>,
    /// Headers by which processes share their owners.
    published: Vec<(HostId, String)>,
}

/// A guard that a task holds.
struct WatchedGuard {
    world: ProcessEnvironment,
    task: TaskId,
    guard_ids: Vec<(LockId, GuardId)>,
    guard: Weak<AnyGuard>,
    until: Instant,
}

/// A machine on which processes run, one after another.
struct RestartableProcess {
    host: HostId,
    random: Random,
}

/// How long a process has been stopped.
#[derive(Default)]
struct StopTime {
    since: Option<Instant>,
    total: Duration,
}

/// A random rate error of a clock.
pub(crate) fn drift(random: &Random, fault_plan: &FaultPlan) -> i64 {
    let most = fault_plan.drift_ppm;
    i64::try_from(random.below(u64::try_from(2 * most + 1).unwrap_or(1))).unwrap_or(0) - most
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run ends at its first panic, so what a panic left inconsistent is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// A world without processes.
    pub(crate) fn new(config: SimConfig) -> Arc<Self> {
        Arc::new(Self {
            scheduler: Scheduler::new(config.scheduler_random),
            fault_plan: config.fault_plan,
            config: config.workload,
            handoff: config.handoff,
            lock_delays: config.lock_delays,
            limits: config.limits,
            locks: config.locks,
            period: config.period,
            mutant: config.mutant,
            net: Mutex::new(config.net),
            recorder: Mutex::new(config.recorder),
            guards: Mutex::default(),
            processes: Mutex::default(),
            stop_times: Mutex::default(),
            last_guard_id: AtomicU32::default(),
            last_text: AtomicU32::default(),
            owners: Mutex::default(),
            start_process: config.start_process,
        })
    }

    /// Adds a machine, and starts its first process.
    pub(crate) fn add_slot(self: &Arc<Self>, random: Random) {
        let host = self.boot(&random);
        locked(&self.processes).push(RestartableProcess { host, random });
    }

    /// The first violation, how much happened, and the trace.
    pub(crate) fn result(&self) -> (Option<Violation>, Counts, Timeline) {
        let mut recorder = locked(&self.recorder);
        (recorder.violation.take(), recorder.counts, recorder.timeline())
    }

    pub(crate) fn net(&self) -> MutexGuard<'_, Net> {
        locked(&self.net)
    }

    pub(crate) fn record(&self, event: &Event<'_>) {
        let now = self.scheduler.now();
        locked(&self.recorder).record(now, event);
    }

    pub(crate) fn fail(&self, check: &'static str, what: String) {
        let now = self.scheduler.now();
        locked(&self.recorder).fail(check, now, what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        locked(&self.recorder).violation.is_some()
    }

    pub(crate) fn lock_id(&self, lock: &Lock) -> LockId {
        let index = self.locks.iter().position(|known| known == lock).unwrap_or(0);
        LockId(u8::try_from(index).unwrap_or(0))
    }

    pub(crate) fn kind(&self, lock: LockId) -> Kind {
        self.locks.get(usize::from(lock.0)).map_or(Kind::Mutex, |lock| lock.kind)
    }

    /// The locks that one guard can combine.
    pub(crate) fn mutexes(&self) -> Vec<LockId> {
        let all = (0..u8::try_from(self.locks.len()).unwrap_or(0)).map(LockId);
        let is_of_period = |lock: LockId| self.period.is_some_and(|period| period.lock == lock);
        all.filter(|lock| self.kind(*lock) == Kind::Mutex && !is_of_period(*lock)).collect()
    }

    /// Unwraps the result, and fails the run on an error.
    pub(crate) fn expect<T>(
        &self,
        check: &'static str,
        found: Result<T, impl std::fmt::Display>,
    ) -> Option<T> {
        found.inspect_err(|error| self.fail(check, format!("no such lock: {error}"))).ok()
    }

    pub(crate) fn new_guard_id(&self) -> GuardId {
        GuardId(self.last_guard_id.fetch_add(1, Ordering::Relaxed))
    }

    /// A text for a leader to proclaim.
    pub(crate) fn new_text(&self) -> ProclaimedText {
        ProclaimedText(self.last_text.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of an owner.
    pub(crate) fn owner_id(&self, owner: &Owner) -> OwnerId {
        let text = owner.as_str();
        let mut owners = locked(&self.owners);
        let known = owners.known.iter().position(|known| known == text);
        let at = known.unwrap_or(owners.known.len());
        let id = OwnerId(u32::try_from(at).unwrap_or(u32::MAX));
        if known.is_none() {
            owners.known.push(text.to_owned());
            drop(owners);
            self.record(&Event::Owner(id, text));
        }
        id
    }

    /// Makes an owner available to other processes.
    pub(crate) fn publish_owner(&self, host: HostId, header: String) {
        locked(&self.owners).published.push((host, header));
    }

    /// An owner that another process has published.
    pub(crate) fn published_owner(&self, host: HostId, random: &Random) -> Option<Owner> {
        let owners = locked(&self.owners);
        let others: Vec<_> = owners.published.iter().filter(|(from, _)| *from != host).collect();
        let (_, header) = (!others.is_empty()).then(|| *random.pick(&others))?;
        Owner::from_header(header).ok()
    }

    /// Starts a process.
    pub(crate) fn boot(self: &Arc<Self>, random: &Random) -> HostId {
        let clock = Clock::new(random.between(1_000_000, 1_000_000_000_000), drift(random, &self.fault_plan));
        let host = self.scheduler.add_host(clock);
        self.scheduler.spawn(host, (self.start_process)(self.clone(), host, random.branch()));
        host
    }

    /// The store of a process, with its links to the server.
    pub(crate) fn store(self: &Arc<Self>, host: HostId, random: &Random) -> SimStore {
        let links = self.add_links(host);
        let world = ProcessEnvironment { sim: self.clone(), host, random: Arc::new(random.branch()) };
        SimStore { world, link: links[0], keeper_link: links[1], confirming_link: links.get(2).copied() }
    }

    pub(crate) fn schedule_faults(self: &Arc<Self>) {
        for (at, fault) in self.fault_plan.faults.clone() {
            let sim = self.clone();
            self.scheduler.at(at, None, move || sim.inject(fault));
        }
        let sim = self.clone();
        self.scheduler.at(self.fault_plan.faults_end_at, None, move || {
            sim.net().is_faulty = false;
            sim.record(&Event::FaultsEnded);
        });
    }

    pub(crate) fn host_at(&self, process_index: usize) -> Option<HostId> {
        let host = locked(&self.processes).get(process_index).map(|process| process.host)?;
        (!self.scheduler.is_dead(host)).then_some(host)
    }

    pub(crate) fn inject(self: &Arc<Self>, fault: Fault) {
        let now = self.scheduler.now();
        // A fault with a duration ends when faults end.
        let left = self.fault_plan.faults_end_at.since(now);
        match fault {
            Fault::Break { process_index, keeper } => {
                if let Some(host) = self.host_at(process_index) {
                    self.break_links(host, Some(keeper));
                }
            }
            Fault::CutOff { process_index, lasts } => {
                if let Some(host) = self.host_at(process_index) {
                    self.isolate(host, lasts.min(left));
                }
            }
            Fault::Stop { process_index, lasts } => {
                if let Some(host) = self.host_at(process_index) {
                    self.stop(host, lasts.min(left));
                }
            }
            Fault::Crash { process_index, back_after } => {
                if let Some(host) = self.host_at(process_index) {
                    self.crash(process_index, host, back_after.min(left));
                }
            }
            Fault::Restart { lasts, with_data } => {
                if self.server_down() {
                    let sim = self.clone();
                    self.scheduler.at(now + lasts.min(left), None, move || sim.server_up(with_data));
                }
            }
            Fault::FailOver { lasts, lag } => {
                if self.server_down() {
                    let (sim, lasts) = (self.clone(), lasts.min(left));
                    self.scheduler.at(now + lasts, None, move || sim.fail_over(lasts, lag));
                }
            }
            Fault::IsolatePrimary(PrimaryIsolation { machines, outage, lasts }) => {
                let (outage, lasts) = (outage.min(left / 2), lasts.min(left / 2));
                self.isolate_primary(PrimaryIsolation { machines, outage, lasts });
            }
            Fault::Jump { by_us } => self.jump(by_us),
            Fault::Delete { lock } => self.delete(LockId(lock)),
        }
    }

    pub(crate) fn stop(self: &Arc<Self>, host: HostId, lasts: Duration) {
        if self.scheduler.is_stopped(host) {
            return;
        }
        self.scheduler.stop(host);
        let now = self.scheduler.now();
        locked(&self.stop_times).entry(host).or_default().since = Some(now);
        self.record(&Event::Host(host, HostEvent::Stopped));
        let sim = self.clone();
        self.scheduler.at(now + lasts, None, move || {
            if sim.scheduler.is_dead(host) {
                return;
            }
            sim.record(&Event::Host(host, HostEvent::Resumed));
            if let Some(stop_times) = locked(&sim.stop_times).get_mut(&host) {
                stop_times.total +=
                    stop_times.since.take().map_or(Duration::ZERO, |since| sim.scheduler.now().since(since));
            }
            sim.scheduler.resume(host);
            sim.sample_validity(host);
        });
    }

    /// How long a process has been stopped so far, in total.
    pub(crate) fn stopped_for(&self, host: HostId) -> Duration {
        locked(&self.stop_times).get(&host).map_or(Duration::ZERO, |stop_times| stop_times.total)
    }

    pub(crate) fn crash(self: &Arc<Self>, process_index: usize, host: HostId, back_after: Duration) {
        if self.scheduler.live_tasks(host) == 0 {
            return;
        }
        self.record(&Event::Host(host, HostEvent::Crashed));
        self.close_links(host);
        locked(&self.guards).retain(|watched| watched.task.host != host);
        self.scheduler.kill(host);
        let sim = self.clone();
        self.scheduler.at(self.scheduler.now() + back_after, None, move || {
            let mut processes = locked(&sim.processes);
            let Some(process) = processes.get_mut(process_index) else { return };
            process.host = sim.boot(&process.random);
            sim.assign_server(process_index, process.host);
        });
    }

    /// Records changes in the validity of a guard from now on.
    pub(crate) fn watch_guard(
        &self,
        world: &ProcessEnvironment,
        task: TaskId,
        guard: &Arc<AnyGuard>,
        acquired: Vec<(LockId, GuardId, NewGuard)>,
    ) {
        for (lock, guard_id, new_guard) in &acquired {
            self.record(&Event::Task(task, *lock, TaskEvent::Acquired(*guard_id, *new_guard)));
        }
        let until = world.shows_at(guard.valid_until());
        let guard_ids = acquired.into_iter().map(|(lock, guard_id, _)| (lock, guard_id)).collect();
        let (world, guard) = (world.clone(), Arc::downgrade(guard));
        locked(&self.guards).push(WatchedGuard { world, task, guard_ids, guard, until });
    }

    /// Records changes in the validity of a process's guards.
    pub(crate) fn sample_validity(&self, host: HostId) {
        let mut guards = locked(&self.guards);
        guards.retain_mut(|watched| {
            if watched.task.host != host {
                return true;
            }
            let Some(guard) = watched.guard.upgrade() else { return false };
            let until = watched.world.shows_at(guard.valid_until());
            if guard.check().is_ok() != (watched.world.now() < guard.valid_until()) {
                let task = watched.task;
                self.fail("validity", format!("the check of {task} disagrees with its deadline"));
            }
            if until != watched.until {
                watched.until = until;
                for (lock, guard_id) in &watched.guard_ids {
                    let changed = TaskEvent::ValidityChanged(*guard_id, Validity { until });
                    self.record(&Event::Task(watched.task, *lock, changed));
                }
            }
            true
        });
    }

    /// Runs the world to its end.
    pub(crate) fn run(self: &Arc<Self>) {
        let deadline = self.fault_plan.faults_end_at + TASKS_END_WITHIN + self.fault_plan.set_back();
        if !self.run_until(deadline, true) {
            return;
        }
        if let Some(host) = self.busy() {
            return self.fail("progress", format!("{host} has not ended: a task was not served"));
        }
        let quiet = self.scheduler.now() + CRASHED_EXPIRE_WITHIN;
        if self.run_until(quiet, false) {
            self.check_nothing_remains();
        }
    }

    /// A process with unfinished tasks.
    pub(crate) fn busy(&self) -> Option<HostId> {
        let processes = locked(&self.processes);
        processes.iter().map(|process| process.host).find(|host| self.scheduler.live_tasks(*host) > 0)
    }

    /// Advances time to a limit, or until all processes have ended. Returns whether no check has failed.
    pub(crate) fn run_until(&self, limit: Instant, until_done: bool) -> bool {
        let (mut steps, mut now) = (0_u64, self.scheduler.now());
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.scheduler.step(limit))) {
                Ok(StepResult::Task(host)) => self.sample_validity(host),
                Ok(StepResult::Job) => {}
                Ok(StepResult::Nothing) => break,
                Err(_) => self.fail("panic", "a panic: see the message above".into()),
            }
            if self.scheduler.now() > now {
                now = self.scheduler.now();
                locked(&self.recorder).advance(now);
            }
            steps += 1;
            if steps > MAX_STEPS {
                self.fail("progress", "the run exceeds its step limit".into());
            }
            if self.has_failed() {
                return false;
            }
            if until_done && now > self.fault_plan.faults_end_at && self.busy().is_none() {
                return true;
            }
        }
        self.scheduler.advance(limit);
        true
    }

    /// At the end no lock is held and no client waits. Later, no record remains.
    pub(crate) fn check_nothing_remains(&self) {
        let now = self.scheduler.now();
        let mut net = self.net();
        let server = &mut net.server;
        let now_us = server.clock.reading_us(now);
        let forgotten_us = server.clock.reading_us(now + RECORD_EXPIRES_WITHIN);
        // A drifting clock loses hours in a week, so the audit is checked by the store's own time.
        let audited_us =
            u64::try_from((RECORD_EXPIRES_WITHIN + AUDIT_TTL).as_micros()).unwrap_or(u64::MAX) + now_us;
        for (session, record) in &server.sessions.records {
            if self.fault_plan.profile != FaultProfile::ClockFaults && record.alive_until_ms >= now_us / 1000
            {
                return self.fail("cleanup", format!("{session} is alive although its process has ended"));
            }
            if record.expires_ms >= forgotten_us / 1000 {
                return self.fail("cleanup", format!("the record of {session} does not expire: {record:?}"));
            }
        }
        for (lock, state) in &mut server.locks {
            // Arrivals at a Latch or a Barrier exclude no client, and end with their long leases.
            let excludes_others = !matches!(state.kind, Kind::Latch | Kind::Barrier);
            let is_held = state.value.as_ref().is_some_and(|value| {
                value.expires_ms.is_none_or(|at_ms| at_ms >= now_us / 1000) && excludes_others
            });
            let entries = state.record.iter().flat_map(|record| record.entries.values());
            let entries = entries.filter(|entry| entry.expires_ms >= now_us / 1000).count();
            if self.fault_plan.profile != FaultProfile::ClockFaults && (is_held || entries > 0) {
                let what = format!("{lock} is not free: held {is_held}, {entries} queue entries");
                return self.fail("cleanup", what);
            }
            let is_remembered =
                !state.is_empty_at(forgotten_us) && (state.value.is_some() || state.record.is_some());
            if is_remembered || !state.is_empty_at(audited_us) {
                return self.fail("cleanup", format!("the record of {lock} does not expire: {state:?}"));
            }
        }
    }
}
