//! The blocking semaphore.

use super::facade::run;
use super::{Error, HoldEnds, call};
use crate::error::{AcquireError, InspectError, ReleaseError, ResizeError, ReturnPermitsError, RunError};
use crate::{Attempt, DetachedHold};
use leasehold_core::{FencingToken, LockName};
use std::time::Duration;

facade! {
    /// A counting semaphore across threads, processes and hosts: [`leasehold::Semaphore`](crate::Semaphore),
    /// for threads.
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
    pub struct Semaphore;

    settings { lease max_hold max_renewals lock_delay history deadlock max_wait retry low_priority_for class }

    forward {
        /// Returns the semaphore's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Tries once to acquire a permit: see
        /// [`leasehold::Semaphore::try_acquire`](crate::Semaphore::try_acquire). Blocks only for the store's
        /// reply.
        pub fn try_acquire(&self) -> Result<Attempt<Permit>, Error<AcquireError>>;

        /// Tries once to acquire `count` permits: see
        /// [`leasehold::Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many). Blocks only for the
        /// store's reply.
        pub fn try_acquire_many(&self, count: u32) -> Result<Attempt<Permit>, Error<AcquireError>>;

        /// Acquires a permit, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a
        /// limit: see [`leasehold::Semaphore::acquire`](crate::Semaphore::acquire). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn acquire(&self) -> Result<Permit, Error<AcquireError>>;

        /// Acquires `count` permits, all at once: see
        /// [`leasehold::Semaphore::acquire_many`](crate::Semaphore::acquire_many). Otherwise like
        /// [`acquire`](Self::acquire).
        pub fn acquire_many(&self, count: u32) -> Result<Permit, Error<AcquireError>>;

        /// Acquires a permit within `limit`. Otherwise like [`acquire`](Self::acquire).
        pub fn acquire_timeout(&self, limit: Duration) -> Result<Permit, Error<AcquireError>>;

        /// Acquires `count` permits within `limit`. Otherwise like [`acquire_many`](Self::acquire_many).
        pub fn acquire_many_timeout(&self, count: u32, limit: Duration) -> Result<Permit, Error<AcquireError>>;

        /// Acquires `count` permits as a detached hold: see
        /// [`leasehold::Semaphore::acquire_detached`](crate::Semaphore::acquire_detached).
        pub fn acquire_detached(&self, count: u32) -> Result<DetachedHold, Error<AcquireError>>;

        /// Tries once to acquire `count` permits as a detached hold: see
        /// [`leasehold::Semaphore::try_acquire_detached`](crate::Semaphore::try_acquire_detached).
        pub fn try_acquire_detached(&self, count: u32) -> Result<Attempt<DetachedHold>, Error<AcquireError>>;

        /// Returns how many permits are free: see
        /// [`leasehold::Semaphore::available_permits`](crate::Semaphore::available_permits).
        pub fn available_permits(&self) -> Result<u32, Error<InspectError>>;

        /// Acquires all permits that are free, as one hold: see
        /// [`leasehold::Semaphore::drain`](crate::Semaphore::drain).
        pub fn drain(&self) -> Result<Attempt<Permit>, Error<AcquireError>>;

        /// Changes the number of permits for all processes: see
        /// [`leasehold::Semaphore::resize`](crate::Semaphore::resize).
        pub fn resize(&self, permits: u32) -> Result<(), Error<ResizeError>>;
    }

    wait {
        #[doc = see!("Observes the ends of holds, by whichever client", Semaphore::observe_ends)]
        pub fn observe_ends(&self) -> Result<HoldEnds, Error<InspectError>>;
    }

    operator { "Releases by force the permits of one hold that was observed, dead or alive" }
}

impl Semaphore {
    /// Makes an acquire change the number of permits where other clients use another one: see
    /// [`leasehold::Semaphore::resize_on_mismatch`](crate::Semaphore::resize_on_mismatch).
    #[must_use]
    pub fn resize_on_mismatch(self) -> Self {
        Self { inner: self.inner.resize_on_mismatch(), ..self }
    }

    /// Runs a function with a permit.
    ///
    /// Fails like [`Mutex::run`](super::Mutex::run): if the permit is lost meanwhile, once the function has
    /// returned.
    pub fn run<T>(&self, work: impl FnOnce(&Permit) -> T) -> Result<T, Error<RunError<T>>> {
        run(self.name(), self.acquire(), work, (Permit::check, Permit::fencing_token), Permit::release)
    }
}

facade! {
    /// One or more permits of a [`Semaphore`], held as one hold: [`leasehold::Permit`](crate::Permit), for
    /// threads.
    ///
    /// It is renewed whatever its thread does meanwhile. Any thread may use and release it. Dropping it
    /// releases its permits in the background, also in an async context and while a thread panics.
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
    #[must_use = "dropping a permit releases it"]
    pub struct Permit;

    guard { Guard }

    watch { }

    forward {
        /// Returns the semaphore's name.
        pub fn name(&self) -> &LockName;

        /// Returns the number of permits in this hold.
        pub fn count(&self) -> u32;

        /// Returns the fencing token of this hold: a number greater than that of every earlier hold of the
        /// semaphore.
        pub fn fencing_token(&self) -> FencingToken;
    }

    end {
        /// Releases the permits, and admits the next waiters.
        ///
        /// Fails like [`leasehold::Guard::release`](crate::Guard::release). In an async context the permits are
        /// released in the background, as if the permit had been dropped, without waiting for the result.
        pub fn release(self) -> Result<(), Error<ReleaseError>>;
    }
}

impl Permit {
    /// Returns some of the permits: see
    /// [`leasehold::Permit::return_permits`](crate::Permit::return_permits).
    pub fn return_permits(&mut self, count: u32) -> Result<(), Error<ReturnPermitsError>> {
        call(&self.thread, self.inner.return_permits(count))
    }
}
