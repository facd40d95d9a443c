//! A run of the world: its parts, its loop, and the faults that it injects.

pub(crate) mod environment;
pub(crate) mod faults;
pub(crate) mod network;
pub(crate) mod scheduler;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod time;

use crate::checks::recorder::{Counts, Recorder, Violation};
use crate::event::{Event, GuardId, HostEvent, LockId, NewGuard, OwnerId, TaskEvent, TaskId, Validity};
use crate::mutants::Mutant;
use crate::workload::burst::HandoffConfig;
use crate::workload::guards::AnyGuard;
use crate::workload::once_per::Period;
use crate::workload::{SharedLimits, WorkloadConfig, admin, process, stranger};
use environment::ProcessEnvironment;
use faults::{Fault, FaultPlan, FaultProfile};
use leasehold::Owner;
use leasehold_core::{AUDIT_KEPT, Kind, Lock, LockName};
use leasehold_testkit::Random;
use network::Net;
use scheduler::{HostId, Scheduler, StepResult};
use server::Server;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The seed of all random choices.
    pub seed: u64,
    /// The defect to plant, if any.
    pub mutant: Option<Mutant>,
    /// Set to record a line for each event.
    pub with_trace: bool,
}

impl Run {
    /// A run as it should be.
    pub const fn new(seed: u64) -> Self {
        Self { seed, mutant: None, with_trace: false }
    }

    /// Whether it uses `RwLocks`, Semaphores, Latches and Barriers: one run in three.
    pub const fn has_shared_locks(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Whether it uses Elections: one run in six.
    pub const fn has_elections(&self) -> bool {
        self.seed % 6 == 1
    }

    /// Whether it uses `once_per`: one run in six.
    pub const fn has_periods(&self) -> bool {
        self.seed % 6 == 4
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The first violation.
    pub violation: Option<Violation>,
    /// How much happened.
    pub counts: Counts,
    /// The kind of faults.
    pub profile: FaultProfile,
    /// The trace, if one was requested.
    pub trace: Vec<String>,
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

/// Runs the world once.
pub fn run(run: &Run) -> Outcome {
    let chance = Random::from_seed(run.seed);
    let slots = usize::try_from(chance.between(1, 4)).unwrap_or(1);
    let locks = u8::try_from(*chance.pick(&[1, 2, 2, 3])).unwrap_or(1);
    let fault_plan = FaultPlan::draw(&chance, slots, locks);
    let profile = fault_plan.profile;
    let clock = Clock::new(1_760_000_000_000_000 + chance.below(1_000_000), drift(&chance, &fault_plan));
    let mut locks: Vec<_> = (0..locks).filter_map(|number| lock(number, &chance)).collect();
    // A generator of its own, so that other runs keep their random choices.
    let apart = Random::from_seed(!run.seed);
    let limits = SharedLimits::draw(&apart);
    let handoff = HandoffConfig::draw(&Random::from_seed(run.seed.rotate_left(32)));
    if run.has_shared_locks() {
        locks = locks.into_iter().map(|lock| shared(lock, &apart)).collect();
    }
    if run.has_elections() {
        locks = led(locks, &apart);
    }
    let period = run.has_periods().then(|| Period::draw(&apart));
    if let Some(first) = locks.first_mut().filter(|_| period.is_some()) {
        first.kind = Kind::Mutex;
    }
    let kinds: Vec<_> = locks.iter().map(|lock| lock.kind).collect();
    let server = Server::new(clock, profile == FaultProfile::DataLoss, kinds.clone());
    let net = Net::new(chance.branch(), server);
    let (kernel_chance, config) = (chance.branch(), WorkloadConfig::draw(&chance));
    let sim = Arc::new(Sim {
        scheduler: Scheduler::new(kernel_chance),
        config,
        handoff,
        limits,
        locks,
        period,
        mutant: run.mutant,
        net: Mutex::new(net),
        watch: Mutex::new(Recorder::new(
            fault_plan.promises(),
            config.free_every.is_some(),
            kinds,
            run.with_trace,
        )),
        guards: Mutex::default(),
        slots_in_use: Mutex::default(),
        stops: Mutex::default(),
        last_guard_id: AtomicU32::default(),
        owners: Mutex::default(),
        fault_plan,
    });
    for _ in 0..slots {
        let chance = chance.branch();
        let host = sim.boot(&chance);
        locked(&sim.slots_in_use).push(ProcessSlot { host, chance });
    }
    if chance.chance(250) {
        let host = sim.scheduler.add_host(Clock::new(0, 0));
        sim.scheduler.spawn(host, Box::pin(stranger(sim.clone(), chance.branch())));
    }
    if chance.chance(300) {
        let (host, chance) = (sim.scheduler.add_host(Clock::new(0, 0)), chance.branch());
        sim.scheduler.spawn(host, Box::pin(admin::monitor(sim.store(host, &chance), chance)));
    }
    if chance.chance(200) {
        let (host, chance) = (sim.scheduler.add_host(Clock::new(0, 0)), chance.branch());
        sim.scheduler.spawn(host, Box::pin(admin::operator(sim.store(host, &chance), chance)));
    }
    sim.schedule_faults();
    sim.live();
    sim.scheduler.end();
    let mut watch = locked(&sim.watch);
    Outcome {
        violation: watch.violation.take(),
        counts: watch.counts,
        profile,
        trace: watch.trace.take().unwrap_or_default(),
    }
}

fn lock(number: u8, chance: &Random) -> Option<Lock> {
    let name = LockName::try_from(LockId(number).to_string()).ok()?;
    Some(if chance.chance(350) { Lock::reentrant(name) } else { Lock::mutex(name) })
}

/// The same name with another kind of lock, sometimes unchanged.
fn shared(lock: Lock, chance: &Random) -> Lock {
    match chance.below(20) {
        0..9 => Lock::rwlock(lock.name),
        9..15 => Lock::semaphore(lock.name),
        15..17 => Lock::latch(lock.name),
        17..19 => Lock::barrier(lock.name),
        _ => lock,
    }
}

/// The first lock as an Election, and of the others some that are Mutexes.
fn led(locks: Vec<Lock>, chance: &Random) -> Vec<Lock> {
    let leads = |(number, lock): (usize, Lock)| {
        let is_led = number == 0 || (lock.kind == Kind::Mutex && chance.chance(500));
        if is_led { Lock::election(lock.name) } else { lock }
    };
    locks.into_iter().enumerate().map(leads).collect()
}

/// How wrong a clock is.
fn drift(chance: &Random, fault_plan: &FaultPlan) -> i64 {
    let most = fault_plan.drift_ppm;
    i64::try_from(chance.below(u64::try_from(2 * most + 1).unwrap_or(1))).unwrap_or(0) - most
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run ends at its first panic, so what a panic left inconsistent is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
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
        self.scheduler.spawn(host, Box::pin(process(self.clone(), host, chance.branch())));
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
            u64::try_from((FORGOTTEN_AFTER + AUDIT_KEPT).as_micros()).unwrap_or(u64::MAX) + now_us;
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
            let places = state.record.iter().flat_map(|record| record.places.values());
            let kept = places.filter(|place| place.expires_ms >= now_us / 1000).count();
            if self.fault_plan.profile != FaultProfile::ClockFaults && (is_held || kept > 0) {
                let what = format!("{lock} is left behind: held {is_held}, {kept} places");
                return self.fail("cleanup", what);
            }
            let is_remembered =
                !state.is_over(forgotten_us) && (state.value.is_some() || state.record.is_some());
            if is_remembered || !state.is_over(audited_us) {
                return self.fail("cleanup", format!("{lock} is remembered for ever: {state:?}"));
            }
        }
    }
}
