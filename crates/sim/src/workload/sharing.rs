//! The workload on locks with several holders: permits, reads and writes, conversions, resizes, arrivals at latches
//! and barriers. Some futures are dropped before they end.
//!
//! It does not check anything: it records events, which the checks evaluate.

use crate::any_guard::AnyGuard;
use crate::event::{AcquireMethod, LockId, OwnerId, TaskEvent};
use crate::workload::guards::{HeldGuard, HoldTerms};
use crate::workload::runner::TaskRunner;
use crate::workload::task::{AcquireCall, CallOutcome, attempt, failure_of, got, polling};
use futures_util::future::BoxFuture;
use leasehold::core::{Kind, LockMode, LockName};
use leasehold::error::{AcquireError, ConversionError};
use leasehold::{Owner, RwLock, Semaphore};
use std::sync::Arc;
use std::time::Duration;

/// The most guards of one lock that a task holds at a time.
const MAX_GUARDS: usize = 3;

/// The longest pause after an arrival at a latch.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(40);

impl TaskRunner {
    /// Uses a lock with several holders, by one of its methods.
    pub(crate) async fn use_shared(&self, lock: LockId) {
        match self.sim.kind(lock) {
            Kind::Latch => self.use_latch(lock).await,
            Kind::Barrier => self.use_barrier(lock).await,
            Kind::RwLock => {
                let owner = self.choose_owner();
                if let Some(first) = self.read_or_write(lock, owner.as_ref(), false).await {
                    self.hold_guards(lock, first).await;
                }
            }
            _ => {
                if let Some(first) = self.take_permits(lock, false).await {
                    self.hold_guards(lock, first).await;
                }
            }
        }
    }

    fn name_of(&self, lock: LockId) -> Option<LockName> {
        Some(self.sim.locks.get(usize::from(lock.0))?.name.clone())
    }

    fn number(&self, most: u32) -> u32 {
        u32::try_from(self.random.between(1, most.into())).unwrap_or(1)
    }

    /// Holds a lock, acquires more, converts guards, and releases all in random order.
    async fn hold_guards(&self, lock: LockId, first: HeldGuard) {
        let owner = first.guard.owner().cloned();
        let mut guards = vec![first];
        for _ in 0..self.random.below(5) {
            if guards.is_empty() {
                return;
            }
            match self.random.below(10) {
                0..2 if guards.len() < MAX_GUARDS => {
                    let more = self.more(lock, owner.as_ref());
                    let more = self.meanwhile(&mut guards, more).await;
                    guards.extend(more);
                }
                2..5 => self.change(lock, &mut guards).await,
                5 if guards.len() > 1 => self.release_any(&mut guards).await,
                _ => self.work(&mut guards).await,
            }
            self.release_lost(&mut guards).await;
        }
        self.release_all(guards).await;
    }

    /// Acquires a further hold on a lock.
    async fn more(&self, lock: LockId, owner: Option<&Owner>) -> Option<HeldGuard> {
        match owner {
            Some(owner) => self.read_or_write(lock, Some(owner), true).await,
            None => self.take_permits(lock, true).await,
        }
    }

    /// Converts a guard, or resizes a Semaphore.
    async fn change(&self, lock: LockId, guards: &mut Vec<HeldGuard>) {
        if self.sim.kind(lock) == Kind::Semaphore {
            let resizing = self.resize(lock);
            return self.meanwhile(guards, resizing).await;
        }
        let can = |held_guard: &HeldGuard| {
            matches!(&*held_guard.guard, AnyGuard::Upgradable(_) | AnyGuard::Write(_)) && !held_guard.is_lost
        };
        let Some(at) = guards.iter().position(can) else { return };
        let held_guard = guards.swap_remove(at);
        let converting = self.convert(lock, held_guard);
        let converted = self.meanwhile(guards, converting).await;
        guards.extend(converted);
    }
}

/// Semaphores.
impl TaskRunner {
    fn semaphore(&self, lock: LockId) -> Option<Semaphore> {
        let made = self.client.semaphore(self.name_of(lock)?, self.sim.limits.permits);
        self.sim.expect("workload", made)
    }

    /// Acquires some permits. If the task already holds some, it waits with a limit, since it may wait for itself.
    async fn take_permits(&self, lock: LockId, has_some: bool) -> Option<HeldGuard> {
        let mut semaphore = self.semaphore(lock)?;
        let (lease, terms) = self.draw_terms();
        semaphore = semaphore.lock_delay(self.requested_delay(terms));
        if let Some(lease) = lease {
            semaphore = semaphore.lease(lease);
        }
        // Sometimes more than there are.
        let most = self.sim.limits.permits;
        let count = self.number(if self.random.chance(50) { most + 2 } else { most });
        let (method, limit) = self.draw_limited_method(has_some);
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(semaphore.try_acquire_many(count).await, AnyGuard::Permit) })
            }
            AcquireMethod::WaitTimeout(_) => {
                Box::pin(
                    async move { got(semaphore.acquire_many_timeout(count, limit).await, AnyGuard::Permit) },
                )
            }
            AcquireMethod::Poll(_) => {
                let polling = semaphore.retry(polling()).max_wait(limit);
                Box::pin(async move { got(polling.acquire_many(count).await, AnyGuard::Permit) })
            }
            _ => Box::pin(async move { got(semaphore.acquire_many(count).await, AnyGuard::Permit) }),
        };
        let mode = LockMode::Permits { count, total: most };
        self.acquire_locks(&[lock], AcquireCall { method, acquiring }, None, terms, mode).await
    }

    async fn resize(&self, lock: LockId) {
        let Some(semaphore) = self.semaphore(lock) else { return };
        let permits = self.number(self.sim.limits.permits + 2);
        // The outcome does not matter: other tasks resize too, and the store shows the result.
        drop(self.maybe_dropped(Box::pin(async move { semaphore.resize(permits).await })).await);
    }

    /// A random acquire method. With a limit if waiting without one could deadlock.
    fn draw_limited_method(&self, is_limited: bool) -> (AcquireMethod, Duration) {
        let (method, limit) = self.draw_method();
        (
            if is_limited && method == AcquireMethod::Wait {
                AcquireMethod::WaitTimeout(limit)
            } else {
                method
            },
            limit,
        )
    }
}

/// Readers and writers.
impl TaskRunner {
    /// Reads or writes. An owner with a hold mostly reads.
    async fn read_or_write(&self, lock: LockId, owner: Option<&Owner>, again: bool) -> Option<HeldGuard> {
        let name = self.name_of(lock)?;
        let mut rwlock = self.sim.expect("workload", self.client.rwlock(name))?;
        let (lease, terms) = self.draw_terms();
        rwlock = rwlock.lock_delay(self.requested_delay(terms));
        if let Some(lease) = lease {
            rwlock = rwlock.lease(lease);
        }
        let mut scope = None;
        if let Some(owner) = owner {
            if self.random.chance(500) {
                rwlock = rwlock.owned_by(owner);
            } else {
                scope = Some(owner.clone());
            }
        }
        let known = owner.cloned().or_else(Owner::current).map(|owner| self.sim.owner_id(&owner));
        let mode = match self.random.below(20) {
            // Granted at once if the owner writes. Otherwise it would wait for itself, so the store refuses it.
            0..7 if again => LockMode::Write,
            7 if again => LockMode::Upgradable,
            _ if again => LockMode::Read,
            0..9 => LockMode::Read,
            9..14 => LockMode::Upgradable,
            _ => LockMode::Write,
        };
        let call = self.rwlock_call(rwlock, mode, scope);
        self.acquire_locks(&[lock], call, known, terms, mode).await
    }

    fn rwlock_call(&self, rwlock: RwLock, mode: LockMode, scope: Option<Owner>) -> AcquireCall {
        let (method, limit) = self.draw_method();
        // A conversion of such a guard would poll as well.
        let polls = matches!(method, AcquireMethod::Poll(_)) && mode == LockMode::Read;
        let method = if matches!(method, AcquireMethod::Poll(_)) && !polls {
            AcquireMethod::WaitTimeout(limit)
        } else {
            method
        };
        let rwlock = if polls { rwlock.retry(polling()).max_wait(limit) } else { rwlock };
        let acquiring: BoxFuture<'static, CallOutcome> = Box::pin(async move {
            match (mode, method) {
                (LockMode::Read, AcquireMethod::Try) => attempt(rwlock.try_read().await, AnyGuard::Read),
                (LockMode::Read, AcquireMethod::WaitTimeout(_)) => {
                    got(rwlock.read_timeout(limit).await, AnyGuard::Read)
                }
                (LockMode::Read, _) => got(rwlock.read().await, AnyGuard::Read),
                (LockMode::Upgradable, AcquireMethod::Try) => {
                    attempt(rwlock.try_upgradable_read().await, AnyGuard::Upgradable)
                }
                (LockMode::Upgradable, AcquireMethod::WaitTimeout(_)) => {
                    got(rwlock.upgradable_read_timeout(limit).await, AnyGuard::Upgradable)
                }
                (LockMode::Upgradable, _) => got(rwlock.upgradable_read().await, AnyGuard::Upgradable),
                (_, AcquireMethod::Try) => attempt(rwlock.try_write().await, AnyGuard::Write),
                (_, AcquireMethod::WaitTimeout(_)) => got(rwlock.write_timeout(limit).await, AnyGuard::Write),
                _ => got(rwlock.write().await, AnyGuard::Write),
            }
        });
        match scope {
            Some(owner) => AcquireCall { method, acquiring: Box::pin(owner.scope(acquiring)) },
            None => AcquireCall { method, acquiring },
        }
    }

    /// Converts an upgradable read into a write, or a write into a read.
    async fn convert(&self, lock: LockId, held_guard: HeldGuard) -> Option<HeldGuard> {
        held_guard.record(self, TaskEvent::Converting);
        let HeldGuard { guard, guard_ids, terms, source, .. } = held_guard;
        let (_, guard_id) = *guard_ids.first()?;
        let Some(guard) = Arc::into_inner(guard) else {
            self.sim.fail("workload", "the guard is still shared".into());
            return None;
        };
        let owner = guard.owner().map(|owner| self.sim.owner_id(owner));
        let sources = source.into_iter().chain([guard_id]);
        match guard {
            AnyGuard::Upgradable(guard) => {
                let (method, limit) = self.draw_limited_method(false);
                let method = if matches!(method, AcquireMethod::Try | AcquireMethod::Poll(_)) {
                    AcquireMethod::WaitTimeout(limit)
                } else {
                    method
                };
                let upgrading = async move {
                    match method {
                        AcquireMethod::WaitTimeout(_) => guard.upgrade_timeout(limit).await,
                        _ => guard.upgrade().await,
                    }
                };
                let converting =
                    Box::pin(
                        async move { converted(upgrading.await, AnyGuard::Write, AnyGuard::Upgradable) },
                    );
                let convert = Conversion { lock, method, owner, terms, mode: LockMode::Upgrade };
                let mut held_guard = self.follow(convert, sources.collect(), false, converting).await?;
                if held_guard.mode == LockMode::Upgrade {
                    held_guard.source = Some(guard_id);
                }
                Some(held_guard)
            }
            AnyGuard::Write(guard) => {
                // It waits no longer than the write is valid.
                let method = AcquireMethod::WaitTimeout(guard.remaining());
                let downgrading =
                    async move { converted(guard.downgrade().await, AnyGuard::Read, AnyGuard::Write) };
                let convert = Conversion { lock, method, owner, terms, mode: LockMode::Read };
                self.follow(convert, sources.collect(), true, Box::pin(downgrading)).await
            }
            _ => None,
        }
    }

    /// Records a conversion. If the source is consumed, its guard ends on success; it ends on every failure.
    async fn follow(
        &self,
        convert: Conversion,
        sources: Vec<crate::event::GuardId>,
        source_is_consumed: bool,
        converting: BoxFuture<'static, Converted>,
    ) -> Option<HeldGuard> {
        let Conversion { lock, method, owner, terms, mode } = convert;
        self.record(lock, TaskEvent::Acquiring(method, owner));
        let release_source = || {
            for guard_id in &sources {
                self.record(lock, TaskEvent::Releasing(*guard_id, crate::event::ReleaseMethod::Drop));
            }
        };
        match self.maybe_dropped(converting).await {
            Some(Ok(guard)) => {
                let held_guard = HeldGuard::new(self, guard, terms, mode);
                if source_is_consumed {
                    release_source();
                }
                Some(held_guard)
            }
            Some(Err(failed)) => {
                let (guard, error) = *failed;
                self.record(lock, TaskEvent::NotAcquired(failure_of(&error)));
                // A failed conversion returns the old guard, or what is left of it. It is dropped.
                drop(guard);
                release_source();
                None
            }
            None => {
                self.record(lock, TaskEvent::Cancelled);
                release_source();
                None
            }
        }
    }
}

/// A conversion of one guard into another.
struct Conversion {
    lock: LockId,
    method: AcquireMethod,
    owner: Option<OwnerId>,
    terms: HoldTerms,
    mode: LockMode,
}

/// The new guard, or the old one with the error.
type Converted = Result<AnyGuard, Box<(AnyGuard, AcquireError)>>;

fn converted<A, B: std::fmt::Debug>(
    converted: Result<A, ConversionError<B>>,
    new: impl FnOnce(A) -> AnyGuard,
    old: impl FnOnce(B) -> AnyGuard,
) -> Converted {
    converted.map(new).map_err(|not| Box::new((old(not.guard), not.error)))
}

/// Latches and barriers.
impl TaskRunner {
    async fn use_latch(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.limits.arrivals;
        let Some(latch) = self.sim.expect("workload", self.client.latch(name, of)) else { return };
        let latch = latch.arrival_ttl(Duration::from_millis(self.random.between(4_000, 30_000)));
        if self.random.chance(400) {
            let count = self.number(2);
            let arriving = Box::pin(async move { latch.arrive_many(count).await });
            self.pass(lock, AcquireMethod::Try, arriving).await;
            // Each operation on a latch reads all arrivals: without a pause a run takes minutes.
            return self.pause(ARRIVAL_PAUSE).await;
        }
        let (_, limit) = self.draw_method();
        self.pass(
            lock,
            AcquireMethod::WaitTimeout(limit),
            Box::pin(async move { latch.wait_timeout(limit).await }),
        )
        .await;
    }

    /// Waits with a limit, since the other parties may never arrive.
    async fn use_barrier(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.limits.parties;
        let Some(barrier) = self.sim.expect("workload", self.client.barrier(name, of)) else { return };
        let (_, limit) = self.draw_method();
        let future = async move { barrier.wait_timeout(limit).await.map(drop) };
        self.pass(lock, AcquireMethod::WaitTimeout(limit), Box::pin(future)).await;
    }

    /// Arrives at or waits for a Latch or a Barrier, which gives no guard.
    async fn pass(
        &self,
        lock: LockId,
        method: AcquireMethod,
        future: BoxFuture<'static, Result<(), AcquireError>>,
    ) {
        self.record(lock, TaskEvent::Acquiring(method, None));
        self.record(
            lock,
            match self.maybe_dropped(future).await {
                Some(Ok(())) => TaskEvent::Admitted,
                Some(Err(error)) => TaskEvent::NotAcquired(failure_of(&error)),
                None => TaskEvent::Cancelled,
            },
        );
    }
}
