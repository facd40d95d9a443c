//! The guards of a readers-writer lock, and how one becomes another.

use super::ModeHandles;
use crate::error::{AcquireError, ReleaseError};
use crate::guard::Guard;
use crate::guard::lock_guard::lock_guard;
use crate::guard::owner::Owner;
use crate::lock::handle::AcquiredGuard;
use leasehold_core::{LockMode, LockName};
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

/// A reader's hold of an [`RwLock`](crate::RwLock).
///
/// The methods of [`Guard`] check whether it is still held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (one, other) = (index.read().await?, index.read().await?);
/// one.check()?;
/// one.release().await?;
/// other.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock"]
pub struct ReadGuard {
    pub(super) guard: Guard,
    pub(super) owner: Owner,
}

impl ReadGuard {
    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Releases the lock, and admits the next waiters: like [`Guard::release`], including errors and cancel
    /// safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

/// A reader's hold of an [`RwLock`](crate::RwLock), with the right to become the writer.
///
/// The methods of [`Guard`] check whether it is still held. See [`RwLock`](crate::RwLock) for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct UpgradableGuard {
    pub(super) guard: Guard,
    pub(super) owner: Owner,
    pub(super) handles: ModeHandles,
}

/// A failed upgrade or downgrade: the hold is unchanged.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (reading, other) = (index.upgradable_read().await?, index.read().await?);
/// let failed = reading.upgrade_timeout(Duration::from_millis(20)).await.expect_err("another reader holds it");
/// println!("{failed}"); // "timed out after 20ms: held by …"
/// let reading = failed.guard;
/// other.release().await?;
/// reading.upgrade().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConversionError<G: fmt::Debug> {
    /// The guard, still held as before unless it was lost meanwhile.
    pub guard: G,
    /// Why it was not converted.
    #[source]
    pub error: AcquireError,
}

impl UpgradableGuard {
    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes the writer once all other readers are done: ahead of all waiters, and no new reader is
    /// admitted until then. The write has its own hold, lease and fencing token; the read hold stays beneath
    /// it until it is released.
    ///
    /// Fails with the unchanged guard and the error of [`RwLock::write`](crate::RwLock::write); and at once with
    /// [`AcquireError::Lost`] or [`AcquireError::Impossible`] if the upgradable read is lost.
    ///
    /// Cancel safety: if the future is dropped, the upgradable read is dropped with it. Use
    /// [`upgrade_timeout`](Self::upgrade_timeout) to wait for a limited time and keep it.
    pub async fn upgrade(self) -> Result<WriteGuard, ConversionError<Self>> {
        let limit = self.handles.write.max_wait;
        self.upgrade_within(limit).await
    }

    /// Becomes the writer within `limit`. Otherwise like [`upgrade`](Self::upgrade), including cancel safety.
    pub async fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, ConversionError<Self>> {
        self.upgrade_within(Some(limit)).await
    }

    /// Releases the lock, and admits the next waiters: like [`Guard::release`], including errors and cancel
    /// safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    async fn upgrade_within(self, limit: Option<Duration>) -> Result<WriteGuard, ConversionError<Self>> {
        // Without the read the upgrade can only fail, and its queue entry would hold up all other waiters: in a new
        // session it would last as long as the store keeps the hold of the old one.
        let until = limit.map(|limit| self.handles.write.now() + limit);
        let acquiring = self.handles.acquire(&self.owner, LockMode::Upgrade, limit);
        let acquired = match self.guard.unless_lost(acquiring).await {
            Ok(acquired) => acquired,
            Err(lost) => Err(AcquireError::Lost(lost)),
        };
        match acquired {
            Ok(acquired) => {
                // The signal of a loss can be late: another writer may have changed what the guard has read.
                if let Err(lost) = self.guard.check_with_reason_until(until).await {
                    return Err(ConversionError { guard: self, error: AcquireError::Lost(lost) });
                }
                let (owner, handles) = (self.owner.clone(), self.handles.clone());
                Ok(WriteGuard { guard: acquired.guard, owner, handles, upgraded_from: Some(Box::new(self)) })
            }
            Err(error) => Err(ConversionError { guard: self, error }),
        }
    }
}

/// The writer's hold of an [`RwLock`](crate::RwLock).
///
/// The methods of [`Guard`] check whether it is still held. See [`RwLock`](crate::RwLock) for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct WriteGuard {
    // Declared first, so that it drops before `upgraded_from`: no other writer may get in between.
    pub(super) guard: Guard,
    pub(super) owner: Owner,
    pub(super) handles: ModeHandles,
    /// The upgradable read from which it was upgraded.
    upgraded_from: Option<Box<UpgradableGuard>>,
}

impl WriteGuard {
    pub(super) fn new(acquired: AcquiredGuard, owner: Owner, handles: ModeHandles) -> Self {
        Self { guard: acquired.guard, owner, handles, upgraded_from: None }
    }

    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes a reader, and admits the readers at the front of the queue: no write happens in between. The
    /// read has its own hold, lease and fencing token. If its owner has further writes, no client is admitted
    /// until these end.
    ///
    /// Fails with the unchanged guard if the store does not reply or refuses the request, or if the write is
    /// lost before the read is acquired. If the write cannot be released afterwards, that is not an error: the
    /// client goes on to release it in the background.
    ///
    /// Cancel safety: if the future is dropped, the lock is released in the background.
    pub async fn downgrade(self) -> Result<ReadGuard, ConversionError<Self>> {
        if let Err(lost) = self.guard.check_with_reason().await {
            // Another writer may have changed the data by now.
            return Err(ConversionError { guard: self, error: AcquireError::Lost(lost) });
        }
        // While the write is held the read is granted at once, so there is no reason to wait longer than
        // that.
        let limit = Some(self.guard.remaining());
        let acquiring = self.handles.acquire(&self.owner, LockMode::Read, limit);
        let acquired = match self.guard.unless_lost(acquiring).await {
            Ok(Ok(acquired)) => acquired,
            Ok(Err(error)) => return Err(ConversionError { guard: self, error }),
            Err(lost) => return Err(ConversionError { guard: self, error: AcquireError::Lost(lost) }),
        };
        // The write may have ended during the request, and another writer may have written in between. A
        // write still valid after the read was acquired rules that out: this clock is never ahead of the
        // store's.
        match self.guard.check_with_reason().await {
            Ok(()) => {
                let owner = self.owner.clone();
                let name = self.guard.name().clone();
                log_failed_release(&name, self.release().await);
                Ok(ReadGuard { guard: acquired.guard, owner })
            }
            Err(lost) => Err(ConversionError { guard: self, error: AcquireError::Lost(lost) }),
        }
    }

    /// Releases the lock, with the upgradable read it may have been upgraded from, and admits the next
    /// waiters: like [`Guard::release`], including errors and cancel safety. Errors are those of the write;
    /// if the store does not reply, the read is released in the background at once.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Self { guard, upgraded_from, .. } = self;
        let released = guard.release().await;
        release_upgraded_from(upgraded_from, &released).await;
        released
    }
}

/// Releases the read beneath a write after the write's release. No caller receives the result, so the keeper
/// goes on if there is no reply; and if the store did not reply before, it is not awaited again.
async fn release_upgraded_from(
    upgraded_from: Option<Box<UpgradableGuard>>,
    written: &Result<(), ReleaseError>,
) {
    let Some(upgraded_from) = upgraded_from else { return };
    match written {
        Ok(()) | Err(ReleaseError::Lost(_)) => {
            let name = upgraded_from.guard.name().clone();
            log_failed_release(&name, upgraded_from.guard.release().await);
        }
        Err(_) => drop(upgraded_from),
    }
}

/// Methods common to the guards.
macro_rules! impl_guard {
    ($($guard:ident)+) => { $(
        impl Deref for $guard {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.guard
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("guard", &self.guard)
                    .field("owner", &self.owner)
                    .finish_non_exhaustive()
            }
        }
    )+ };
}

impl_guard! { ReadGuard UpgradableGuard WriteGuard }
lock_guard! { ReadGuard as Guard by release, UpgradableGuard as Guard by release, WriteGuard as Guard by release }

/// Logs a release that failed, where no caller receives its result. The keeper goes on.
pub(super) fn log_failed_release(name: &LockName, released: Result<(), ReleaseError>) {
    if let Err(error) = released {
        tracing::warn!(lock = %name, %error, "not released");
    }
}
