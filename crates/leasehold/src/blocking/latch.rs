//! The blocking latch.

use super::Error;
use crate::error::{AcquireError, ForceReleaseError, InspectError};
use leasehold_core::LockName;
use std::time::Duration;

facade! {
    /// A countdown latch: opens after a number of arrivals, from any process:
    /// [`leasehold::Latch`](crate::Latch), for threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn load(_shard: u32) {}
    /// let loaded = leasehold::blocking::Client::connect("memory:")?.latch("shards-loaded", 2)?;
    /// std::thread::scope(|threads| {
    ///     let serving = threads.spawn(|| loaded.wait());
    ///     for shard in 0..2 {
    ///         load(shard);
    ///         loaded.arrive()?;
    ///     }
    ///     serving.join().expect("no panic") // once both are loaded
    /// })?;
    /// assert!(loaded.is_open()?);
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct Latch;

    set {
        /// Sets how long arrivals of this handle are remembered: see
        /// [`leasehold::Latch::arrival_ttl`](crate::Latch::arrival_ttl).
        pub fn arrival_ttl(self, ttl: Duration) -> Self;

        /// Sets the class under which this handle is reported: see [`leasehold::Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    forward {
        /// Returns the latch's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Counts one arrival: see [`leasehold::Latch::arrive`](crate::Latch::arrive). Blocks only for the
        /// store's reply.
        pub fn arrive(&self) -> Result<(), Error<AcquireError>>;

        /// Counts `count` arrivals in one step: see
        /// [`leasehold::Latch::arrive_many`](crate::Latch::arrive_many). Blocks only for the store's reply.
        pub fn arrive_many(&self, count: u32) -> Result<(), Error<AcquireError>>;

        /// Waits until the latch is open, without a time limit: see
        /// [`leasehold::Latch::wait`](crate::Latch::wait). Only [`Client::shutdown`](super::Client::shutdown)
        /// interrupts a waiting thread.
        pub fn wait(&self) -> Result<(), Error<AcquireError>>;

        /// Waits at most `limit` until the latch is open: see
        /// [`leasehold::Latch::wait_timeout`](crate::Latch::wait_timeout).
        pub fn wait_timeout(&self, limit: Duration) -> Result<(), Error<AcquireError>>;

        /// Returns how many arrivals are remembered: see [`leasehold::Latch::arrived`](crate::Latch::arrived).
        ///
        /// Fails if the store does not reply within the call timeout, or refuses the request.
        pub fn arrived(&self) -> Result<u64, Error<InspectError>>;

        /// Returns whether the latch is open. Fails like [`arrived`](Self::arrived).
        pub fn is_open(&self) -> Result<bool, Error<AcquireError>>;

        /// Takes back all arrivals, and returns how many: see [`leasehold::Latch::reset`](crate::Latch::reset).
        pub fn reset(&self) -> Result<u64, Error<ForceReleaseError>>;
    }

    operator { "Takes back one arrival that was observed" }
}
