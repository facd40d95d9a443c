//! A lock of any kind, found by its name alone.

use crate::output::error_map::unexpected_type;
use crate::output::failure::Failure;
use crate::output::log;
use anyhow::anyhow;
use leasehold::core::Kind;
use leasehold::error::{ForceReleaseError, InspectError, KeyError, LockError};
use leasehold::inspect::{FullStatus, ObservedHolder};
use leasehold::store::FaultKind;
use leasehold::{Barrier, Client, Election, Latch, LockName, Mutex, ReentrantMutex, RwLock, Semaphore};
use tokio::task::JoinSet;

/// The number of kinds.
const KINDS: usize = Kind::ALL.len();
/// A number of permits, arrivals or parties. Its value does not matter, since reading a lock adds no holder.
const ANY_LIMIT: u32 = 1;

/// A lock, and its state when it was read.
pub(crate) struct FoundLock {
    pub(crate) lock: AnyLock,
    pub(crate) details: FullStatus,
}

impl FoundLock {
    /// Warns if the report lacks a holder, a session or a line of the audit because that could not be read.
    pub(crate) fn warn_if_incomplete(&self) {
        let skipped = &self.details.skipped;
        if !skipped.is_empty() {
            log::warning(&format!("the lock is not shown completely: {skipped}"));
        }
    }
}

/// A lock of one of the kinds.
#[allow(clippy::large_enum_variant, reason = "a command has one of these")]
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
            client.semaphore(name.clone(), ANY_LIMIT).map(Self::Semaphore),
            client.rwlock(name.clone()).map(Self::RwLock),
            client.latch(name.clone(), ANY_LIMIT).map(Self::Latch),
            client.barrier(name.clone(), ANY_LIMIT).map(Self::Barrier),
        ];
        let is_supported =
            |lock: &Result<_, _>| !matches!(lock, Err(LockError::Key(KeyError::UnsupportedByQuorum(_))));
        let others = others.into_iter().filter(is_supported).collect::<Result<_, _>>()?;
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

    pub(crate) async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
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

    pub(crate) async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        match self {
            Self::Mutex(lock) => lock.force_release(observed).await,
            Self::Reentrant(lock) => lock.force_release(observed).await,
            Self::Election(lock) => lock.force_release(observed).await,
            Self::Semaphore(lock) => lock.force_release(observed).await,
            Self::RwLock(lock) => lock.force_release(observed).await,
            Self::Latch(lock) => lock.force_release(observed).await,
            Self::Barrier(lock) => lock.force_release(observed).await,
        }
    }
}

/// Reads the lock of that name that is held. If none is held, the result is the one with waiters, or else the one with
/// the latest forced release or eviction, or else a Mutex.
///
/// A held Mutex costs one request. Otherwise the other kinds are read concurrently, each once.
pub(crate) async fn find(client: &Client, name: &LockName) -> Result<FoundLock, Failure> {
    let unusable = |error: LockError| Failure::usage(error).failed_to("use", name);
    let failed = |error: InspectError| inspect_failure(error).failed_to("inspect", name);
    let (mutex, others) = AnyLock::all(client, name).map_err(unusable)?;
    let (mut best, mut unexpected) = match mutex.inspect_full().await {
        Ok(details) if details.status.held => return Ok(FoundLock { lock: mutex, details }),
        Ok(details) => (Some(FoundLock { lock: mutex, details }), None),
        // A lock of another kind, or another value.
        Err(error) if unexpected_type(error.fault()).is_some() => (None, Some(error)),
        Err(error) => return Err(failed(error)),
    };
    for (lock, inspected) in inspect_all(others).await {
        match inspected {
            Ok(details)
                if best.as_ref().is_none_or(|best| significance(&details) > significance(&best.details)) =>
            {
                best = Some(FoundLock { lock, details });
            }
            Ok(_) => {}
            Err(error) if unexpected_type(error.fault()).is_some() => unexpected = unexpected.or(Some(error)),
            // A store without locks of this kind has none of this name.
            Err(error) if matches!(error.fault().kind, FaultKind::Unusable(_)) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    best.ok_or_else(|| match unexpected {
        Some(error) => failed(error),
        None => Failure::unavailable(anyhow!("nothing was found")).failed_to("inspect", name),
    })
}

/// The failure to read a lock. The name may be in use for something that is no lock.
fn inspect_failure(error: InspectError) -> Failure {
    if unexpected_type(error.fault()).is_some() {
        Failure::other_kind(error)
    } else {
        Failure::unavailable(error)
    }
}

/// Reads several locks concurrently; returns them in their order.
async fn inspect_all(locks: Vec<AnyLock>) -> Vec<(AnyLock, Result<FullStatus, InspectError>)> {
    let mut inspections = JoinSet::new();
    for (at, lock) in locks.into_iter().enumerate() {
        inspections.spawn(async move {
            let inspected = lock.inspect_full().await;
            (at, lock, inspected)
        });
    }
    let mut all = inspections.join_all().await;
    all.sort_by_key(|(at, ..)| *at);
    all.into_iter().map(|(_, lock, inspected)| (lock, inspected)).collect()
}

/// What makes a lock worth reporting, the most important first: a holder, waiters, the last entry of the audit.
fn significance(details: &FullStatus) -> (bool, bool, Option<u64>) {
    let last = details.audit.first().map(|entry| entry.at_ms);
    (details.status.held, details.status.waiting > 0, last)
}
