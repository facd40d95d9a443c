//! The Semaphore of threads.

use super::guard::face;
use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError, ResizeError, RunError};
use crate::request::{Request, settings};
use crate::{Attempt, Details, Status};
use leasehold_core::{FencingToken, Lease, LockName, RetryPolicy, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A number of permits that all processes share: [`leasehold::Semaphore`](crate::Semaphore), for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn upload(_: u32) {}
/// let uploads = leasehold::blocking::Client::connect("memory:")?.semaphore("uploads", 3)?;
/// std::thread::scope(|threads| {
///     for n in 0..10 {
///         let uploads = &uploads;
///         threads.spawn(move || uploads.run(|_permit| upload(n))); // three at a time
///     }
/// });
/// assert_eq!(uploads.inspect()?.taken(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async semaphore.
impl Semaphore {
    pub(super) fn new(inner: crate::Semaphore, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// How long a hold lasts: see [`leasehold::Semaphore::lease`](crate::Semaphore::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: see [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy in place of queueing: see [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name.
impl Semaphore {
    /// Tries once to take a permit: see [`leasehold::Semaphore::try_acquire`](crate::Semaphore::try_acquire). It waits for
    /// the store alone.
    pub fn try_acquire(&self) -> Result<Attempt<Permit>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire()).map(|tried| tried.map(|permit| self.held(permit)))
    }

    /// Tries once to take so many permits: see
    /// [`leasehold::Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many). It waits for the store alone.
    pub fn try_acquire_many(&self, count: u32) -> Result<Attempt<Permit>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire_many(count))
            .map(|tried| tried.map(|permit| self.held(permit)))
    }

    /// Acquires a permit, however long it takes, or for as long as [`wait`](Self::wait) says: see
    /// [`leasehold::Semaphore::acquire`](crate::Semaphore::acquire). A thread that waits can be stopped by
    /// [`Client::shutdown`](super::Client::shutdown) only.
    pub fn acquire(&self) -> Result<Permit, Error<AcquireError>> {
        call(&self.host, self.inner.acquire()).map(|permit| self.held(permit))
    }

    /// Acquires so many permits, all at once: see
    /// [`leasehold::Semaphore::acquire_many`](crate::Semaphore::acquire_many). Otherwise as [`acquire`](Self::acquire).
    pub fn acquire_many(&self, count: u32) -> Result<Permit, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_many(count)).map(|permit| self.held(permit))
    }

    /// Acquires a permit within `limit`. Otherwise as [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<Permit, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_timeout(limit)).map(|permit| self.held(permit))
    }

    /// Acquires so many permits within `limit`. Otherwise as [`acquire_many`](Self::acquire_many).
    pub fn acquire_many_timeout(&self, count: u32, limit: Duration) -> Result<Permit, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_many_timeout(count, limit)).map(|permit| self.held(permit))
    }

    /// Runs a function with a permit.
    ///
    /// Fails as [`Mutex::run`](super::Mutex::run) does: if the permit is lost meanwhile, when the function has ended.
    pub fn run<T>(&self, work: impl FnOnce(&Permit) -> T) -> Result<T, Error<RunError>> {
        let permit = self.acquire().map_err(|error| error.map(RunError::Acquire))?;
        let result = work(&permit);
        permit.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        if let Err(error) = permit.release() {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// Says how many permits there are from now on, for all processes: see
    /// [`leasehold::Semaphore::resize`](crate::Semaphore::resize).
    pub fn resize(&self, permits: u32) -> Result<(), Error<ResizeError>> {
        call(&self.host, self.inner.resize(permits))
    }

    /// How the semaphore stands: all who hold permits, how many there are, and how many wait. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// How the semaphore stands, who is behind each hold, and who took permits from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        call(&self.host, self.inner.inspect_in_full())
    }

    /// Takes the permits of one hold that was [seen](crate::Sharer::seen), dead or alive: see
    /// [`leasehold::Semaphore::free_by_force`](crate::Semaphore::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        call(&self.host, self.inner.free_by_force(seen))
    }

    fn held(&self, permit: crate::Permit) -> Permit {
        Permit::new(permit, self.host.clone())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Semaphore").field(&self.inner).finish()
    }
}

/// Permits of a [`Semaphore`] that are held, all of them by one hold: [`leasehold::Permit`](crate::Permit), for threads.
///
/// It is renewed while its thread does something else, or nothing. Any thread may use it, and give it back. One that is
/// dropped gives its permits back in the background, in an async context and while a thread panics, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let parts = [1, 2];
/// # fn send(_: &i32) {}
/// let uploads = leasehold::blocking::Client::connect("memory:")?.semaphore("uploads", 3)?;
/// let permit = uploads.acquire_many(2)?;
/// for part in &parts {
///     permit.check()?; // stops here if it was lost
///     send(part);
/// }
/// assert_eq!(permit.count(), 2);
/// permit.release()?;
/// # Ok(()) }
/// ```
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    inner: crate::Permit,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(Permit by Guard);

impl Permit {
    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// How many permits it stands for.
    pub fn count(&self) -> u32 {
        self.inner.count()
    }

    /// The number of this hold: greater than that of every earlier hold of the semaphore.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Gives the permits back, and lets in who waits.
    ///
    /// Fails as [`leasehold::Guard::release`](crate::Guard::release) does. In an async context they are given back all the
    /// same, in the background, as if the permit had been dropped: only nobody waits for it.
    pub fn release(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}
