//! A lock and a guard of any kind: of a Mutex, of a ReentrantMutex as some owner, or of several Mutexes at once.

use leasehold::error::{AcquireError, ExtendError, LostHold};
use leasehold::{
    Attempt, FencingToken, Guard, LockName, Moment, MultiAttempt, MultiGuard, MultiMutex, Mutex, Owner,
    ReentrantGuard, ReentrantMutex, Released,
};
use std::fmt;
use std::time::Duration;

/// A lock that a task acquires.
#[derive(Clone)]
pub(crate) enum AnyLock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
    Multi(MultiMutex),
}

/// The guard of such a lock.
pub(crate) enum AnyGuard {
    Mutex(Guard),
    Reentrant(ReentrantGuard),
    Multi(MultiGuard),
}

impl AnyLock {
    /// The same with another lease.
    pub(crate) fn lease(self, lease: Duration) -> Self {
        match self {
            Self::Mutex(mutex) => Self::Mutex(mutex.lease(lease)),
            Self::Reentrant(entry) => Self::Reentrant(entry.lease(lease)),
            Self::Multi(set) => Self::Multi(set.lease(lease)),
        }
    }

    /// The same for that owner, if it has owners.
    pub(crate) fn owned_by(self, owner: &Owner) -> Self {
        match self {
            Self::Reentrant(entry) => Self::Reentrant(entry.owned_by(owner)),
            other => other,
        }
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<AnyGuard>, AcquireError> {
        Ok(match self {
            Self::Mutex(mutex) => mutex.try_acquire().await?.granted().map(AnyGuard::Mutex),
            Self::Reentrant(entry) => match entry.try_acquire().await? {
                Attempt::Granted(guard) => Some(AnyGuard::Reentrant(guard)),
                Attempt::Taken(_) => None,
            },
            Self::Multi(set) => match set.try_acquire().await? {
                MultiAttempt::Granted(guard) => Some(AnyGuard::Multi(guard)),
                MultiAttempt::Taken { .. } => None,
            },
        })
    }

    pub(crate) async fn acquire(&self) -> Result<AnyGuard, AcquireError> {
        Ok(match self {
            Self::Mutex(mutex) => AnyGuard::Mutex(mutex.acquire().await?),
            Self::Reentrant(entry) => AnyGuard::Reentrant(entry.acquire().await?),
            Self::Multi(set) => AnyGuard::Multi(set.acquire().await?),
        })
    }

    pub(crate) async fn acquire_timeout(&self, limit: Duration) -> Result<AnyGuard, AcquireError> {
        Ok(match self {
            Self::Mutex(mutex) => AnyGuard::Mutex(mutex.acquire_timeout(limit).await?),
            Self::Reentrant(entry) => AnyGuard::Reentrant(entry.acquire_timeout(limit).await?),
            Self::Multi(set) => AnyGuard::Multi(set.acquire_timeout(limit).await?),
        })
    }
}

impl fmt::Display for AnyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mutex(mutex) => write!(f, "{}", mutex.name()),
            Self::Reentrant(entry) => write!(f, "{}", entry.name()),
            Self::Multi(set) => f.debug_list().entries(set.names().map(LockName::as_str)).finish(),
        }
    }
}

impl AnyGuard {
    /// Its locks, each with its fencing token.
    pub(crate) fn locks(&self) -> Vec<(String, FencingToken)> {
        match self {
            Self::Mutex(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::Reentrant(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::Multi(guard) => {
                guard.fencing_tokens().map(|(name, fence)| (name.to_string(), fence)).collect()
            }
        }
    }

    /// Its owner, if other tasks may hold the lock as the same owner.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reentrant(guard) => Some(guard.owner()),
            Self::Mutex(_) | Self::Multi(_) => None,
        }
    }

    /// The owner's hold count at the time of this entry.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Reentrant(guard) => guard.count(),
            Self::Mutex(_) | Self::Multi(_) => 1,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::Mutex(guard) => guard.valid_until(),
            Self::Reentrant(guard) => guard.valid_until(),
            Self::Multi(guard) => guard.valid_until(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LostHold> {
        match self {
            Self::Mutex(guard) => guard.check(),
            Self::Reentrant(guard) => guard.check(),
            Self::Multi(guard) => guard.check(),
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard) => guard.extend().await,
            Self::Reentrant(guard) => guard.extend().await,
            Self::Multi(guard) => guard.extend().await,
        }
    }

    /// Releases the hold. The error is a text, since each kind has its own error type.
    pub(crate) async fn release(self) -> Result<Released, String> {
        match self {
            Self::Mutex(guard) => {
                guard.release().await.map(|()| Released::NoLongerHeld).map_err(|error| error.to_string())
            }
            Self::Reentrant(guard) => guard.release().await.map_err(|error| error.to_string()),
            Self::Multi(guard) => {
                guard.release().await.map(|()| Released::NoLongerHeld).map_err(|error| error.to_string())
            }
        }
    }
}
