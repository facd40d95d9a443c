//! A run of the world: what it draws from its seed, what it starts, and its outcome.

use crate::checks::recorder::{Counts, Recorder, Violation};
use crate::checks::{self, CheckContext};
use crate::config::{HandoffConfig, LockDelays, Period, SharedLimits, WorkloadConfig};
use crate::event::LockId;
use crate::mutants::Mutant;
use crate::quorum::{self, Finished};
use crate::timeline::Timeline;
use crate::workload::{admin, foreign_client, process};
use crate::world::faults::{FaultPlan, FaultProfile};
use crate::world::network::Net;
use crate::world::server::Server;
use crate::world::time::Clock;
use crate::world::{Sim, SimConfig, drift};
use leasehold_core::{Kind, Lock, LockName};
use leasehold_testkit::Random;

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The seed of all random choices.
    pub seed: u64,
    /// What kind of world it is.
    pub scenario: Scenario,
    /// The defect to plant, if any.
    pub mutant: Option<Mutant>,
    /// Set to record a line for each event, and what to draw of it.
    pub with_trace: bool,
}

/// What kind of world a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One server, with all kinds of faults.
    OneServer,
    /// A primary and its replica, for which all clients wait. Partitions make both a primary, with clients at each. Only some
    /// checks apply.
    TwoPrimaries,
    /// Five nodes, on which each client has a quorum. Nodes forget. It has checks of its own.
    Quorum,
}

impl Run {
    /// A run without a defect.
    pub const fn new(seed: u64) -> Self {
        Self { seed, scenario: Scenario::OneServer, mutant: None, with_trace: false }
    }

    /// A run with partitions, without a defect.
    pub const fn with_two_primaries(seed: u64) -> Self {
        Self { scenario: Scenario::TwoPrimaries, ..Self::new(seed) }
    }

    /// A run over a quorum, without a defect.
    pub const fn with_quorum(seed: u64) -> Self {
        Self { scenario: Scenario::Quorum, ..Self::new(seed) }
    }

    /// A run with this defect, in a world that can show it.
    pub const fn with_mutant(seed: u64, mutant: Mutant) -> Self {
        let run = if mutant.is_of_replicas() {
            Self::with_two_primaries(seed)
        } else if mutant.is_of_quorum() {
            Self::with_quorum(seed)
        } else {
            Self::new(seed)
        };
        Self { mutant: Some(mutant), ..run }
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
    /// The trace, if one was requested: a line for each event.
    pub trace: Vec<String>,
    /// The same as something to draw.
    pub timeline: Timeline,
}

impl Mutant {
    /// Whether a run has the locks that the mutant is about.
    pub fn applies_to(self, run: &Run) -> bool {
        if self.is_of_replicas() {
            run.scenario == Scenario::TwoPrimaries
        } else if self.is_of_quorum() {
            run.scenario == Scenario::Quorum
        } else if self.is_of_shared_locks() {
            run.has_shared_locks()
        } else if self.is_of_elections() {
            run.has_elections()
        } else if self.is_of_periods() {
            run.has_periods()
        } else {
            !run.has_shared_locks()
        }
    }
}

/// Runs the world once.
pub fn run(run: &Run) -> Outcome {
    if run.scenario == Scenario::Quorum {
        let Finished { profile, violation, counts, timeline } =
            quorum::run(run.seed, run.mutant, run.with_trace);
        return Outcome { violation, counts, profile, trace: timeline.lines(), timeline };
    }
    let random = Random::from_seed(run.seed);
    let processes = usize::try_from(random.between(1, 4)).unwrap_or(1);
    let locks = u8::try_from(*random.pick(&[1, 2, 2, 3])).unwrap_or(1);
    let (fault_plan, checks) = match run.scenario {
        Scenario::OneServer | Scenario::Quorum => (FaultPlan::draw(&random, processes, locks), checks::all()),
        Scenario::TwoPrimaries => {
            (FaultPlan::draw_two_primaries(&random, processes, locks), checks::of_two_primaries())
        }
    };
    let profile = fault_plan.profile;
    let clock = Clock::new(1_760_000_000_000_000 + random.below(1_000_000), drift(&random, &fault_plan));
    let mut locks: Vec<_> = (0..locks).filter_map(|number| lock(number, &random)).collect();
    // A separate generator, so that other runs keep their random choices.
    let extra_random = Random::from_seed(!run.seed);
    let limits = SharedLimits::draw(&extra_random);
    let handoff = HandoffConfig::draw(&Random::from_seed(run.seed.rotate_left(32)));
    // A run with another mutant has none: in how many seeds that is found depends on all random choices.
    let has_delays = run.mutant.is_none_or(|mutant| mutant == Mutant::DelayIsNotRequested);
    let lock_delays = LockDelays::draw(&Random::from_seed(run.seed.rotate_left(16)), has_delays);
    if run.has_shared_locks() {
        locks = locks.into_iter().map(|lock| shared(lock, &extra_random)).collect();
    }
    if run.has_elections() {
        locks = with_elections(locks, &extra_random);
    }
    let period = run.has_periods().then(|| Period::draw(&extra_random));
    if let Some(first) = locks.first_mut().filter(|_| period.is_some()) {
        first.kind = Kind::Mutex;
    }
    let kinds: Vec<_> = locks.iter().map(|lock| lock.kind).collect();
    let has_replica = matches!(profile, FaultProfile::DataLoss | FaultProfile::TwoPrimaries);
    let server = Server::new(clock, has_replica, kinds.clone());
    let net = Net::new(random.branch(), server);
    let (scheduler_random, mut config) = (random.branch(), WorkloadConfig::draw(&random));
    // A call takes as long as the replica needs, several times in a row.
    config.call_timeout += fault_plan.replica_lag.unwrap_or_default() * 3;
    let mut context = CheckContext::new(fault_plan.promises(), config.yield_every.is_some(), kinds);
    context.replica_lag = fault_plan.replica_lag.unwrap_or_default();
    let recorder = Recorder::new(checks, context, run.with_trace);
    let sim = Sim::new(SimConfig {
        scheduler_random,
        fault_plan,
        workload: config,
        handoff,
        lock_delays,
        limits,
        locks,
        period,
        mutant: run.mutant,
        net,
        recorder,
        start_process: |sim, host, random| Box::pin(process(sim, host, random)),
    });
    for _ in 0..processes {
        sim.add_slot(random.branch());
    }
    // A client of another library waits for no replica.
    if random.chance(250) && run.scenario == Scenario::OneServer {
        let host = sim.scheduler.add_host(Clock::new(0, 0));
        sim.scheduler.spawn(host, Box::pin(foreign_client(sim.clone(), random.branch())));
    }
    if random.chance(300) {
        let (host, random) = (sim.scheduler.add_host(Clock::new(0, 0)), random.branch());
        sim.scheduler.spawn(host, Box::pin(admin::monitor(sim.store(host, &random), random)));
    }
    if random.chance(200) && run.scenario == Scenario::OneServer {
        let (host, random) = (sim.scheduler.add_host(Clock::new(0, 0)), random.branch());
        sim.scheduler.spawn(host, Box::pin(admin::operator(sim.store(host, &random), random)));
    }
    sim.schedule_faults();
    sim.run();
    sim.scheduler.end();
    let (violation, counts, timeline) = sim.result();
    Outcome { violation, counts, profile, trace: timeline.lines(), timeline }
}

fn lock(number: u8, random: &Random) -> Option<Lock> {
    let name = LockName::try_from(LockId(number).to_string()).ok()?;
    Some(if random.chance(350) { Lock::reentrant(name) } else { Lock::mutex(name) })
}

/// The same name with another kind of lock, sometimes unchanged.
fn shared(lock: Lock, random: &Random) -> Lock {
    match random.below(20) {
        0..9 => Lock::rwlock(lock.name),
        9..15 => Lock::semaphore(lock.name),
        15..17 => Lock::latch(lock.name),
        17..19 => Lock::barrier(lock.name),
        _ => lock,
    }
}

/// The first lock as an Election, and of the others some that are Mutexes.
fn with_elections(locks: Vec<Lock>, random: &Random) -> Vec<Lock> {
    let as_election = |(number, lock): (usize, Lock)| {
        let is_led = number == 0 || (lock.kind == Kind::Mutex && random.chance(500));
        if is_led { Lock::election(lock.name) } else { lock }
    };
    locks.into_iter().enumerate().map(as_election).collect()
}
