//! The Semaphore: so many permits, for whoever takes them.

use crate::engine::Engine;
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError, ResizeError, RunError};
use crate::guard::Guard;
use crate::request::{Asker, Attempt, Request, settings};
use crate::status::{Details, Status};
use leasehold_core::{Lease, Lock, LockName, Portion, RetryPolicy, Seen};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A number of permits that all processes share: so many may work at a time.
///
/// Permits expire, and are renewed, as a [`Mutex`](crate::Mutex) is: those of a process that dies are there again when its
/// session ends, and no release that comes late adds one. Whoever waits is let in in the order in which he came,
/// also where he wants more permits than are free and one behind him wants less. Each hold has a fencing token of its own.
///
/// How many permits there are is kept by the store: what the first one says who acquires, until it is
/// [resized](Self::resize) or was not used for an hour.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
///
/// let uploads = Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// let one = uploads.acquire().await?;
/// let two = uploads.acquire_many(2).await?;
/// assert!(matches!(uploads.try_acquire().await?, Attempt::Taken(_)));
/// two.release().await?;
/// one.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    request: Request,
    of: u32,
}

impl Semaphore {
    /// The most permits that a semaphore can have.
    pub const MOST: u32 = u32::MAX;

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, of: u32) -> Self {
        Self { request: Request::new(engine, lock), of }
    }

    settings! {
        /// How long a hold lasts: it ends when the lease ends. Without a lease a watchdog renews it for as long as its
        /// [`Permit`] lives.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: as [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: as [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy in place of queueing: as [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Tries once: takes a permit if one is free and nobody waits. As [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the background.
    pub async fn try_acquire(&self) -> Result<Attempt<Permit>, AcquireError> {
        self.try_acquire_many(1).await
    }

    /// Tries once: takes so many permits if they are free and nobody waits.
    ///
    /// Fails with [`AcquireError::Impossible`] if there are fewer in all, or none is asked for; and if the store does not
    /// answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the background.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Attempt<Permit>, AcquireError> {
        let tried = self.request.try_acquire(&self.asker(count)).await?;
        Ok(tried.map(|kept| Permit { guard: kept.guard, count }))
    }

    /// Acquires a permit, however long it takes, or for as long as [`wait`](Self::wait) says. As
    /// [`acquire_many`](Self::acquire_many), also as to cancel safety.
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.acquire_many(1).await
    }

    /// Acquires so many permits, all at once, however long it takes, or for as long as [`wait`](Self::wait) says.
    ///
    /// Fails with [`AcquireError::Impossible`] if there are fewer in all, or none is asked for; with
    /// [`AcquireError::TimedOut`] at the limit; and if the store refuses, or does not answer for as long as the client's
    /// outage limit.
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition that may have
    /// happened is undone in the background.
    pub async fn acquire_many(&self, count: u32) -> Result<Permit, AcquireError> {
        self.acquire_within(count, self.request.wait).await
    }

    /// Acquires so many permits within `limit`. Otherwise as [`acquire_many`](Self::acquire_many), also as to cancel
    /// safety.
    pub async fn acquire_many_timeout(&self, count: u32, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_within(count, Some(limit)).await
    }

    /// Acquires a permit within `limit`. Otherwise as [`acquire_many`](Self::acquire_many), also as to cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_within(1, Some(limit)).await
    }

    /// Runs a future with a permit, and drops it if the permit is lost: as [`Mutex::run`](crate::Mutex::run), also as to
    /// errors and cancel safety.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Permit) -> T) -> Result<T, RunError> {
        let permit = self.acquire().await?;
        let result = permit.guard.unless_lost(work(&permit)).await?;
        if let Err(error) = permit.release().await {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// Says how many permits there are from now on, for all processes. Where there are more than before, those who wait are
    /// let in at once. Where there are fewer, whoever holds one keeps it, and nobody is let in until there is room; who
    /// waits for more than there are now fails with [`AcquireError::Impossible`].
    ///
    /// Fails with [`ResizeError::Impossible`] for 0; with [`ResizeError::Contended`] if others kept changing it meanwhile;
    /// and if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, the number may have been changed, or may be yet; but not over what others
    /// have said since.
    pub async fn resize(&self, permits: u32) -> Result<(), ResizeError> {
        self.request.resize(permits).await
    }

    /// How the semaphore stands: all who hold permits, how many there are, and how many wait. Changes nothing.
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

    /// Takes the permits of one hold that was [seen](crate::Sharer::seen), dead or alive: as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force).
    ///
    /// Cancel safety: if the future is dropped, the hold may have been ended, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    async fn acquire_within(&self, count: u32, limit: Option<Duration>) -> Result<Permit, AcquireError> {
        let kept = self.request.acquire(&self.asker(count), limit).await?;
        Ok(Permit { guard: kept.guard, count })
    }

    fn asker(&self, count: u32) -> Asker {
        Asker { portion: Portion::Permits { count, of: self.of }, ..Asker::default() }
    }
}

/// Permits of a [`Semaphore`] that are held, all of them by one hold.
///
/// It gives them back when it is [released](Self::release) or dropped, and tells by the methods of [`Guard`] whether they
/// are held still: a hold can end before its permit does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn upload() {}
/// let uploads = leasehold::Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// let permit = uploads.acquire().await?;
/// tokio::select! {
///     lost = permit.lost() => eprintln!("stopped: {lost}"),
///     () = upload() => permit.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    guard: Guard,
    count: u32,
}

impl Permit {
    /// How many permits it stands for.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Gives the permits back, and lets in who waits: as [`Guard::release`], also as to errors and cancel safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for Permit {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guard", &self.guard)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
