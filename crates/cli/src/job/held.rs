//! What a command holds: a lock, a hold of a reentrant lock, a share of a lock, several locks together, a turn, or a
//! leadership.

use leasehold::{
    ExtendError, FencingToken, Guard, Leadership, LockName, Lost, Moment, MultiGuard, Owner, PeriodGuard,
    Permit, ReadGuard, ReentrantGuard, ReleaseError, WriteGuard,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The locks of a command, held.
#[derive(Debug)]
pub(crate) enum Held {
    One(Guard),
    Entry(ReentrantGuard),
    /// A hold of a lock that can be shared, and its owner, if the command receives one.
    Shared {
        hold: SharedGuard,
        owner: Option<Owner>,
    },
    Several(MultiGuard),
    /// A turn, which is never renewed.
    PeriodGuard(PeriodGuard),
    /// A leadership.
    Lead(Leadership),
}

impl Held {
    /// Name and fencing token of each lock, in the order of the names.
    pub(crate) fn tokens(&self) -> Vec<(&LockName, FencingToken)> {
        match self {
            Self::One(guard) => vec![(guard.name(), guard.fencing_token())],
            Self::Entry(guard) => vec![(guard.name(), guard.fencing_token())],
            Self::Shared { hold, .. } => vec![(hold.guard().name(), hold.guard().fencing_token())],
            Self::Several(guard) => guard.fencing_tokens().collect(),
            Self::PeriodGuard(turn) => vec![(turn.name(), turn.fencing_token())],
            Self::Lead(leadership) => vec![(leadership.name(), leadership.fencing_token())],
        }
    }

    /// The owner, if the lock is reentrant for one.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Entry(guard) => Some(guard.owner()),
            Self::Shared { owner, .. } => owner.as_ref(),
            Self::One(_) | Self::Several(_) | Self::PeriodGuard(_) | Self::Lead(_) => None,
        }
    }

    /// The number of holds of its owner when it was acquired, including this one.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Entry(guard) => guard.count(),
            Self::One(_) | Self::Shared { .. } | Self::Several(_) | Self::PeriodGuard(_) | Self::Lead(_) => 1,
        }
    }

    /// The hold of a lock that can be shared.
    pub(crate) const fn shared(&self) -> Option<&SharedGuard> {
        match self {
            Self::Shared { hold, .. } => Some(hold),
            Self::One(_) | Self::Entry(_) | Self::Several(_) | Self::PeriodGuard(_) | Self::Lead(_) => None,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        match self {
            Self::One(guard) => guard.valid_until(),
            Self::Entry(guard) => guard.valid_until(),
            Self::Shared { hold, .. } => hold.guard().valid_until(),
            Self::Several(guard) => guard.valid_until(),
            Self::PeriodGuard(turn) => turn.valid_until(),
            Self::Lead(leadership) => leadership.valid_until(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::One(guard) => guard.remaining(),
            Self::Entry(guard) => guard.remaining(),
            Self::Shared { hold, .. } => hold.guard().remaining(),
            Self::Several(guard) => guard.remaining(),
            Self::PeriodGuard(turn) => turn.remaining(),
            Self::Lead(leadership) => leadership.remaining(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        match self {
            Self::One(guard) => guard.check(),
            Self::Entry(guard) => guard.check(),
            Self::Shared { hold, .. } => hold.guard().check(),
            Self::Several(guard) => guard.check(),
            Self::PeriodGuard(turn) => turn.check(),
            Self::Lead(leadership) => leadership.check(),
        }
    }

    pub(crate) fn is_capped(&self) -> bool {
        match self {
            Self::One(guard) => guard.is_capped(),
            Self::Entry(guard) => guard.is_capped(),
            Self::Shared { hold, .. } => hold.guard().is_capped(),
            Self::Several(guard) => guard.is_capped(),
            Self::PeriodGuard(_) => true,
            Self::Lead(leadership) => leadership.is_capped(),
        }
    }

    /// The option that has set its cap, if it has one.
    pub(crate) const fn cap(&self) -> &'static str {
        match self {
            Self::PeriodGuard(_) => "--at-most (or --once-per)",
            Self::One(_) | Self::Entry(_) | Self::Shared { .. } | Self::Several(_) | Self::Lead(_) => {
                "--max-hold"
            }
        }
    }

    pub(crate) fn lost_signal(&self) -> CancellationToken {
        match self {
            Self::One(guard) => guard.lost_signal(),
            Self::Entry(guard) => guard.lost_signal(),
            Self::Shared { hold, .. } => hold.guard().lost_signal(),
            Self::Several(guard) => guard.lost_signal(),
            // No loss is notified: a turn ends by the clock.
            Self::PeriodGuard(_) => CancellationToken::new(),
            Self::Lead(leadership) => leadership.lost_signal(),
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self {
            Self::One(guard) => guard.extend().await,
            Self::Entry(guard) => guard.extend().await,
            Self::Shared { hold, .. } => hold.guard().extend().await,
            Self::Several(guard) => guard.extend().await,
            Self::PeriodGuard(_) => Ok(()),
            Self::Lead(leadership) => leadership.extend().await,
        }
    }

    /// Releases everything. Of several errors, the loss of a lock is reported first: other clients may have held it at
    /// the same time.
    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Entry(guard) => guard.release().await.map(drop),
            Self::PeriodGuard(turn) => turn.finish().await,
            Self::Lead(leadership) => leadership.resign().await,
            Self::Shared { hold, .. } => hold.release().await,
            Self::Several(guard) => guard.release().await.map_err(|error| {
                let mut errors: Vec<_> = error.failed.into_iter().map(|(_, error)| error).collect();
                let lost = errors.iter().position(|error| matches!(error, ReleaseError::Lost(_)));
                errors.swap_remove(lost.unwrap_or_default())
            }),
        }
    }
}

/// A hold of a lock that can be shared.
#[derive(Debug)]
pub(crate) enum SharedGuard {
    Read(ReadGuard),
    Write(Box<WriteGuard>),
    Permits(Permit),
}

impl SharedGuard {
    /// The guard that all of them contain.
    pub(crate) fn guard(&self) -> &Guard {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
            Self::Permits(permit) => permit,
        }
    }

    /// Its mode, as a word for programs. These words are stable.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Permits(_) => "permits",
        }
    }

    /// The number of permits.
    pub(crate) fn permits(&self) -> Option<u32> {
        match self {
            Self::Permits(permit) => Some(permit.count()),
            Self::Read(_) | Self::Write(_) => None,
        }
    }

    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permits(permit) => permit.release().await,
        }
    }
}

/// Names for messages: in backquotes, separated by commas.
pub(crate) fn shown<'a>(names: impl IntoIterator<Item = &'a LockName>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
