//! How several locks are acquired together, whatever their kind.
//!
//! 1. A task waits for one lock while it holds no other, [`MAX_ROUNDS`] times, and then in the order of the names. So no two
//!    tasks wait for each other.
//! 2. [Mutexes](crate::Mutex) are requested in one step of the store, if it supports that; other kinds in the order of
//!    their names. If one of them is taken, those acquired so far are released.

use super::{MultiAttempt, MultiGuard, MultiMutex};
use crate::engine::{self, AcquireFailure, Engine, MultiBlocked};
use crate::error::{AcquireError, LockError, LostHold};
use crate::guard::Guard;
use crate::lock::handle::{AcquireOptions, LockHandle, reason_of};
use crate::telemetry::NotAcquiredReason;
use futures_util::future::join_all;
use leasehold_core::{Kind, LeaseError, LockName, Moment};
use std::sync::Arc;
use std::time::Duration;

/// How many rounds try to acquire all locks without holding any while waiting. After that the locks are
/// acquired in order of their names, which succeeds however many other clients want some of them.
const MAX_ROUNDS: u32 = 2;

/// How many times to start over in order if one hold ends before the last lock is acquired.
const MAX_ORDERED_ATTEMPTS: u32 = 3;

/// Several locks of one kind.
#[derive(Clone, Debug)]
pub(super) struct LockSet {
    engine: Arc<Engine>,
    /// In order of their names, without duplicates; at least one. All have the same settings.
    handles: Vec<LockHandle>,
}

/// The lock that prevented acquiring all.
struct Blocked {
    /// Its index in the requests.
    index: usize,
    failure: AcquireFailure,
}

impl LockSet {
    pub(super) fn new(engine: Arc<Engine>, mut handles: Vec<LockHandle>) -> Result<Self, LockError> {
        handles.sort_by(|a, b| a.name().cmp(b.name()));
        handles.dedup_by(|a, b| a.name() == b.name());
        match handles.len() {
            0 => Err(LockError::NoName),
            given if given > MultiMutex::MAX_LOCKS => {
                Err(LockError::TooManyNames { given, max: MultiMutex::MAX_LOCKS })
            }
            _ => Ok(Self { engine, handles }),
        }
    }

    /// Changes a setting of all locks.
    pub(super) fn set(&mut self, change: impl Fn(&mut LockHandle)) {
        self.handles.iter_mut().for_each(change);
    }

    /// The names, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &LockName> {
        self.handles.iter().map(LockHandle::name)
    }

    /// How long to wait; forever if not set.
    pub(super) fn max_wait(&self) -> Option<Duration> {
        self.handles.first().and_then(|handle| handle.max_wait)
    }

    /// Tries once.
    pub(super) async fn try_acquire(&self, options: &AcquireOptions) -> Result<MultiAttempt, AcquireError> {
        let (call, start) = (self.engine.timings.call, self.engine.environment.now());
        let limit = Some(start + call);
        let mut own: Vec<_> = self.handles.iter().map(LockHandle::releasing).collect();
        loop {
            match self.try_acquire_except(options, None, limit).await? {
                Ok(guards) => return Ok(MultiAttempt::Granted(MultiGuard::new(&self.engine, guards))),
                Err(Blocked { index, failure: AcquireFailure::Taken(status) }) => {
                    if !self.handles[index].released(&mut own[index], limit).await {
                        self.handles[index].trace(start).not_acquired(NotAcquiredReason::Taken);
                        let lock = self.handles[index].name().clone();
                        return Ok(MultiAttempt::Taken { lock, contention: (*status).into() });
                    }
                }
                Err(Blocked { index, failure }) => {
                    let error = self.handles[index].error(failure, call);
                    self.handles[index].trace(start).not_acquired(reason_of(&error));
                    return Err(error);
                }
            }
        }
    }

    /// Acquires all of them within `wait`, or without a limit.
    pub(super) async fn acquire_within(
        &self,
        options: &AcquireOptions,
        wait: Option<Duration>,
    ) -> Result<MultiGuard, AcquireError> {
        let start = self.engine.environment.now();
        // A zero limit still allows one attempt.
        let limit = wait.map(|wait| start + if wait.is_zero() { self.engine.timings.call } else { wait });
        let error = |index: usize, failure| {
            let error = self.handles[index].error(failure, self.engine.environment.now().since(start));
            self.handles[index].trace(start).not_acquired(reason_of(&error));
            error
        };
        let mut first: Option<usize> = None;
        for _ in 0..MAX_ROUNDS {
            let held = match first {
                None => None,
                Some(index) => Some((index, self.acquire_one(index, options, limit, start).await?)),
            };
            let rest =
                self.try_acquire_except(options, held.as_ref().map(|(index, _)| *index), limit).await?;
            match (rest, held) {
                (Ok(guards), None) => return Ok(MultiGuard::new(&self.engine, guards)),
                (Ok(mut guards), Some((index, guard))) => {
                    guards.insert(index, guard);
                    // If the first lock was lost meanwhile, the round failed, as if another lock had been
                    // taken.
                    if let Ok(all) = self.join(MultiGuard::new(&self.engine, guards), limit).await {
                        return Ok(all);
                    }
                }
                (Err(Blocked { index, failure: AcquireFailure::Taken(status) }), held) => {
                    if wait.is_some_and(|wait| wait.is_zero()) {
                        return Err(error(index, AcquireFailure::TimedOut(status)));
                    }
                    if let Some((_, guard)) = held {
                        // Release the lock before waiting for anything. A failure here is no reason to give
                        // up.
                        self.run_until(limit, guard.release()).await;
                    }
                    if limit.is_some_and(|limit| limit <= self.engine.environment.now()) {
                        return Err(error(index, AcquireFailure::TimedOut(status)));
                    }
                    first = Some(index);
                }
                (Err(Blocked { index, failure }), _) => return Err(error(index, failure)),
            }
        }
        self.in_order(options, limit, start).await
    }

    /// Waits for one of the locks, in an acquire that began at `start`.
    async fn acquire_one(
        &self,
        index: usize,
        options: &AcquireOptions,
        limit: Option<Moment>,
        start: Moment,
    ) -> Result<Guard, AcquireError> {
        let handle = &self.handles[index];
        let trace = handle.trace(start);
        let acquired = match handle.acquire_until(options, limit, false, &trace).await {
            Ok(Ok(acquired)) => Ok(acquired.guard),
            Ok(Err(failure)) => Err(handle.error(failure, self.engine.environment.now().since(start))),
            Err(error) => Err(error.into()),
        };
        match &acquired {
            Ok(guard) => guard.report_acquired(trace),
            Err(error) => trace.not_acquired(reason_of(error)),
        }
        acquired
    }

    /// Acquires one lock after the other, in order of their names. Locks held so far are renewed; if one of them
    /// ends too early, it starts over, and gives up after a few times.
    async fn in_order(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        start: Moment,
    ) -> Result<MultiGuard, AcquireError> {
        let mut attempts = 1;
        loop {
            match self.try_in_order(options, limit, start).await? {
                Ok(all) => return Ok(all),
                Err(lost) if attempts == MAX_ORDERED_ATTEMPTS => return Err(AcquireError::Lost(lost)),
                Err(_) => attempts += 1,
            }
        }
    }

    /// One attempt to acquire the locks in order. Fails, holding none, if one was lost meanwhile.
    async fn try_in_order(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        start: Moment,
    ) -> Result<Result<MultiGuard, LostHold>, AcquireError> {
        // Once a lock is lost the next one could only be released. A hold of limited duration may end while
        // waiting, however; the queue entries are kept then, because the attempts would soon be used up.
        let stops_when_lost = !self.handles.iter().any(LockHandle::has_limited_duration);
        let mut all = MultiGuard::new(&self.engine, Vec::with_capacity(self.handles.len()));
        for index in 0..self.handles.len() {
            let acquired = tokio::select! {
                biased;
                lost = all.lost(), if stops_when_lost => Err(lost),
                acquired = self.acquire_one(index, options, limit, start) => Ok(acquired?),
            };
            match acquired {
                Ok(guard) => all.push(guard),
                Err(lost) => {
                    self.release_until(limit, all).await;
                    return Ok(Err(lost));
                }
            }
        }
        Ok(self.join(all, limit).await)
    }

    /// Joins locks that were acquired one after the other: the lease of all counts from now. If one was lost
    /// meanwhile, fails and releases the others.
    async fn join(&self, all: MultiGuard, limit: Option<Moment>) -> Result<MultiGuard, LostHold> {
        if self.handles.iter().any(LockHandle::ends_with_its_lease) {
            // The locks are held even if this extension fails. A watchdog extends without help.
            self.run_until(limit, all.extend()).await;
        }
        match all.check_with_reason_until(limit).await {
            Ok(()) => Ok(all),
            Err(lost) => {
                self.release_until(limit, all).await;
                Err(lost)
            }
        }
    }

    /// Releases those locks that were acquired; in the background after the time limit.
    async fn release_until(&self, limit: Option<Moment>, all: MultiGuard) {
        self.run_until(limit, join_all(all.guards.into_iter().map(Guard::release))).await;
    }

    /// Runs `work` until the time limit. Work dropped at the limit either continues in the background or is
    /// not needed.
    async fn run_until<T>(&self, limit: Option<Moment>, work: impl Future<Output = T>) {
        let limit_reached = async {
            match limit {
                Some(limit) => self.engine.environment.sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = work => {}
            () = limit_reached => {}
        }
    }

    /// Acquires all locks but one that is already held, without waiting (2).
    async fn try_acquire_except(
        &self,
        options: &AcquireOptions,
        held: Option<usize>,
        limit: Option<Moment>,
    ) -> Result<Result<Vec<Guard>, Blocked>, LeaseError> {
        let wanted: Vec<_> = (0..self.handles.len()).filter(|index| Some(*index) != held).collect();
        let Some(first) = wanted.first().map(|index| &self.handles[*index]) else {
            return Ok(Ok(Vec::new()));
        };
        if first.entry.lock.kind != Kind::Mutex {
            return self.try_each(options, &wanted, limit).await;
        }
        let start = self.engine.environment.now();
        let duration = first.duration()?;
        let params = first.params(options, duration.lease(), limit, true, None);
        let entries: Vec<_> = wanted.iter().map(|index| &self.handles[*index].entry).collect();
        let holds = match engine::acquire_all(&self.engine, &entries, &params).await {
            Ok(holds) => holds,
            Err(MultiBlocked { at: index, failure }) => {
                return Ok(Err(Blocked { index: wanted[index], failure }));
            }
        };
        // Every hold is passed to the keeper before anything fails: then dropping their guards releases them.
        let acquired: Vec<_> = wanted
            .iter()
            .zip(holds)
            .map(|(index, hold)| {
                (*index, self.handles[*index].track(options, hold, duration, &self.handles[*index].entry))
            })
            .collect();
        let mut held = Vec::with_capacity(acquired.len());
        let mut blocked = None;
        for (index, acquired) in acquired {
            match acquired? {
                Ok(acquired) => held.push((index, acquired)),
                Err(failure) => blocked = Some(Blocked { index, failure }),
            }
        }
        if let Some(blocked) = blocked {
            return Ok(Err(blocked));
        }
        let confirmed = held.into_iter().map(async |(index, acquired)| {
            let handle = &self.handles[index];
            match handle.confirmed(acquired, limit).await {
                Ok(acquired) => {
                    acquired.guard.report_acquired(handle.trace(start));
                    Ok(acquired.guard)
                }
                Err(failure) => Err(Blocked { index, failure }),
            }
        });
        Ok(join_all(confirmed).await.into_iter().collect())
    }
    /// Acquires the `wanted` locks one after the other, without waiting for another client. If one is taken, those acquired
    /// so far are released.
    async fn try_each(
        &self,
        options: &AcquireOptions,
        wanted: &[usize],
        limit: Option<Moment>,
    ) -> Result<Result<Vec<Guard>, Blocked>, LeaseError> {
        let mut guards = Vec::with_capacity(wanted.len());
        for &index in wanted {
            let call = self.engine.environment.now() + self.engine.timings.call;
            let until = Some(limit.map_or(call, |limit| limit.min(call)));
            let handle = &self.handles[index];
            let trace = handle.trace(self.engine.environment.now());
            match handle.acquire_until(options, until, true, &trace).await? {
                Ok(acquired) => {
                    acquired.guard.report_acquired(trace);
                    guards.push(acquired.guard);
                }
                Err(failure) => {
                    trace.not_acquired(NotAcquiredReason::Taken);
                    self.release_until(limit, MultiGuard::new(&self.engine, guards)).await;
                    return Ok(Err(Blocked { index, failure }));
                }
            }
        }
        Ok(Ok(guards))
    }
}
