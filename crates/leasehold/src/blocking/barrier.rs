//! The blocking barrier.

use super::Error;
use crate::BarrierWaitResult;
use crate::error::AcquireError;
use leasehold_core::LockName;
use std::time::Duration;

facade! {
    /// A point at which a fixed number of threads, in any processes, wait for one another:
    /// [`leasehold::Barrier`](crate::Barrier), for threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let ready = leasehold::blocking::Client::connect("memory:")?.barrier("all-ready", 3)?;
    /// std::thread::scope(|threads| {
    ///     for n in 0..3 {
    ///         let ready = &ready;
    ///         threads.spawn(move || {
    ///             println!("{n} is ready");
    ///             ready.wait().map(|_| println!("{n} continues, and so do all"))
    ///         });
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct Barrier;

    set {
        /// Sets the class under which this handle is reported: see [`leasehold::Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    forward {
        /// Returns the barrier's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Waits until all parties have arrived, this thread among them, without a time limit: see
        /// [`leasehold::Barrier::wait`](crate::Barrier::wait). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn wait(&self) -> Result<BarrierWaitResult, Error<AcquireError>>;

        /// Waits at most `limit`: see [`leasehold::Barrier::wait_timeout`](crate::Barrier::wait_timeout).
        pub fn wait_timeout(&self, limit: Duration) -> Result<BarrierWaitResult, Error<AcquireError>>;
    }

    operator { "Removes one admitted party that was observed" }
}
