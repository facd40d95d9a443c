//! The world of one run: its parts, its loop, and the faults that it injects.

pub(crate) mod environment;
pub(crate) mod faults;
pub(crate) mod link;
pub(crate) mod network;
pub(crate) mod scheduler;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod time;

use crate::any_guard::AnyGuard;
use crate::checks::recorder::{Counts, Recorder, Violation};
use crate::config::{HandoffConfig, Period, SharedLimits, WorkloadConfig};
use crate::event::{Event, GuardId, HostEvent, LockId, NewGuard, OwnerId, TaskEvent, TaskId, Validity};
use crate::mutants::Mutant;
use environment::ProcessEnvironment;
use faults::{Fault, FaultPlan, FaultProfile};
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

/// How long after everything is well all tasks may take to end: each waits for a few others at most.
const SERVED_WITHIN: Duration = Duration::from_secs(150);
/// How long after that queue entries and holds of crashed processes may last.
const QUIET: Duration = Duration::from_secs(40);
/// How long a lock is remembered at most, and a little more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2 * 3600);
/// An upper bound on the steps of a run. A run that exceeds it loops.
const STEPS: u64 = 5_000_000;

/// Runs a process on a host, from its start to its end.
pub(crate) type StartProcess = fn(Arc<Sim>, HostId, Random) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a world is made of.
pub(crate) struct SimConfig {
    pub(crate) scheduler_chance: Random,
    pub(crate) fault_plan: FaultPlan,
    pub(crate) workload: WorkloadConfig,
    pub(crate) handoff: HandoffConfig,
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
    pub(crate) limits: SharedLimits,
    pub(crate) locks: Vec<Lock>,
    /// The parameters of `once_per`, if this run uses it.
    pub(crate) period: Option<Period>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) net: Mutex<Net>,
    pub(crate) watch: Mutex<Recorder>,
    guards: Mutex<Vec<WatchedGuard>>,
    slots_in_use: Mutex<Vec<ProcessSlot>>,
    stops: Mutex<BTreeMap<HostId, StopTime>>,
    pub(crate) last_guard_id: AtomicU32,
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
    kept: Weak<AnyGuard>,
    until: Instant,
}

/// A machine on which processes run, one after another.
struct ProcessSlot {
    host: HostId,
    chance: Random,
}

/// How long a process has stood still.
#[derive(Default)]
struct StopTime {
    since: Option<Instant>,
    total: Duration,
}

/// How wrong a clock is.
pub(crate) fn drift(chance: &Random, fault_plan: &FaultPlan) -> i64 {
    let most = fault_plan.drift_ppm;
    i64::try_from(chance.below(u64::try_from(2 * most + 1).unwrap_or(1))).unwrap_or(0) - most
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run ends at its first panic, so what a panic left inconsistent is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// A world without processes.
    pub(crate) fn new(config: SimConfig) -> Arc<Self> {
        Arc::new(Self {
            scheduler: Scheduler::new(config.scheduler_chance),
            fault_plan: config.fault_plan,
            config: config.workload,
            handoff: config.handoff,
            limits: config.limits,
            locks: config.locks,
            period: config.period,
            mutant: config.mutant,
            net: Mutex::new(config.net),
            watch: Mutex::new(config.recorder),
            guards: Mutex::default(),
            slots_in_use: Mutex::default(),
            stops: Mutex::default(),
            last_guard_id: AtomicU32::default(),
            owners: Mutex::default(),
            start_process: config.start_process,
        })
    }

    /// Adds a machine, and starts its first process.
    pub(crate) fn add_slot(self: &Arc<Self>, chance: Random) {
        let host = self.boot(&chance);
        locked(&self.slots_in_use).push(ProcessSlot { host, chance });
    }

    /// The first violation, how much happened, and the trace.
    pub(crate) fn result(&self) -> (Option<Violation>, Counts, Vec<String>) {
        let mut watch = locked(&self.watch);
        (watch.violation.take(), watch.counts, watch.trace.take().unwrap_or_default())
    }

    pub(crate) fn net(&self) -> MutexGuard<'_, Net> {
        locked(&self.net)
    }

    pub(crate) fn note(&self, event: &Event<'_>) {
        let now = self.scheduler.now();
        locked(&self.watch).note(now, event);
    }

    pub(crate) fn fail(&self, check: &'static str, what: String) {
        let now = self.scheduler.now();
        locked(&self.watch).fail(check, now, what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        locked(&self.watch).violation.is_some()
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
        let is_turn = |lock: LockId| self.period.is_some_and(|period| period.lock == lock);
        all.filter(|lock| self.kind(*lock) == Kind::Mutex && !is_turn(*lock)).collect()
    }

    /// Unwraps the result, and fails the run on an error.
    pub(crate) fn expect<T>(
        &self,
        check: &'static str,
        found: Result<T, impl std::fmt::Display>,
    ) -> Option<T> {
        found.inspect_err(|error| self.fail(check, format!("no such lock: {error}"))).ok()
    }

    pub(crate) fn new_grip(&self) -> GuardId {
        GuardId(self.last_guard_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Which owner it is.
    pub(crate) fn owner_id(&self, owner: &Owner) -> OwnerId {
        let text = owner.as_str();
        let mut owners = locked(&self.owners);
        let known = owners.known.iter().position(|known| known == text);
        let at = known.unwrap_or(owners.known.len());
        let id = OwnerId(u32::try_from(at).unwrap_or(u32::MAX));
        if known.is_none() {
            owners.known.push(text.to_owned());
            drop(owners);
            self.note(&Event::Owner(id, text));
        }
        id
    }

    /// Makes an owner available to other processes.
    pub(crate) fn make_known(&self, host: HostId, header: String) {
        locked(&self.owners).published.push((host, header));
    }

    /// An owner of another process.
    pub(crate) fn published(&self, host: HostId, chance: &Random) -> Option<Owner> {
        let owners = locked(&self.owners);
        let others: Vec<_> = owners.published.iter().filter(|(from, _)| *from != host).collect();
        let (_, header) = (!others.is_empty()).then(|| *chance.pick(&others))?;
        Owner::from_header(header).ok()
    }

    /// Starts a process.
    pub(crate) fn boot(self: &Arc<Self>, chance: &Random) -> HostId {
        let clock = Clock::new(chance.between(1_000_000, 1_000_000_000_000), drift(chance, &self.fault_plan));
        let host = self.scheduler.add_host(clock);
        self.scheduler.spawn(host, (self.start_process)(self.clone(), host, chance.branch()));
        host
    }

    /// A way to the server for a process.
    pub(crate) fn store(self: &Arc<Self>, host: HostId, chance: &Random) -> SimStore {
        let links = self.add_links(host);
        let world = ProcessEnvironment { sim: self.clone(), host, chance: Arc::new(chance.branch()) };
        SimStore { world, link: links[0], other: links[1] }
    }

    pub(crate) fn schedule_faults(self: &Arc<Self>) {
        for (at, fault) in self.fault_plan.faults.clone() {
            let sim = self.clone();
            self.scheduler.at(at, None, move || sim.inject(fault));
        }
        let sim = self.clone();
        self.scheduler.at(self.fault_plan.faults_end_at, None, move || {
            sim.net().is_faulty = false;
            sim.note(&Event::FaultsEnded);
        });
    }

    pub(crate) fn host_at(&self, slot: usize) -> Option<HostId> {
        let host = locked(&self.slots_in_use).get(slot).map(|process| process.host)?;
        (!self.scheduler.is_dead(host)).then_some(host)
    }

    pub(crate) fn inject(self: &Arc<Self>, fault: Fault) {
        let now = self.scheduler.now();
        // A lasting fault ends when faults end.
        let left = self.fault_plan.faults_end_at.since(now);
        match fault {
            Fault::Break { slot, keeper } => {
                if let Some(host) = self.host_at(slot) {
                    self.break_links(host, Some(keeper));
                }
            }
            Fault::CutOff { slot, lasts } => {
                if let Some(host) = self.host_at(slot) {
                    self.isolate(host, lasts.min(left));
                }
            }
            Fault::Stop { slot, lasts } => {
                if let Some(host) = self.host_at(slot) {
                    self.stop(host, lasts.min(left));
                }
            }
            Fault::Crash { slot, back_after } => {
                if let Some(host) = self.host_at(slot) {
                    self.crash(slot, host, back_after.min(left));
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
        locked(&self.stops).entry(host).or_default().since = Some(now);
        self.note(&Event::Host(host, HostEvent::Stopped));
        let sim = self.clone();
        self.scheduler.at(now + lasts, None, move || {
            if sim.scheduler.is_dead(host) {
                return;
            }
            sim.note(&Event::Host(host, HostEvent::WentOn));
            if let Some(stops) = locked(&sim.stops).get_mut(&host) {
                stops.total +=
                    stops.since.take().map_or(Duration::ZERO, |since| sim.scheduler.now().since(since));
            }
            sim.scheduler.go_on(host);
            sim.sample(host);
        });
    }

    /// How long a process has stood still until now, in all.
    pub(crate) fn stopped_for(&self, host: HostId) -> Duration {
        locked(&self.stops).get(&host).map_or(Duration::ZERO, |stops| stops.total)
    }

    pub(crate) fn crash(self: &Arc<Self>, slot: usize, host: HostId, back_after: Duration) {
        if self.scheduler.live_tasks(host) == 0 {
            return;
        }
        self.note(&Event::Host(host, HostEvent::Crashed));
        self.close_links(host);
        locked(&self.guards).retain(|watched| watched.task.host != host);
        self.scheduler.kill(host);
        let sim = self.clone();
        self.scheduler.at(self.scheduler.now() + back_after, None, move || {
            let mut slots_in_use = locked(&sim.slots_in_use);
            let Some(process) = slots_in_use.get_mut(slot) else { return };
            process.host = sim.boot(&process.chance);
        });
    }

    /// Watches the validity of a guard from now on.
    pub(crate) fn watch_guard(
        &self,
        world: &ProcessEnvironment,
        task: TaskId,
        kept: &Arc<AnyGuard>,
        got: Vec<(LockId, GuardId, NewGuard)>,
    ) {
        for (lock, guard_id, gain) in &got {
            self.note(&Event::Task(task, *lock, TaskEvent::Acquired(*guard_id, *gain)));
        }
        let until = world.shows_at(kept.valid_until());
        let guard_ids = got.into_iter().map(|(lock, guard_id, _)| (lock, guard_id)).collect();
        let (world, kept) = (world.clone(), Arc::downgrade(kept));
        locked(&self.guards).push(WatchedGuard { world, task, guard_ids, kept, until });
    }

    /// Records changes in the validity of a process's guards.
    pub(crate) fn sample(&self, host: HostId) {
        let mut guards = locked(&self.guards);
        guards.retain_mut(|watched| {
            if watched.task.host != host {
                return true;
            }
            let Some(kept) = watched.kept.upgrade() else { return false };
            let until = watched.world.shows_at(kept.valid_until());
            if kept.check().is_ok() != (watched.world.now() < kept.valid_until()) {
                let task = watched.task;
                self.fail("validity", format!("the check of {task} does not say what its deadline says"));
            }
            if until != watched.until {
                watched.until = until;
                for (lock, guard_id) in &watched.guard_ids {
                    let believes = TaskEvent::ValidityChanged(*guard_id, Validity { until });
                    self.note(&Event::Task(watched.task, *lock, believes));
                }
            }
            true
        });
    }

    /// Releasing the world go its way to its end.
    pub(crate) fn live(self: &Arc<Self>) {
        let deadline = self.fault_plan.faults_end_at + SERVED_WITHIN + self.fault_plan.set_back();
        if !self.go_on_until(deadline, true) {
            return;
        }
        if let Some(host) = self.busy() {
            return self.fail("progress", format!("{host} has not ended: a task was not served"));
        }
        let quiet = self.scheduler.now() + QUIET;
        if self.go_on_until(quiet, false) {
            self.see_that_nothing_is_left();
        }
    }

    /// A process with unfinished tasks.
    pub(crate) fn busy(&self) -> Option<HostId> {
        let slots_in_use = locked(&self.slots_in_use);
        slots_in_use.iter().map(|process| process.host).find(|host| self.scheduler.live_tasks(*host) > 0)
    }

    /// Advances time to a limit, or until all processes have ended. Returns whether no check has failed.
    pub(crate) fn go_on_until(&self, limit: Instant, until_done: bool) -> bool {
        let (mut steps, mut now) = (0_u64, self.scheduler.now());
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.scheduler.step(limit))) {
                Ok(StepResult::Task(host)) => self.sample(host),
                Ok(StepResult::Job) => {}
                Ok(StepResult::Nothing) => break,
                Err(_) => self.fail("panic", "something panicked: see the message above".into()),
            }
            if self.scheduler.now() > now {
                now = self.scheduler.now();
                locked(&self.watch).pass(now);
            }
            steps += 1;
            if steps > STEPS {
                self.fail("progress", "the run exceeds its step limit".into());
            }
            if self.has_failed() {
                return false;
            }
            if until_done && now > self.fault_plan.faults_end_at && self.busy().is_none() {
                return true;
            }
        }
        self.scheduler.pass(limit);
        true
    }

    /// At the end no lock is held and no client waits. Later, no record remains.
    pub(crate) fn see_that_nothing_is_left(&self) {
        let now = self.scheduler.now();
        let mut net = self.net();
        let server = &mut net.server;
        let now_us = server.clock.reading_us(now);
        let forgotten_us = server.clock.reading_us(now + FORGOTTEN_AFTER);
        // In a week a clock that drifts loses hours: here the store's own time counts.
        let audited_us =
            u64::try_from((FORGOTTEN_AFTER + AUDIT_TTL).as_micros()).unwrap_or(u64::MAX) + now_us;
        for (session, record) in &server.sessions.records {
            if self.fault_plan.profile != FaultProfile::ClockFaults && record.alive_until_ms >= now_us / 1000
            {
                return self.fail("cleanup", format!("{session} is alive, and its process has ended"));
            }
            if record.expires_ms >= forgotten_us / 1000 {
                return self.fail("cleanup", format!("{session} is remembered for ever: {record:?}"));
            }
        }
        for (lock, state) in &mut server.locks {
            // Arrivals at a Latch or a Barrier block no client, and end by their long leases.
            let keeps_out = !matches!(state.kind, Kind::Latch | Kind::Barrier);
            let is_held = state.value.as_ref().is_some_and(|value| {
                value.expires_ms.is_none_or(|at_ms| at_ms >= now_us / 1000) && keeps_out
            });
            let places = state.record.iter().flat_map(|record| record.entries.values());
            let kept = places.filter(|place| place.expires_ms >= now_us / 1000).count();
            if self.fault_plan.profile != FaultProfile::ClockFaults && (is_held || kept > 0) {
                let what = format!("{lock} is left behind: held {is_held}, {kept} places");
                return self.fail("cleanup", what);
            }
            let is_remembered =
                !state.is_empty_at(forgotten_us) && (state.value.is_some() || state.record.is_some());
            if is_remembered || !state.is_empty_at(audited_us) {
                return self.fail("cleanup", format!("{lock} is remembered for ever: {state:?}"));
            }
        }
    }
}
