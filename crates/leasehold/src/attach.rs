//! What a client does with a detached hold: extends it, releases it, or makes it a guard.
//!
//! It says what is asked of the engine. It does not keep anything: a [`DetachedHold`] that is dropped changes nothing.

use crate::client::Client;
use crate::detached::DetachedHold;
use crate::engine::{self, Engine, LostReason, NotAttached, NotExtended, NotReleased, ReleasePolicy};
use crate::error::{ExtendError, ReleaseError};
use crate::guard::Guard;
use leasehold_core::Executed;
use leasehold_core::renewal::{RenewalPlan, RenewalSchedule};
use leasehold_core::{Lease, LockName, ReleaseAction, whole_millis};
use std::time::Duration;

/// Why a detached hold did not become a guard.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{AttachError, Client};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let hold = client.mutex("index")?.lease(Duration::from_secs(60)).acquire_detached().await?;
/// match hold.attach(&client).await {
///     Ok(guard) => guard.release().await?,
///     Err(AttachError::Already { lock }) => println!("this process works under {lock} already"),
///     // The hold comes back, and can be attached later if it is not lost.
///     Err(AttachError::NotExtended { hold, error }) => println!("{hold:?}: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// This client has a guard of that hold, or had one, or was told to release the hold.
    #[error(
        "this client has attached or released this hold of `{lock}` before: there is one guard of a hold"
    )]
    Already {
        /// The lock.
        lock: LockName,
    },
    /// It was not extended: nobody knows for how long it may be believed.
    #[error("{error}")]
    NotExtended {
        /// The hold, as it was.
        hold: Box<DetachedHold>,
        /// Why it was not extended.
        #[source]
        error: ExtendError,
    },
}

impl DetachedHold {
    /// Lengthens the hold to last `lease` from now, if it would end earlier. It never ends earlier for it.
    ///
    /// Fails if it was lost, which says why, and if the store does not answer within the client's call
    /// timeout; then it lasts at least as long as it did. A client of another store says that it is lost.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been extended.
    pub async fn extend(&mut self, client: &Client, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        let engine = &*client.engine;
        let lease = lease.into().remaining(engine.environment.wall())?;
        let in_time = self.is_in_time(engine);
        // Whatever comes of it, it may last until then from here on.
        let latest = engine.environment.wall() + engine.timings.call + lease;
        let before = self.ends_by;
        self.ends_by = before.max(latest);
        match engine::extend_detached(engine, &self.lock, &self.claim, lease, in_time).await {
            Ok(()) => {
                self.ends_by = before.max(engine.environment.wall() + lease);
                Ok(())
            }
            Err(why) => Err(ExtendError::of(why, self.name(), self.fencing_token())),
        }
    }

    /// Gives the lock back, and hands it to the next who waits. Doing so again is no error, as long as nobody has
    /// held the lock since: so after an error it can be tried again.
    ///
    /// Fails if the hold was lost before, which says why, and if the store does not answer within the client's call
    /// timeout: then it ends with its lease at the latest. A client of another store says that it is lost:
    /// [`LostReason::StoreLostData`](crate::LostReason::StoreLostData) while the lease runs.
    ///
    /// If this client has [attached](Self::attach) the hold, its guard is lost from now on. A guard that
    /// another process has of it learns of the release at its next renewal only.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been released; this client attaches it no more.
    pub async fn release(&self, client: &Client) -> Result<(), ReleaseError> {
        self.give_up(client, ReleaseAction::Grant).await
    }

    /// Gives the lock back, but leaves it taken, by nobody, until `at_least` has passed since it was acquired, by the
    /// store's clock; where that is over it is handed to the next who waits. Nobody who waits is told before, and
    /// whoever looks is told that it [rests](crate::Status::rests). Doing so again is no error.
    ///
    /// The rest cannot be lengthened or ended by anything that is sent about this hold. Only
    /// [force](crate::Mutex::force_release) ends it earlier.
    ///
    /// Fails as [`release`](Self::release) does.
    ///
    /// Cancel safety: as [`release`](Self::release).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let digest = client.mutex("digest")?.lease(Duration::from_secs(600));
    /// let hold = digest.acquire_detached().await?;
    /// hold.release_not_before(&client, Duration::from_secs(60)).await?;
    /// assert!(digest.try_acquire().await?.granted().is_none(), "a minute is not over yet");
    /// assert!(digest.inspect().await?.rests);
    /// # Ok(()) }
    /// ```
    pub async fn release_not_before(&self, client: &Client, at_least: Duration) -> Result<(), ReleaseError> {
        self.give_up(client, ReleaseAction::Rest { for_ms: whole_millis(at_least) }).await
    }

    async fn give_up(&self, client: &Client, pass: ReleaseAction) -> Result<(), ReleaseError> {
        let engine = &*client.engine;
        let (in_time, may_last) = (self.is_in_time(engine), self.may_last(engine));
        let released = engine::release_detached(engine, &self.lock, &self.claim, pass, in_time, may_last);
        released.await.map_err(|error| match error {
            NotReleased::Lost(reason) => ReleaseError::Lost(reason),
            NotReleased::Fault { fault, executed: Executed::No } => ReleaseError::Store(fault),
            NotReleased::Fault { fault, executed: Executed::Unknown } => ReleaseError::Unknown(fault),
        })
    }

    /// Turns the hold into an ordinary guard, which this client keeps from now on: its watchdog renews it, it is
    /// given back when the guard is dropped, and its loss is told.
    ///
    /// It is extended first, to the client's watchdog lease, and believed as long as that carries: counted from the
    /// sending. There is one guard of a hold: the same client attaches it once, from whatever copy of its text. Two
    /// *processes* must not both attach it, since the release of the one ends what the other believes in.
    ///
    /// Fails if the hold cannot be extended, because it is lost or the store does not answer; the error hands it
    /// back. And fails if this client has attached or released it before.
    ///
    /// Cancel safety: if the future is dropped, the hold stays detached: it may have been extended, and ends with its
    /// lease. Its text still stands for it.
    pub async fn attach(self, client: &Client) -> Result<Guard, AttachError> {
        let engine = &client.engine;
        let lease = engine.timings.watchdog;
        let (in_time, may_last) = (self.is_in_time(engine), self.may_last(engine));
        let ours = (self.claim.clone(), self.fencing_token());
        match engine::attach(engine, &self.lock, ours, lease, in_time, may_last).await {
            Ok((seat, hold)) => {
                let tenure = RenewalSchedule::new(
                    RenewalPlan::Renew { lease },
                    hold.valid_until(),
                    engine.environment.now(),
                );
                let Some(keep) = engine.keeper.keep(hold.clone(), tenure) else {
                    let why = NotExtended::Lost(LostReason::ShutDown);
                    let error = ExtendError::of(why, self.name(), self.fencing_token());
                    return Err(AttachError::NotExtended { hold: Box::new(self), error });
                };
                Ok(Guard::new(engine.clone(), seat, hold, keep, None, ReleasePolicy::default()))
            }
            Err(NotAttached::Already) => Err(AttachError::Already { lock: self.lock.name }),
            Err(NotAttached::NotExtended(why)) => {
                let error = ExtendError::of(why, self.name(), self.fencing_token());
                Err(AttachError::NotExtended { hold: Box::new(self), error })
            }
        }
    }

    /// Whether the lease runs still, as far as the hint says. The hint is late by a call at most.
    fn is_in_time(&self, engine: &Engine) -> bool {
        engine.environment.wall() + engine.timings.call < self.ends_by
    }

    /// For how long the store may have it still.
    fn may_last(&self, engine: &Engine) -> Duration {
        // At least its lease: the hint is of another clock.
        self.ends_by.duration_since(engine.environment.wall()).unwrap_or_default().max(self.lease())
    }
}
