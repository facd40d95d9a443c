//! The guard of what a command holds, whatever its kind.

use crate::lock::shared_guard::SharedGuard;
use crate::output::printable::quoted;
use leasehold::error::{ExtendError, LostHold, MultiReleaseError, ReleaseError};
use leasehold::{
    FencingToken, Guard, KeyedPermit, Leadership, LockName, Moment, MultiGuard, Owner, PeriodGuard,
    ReentrantGuard,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The guard of a lock of any kind, or of several locks.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Mutex(Guard),
    Reentrant(ReentrantGuard),
    /// A lock that can be shared. `owner`: the owner that the command receives.
    Shared {
        guard: SharedGuard,
        owner: Option<Owner>,
    },
    Multi(MultiGuard),
    /// Permits of a key.
    Keyed(KeyedPermit),
    /// A period, which is never renewed.
    OncePer(PeriodGuard),
    Leadership(Leadership),
}

impl AnyGuard {
    /// Name and fencing token of each lock, in the order of the names.
    pub(crate) fn tokens(&self) -> Vec<(&LockName, FencingToken)> {
        match self {
            Self::Mutex(guard) => vec![(guard.name(), guard.fencing_token())],
            Self::Reentrant(guard) => vec![(guard.name(), guard.fencing_token())],
            Self::Shared { guard, .. } => vec![(guard.name(), guard.fencing_token())],
            Self::Multi(guard) => guard.fencing_tokens().collect(),
            Self::Keyed(permit) => vec![(permit.name(), permit.fencing_token())],
            Self::OncePer(guard) => vec![(guard.name(), guard.fencing_token())],
            Self::Leadership(guard) => vec![(guard.name(), guard.fencing_token())],
        }
    }

    /// The names of the locks, for messages.
    pub(crate) fn quoted_names(&self) -> String {
        quoted(self.tokens().into_iter().map(|(name, _)| name))
    }

    /// The owner, if the lock is reentrant for one.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reentrant(guard) => Some(guard.owner()),
            Self::Shared { owner, .. } => owner.as_ref(),
            Self::Mutex(_) | Self::Multi(_) | Self::Keyed(_) | Self::OncePer(_) | Self::Leadership(_) => None,
        }
    }

    /// The number of holds of its owner when it was acquired, including this one.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Reentrant(guard) => guard.count(),
            Self::Mutex(_)
            | Self::Shared { .. }
            | Self::Multi(_)
            | Self::Keyed(_)
            | Self::OncePer(_)
            | Self::Leadership(_) => 1,
        }
    }

    /// The mode of a lock that can be shared, as a word for programs.
    pub(crate) const fn mode(&self) -> Option<&'static str> {
        match self {
            Self::Shared { guard, .. } => Some(guard.mode()),
            Self::Keyed(_) => Some("permits"),
            Self::Mutex(_) | Self::Reentrant(_) | Self::Multi(_) | Self::OncePer(_) | Self::Leadership(_) => {
                None
            }
        }
    }

    /// The number of permits.
    pub(crate) fn permits(&self) -> Option<u32> {
        match self {
            Self::Shared { guard, .. } => guard.permits(),
            Self::Keyed(permit) => Some(permit.count()),
            Self::Mutex(_) | Self::Reentrant(_) | Self::Multi(_) | Self::OncePer(_) | Self::Leadership(_) => {
                None
            }
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::Mutex(guard) => guard.valid_until(),
            Self::Reentrant(guard) => guard.valid_until(),
            Self::Shared { guard, .. } => guard.valid_until(),
            Self::Multi(guard) => guard.valid_until(),
            Self::Keyed(permit) => permit.valid_until(),
            Self::OncePer(guard) => guard.valid_until(),
            Self::Leadership(guard) => guard.valid_until(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Mutex(guard) => guard.remaining(),
            Self::Reentrant(guard) => guard.remaining(),
            Self::Shared { guard, .. } => guard.remaining(),
            Self::Multi(guard) => guard.remaining(),
            Self::Keyed(permit) => permit.remaining(),
            Self::OncePer(guard) => guard.remaining(),
            Self::Leadership(guard) => guard.remaining(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LostHold> {
        match self {
            Self::Mutex(guard) => guard.check(),
            Self::Reentrant(guard) => guard.check(),
            Self::Shared { guard, .. } => guard.check(),
            Self::Multi(guard) => guard.check(),
            Self::Keyed(permit) => permit.check(),
            Self::OncePer(guard) => guard.check(),
            Self::Leadership(guard) => guard.check(),
        }
    }

    pub(crate) fn is_capped(&self) -> bool {
        match self {
            Self::Mutex(guard) => guard.is_capped(),
            Self::Reentrant(guard) => guard.is_capped(),
            Self::Shared { guard, .. } => guard.is_capped(),
            Self::Multi(guard) => guard.is_capped(),
            Self::Keyed(permit) => permit.is_capped(),
            Self::OncePer(_) => true,
            Self::Leadership(guard) => guard.is_capped(),
        }
    }

    /// The option that sets its cap, if it has one.
    pub(crate) const fn cap_option(&self) -> &'static str {
        match self {
            Self::OncePer(_) => "--at-most (or --once-per)",
            Self::Mutex(_)
            | Self::Reentrant(_)
            | Self::Shared { .. }
            | Self::Multi(_)
            | Self::Keyed(_)
            | Self::Leadership(_) => "--max-hold",
        }
    }

    pub(crate) fn lost_signal(&self) -> CancellationToken {
        match self {
            Self::Mutex(guard) => guard.lost_signal(),
            Self::Reentrant(guard) => guard.lost_signal(),
            Self::Shared { guard, .. } => guard.lost_signal(),
            Self::Multi(guard) => guard.lost_signal(),
            Self::Keyed(permit) => permit.lost_signal(),
            // A period ends by the clock, and its loss is not notified.
            Self::OncePer(_) => CancellationToken::new(),
            Self::Leadership(guard) => guard.lost_signal(),
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::Mutex(guard) => guard.extend().await,
            Self::Reentrant(guard) => guard.extend().await,
            Self::Shared { guard, .. } => guard.extend().await,
            Self::Multi(guard) => guard.extend().await,
            Self::Keyed(permit) => permit.extend().await,
            Self::OncePer(_) => Ok(()),
            Self::Leadership(guard) => guard.extend().await,
        }
    }

    /// Releases everything. Of several errors, the loss of a lock is reported: other clients may have held it at the same
    /// time.
    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::Mutex(guard) => guard.release().await,
            Self::Reentrant(guard) => guard.release().await.map(drop),
            Self::OncePer(guard) => guard.finish().await,
            Self::Leadership(guard) => guard.resign().await,
            Self::Shared { guard, .. } => guard.release().await,
            Self::Multi(guard) => guard.release().await.or_else(MultiReleaseError::into_worst),
            Self::Keyed(permit) => permit.release().await.or_else(MultiReleaseError::into_worst),
        }
    }
}
