//! The Latch: it opens when so many have arrived.

use crate::detached::DetachedHold;
use crate::engine::Engine;
use crate::error::{AcquireError, FreeError, InspectError};
use crate::request::{Asker, Attempt, Request};
use crate::status::{Details, Status};
use leasehold_core::{Lease, Lock, LockName, Portion, Seen};
use std::sync::Arc;
use std::time::Duration;

/// For how long one who was let through is known, so that a process that stood still finds out when it goes on.
const KNOWN: Duration = Duration::from_secs(60);

/// A gate that opens when so many have arrived, in whatever process: a count-down latch.
///
/// Whoever [waits](Self::wait) goes on at once where it is open. An arrival outlives its process: it is remembered for an
/// hour, or for as long as [`remember`](Self::remember) says, and the latch is shut again when it has been forgotten. So a
/// latch is for one occasion, and its name should say which: `import/2026-11-22`.
///
/// All who use a latch at the same time have to count to the same number; who does not is refused.
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
    request: Request,
    of: u32,
}

impl Latch {
    /// How long an arrival is remembered if nothing is set.
    pub const REMEMBERED: Duration = Duration::from_secs(3600);

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, of: u32) -> Self {
        let mut request = Request::new(engine, lock);
        request.lease(Lease::For(Self::REMEMBERED));
        Self { request, of }
    }

    /// How long an arrival of this handle is remembered: an hour if nothing is set.
    #[must_use]
    pub fn remember(mut self, span: Duration) -> Self {
        self.request.lease(Lease::For(span));
        self
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Arrives, once: as [`arrive_many`](Self::arrive_many), also as to cancel safety.
    pub async fn arrive(&self) -> Result<(), AcquireError> {
        self.arrive_many(1).await
    }

    /// Arrives so many times in one step. If that opens the latch, all who wait are told.
    ///
    /// Fails with [`AcquireError::Impossible`] for none at all, and where others count to another number; with
    /// [`AcquireError::Unknown`] or [`AcquireError::NotKept`] if the store did not answer: such an arrival is undone in the
    /// background, and may have opened the latch by then.
    ///
    /// Cancel safety: if the future is dropped, an arrival that may have been counted is undone in the background. It may
    /// have opened the latch by then.
    pub async fn arrive_many(&self, count: u32) -> Result<(), AcquireError> {
        let asker = Asker { portion: Portion::Arrive { count, of: self.of }, ..Asker::default() };
        let tried: Attempt<DetachedHold> = self.request.try_acquire_detached(&asker).await?;
        match tried {
            // It is kept by the store from here on, and given back by nobody.
            Attempt::Granted(_) => Ok(()),
            Attempt::Taken(contention) => {
                Err(AcquireError::OutOfTries { lock: self.name().clone(), contention: Box::new(contention) })
            }
        }
    }

    /// Waits until the latch is open, however long it takes.
    ///
    /// Fails with [`AcquireError::Impossible`] where others count to another number, and if the store refuses, or does not
    /// answer for as long as the client's outage limit.
    ///
    /// Cancel safety: dropping the future changes nothing for others.
    pub async fn wait(&self) -> Result<(), AcquireError> {
        self.wait_within(None).await
    }

    /// Waits until the latch is open, for `limit` at most: fails with [`AcquireError::TimedOut`] then. Otherwise as
    /// [`wait`](Self::wait), also as to cancel safety.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<(), AcquireError> {
        self.wait_within(Some(limit)).await
    }

    /// How many have arrived that are remembered, as far as they are told: 4096 arrivals, those of `arrive_many` counted as
    /// one.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn arrived(&self) -> Result<u64, InspectError> {
        let status = self.inspect().await?;
        Ok(status.taken())
    }

    /// Whether so many have arrived, however many that are: it tries to go through.
    ///
    /// Fails as [`wait`](Self::wait) does, and if the store does not answer within the call timeout.
    ///
    /// Cancel safety: dropping the future changes nothing for others.
    pub async fn is_open(&self) -> Result<bool, AcquireError> {
        let (request, asker) = self.waiting();
        Ok(request.try_acquire(&asker).await?.granted().is_some())
    }

    /// How the latch stands: who has arrived, and how many wait. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.request.inspect().await
    }

    /// The same, and what people want to know beside that: as
    /// [`Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        self.request.inspect_in_full().await
    }

    /// Takes back one arrival that was [seen](crate::Sharer::seen): as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force). Who has gone through is not called back.
    ///
    /// Cancel safety: if the future is dropped, it may have been done, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    async fn wait_within(&self, limit: Option<Duration>) -> Result<(), AcquireError> {
        let (request, asker) = self.waiting();
        let kept = request.acquire(&asker, limit).await?;
        // It keeps nobody out, so nobody waits for its end.
        drop(kept.guard);
        Ok(())
    }

    /// How one asks to go through.
    fn waiting(&self) -> (Request, Asker) {
        let asker = Asker { portion: Portion::Await { of: self.of }, ..Asker::default() };
        let mut request = self.request.clone();
        request.lease(Lease::For(KNOWN));
        (request, asker)
    }
}
