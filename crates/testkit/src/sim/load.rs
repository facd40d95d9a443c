//! What processes and their tasks do: take locks in every way there is, hold them, lose them, drop everything half-way.
//!
//! It deliberately judges nothing: it says what it does, and the checks do the rest.

use super::Sim;
use super::event::{Event, HostEvent, Keeping, Letting, LockId, Miss, TaskEvent, TaskId, Way};
use super::kernel::HostId;
use super::planted::Planted;
use super::store::SimStore;
use super::time::Instant;
use super::world::SimWorld;
use crate::random::Random;
use futures_util::future::{Either, join_all, select};
use leasehold::{AcquireError, Attempt, Client, ConnectError, FencingToken, Guard, Mutex, RetryPolicy};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// How a run uses locks, drawn from its seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    pub(super) tasks: u32,
    /// How many of a thousand holds last longer than their leases.
    pub(super) long_holds: u64,
    /// How many of a thousand acquires and releases are dropped half-way.
    pub(super) drops: u64,
    /// Set if every k-th release leaves the lock to strangers.
    pub(super) free_every: Option<u32>,
    /// How many of a thousand acquires have a value of their own.
    pub(super) own_values: u64,
    watchdog: Duration,
    /// How many of a thousand processes have no session.
    without_session: u64,
    pub(super) call: Duration,
    /// The longest pause between two uses.
    pub(super) idle: Duration,
}

impl Habits {
    pub(super) fn draw(chance: &Random) -> Self {
        let ms = |least, most| Duration::from_millis(chance.between(least, most));
        Self {
            tasks: u32::try_from(chance.between(1, 3)).unwrap_or(1),
            long_holds: chance.between(0, 150),
            drops: chance.between(0, 250),
            free_every: chance.chance(200).then(|| u32::try_from(chance.between(1, 4)).unwrap_or(1)),
            own_values: if chance.chance(200) { 300 } else { 0 },
            watchdog: ms(300, 9_000),
            without_session: *chance.pick(&[0, 250, 250, 1000]),
            call: ms(200, 2_000),
            idle: ms(1, 1_500),
        }
    }
}

/// One process, from its start until its tasks have ended.
pub(super) async fn process(sim: Arc<Sim>, host: HostId, chance: Random) {
    let store = sim.store(host, &chance);
    let (world, habits) = (store.world.clone(), sim.habits);
    let life = Life::draw(&chance, habits);
    let client = loop {
        match connect(&store, life).await {
            Ok(client) => break client,
            // The store cannot be reached, or said nothing: whoever looks after the process starts it again.
            Err(ConnectError::Store(_)) => {}
            Err(error) => return sim.fail("load", format!("{host} cannot connect: {error}")),
        }
        let pause = Duration::from_micros(chance.between(1_000, 300_000));
        sim.kernel.sleep_until(sim.kernel.now() + pause).await;
    };
    sim.note(&Event::Started(host, client.session()));
    let mut ends = Vec::new();
    for number in 0..habits.tasks {
        let task = TaskId { host, number };
        let user = User {
            sim: sim.clone(),
            world: world.clone(),
            client: client.clone(),
            task,
            watchdog: life.watchdog,
            chance: chance.branch(),
        };
        let (done, end) = oneshot::channel();
        ends.push(end);
        sim.kernel.spawn(
            host,
            Box::pin(async move {
                user.run().await;
                // Nobody listens where the process has died.
                let _ = done.send(());
            }),
        );
    }
    join_all(ends).await;
    client.settle().await;
    sim.note(&Event::Host(host, HostEvent::Ended));
}

/// By what a process keeps its locks.
#[derive(Debug, Clone, Copy)]
struct Life {
    /// How long its session lives without a beat, if it has one.
    session: Option<Duration>,
    watchdog: Duration,
}

impl Life {
    fn draw(chance: &Random, habits: Habits) -> Self {
        if chance.chance(habits.without_session) {
            return Self { session: None, watchdog: habits.watchdog };
        }
        let session = Duration::from_millis(chance.between(1_000, 10_000));
        // With a session leases may be long: nobody waits for the dead.
        let longer = if chance.chance(500) { 3 } else { 1 };
        Self { session: Some(session), watchdog: habits.watchdog * longer }
    }
}

async fn connect(store: &SimStore, life: Life) -> Result<Client, ConnectError> {
    let habits = store.world.sim.habits;
    let builder = Client::of_store(Planted::new(store.clone(), store.world.sim.bug))
        .world(store.world.clone())
        .label(store.world.host.to_string())
        .watchdog_lease(life.watchdog)
        .call_timeout(habits.call)
        .outage_limit(Duration::from_secs(20));
    match life.session {
        Some(alive) => builder.session(alive).connect().await,
        None => builder.without_session().connect().await,
    }
}

/// One task.
struct User {
    sim: Arc<Sim>,
    world: SimWorld,
    client: Client,
    task: TaskId,
    watchdog: Duration,
    chance: Random,
}

/// What came of wanting a lock.
enum Sought {
    Got(Guard),
    Missed(Miss),
    Dropped,
}

impl User {
    async fn run(self) {
        while self.sim.kernel.now() < self.sim.weather.heals_at {
            self.pause(self.sim.habits.idle).await;
            self.use_a_lock().await;
        }
    }

    fn note(&self, lock: LockId, what: TaskEvent) {
        self.sim.note(&Event::Task(self.task, lock, what));
    }

    async fn pause(&self, most: Duration) {
        let us = self.chance.below(u64::try_from(most.as_micros()).unwrap_or(1).max(1));
        self.sim.kernel.sleep_until(self.sim.kernel.now() + Duration::from_micros(us)).await;
    }

    async fn use_a_lock(&self) {
        let lock = LockId(u8::try_from(self.chance.below(self.sim.locks.len() as u64)).unwrap_or(0));
        let Some((mutex, keeping)) = self.mutex(lock) else { return };
        match self.seek(lock, mutex).await {
            Sought::Got(guard) => self.hold(lock, guard, keeping).await,
            Sought::Missed(miss) => self.note(lock, TaskEvent::Missed(miss)),
            Sought::Dropped => self.note(lock, TaskEvent::Cancelled),
        }
    }

    /// A lock with its settings, and how its holds are to be kept.
    fn mutex(&self, lock: LockId) -> Option<(Mutex, Keeping)> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        let mut mutex = match self.client.mutex(name) {
            Ok(mutex) => mutex,
            Err(error) => {
                self.sim.fail("load", format!("no such lock: {error}"));
                return None;
            }
        };
        if let Some(every) = self.sim.habits.free_every {
            mutex = mutex.share(every);
        }
        let mut keeping = Keeping::Renewed(self.watchdog);
        if self.chance.chance(400) {
            let lease = Duration::from_micros(self.chance.between(200_000, 8_000_000));
            mutex = mutex.lease(lease);
            keeping = Keeping::Given(lease);
        }
        if self.chance.chance(self.sim.habits.own_values) {
            // Few enough that others have the same.
            mutex = mutex.value(format!("value {}", self.chance.below(3))).ok()?;
        }
        Some((mutex, keeping))
    }

    async fn seek(&self, lock: LockId, mutex: Mutex) -> Sought {
        let limit = Duration::from_micros(self.chance.between(1_000, 5_000_000));
        let (way, seeking): (Way, Pin<Box<dyn Future<Output = Sought> + Send>>) = match self.chance.below(10)
        {
            0..2 => (Way::Try, Box::pin(async move { attempt(mutex.try_acquire().await) })),
            2..5 => (Way::Wait(limit), Box::pin(async move { got(mutex.acquire_timeout(limit).await) })),
            5 => {
                let retry = RetryPolicy::constant(Duration::from_millis(150)).tries(8);
                let polling = mutex.retry(retry).wait(limit);
                (Way::Poll(limit), Box::pin(async move { got(polling.acquire().await) }))
            }
            _ => (Way::WaitForEver, Box::pin(async move { got(mutex.acquire().await) })),
        };
        self.note(lock, TaskEvent::Seeks(way));
        if !self.chance.chance(self.sim.habits.drops) {
            return seeking.await;
        }
        if self.chance.chance(500) {
            let cut = Cut { inner: seeking, polls: self.chance.between(1, 6) };
            return cut.await.unwrap_or(Sought::Dropped);
        }
        let patience = pin!(self.pause(Duration::from_secs(3)));
        match select(seeking, patience).await {
            Either::Left((sought, _)) => sought,
            Either::Right(_) => Sought::Dropped,
        }
    }

    async fn hold(&self, lock: LockId, guard: Guard, keeping: Keeping) {
        let fence = guard.fencing_token();
        let guard = Arc::new(guard);
        self.sim.watch_guard(&self.world, self.task, lock, &guard, keeping);
        let lost = match select(pin!(guard.lost()), pin!(self.work(lock, &guard))).await {
            Either::Left(_) => true,
            Either::Right(_) => false,
        };
        if lost {
            self.note(lock, TaskEvent::Told(fence));
            if guard.check().is_ok() {
                self.sim.fail("load", format!("{} was told of a loss, and its check succeeds", self.task));
            }
            if self.chance.chance(200) {
                // It hangs, and keeps what is no lock any more from being dropped.
                self.pause(Duration::from_secs(8)).await;
            }
        }
        self.let_go(lock, fence, guard).await;
    }

    /// What is done while the lock is held.
    async fn work(&self, lock: LockId, guard: &Guard) {
        let longest = if self.chance.chance(self.sim.habits.long_holds) { 12_000 } else { 600 };
        for _ in 0..self.chance.below(4) {
            self.pause(Duration::from_millis(longest)).await;
            if guard.check().is_err() {
                // Whoever works on is told by the signal.
                continue;
            }
            if self.chance.chance(200) {
                let lease = Duration::from_micros(self.chance.between(1_000, 4_000_000));
                let until = self.world.shows_at(self.world.now() + lease);
                self.note(lock, TaskEvent::Extends(guard.fencing_token()));
                let asked_for_less = self.chance.chance(500);
                let extended =
                    if asked_for_less { guard.extend_to(lease).await } else { guard.extend().await };
                // It can fail: the hold is then as it was, or its loss is told.
                if extended.is_ok() {
                    let until = if asked_for_less { until } else { Instant::default() };
                    self.sim.sample(self.task.host);
                    self.note(lock, TaskEvent::Extended(guard.fencing_token(), until));
                }
            }
        }
    }

    async fn let_go(&self, lock: LockId, fence: FencingToken, guard: Arc<Guard>) {
        let Some(guard) = Arc::into_inner(guard) else {
            return self.sim.fail("load", "somebody keeps a guard".into());
        };
        if self.chance.chance(150) {
            self.note(lock, TaskEvent::Lets(fence, Letting::Drop));
            return drop(guard);
        }
        self.note(lock, TaskEvent::Lets(fence, Letting::Release));
        let polls =
            if self.chance.chance(self.sim.habits.drops) { self.chance.between(1, 3) } else { u64::MAX };
        match (Cut { inner: Box::pin(guard.release()), polls }).await {
            Some(released) => self.note(lock, TaskEvent::Released(fence, released.is_ok())),
            None => self.note(lock, TaskEvent::Lets(fence, Letting::Drop)),
        }
    }
}

fn attempt(attempt: Result<Attempt, AcquireError>) -> Sought {
    match attempt {
        Ok(Attempt::Granted(guard)) => Sought::Got(guard),
        Ok(Attempt::Taken(_)) => Sought::Missed(Miss::Taken),
        Err(error) => Sought::Missed(miss(&error)),
    }
}

fn got(guard: Result<Guard, AcquireError>) -> Sought {
    guard.map_or_else(|error| Sought::Missed(miss(&error)), Sought::Got)
}

fn miss(error: &AcquireError) -> Miss {
    match error {
        AcquireError::OutOfTries { .. } => Miss::Taken,
        AcquireError::TimedOut { .. } => Miss::TimedOut,
        AcquireError::LeaseTooShort { .. } => Miss::TooSlow,
        _ => Miss::Fault,
    }
}

/// A future that is dropped when it has been polled so many times without an end; `None` then.
struct Cut<F: ?Sized> {
    inner: Pin<Box<F>>,
    polls: u64,
}

impl<F: Future + ?Sized> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.inner.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls <= 1 => Poll::Ready(None),
            Poll::Pending => {
                self.polls -= 1;
                Poll::Pending
            }
        }
    }
}

/// Somebody who takes locks by `SET NX PX` and gives them back by compare-and-delete.
pub(super) async fn stranger(sim: Arc<Sim>, chance: Random) {
    let pause = async |most_ms: u64| {
        let us = chance.below(most_ms * 1000);
        sim.kernel.sleep_until(sim.kernel.now() + Duration::from_micros(us)).await;
    };
    let mut turn = 0;
    while sim.kernel.now() < sim.weather.heals_at {
        pause(1_000).await;
        turn += 1;
        let (lock, value) = (LockId(0), format!("stranger {turn}"));
        let lease = Duration::from_millis(chance.between(100, 3_000));
        if sim.stranger_sets(lock, &value, lease) {
            // He gives it back in time, or dies with it.
            pause(u64::try_from(lease.as_millis()).unwrap_or(1) / 2 + 1).await;
            if chance.chance(800) {
                sim.stranger_deletes(lock, &value);
            }
        }
    }
}
