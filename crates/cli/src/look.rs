//! Reads a lock of any kind, by its name alone.

use crate::output::exit::{Exit, Failure};
use anyhow::anyhow;
use leasehold::core::{Kind, Refused};
use leasehold::store::{Fault, FaultKind};
use leasehold::{
    Barrier, Client, Election, ForceReleaseError, FullStatus, InspectError, KeyError, Latch, LockError,
    LockName, Mutex, ObservedHolder, ReentrantMutex, RwLock, Semaphore,
};
use tokio::task::JoinSet;

/// The number of kinds.
const KINDS: usize = Kind::ALL.len();
/// A number of permits, arrivals or parties: its value does not matter, since reading a lock adds no holder.
const SOME: u32 = 1;

/// A lock as it was read.
pub(crate) struct Looked {
    pub(crate) lock: AnyLock,
    pub(crate) details: FullStatus,
}

/// A lock of one of the kinds.
pub(crate) enum AnyLock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
    Election(Election),
    Semaphore(Semaphore),
    RwLock(RwLock),
    Latch(Latch),
    Barrier(Barrier),
}

impl AnyLock {
    /// The locks of that name: a Mutex, and one of each other kind that the store supports.
    fn all(client: &Client, name: &LockName) -> Result<(Self, Vec<Self>), LockError> {
        let others: [Result<Self, LockError>; KINDS - 1] = [
            client.reentrant_mutex(name.clone()).map(Self::Reentrant),
            client.election(name.clone()).map(Self::Election),
            client.semaphore(name.clone(), SOME).map(Self::Semaphore),
            client.rwlock(name.clone()).map(Self::RwLock),
            client.latch(name.clone(), SOME).map(Self::Latch),
            client.barrier(name.clone(), SOME).map(Self::Barrier),
        ];
        let is_there =
            |lock: &Result<_, _>| !matches!(lock, Err(LockError::Key(KeyError::UnsupportedByQuorum(_))));
        let others = others.into_iter().filter(is_there).collect::<Result<_, _>>()?;
        Ok((Self::Mutex(client.mutex(name.clone())?), others))
    }

    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Mutex(_) => Kind::Mutex,
            Self::Reentrant(_) => Kind::Reentrant,
            Self::Election(_) => Kind::Election,
            Self::Semaphore(_) => Kind::Semaphore,
            Self::RwLock(_) => Kind::RwLock,
            Self::Latch(_) => Kind::Latch,
            Self::Barrier(_) => Kind::Barrier,
        }
    }

    async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        match self {
            Self::Mutex(lock) => lock.inspect_full().await,
            Self::Reentrant(lock) => lock.inspect_full().await,
            Self::Election(lock) => lock.inspect_full().await,
            Self::Semaphore(lock) => lock.inspect_full().await,
            Self::RwLock(lock) => lock.inspect_full().await,
            Self::Latch(lock) => lock.inspect_full().await,
            Self::Barrier(lock) => lock.inspect_full().await,
        }
    }

    pub(crate) async fn force_release(&self, seen: ObservedHolder) -> Result<(), ForceReleaseError> {
        match self {
            Self::Mutex(lock) => lock.force_release(seen).await,
            Self::Reentrant(lock) => lock.force_release(seen).await,
            Self::Election(lock) => lock.force_release(seen).await,
            Self::Semaphore(lock) => lock.force_release(seen).await,
            Self::RwLock(lock) => lock.force_release(seen).await,
            Self::Latch(lock) => lock.force_release(seen).await,
            Self::Barrier(lock) => lock.force_release(seen).await,
        }
    }
}

/// Reads the lock of that name that is held. If none is held, the result is the one with waiters, or else the one that
/// was taken from a holder last, or else a Mutex.
///
/// A held Mutex costs one request. Otherwise the other kinds are read concurrently, each once.
pub(crate) async fn look(client: &Client, name: &LockName) -> Result<Looked, Failure> {
    let unusable = |error: LockError| Failure::new(Exit::USAGE, error).doing("use", name);
    let failed = |error: InspectError| Failure::new(Exit::UNAVAILABLE, error).doing("inspect", name);
    let (mutex, others) = AnyLock::all(client, name).map_err(unusable)?;
    let (mut best, mut other) = match mutex.inspect_full().await {
        Ok(details) if details.status.held => return Ok(Looked { lock: mutex, details }),
        Ok(details) => (Some(Looked { lock: mutex, details }), None),
        // A lock of another kind, or another value.
        Err(error) if stands_there(error.fault()).is_some() => (None, Some(error)),
        Err(error) => return Err(failed(error)),
    };
    for (lock, looked) in all_at_once(others).await {
        match looked {
            Ok(details) if best.as_ref().is_none_or(|best| traces(&details) > traces(&best.details)) => {
                best = Some(Looked { lock, details });
            }
            Ok(_) => {}
            Err(error) if stands_there(error.fault()).is_some() => other = other.or(Some(error)),
            // A store without locks of this kind has none of this name.
            Err(error) if matches!(error.fault().kind, FaultKind::Unusable(_)) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    best.ok_or_else(|| match other {
        Some(error) => failed(error),
        None => Failure::new(Exit::UNAVAILABLE, anyhow!("nothing was found")).doing("inspect", name),
    })
}

/// Reads several locks concurrently; returns them in their order.
async fn all_at_once(locks: Vec<AnyLock>) -> Vec<(AnyLock, Result<FullStatus, InspectError>)> {
    let mut looks = JoinSet::new();
    for (at, lock) in locks.into_iter().enumerate() {
        looks.spawn(async move {
            let looked = lock.inspect_full().await;
            (at, lock, looked)
        });
    }
    let mut all = looks.join_all().await;
    all.sort_by_key(|(at, ..)| *at);
    all.into_iter().map(|(_, lock, looked)| (lock, looked)).collect()
}

/// The type of the value at a lock's key, if it is not that of the expected kind.
pub(crate) fn stands_there(fault: &Fault) -> Option<&str> {
    match &fault.kind {
        FaultKind::Refused(Refused::WrongKind { found }) => Some(found),
        _ => None,
    }
}

/// What is known of a lock, the most important first.
fn traces(details: &FullStatus) -> (bool, bool, Option<u64>) {
    let last = details.audit.first().map(|entry| entry.at_ms);
    (details.status.held, details.status.waiting > 0, last)
}
