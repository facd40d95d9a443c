//! The workload on locks with several holders: permits, reads and writes, conversions, resizes, arrivals at latches
//! and barriers; some of it dropped half-way.
//!
//! It deliberately judges nothing: it records what it does, and the checks do the rest.

use crate::any_guard::AnyGuard;
use crate::event::{AcquireMethod, LeasePolicy, LockId, OwnerId, TaskEvent};
use crate::workload::guards::HeldGuard;
use crate::workload::runner::TaskRunner;
use crate::workload::task::{AcquireCall, CallOutcome, attempt, got, miss, polling};
use futures_util::future::BoxFuture;
use leasehold::core::{Kind, LockMode, LockName};
use leasehold::{AcquireError, ConversionError, Owner, RwLock, Semaphore};
use std::sync::Arc;
use std::time::Duration;

/// The most holds on one lock that a task has at once.
const MOST: usize = 3;

impl TaskRunner {
    /// Uses a lock that several have side by side, in whatever method it can be used.
    pub(crate) async fn use_shared(&self, lock: LockId) {
        match self.sim.kind(lock) {
            Kind::Latch => self.use_latch(lock).await,
            Kind::Barrier => self.use_barrier(lock).await,
            Kind::RwLock => {
                let owner = self.choose_owner();
                if let Some(first) = self.read_or_write(lock, owner.as_ref(), false).await {
                    self.hold_parts(lock, first).await;
                }
            }
            _ => {
                if let Some(first) = self.take_permits(lock, false).await {
                    self.hold_parts(lock, first).await;
                }
            }
        }
    }

    fn name_of(&self, lock: LockId) -> Option<LockName> {
        Some(self.sim.locks.get(usize::from(lock.0))?.name.clone())
    }

    fn number(&self, most: u32) -> u32 {
        u32::try_from(self.chance.between(1, most.into())).unwrap_or(1)
    }

    /// Holds a lock, acquires more, converts guards, and releases all in random order.
    async fn hold_parts(&self, lock: LockId, first: HeldGuard) {
        let owner = first.kept.owner().cloned();
        let mut had = vec![first];
        for _ in 0..self.chance.below(5) {
            if had.is_empty() {
                return;
            }
            match self.chance.below(10) {
                0..2 if had.len() < MOST => {
                    let more = self.more(lock, owner.as_ref());
                    let more = self.meanwhile(&mut had, more).await;
                    had.extend(more);
                }
                2..5 => self.change(lock, &mut had).await,
                5 if had.len() > 1 => self.release_any(&mut had).await,
                _ => self.work(&mut had).await,
            }
            self.release_lost(&mut had).await;
        }
        self.release_all(had).await;
    }

    /// Takes more of a lock of which it has a part.
    async fn more(&self, lock: LockId, owner: Option<&Owner>) -> Option<HeldGuard> {
        match owner {
            Some(owner) => self.read_or_write(lock, Some(owner), true).await,
            None => self.take_permits(lock, true).await,
        }
    }

    /// Makes a read into a write, or a write into a read; or changes how many permits there are.
    async fn change(&self, lock: LockId, had: &mut Vec<HeldGuard>) {
        if self.sim.kind(lock) == Kind::Semaphore {
            let resizing = self.resize(lock);
            return self.meanwhile(had, resizing).await;
        }
        let can = |held_guard: &HeldGuard| {
            matches!(&*held_guard.kept, AnyGuard::Upgradable(_) | AnyGuard::Write(_)) && !held_guard.is_lost
        };
        let Some(at) = had.iter().position(can) else { return };
        let held_guard = had.swap_remove(at);
        let shifting = self.shift(lock, held_guard);
        let shifted = self.meanwhile(had, shifting).await;
        had.extend(shifted);
    }
}

/// Semaphores.
impl TaskRunner {
    fn semaphore(&self, lock: LockId) -> Option<Semaphore> {
        let made = self.client.semaphore(self.name_of(lock)?, self.sim.limits.permits);
        self.sim.expect("workload", made)
    }

    /// Acquires some permits. With others in hand it waits with a limit, since it may wait for itself.
    async fn take_permits(&self, lock: LockId, has_some: bool) -> Option<HeldGuard> {
        let mut semaphore = self.semaphore(lock)?;
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            semaphore = semaphore.lease(lease);
        }
        // Now and then more than there are.
        let most = self.sim.limits.permits;
        let count = self.number(if self.chance.chance(50) { most + 2 } else { most });
        let (method, limit) = self.draw_limited_method(has_some);
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(semaphore.try_acquire_many(count).await, AnyGuard::Permit) })
            }
            AcquireMethod::Wait(_) => {
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
        self.acquire_locks(&[lock], AcquireCall { method, acquiring }, None, lease_policy, mode).await
    }

    async fn resize(&self, lock: LockId) {
        let Some(semaphore) = self.semaphore(lock) else { return };
        let permits = self.number(self.sim.limits.permits + 2);
        // The outcome does not matter: other tasks resize too, and the store shows the result.
        drop(self.unless_dropped(Box::pin(async move { semaphore.resize(permits).await })).await);
    }

    /// A random acquire method. With a limit if waiting without one could deadlock.
    fn draw_limited_method(&self, is_limited: bool) -> (AcquireMethod, Duration) {
        let (method, limit) = self.draw_method();
        (
            if is_limited && method == AcquireMethod::WaitForEver {
                AcquireMethod::Wait(limit)
            } else {
                method
            },
            limit,
        )
    }
}

/// Readers and writers.
impl TaskRunner {
    /// Reads or writes. An owner with a hold only reads.
    async fn read_or_write(&self, lock: LockId, owner: Option<&Owner>, again: bool) -> Option<HeldGuard> {
        let name = self.name_of(lock)?;
        let mut rwlock = self.sim.expect("workload", self.client.rwlock(name))?;
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            rwlock = rwlock.lease(lease);
        }
        let mut scope = None;
        if let Some(owner) = owner {
            if self.chance.chance(500) {
                rwlock = rwlock.owned_by(owner);
            } else {
                scope = Some(owner.clone());
            }
        }
        let known = owner.cloned().or_else(Owner::current).map(|owner| self.sim.owner_id(&owner));
        let mode = match self.chance.below(20) {
            // It would wait for itself, which is refused.
            0 if again => LockMode::Write,
            _ if again => LockMode::Read,
            0..9 => LockMode::Read,
            9..14 => LockMode::Upgradable,
            _ => LockMode::Write,
        };
        let call = self.part_call(rwlock, mode, scope);
        self.acquire_locks(&[lock], call, known, lease_policy, mode).await
    }

    fn part_call(&self, rwlock: RwLock, mode: LockMode, scope: Option<Owner>) -> AcquireCall {
        let (method, limit) = self.draw_method();
        // Whatever such a guard is made into would be polled for as well.
        let polls = matches!(method, AcquireMethod::Poll(_)) && mode == LockMode::Read;
        let method = if matches!(method, AcquireMethod::Poll(_)) && !polls {
            AcquireMethod::Wait(limit)
        } else {
            method
        };
        let rwlock = if polls { rwlock.retry(polling()).max_wait(limit) } else { rwlock };
        let acquiring: BoxFuture<'static, CallOutcome> = Box::pin(async move {
            match (mode, method) {
                (LockMode::Read, AcquireMethod::Try) => attempt(rwlock.try_read().await, AnyGuard::Read),
                (LockMode::Read, AcquireMethod::Wait(_)) => {
                    got(rwlock.read_timeout(limit).await, AnyGuard::Read)
                }
                (LockMode::Read, _) => got(rwlock.read().await, AnyGuard::Read),
                (LockMode::Upgradable, AcquireMethod::Try) => {
                    attempt(rwlock.try_upgradable_read().await, AnyGuard::Upgradable)
                }
                (LockMode::Upgradable, AcquireMethod::Wait(_)) => {
                    got(rwlock.upgradable_read_timeout(limit).await, AnyGuard::Upgradable)
                }
                (LockMode::Upgradable, _) => got(rwlock.upgradable_read().await, AnyGuard::Upgradable),
                (_, AcquireMethod::Try) => attempt(rwlock.try_write().await, AnyGuard::Write),
                (_, AcquireMethod::Wait(_)) => got(rwlock.write_timeout(limit).await, AnyGuard::Write),
                _ => got(rwlock.write().await, AnyGuard::Write),
            }
        });
        match scope {
            Some(owner) => AcquireCall { method, acquiring: Box::pin(owner.scope(acquiring)) },
            None => AcquireCall { method, acquiring },
        }
    }

    /// Makes an upgradable read into a write, or a write into a read.
    async fn shift(&self, lock: LockId, held_guard: HeldGuard) -> Option<HeldGuard> {
        held_guard.note(self, TaskEvent::Converting);
        let HeldGuard { kept, guard_ids, lease_policy, under, .. } = held_guard;
        let (_, guard_id) = *guard_ids.first()?;
        let Some(kept) = Arc::into_inner(kept) else {
            self.sim.fail("workload", "the guard is still shared".into());
            return None;
        };
        let owner = kept.owner().map(|owner| self.sim.owner_id(owner));
        let gone = under.into_iter().chain([guard_id]);
        match kept {
            AnyGuard::Upgradable(guard) => {
                let (method, limit) = self.draw_limited_method(false);
                let method = if matches!(method, AcquireMethod::Try | AcquireMethod::Poll(_)) {
                    AcquireMethod::Wait(limit)
                } else {
                    method
                };
                let upgrading = async move {
                    match method {
                        AcquireMethod::Wait(_) => guard.upgrade_timeout(limit).await,
                        _ => guard.upgrade().await,
                    }
                };
                let shifting =
                    Box::pin(async move { shifted(upgrading.await, AnyGuard::Write, AnyGuard::Upgradable) });
                let shift = Shift { lock, method, owner, lease_policy, mode: LockMode::Upgrade };
                let mut held_guard = self.follow(shift, gone.collect(), false, shifting).await?;
                if held_guard.mode == LockMode::Upgrade {
                    held_guard.under = Some(guard_id);
                }
                Some(held_guard)
            }
            AnyGuard::Write(guard) => {
                // It waits no longer than the write is believed.
                let method = AcquireMethod::Wait(guard.remaining());
                let downgrading =
                    async move { shifted(guard.downgrade().await, AnyGuard::Read, AnyGuard::Write) };
                let shift = Shift { lock, method, owner, lease_policy, mode: LockMode::Read };
                self.follow(shift, gone.collect(), true, Box::pin(downgrading)).await
            }
            _ => None,
        }
    }

    /// Records a conversion. The source guard ends on success if it is `spent`, otherwise on failure only.
    async fn follow(
        &self,
        shift: Shift,
        gone: Vec<crate::event::GuardId>,
        spent: bool,
        shifting: BoxFuture<'static, Shifted>,
    ) -> Option<HeldGuard> {
        let Shift { lock, method, owner, lease_policy, mode } = shift;
        self.note(lock, TaskEvent::Acquiring(method, owner));
        let lets = || {
            for guard_id in &gone {
                self.note(lock, TaskEvent::Releasing(*guard_id, crate::event::ReleaseMethod::Drop));
            }
        };
        match self.unless_dropped(shifting).await {
            Some(Ok(kept)) => {
                let held_guard = HeldGuard::new(self, kept, lease_policy, mode);
                if spent {
                    lets();
                }
                Some(held_guard)
            }
            Some(Err(failed)) => {
                let (kept, error) = *failed;
                self.note(lock, TaskEvent::NotAcquired(miss(&error)));
                // A failed conversion returns the old guard, or what is left of it. It is dropped.
                drop(kept);
                lets();
                None
            }
            None => {
                self.note(lock, TaskEvent::Cancelled);
                lets();
                None
            }
        }
    }
}

/// A conversion of one guard into another.
struct Shift {
    lock: LockId,
    method: AcquireMethod,
    owner: Option<OwnerId>,
    lease_policy: LeasePolicy,
    mode: LockMode,
}

/// The new guard, or the old one with the error.
type Shifted = Result<AnyGuard, Box<(AnyGuard, AcquireError)>>;

fn shifted<A, B: std::fmt::Debug>(
    shifted: Result<A, ConversionError<B>>,
    new: impl FnOnce(A) -> AnyGuard,
    old: impl FnOnce(B) -> AnyGuard,
) -> Shifted {
    shifted.map(new).map_err(|not| Box::new((old(not.guard), not.error)))
}

/// Latches and barriers.
impl TaskRunner {
    async fn use_latch(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.limits.arrivals;
        let Some(latch) = self.sim.expect("workload", self.client.latch(name, of)) else { return };
        let latch = latch.arrival_ttl(Duration::from_millis(self.chance.between(4_000, 30_000)));
        if self.chance.chance(400) {
            let count = self.number(2);
            let arriving = Box::pin(async move { latch.arrive_many(count).await });
            return self.come(lock, AcquireMethod::Try, arriving).await;
        }
        let (_, limit) = self.draw_method();
        self.come(lock, AcquireMethod::Wait(limit), Box::pin(async move { latch.wait_timeout(limit).await }))
            .await;
    }

    /// Waits with a limit, since enough parties may never come.
    async fn use_barrier(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.limits.parties;
        let Some(barrier) = self.sim.expect("workload", self.client.barrier(name, of)) else { return };
        let (_, limit) = self.draw_method();
        let meeting = async move { barrier.wait_timeout(limit).await.map(drop) };
        self.come(lock, AcquireMethod::Wait(limit), Box::pin(meeting)).await;
    }

    /// Goes where nothing is to be given back.
    async fn come(
        &self,
        lock: LockId,
        method: AcquireMethod,
        coming: BoxFuture<'static, Result<(), AcquireError>>,
    ) {
        self.note(lock, TaskEvent::Acquiring(method, None));
        self.note(
            lock,
            match self.unless_dropped(coming).await {
                Some(Ok(())) => TaskEvent::Admitted,
                Some(Err(error)) => TaskEvent::NotAcquired(miss(&error)),
                None => TaskEvent::Cancelled,
            },
        );
    }
}
