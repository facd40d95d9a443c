//! What a client does with a detached hold: extends it, releases it, or makes it a guard.
//!
//! It calls the engine, and renews nothing: dropping a [`DetachedHold`] changes nothing.

use crate::client::Client;
use crate::engine::{self, Engine, NotAttached, NotExtended, NotReleased, ReleasePolicy};
use crate::error::{ExtendError, ReleaseError};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::lost_reason::LostReason;
use leasehold_core::Executed;
use leasehold_core::machine::renewal::{RenewalPlan, RenewalSchedule};
use leasehold_core::{Lease, LockName, Op, Release, ReleaseAction, whole_millis};
use std::sync::OnceLock;
use std::time::Duration;

/// Why a detached hold could not be turned into a guard.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::AttachError;
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let hold = client.mutex("index")?.lease(Duration::from_secs(60)).acquire_detached().await?;
/// match hold.attach(&client).await {
///     Ok(guard) => guard.release().await?,
///     Err(AttachError::AlreadyAttached { lock }) => println!("this process already attached or released {lock}"),
///     // The hold is returned, and can be attached later unless it is lost.
///     Err(AttachError::NotExtended { hold, error }) => println!("{hold:?}: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// This client has or had a guard of that hold, or has sent a release of it.
    #[error(
        "this client has attached or released this hold of `{lock}` before: there is one guard of a hold"
    )]
    AlreadyAttached {
        /// The lock.
        lock: LockName,
    },
    /// The hold could not be extended, so its remaining time is unknown.
    #[error("{error}")]
    NotExtended {
        /// The hold, unchanged.
        hold: Box<DetachedHold>,
        /// Why it was not extended.
        #[source]
        error: ExtendError,
    },
}

impl DetachedHold {
    /// Extends the hold so that it lasts `lease` from now, if it would end earlier. A call never shortens the
    /// hold.
    ///
    /// Fails if the hold is lost, with the reason, and if the store does not reply within the client's call
    /// timeout; then the hold lasts at least as long as before. A client of a different store reports the
    /// hold as lost.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been extended.
    pub async fn extend(&mut self, client: &Client, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        let engine = &*client.engine;
        let lease = lease.into().remaining(engine.environment.system_time())?;
        let in_time = self.is_in_time(engine);
        // Whatever the result, the hold may last until then from here on.
        let latest = engine.environment.system_time() + engine.timings.call + lease;
        let before = self.expires_at;
        self.expires_at = before.max(latest);
        match engine::extend_detached(engine, &self.lock, &self.claim, (lease, self.margin), in_time).await {
            Ok(()) => {
                self.expires_at = before.max(engine.environment.system_time() + lease);
                Ok(())
            }
            Err(why) => Err(ExtendError::of(why, self.name(), self.fencing_token())),
        }
    }

    /// Releases the lock and hands it to the next waiter. A release can be retried after an error. Releasing again after
    /// a success is no error either, unless another client holds the lock by then.
    ///
    /// Fails if the hold was lost before, with the reason: with
    /// [`LostReason::TakenOver`](crate::LostReason::TakenOver) if it was released before, and another client holds the
    /// lock. (If the release before got no reply, and was sent by another client, this one cannot tell whether it granted the
    /// lock to that holder.) Fails as well if the store does not reply within the
    /// client's call timeout: then the hold ends with its lease at the latest. A client of a different store
    /// reports the hold as lost: with [`LostReason::StoreLostData`](crate::LostReason::StoreLostData) while
    /// the lease runs.
    ///
    /// If this client has [attached](Self::attach) the hold, its guard is lost from now on. A guard of the
    /// hold in another process learns of the release only at its next renewal.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been released; this client can no longer
    /// attach it.
    pub async fn release(&self, client: &Client) -> Result<(), ReleaseError> {
        self.release_with(client, ReleaseAction::Grant).await
    }

    /// Releases the hold, but keeps the lock taken, without a holder, until `at_least` has passed since it
    /// was acquired, by the store's clock. Then the lock is granted to the next waiter. Until then no waiter
    /// is notified, and the lock is [in cooldown](crate::inspect::Status::in_cooldown). Repeating the call is no
    /// error.
    ///
    /// No request about this hold lengthens or ends the cooldown. Only
    /// [a forced release](crate::Mutex::force_release) ends it earlier.
    ///
    /// Fails as [`release`](Self::release) does; and with [`ReleaseError::Impossible`] for a lock that is neither a Mutex nor
    /// an Election, since no other can be left like that: then nothing is sent, and the hold lasts as before.
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
    /// assert!(digest.inspect().await?.in_cooldown);
    /// # Ok(()) }
    /// ```
    pub async fn release_not_before(&self, client: &Client, at_least: Duration) -> Result<(), ReleaseError> {
        self.release_with(client, ReleaseAction::Cooldown { for_ms: whole_millis(at_least) }).await
    }

    async fn release_with(&self, client: &Client, action: ReleaseAction) -> Result<(), ReleaseError> {
        let engine = &*client.engine;
        // Before anything else: to send a release ends the guard that this client may have of the hold.
        let op = Op::Release(Release { claim: self.claim.clone(), action, next: None, history: 0 });
        if let Some(refused) = op.refusal_for(self.lock.kind) {
            return Err(ReleaseError::Impossible(refused));
        }
        let (in_time, max_remaining) = (self.is_in_time(engine), self.max_remaining(engine));
        // The lock delay has begun, and a release would end it.
        if !self.margin.is_zero() && !in_time {
            return Err(ReleaseError::Lost(LostReason::Expired));
        }
        let released = engine::release_detached(engine, &self.lock, &self.claim, &op, in_time, max_remaining);
        released.await.map_err(|error| match error {
            NotReleased::Lost(reason) => ReleaseError::Lost(reason),
            // The caller has the hold, to try again.
            NotReleased::Fault { fault, executed: Executed::No } => {
                ReleaseError::Store { fault, unreleased: None }
            }
            NotReleased::Fault { fault, executed: Executed::Unknown } | NotReleased::NotFound(fault) => {
                ReleaseError::Unknown { fault, unreleased: None }
            }
        })
    }

    /// Turns the hold into an ordinary guard of this client: its watchdog renews the hold, dropping the guard
    /// releases it, and its loss is reported.
    ///
    /// The hold is first extended to the client's watchdog lease, and is valid for that long, counted from
    /// the request. A hold has one guard: a client can attach it only once, from whichever copy of its text.
    /// Two *processes* must not both attach it, since a release by one ends the hold of the other.
    ///
    /// Fails if the hold cannot be extended, because it is lost or the store does not reply; the error
    /// returns the hold. Also fails if this client has already attached or released it.
    ///
    /// Of a lock of another kind, the guard is a plain [`Guard`]: it holds permits, reads, writes or leads like the guards
    /// of that kind, and has none of their further methods.
    ///
    /// Cancel safety: if the future is dropped, the hold stays detached: it may have been extended, and ends
    /// with its lease. Its text stays valid.
    pub async fn attach(self, client: &Client) -> Result<Guard, AttachError> {
        let engine = &client.engine;
        let lease = engine.timings.watchdog;
        let (in_time, max_remaining) = (self.is_in_time(engine), self.max_remaining(engine));
        let began = engine.environment.now();
        let hold_id = (self.claim.clone(), self.fencing_token(), self.margin);
        match engine::attach(engine, &self.lock, hold_id, lease, in_time, max_remaining).await {
            Ok((entry, hold)) => {
                let schedule = RenewalSchedule::new(
                    RenewalPlan::Renew { lease },
                    hold.valid_until(),
                    engine.environment.now(),
                );
                let Some(tracking) = engine.keeper.track(hold.clone(), schedule) else {
                    let why = NotExtended::Lost(LostReason::ShutDown);
                    let error = ExtendError::of(why, self.name(), self.fencing_token());
                    return Err(AttachError::NotExtended { hold: Box::new(self), error });
                };
                let lock = &hold.lock;
                hold.report_acquired(engine.telemetry.acquiring(lock, &OnceLock::new(), began));
                Ok(Guard::new(engine.clone(), entry, hold, tracking, None, ReleasePolicy::default()))
            }
            Err(NotAttached::Already) => Err(AttachError::AlreadyAttached { lock: self.lock.name }),
            Err(NotAttached::NotExtended(why)) => {
                let error = ExtendError::of(why, self.name(), self.fencing_token());
                Err(AttachError::NotExtended { hold: Box::new(self), error })
            }
        }
    }

    /// Whether the lease still runs, by `expires_at`, which is late by one call at most.
    fn is_in_time(&self, engine: &Engine) -> bool {
        engine.environment.system_time() + engine.timings.call < self.expires_at
    }

    /// How much longer the store may keep the hold.
    fn max_remaining(&self, engine: &Engine) -> Duration {
        // At least its lease: `expires_at` comes from another clock.
        self.expires_at.duration_since(engine.environment.system_time()).unwrap_or_default().max(self.lease())
            + self.margin
    }
}
