//! Barrier: a fixed number of tasks wait for one another, and continue together.

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError};
use crate::guard::status::{FullStatus, Status};
use crate::lock::handle::{AcquireOptions, LockHandle};
use leasehold_core::{FencingToken, Lease, Lock, LockMode, LockName, ObservedHolder};
use std::sync::Arc;
use std::time::Duration;

/// How long the store remembers an admitted party, so that a process that was suspended finds out when it
/// resumes, unless its session has lapsed by then.
const PASS_TTL: Duration = Duration::from_secs(60);

/// A barrier: a point at which a fixed number of tasks, in any processes, wait for one another.
///
/// When the last of them arrives, all are admitted in one step, or none. Then the barrier can be used again:
/// the next tasks wait for one another anew. A task that gives up, or dies, no longer counts. The store
/// learns of a task that gave up in the background, which [`Client::flush`](crate::Client::flush) waits
/// for, and of a death when the session ends. A process whose session lapses, because it was stopped or cut off
/// for too long, counts as dead until then; its tasks that still wait arrive anew, and may so have filled
/// a round before that they do not learn of.
///
/// All clients that use a barrier at the same time must give the same number of parties; a client with a
/// different number is refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let ready = client.barrier("all-ready", 2)?;
/// let (one, other) = tokio::join!(ready.wait(), ready.wait());
/// assert!(one?.fence != other?.fence);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Barrier {
    handle: LockHandle,
    total: u32,
}

/// The result of waiting at a [`Barrier`] until all parties have arrived.
///
/// See [`Barrier`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BarrierWaitResult {
    /// The fencing token of this pass: different for each party, and greater than every token of earlier
    /// passes.
    pub fence: FencingToken,
}

impl Barrier {
    /// The largest number of parties: the store admits them in one step, which must stay short.
    pub const MAX_PARTIES: u32 = 64;

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, total: u32) -> Self {
        let mut handle = LockHandle::new(engine, lock);
        handle.lease(Lease::For(PASS_TTL));
        Self { handle, total }
    }

    /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        self.handle.class(class);
        self
    }

    /// Returns the barrier's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Waits until all parties have arrived, this task among them, without a time limit.
    ///
    /// Fails with [`AcquireError::Impossible`] if other clients use a different number of parties, and if the
    /// store refuses the request or does not reply for the client's [outage
    /// limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, this task no longer counts, unless all parties had arrived by
    /// then.
    pub async fn wait(&self) -> Result<BarrierWaitResult, AcquireError> {
        self.wait_within(None).await
    }

    /// Waits at most `limit`: fails with [`AcquireError::TimedOut`] then. Otherwise like
    /// [`wait`](Self::wait), including cancel safety.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<BarrierWaitResult, AcquireError> {
        self.wait_within(Some(limit)).await
    }

    /// Returns the current state of the barrier: the number of waiters. Changes nothing.
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

    /// Removes one admitted party that was [observed](crate::inspect::SharedHolder::observed): like
    /// [`Mutex::force_release`](crate::Mutex::force_release). Parties that have already passed are not
    /// affected.
    ///
    /// Cancel safety: if the future is dropped, the party may have been removed, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    async fn wait_within(&self, limit: Option<Duration>) -> Result<BarrierWaitResult, AcquireError> {
        let options =
            AcquireOptions { mode: LockMode::BarrierWait { total: self.total }, ..AcquireOptions::default() };
        let acquired = self.handle.acquire(&options, limit).await?;
        // This hold excludes no client, so its release need not be awaited.
        Ok(BarrierWaitResult { fence: acquired.guard.fencing_token() })
    }
}
