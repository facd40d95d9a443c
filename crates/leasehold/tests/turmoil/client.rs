//! The workload: a process with several tasks that want locks, do odd things with them, and in the end behave.

use crate::checks::{Held, Record, Rule};
use crate::host::{Chance, Clock, HostWorld, Pace};
use crate::late::{Carrier, OVERTAKEN, Ways};
use futures_util::future::{BoxFuture, join};
use leasehold::store::{RedisConfig, RedisStore};
use leasehold::{Attempt, Client, Guard, Mutex, ReleaseError};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

/// How often each task has each lock once nothing goes wrong any more.
const ROUNDS: u32 = 2;

/// Within what time it has it then: what was late has arrived, the last hold of a crashed client has ended, the
/// connections are there again, and all the others had their turn.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// A lease that a long trouble outlasts.
const WATCHDOG: Duration = Duration::from_secs(4);

/// What all clients of a simulation share.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) tasks: u64,
    pub(crate) locks: usize,
    pub(crate) call_timeout: Duration,
    /// Set once nothing new goes wrong.
    pub(crate) calm: Arc<AtomicBool>,
}

/// A client's process: one life of it, until it crashes.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) record: Arc<Record>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) pace: Pace,
    pub(crate) chance: Arc<Chance>,
}

impl Process {
    /// Runs to the end, and leaves nothing behind. What was late then still arrives.
    pub(crate) async fn run(self, done: impl FnOnce()) {
        let (carrier, carried) = Carrier::new();
        let live = async {
            self.live(carrier).await;
            done();
        };
        join(live, carried.run()).await;
    }

    async fn live(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) {
        let client = self.connect(carrier).await;
        let tasks = (0..self.terms.tasks).map(|number| {
            let name = format!("{}/{number}", self.name);
            let chance = Arc::new(Chance::new(self.chance.bits(), number));
            let locks = (0..self.terms.locks).map(|lock| mutex(&client, lock)).collect();
            tokio::spawn(Task { process: Self { name, chance, ..self.clone() }, locks }.run())
        });
        for task in tasks.collect::<Vec<_>>() {
            if task.await.is_err() {
                self.record.violated(Rule::Panic, self.clock.elapsed(), &self.name);
            }
        }
        client.settle().await;
        self.say("is done");
    }

    async fn connect(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) -> Client {
        let (world, ways) = (self.world(), self.ways(carrier));
        let config: RedisConfig = "redis://server".parse().expect("it is a URL");
        let config = config
            .connector(move |address| ways.clone().open(address))
            .connect_timeout(Duration::from_secs(4))
            .world(world.clone());
        loop {
            let client = async {
                let store = RedisStore::connect(config.clone()).await?;
                Client::of_store(store)
                    .label(&self.name)
                    .call_timeout(self.terms.call_timeout)
                    .outage_limit(Duration::from_secs(5))
                    .watchdog_lease(WATCHDOG)
                    .world(world.clone())
                    .connect()
                    .await
            };
            match client.await {
                Ok(client) => {
                    self.say(format_args!("connected as {}", client.session()));
                    return client;
                }
                Err(error) => self.say(format_args!("cannot connect: {error}")),
            }
            sleep(self.chance.millis(10, 300)).await;
        }
    }

    fn world(&self) -> HostWorld {
        let process = self.clone();
        let on_panic = move || process.record.violated(Rule::Panic, process.clock.elapsed(), "the keeper");
        HostWorld {
            clock: Arc::clone(&self.clock),
            pace: self.pace,
            chance: Arc::clone(&self.chance),
            on_panic: Arc::new(on_panic),
        }
    }

    fn ways(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) -> Ways {
        let process = self.clone();
        let on_late = move |what: &str| {
            process.record.count(if what == OVERTAKEN { "overtaken" } else { "late" });
            process.say(what);
        };
        let process = self.clone();
        let on_sent = move |hold| process.record.sent(process.clock.elapsed(), hold);
        Ways {
            chance: Arc::new(Chance::new(self.chance.bits(), 0)),
            calm: Arc::clone(&self.terms.calm),
            opened: Arc::default(),
            on_late: Arc::new(on_late),
            on_sent: Arc::new(on_sent),
            carrier,
        }
    }

    fn say(&self, what: impl fmt::Display) {
        self.record.say(self.clock.elapsed(), &self.name, what);
    }
}

fn mutex(client: &Client, lock: usize) -> Mutex {
    client.mutex(lock_name(lock)).expect("it is a name")
}

fn lock_name(lock: usize) -> String {
    format!("lock-{lock}")
}

/// One task of a process.
struct Task {
    process: Process,
    locks: Vec<Mutex>,
}

impl Task {
    async fn run(self) {
        while !self.process.terms.calm.load(Ordering::Relaxed) {
            self.wild().await;
            sleep(self.chance().millis(0, 150)).await;
        }
        for lock in 0..self.locks.len() {
            for _ in 0..ROUNDS {
                self.served(lock).await;
            }
        }
    }

    fn chance(&self) -> &Chance {
        &self.process.chance
    }

    /// Wants a lock in some way, and does something with it.
    async fn wild(&self) {
        let lock = usize::try_from(self.chance().below(self.locks.len() as u64)).unwrap_or(0);
        let mut mutex = self.locks[lock].clone();
        if self.chance().one_in(2) {
            mutex = mutex.lease(self.chance().millis(200, 5_000));
        }
        let Some(held) = self.seek(lock, &mutex).await else { return };
        if !self.use_it(&held).await {
            return;
        }
        match self.chance().below(8) {
            0 => {
                self.say(lock, "drops it");
                drop(held);
            }
            1 => {
                let Some(guard) = held.into_guard() else { return };
                let within = self.chance().millis(0, 20);
                let released = timeout(within, guard.release()).await;
                self.say(lock, format_args!("drops a release: {released:?}"));
            }
            _ => self.release(lock, held).await,
        }
    }

    /// Seeks the lock in one of the ways that there are.
    async fn seek(&self, lock: usize, mutex: &Mutex) -> Option<Held> {
        let limit = self.chance().millis(50, 4_000);
        match self.chance().below(4) {
            0 => match mutex.try_acquire().await {
                Ok(Attempt::Granted(guard)) => Some(self.have(lock, guard)),
                Ok(Attempt::Taken(_)) => self.miss(lock, "taken", "it is taken"),
                Err(error) => self.miss(lock, "failed", error),
            },
            1 => match timeout(limit, mutex.acquire()).await {
                Ok(Ok(guard)) => Some(self.have(lock, guard)),
                Ok(Err(error)) => self.miss(lock, "failed", error),
                Err(_) => self.miss(lock, "dropped", "it lost patience"),
            },
            _ => match mutex.acquire_timeout(limit).await {
                Ok(guard) => Some(self.have(lock, guard)),
                Err(error) => self.miss(lock, "failed", error),
            },
        }
    }

    fn miss(&self, lock: usize, how: &'static str, why: impl fmt::Display) -> Option<Held> {
        self.process.record.count(how);
        self.say(lock, format_args!("does not get it: {why}"));
        None
    }

    fn have(&self, lock: usize, guard: Guard) -> Held {
        let process = &self.process;
        process.record.count("held");
        self.say(lock, format_args!("has it: {}", guard.fencing_token()));
        process.record.hold(process.clock.elapsed(), process.pace, &process.name, guard)
    }

    /// Uses the lock for a while; says whether it was held all the time.
    async fn use_it(&self, held: &Held) -> bool {
        let lock = held.guard().name();
        // Some stay until they are told that they have lost it: a hold that is believed for too long shows at its end.
        let (steps, most_ms) =
            if self.chance().one_in(3) { (120, 100) } else { (self.chance().below(6), 700) };
        for _ in 0..steps {
            sleep(self.chance().millis(0, most_ms)).await;
            if let Err(lost) = held.guard().check() {
                self.process.record.count("lost");
                self.process.say(format_args!("{lock}: {lost}"));
                return false;
            }
            if steps < 6 && self.chance().one_in(6) {
                let extended = held.guard().extend().await.map_err(|error| error.to_string());
                self.process.say(format_args!("{lock}: extended: {extended:?}"));
            }
        }
        true
    }

    async fn release(&self, lock: usize, held: Held) {
        let Some(guard) = held.into_guard() else { return };
        match self.released(lock, guard).await {
            Ok(()) => {
                self.process.record.count("released");
                self.say(lock, "has released it");
            }
            Err(error) => {
                self.process.record.count("not released");
                self.say(lock, format_args!("has not released it: {error}"));
            }
        }
    }

    async fn released(&self, lock: usize, guard: Guard) -> Result<(), ReleaseError> {
        let fence = guard.fencing_token();
        let released = guard.release().await;
        self.process.record.given_back(&lock_name(lock), fence);
        released
    }

    /// Has the lock once, now that nothing goes wrong. A connection that an earlier trouble has broken may cost a call;
    /// but a lock that was had is kept.
    async fn served(&self, lock: usize) {
        let process = &self.process;
        let until = process.clock.elapsed() + SERVED_WITHIN;
        while let Err(error) = self.have_once(lock, until).await {
            let now = process.clock.elapsed();
            if now >= until {
                let what = format_args!("{} is not served with lock {lock}: {error}", process.name);
                process.record.violated(Rule::Service, now, what);
                return;
            }
            process.record.count("tried again");
            self.say(lock, format_args!("tries again: {error}"));
            sleep(self.chance().millis(10, 100)).await;
        }
        process.record.count("served");
        self.say(lock, "was served");
    }

    async fn have_once(&self, lock: usize, until: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        let left = until.saturating_sub(self.process.clock.elapsed());
        let held = self.have(lock, self.locks[lock].acquire_timeout(left).await?);
        sleep(self.chance().millis(1, 40)).await;
        if let Err(lost) = held.guard().check() {
            let what = format_args!("{}: {lost}", self.process.name);
            self.process.record.violated(Rule::Keeping, self.process.clock.elapsed(), what);
        }
        match held.into_guard() {
            Some(guard) => Ok(self.released(lock, guard).await?),
            None => Ok(()),
        }
    }

    fn say(&self, lock: usize, what: impl fmt::Display) {
        self.process.say(format_args!("lock-{lock}: {what}"));
    }
}
