//! The blocking latch.

use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, ForceReleaseError, InspectError};
use crate::{FullStatus, Status};
use leasehold_core::{LockName, ObservedHolder};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A countdown latch: opens after a number of arrivals, from any process: [`leasehold::Latch`](crate::Latch),
/// for threads.
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
pub struct Latch {
    inner: crate::Latch,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

impl Latch {
    pub(super) fn new(inner: crate::Latch, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// Sets how long arrivals of this handle are remembered: see
    /// [`leasehold::Latch::remember`](crate::Latch::remember).
    #[must_use]
    pub fn remember(self, span: Duration) -> Self {
        Self { inner: self.inner.remember(span), ..self }
    }

    /// Returns the latch's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call blocks until the async method of the same name completes.
impl Latch {
    /// Counts one arrival: see [`leasehold::Latch::arrive`](crate::Latch::arrive). Blocks only for the
    /// store's reply.
    pub fn arrive(&self) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.arrive())
    }

    /// Counts `count` arrivals in one step: see [`leasehold::Latch::arrive_many`](crate::Latch::arrive_many).
    /// Blocks only for the store's reply.
    pub fn arrive_many(&self, count: u32) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.arrive_many(count))
    }

    /// Waits until the latch is open, without a time limit: see
    /// [`leasehold::Latch::wait`](crate::Latch::wait). Only [`Client::shutdown`](super::Client::shutdown)
    /// interrupts a waiting thread.
    pub fn wait(&self) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.wait())
    }

    /// Waits at most `limit` until the latch is open: see
    /// [`leasehold::Latch::wait_timeout`](crate::Latch::wait_timeout).
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.wait_timeout(limit))
    }

    /// Returns how many arrivals are remembered: see [`leasehold::Latch::arrived`](crate::Latch::arrived).
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    pub fn arrived(&self) -> Result<u64, Error<InspectError>> {
        call(&self.host, self.inner.arrived())
    }

    /// Returns whether the latch is open. Fails like [`arrived`](Self::arrived).
    pub fn is_open(&self) -> Result<bool, Error<AcquireError>> {
        call(&self.host, self.inner.is_open())
    }

    /// Returns the current state of the latch: the clients that arrived, and the number of waiters. Changes
    /// nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// Returns the current state with the details an operator needs: see
    /// [`leasehold::Mutex::inspect_full`](crate::Mutex::inspect_full).
    pub fn inspect_full(&self) -> Result<FullStatus, Error<InspectError>> {
        call(&self.host, self.inner.inspect_full())
    }

    /// Takes back one arrival that was [seen](crate::SharedHolder::seen): see
    /// [`leasehold::Latch::force_release`](crate::Latch::force_release).
    pub fn force_release(&self, seen: ObservedHolder) -> Result<(), Error<ForceReleaseError>> {
        call(&self.host, self.inner.force_release(seen))
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Latch").field(&self.inner).finish()
    }
}
