//! What a task does: acquires locks with every method, re-enters them, holds them, loses them, and drops futures before
//! they end. For locks with several holders see [`sharing`](crate::workload::sharing), for Elections
//! [`election`](crate::workload::election), for periods [`once_per`](crate::workload::once_per).
//!
//! It does not check anything: it records events, which the checks evaluate.

use crate::any_guard::AnyGuard;
use crate::event::{AcquireFailure, AcquireMethod, LeasePolicy, LockId, OwnerId, TaskEvent};
use crate::mutants::Mutant;
use crate::workload::dropped::DroppedAfter;
use crate::workload::guards::{HeldGuard, HoldTerms};
use crate::workload::runner::TaskRunner;
use crate::world::time::Instant;
use futures_util::future::{BoxFuture, Either, select, select_all};
use leasehold::core::{Kind, LockMode};
use leasehold::error::{AcquireError, LostHold as Loss};
use leasehold::{Attempt, MultiAttempt, MultiMutex, Mutex, Owner, ReentrantMutex, RetryPolicy};
use std::pin::pin;
use std::time::Duration;

/// The most holds of one owner.
const MAX_DEPTH: usize = 3;

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
            self.use_lock().await;
        }
        self.lead_after_faults().await;
    }

    async fn use_lock(&self) {
        let lock = LockId(u8::try_from(self.random.below(self.sim.locks.len() as u64)).unwrap_or(0));
        if self.sim.kind(lock).is_shared() {
            return self.use_shared(lock).await;
        }
        if let Some(period) = self.sim.period.filter(|period| period.lock == lock) {
            return self.run_period(period).await;
        }
        let mutexes = self.sim.mutexes();
        let (got, owner) = if mutexes.len() > 1 && self.random.chance(self.sim.config.multi_acquires) {
            (self.acquire_multi(&mutexes).await, None)
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
        match self.random.below(10) {
            0..2 => Some(self.own.clone()),
            2..4 => Some(self.client.new_owner()),
            4..8 => self.sim.published_owner(self.task.host, &self.random),
            _ => None,
        }
    }

    pub(crate) async fn acquire_mutex(&self, lock: LockId) -> Option<HeldGuard> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        let mut mutex = self.sim.expect("workload", self.client.mutex(name))?;
        if let Some(every) = self.sim.config.yield_every {
            mutex = mutex.yield_every(every);
        }
        let (lease, terms) = self.draw_terms();
        mutex = mutex.lock_delay(self.requested_delay(terms));
        if let Some(lease) = lease {
            mutex = mutex.lease(lease);
        }
        if self.random.chance(self.sim.config.own_values) {
            // Few values, so that others use the same.
            mutex = mutex.value(format!("value {}", self.random.below(3))).ok()?;
        }
        let handoff = self.sim.handoff;
        let mut keep_for = None;
        if self.random.chance(handoff.sticky) {
            let tenths = u32::try_from(self.random.between(1, 10)).unwrap_or(1);
            let idle = handoff.keep_for * tenths / 10;
            mutex = mutex.sticky(idle);
            keep_for = Some(idle);
        }
        let call = self.mutex_call(mutex, keep_for);
        self.acquire_locks(&[lock], call, None, terms, LockMode::Exclusive).await
    }

    fn mutex_call(&self, mutex: Mutex, keep_for: Option<Duration>) -> AcquireCall {
        let (method, limit) = self.draw_method();
        let wrap = move |guard| AnyGuard::Mutex(guard, keep_for);
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => Box::pin(async move { attempt(mutex.try_acquire().await, wrap) }),
            AcquireMethod::WaitTimeout(_) => {
                Box::pin(async move { got(mutex.acquire_timeout(limit).await, wrap) })
            }
            AcquireMethod::Poll(_) => {
                let polling = mutex.retry(polling()).max_wait(limit);
                Box::pin(async move { got(polling.acquire().await, wrap) })
            }
            _ => Box::pin(async move { got(mutex.acquire().await, wrap) }),
        };
        AcquireCall { method, acquiring }
    }

    /// Acquires a ReentrantMutex, of which the owner has `depth` holds in this task.
    async fn enter(&self, lock: LockId, owner: Option<&Owner>, depth: usize) -> Option<HeldGuard> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        let mut mutex = self.sim.expect("workload", self.client.reentrant_mutex(name))?;
        if let Some(every) = self.sim.config.yield_every {
            mutex = mutex.yield_every(every);
        }
        let (lease, mut terms) = self.draw_terms();
        mutex = mutex.lock_delay(self.requested_delay(terms));
        if let Some(lease) = lease {
            mutex = mutex.lease(lease);
            if self.random.chance(300) {
                mutex = mutex.sum_leases(true);
                terms.lease_policy = LeasePolicy::Added(lease);
            }
        }
        let mut scope = None;
        if let Some(owner) = owner {
            if self.random.chance(500) {
                mutex = mutex.owned_by(owner);
            } else {
                scope = Some(owner.clone());
            }
        }
        let known = owner.cloned().or_else(Owner::current).map(|owner| self.sim.owner_id(&owner));
        let call = self.reentrant_call(mutex, scope, depth > 0);
        self.acquire_locks(&[lock], call, known, terms, LockMode::Exclusive).await
    }

    fn reentrant_call(&self, mutex: ReentrantMutex, scope: Option<Owner>, again: bool) -> AcquireCall {
        let (method, limit) = self.draw_method();
        // A re-entrant acquire does not wait, but the hold may have been lost.
        let method =
            if again && method == AcquireMethod::Wait { AcquireMethod::WaitTimeout(limit) } else { method };
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(mutex.try_acquire().await, AnyGuard::Reentrant) })
            }
            AcquireMethod::WaitTimeout(_) => {
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

    /// Acquires some of the Mutexes together: two, or all.
    async fn acquire_multi(&self, mutexes: &[LockId]) -> Option<HeldGuard> {
        let mut locks = mutexes.to_vec();
        while locks.len() > 2 && self.random.chance(500) {
            locks.swap_remove(usize::try_from(self.random.below(locks.len() as u64)).unwrap_or(0));
        }
        let names = locks.iter().filter_map(|lock| self.sim.locks.get(usize::from(lock.0)));
        let names = names.map(|lock| lock.name.clone());
        let mut all = self.sim.expect("workload", self.client.multi_mutex(names))?;
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            all = all.lease(lease);
        }
        let call = self.multi_call(all);
        self.acquire_locks(&locks, call, None, lease_policy.into(), LockMode::Exclusive).await
    }

    fn multi_call(&self, all: MultiMutex) -> AcquireCall {
        let (method, limit) = self.draw_method();
        match method {
            AcquireMethod::Try => {
                let tried = async move {
                    match all.try_acquire().await {
                        Ok(MultiAttempt::Granted(guard)) => CallOutcome::Got(Box::new(AnyGuard::All(guard))),
                        Ok(MultiAttempt::Taken { .. }) => CallOutcome::NotAcquired(AcquireFailure::Taken),
                        Err(error) => CallOutcome::NotAcquired(failure_of(&error)),
                    }
                };
                AcquireCall { method: AcquireMethod::TryAll, acquiring: Box::pin(tried) }
            }
            AcquireMethod::WaitTimeout(_) | AcquireMethod::Poll(_) => AcquireCall {
                method: AcquireMethod::All(Some(limit)),
                acquiring: Box::pin(async move { got(all.acquire_timeout(limit).await, AnyGuard::All) }),
            },
            _ => AcquireCall {
                method: AcquireMethod::All(None),
                acquiring: Box::pin(async move { got(all.acquire().await, AnyGuard::All) }),
            },
        }
    }

    /// A random lease, and sometimes a lock delay.
    pub(crate) fn draw_terms(&self) -> (Option<Duration>, HoldTerms) {
        let (lease, lease_policy) = self.lease_policy();
        let lock_delay = self.sim.lock_delays.draw_one(&self.random);
        (lease, HoldTerms { lease_policy, lock_delay })
    }

    /// The lock delay that the library is asked for: none with a mutant.
    pub(crate) fn requested_delay(&self, terms: HoldTerms) -> Duration {
        if self.sim.mutant == Some(Mutant::DelayIsNotRequested) { Duration::ZERO } else { terms.lock_delay }
    }

    /// A random lease.
    fn lease_policy(&self) -> (Option<Duration>, LeasePolicy) {
        if self.random.chance(400) {
            let lease = Duration::from_micros(self.random.between(200_000, 8_000_000));
            return (Some(lease), LeasePolicy::Given(lease));
        }
        (None, self.resubscribed())
    }

    /// The default: renewed automatically.
    pub(crate) const fn resubscribed(&self) -> LeasePolicy {
        LeasePolicy::Renewed(self.watchdog)
    }

    pub(crate) fn draw_method(&self) -> (AcquireMethod, Duration) {
        let limit = Duration::from_micros(self.random.between(1_000, 5_000_000));
        let method = match self.random.below(10) {
            0..2 => AcquireMethod::Try,
            2..5 => AcquireMethod::WaitTimeout(limit),
            5 => AcquireMethod::Poll(limit),
            _ => AcquireMethod::Wait,
        };
        (method, limit)
    }

    pub(crate) async fn acquire_locks(
        &self,
        locks: &[LockId],
        call: AcquireCall,
        owner: Option<OwnerId>,
        terms: HoldTerms,
        mode: LockMode,
    ) -> Option<HeldGuard> {
        let note = |what| locks.iter().for_each(|lock| self.record(*lock, what));
        note(TaskEvent::Acquiring(call.method, owner));
        match self.acquire_or_drop(call.acquiring).await {
            CallOutcome::Got(guard) => return Some(HeldGuard::new(self, *guard, terms, mode)),
            CallOutcome::NotAcquired(failure_of) => note(TaskEvent::NotAcquired(failure_of)),
            CallOutcome::Dropped => note(TaskEvent::Cancelled),
        }
        None
    }

    async fn acquire_or_drop(&self, acquiring: BoxFuture<'static, CallOutcome>) -> CallOutcome {
        self.maybe_dropped(acquiring).await.unwrap_or(CallOutcome::Dropped)
    }

    /// Awaits a future, or drops it before it ends.
    pub(crate) async fn maybe_dropped<T>(&self, doing: BoxFuture<'static, T>) -> Option<T> {
        if !self.random.chance(self.sim.config.drops_future) {
            return Some(doing.await);
        }
        if self.random.chance(500) {
            let cut = DroppedAfter { inner: doing, polls: self.random.between(1, 6) };
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
        let mut guards = vec![first];
        let owner = guards[0].guard.owner().cloned();
        let steps = self.random.below(if reentrant.is_some() { 7 } else { 4 });
        for _ in 0..steps {
            if guards.is_empty() {
                return;
            }
            let reenters = reentrant
                .filter(|_| guards.len() < MAX_DEPTH && self.random.chance(self.sim.config.reenters))
                .zip(owner.as_ref());
            if let Some((lock, owner)) = reenters {
                let depth = guards.len();
                let again = self.enter(lock, Some(owner), depth);
                let again = self.meanwhile(&mut guards, again).await;
                guards.extend(again);
            } else if guards.len() > 1 && self.random.chance(300) {
                self.release_any(&mut guards).await;
            } else {
                self.work(&mut guards).await;
            }
            self.release_lost(&mut guards).await;
        }
        self.release_all(guards).await;
    }

    /// Releases all guards, in random order.
    pub(crate) async fn release_all(&self, mut guards: Vec<HeldGuard>) {
        while !guards.is_empty() {
            self.release_any(&mut guards).await;
            if !guards.is_empty() && self.random.chance(500) {
                let pause = self.pause(Duration::from_millis(600));
                self.meanwhile(&mut guards, pause).await;
            }
        }
    }

    /// Awaits a future, and records losses meanwhile.
    pub(crate) async fn meanwhile<T>(&self, guards: &mut [HeldGuard], doing: impl Future<Output = T>) -> T {
        let mut doing = pin!(doing);
        loop {
            let (at, loss) = match select(pin!(lost(guards)), &mut doing).await {
                Either::Left((lost, _)) => lost,
                Either::Right((done, _)) => return done,
            };
            guards[at].report_loss(self, &loss);
        }
    }

    /// Works under its guards until one is lost.
    pub(crate) async fn work(&self, guards: &mut [HeldGuard]) {
        let at = usize::try_from(self.random.below(guards.len() as u64)).unwrap_or(0);
        let (guard, guard_ids) = (guards[at].guard.clone(), guards[at].guard_ids.clone());
        let work = async {
            let longest = if self.random.chance(self.sim.config.long_holds) { 12_000 } else { 600 };
            self.pause(Duration::from_millis(longest)).await;
            // A task that does not check learns of a loss by the signal.
            if guard.check().is_ok() && self.random.chance(200) {
                self.extend(&guard, &guard_ids).await;
            }
            // A leader that has lost its leadership tries it, too.
            if let (Some(_), [(lock, guard_id)]) = (guard.leadership(), &guard_ids[..]) {
                self.proclaim(*lock, *guard_id, &guard).await;
            }
        };
        let reported = match select(pin!(lost(guards)), pin!(work)).await {
            Either::Left((lost, _)) => Some(lost),
            Either::Right(_) => None,
        };
        if let Some((at, loss)) = reported {
            guards[at].report_loss(self, &loss);
        }
    }

    async fn extend(&self, guard: &AnyGuard, guard_ids: &[(LockId, crate::event::GuardId)]) {
        let note = |what: &dyn Fn(crate::event::GuardId) -> TaskEvent| {
            for (lock, guard_id) in guard_ids {
                self.record(*lock, what(*guard_id));
            }
        };
        let lease = Duration::from_micros(self.random.between(1_000, 4_000_000));
        let until = self.world.shows_at(self.world.now() + lease);
        note(&TaskEvent::Extending);
        let asked_for_less = self.random.chance(500);
        let extended = if asked_for_less { guard.extend_to(lease).await } else { guard.extend().await };
        // A failed extend leaves the hold as it was, or a loss is reported.
        if extended.is_ok() {
            let until = if asked_for_less { until } else { Instant::default() };
            self.sim.sample_validity(self.task.host);
            note(&|guard_id| TaskEvent::Extended(guard_id, until));
        }
    }

    /// Releases lost guards, perhaps after a pause. A lost guard is never dropped without a release.
    pub(crate) async fn release_lost(&self, guards: &mut Vec<HeldGuard>) {
        while let Some(at) = guards.iter().position(|held_guard| held_guard.is_lost) {
            if self.random.chance(200) {
                let hangs = self.pause(Duration::from_secs(8));
                self.meanwhile(guards, hangs).await;
            }
            let lost = guards.swap_remove(at);
            let releasing = self.release_guard(lost);
            self.meanwhile(guards, releasing).await;
        }
    }

    pub(crate) async fn release_any(&self, guards: &mut Vec<HeldGuard>) {
        let at = usize::try_from(self.random.below(guards.len() as u64)).unwrap_or(0);
        let one = guards.swap_remove(at);
        let releasing = self.release_guard(one);
        self.meanwhile(guards, releasing).await;
    }

    pub(crate) async fn release_guard(&self, held_guard: HeldGuard) {
        if self.random.chance(150) {
            return held_guard.drop(self);
        }
        let dropped = self.random.chance(self.sim.config.drops_future);
        let polls = if dropped { self.random.between(1, 3) } else { u64::MAX };
        held_guard.release(self, polls).await;
    }
}

/// Waits for a loss that was not reported yet. Returns its guard.
async fn lost(guards: &[HeldGuard]) -> (usize, Loss) {
    let each = guards.iter().enumerate().filter(|(_, held_guard)| !held_guard.is_lost);
    let each: Vec<_> =
        each.map(|(at, held_guard)| Box::pin(async move { (at, held_guard.guard.lost().await) })).collect();
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
    wrap: impl FnOnce(G) -> AnyGuard,
) -> CallOutcome {
    match attempt {
        Ok(Attempt::Granted(guard)) => CallOutcome::Got(Box::new(wrap(guard))),
        Ok(Attempt::Taken(_)) => CallOutcome::NotAcquired(AcquireFailure::Taken),
        Err(error) => CallOutcome::NotAcquired(failure_of(&error)),
    }
}

pub(crate) fn got<G>(guard: Result<G, AcquireError>, wrap: impl FnOnce(G) -> AnyGuard) -> CallOutcome {
    guard.map_or_else(
        |error| CallOutcome::NotAcquired(failure_of(&error)),
        |guard| CallOutcome::Got(Box::new(wrap(guard))),
    )
}

pub(crate) fn failure_of(error: &AcquireError) -> AcquireFailure {
    match error {
        AcquireError::RetriesExhausted { .. } => AcquireFailure::Taken,
        AcquireError::TimedOut { .. } => AcquireFailure::TimedOut,
        AcquireError::LeaseTooShort { .. } => AcquireFailure::LeaseTooShort,
        AcquireError::Lost(_) => AcquireFailure::Lost,
        AcquireError::Unconfirmed(_) => AcquireFailure::Unconfirmed,
        AcquireError::Impossible(_) => AcquireFailure::Impossible,
        _ => AcquireFailure::Fault,
    }
}
