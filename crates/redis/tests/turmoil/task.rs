//! One task of a process: acquires locks of every kind, uses them in unusual ways, and in the end in the usual way.
//!
//! It uses a ReentrantMutex as its own owner, as the owner that all tasks of its process share, as an owner received
//! from another process by its header, or without an owner; with an owner it often re-enters.

use crate::any_lock::{AnyGuard, AnyLock};
use crate::checks::{CheckedGuard, Rule};
use crate::client::Process;
use crate::environment::{SeededRng, lock};
use leasehold::{Client, LostReason, Owner, Released};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often each task acquires each lock, and all of them at once, after the faults have ended.
const ROUNDS: u32 = 2;

/// Within what time it then succeeds: late bytes have arrived, the last hold of a crashed client has ended,
/// connections are open again, and all others had their turn.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// The deepest re-entry.
const DEEPEST: u32 = 3;

/// Owner headers that processes exchange, as requests between them would carry them.
#[derive(Debug, Default)]
pub(crate) struct HeaderQueue(Mutex<VecDeque<String>>);

impl HeaderQueue {
    /// Old headers belong to owners that have left: few are kept.
    const KEPT: usize = 4;

    fn send(&self, header: String) {
        let mut headers = lock(&self.0);
        headers.truncate(Self::KEPT - 1);
        headers.push_front(header);
    }

    fn receive(&self) -> Option<String> {
        lock(&self.0).pop_front()
    }
}

/// One task of a process.
pub(crate) struct Task {
    process: Process,
    mutexes: Vec<AnyLock>,
    reentrants: Vec<AnyLock>,
    client: Client,
    /// The owner of this task alone, unless it sends the header to another process.
    own: Owner,
    /// The owner that all tasks of the process share.
    shared: Owner,
}

impl Task {
    pub(crate) fn new(process: Process, client: &Client, shared: Owner) -> Self {
        let mutex = |n| AnyLock::Mutex(client.mutex(mutex_name(n)).expect("it is a name"));
        let reentrant =
            |n| AnyLock::Reentrant(client.reentrant_mutex(format!("rlock-{n}")).expect("it is a name"));
        Self {
            mutexes: (0..process.workload.mutexes).map(mutex).collect(),
            reentrants: (0..process.workload.reentrants).map(reentrant).collect(),
            client: client.clone(),
            own: client.new_owner(),
            shared,
            process,
        }
    }

    pub(crate) async fn run(self) {
        while !self.process.workload.faults_ended.load(Ordering::Relaxed) {
            let mut wanted = self.something();
            if self.rng().one_in(2) {
                wanted = wanted.lease(self.rng().millis(200, 5_000));
            }
            self.use_randomly(&wanted, 1).await;
            sleep(self.rng().millis(0, 150)).await;
        }
        let all = self.set(|_| true);
        for wanted in self.mutexes.iter().chain(&self.reentrants).chain([&all]) {
            for _ in 0..ROUNDS {
                self.check_served(wanted).await;
            }
        }
    }

    fn rng(&self) -> &SeededRng {
        &self.process.rng
    }

    /// A Mutex, a ReentrantMutex as some owner, or some of the Mutexes.
    fn something(&self) -> AnyLock {
        let any =
            |of: &[AnyLock]| of[usize::try_from(self.rng().below(of.len() as u64)).unwrap_or(0)].clone();
        match self.rng().below(8) {
            0..=2 => any(&self.mutexes),
            3 => self.set(|_| self.rng().one_in(2)),
            _ => {
                let reentrant = any(&self.reentrants);
                match self.choose_owner() {
                    Some(owner) => reentrant.owned_by(&owner),
                    None => reentrant,
                }
            }
        }
    }

    fn choose_owner(&self) -> Option<Owner> {
        match self.rng().below(6) {
            0 => None,
            1 => Some(self.own.clone()),
            2 | 3 => Some(self.shared.clone()),
            _ => {
                let header = self.process.workload.headers.receive()?;
                Some(Owner::from_header(header).expect("a task of this simulation wrote it"))
            }
        }
    }

    /// Several Mutexes at once: at least the first.
    fn set(&self, is_in: impl Fn(usize) -> bool) -> AnyLock {
        let names = (0..self.mutexes.len()).filter(|n| *n == 0 || is_in(*n)).map(mutex_name);
        AnyLock::Multi(self.client.multi_mutex(names).expect("good names"))
    }

    /// Acquires a lock in some way and uses it; an owner may re-enter meanwhile.
    async fn use_randomly(&self, wanted: &AnyLock, depth: u32) {
        let Some(held) = self.acquire_somehow(wanted).await else { return };
        if let Some(owner) = held.guard().owner() {
            if self.rng().one_in(3) {
                self.process.workload.headers.send(owner.to_header());
            }
            if depth < DEEPEST && self.rng().one_in(2) {
                // Like called code, which knows the lock's name but not its holder.
                let inner =
                    self.reentrants.iter().find(|reentrant| reentrant.to_string() == wanted.to_string());
                let inner = inner.expect("the held lock is one of them").clone();
                Box::pin(owner.clone().scope(self.use_randomly(&inner, depth + 1))).await;
            }
        }
        if !self.use_guard(wanted, &held).await {
            return;
        }
        match self.rng().below(8) {
            0 => {
                self.log(wanted, "drops the guard");
                drop(held);
            }
            1 => {
                let Some(guard) = held.into_guard() else { return };
                let within = self.rng().millis(0, 20);
                let released = timeout(within, guard.release()).await;
                self.log(wanted, format_args!("drops the release: {released:?}"));
            }
            _ => self.release(wanted, held).await,
        }
    }

    /// Acquires by one of the possible calls.
    async fn acquire_somehow(&self, wanted: &AnyLock) -> Option<CheckedGuard> {
        let limit = self.rng().millis(50, 4_000);
        match self.rng().below(4) {
            0 => match wanted.try_acquire().await {
                Ok(Some(guard)) => Some(self.acquired(wanted, guard)),
                Ok(None) => self.failed(wanted, "taken", "taken"),
                Err(error) => self.failed(wanted, "failed", error),
            },
            1 => match timeout(limit, wanted.acquire()).await {
                Ok(Ok(guard)) => Some(self.acquired(wanted, guard)),
                Ok(Err(error)) => self.failed(wanted, "failed", error),
                Err(_) => self.failed(wanted, "dropped", "dropped by its time limit"),
            },
            _ => match wanted.acquire_timeout(limit).await {
                Ok(guard) => Some(self.acquired(wanted, guard)),
                Err(error) => self.failed(wanted, "failed", error),
            },
        }
    }

    fn failed(&self, wanted: &AnyLock, how: &'static str, why: impl fmt::Display) -> Option<CheckedGuard> {
        self.process.record.count(how);
        self.log(wanted, format_args!("not acquired: {why}"));
        None
    }

    fn acquired(&self, wanted: &AnyLock, guard: AnyGuard) -> CheckedGuard {
        let Process { record, clock, host_clock, name, .. } = &self.process;
        record.count(self.how(&guard));
        let owner = guard.owner().map(|owner| format!(" as {owner}, {} times", guard.count()));
        self.log(wanted, format_args!("acquired: {:?}{}", guard.locks(), owner.unwrap_or_default()));
        record.acquired(clock.elapsed(), *host_clock, name, guard)
    }

    /// The name under which this acquire is counted.
    fn how(&self, guard: &AnyGuard) -> &'static str {
        match guard {
            AnyGuard::Mutex(_) => "held",
            AnyGuard::Multi(set) if set.fencing_tokens().count() > 1 => "held a set",
            AnyGuard::Multi(_) => "held a set of one",
            AnyGuard::Reentrant(entry) if entry.count() == 1 => "entered",
            AnyGuard::Reentrant(entry) if *entry.owner() == self.own => "entered again",
            AnyGuard::Reentrant(entry) if *entry.owner() == self.shared => "entered again by many",
            AnyGuard::Reentrant(_) => "entered again from elsewhere",
        }
    }

    /// Uses the guard for a while. Returns whether it was held all the time.
    async fn use_guard(&self, wanted: &AnyLock, held: &CheckedGuard) -> bool {
        // Some uses last until the loss is reported: a guard that counts as held for too long shows at its end.
        let (steps, most_ms) = if self.rng().one_in(3) { (120, 100) } else { (self.rng().below(6), 700) };
        for _ in 0..steps {
            sleep(self.rng().millis(0, most_ms)).await;
            if let Err(lost) = held.guard().check() {
                self.process.record.count("lost");
                self.log(wanted, lost);
                return false;
            }
            if steps < 6 && self.rng().one_in(6) {
                let extended = held.guard().extend().await.map_err(|error| error.to_string());
                self.log(wanted, format_args!("extended: {extended:?}"));
            }
        }
        true
    }

    async fn release(&self, wanted: &AnyLock, held: CheckedGuard) {
        match self.released(held).await {
            Ok(left) => {
                self.process.record.count("released");
                self.log(wanted, format_args!("released: {left:?}"));
            }
            Err(error) => {
                self.process.record.count("not released");
                self.log(wanted, format_args!("not released: {error}"));
            }
        }
    }

    /// Releases the guard; `Free` also if there is nothing to release any more.
    async fn released(&self, held: CheckedGuard) -> Result<Released, String> {
        let Some(guard) = held.into_guard() else { return Ok(Released::NoLongerHeld) };
        let locks = guard.locks();
        let begun = self.process.clock.elapsed();
        let released = guard.release().await;
        self.process.record.given_back(&locks, begun, released.as_ref().ok());
        released
    }

    /// Acquires the lock once, after the faults have ended. A connection that an earlier fault has broken may cost a call;
    /// but a hold must be kept.
    async fn check_served(&self, wanted: &AnyLock) {
        let process = &self.process;
        let until = process.clock.elapsed() + SERVED_WITHIN;
        while let Err(error) = self.hold_once(wanted, until).await {
            let now = process.clock.elapsed();
            if now >= until {
                let what = format_args!("{} is not served with {wanted}: {error}", process.name);
                process.record.violated(Rule::Service, now, what);
                return;
            }
            process.record.count("tried again");
            self.log(wanted, format_args!("tries again: {error}"));
            sleep(self.rng().millis(10, 100)).await;
        }
        process.record.count("served");
        self.log(wanted, "was served");
    }

    async fn hold_once(&self, wanted: &AnyLock, until: Duration) -> Result<(), String> {
        let owner = if self.rng().one_in(2) { &self.own } else { &self.shared };
        let wanted = wanted.clone().owned_by(owner);
        let outer = self.hold_briefly(&wanted, until).await?;
        if outer.guard().owner().is_some() {
            let inner = self.hold_briefly(&wanted, until).await?;
            self.check_kept(&inner);
            let left = self.released(inner).await?;
            if left == Released::NoLongerHeld && outer.guard().check().is_ok() {
                let what = format_args!("{}: {wanted} is free after the inner release", self.process.name);
                self.process.record.violated(Rule::Count, self.process.clock.elapsed(), what);
            }
        }
        self.check_kept(&outer);
        self.released(outer).await.map(drop)
    }

    /// Acquires the lock and holds it for a moment.
    async fn hold_briefly(&self, wanted: &AnyLock, until: Duration) -> Result<CheckedGuard, String> {
        let left = until.saturating_sub(self.process.clock.elapsed());
        let guard = wanted.acquire_timeout(left).await.map_err(|error| error.to_string())?;
        let held = self.acquired(wanted, guard);
        sleep(self.rng().millis(1, 40)).await;
        Ok(held)
    }

    fn check_kept(&self, held: &CheckedGuard) {
        if let Err(lost) = held.guard().check() {
            let now = self.process.clock.elapsed();
            // Which of the two it is depends on whether the heartbeat that discovered the loss was in time.
            let with_its_session =
                matches!(lost.reason, LostReason::SessionLapsed | LostReason::StoreLostData);
            let record = &self.process.record;
            let by_earlier_fault =
                record.may_have_forgotten_a_session(now) || record.may_lapse_yet(&held.guard().locks());
            if with_its_session && by_earlier_fault {
                return;
            }
            let what = format_args!("{}: {lost}", self.process.name);
            self.process.record.violated(Rule::Keeping, now, what);
        }
    }

    fn log(&self, wanted: &AnyLock, what: impl fmt::Display) {
        self.process.log(format_args!("{wanted}: {what}"));
    }
}

fn mutex_name(n: usize) -> String {
    format!("lock-{n}")
}
