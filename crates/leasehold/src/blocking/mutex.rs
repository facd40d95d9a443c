//! The blocking mutex.

use super::facade::run;
use super::{Error, Guard, HoldEnds};
use crate::error::{AcquireError, InspectError, LockError, RunError};
use crate::{Attempt, DetachedHold};
use leasehold_core::LockName;
use std::time::Duration;

facade! {
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
    pub struct Mutex;

    settings { lease max_hold max_renewals lock_delay history deadlock max_wait retry low_priority_for expire_foreign sticky yield_every class }

    forward {
        /// Returns the lock's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Tries once to acquire the lock: see [`leasehold::Mutex::try_acquire`](crate::Mutex::try_acquire).
        /// Blocks only for the store's reply.
        pub fn try_acquire(&self) -> Result<Attempt<Guard>, Error<AcquireError>>;

        /// Acquires the lock, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a
        /// limit: see [`leasehold::Mutex::acquire`](crate::Mutex::acquire). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn acquire(&self) -> Result<Guard, Error<AcquireError>>;

        /// Acquires the lock within `limit`: see
        /// [`leasehold::Mutex::acquire_timeout`](crate::Mutex::acquire_timeout).
        pub fn acquire_timeout(&self, limit: Duration) -> Result<Guard, Error<AcquireError>>;

        /// Tries once to acquire a detached hold: see
        /// [`leasehold::Mutex::try_acquire_detached`](crate::Mutex::try_acquire_detached).
        pub fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, Error<AcquireError>>;

        /// Acquires the lock as a detached hold: see
        /// [`leasehold::Mutex::acquire_detached`](crate::Mutex::acquire_detached). [`Client`](super::Client)
        /// extends, releases and attaches it.
        pub fn acquire_detached(&self) -> Result<DetachedHold, Error<AcquireError>>;
    }

    wait {
        #[doc = see!("Observes the ends of holds, by whichever client", Mutex::observe_ends)]
        pub fn observe_ends(&self) -> Result<HoldEnds, Error<InspectError>>;
    }

    operator { "Releases the lock by force from the holder that was observed, dead or alive" }
}

impl Mutex {
    /// Sets the value at the lock's key: see [`leasehold::Mutex::value`](crate::Mutex::value).
    pub fn value(self, value: impl AsRef<str>) -> Result<Self, LockError> {
        Ok(Self { inner: self.inner.value(value)?, ..self })
    }

    /// Runs a function under the lock, and returns its result if the lock was held until the function
    /// returned.
    ///
    /// Fails if the lock is not acquired. If the lock is lost meanwhile, the function is not interrupted,
    /// unlike a future: the call fails when the function returns, with the loss and the function's result
    /// ([`RunError::LostAtRelease`]). So [check](Guard::check) the guard between steps. A release that fails otherwise is
    /// not an error, since the function has returned by then; it is logged as a warning, and goes on in the background.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let sum = client.mutex("sums")?.run(|_guard| 1 + 1)?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T, Error<RunError<T>>> {
        run(self.name(), self.acquire(), work, (Guard::check, Guard::fencing_token), Guard::release)
    }
}
