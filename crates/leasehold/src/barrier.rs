//! The Barrier: so many wait for one another, and go on together.

use crate::engine::Engine;
use crate::error::{AcquireError, FreeError, InspectError};
use crate::request::{Asker, Request};
use crate::status::{Details, Status};
use leasehold_core::{FencingToken, Lease, Lock, LockName, Portion, Seen};
use std::sync::Arc;
use std::time::Duration;

/// For how long one who was let in is known, so that a process that stood still finds out when it goes on; unless its session
/// has lapsed by then.
const MET: Duration = Duration::from_secs(60);

/// A point at which so many tasks, in whatever processes, wait for one another.
///
/// When the last of them has come, all are let in in one step, or none. Then it can be used again: those who come next
/// wait for one another anew. Whoever gives up, or dies, is not counted any more: the store hears of the one in the
/// background, which [`Client::settle`](crate::Client::settle) waits for, and of a death when its session has ended.
///
/// All who use a barrier at the same time have to wait for the same number; who does not is refused.
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
    request: Request,
    of: u32,
}

/// That all have met at a [`Barrier`].
///
/// [`Barrier`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Met {
    /// The number of this pass: each of those who have met has another, and all have greater ones than those who met before.
    pub fence: FencingToken,
}

impl Barrier {
    /// How many can meet at most: they are let in in one step of the store, which is not to be long.
    pub const MOST: u32 = 64;

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, of: u32) -> Self {
        let mut request = Request::new(engine, lock);
        request.lease(Lease::For(MET));
        Self { request, of }
    }

    /// The barrier's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Waits until so many wait here, this task among them, however long it takes.
    ///
    /// Fails with [`AcquireError::Impossible`] where others wait for another number, and if the store refuses, or does not
    /// answer for as long as the client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, this task is not counted any more, unless all had met by then.
    pub async fn wait(&self) -> Result<Met, AcquireError> {
        self.wait_within(None).await
    }

    /// Waits for `limit` at most: fails with [`AcquireError::TimedOut`] then. Otherwise as [`wait`](Self::wait), also as to
    /// cancel safety.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<Met, AcquireError> {
        self.wait_within(Some(limit)).await
    }

    /// How the barrier stands: how many wait. Changes nothing.
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

    /// Forgets one of those who have met, who was [seen](crate::Sharer::seen): as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force). Who has gone through is not called back.
    ///
    /// Cancel safety: if the future is dropped, it may have been done, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    async fn wait_within(&self, limit: Option<Duration>) -> Result<Met, AcquireError> {
        let asker = Asker { portion: Portion::Meet { of: self.of }, ..Asker::default() };
        let kept = self.request.acquire(&asker, limit).await?;
        // It keeps nobody out, so nobody waits for its end.
        Ok(Met { fence: kept.guard.fencing_token() })
    }
}
