//! What a task does: acquires locks in every way, enters them again, holds them, loses them, and drops calls
//! half-way. For locks with several holders see [`sharing`](crate::workload::sharing), for Elections
//! [`election`](crate::workload::election), for periods [`once_per`](crate::workload::once_per).
//!
//! It deliberately judges nothing: it records what it does, and the checks do the rest.

use crate::any_guard::AnyGuard;
use crate::event::{AcquireFailure, AcquireMethod, LeasePolicy, LockId, OwnerId, TaskEvent};
use crate::workload::dropped::DroppedAfter;
use crate::workload::guards::HeldGuard;
use crate::workload::runner::TaskRunner;
use crate::world::time::Instant;
use futures_util::future::{BoxFuture, Either, select, select_all};
use leasehold::core::{Kind, LockMode};
use leasehold::{
    AcquireError, Attempt, Lost as Loss, MultiAttempt, MultiMutex, Mutex, Owner, ReentrantMutex, RetryPolicy,
};
use std::pin::pin;
use std::time::Duration;

/// How often an owner enters at most.
const DEEPEST: usize = 3;

/// The outcome of an acquire.
pub(crate) enum CallOutcome {
    Got(Box<AnyGuard>),
    NotAcquired(AcquireFailure),
    Dropped,
}

/// An acquire that has not started.
pub(crate) struct AcquireCall {
    pub(crate) method: AcquireMethod,
    pub(crate) acquiring: BoxFuture<'static, CallOutcome>,
}

impl TaskRunner {
    pub(crate) async fn run(self) {
        while self.sim.scheduler.now() < self.sim.fault_plan.faults_end_at {
            self.pause(self.sim.config.idle).await;
            self.use_a_lock().await;
        }
        self.lead_at_last().await;
    }

    async fn use_a_lock(&self) {
        let lock = LockId(u8::try_from(self.chance.below(self.sim.locks.len() as u64)).unwrap_or(0));
        if self.sim.kind(lock).is_shared() {
            return self.use_shared(lock).await;
        }
        if let Some(period) = self.sim.period.filter(|period| period.lock == lock) {
            return self.take_turn(period).await;
        }
        let mutexes = self.sim.mutexes();
        let (got, owner) = if mutexes.len() > 1 && self.chance.chance(self.sim.config.several) {
            (self.acquire_several(&mutexes).await, None)
        } else if self.sim.kind(lock) == Kind::Reentrant {
            let owner = self.choose_owner();
            (self.enter(lock, owner.as_ref(), 0).await, Some(lock))
        } else if self.sim.kind(lock) == Kind::Election {
            (self.campaign(lock).await, None)
        } else {
            (self.acquire_mutex(lock).await, None)
        };
        if let Some(got) = got {
            self.hold(got, owner).await;
        }
    }

    /// The explicit owner for a ReentrantMutex or an RwLock. `None` selects the owner of the task's scope.
    pub(crate) fn choose_owner(&self) -> Option<Owner> {
        match self.chance.below(10) {
            0..2 => Some(self.own.clone()),
            2..4 => Some(self.client.new_owner()),
            4..8 => self.sim.published(self.task.host, &self.chance),
            _ => None,
        }
    }

    pub(crate) async fn acquire_mutex(&self, lock: LockId) -> Option<HeldGuard> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        let mut mutex = self.sim.expect("workload", self.client.mutex(name))?;
        if let Some(every) = self.sim.config.free_every {
            mutex = mutex.yield_every(every);
        }
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            mutex = mutex.lease(lease);
        }
        if self.chance.chance(self.sim.config.own_values) {
            // Few enough that others have the same.
            mutex = mutex.value(format!("value {}", self.chance.below(3))).ok()?;
        }
        let handoff = self.sim.handoff;
        let mut keep_for = None;
        if self.chance.chance(handoff.sticky) {
            let tenths = u32::try_from(self.chance.between(1, 10)).unwrap_or(1);
            let idle = handoff.keep_for * tenths / 10;
            mutex = mutex.sticky(idle);
            keep_for = Some(idle);
        }
        let call = self.mutex_call(mutex, keep_for);
        self.acquire_locks(&[lock], call, None, lease_policy, LockMode::Exclusive).await
    }

    fn mutex_call(&self, mutex: Mutex, keep_for: Option<Duration>) -> AcquireCall {
        let (method, limit) = self.draw_method();
        let kept = move |guard| AnyGuard::Mutex(guard, keep_for);
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => Box::pin(async move { attempt(mutex.try_acquire().await, kept) }),
            AcquireMethod::Wait(_) => Box::pin(async move { got(mutex.acquire_timeout(limit).await, kept) }),
            AcquireMethod::Poll(_) => {
                let polling = mutex.retry(polling()).max_wait(limit);
                Box::pin(async move { got(polling.acquire().await, kept) })
            }
            _ => Box::pin(async move { got(mutex.acquire().await, kept) }),
        };
        AcquireCall { method, acquiring }
    }

    /// Acquires a ReentrantMutex, which its owner may have `depth` times in this task.
    async fn enter(&self, lock: LockId, owner: Option<&Owner>, depth: usize) -> Option<HeldGuard> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        let mut mutex = self.sim.expect("workload", self.client.reentrant_mutex(name))?;
        if let Some(every) = self.sim.config.free_every {
            mutex = mutex.yield_every(every);
        }
        let (lease, mut lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            mutex = mutex.lease(lease);
            if self.chance.chance(300) {
                mutex = mutex.sum_leases(true);
                lease_policy = LeasePolicy::Added(lease);
            }
        }
        let mut scope = None;
        if let Some(owner) = owner {
            if self.chance.chance(500) {
                mutex = mutex.owned_by(owner);
            } else {
                scope = Some(owner.clone());
            }
        }
        let known = owner.cloned().or_else(Owner::current).map(|owner| self.sim.owner_id(&owner));
        let call = self.reentrant_call(mutex, scope, depth > 0);
        self.acquire_locks(&[lock], call, known, lease_policy, LockMode::Exclusive).await
    }

    fn reentrant_call(&self, mutex: ReentrantMutex, scope: Option<Owner>, again: bool) -> AcquireCall {
        let (method, limit) = self.draw_method();
        // A re-entrant acquire does not wait, but the hold may have been lost.
        let method =
            if again && method == AcquireMethod::WaitForEver { AcquireMethod::Wait(limit) } else { method };
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(mutex.try_acquire().await, AnyGuard::Reentrant) })
            }
            AcquireMethod::Wait(_) => {
                Box::pin(async move { got(mutex.acquire_timeout(limit).await, AnyGuard::Reentrant) })
            }
            AcquireMethod::Poll(_) => {
                let polling = mutex.retry(polling()).max_wait(limit);
                Box::pin(async move { got(polling.acquire().await, AnyGuard::Reentrant) })
            }
            _ => Box::pin(async move { got(mutex.acquire().await, AnyGuard::Reentrant) }),
        };
        match scope {
            Some(owner) => AcquireCall { method, acquiring: Box::pin(owner.scope(acquiring)) },
            None => AcquireCall { method, acquiring },
        }
    }

    /// Some of the Mutexes at once: two, or all.
    async fn acquire_several(&self, mutexes: &[LockId]) -> Option<HeldGuard> {
        let mut locks = mutexes.to_vec();
        while locks.len() > 2 && self.chance.chance(500) {
            locks.swap_remove(usize::try_from(self.chance.below(locks.len() as u64)).unwrap_or(0));
        }
        let names = locks.iter().filter_map(|lock| self.sim.locks.get(usize::from(lock.0)));
        let names = names.map(|lock| lock.name.clone());
        let mut all = self.sim.expect("workload", self.client.multi_mutex(names))?;
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            all = all.lease(lease);
        }
        let call = self.several_call(all);
        self.acquire_locks(&locks, call, None, lease_policy, LockMode::Exclusive).await
    }

    fn several_call(&self, all: MultiMutex) -> AcquireCall {
        let (method, limit) = self.draw_method();
        match method {
            AcquireMethod::Try => {
                let tried = async move {
                    match all.try_acquire().await {
                        Ok(MultiAttempt::Granted(guard)) => CallOutcome::Got(Box::new(AnyGuard::All(guard))),
                        Ok(MultiAttempt::Taken { .. }) => CallOutcome::NotAcquired(AcquireFailure::Taken),
                        Err(error) => CallOutcome::NotAcquired(miss(&error)),
                    }
                };
                AcquireCall { method: AcquireMethod::TryAll, acquiring: Box::pin(tried) }
            }
            AcquireMethod::Wait(_) | AcquireMethod::Poll(_) => AcquireCall {
                method: AcquireMethod::All(Some(limit)),
                acquiring: Box::pin(async move { got(all.acquire_timeout(limit).await, AnyGuard::All) }),
            },
            _ => AcquireCall {
                method: AcquireMethod::All(None),
                acquiring: Box::pin(async move { got(all.acquire().await, AnyGuard::All) }),
            },
        }
    }

    /// A random lease.
    pub(crate) fn lease_policy(&self) -> (Option<Duration>, LeasePolicy) {
        if self.chance.chance(400) {
            let lease = Duration::from_micros(self.chance.between(200_000, 8_000_000));
            return (Some(lease), LeasePolicy::Given(lease));
        }
        (None, self.resubscribed())
    }

    /// The default: renewed automatically.
    pub(crate) const fn resubscribed(&self) -> LeasePolicy {
        LeasePolicy::Renewed(self.watchdog)
    }

    pub(crate) fn draw_method(&self) -> (AcquireMethod, Duration) {
        let limit = Duration::from_micros(self.chance.between(1_000, 5_000_000));
        let method = match self.chance.below(10) {
            0..2 => AcquireMethod::Try,
            2..5 => AcquireMethod::Wait(limit),
            5 => AcquireMethod::Poll(limit),
            _ => AcquireMethod::WaitForEver,
        };
        (method, limit)
    }

    pub(crate) async fn acquire_locks(
        &self,
        locks: &[LockId],
        call: AcquireCall,
        owner: Option<OwnerId>,
        lease_policy: LeasePolicy,
        mode: LockMode,
    ) -> Option<HeldGuard> {
        let note = |what| locks.iter().for_each(|lock| self.note(*lock, what));
        note(TaskEvent::Acquiring(call.method, owner));
        match self.drop_some(call.acquiring).await {
            CallOutcome::Got(kept) => return Some(HeldGuard::new(self, *kept, lease_policy, mode)),
            CallOutcome::NotAcquired(miss) => note(TaskEvent::NotAcquired(miss)),
            CallOutcome::Dropped => note(TaskEvent::Cancelled),
        }
        None
    }

    async fn drop_some(&self, acquiring: BoxFuture<'static, CallOutcome>) -> CallOutcome {
        self.unless_dropped(acquiring).await.unwrap_or(CallOutcome::Dropped)
    }

    /// Awaits a future, or drops it half-way.
    pub(crate) async fn unless_dropped<T>(&self, doing: BoxFuture<'static, T>) -> Option<T> {
        if !self.chance.chance(self.sim.config.drops) {
            return Some(doing.await);
        }
        if self.chance.chance(500) {
            let cut = DroppedAfter { inner: doing, polls: self.chance.between(1, 6) };
            return cut.await;
        }
        let patience = pin!(self.pause(Duration::from_secs(3)));
        match select(doing, patience).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Holds a guard, re-enters a ReentrantMutex, and releases all in random order.
    async fn hold(&self, first: HeldGuard, reentrant: Option<LockId>) {
        let mut had = vec![first];
        let owner = had[0].kept.owner().cloned();
        let steps = self.chance.below(if reentrant.is_some() { 7 } else { 4 });
        for _ in 0..steps {
            if had.is_empty() {
                return;
            }
            let enters = reentrant
                .filter(|_| had.len() < DEEPEST && self.chance.chance(self.sim.config.enters))
                .zip(owner.as_ref());
            if let Some((lock, owner)) = enters {
                let depth = had.len();
                let again = self.enter(lock, Some(owner), depth);
                let again = self.meanwhile(&mut had, again).await;
                had.extend(again);
            } else if had.len() > 1 && self.chance.chance(300) {
                self.release_any(&mut had).await;
            } else {
                self.work(&mut had).await;
            }
            self.release_lost(&mut had).await;
        }
        self.release_all(had).await;
    }

    /// Releases all guards, in random order.
    pub(crate) async fn release_all(&self, mut had: Vec<HeldGuard>) {
        while !had.is_empty() {
            self.release_any(&mut had).await;
            if !had.is_empty() && self.chance.chance(500) {
                let pause = self.pause(Duration::from_millis(600));
                self.meanwhile(&mut had, pause).await;
            }
        }
    }

    /// Awaits a future, and records losses meanwhile.
    pub(crate) async fn meanwhile<T>(&self, had: &mut [HeldGuard], doing: impl Future<Output = T>) -> T {
        let mut doing = pin!(doing);
        loop {
            let (at, loss) = match select(pin!(lost(had)), &mut doing).await {
                Either::Left((lost, _)) => lost,
                Either::Right((done, _)) => return done,
            };
            had[at].loses(self, &loss);
        }
    }

    /// Works under its guards until one is lost.
    pub(crate) async fn work(&self, had: &mut [HeldGuard]) {
        let at = usize::try_from(self.chance.below(had.len() as u64)).unwrap_or(0);
        let (kept, guard_ids) = (had[at].kept.clone(), had[at].guard_ids.clone());
        let work = async {
            let longest = if self.chance.chance(self.sim.config.long_holds) { 12_000 } else { 600 };
            self.pause(Duration::from_millis(longest)).await;
            // A task that goes on without checking learns of the loss by the signal.
            if kept.check().is_ok() && self.chance.chance(200) {
                self.extend(&kept, &guard_ids).await;
            }
        };
        let told = match select(pin!(lost(had)), pin!(work)).await {
            Either::Left((lost, _)) => Some(lost),
            Either::Right(_) => None,
        };
        if let Some((at, loss)) = told {
            had[at].loses(self, &loss);
        }
    }

    async fn extend(&self, kept: &AnyGuard, guard_ids: &[(LockId, crate::event::GuardId)]) {
        let note = |what: &dyn Fn(crate::event::GuardId) -> TaskEvent| {
            for (lock, guard_id) in guard_ids {
                self.note(*lock, what(*guard_id));
            }
        };
        let lease = Duration::from_micros(self.chance.between(1_000, 4_000_000));
        let until = self.world.shows_at(self.world.now() + lease);
        note(&TaskEvent::Extends);
        let asked_for_less = self.chance.chance(500);
        let extended = if asked_for_less { kept.extend_to(lease).await } else { kept.extend().await };
        // A failed extend leaves the hold as it was, or a loss is reported.
        if extended.is_ok() {
            let until = if asked_for_less { until } else { Instant::default() };
            self.sim.sample(self.task.host);
            note(&|guard_id| TaskEvent::Extended(guard_id, until));
        }
    }

    /// Releases lost guards, perhaps after a pause. A lost guard is never dropped without a release.
    pub(crate) async fn release_lost(&self, had: &mut Vec<HeldGuard>) {
        while let Some(at) = had.iter().position(|held_guard| held_guard.is_lost) {
            if self.chance.chance(200) {
                let hangs = self.pause(Duration::from_secs(8));
                self.meanwhile(had, hangs).await;
            }
            let lost = had.swap_remove(at);
            let letting = self.release_guard(lost);
            self.meanwhile(had, letting).await;
        }
    }

    pub(crate) async fn release_any(&self, had: &mut Vec<HeldGuard>) {
        let at = usize::try_from(self.chance.below(had.len() as u64)).unwrap_or(0);
        let one = had.swap_remove(at);
        let letting = self.release_guard(one);
        self.meanwhile(had, letting).await;
    }

    pub(crate) async fn release_guard(&self, held_guard: HeldGuard) {
        if self.chance.chance(150) {
            return held_guard.drop(self);
        }
        let dropped = self.chance.chance(self.sim.config.drops);
        let polls = if dropped { self.chance.between(1, 3) } else { u64::MAX };
        held_guard.release(self, polls).await;
    }
}

/// Waits for a loss that was not reported yet. Returns its guard.
async fn lost(had: &[HeldGuard]) -> (usize, Loss) {
    let each = had.iter().enumerate().filter(|(_, held_guard)| !held_guard.is_lost);
    let each: Vec<_> =
        each.map(|(at, held_guard)| Box::pin(async move { (at, held_guard.kept.lost().await) })).collect();
    if each.is_empty() {
        return std::future::pending().await;
    }
    select_all(each).await.0
}

pub(crate) fn polling() -> RetryPolicy {
    RetryPolicy::constant(Duration::from_millis(150)).tries(8)
}

pub(crate) fn attempt<G>(
    attempt: Result<Attempt<G>, AcquireError>,
    kept: impl FnOnce(G) -> AnyGuard,
) -> CallOutcome {
    match attempt {
        Ok(Attempt::Granted(guard)) => CallOutcome::Got(Box::new(kept(guard))),
        Ok(Attempt::Taken(_)) => CallOutcome::NotAcquired(AcquireFailure::Taken),
        Err(error) => CallOutcome::NotAcquired(miss(&error)),
    }
}

pub(crate) fn got<G>(guard: Result<G, AcquireError>, kept: impl FnOnce(G) -> AnyGuard) -> CallOutcome {
    guard.map_or_else(
        |error| CallOutcome::NotAcquired(miss(&error)),
        |guard| CallOutcome::Got(Box::new(kept(guard))),
    )
}

pub(crate) fn miss(error: &AcquireError) -> AcquireFailure {
    match error {
        AcquireError::RetriesExhausted { .. } => AcquireFailure::Taken,
        AcquireError::TimedOut { .. } => AcquireFailure::TimedOut,
        AcquireError::LeaseTooShort { .. } => AcquireFailure::TooSlow,
        AcquireError::Lost(_) => AcquireFailure::Lost,
        AcquireError::Impossible(_) => AcquireFailure::Impossible,
        _ => AcquireFailure::Fault,
    }
}
