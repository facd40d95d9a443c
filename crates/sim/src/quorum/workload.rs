//! What tasks do with locks: acquire them with every method, hold, extend, re-enter, lose and release them, and drop guards
//! and futures.
//!
//! It does not check anything: it records events, which the checks evaluate.

use crate::any_guard::AnyGuard;
use crate::event::{GuardId, LeasePolicy, LockId};
use crate::quorum::config::Config;
use crate::quorum::event::{Event, TaskNo};
use crate::quorum::world::World;
use futures_util::future::{BoxFuture, Either, select, select_all};
use leasehold::error::{AcquireError, LostHold};
use leasehold::{Attempt, Client, Mutex, Owner, ReentrantMutex};
use leasehold_core::{Kind, Lock};
use leasehold_testkit::Random;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The most holds of one owner in a task.
const MAX_DEPTH: usize = 3;

/// A task.
pub(crate) struct Task {
    pub(crate) world: Arc<World>,
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    pub(crate) number: TaskNo,
    pub(crate) random: Random,
    /// The owner for which it acquires `ReentrantMutex`es.
    pub(crate) owner: Owner,
}

/// A guard that a task holds.
struct HeldGuard {
    id: GuardId,
    guard: Arc<AnyGuard>,
}

/// A handle of either kind.
enum Handle {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
}

impl Handle {
    async fn try_acquire(self) -> Result<Option<AnyGuard>, AcquireError> {
        Ok(match self {
            Self::Mutex(mutex) => {
                granted(mutex.try_acquire().await?).map(|guard| AnyGuard::Mutex(guard, None))
            }
            Self::Reentrant(mutex) => granted(mutex.try_acquire().await?).map(AnyGuard::Reentrant),
        })
    }

    async fn acquire(self) -> Result<Option<AnyGuard>, AcquireError> {
        Ok(Some(match self {
            Self::Mutex(mutex) => AnyGuard::Mutex(mutex.acquire().await?, None),
            Self::Reentrant(mutex) => AnyGuard::Reentrant(mutex.acquire().await?),
        }))
    }

    async fn acquire_timeout(self, limit: Duration) -> Result<Option<AnyGuard>, AcquireError> {
        Ok(Some(match self {
            Self::Mutex(mutex) => AnyGuard::Mutex(mutex.acquire_timeout(limit).await?, None),
            Self::Reentrant(mutex) => AnyGuard::Reentrant(mutex.acquire_timeout(limit).await?),
        }))
    }
}

fn granted<G>(attempt: Attempt<G>) -> Option<G> {
    match attempt {
        Attempt::Granted(guard) => Some(guard),
        Attempt::Taken(_) => None,
    }
}

impl Task {
    /// Uses locks until the end of the work, and then once more without a limit.
    pub(crate) async fn run(self) {
        self.world.record(&Event::TaskBegan(self.number));
        while self.world.now() < self.config.work_until {
            self.pause(self.config.idle).await;
            Box::pin(self.use_lock()).await;
        }
        for number in 0..self.world.locks.len() {
            Box::pin(self.use_at_last(LockId(u8::try_from(number).unwrap_or(0)))).await;
        }
        self.world.record(&Event::TaskEnded(self.number));
    }

    async fn use_at_last(&self, lock: LockId) {
        let Some((handle, lease)) = self.handle(lock, None) else { return };
        match handle.acquire().await {
            Ok(Some(guard)) => {
                let held = self.held(lock, guard, lease);
                self.pause(Duration::from_millis(50)).await;
                Box::pin(self.release(held)).await;
            }
            Ok(None) => {}
            Err(error) => self.world.record(&Event::TaskFailed(self.number, &error.to_string())),
        }
    }

    fn note(&self, lock: LockId, what: &str) {
        self.world.record(&Event::Note { task: self.number, what, lock });
    }

    async fn pause(&self, most: Duration) {
        let us = u64::try_from(most.as_micros()).unwrap_or(1);
        sleep(Duration::from_micros(self.random.below(us.max(1)))).await;
    }

    fn handle(&self, lock: LockId, lease: Option<Duration>) -> Option<(Handle, LeasePolicy)> {
        let Lock { kind, name } = self.world.locks.get(usize::from(lock.0))?.clone();
        let policy = lease.map_or(LeasePolicy::Renewed(self.config.watchdog), LeasePolicy::Given);
        let handle = if kind == Kind::Reentrant {
            let mutex = self.client.reentrant_mutex(name).ok()?.owned_by(&self.owner);
            Handle::Reentrant(match lease {
                Some(lease) => mutex.lease(lease),
                None => mutex,
            })
        } else {
            let mutex = self.client.mutex(name).ok()?;
            Handle::Mutex(match lease {
                Some(lease) => mutex.lease(lease),
                None => mutex,
            })
        };
        Some((handle, policy))
    }

    async fn use_lock(&self) {
        let at = self.random.below(self.world.locks.len() as u64);
        let lock = LockId(u8::try_from(at).unwrap_or(0));
        let Some(first) = self.acquire(lock).await else { return };
        let is_reentrant = self.world.locks[usize::from(lock.0)].kind == Kind::Reentrant;
        let mut guards = vec![first];
        for _ in 0..self.random.between(1, 4) {
            if is_reentrant && guards.len() < MAX_DEPTH && self.random.chance(400) {
                guards.extend(self.acquire(lock).await);
            } else {
                Box::pin(self.work(&mut guards)).await;
            }
            if guards.is_empty() {
                return;
            }
        }
        while !guards.is_empty() {
            let at = usize::try_from(self.random.below(guards.len() as u64)).unwrap_or(0);
            Box::pin(self.release(guards.swap_remove(at))).await;
        }
    }

    async fn acquire(&self, lock: LockId) -> Option<HeldGuard> {
        let lease = self.random.chance(300).then(|| Duration::from_millis(self.random.between(300, 6_000)));
        let (handle, policy) = self.handle(lock, lease)?;
        let limit = Duration::from_millis(self.random.between(1, 5_000));
        let acquiring: BoxFuture<'_, _> = match self.random.below(10) {
            0..2 => Box::pin(handle.try_acquire()),
            2..6 => Box::pin(handle.acquire_timeout(limit)),
            _ => Box::pin(handle.acquire()),
        };
        self.note(lock, "acquires");
        match self.maybe_dropped(acquiring).await {
            Some(Ok(Some(guard))) => return Some(self.held(lock, guard, policy)),
            Some(Ok(None)) => self.note(lock, "finds it taken"),
            Some(Err(error)) => self.note(lock, &error.to_string()),
            None => self.note(lock, "drops its acquire"),
        }
        None
    }

    fn held(&self, lock: LockId, guard: AnyGuard, lease: LeasePolicy) -> HeldGuard {
        let guard = Arc::new(guard);
        let id = self.world.acquired(self.number, lock, &guard, lease);
        HeldGuard { id, guard }
    }

    /// Awaits a future, or drops it before it ends.
    async fn maybe_dropped<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        if !self.random.chance(self.config.drops_future) {
            return Some(doing.await);
        }
        let after = *self.random.pick(&[3, 30, 1_000]);
        timeout(Duration::from_millis(self.random.below(after)), doing).await.ok()
    }

    /// Works under its guards for a while, or until one is lost.
    async fn work(&self, guards: &mut Vec<HeldGuard>) {
        let longest = if self.random.chance(self.config.long_holds) { 20_000 } else { 600 };
        let lasts = Duration::from_millis(self.random.below(longest));
        let left = self.config.work_until.since(self.world.now());
        let at = usize::try_from(self.random.below(guards.len() as u64)).unwrap_or(0);
        let guard = guards[at].guard.clone();
        let work = async {
            sleep(lasts.min(left)).await;
            // A failed extend leaves the hold as it was, or a loss is reported.
            match self.random.below(10) {
                0 => _ = guard.extend().await,
                1 => _ = guard.extend_to(Duration::from_millis(self.random.between(1, 4_000))).await,
                _ => {}
            }
        };
        let lost = match select(pin!(lost(guards)), pin!(work)).await {
            Either::Left((lost, _)) => Some(lost),
            Either::Right(_) => None,
        };
        drop(guard);
        if let Some((at, loss)) = lost {
            let guard = guards.swap_remove(at);
            self.world.record(&Event::Lost { guard: guard.id, reason: &loss.reason });
            Box::pin(self.release(guard)).await;
        }
    }

    async fn release(&self, held: HeldGuard) {
        self.world.releasing(held.id);
        let Some(guard) = Arc::into_inner(held.guard) else {
            return self.world.fail(format!("{} is still shared when it is released", held.id));
        };
        if self.random.chance(200) {
            return drop(guard);
        }
        if let Some(Ok(_)) = self.maybe_dropped(Box::pin(guard.release())).await {
            self.world.record(&Event::Released { guard: held.id });
        }
    }
}

/// Waits for the loss of one of these guards.
async fn lost(guards: &[HeldGuard]) -> (usize, LostHold) {
    let each = guards.iter().enumerate();
    let each = each.map(|(at, held)| Box::pin(async move { (at, held.guard.lost().await) }));
    select_all(each).await.0
}
