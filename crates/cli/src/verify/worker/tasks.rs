//! The tasks of a worker: several for each lock, each of which acquires, uses and releases it again and again.

use super::hold::{AnyGuard, Call, Orders, ask, ask_for_guard, keep, release};
use super::report::Reporter;
use crate::verify::plan::{LATCH_ROUND, PERIOD, WAIT_LIMIT};
use crate::verify::protocol::Setup;
use leasehold::error::{AcquireError, LockError};
use leasehold::{Attempt, Client, LockGuard};
use leasehold_history::{LockKind, LockSpec, Mode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// What the tasks of a worker share.
#[derive(Debug)]
struct Shared {
    client: Client,
    reporter: Arc<Reporter>,
    orders: Arc<Orders>,
    /// The time between two calls of this worker.
    interval: Duration,
    /// When the next call may begin.
    next: Mutex<Instant>,
}

/// A task, which uses one lock.
struct Task {
    shared: Arc<Shared>,
    random: StdRng,
    lock: LockSpec,
}

/// Runs all tasks until the worker is to end.
pub(super) async fn run_all(client: &Client, setup: &Setup, reporter: &Arc<Reporter>, orders: &Arc<Orders>) {
    let shared = Arc::new(Shared {
        client: client.clone(),
        reporter: Arc::clone(reporter),
        orders: Arc::clone(orders),
        interval: Duration::from_secs_f64(1.0 / setup.plan.calls_per_second.clamp(0.01, 10_000.0)),
        next: Mutex::new(Instant::now()),
    });
    let mut tasks = JoinSet::new();
    // One task serves all latches, which follow one another.
    let latches: Vec<_> = setup.plan.locks.iter().filter(|lock| lock.kind == LockKind::Latch).collect();
    for lock in &setup.plan.locks {
        let count = match lock.kind {
            LockKind::Mutex if lock.name == "mutex" => 2,
            LockKind::RwLock | LockKind::Semaphore => 2,
            LockKind::Latch if lock.name != latches[0].name => 0,
            _ => 1,
        };
        for _ in 0..count {
            let stream = tasks.len() as u64;
            let seed = setup.plan.seed ^ (u64::from(setup.process) << 32) ^ (stream << 24);
            let (shared, lock) = (Arc::clone(&shared), lock.clone());
            let latches = latches.iter().map(|latch| latch.name.clone()).collect();
            let mut task = Task { shared, random: StdRng::seed_from_u64(seed), lock };
            tasks.spawn(async move {
                // The names of the workload are valid.
                if let Err(error) = Box::pin(task.run(latches)).await {
                    crate::output::log::error(&format!("`{}`: {error}", task.lock.name));
                }
            });
        }
    }
    while tasks.join_next().await.is_some() {}
}

impl Shared {
    /// Waits until this worker may begin its next call. False if it is to end.
    async fn turn(&self) -> bool {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            // What was missed, as while the process was stopped, is not made up for.
            let at = (*next).max(Instant::now());
            *next = at + self.interval;
            at
        };
        tokio::select! {
            () = sleep_until(at) => !self.orders.stopping.is_cancelled(),
            () = self.orders.stopping.cancelled() => false,
        }
    }

    /// Pauses. False if the worker is to end.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = sleep(time) => !self.orders.stopping.is_cancelled(),
            () = self.orders.stopping.cancelled() => false,
        }
    }
}

impl Task {
    async fn run(&mut self, latches: Vec<String>) -> Result<(), LockError> {
        match self.lock.kind {
            LockKind::Mutex => self.mutex().await,
            LockKind::Reentrant => self.reentrant().await,
            LockKind::RwLock => self.rwlock().await,
            LockKind::Semaphore => self.semaphore().await,
            LockKind::Election => self.election().await,
            LockKind::Latch => self.latches(latches).await,
            LockKind::Barrier => self.barrier().await,
            LockKind::OncePer => Box::pin(self.once_per()).await,
        }
    }

    async fn mutex(&mut self) -> Result<(), LockError> {
        let mutex = self.shared.client.mutex(self.lock.name.as_str())?;
        while self.shared.turn().await {
            if self.random.random_bool(0.1) {
                let call = self.call(Mode::Exclusive, Some(Duration::ZERO));
                let trying = async { Ok(mutex.try_acquire().await?.granted().map(boxed)) };
                self.life(call, trying, true).await;
            } else {
                let call = self.call(Mode::Exclusive, Some(WAIT_LIMIT));
                let acquiring = async { mutex.acquire_timeout(WAIT_LIMIT).await.map(boxed).map(Some) };
                self.life(call, acquiring, true).await;
            }
        }
        Ok(())
    }

    async fn reentrant(&mut self) -> Result<(), LockError> {
        let shared = Arc::clone(&self.shared);
        let name = self.lock.name.clone();
        let mut owners = 0;
        while shared.turn().await {
            // Unique in the history, as the calls are.
            owners += 1;
            let owner = shared.reporter.next_call();
            let lock = shared.client.reentrant_mutex(name.as_str())?.owned_by(&shared.client.new_owner());
            let call = || Call {
                lock: name.as_str().into(),
                mode: Mode::Exclusive,
                limit: Some(WAIT_LIMIT),
                owner: Some(owner),
            };
            let acquiring = || async { lock.acquire_timeout(WAIT_LIMIT).await.map(boxed).map(Some) };
            let Some((outer, guard)) = ask_for_guard(&shared.reporter, call(), acquiring()).await else {
                continue;
            };
            let time = self.time();
            let inner = async {
                if owners % 2 == 0
                    && let Some((call, guard)) = ask_for_guard(&shared.reporter, call(), acquiring()).await
                {
                    keep(&shared.reporter, &shared.orders, (call, &guard), (&name, false), time / 2).await;
                    release(&shared.reporter, call, guard).await;
                }
            };
            inner.await;
            keep(&shared.reporter, &shared.orders, (outer, &guard), (&name, true), time).await;
            release(&shared.reporter, outer, guard).await;
        }
        Ok(())
    }

    async fn rwlock(&mut self) -> Result<(), LockError> {
        let lock = self.shared.client.rwlock(self.lock.name.as_str())?;
        while self.shared.turn().await {
            if self.random.random_bool(0.3) {
                let writing = async { lock.write_timeout(WAIT_LIMIT).await.map(boxed).map(Some) };
                self.life(self.call(Mode::Write, Some(WAIT_LIMIT)), writing, true).await;
            } else {
                let reading = async { lock.read_timeout(WAIT_LIMIT).await.map(boxed).map(Some) };
                self.life(self.call(Mode::Read, Some(WAIT_LIMIT)), reading, false).await;
            }
        }
        Ok(())
    }

    async fn semaphore(&mut self) -> Result<(), LockError> {
        let permits = self.lock.permits.unwrap_or(1);
        let semaphore = self.shared.client.semaphore(self.lock.name.as_str(), permits)?;
        while self.shared.turn().await {
            let count = self.random.random_range(1..=2);
            let acquiring =
                async { semaphore.acquire_many_timeout(count, WAIT_LIMIT).await.map(boxed).map(Some) };
            self.life(self.call(Mode::Permits(count), Some(WAIT_LIMIT)), acquiring, false).await;
        }
        Ok(())
    }

    async fn election(&mut self) -> Result<(), LockError> {
        let election = self.shared.client.election(self.lock.name.as_str())?;
        while self.shared.turn().await {
            let campaigning = async { election.campaign_timeout(WAIT_LIMIT).await.map(boxed).map(Some) };
            self.life(self.call(Mode::Exclusive, Some(WAIT_LIMIT)), campaigning, true).await;
        }
        Ok(())
    }

    async fn once_per(&mut self) -> Result<(), LockError> {
        let job = self.shared.client.once_per(self.lock.name.as_str(), PERIOD)?;
        while self.shared.pause(PERIOD / 5).await && self.shared.turn().await {
            let starting = async {
                Ok(match job.try_start().await? {
                    Attempt::Granted(turn) => Some(boxed(turn)),
                    Attempt::Taken(_) => None,
                })
            };
            let call = self.call(Mode::Exclusive, Some(Duration::ZERO));
            Box::pin(self.life(call, starting, true)).await;
        }
        Ok(())
    }

    /// Counts each latch down once, and waits for it.
    async fn latches(&mut self, names: Vec<String>) -> Result<(), LockError> {
        let permits = self.lock.permits.unwrap_or(1);
        let shared = Arc::clone(&self.shared);
        let mut done = None;
        while shared.turn().await {
            let elapsed = shared.reporter.clock().elapsed();
            let round = usize::try_from(elapsed.as_secs() / LATCH_ROUND.as_secs()).unwrap_or(usize::MAX);
            let Some(name) = names.get(round) else { return Ok(()) };
            if done.replace(round) == Some(round) {
                shared.pause(Duration::from_millis(200)).await;
                continue;
            }
            let latch = shared.client.latch(name.as_str(), permits)?;
            shared.pause(Duration::from_millis(self.random.random_range(0..1500))).await;
            let call = Call {
                lock: name.as_str().into(),
                mode: Mode::CountDown,
                limit: Some(Duration::ZERO),
                owner: None,
            };
            let arriving = async { latch.arrive().await.map(Some) };
            ask(&shared.reporter, call, arriving, |()| None).await;
            let call =
                Call { lock: name.as_str().into(), mode: Mode::Wait, limit: Some(WAIT_LIMIT), owner: None };
            let waiting = async { latch.wait_timeout(WAIT_LIMIT).await.map(Some) };
            ask(&shared.reporter, call, waiting, |()| None).await;
        }
        Ok(())
    }

    async fn barrier(&mut self) -> Result<(), LockError> {
        let barrier = self.shared.client.barrier(self.lock.name.as_str(), self.lock.permits.unwrap_or(2))?;
        while self.shared.turn().await {
            let waiting = async { barrier.wait_timeout(WAIT_LIMIT).await.map(Some) };
            let call = self.call(Mode::Wait, Some(WAIT_LIMIT));
            ask(&self.shared.reporter, call, waiting, |_| None).await;
            let pause = self.time();
            self.shared.pause(pause).await;
        }
        Ok(())
    }

    fn call(&self, mode: Mode, limit: Option<Duration>) -> Call {
        Call { lock: self.lock.name.as_str().into(), mode, limit, owner: None }
    }

    async fn life(
        &mut self,
        call: Call,
        acquiring: impl Future<Output = Result<Option<AnyGuard>, AcquireError>>,
        writes: bool,
    ) {
        let lock = Arc::clone(&call.lock);
        let shared = Arc::clone(&self.shared);
        let Some((call, guard)) = ask_for_guard(&shared.reporter, call, acquiring).await else { return };
        let time = self.time();
        keep(&shared.reporter, &shared.orders, (call, &guard), (&lock, writes), time).await;
        release(&shared.reporter, call, guard).await;
    }

    /// How long a hold is kept: mostly short, and sometimes so long that it is renewed.
    fn time(&mut self) -> Duration {
        let ms = match self.random.random_range(0..100) {
            0..70 => self.random.random_range(1..20),
            70..95 => self.random.random_range(30..150),
            _ => self.random.random_range(300..1200),
        };
        Duration::from_millis(ms)
    }
}

fn boxed(guard: impl LockGuard + 'static) -> AnyGuard {
    Box::new(guard)
}
