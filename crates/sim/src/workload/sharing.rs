//! What a task does with locks that several have side by side: takes permits, reads and writes, makes the one into the
//! other, changes how many permits there are, arrives at latches and barriers, and drops everything half-way.
//!
//! It deliberately judges nothing: it says what it does, and the checks do the rest.

use crate::event::{Keeping, LockId, OwnerId, TaskEvent, Way};
use crate::workload::guards::{Having, Kept};
use crate::workload::task::{Quest, Sought, User, attempt, got, miss, polling};
use futures_util::future::BoxFuture;
use leasehold::core::{Kind, LockName, Portion};
use leasehold::{AcquireError, NotShifted, Owner, RwLock, Semaphore};
use std::sync::Arc;
use std::time::Duration;

/// How many parts of one lock a task has at most.
const MOST: usize = 3;

impl User {
    /// Uses a lock that several have side by side, in whatever way it can be used.
    pub(crate) async fn share(&self, lock: LockId) {
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

    /// Has parts of a lock, takes more of them, makes one into another, and gives all back in any order.
    async fn hold_parts(&self, lock: LockId, first: Having) {
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
                5 if had.len() > 1 => self.let_one_go(&mut had).await,
                _ => self.work(&mut had).await,
            }
            self.face_losses(&mut had).await;
        }
        self.let_all_go(had).await;
    }

    /// Takes more of a lock of which it has a part.
    async fn more(&self, lock: LockId, owner: Option<&Owner>) -> Option<Having> {
        match owner {
            Some(owner) => self.read_or_write(lock, Some(owner), true).await,
            None => self.take_permits(lock, true).await,
        }
    }

    /// Makes a read into a write, or a write into a read; or changes how many permits there are.
    async fn change(&self, lock: LockId, had: &mut Vec<Having>) {
        if self.sim.kind(lock) == Kind::Semaphore {
            let resizing = self.resize(lock);
            return self.meanwhile(had, resizing).await;
        }
        let can = |having: &Having| {
            matches!(&*having.kept, Kept::Upgradable(_) | Kept::Write(_)) && !having.is_lost
        };
        let Some(at) = had.iter().position(can) else { return };
        let having = had.swap_remove(at);
        let shifting = self.shift(lock, having);
        let shifted = self.meanwhile(had, shifting).await;
        had.extend(shifted);
    }
}

/// Semaphores.
impl User {
    fn semaphore(&self, lock: LockId) -> Option<Semaphore> {
        let made = self.client.semaphore(self.name_of(lock)?, self.sim.numbers.permits);
        self.sim.expect("load", made)
    }

    /// Takes some permits. Who has others waits with a limit: what he waits for may be his own.
    async fn take_permits(&self, lock: LockId, has_some: bool) -> Option<Having> {
        let mut semaphore = self.semaphore(lock)?;
        let (lease, keeping) = self.keeping();
        if let Some(lease) = lease {
            semaphore = semaphore.lease(lease);
        }
        // Now and then more than there are.
        let most = self.sim.numbers.permits;
        let count = self.number(if self.chance.chance(50) { most + 2 } else { most });
        let (way, limit) = self.way_of(has_some);
        let seeking: BoxFuture<'static, Sought> = match way {
            Way::Try => {
                Box::pin(async move { attempt(semaphore.try_acquire_many(count).await, Kept::Permit) })
            }
            Way::Wait(_) => {
                Box::pin(async move { got(semaphore.acquire_many_timeout(count, limit).await, Kept::Permit) })
            }
            Way::Poll(_) => {
                let polling = semaphore.retry(polling()).wait(limit);
                Box::pin(async move { got(polling.acquire_many(count).await, Kept::Permit) })
            }
            _ => Box::pin(async move { got(semaphore.acquire_many(count).await, Kept::Permit) }),
        };
        let portion = Portion::Permits { count, of: most };
        self.seek(&[lock], Quest { way, seeking }, None, keeping, portion).await
    }

    async fn resize(&self, lock: LockId) {
        let Some(semaphore) = self.semaphore(lock) else { return };
        let permits = self.number(self.sim.numbers.permits + 2);
        // Whatever comes of it: others may have changed it meanwhile, and the store shows what it is.
        drop(self.unless_dropped(Box::pin(async move { semaphore.resize(permits).await })).await);
    }

    /// A way to seek a part; with a limit, where one must not wait for ever.
    fn way_of(&self, is_limited: bool) -> (Way, Duration) {
        let (way, limit) = self.way();
        (if is_limited && way == Way::WaitForEver { Way::Wait(limit) } else { way }, limit)
    }
}

/// Readers and writers.
impl User {
    /// Reads or writes, for an owner who may have a part already: then he only reads.
    async fn read_or_write(&self, lock: LockId, owner: Option<&Owner>, again: bool) -> Option<Having> {
        let name = self.name_of(lock)?;
        let mut rwlock = self.sim.expect("load", self.client.rwlock(name))?;
        let (lease, keeping) = self.keeping();
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
        let portion = match self.chance.below(20) {
            // He would wait for himself, and is told so.
            0 if again => Portion::Write,
            _ if again => Portion::Read,
            0..9 => Portion::Read,
            9..14 => Portion::Upgradable,
            _ => Portion::Write,
        };
        let quest = self.quest_of_part(rwlock, portion, scope);
        self.seek(&[lock], quest, known, keeping, portion).await
    }

    fn quest_of_part(&self, rwlock: RwLock, portion: Portion, scope: Option<Owner>) -> Quest {
        let (way, limit) = self.way();
        // Whatever such a guard is made into would be polled for as well.
        let polls = matches!(way, Way::Poll(_)) && portion == Portion::Read;
        let way = if matches!(way, Way::Poll(_)) && !polls { Way::Wait(limit) } else { way };
        let rwlock = if polls { rwlock.retry(polling()).wait(limit) } else { rwlock };
        let seeking: BoxFuture<'static, Sought> = Box::pin(async move {
            match (portion, way) {
                (Portion::Read, Way::Try) => attempt(rwlock.try_read().await, Kept::Read),
                (Portion::Read, Way::Wait(_)) => got(rwlock.read_timeout(limit).await, Kept::Read),
                (Portion::Read, _) => got(rwlock.read().await, Kept::Read),
                (Portion::Upgradable, Way::Try) => {
                    attempt(rwlock.try_upgradable_read().await, Kept::Upgradable)
                }
                (Portion::Upgradable, Way::Wait(_)) => {
                    got(rwlock.upgradable_read_timeout(limit).await, Kept::Upgradable)
                }
                (Portion::Upgradable, _) => got(rwlock.upgradable_read().await, Kept::Upgradable),
                (_, Way::Try) => attempt(rwlock.try_write().await, Kept::Write),
                (_, Way::Wait(_)) => got(rwlock.write_timeout(limit).await, Kept::Write),
                _ => got(rwlock.write().await, Kept::Write),
            }
        });
        match scope {
            Some(owner) => Quest { way, seeking: Box::pin(owner.scope(seeking)) },
            None => Quest { way, seeking },
        }
    }

    /// Makes an upgradable read into a write, or a write into a read.
    async fn shift(&self, lock: LockId, having: Having) -> Option<Having> {
        having.note(self, TaskEvent::Shifts);
        let Having { kept, grips, keeping, under, .. } = having;
        let (_, grip) = *grips.first()?;
        let Some(kept) = Arc::into_inner(kept) else {
            self.sim.fail("load", "somebody keeps a guard".into());
            return None;
        };
        let owner = kept.owner().map(|owner| self.sim.owner_id(owner));
        let gone = under.into_iter().chain([grip]);
        match kept {
            Kept::Upgradable(guard) => {
                let (way, limit) = self.way_of(false);
                let way = if matches!(way, Way::Try | Way::Poll(_)) { Way::Wait(limit) } else { way };
                let upgrading = async move {
                    match way {
                        Way::Wait(_) => guard.upgrade_timeout(limit).await,
                        _ => guard.upgrade().await,
                    }
                };
                let shifting =
                    Box::pin(async move { shifted(upgrading.await, Kept::Write, Kept::Upgradable) });
                let shift = Shift { lock, way, owner, keeping, portion: Portion::Upgrade };
                let mut having = self.follow(shift, gone.collect(), false, shifting).await?;
                if having.portion == Portion::Upgrade {
                    having.under = Some(grip);
                }
                Some(having)
            }
            Kept::Write(guard) => {
                // It waits no longer than the write is believed.
                let way = Way::Wait(guard.remaining());
                let downgrading = async move { shifted(guard.downgrade().await, Kept::Read, Kept::Write) };
                let shift = Shift { lock, way, owner, keeping, portion: Portion::Read };
                self.follow(shift, gone.collect(), true, Box::pin(downgrading)).await
            }
            _ => None,
        }
    }

    /// Sees what comes of making one part into another. What it is made of goes with it where that is `spent`; else only
    /// where nothing comes of it.
    async fn follow(
        &self,
        shift: Shift,
        gone: Vec<crate::event::Grip>,
        spent: bool,
        shifting: BoxFuture<'static, Shifted>,
    ) -> Option<Having> {
        let Shift { lock, way, owner, keeping, portion } = shift;
        self.note(lock, TaskEvent::Seeks(way, owner));
        let lets = || {
            for grip in &gone {
                self.note(lock, TaskEvent::Lets(*grip, crate::event::Letting::Drop));
            }
        };
        match self.unless_dropped(shifting).await {
            Some(Ok(kept)) => {
                let having = Having::new(self, kept, keeping, portion);
                if spent {
                    lets();
                }
                Some(having)
            }
            Some(Err(failed)) => {
                let (kept, error) = *failed;
                self.note(lock, TaskEvent::Missed(miss(&error)));
                // What he had he has again, or what is left of it: he gives it back by dropping it.
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

/// One part that is made into another.
struct Shift {
    lock: LockId,
    way: Way,
    owner: Option<OwnerId>,
    keeping: Keeping,
    portion: Portion,
}

/// What came of it: the other part, or the one that it was, and why.
type Shifted = Result<Kept, Box<(Kept, AcquireError)>>;

fn shifted<A, B: std::fmt::Debug>(
    shifted: Result<A, NotShifted<B>>,
    new: impl FnOnce(A) -> Kept,
    old: impl FnOnce(B) -> Kept,
) -> Shifted {
    shifted.map(new).map_err(|not| Box::new((old(not.guard), not.error)))
}

/// Latches and barriers.
impl User {
    async fn use_latch(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.numbers.arrivals;
        let Some(latch) = self.sim.expect("load", self.client.latch(name, of)) else { return };
        let latch = latch.remember(Duration::from_millis(self.chance.between(4_000, 30_000)));
        if self.chance.chance(400) {
            let count = self.number(2);
            let arriving = Box::pin(async move { latch.arrive_many(count).await });
            return self.come(lock, Way::Try, arriving).await;
        }
        let (_, limit) = self.way();
        self.come(lock, Way::Wait(limit), Box::pin(async move { latch.wait_timeout(limit).await })).await;
    }

    /// Waits with a limit: nobody knows whether as many come as are to meet.
    async fn use_barrier(&self, lock: LockId) {
        let Some(name) = self.name_of(lock) else { return };
        let of = self.sim.numbers.parties;
        let Some(barrier) = self.sim.expect("load", self.client.barrier(name, of)) else { return };
        let (_, limit) = self.way();
        let meeting = async move { barrier.wait_timeout(limit).await.map(drop) };
        self.come(lock, Way::Wait(limit), Box::pin(meeting)).await;
    }

    /// Goes where nothing is to be given back.
    async fn come(&self, lock: LockId, way: Way, coming: BoxFuture<'static, Result<(), AcquireError>>) {
        self.note(lock, TaskEvent::Seeks(way, None));
        self.note(
            lock,
            match self.unless_dropped(coming).await {
                Some(Ok(())) => TaskEvent::LetIn,
                Some(Err(error)) => TaskEvent::Missed(miss(&error)),
                None => TaskEvent::Cancelled,
            },
        );
    }
}
