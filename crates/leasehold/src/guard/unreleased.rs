//! Why a lock was not released, and a hold whose release had no answer.

use crate::LostReason;
use crate::engine::{self, Engine, Hold, NotReleased};
use crate::store::Fault;
use leasehold_core::{Executed, FencingToken, LockName, Refused};
use std::fmt;
use std::sync::Arc;

/// Why a lock was not released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ReleaseError;
///
/// # let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// match guard.release().await {
///     Ok(()) => println!("the next waiter holds it"),
///     // Another process may have worked at the same time, so verify the result.
///     Err(ReleaseError::Lost(reason)) => println!("lost while we worked: {reason}"),
///     // The work is fine. With the error dropped, the client goes on to release the lock in the background.
///     Err(error) => println!("{error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was no longer held, so nothing was changed.
    #[error("the lock was lost before it was released: {0}")]
    Lost(LostReason),
    /// The store could not be reached, or refused the request: the lock has not been released.
    #[error("the lock has not been released yet; it ends with its lease at the latest: {fault}")]
    Store {
        /// The fault.
        #[source]
        fault: Fault,
        /// The hold, to try again. Dropped, it is released in the background. `None` for a detached hold.
        unreleased: Option<Box<Unreleased>>,
    },
    /// The store did not reply, or it replied only to a retry and no longer found the hold. The lock may
    /// already be released.
    #[error("whether the lock was released is unknown; it ends with its lease at the latest: {fault}")]
    Unknown {
        /// The fault.
        #[source]
        fault: Fault,
        /// The hold, to try again. Dropped, it is released in the background. `None` for a detached hold, if the
        /// store does not find the hold any more, and if the client was shut down.
        unreleased: Option<Box<Unreleased>>,
    },
    /// A release like this can never succeed: a lock of this kind [has no
    /// cooldown](crate::DetachedHold::release_not_before). Nothing was sent, and the hold lasts as before.
    #[error("the lock was not released: {0}")]
    Impossible(Refused),
}

impl ReleaseError {
    /// Returns what happened between the client and its store; `None` if the hold was lost, and if nothing was sent.
    pub const fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Lost(_) | Self::Impossible(_) => None,
            Self::Store { fault, .. } | Self::Unknown { fault, .. } => Some(fault),
        }
    }

    /// Returns the hold that is still to be released, if there is one.
    pub fn into_unreleased(self) -> Option<Unreleased> {
        match self {
            Self::Lost(_) | Self::Impossible(_) => None,
            Self::Store { unreleased, .. } | Self::Unknown { unreleased, .. } => {
                unreleased.map(|boxed| *boxed)
            }
        }
    }
}

/// A hold whose release had no answer in its time: part of a [`ReleaseError`].
///
/// [`release`](Self::release) tries again. If this is dropped, with the error or without it, the client goes on to
/// release the lock in the background, exactly as for a dropped guard: until the store answers, or the lease is
/// over. As long as the error is kept, nothing is sent, unless the client connects again. If the client is
/// [shut down](crate::Client::shutdown) meanwhile, that releases the lock, and another attempt returns what came of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let guard = leasehold::Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// if let Err(error) = guard.release().await {
///     eprintln!("{error}");
///     match error.into_unreleased() {
///         // Once more, for as long as a call may take.
///         Some(unreleased) => unreleased.release().await?,
///         None => println!("there is nothing left to release"),
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping it releases the lock in the background"]
pub struct Unreleased {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    /// Whether the first attempt began before the lease had ended by this client's clock.
    in_time: bool,
    /// The fault of the last attempt.
    fault: Fault,
    /// Whether an attempt may have been executed.
    executed: Executed,
    /// Set once there is nothing left to release.
    done: bool,
}

impl Unreleased {
    /// The error of a release that failed. `in_time` is set if it began before the lease had ended by this client's clock,
    /// and `earlier` says whether an attempt before it may have been executed.
    pub(crate) fn error(
        error: NotReleased,
        (engine, hold): (&Arc<Engine>, &Arc<Hold>),
        in_time: bool,
        earlier: Executed,
    ) -> ReleaseError {
        let (fault, executed) = match error {
            NotReleased::Fault { fault, executed } => (fault, earlier.or(executed)),
            NotReleased::Lost(reason) => return ReleaseError::Lost(reason),
            NotReleased::NotFound(fault) => return ReleaseError::Unknown { fault, unreleased: None },
        };
        let (engine, hold) = (engine.clone(), hold.clone());
        let unreleased = Self { engine, hold, in_time, fault: fault.clone(), executed, done: false };
        let unreleased = Some(Box::new(unreleased));
        match executed {
            Executed::No => ReleaseError::Store { fault, unreleased },
            Executed::Unknown => ReleaseError::Unknown { fault, unreleased },
        }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        &self.hold.lock.name
    }

    /// Returns the fencing token of the hold.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.fence
    }

    /// Releases the lock: sends the release again, within the call timeout.
    ///
    /// Fails as the release before. [`ReleaseError::Lost`] only if the store knows how the hold ended, or if its lease
    /// had ended before the first attempt: otherwise an attempt may have released it.
    ///
    /// Cancel safety: if the future is dropped, the lock is released in the background.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let earlier = self.fault.clone();
        let released = engine::release_again(&self.engine, &self.hold, self.in_time, earlier).await;
        // If it has failed, the hold goes on in the error.
        self.done = true;
        let hold = (&self.engine, &self.hold);
        released.map(drop).map_err(|error| Self::error(error, hold, self.in_time, self.executed))
    }
}

impl Drop for Unreleased {
    fn drop(&mut self) {
        if !self.done {
            engine::continue_release(&self.engine, &self.hold);
        }
    }
}

impl fmt::Debug for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreleased")
            .field("lock", self.name())
            .field("fence", &self.hold.fence)
            .finish_non_exhaustive()
    }
}
