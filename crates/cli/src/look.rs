//! A look at a lock, of whatever kind: nobody has to say which.

use crate::exit::{Exit, Failure};
use anyhow::anyhow;
use leasehold::core::{Kind, Refused};
use leasehold::store::{Fault, FaultKind};
use leasehold::{
    Client, Details, Election, FreeError, InspectError, LockError, LockName, Mutex, ReentrantMutex, Seen,
};

/// A lock as it was seen.
pub(crate) struct Looked {
    pub(crate) lock: AnyLock,
    pub(crate) details: Details,
}

/// A lock of one of the kinds.
pub(crate) enum AnyLock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
    Election(Election),
}

impl AnyLock {
    /// The locks of that name: one of each kind.
    fn all(client: &Client, name: &LockName) -> Result<[Self; 3], LockError> {
        Ok([
            Self::Mutex(client.mutex(name.clone())?),
            Self::Reentrant(client.reentrant_mutex(name.clone())?),
            Self::Election(client.election(name.clone())?),
        ])
    }

    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Mutex(_) => Kind::Mutex,
            Self::Reentrant(_) => Kind::Reentrant,
            Self::Election(_) => Kind::Election,
        }
    }

    async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        match self {
            Self::Mutex(lock) => lock.inspect_in_full().await,
            Self::Reentrant(lock) => lock.inspect_in_full().await,
            Self::Election(lock) => lock.inspect_in_full().await,
        }
    }

    pub(crate) async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        match self {
            Self::Mutex(lock) => lock.free_by_force(seen).await,
            Self::Reentrant(lock) => lock.free_by_force(seen).await,
            Self::Election(lock) => lock.free_by_force(seen).await,
        }
    }
}

/// Looks at the lock of that name that somebody has. Where nobody has any, it is the one that is waited for, or was taken
/// from somebody last, and a Mutex where nothing is known of any.
pub(crate) async fn look(client: &Client, name: &LockName) -> Result<Looked, Failure> {
    let unusable = |error: LockError| Failure::new(Exit::USAGE, error).doing("use", name);
    let failed = |error: InspectError| Failure::new(Exit::UNAVAILABLE, error).doing("inspect", name);
    let mut best: Option<Looked> = None;
    let mut other = None;
    for lock in AnyLock::all(client, name).map_err(unusable)? {
        match lock.inspect_in_full().await {
            Ok(details) if details.status.held => return Ok(Looked { lock, details }),
            Ok(details) => {
                if best.as_ref().is_none_or(|best| traces(&details) > traces(&best.details)) {
                    best = Some(Looked { lock, details });
                }
            }
            // A lock of another kind, or something else.
            Err(error) if stands_there(error.fault()).is_some() => other = Some(error),
            Err(error) => return Err(failed(error)),
        }
    }
    match (best, other) {
        (Some(best), _) => Ok(best),
        (None, Some(error)) => Err(failed(error)),
        (None, None) => {
            Err(Failure::new(Exit::UNAVAILABLE, anyhow!("nothing was seen")).doing("inspect", name))
        }
    }
}

/// What stands at a lock's key, where that is something else than the kind of lock that was meant.
pub(crate) fn stands_there(fault: &Fault) -> Option<&str> {
    match &fault.kind {
        FaultKind::Meaningless(Refused::WrongKind { found }) => Some(found),
        _ => None,
    }
}

/// What there is to tell of a lock, the most telling first.
fn traces(details: &Details) -> (bool, bool, Option<u64>) {
    let last = details.audit.first().map(|entry| entry.at_ms);
    (details.status.held, details.status.waiting > 0, last)
}
