//! Countdown latch: releases all waiters after `n` arrivals.

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError};
use crate::guard::detached::DetachedHold;
use crate::guard::status::{FullStatus, Status};
use crate::lock::handle::{AcquireOptions, Attempt, LockHandle};
use leasehold_core::{Lease, Lock, LockMode, LockName, ObservedHolder};
use std::sync::Arc;
use std::time::Duration;

/// How long the store remembers an admitted waiter, so that a process that was suspended finds out when it
/// resumes.
const WAITER_TTL: Duration = Duration::from_secs(60);

/// A countdown latch across processes: opens after a number of arrivals.
///
/// [Waiting](Self::wait) on an open latch returns at once. An arrival outlives its process: the store
/// remembers it for an hour, or for the time set with [`arrival_ttl`](Self::arrival_ttl), and the latch closes
/// again once it has been forgotten. So use a latch for one occasion, and name it after that:
/// `import/2026-11-22`.
///
/// All clients that use a latch at the same time must give the same number of arrivals; a client with a
/// different number is refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let loaded = leasehold::Client::connect("memory:").await?.latch("shards-loaded", 2)?;
/// let waiting = tokio::spawn({
///     let loaded = loaded.clone();
///     async move { loaded.wait().await }
/// });
/// loaded.arrive().await?;
/// loaded.arrive().await?;
/// waiting.await??;
/// assert!(loaded.is_open().await?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Latch {
    handle: LockHandle,
    total: u32,
}

impl Latch {
    /// How long an arrival is remembered by default.
    pub const ARRIVAL_TTL: Duration = Duration::from_secs(3600);

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, total: u32) -> Self {
        let mut handle = LockHandle::new(engine, lock);
        handle.lease(Lease::For(Self::ARRIVAL_TTL));
        Self { handle, total }
    }

    /// Sets how long arrivals of this handle are remembered. Default: one hour.
    #[must_use]
    pub fn arrival_ttl(mut self, ttl: Duration) -> Self {
        self.handle.lease(Lease::For(ttl));
        self
    }

    /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        self.handle.class(class);
        self
    }

    /// Returns the latch's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Counts one arrival: like [`arrive_many`](Self::arrive_many), including cancel safety.
    pub async fn arrive(&self) -> Result<(), AcquireError> {
        self.arrive_many(1).await
    }

    /// Counts `count` arrivals in one step. If that opens the latch, all waiters are notified.
    ///
    /// Fails with [`AcquireError::Impossible`] if `count` is zero, or if other clients use a different
    /// number; with [`AcquireError::Unknown`] or [`AcquireError::NotExtended`] if the store did not reply: such
    /// an arrival is undone in the background, and may have opened the latch by then.
    ///
    /// Cancel safety: if the future is dropped, an arrival that may have been counted is undone in the
    /// background. It may have opened the latch by then.
    pub async fn arrive_many(&self, count: u32) -> Result<(), AcquireError> {
        let options = AcquireOptions {
            mode: LockMode::CountDown { count, total: self.total },
            ..AcquireOptions::default()
        };
        let tried: Attempt<DetachedHold> = self.handle.try_acquire_detached(&options).await?;
        match tried {
            // From here on the store keeps the arrival, and no process releases it.
            Attempt::Granted(_) => Ok(()),
            Attempt::Taken(contention) => Err(AcquireError::RetriesExhausted {
                lock: self.name().clone(),
                contention: Box::new(contention),
            }),
        }
    }

    /// Waits until the latch is open, without a time limit.
    ///
    /// Fails with [`AcquireError::Impossible`] if other clients use a different number of arrivals, and if
    /// the store refuses the request or does not reply for the client's [outage
    /// limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: dropping the future changes nothing for other clients.
    pub async fn wait(&self) -> Result<(), AcquireError> {
        self.wait_within(None).await
    }

    /// Waits at most `limit` until the latch is open: fails with [`AcquireError::TimedOut`] then. Otherwise
    /// like [`wait`](Self::wait), including cancel safety.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<(), AcquireError> {
        self.wait_within(Some(limit)).await
    }

    /// Returns how many arrivals are remembered, as far as the store reports them: at most 4096, where one
    /// call of `arrive_many` counts once.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn arrived(&self) -> Result<u64, InspectError> {
        let status = self.inspect().await?;
        Ok(status.taken())
    }

    /// Returns whether the latch is open, whatever the number of arrivals: it makes one attempt to pass.
    ///
    /// Fails like [`wait`](Self::wait), and if the store does not reply within the call timeout.
    ///
    /// Cancel safety: dropping the future changes nothing for other clients.
    pub async fn is_open(&self) -> Result<bool, AcquireError> {
        let (handle, options) = self.waiting();
        Ok(handle.try_acquire(&options).await?.granted().is_some())
    }

    /// Returns the current state of the latch: the clients that arrived, and the number of waiters. Changes
    /// nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handle.inspect().await
    }

    /// Returns the current state with the details an operator needs: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.handle.inspect_full().await
    }

    /// Takes back one arrival that was [observed](crate::inspect::SharedHolder::observed): like
    /// [`Mutex::force_release`](crate::Mutex::force_release). Waiters that have already passed are not
    /// affected.
    ///
    /// Cancel safety: if the future is dropped, the arrival may have been taken back, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    /// Takes back all arrivals, so that the latch is shut again: for an operator, or before a rehearsed occasion is
    /// repeated. Returns how many were taken back. Waiters that have already passed are not affected; those that wait
    /// go on waiting. Arrivals during the call may stay, and so do some if there are more than 262 144.
    ///
    /// Fails like [`force_release`](Self::force_release), and may have taken back some by then.
    ///
    /// Cancel safety: if the future is dropped, some arrivals may have been taken back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let loaded = leasehold::Client::connect("memory:").await?.latch("shards-loaded", 2)?;
    /// loaded.arrive().await?;
    /// loaded.arrive().await?;
    /// assert_eq!((loaded.reset().await?, loaded.is_open().await?), (2, false));
    /// # Ok(()) }
    /// ```
    pub async fn reset(&self) -> Result<u64, ForceReleaseError> {
        self.handle.force_release_all(|mode| matches!(mode, LockMode::CountDown { .. })).await
    }

    async fn wait_within(&self, limit: Option<Duration>) -> Result<(), AcquireError> {
        let (handle, options) = self.waiting();
        let acquired = handle.acquire(&options, limit).await?;
        // This hold excludes no client, so its release need not be awaited.
        drop(acquired.guard);
        Ok(())
    }

    /// The request of a waiter.
    fn waiting(&self) -> (LockHandle, AcquireOptions) {
        let options =
            AcquireOptions { mode: LockMode::LatchWait { total: self.total }, ..AcquireOptions::default() };
        let mut handle = self.handle.clone();
        handle.lease(Lease::For(WAITER_TTL));
        (handle, options)
    }
}
