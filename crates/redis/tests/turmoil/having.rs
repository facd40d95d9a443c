//! What a task wants and then holds: a Mutex, a ReentrantMutex as some owner, or several Mutexes at once.

use leasehold::{
    AcquireError, Attempt, ExtendError, FencingToken, Guard, LockName, Lost, Moment, MultiAttempt,
    MultiGuard, MultiMutex, Mutex, Owner, ReentrantGuard, ReentrantMutex, Released,
};
use std::fmt;
use std::time::Duration;

/// What a task wants.
#[derive(Clone)]
pub(crate) enum Want {
    One(Mutex),
    Entry(ReentrantMutex),
    Set(MultiMutex),
}

/// What a task holds.
pub(crate) enum Having {
    One(Guard),
    Entry(ReentrantGuard),
    Set(MultiGuard),
}

impl Want {
    /// The same with another lease.
    pub(crate) fn lease(self, lease: Duration) -> Self {
        match self {
            Self::One(mutex) => Self::One(mutex.lease(lease)),
            Self::Entry(entry) => Self::Entry(entry.lease(lease)),
            Self::Set(set) => Self::Set(set.lease(lease)),
        }
    }

    /// By that owner, if there is one.
    pub(crate) fn owned_by(self, owner: &Owner) -> Self {
        match self {
            Self::Entry(entry) => Self::Entry(entry.owned_by(owner)),
            other => other,
        }
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<Having>, AcquireError> {
        Ok(match self {
            Self::One(mutex) => mutex.try_acquire().await?.granted().map(Having::One),
            Self::Entry(entry) => match entry.try_acquire().await? {
                Attempt::Granted(guard) => Some(Having::Entry(guard)),
                Attempt::Taken(_) => None,
            },
            Self::Set(set) => match set.try_acquire().await? {
                MultiAttempt::Granted(guard) => Some(Having::Set(guard)),
                MultiAttempt::Taken { .. } => None,
            },
        })
    }

    pub(crate) async fn acquire(&self) -> Result<Having, AcquireError> {
        Ok(match self {
            Self::One(mutex) => Having::One(mutex.acquire().await?),
            Self::Entry(entry) => Having::Entry(entry.acquire().await?),
            Self::Set(set) => Having::Set(set.acquire().await?),
        })
    }

    pub(crate) async fn acquire_timeout(&self, limit: Duration) -> Result<Having, AcquireError> {
        Ok(match self {
            Self::One(mutex) => Having::One(mutex.acquire_timeout(limit).await?),
            Self::Entry(entry) => Having::Entry(entry.acquire_timeout(limit).await?),
            Self::Set(set) => Having::Set(set.acquire_timeout(limit).await?),
        })
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(mutex) => write!(f, "{}", mutex.name()),
            Self::Entry(entry) => write!(f, "{}", entry.name()),
            Self::Set(set) => f.debug_list().entries(set.names().map(LockName::as_str)).finish(),
        }
    }
}

impl Having {
    /// Its locks, each with its fencing token.
    pub(crate) fn locks(&self) -> Vec<(String, FencingToken)> {
        match self {
            Self::One(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::Entry(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Self::Set(guard) => {
                guard.fencing_tokens().map(|(name, fence)| (name.to_string(), fence)).collect()
            }
        }
    }

    /// Its owner, if other tasks may hold the lock as the same owner.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Entry(guard) => Some(guard.owner()),
            Self::One(_) | Self::Set(_) => None,
        }
    }

    /// The owner's hold count at the time of this entry.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Entry(guard) => guard.count(),
            Self::One(_) | Self::Set(_) => 1,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::One(guard) => guard.valid_until(),
            Self::Entry(guard) => guard.valid_until(),
            Self::Set(guard) => guard.valid_until(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        match self {
            Self::One(guard) => guard.check(),
            Self::Entry(guard) => guard.check(),
            Self::Set(guard) => guard.check(),
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::One(guard) => guard.extend().await,
            Self::Entry(guard) => guard.extend().await,
            Self::Set(guard) => guard.extend().await,
        }
    }

    /// Releases it. The error is a text, since each kind has its own error type.
    pub(crate) async fn release(self) -> Result<Released, String> {
        match self {
            Self::One(guard) => {
                guard.release().await.map(|()| Released::Free).map_err(|error| error.to_string())
            }
            Self::Entry(guard) => guard.release().await.map_err(|error| error.to_string()),
            Self::Set(guard) => {
                guard.release().await.map(|()| Released::Free).map_err(|error| error.to_string())
            }
        }
    }
}
