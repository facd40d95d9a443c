//! The blocking mutex.

use super::host::Host;
use super::{Error, Guard, call};
use crate::error::{AcquireError, ForceReleaseError, InspectError, LockError, RunError};
use crate::request::{Request, settings};
use crate::{Attempt, DetachedHold, FullStatus, Status};
use leasehold_core::{Lease, LockName, ObservedHolder, RetryPolicy};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A mutual exclusion lock across threads, processes and hosts: [`leasehold::Mutex`](crate::Mutex), for
/// threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, blocking::Client};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:")?;
/// let nightly = client.mutex("nightly")?.lease(Duration::from_secs(60));
/// match nightly.try_acquire()? {
///     Attempt::Granted(guard) => guard.release()?,
///     Attempt::Taken(contention) => println!("another process does it: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    inner: crate::Mutex,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// Settings, as of the async lock.
impl Mutex {
    pub(super) fn new(inner: crate::Mutex, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// Sets the lease of a hold: see [`leasehold::Mutex::lease`](crate::Mutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed: see
        /// [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock instead of queueing for it: see
        /// [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Sets an expiry on the lock's key if a client of another library locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Keeps a released lock in this process for a while: see
        /// [`leasehold::Mutex::sticky`](crate::Mutex::sticky).
        pub fn sticky(self, idle: Duration) -> Self;

        /// Leaves the lock free at every `every`th release, for clients that do not queue: see
        /// [`leasehold::Mutex::yield_every`](crate::Mutex::yield_every).
        pub fn yield_every(self, every: u32) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// Sets the value at the lock's key: see [`leasehold::Mutex::value`](crate::Mutex::value).
    pub fn value(self, value: impl AsRef<str>) -> Result<Self, LockError> {
        Ok(Self { inner: self.inner.value(value)?, ..self })
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call blocks until the async method of the same name completes.
impl Mutex {
    /// Tries once to acquire the lock: see [`leasehold::Mutex::try_acquire`](crate::Mutex::try_acquire).
    /// Blocks only for the store's reply.
    pub fn try_acquire(&self) -> Result<Attempt<Guard>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire()).map(|tried| tried.map(|guard| self.held(guard)))
    }

    /// Acquires the lock, and waits for as long as [`wait`](Self::wait) allows, or without a limit: see
    /// [`leasehold::Mutex::acquire`](crate::Mutex::acquire). Only
    /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
    pub fn acquire(&self) -> Result<Guard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire()).map(|guard| self.held(guard))
    }

    /// Acquires the lock within `limit`: see
    /// [`leasehold::Mutex::acquire_timeout`](crate::Mutex::acquire_timeout).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<Guard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_timeout(limit)).map(|guard| self.held(guard))
    }

    /// Tries once to acquire a detached hold: see
    /// [`leasehold::Mutex::try_acquire_detached`](crate::Mutex::try_acquire_detached).
    pub fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire_detached())
    }

    /// Acquires the lock as a detached hold: see
    /// [`leasehold::Mutex::acquire_detached`](crate::Mutex::acquire_detached). [`Client`](super::Client)
    /// extends, releases and attaches it.
    pub fn acquire_detached(&self) -> Result<DetachedHold, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_detached())
    }

    /// Runs a function under the lock, and returns its result if the lock was held until the function
    /// returned.
    ///
    /// Fails if the lock is not acquired. If the lock is lost meanwhile, the function is not interrupted,
    /// unlike a future: the call fails when the function returns, and its result is dropped. So
    /// [check](Guard::check) the guard between steps. A failed release is not an error, since the function
    /// has returned by then; it is logged as a warning.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let sum = client.mutex("sums")?.run(|_guard| 1 + 1)?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T, Error<RunError>> {
        let guard = self.acquire().map_err(|error| error.map(RunError::Acquire))?;
        let result = work(&guard);
        guard.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        if let Err(error) = guard.release() {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// Returns the current state of the lock. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// Returns the current state of the lock, the session of its holder, and the audit of holds that
    /// other clients ended: see [`leasehold::Mutex::inspect_full`](crate::Mutex::inspect_full).
    pub fn inspect_full(&self) -> Result<FullStatus, Error<InspectError>> {
        call(&self.host, self.inner.inspect_full())
    }

    /// Releases the lock by force from the holder that was seen, dead or alive: see
    /// [`leasehold::Mutex::force_release`](crate::Mutex::force_release).
    pub fn force_release(&self, seen: ObservedHolder) -> Result<(), Error<ForceReleaseError>> {
        call(&self.host, self.inner.force_release(seen))
    }

    fn held(&self, guard: crate::Guard) -> Guard {
        Guard::new(guard, self.host.clone())
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Mutex").field(&self.inner).finish()
    }
}
