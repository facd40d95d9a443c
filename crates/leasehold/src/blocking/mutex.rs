//! The Mutex of threads.

use super::host::Host;
use super::{Error, Guard, call};
use crate::error::{AcquireError, FreeError, InspectError, LockError, RunError};
use crate::request::{Request, settings};
use crate::{Attempt, DetachedHold, Details, Status};
use leasehold_core::{Lease, LockName, RetryPolicy, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A lock with one holder at a time, over threads, processes and hosts: [`leasehold::Mutex`](crate::Mutex), for threads.
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
///     Attempt::Taken(contention) => println!("somebody else does it: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    inner: crate::Mutex,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async lock.
impl Mutex {
    pub(super) fn new(inner: crate::Mutex, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// How long a hold lasts: see [`leasehold::Mutex::lease`](crate::Mutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: see [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock in place of queueing for it: see [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Gives the key an expiry if a client of another library has locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Keeps a released lock in the process for a while: see [`leasehold::Mutex::sticky`](crate::Mutex::sticky).
        pub fn sticky(self, idle: Duration) -> Self;

        /// Lets the lock lie free now and then, for clients that do not queue: see
        /// [`leasehold::Mutex::share`](crate::Mutex::share).
        pub fn share(self, every: u32) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// The value at the lock's key: see [`leasehold::Mutex::value`](crate::Mutex::value).
    pub fn value(self, value: impl AsRef<str>) -> Result<Self, LockError> {
        Ok(Self { inner: self.inner.value(value)?, ..self })
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name.
impl Mutex {
    /// Tries once: see [`leasehold::Mutex::try_acquire`](crate::Mutex::try_acquire). It waits for the store alone.
    pub fn try_acquire(&self) -> Result<Attempt<Guard>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire()).map(|tried| tried.map(|guard| self.held(guard)))
    }

    /// Acquires the lock, however long it takes, or for as long as [`wait`](Self::wait) says: see
    /// [`leasehold::Mutex::acquire`](crate::Mutex::acquire). A thread that waits can be stopped by
    /// [`Client::shutdown`](super::Client::shutdown) only.
    pub fn acquire(&self) -> Result<Guard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire()).map(|guard| self.held(guard))
    }

    /// Acquires the lock within `limit`: see [`leasehold::Mutex::acquire_timeout`](crate::Mutex::acquire_timeout).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<Guard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_timeout(limit)).map(|guard| self.held(guard))
    }

    /// Tries once, for a hold that no process keeps: see
    /// [`leasehold::Mutex::try_acquire_detached`](crate::Mutex::try_acquire_detached).
    pub fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire_detached())
    }

    /// Acquires the lock for a hold that no process keeps: see
    /// [`leasehold::Mutex::acquire_detached`](crate::Mutex::acquire_detached). [`Client`](super::Client) extends,
    /// releases and attaches it.
    pub fn acquire_detached(&self) -> Result<DetachedHold, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_detached())
    }

    /// Runs a function under the lock: what it gives, if the lock was held until it had ended.
    ///
    /// Fails if the lock is not acquired. If it is lost meanwhile nobody stops the function, unlike a future: it fails
    /// when that has ended, and what it gave is dropped. So have it [check](Guard::check) between its steps. If giving
    /// the lock back fails, that is not an error: the function has ended by then.
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

    /// How the lock stands. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// How the lock stands, who is behind its holder, and who took it from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        call(&self.host, self.inner.inspect_in_full())
    }

    /// Takes the lock from the holder that was seen, dead or alive: see
    /// [`leasehold::Mutex::free_by_force`](crate::Mutex::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        call(&self.host, self.inner.free_by_force(seen))
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
