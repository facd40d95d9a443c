//! The Latch of threads.

use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, FreeError, InspectError};
use crate::{Details, Status};
use leasehold_core::{LockName, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A gate that opens when so many have arrived, in whatever process: [`leasehold::Latch`](crate::Latch), for threads.
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
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl Latch {
    pub(super) fn new(inner: crate::Latch, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// How long an arrival of this handle is remembered: see
    /// [`leasehold::Latch::remember`](crate::Latch::remember).
    #[must_use]
    pub fn remember(self, span: Duration) -> Self {
        Self { inner: self.inner.remember(span), ..self }
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name.
impl Latch {
    /// Arrives, once: see [`leasehold::Latch::arrive`](crate::Latch::arrive). It waits for the store alone.
    pub fn arrive(&self) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.arrive())
    }

    /// Arrives so many times in one step: see [`leasehold::Latch::arrive_many`](crate::Latch::arrive_many). It waits for
    /// the store alone.
    pub fn arrive_many(&self, count: u32) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.arrive_many(count))
    }

    /// Waits until the latch is open, however long it takes: see [`leasehold::Latch::wait`](crate::Latch::wait). A thread
    /// that waits can be stopped by [`Client::shutdown`](super::Client::shutdown) only.
    pub fn wait(&self) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.wait())
    }

    /// Waits until the latch is open, for `limit` at most: see
    /// [`leasehold::Latch::wait_timeout`](crate::Latch::wait_timeout).
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), Error<AcquireError>> {
        call(&self.host, self.inner.wait_timeout(limit))
    }

    /// How many have arrived that are remembered.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    pub fn arrived(&self) -> Result<u64, Error<InspectError>> {
        call(&self.host, self.inner.arrived())
    }

    /// Whether so many have arrived. Fails as [`arrived`](Self::arrived).
    pub fn is_open(&self) -> Result<bool, Error<AcquireError>> {
        call(&self.host, self.inner.is_open())
    }

    /// How the latch stands: who has arrived, and how many wait. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// The same, who is behind each, and who took what from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        call(&self.host, self.inner.inspect_in_full())
    }

    /// Takes back one arrival that was [seen](crate::Sharer::seen): see
    /// [`leasehold::Latch::free_by_force`](crate::Latch::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        call(&self.host, self.inner.free_by_force(seen))
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Latch").field(&self.inner).finish()
    }
}
