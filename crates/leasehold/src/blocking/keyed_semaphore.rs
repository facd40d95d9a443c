//! The blocking semaphore with a limit for each key.

use super::facade::{IntoBlocking, run};
use super::{Error, Semaphore};
use crate::MultiAttempt;
use crate::error::{AcquireError, InspectError, MultiReleaseError, ReleaseError, RunError};
use leasehold_core::{FencingToken, LockName};
use std::time::Duration;

facade! {
    /// A counting semaphore with a limit for each key as well: [`leasehold::KeyedSemaphore`](crate::KeyedSemaphore), for
    /// threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn export(_: &str) {}
    /// let exports = leasehold::blocking::Client::connect("memory:")?.keyed_semaphore("exports", 100, 5)?;
    /// exports.run("tenant-17", |_permit| export("tenant-17"))?;
    /// assert_eq!(exports.available_permits("tenant-17")?, 5);
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct KeyedSemaphore;

    settings { lease max_hold max_renewals max_wait class }

    forward {
        /// Returns the semaphore's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Tries once to acquire a permit for a key: see
        /// [`leasehold::KeyedSemaphore::try_acquire`](crate::KeyedSemaphore::try_acquire). Blocks only for the store's
        /// replies.
        pub fn try_acquire(&self, key: &str) -> Result<MultiAttempt<KeyedPermit>, Error<AcquireError>>;

        /// Tries once to acquire `count` permits for a key: see
        /// [`leasehold::KeyedSemaphore::try_acquire_many`](crate::KeyedSemaphore::try_acquire_many). Blocks only for the
        /// store's replies.
        pub fn try_acquire_many(&self, key: &str, count: u32) -> Result<MultiAttempt<KeyedPermit>, Error<AcquireError>>;

        /// Acquires a permit for a key, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a limit:
        /// see [`leasehold::KeyedSemaphore::acquire`](crate::KeyedSemaphore::acquire). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn acquire(&self, key: &str) -> Result<KeyedPermit, Error<AcquireError>>;

        /// Acquires `count` permits for a key, all at once: see
        /// [`leasehold::KeyedSemaphore::acquire_many`](crate::KeyedSemaphore::acquire_many). Otherwise like
        /// [`acquire`](Self::acquire).
        pub fn acquire_many(&self, key: &str, count: u32) -> Result<KeyedPermit, Error<AcquireError>>;

        /// Acquires a permit for a key within `limit`. Otherwise like [`acquire`](Self::acquire).
        pub fn acquire_timeout(&self, key: &str, limit: Duration) -> Result<KeyedPermit, Error<AcquireError>>;

        /// Acquires `count` permits for a key within `limit`. Otherwise like [`acquire_many`](Self::acquire_many).
        pub fn acquire_many_timeout(&self, key: &str, count: u32, limit: Duration) -> Result<KeyedPermit, Error<AcquireError>>;

        /// Returns how many permits are free for a key: see
        /// [`leasehold::KeyedSemaphore::available_permits`](crate::KeyedSemaphore::available_permits).
        pub fn available_permits(&self, key: &str) -> Result<u32, Error<InspectError>>;
    }
}

impl KeyedSemaphore {
    /// Makes an acquire change either number of permits where other clients use another one: see
    /// [`leasehold::KeyedSemaphore::resize_on_mismatch`](crate::KeyedSemaphore::resize_on_mismatch).
    #[must_use]
    pub fn resize_on_mismatch(self) -> Self {
        Self { inner: self.inner.resize_on_mismatch(), ..self }
    }

    /// Returns the semaphore for all keys: see [`leasehold::KeyedSemaphore::all`](crate::KeyedSemaphore::all).
    pub fn all(&self) -> Semaphore {
        self.inner.all().clone().into_blocking(&self.thread)
    }

    /// Returns the semaphore of a key alone: see
    /// [`leasehold::KeyedSemaphore::of_key`](crate::KeyedSemaphore::of_key).
    pub fn of_key(&self, key: &str) -> Semaphore {
        self.inner.of_key(key).into_blocking(&self.thread)
    }

    /// Runs a function with a permit for a key.
    ///
    /// Fails like [`Mutex::run`](super::Mutex::run): if the permit is lost meanwhile, once the function has returned.
    pub fn run<T>(&self, key: &str, work: impl FnOnce(&KeyedPermit) -> T) -> Result<T, Error<RunError<T>>> {
        let of_guard = (|permit: &KeyedPermit| permit.check(), KeyedPermit::fencing_token);
        run(self.name(), self.acquire(key), work, of_guard, KeyedPermit::release_worst)
    }
}

facade! {
    /// One or more permits of a [`KeyedSemaphore`]: [`leasehold::KeyedPermit`](crate::KeyedPermit), for threads.
    ///
    /// It counts as lost as soon as one of its two holds is. Both are renewed whatever their thread does meanwhile. Any thread
    /// may use and release it. Dropping it releases its permits in the background, also in an async context and while a thread
    /// panics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = [1, 2];
    /// # fn write(_: &i32) {}
    /// let exports = leasehold::blocking::Client::connect("memory:")?.keyed_semaphore("exports", 100, 5)?;
    /// let permit = exports.acquire("tenant-17")?;
    /// for row in &rows {
    ///     permit.check()?; // stops here if it was lost
    ///     write(row);
    /// }
    /// permit.release()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping a permit releases it"]
    pub struct KeyedPermit;

    guard { MultiGuard }

    forward {
        /// Returns the name of the semaphore for all keys.
        pub fn name(&self) -> &LockName;

        /// Returns the number of permits: as many of the key as of those for all.
        pub fn count(&self) -> u32;

        /// Returns the fencing token of the hold of the semaphore for all keys: a number greater than that of every earlier
        /// one, whatever its key.
        pub fn fencing_token(&self) -> FencingToken;
    }

    end {
        /// Releases the permits, those for all and then those of the key, and admits the next waiters.
        ///
        /// Fails with what was not released, and the reason for each. In an async context the permits are released in the
        /// background, as if the permit had been dropped, without waiting for the result.
        pub fn release(self) -> Result<(), Error<MultiReleaseError>>;
    }
}

impl KeyedPermit {
    /// Releases the permits. Of two errors returns the loss; the other hold, if it was not released, is released in the
    /// background.
    pub(super) fn release_worst(self) -> Result<(), Error<ReleaseError>> {
        self.release().or_else(|error| match error {
            Error::Failed(error) => error.into_worst().map_err(Error::Failed),
            Error::AsyncContext(error) => Err(Error::AsyncContext(error)),
        })
    }
}
