//! A small world of clients, a lock server and a guarded counter, in virtual time: it makes histories.
//!
//! Without a bug, the server and the clients are correct, and so is the history. Each bug is a defect that a real store or library
//! could have; with it, the history has a violation that a check must find.
//!
//! The server keeps a queue for each lock, grants in order, and ends a hold by its release or its lease. A client believes in a hold until
//! the lease ends by the server's clock, less a margin, and extends it in the meantime. Messages take time. Faults stop processes,
//! kill them, or delay their messages.

use crate::random::Random;
use leasehold_history::{Answer, Event, FaultKind, History, LockKind, LockSpec, Mode, ReleaseAnswer, What};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

const MS: u64 = 1_000;
/// How long a hold lasts without an extend, and how long the server remembers what a dead process left.
const LEASE_US: u64 = 1_000 * MS;
/// By how much a client's belief is shorter than the lease.
const ALLOWANCE_US: u64 = 20 * MS;
/// The period of a lock of which there is one turn a period.
const PERIOD_MS: u64 = 700;
const PROCESSES: u32 = 4;

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The server forgets all holds now and then, as one that restarts without its data.
    Forgets,
    /// The server grants without looking whether the lock is held: a SET without NX.
    NeverLooks,
    /// Clients go on believing in a hold for two seconds after its lease.
    BelievesTooLong,
    /// Each token is given twice.
    RepeatsTokens,
    /// The server counts tokens anew now and then.
    RestartsTokens,
    /// A holder writes a value that it read under its last hold.
    WritesStale,
    /// The last waiter is served first.
    ServesLast,
    /// Now and then a release wakes no waiter, until the next request comes.
    LosesWakeUps,
    /// A waiter ignores its limit, and some grants take four seconds.
    IgnoresLimits,
    /// A waiter gives up at half of its limit.
    GivesUpEarly,
    /// A call is answered twice.
    AnswersTwice,
    /// The server answers to a release that the hold had ended.
    DeniesHolds,
    /// A latch opens one arrival too early.
    OpensEarly,
    /// A barrier admits rounds with one party less.
    AdmitsShortRounds,
    /// Now and then a turn is given again in the same period.
    RepeatsTurns,
    /// A key is left at the end.
    LeavesKeys,
}

/// Every bug, a kind of lock that it shows with, and the check that must find it.
pub(crate) const BUGS: [(Bug, LockKind, &str); 22] = [
    (Bug::Forgets, LockKind::Mutex, "exclusion"),
    (Bug::Forgets, LockKind::Election, "exclusion"),
    (Bug::NeverLooks, LockKind::Mutex, "exclusion"),
    (Bug::NeverLooks, LockKind::Reentrant, "exclusion"),
    (Bug::NeverLooks, LockKind::RwLock, "exclusion"),
    (Bug::NeverLooks, LockKind::Semaphore, "exclusion"),
    (Bug::BelievesTooLong, LockKind::Mutex, "exclusion"),
    (Bug::BelievesTooLong, LockKind::Election, "exclusion"),
    (Bug::RepeatsTokens, LockKind::Mutex, "tokens"),
    (Bug::RestartsTokens, LockKind::Mutex, "tokens"),
    (Bug::RestartsTokens, LockKind::Semaphore, "tokens"),
    (Bug::WritesStale, LockKind::Mutex, "counter"),
    (Bug::ServesLast, LockKind::Mutex, "order"),
    (Bug::LosesWakeUps, LockKind::Mutex, "wake_ups"),
    (Bug::IgnoresLimits, LockKind::Mutex, "answers"),
    (Bug::GivesUpEarly, LockKind::Mutex, "answers"),
    (Bug::AnswersTwice, LockKind::Mutex, "answers"),
    (Bug::DeniesHolds, LockKind::Mutex, "answers"),
    (Bug::OpensEarly, LockKind::Latch, "latches"),
    (Bug::AdmitsShortRounds, LockKind::Barrier, "barriers"),
    (Bug::RepeatsTurns, LockKind::OncePer, "periods"),
    (Bug::LeavesKeys, LockKind::Mutex, "left_behind"),
];

impl Bug {
    /// Of a hundred calls, before how many a fault begins, so that the bug shows.
    pub(crate) fn faults(self) -> u64 {
        match self {
            // It shows when a holder is stopped for longer than its lease.
            Self::BelievesTooLong => 20,
            _ => 1,
        }
    }
}

/// What a run is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) kind: LockKind,
    pub(crate) length_ms: u64,
    /// Of a hundred runs of a task, before how many a fault begins.
    pub(crate) faults: u64,
    pub(crate) bug: Option<Bug>,
}

/// The history of a run.
pub(crate) fn run(settings: Settings) -> History {
    let mut world = World::new(settings);
    world.begin();
    world.advance();
    world.finish()
}

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// A task begins its next call.
    Task(u32),
    /// A request arrives at the server.
    Acquire(u64),
    Extend(u64),
    Release(u64),
    Leave(u64),
    /// The lease of a hold may have ended.
    Expire(u64),
    /// A message of the server arrives at the client.
    Granted(u64, Grant),
    Refused(u64),
    Extended(u64, u64),
    Released(u64, bool),
    /// The client's own time has come.
    Limit(u64),
    Check(u64),
    Read(u64),
    Renew(u64),
    /// A write arrives at the counter.
    Write(u64, u64),
    FaultEnds(u64),
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    fence: Option<u64>,
    until_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    process: u32,
    mode: Mode,
    owner: Option<u64>,
    /// Until when its client believes in the hold, if it is granted.
    believed_until_us: Option<u64>,
    fence: u64,
    is_answered: bool,
    is_released: bool,
    writes: u64,
    checks: u64,
    read: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    call: u64,
    fence: Option<u64>,
    until_us: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Process {
    is_dead: bool,
    stopped_until_us: u64,
    delayed_until_us: u64,
    last_read: u64,
}

struct World {
    settings: Settings,
    random: Random,
    now_us: u64,
    actions: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// What the numbers in `actions` stand for.
    planned: Vec<Action>,
    events: Vec<Event>,
    calls: BTreeMap<u64, Call>,
    processes: BTreeMap<u32, Process>,
    next_process: u32,
    faults: BTreeMap<u64, (FaultKind, u32)>,
    // The server.
    queue: VecDeque<u64>,
    holds: Vec<Hold>,
    fence: u64,
    arrivals: usize,
    turn_until_us: u64,
    // The counter.
    value: u64,
    greatest: u64,
}

impl World {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            random: Random::new(settings.seed),
            now_us: 0,
            actions: BinaryHeap::new(),
            planned: Vec::new(),
            events: Vec::new(),
            calls: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_process: 1,
            faults: BTreeMap::new(),
            queue: VecDeque::new(),
            holds: Vec::new(),
            fence: 100,
            arrivals: 0,
            turn_until_us: 0,
            value: 0,
            greatest: 0,
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.settings.bug == Some(bug)
    }

    fn permits(&self) -> Option<u32> {
        match self.settings.kind {
            LockKind::Semaphore | LockKind::Barrier => Some(3),
            LockKind::Latch => Some(PROCESSES * 2),
            _ => None,
        }
    }

    fn begin(&mut self) {
        let lock = LockSpec {
            name: "lock".to_owned(),
            kind: self.settings.kind,
            permits: self.permits(),
            period_ms: (self.settings.kind == LockKind::OncePer).then_some(PERIOD_MS),
        };
        self.push(
            0,
            What::Began {
                format: 1,
                seed: self.settings.seed,
                store: "model".to_owned(),
                started_at: "2026-01-02T03:04:05Z".to_owned(),
                locks: vec![lock],
                lease_ms: LEASE_US / MS,
                session_ms: LEASE_US / MS,
                settings: self
                    .settings
                    .bug
                    .map(|bug| ("bug".to_owned(), format!("{bug:?}")))
                    .into_iter()
                    .collect(),
            },
        );
        for _ in 0..PROCESSES {
            self.start();
        }
    }

    fn start(&mut self) {
        let process = self.next_process;
        self.next_process += 1;
        self.processes.insert(process, Process::default());
        self.push(process, What::Started { pid: 4_000 + process });
        let pause = self.random.between(MS, 50 * MS);
        self.plan(pause, Action::Task(process));
    }

    fn push(&mut self, process: u32, what: What) {
        self.events.push(Event { at_us: self.now_us, process, what });
    }

    fn plan(&mut self, in_us: u64, action: Action) {
        let number = self.planned.len();
        self.planned.push(action);
        self.actions.push(Reverse((self.now_us + in_us, number as u64, number)));
    }

    /// Sends a message between a process and the server.
    fn send(&mut self, process: u32, action: Action) {
        let mut takes_us = self.random.between(200, 3 * MS);
        if self.processes[&process].delayed_until_us > self.now_us {
            takes_us += self.random.between(100 * MS, 900 * MS);
        }
        if self.has(Bug::IgnoresLimits) && matches!(action, Action::Granted(..)) && self.random.percent(20) {
            takes_us += 4_000 * MS;
        }
        self.plan(takes_us, action);
    }

    fn is_over(&self) -> bool {
        self.now_us >= self.settings.length_ms * MS
    }

    fn advance(&mut self) {
        while let Some(Reverse((at_us, _, number))) = self.actions.pop() {
            self.now_us = at_us;
            let action = self.planned[number];
            if let Some(process) = self.client_of(action) {
                let Process { is_dead, stopped_until_us, .. } = self.processes[&process];
                if is_dead {
                    continue;
                }
                if stopped_until_us > at_us {
                    self.plan(stopped_until_us - at_us, action);
                    continue;
                }
            }
            self.step(action);
        }
    }

    /// The process that does this; None if the server, the counter or the coordinator does.
    fn client_of(&self, action: Action) -> Option<u32> {
        match action {
            Action::Task(process) => Some(process),
            Action::Granted(call, _)
            | Action::Refused(call)
            | Action::Extended(call, _)
            | Action::Released(call, _)
            | Action::Limit(call)
            | Action::Check(call)
            | Action::Read(call)
            | Action::Renew(call) => Some(self.calls[&call].process),
            _ => None,
        }
    }

    fn step(&mut self, action: Action) {
        match action {
            Action::Task(process) => self.task(process),
            Action::Acquire(call) => self.acquire(call),
            Action::Extend(call) => self.extend(call),
            Action::Release(call) => self.release(call),
            Action::Leave(call) => self.queue.retain(|&queued| queued != call),
            Action::Expire(call) => {
                let before = self.holds.len();
                let now_us = self.now_us;
                self.holds.retain(|hold| hold.call != call || hold.until_us > now_us);
                if self.holds.len() < before {
                    self.grant();
                }
            }
            Action::Granted(call, grant) => self.granted(call, grant),
            Action::Refused(call) => self.answer(call, &Answer::NotGranted),
            Action::Extended(call, until_us) => self.extended(call, until_us),
            Action::Released(call, held) => {
                let answer = if held { ReleaseAnswer::Released } else { ReleaseAnswer::NotHeld };
                let process = self.calls[&call].process;
                self.push(process, What::Released { call, answer });
                self.next_task(process);
            }
            Action::Limit(call) => self.limit(call),
            Action::Check(call) => self.check(call),
            Action::Read(call) => {
                let value = self.value;
                let Call { process, .. } = self.calls[&call];
                let last = std::mem::replace(&mut self.client(process).last_read, value);
                let stale = self.has(Bug::WritesStale) && self.random.percent(30);
                let read = if stale { last } else { value };
                self.call(call).read = Some(read);
            }
            Action::Renew(call) => {
                let Call { process, is_released, believed_until_us, .. } = self.calls[&call];
                if !is_released && believed_until_us.is_some_and(|until| until > self.now_us) {
                    self.send(process, Action::Extend(call));
                    self.plan(LEASE_US / 4, Action::Renew(call));
                }
            }
            Action::Write(call, read) => self.write(call, read),
            Action::FaultEnds(fault) => self.fault_ends(fault),
        }
    }

    fn client(&mut self, process: u32) -> &mut Process {
        self.processes.get_mut(&process).expect("a process that has started")
    }

    fn call(&mut self, call: u64) -> &mut Call {
        self.calls.get_mut(&call).expect("a call that was asked")
    }

    fn next_task(&mut self, process: u32) {
        let pause = self.random.between(0, 60 * MS);
        self.plan(pause, Action::Task(process));
    }

    fn task(&mut self, process: u32) {
        if self.is_over() {
            return;
        }
        if self.random.percent(self.settings.faults) {
            self.fault_begins();
            // It may have hit this process.
            let Process { is_dead, stopped_until_us, .. } = self.processes[&process];
            if is_dead {
                return;
            }
            if stopped_until_us > self.now_us {
                return self.next_task(process);
            }
        }
        let number = self.calls.len() as u64 + 1;
        let (mode, owner) = match self.settings.kind {
            LockKind::RwLock if self.random.percent(60) => (Mode::Read, None),
            LockKind::RwLock => (Mode::Write, None),
            LockKind::Semaphore => {
                (Mode::Permits(u32::try_from(self.random.between(1, 4)).expect("small")), None)
            }
            LockKind::Latch if self.random.percent(40) => (Mode::CountDown, None),
            LockKind::Latch | LockKind::Barrier => (Mode::Wait, None),
            LockKind::Reentrant => (Mode::Exclusive, Some(self.random.between(1, 3))),
            _ => (Mode::Exclusive, None),
        };
        let is_held = !matches!(self.settings.kind, LockKind::Latch | LockKind::Barrier);
        let limit_ms = match self.settings.kind {
            LockKind::OncePer => Some(0),
            LockKind::Latch | LockKind::Barrier => Some(self.random.between(500, 3_000)),
            _ if self.random.percent(70) => Some(self.random.between(200, 6_000)),
            _ => None,
        };
        self.calls.insert(
            number,
            Call {
                process,
                mode,
                owner,
                believed_until_us: None,
                fence: 0,
                is_answered: false,
                is_released: false,
                writes: self.random.between(0, 3) * u64::from(is_held),
                checks: self.random.between(1, 8),
                read: None,
            },
        );
        self.push(process, What::Asked { call: number, lock: "lock".to_owned(), mode, limit_ms, owner });
        self.send(process, Action::Acquire(number));
        if let Some(limit_ms) = limit_ms.filter(|&limit| limit > 0) {
            let limit_ms = if self.has(Bug::GivesUpEarly) { limit_ms / 2 } else { limit_ms };
            self.plan(limit_ms * MS, Action::Limit(number));
        }
    }

    fn answer(&mut self, call: u64, answer: &Answer) {
        let process = self.calls[&call].process;
        let is_granted = matches!(answer, Answer::Granted { .. });
        self.call(call).is_answered = true;
        let twice = self.has(Bug::AnswersTwice) && self.random.percent(20);
        for _ in 0..=u8::from(twice) {
            self.push(process, What::Answered { call, answer: answer.clone() });
        }
        let ends = matches!(self.settings.kind, LockKind::Latch | LockKind::Barrier);
        if !is_granted || ends {
            self.next_task(process);
        }
    }

    fn limit(&mut self, call: u64) {
        let Call { process, is_answered, .. } = self.calls[&call];
        if is_answered || self.has(Bug::IgnoresLimits) {
            return;
        }
        self.send(process, Action::Leave(call));
        self.answer(call, &Answer::NotGranted);
    }

    // The server.

    fn acquire(&mut self, call: u64) {
        let Call { process, mode, .. } = self.calls[&call];
        match self.settings.kind {
            LockKind::Latch if mode == Mode::CountDown => {
                self.arrivals += 1;
                self.send(process, Action::Granted(call, Grant { fence: None, until_us: u64::MAX }));
                self.grant();
            }
            LockKind::OncePer => {
                let again = self.has(Bug::RepeatsTurns) && self.random.percent(20);
                if self.now_us >= self.turn_until_us || again {
                    self.turn_until_us = self.now_us + PERIOD_MS * MS;
                    self.fence += 1;
                    let until_us = self.turn_until_us;
                    let fence = Some(self.fence);
                    self.holds.push(Hold { call, fence, until_us });
                    self.plan(PERIOD_MS * MS, Action::Expire(call));
                    self.send(process, Action::Granted(call, Grant { fence, until_us }));
                } else {
                    self.send(process, Action::Refused(call));
                }
            }
            _ => {
                if self.has(Bug::Forgets) && self.random.percent(8) {
                    self.holds.clear();
                }
                if self.has(Bug::RestartsTokens) && self.random.percent(8) {
                    self.fence = 100;
                }
                self.queue.push_back(call);
                self.grant();
            }
        }
    }

    /// Grants to those in the queue that can be admitted.
    fn grant(&mut self) {
        if self.settings.kind == LockKind::Barrier {
            let parties = self.permits().expect("a barrier has parties") as usize;
            let needed = if self.has(Bug::AdmitsShortRounds) { parties - 1 } else { parties };
            if self.queue.len() >= needed {
                for _ in 0..needed {
                    self.admit_next();
                }
            }
            return;
        }
        while let Some(next) = if self.has(Bug::ServesLast) { self.queue.back() } else { self.queue.front() }
        {
            if !self.can_admit(*next) {
                return;
            }
            self.admit_next();
        }
    }

    fn admit_next(&mut self) {
        let next = if self.has(Bug::ServesLast) { self.queue.pop_back() } else { self.queue.pop_front() };
        let Some(call) = next else { return };
        let Call { process, owner, .. } = self.calls[&call];
        if matches!(self.settings.kind, LockKind::Latch | LockKind::Barrier) {
            let grant = Grant { fence: None, until_us: u64::MAX };
            return self.send(process, Action::Granted(call, grant));
        }
        let of_owner =
            owner.and_then(|_| self.holds.iter().find(|hold| self.calls[&hold.call].owner == owner));
        let fence = if let Some(hold) = of_owner {
            hold.fence
        } else {
            let is_even = self.fence.is_multiple_of(2);
            let repeats = self.has(Bug::RepeatsTokens) && is_even && self.random.percent(50);
            self.fence += u64::from(!repeats);
            Some(self.fence)
        };
        let until_us = self.now_us + LEASE_US;
        self.holds.push(Hold { call, fence, until_us });
        self.plan(LEASE_US, Action::Expire(call));
        self.send(process, Action::Granted(call, Grant { fence, until_us }));
    }

    fn can_admit(&self, call: u64) -> bool {
        if self.has(Bug::NeverLooks) {
            return true;
        }
        let Call { mode, owner, .. } = self.calls[&call];
        let permits = |mode: Mode| match mode {
            Mode::Permits(permits) => permits,
            _ => 1,
        };
        match self.settings.kind {
            LockKind::Latch => {
                let needed = self.permits().expect("a latch has a count") as usize;
                self.arrivals + usize::from(self.has(Bug::OpensEarly)) >= needed
            }
            LockKind::Semaphore => {
                let held: u32 = self.holds.iter().map(|hold| permits(self.calls[&hold.call].mode)).sum();
                held + permits(mode) <= self.permits().expect("a semaphore has permits")
            }
            LockKind::RwLock => {
                self.holds.iter().all(|hold| mode == Mode::Read && self.calls[&hold.call].mode == Mode::Read)
            }
            LockKind::Reentrant => self.holds.iter().all(|hold| self.calls[&hold.call].owner == owner),
            _ => self.holds.is_empty(),
        }
    }

    fn extend(&mut self, call: u64) {
        let until_us = self.now_us + LEASE_US;
        let process = self.calls[&call].process;
        if let Some(hold) = self.holds.iter_mut().find(|hold| hold.call == call) {
            hold.until_us = until_us;
            self.plan(LEASE_US, Action::Expire(call));
            self.send(process, Action::Extended(call, until_us));
        } else {
            self.send(process, Action::Extended(call, 0));
        }
    }

    fn release(&mut self, call: u64) {
        let process = self.calls[&call].process;
        let before = self.holds.len();
        self.holds.retain(|hold| hold.call != call);
        let is_held = self.holds.len() < before || self.settings.kind == LockKind::OncePer;
        let denies = self.has(Bug::DeniesHolds) && self.random.percent(20);
        self.send(process, Action::Released(call, is_held && !denies));
        if !(self.has(Bug::LosesWakeUps) && self.random.percent(30)) {
            self.grant();
        }
    }

    // The client.

    fn granted(&mut self, call: u64, Grant { fence, until_us }: Grant) {
        let Call { process, mode, is_answered, .. } = self.calls[&call];
        if is_answered {
            // It has given up in the meantime.
            return self.send(process, Action::Release(call));
        }
        let until_us = until_us.saturating_sub(ALLOWANCE_US);
        if until_us <= self.now_us {
            // It was stopped for too long, and asks again.
            return self.send(process, Action::Acquire(call));
        }
        self.answer(call, &Answer::Granted { fence });
        if matches!(mode, Mode::CountDown | Mode::Wait) {
            return;
        }
        let record = self.call(call);
        record.believed_until_us = Some(until_us);
        record.fence = fence.unwrap_or_default();
        if self.settings.kind != LockKind::OncePer {
            self.plan(LEASE_US / 4, Action::Renew(call));
        }
        self.plan(100, Action::Check(call));
    }

    fn extended(&mut self, call: u64, until_us: u64) {
        let record = self.call(call);
        record.believed_until_us = Some(until_us.saturating_sub(ALLOWANCE_US));
    }

    fn check(&mut self, call: u64) {
        let Call { process, believed_until_us, writes, checks, read, fence, is_released, .. } =
            self.calls[&call];
        if is_released {
            return;
        }
        let until_us = believed_until_us.unwrap_or_default();
        let until_us = if self.has(Bug::BelievesTooLong) { until_us + 2 * LEASE_US } else { until_us };
        let valid = self.now_us < until_us;
        let since_us = self.now_us;
        self.push(process, What::Checked { call, since_us, valid });
        if !valid {
            self.push(process, What::Lost { call, reason: "the lease ended".to_owned() });
        }
        if !valid || checks == 0 {
            self.call(call).is_released = true;
            self.push(process, What::ReleaseAsked { call });
            return self.send(process, Action::Release(call));
        }
        let pause = match read {
            Some(read) if fence > 0 => {
                // A process that is stopped here writes late.
                self.send(process, Action::Write(call, read));
                self.call(call).read = None;
                self.random.between(5 * MS, 12 * MS)
            }
            _ => {
                if writes > 0 && self.is_guarded(call) {
                    self.call(call).writes -= 1;
                    self.plan(50, Action::Read(call));
                }
                self.random.between(2 * MS, 60 * MS)
            }
        };
        self.call(call).checks -= 1;
        self.plan(pause, Action::Check(call));
    }

    /// Whether there is a counter that this hold guards.
    fn is_guarded(&self, call: u64) -> bool {
        let is_alone = matches!(self.settings.kind, LockKind::Mutex | LockKind::Election);
        is_alone || (self.settings.kind == LockKind::RwLock && self.calls[&call].mode == Mode::Write)
    }

    fn write(&mut self, call: u64, read: u64) {
        let fence = self.calls[&call].fence;
        let (found, fenced) = (self.value, fence >= self.greatest);
        self.greatest = self.greatest.max(fence);
        if fenced {
            self.value = read + 1;
        }
        self.push(0, What::Wrote { call, lock: "lock".to_owned(), fence, read, found, fenced });
    }

    // Faults.

    fn fault_begins(&mut self) {
        let alive: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.is_dead)
            .map(|(number, _)| *number)
            .collect();
        let worker = alive[usize::try_from(self.random.between(0, alive.len() as u64)).expect("small")];
        if self.faults.values().any(|(_, hit)| *hit == worker) {
            return;
        }
        let kinds = [FaultKind::Kill, FaultKind::Stop, FaultKind::Delay];
        let kind = kinds[usize::try_from(self.random.between(0, 3)).expect("small")];
        let fault =
            1 + self.events.iter().filter(|it| matches!(it.what, What::FaultBegan { .. })).count() as u64;
        self.push(
            0,
            What::FaultBegan { fault, kind, worker: Some(worker), detail: format!("process {worker}") },
        );
        self.faults.insert(fault, (kind, worker));
        let lasts_us = self.random.between(50 * MS, 2_500 * MS);
        let until_us = self.now_us + lasts_us;
        match kind {
            FaultKind::Kill => {
                self.client(worker).is_dead = true;
                // What it left in the queue goes with its session.
                self.push(0, What::Exited { worker, how: "killed".to_owned() });
                let queued: Vec<u64> =
                    self.queue.iter().copied().filter(|call| self.calls[call].process == worker).collect();
                for call in queued {
                    self.plan(LEASE_US, Action::Leave(call));
                }
                self.plan(10 * MS, Action::FaultEnds(fault));
            }
            FaultKind::Stop => {
                self.client(worker).stopped_until_us = until_us;
                self.plan(lasts_us, Action::FaultEnds(fault));
            }
            _ => {
                self.client(worker).delayed_until_us = until_us;
                self.plan(lasts_us, Action::FaultEnds(fault));
            }
        }
    }

    fn fault_ends(&mut self, fault: u64) {
        self.push(0, What::FaultEnded { fault });
        if let Some((FaultKind::Kill, _)) = self.faults.remove(&fault)
            && !self.is_over()
        {
            self.start();
        }
    }

    fn finish(mut self) -> History {
        self.now_us += 10 * MS;
        let keys = if self.has(Bug::LeavesKeys) {
            vec!["lock:fence, without an expiry".to_owned()]
        } else {
            Vec::new()
        };
        self.push(0, What::Left { keys });
        self.push(0, What::Ended);
        History::from_events(self.events).expect("a history")
    }
}
