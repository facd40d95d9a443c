//! A guard of any kind, and what a task has by it.

use crate::world::Sim;
use crate::event::{Belief, Gain, Grip, Keeping, Letting, LockId, Lost, TaskEvent};
use crate::workload::task::User;
use leasehold::{
    ExtendError, FencingToken, Guard, Leadership, Lost as Loss, Moment, MultiGuard, Owner, Permit, Portion,
    ReadGuard, ReentrantGuard, ReleaseError, Released, UpgradableGuard, WriteGuard,
};
use std::sync::Arc;
use std::time::Duration;

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum Kept {
    /// With how long its process keeps the lock for whoever comes, once it is given back.
    Mutex(Guard, Option<Duration>),
    Leader(Leadership),
    Reentrant(ReentrantGuard),
    All(MultiGuard),
    Permit(Permit),
    Read(ReadGuard),
    Upgradable(UpgradableGuard),
    Write(WriteGuard),
}

/// One that was released, or could not be, and how often its owner has it yet.
fn once(name: String, released: Result<(), ReleaseError>) -> Result<u64, Vec<String>> {
    released.map(|()| 0).map_err(|_| vec![name])
}

impl Kept {
    /// The guard in it, where it is of one lock, and of no ReentrantMutex or Election.
    fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Mutex(guard, _) => Some(guard),
            Self::Permit(permit) => Some(permit),
            Self::Read(guard) => Some(guard),
            Self::Upgradable(guard) => Some(guard),
            Self::Write(guard) => Some(guard),
            Self::Leader(_) | Self::Reentrant(_) | Self::All(_) => None,
        }
    }

    /// For whom it is had.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reentrant(guard) => Some(guard.owner()),
            Self::Read(guard) => Some(guard.owner()),
            Self::Upgradable(guard) => Some(guard.owner()),
            Self::Write(guard) => Some(guard.owner()),
            Self::Mutex(..) | Self::Leader(_) | Self::All(_) | Self::Permit(_) => None,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::Mutex(guard, _) => guard.valid_until(),
            Self::Leader(leadership) => leadership.valid_until(),
            Self::Permit(guard) => guard.valid_until(),
            Self::Read(guard) => guard.valid_until(),
            Self::Upgradable(guard) => guard.valid_until(),
            Self::Write(guard) => guard.valid_until(),
            Self::Reentrant(guard) => guard.valid_until(),
            Self::All(guard) => guard.valid_until(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Loss> {
        match self {
            Self::Mutex(guard, _) => guard.check(),
            Self::Leader(leadership) => leadership.check(),
            Self::Permit(guard) => guard.check(),
            Self::Read(guard) => guard.check(),
            Self::Upgradable(guard) => guard.check(),
            Self::Write(guard) => guard.check(),
            Self::Reentrant(guard) => guard.check(),
            Self::All(guard) => guard.check(),
        }
    }

    pub(crate) async fn lost(&self) -> Loss {
        match self {
            Self::Mutex(guard, _) => guard.lost().await,
            Self::Leader(leadership) => leadership.lost().await,
            Self::Permit(guard) => guard.lost().await,
            Self::Read(guard) => guard.lost().await,
            Self::Upgradable(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
            Self::Reentrant(guard) => guard.lost().await,
            Self::All(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard, _) => guard.extend().await,
            Self::Leader(leadership) => leadership.extend().await,
            Self::Permit(guard) => guard.extend().await,
            Self::Read(guard) => guard.extend().await,
            Self::Upgradable(guard) => guard.extend().await,
            Self::Write(guard) => guard.extend().await,
            Self::Reentrant(guard) => guard.extend().await,
            Self::All(guard) => guard.extend().await,
        }
    }

    pub(crate) async fn extend_to(&self, lease: Duration) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard, _) => guard.extend_to(lease).await,
            Self::Leader(leadership) => leadership.extend_to(lease).await,
            Self::Permit(guard) => guard.extend_to(lease).await,
            Self::Read(guard) => guard.extend_to(lease).await,
            Self::Upgradable(guard) => guard.extend_to(lease).await,
            Self::Write(guard) => guard.extend_to(lease).await,
            Self::Reentrant(guard) => guard.extend_to(lease).await,
            Self::All(guard) => guard.extend_to(lease).await,
        }
    }

    /// Its fencing tokens, by the names of the locks.
    fn fences(&self) -> Vec<(String, FencingToken)> {
        if let Some(guard) = self.guard() {
            return vec![(guard.name().to_string(), guard.fencing_token())];
        }
        match self {
            Self::Leader(leadership) => vec![(leadership.name().to_string(), leadership.fencing_token())],
            Self::Reentrant(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::All(guard) => {
                guard.fencing_tokens().map(|(name, fence)| (name.to_string(), fence)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// How long its process keeps the lock for whoever comes, once it is given back.
    const fn keep_for(&self) -> Option<Duration> {
        if let Self::Mutex(_, keep_for) = self { *keep_for } else { None }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Reentrant(guard) => guard.count(),
            _ => 1,
        }
    }

    /// Gives all back; says of the locks which were not released, and how often their owner has them yet.
    async fn release(self) -> Result<u64, Vec<String>> {
        match self {
            Self::Mutex(guard, _) => once(guard.name().to_string(), guard.release().await),
            Self::Leader(leadership) => once(leadership.name().to_string(), leadership.resign().await),
            Self::Permit(permit) => once(permit.name().to_string(), permit.release().await),
            Self::Read(guard) => once(guard.name().to_string(), guard.release().await),
            Self::Upgradable(guard) => once(guard.name().to_string(), guard.release().await),
            Self::Write(guard) => once(guard.name().to_string(), guard.release().await),
            Self::Reentrant(guard) => {
                let name = guard.name().to_string();
                match guard.release().await {
                    Ok(Released::Free) => Ok(0),
                    Ok(Released::StillHeld { count }) => Ok(count),
                    Err(_) => Err(vec![name]),
                }
            }
            Self::All(guard) => {
                let released = guard.release().await;
                let failed = |(name, _): &(leasehold::LockName, _)| name.to_string();
                released.map(|()| 0).map_err(|error| error.failed.iter().map(failed).collect())
            }
        }
    }
}

/// What a task has by a guard.
pub(crate) struct Having {
    pub(crate) kept: Arc<Kept>,
    /// Each of the locks, with its token.
    pub(crate) grips: Vec<(LockId, Grip)>,
    /// Set once its loss was told.
    pub(crate) is_lost: bool,
    /// For how long it is to be had, and so what it is changed into.
    pub(crate) keeping: Keeping,
    /// What part of the lock it is.
    pub(crate) portion: Portion,
    /// What is given back with it: the upgradable read under a write.
    pub(crate) under: Option<Grip>,
}

impl Having {
    /// Takes note of what a task has got, and watches it.
    pub(crate) fn new(user: &User, kept: Kept, keeping: Keeping, portion: Portion) -> Self {
        let (sim, keep_for, kept) = (&user.sim, kept.keep_for(), Arc::new(kept));
        let owner = kept.owner().map(|owner| sim.owner_id(owner));
        let belief = Belief { until: user.world.shows_at(kept.valid_until()) };
        let (count, together) = (kept.count(), matches!(*kept, Kept::All(_)));
        let got = kept.fences().into_iter().filter_map(|(name, fence)| {
            let gain = Gain { fence, belief, keeping, owner, portion, count, together, keep_for };
            Some((lock_of(sim, &name)?, sim.new_grip(), gain))
        });
        let got: Vec<_> = got.collect();
        let grips = got.iter().map(|(lock, grip, _)| (*lock, *grip)).collect();
        sim.watch_guard(&user.world, user.task, &kept, got);
        Self { kept, grips, is_lost: false, keeping, portion, under: None }
    }

    pub(crate) fn note(&self, user: &User, what: impl Fn(Grip) -> TaskEvent) {
        for (lock, grip) in &self.grips {
            user.note(*lock, what(*grip));
        }
    }

    /// It was told that one of the locks is lost.
    pub(crate) fn loses(&mut self, user: &User, loss: &Loss) {
        self.is_lost = true;
        let lost = lock_of(&user.sim, loss.lock.as_str());
        for (lock, grip) in &self.grips {
            let which = if Some(*lock) == lost { Lost::This } else { Lost::Another };
            user.note(*lock, TaskEvent::Told(*grip, which));
        }
        if self.kept.check().is_ok() {
            user.sim.fail("load", format!("{} was told of a loss, and its check succeeds", user.task));
        }
    }

    /// Gives it back, unless it is dropped before so many polls have led to an end.
    pub(crate) async fn release(self, user: &User, polls: u64) {
        self.note(user, |grip| TaskEvent::Lets(grip, Letting::Release));
        let lock = self.grips.first().map(|(lock, _)| *lock);
        let under = lock.zip(self.under);
        let Some(kept) = Arc::into_inner(self.kept) else {
            return user.sim.fail("load", "somebody keeps a guard".into());
        };
        let released = crate::workload::task::Cut { inner: Box::pin(kept.release()), polls }.await;
        for (lock, grip) in self.grips {
            let name = lock.to_string();
            user.note(
                lock,
                match &released {
                    Some(Ok(left)) => TaskEvent::Released(grip, Some(*left)),
                    Some(Err(failed)) => TaskEvent::Released(grip, (!failed.contains(&name)).then_some(0)),
                    None => TaskEvent::Lets(grip, Letting::Drop),
                },
            );
        }
        if let Some((lock, under)) = under {
            // Nobody is told what became of it.
            user.note(lock, TaskEvent::Lets(under, Letting::Drop));
        }
    }

    pub(crate) fn drop(self, user: &User) {
        self.note(user, |grip| TaskEvent::Lets(grip, Letting::Drop));
        if let (Some((lock, _)), Some(under)) = (self.grips.first(), self.under) {
            user.note(*lock, TaskEvent::Lets(under, Letting::Drop));
        }
    }
}

fn lock_of(sim: &Sim, name: &str) -> Option<LockId> {
    let at = sim.locks.iter().position(|lock| lock.name.as_str() == name)?;
    u8::try_from(at).ok().map(LockId)
}
