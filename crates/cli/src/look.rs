//! A look at a lock, of whatever kind: nobody has to say which.

use crate::exit::{Exit, Failure};
use leasehold::core::{Kind, Refused};
use leasehold::store::{Fault, FaultKind};
use leasehold::{Client, Details, FreeError, InspectError, LockError, LockName, Mutex, ReentrantMutex, Seen};

/// A lock as it was seen.
pub(crate) struct Looked {
    pub(crate) lock: AnyLock,
    pub(crate) details: Details,
}

/// A lock of one of the kinds.
pub(crate) enum AnyLock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
}

impl AnyLock {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Mutex(_) => Kind::Mutex,
            Self::Reentrant(_) => Kind::Reentrant,
        }
    }

    pub(crate) async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        match self {
            Self::Mutex(lock) => lock.free_by_force(seen).await,
            Self::Reentrant(lock) => lock.free_by_force(seen).await,
        }
    }
}

/// Looks at the lock of that name that somebody has. Where nobody has any, it is the one that is waited for, or was taken
/// from somebody last, and a Mutex where nothing is known of either.
pub(crate) async fn look(client: &Client, name: &LockName) -> Result<Looked, Failure> {
    let unusable = |error: LockError| Failure::new(Exit::USAGE, error).doing("use", name);
    let failed = |error: InspectError| Failure::new(Exit::UNAVAILABLE, error).doing("inspect", name);
    let mutex = client.mutex(name.clone()).map_err(unusable)?;
    let reentrant = client.reentrant_mutex(name.clone()).map_err(unusable)?;
    let plain = match mutex.inspect_in_full().await {
        Ok(details) if details.status.held => return Ok(Looked { lock: AnyLock::Mutex(mutex), details }),
        Ok(details) => Some(details),
        Err(error) if stands_there(error.fault()).is_some() => None,
        Err(error) => return Err(failed(error)),
    };
    match (plain, reentrant.inspect_in_full().await) {
        (Some(details), Ok(other)) if traces(&details) >= traces(&other) => {
            Ok(Looked { lock: AnyLock::Mutex(mutex), details })
        }
        (_, Ok(details)) => Ok(Looked { lock: AnyLock::Reentrant(reentrant), details }),
        // Somebody has made something else of it since.
        (Some(details), Err(error)) if stands_there(error.fault()).is_some() => {
            Ok(Looked { lock: AnyLock::Mutex(mutex), details })
        }
        (_, Err(error)) => Err(failed(error)),
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
