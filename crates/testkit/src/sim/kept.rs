//! A guard of any kind, and what a task has by it.

use super::Sim;
use super::event::{Belief, Gain, Grip, Keeping, Letting, LockId, Lost, TaskEvent};
use super::user::User;
use leasehold::{
    ExtendError, FencingToken, Guard, Lost as Loss, Moment, MultiGuard, ReentrantGuard, Released,
};
use std::sync::Arc;
use std::time::Duration;

/// A guard of any kind.
#[derive(Debug)]
pub(super) enum Kept {
    Mutex(Guard),
    Reentrant(ReentrantGuard),
    All(MultiGuard),
}

impl Kept {
    pub(super) fn valid_until(&self) -> Moment {
        match self {
            Self::Mutex(guard) => guard.valid_until(),
            Self::Reentrant(guard) => guard.valid_until(),
            Self::All(guard) => guard.valid_until(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Loss> {
        match self {
            Self::Mutex(guard) => guard.check(),
            Self::Reentrant(guard) => guard.check(),
            Self::All(guard) => guard.check(),
        }
    }

    pub(super) async fn lost(&self) -> Loss {
        match self {
            Self::Mutex(guard) => guard.lost().await,
            Self::Reentrant(guard) => guard.lost().await,
            Self::All(guard) => guard.lost().await,
        }
    }

    pub(super) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard) => guard.extend().await,
            Self::Reentrant(guard) => guard.extend().await,
            Self::All(guard) => guard.extend().await,
        }
    }

    pub(super) async fn extend_to(&self, lease: Duration) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard) => guard.extend_to(lease).await,
            Self::Reentrant(guard) => guard.extend_to(lease).await,
            Self::All(guard) => guard.extend_to(lease).await,
        }
    }

    /// Its fencing tokens, by the names of the locks.
    fn fences(&self) -> Vec<(String, FencingToken)> {
        match self {
            Self::Mutex(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::Reentrant(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::All(guard) => {
                guard.fencing_tokens().map(|(name, fence)| (name.to_string(), fence)).collect()
            }
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Reentrant(guard) => guard.count(),
            Self::Mutex(_) | Self::All(_) => 1,
        }
    }

    /// Gives all back; says of the locks which were not released, and how often their owner has them yet.
    async fn release(self) -> Result<u64, Vec<String>> {
        match self {
            Self::Mutex(guard) => {
                let name = guard.name().to_string();
                guard.release().await.map(|()| 0).map_err(|_| vec![name])
            }
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
pub(super) struct Having {
    pub(super) kept: Arc<Kept>,
    /// Each of the locks, with its token.
    pub(super) grips: Vec<(LockId, Grip)>,
    /// Set once its loss was told.
    pub(super) is_lost: bool,
}

impl Having {
    /// Takes note of what a task has got, and watches it.
    pub(super) fn new(user: &User, kept: Kept, keeping: Keeping) -> Self {
        let (sim, kept) = (&user.sim, Arc::new(kept));
        let owner = match &*kept {
            Kept::Reentrant(guard) => Some(sim.owner_id(guard.owner())),
            Kept::Mutex(_) | Kept::All(_) => None,
        };
        let belief = Belief { until: user.world.shows_at(kept.valid_until()) };
        let (count, together) = (kept.count(), matches!(*kept, Kept::All(_)));
        let got = kept.fences().into_iter().filter_map(|(name, fence)| {
            let gain = Gain { fence, belief, keeping, owner, count, together };
            Some((lock_of(sim, &name)?, sim.new_grip(), gain))
        });
        let got: Vec<_> = got.collect();
        let grips = got.iter().map(|(lock, grip, _)| (*lock, *grip)).collect();
        sim.watch_guard(&user.world, user.task, &kept, got);
        Self { kept, grips, is_lost: false }
    }

    pub(super) fn note(&self, user: &User, what: impl Fn(Grip) -> TaskEvent) {
        for (lock, grip) in &self.grips {
            user.note(*lock, what(*grip));
        }
    }

    /// It was told that one of the locks is lost.
    pub(super) fn loses(&mut self, user: &User, loss: &Loss) {
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
    pub(super) async fn release(self, user: &User, polls: u64) {
        self.note(user, |grip| TaskEvent::Lets(grip, Letting::Release));
        let Some(kept) = Arc::into_inner(self.kept) else {
            return user.sim.fail("load", "somebody keeps a guard".into());
        };
        let released = super::user::Cut { inner: Box::pin(kept.release()), polls }.await;
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
    }

    pub(super) fn drop(self, user: &User) {
        self.note(user, |grip| TaskEvent::Lets(grip, Letting::Drop));
    }
}

fn lock_of(sim: &Sim, name: &str) -> Option<LockId> {
    let at = sim.locks.iter().position(|lock| lock.name.as_str() == name)?;
    u8::try_from(at).ok().map(LockId)
}
