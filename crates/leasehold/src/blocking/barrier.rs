//! The Barrier of threads.

use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, FreeError, InspectError};
use crate::{Details, Met, Status};
use leasehold_core::{LockName, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A point at which so many threads, in whatever processes, wait for one another: [`leasehold::Barrier`](crate::Barrier),
/// for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ready = leasehold::blocking::Client::connect("memory:")?.barrier("all-ready", 3)?;
/// std::thread::scope(|threads| {
///     for n in 0..3 {
///         let ready = &ready;
///         threads.spawn(move || {
///             println!("{n} is ready");
///             ready.wait().map(|_| println!("{n} goes on, and so do all"))
///         });
///     }
/// });
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Barrier {
    inner: crate::Barrier,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl Barrier {
    pub(super) fn new(inner: crate::Barrier, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// The barrier's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Waits until so many wait here, this thread among them, however long it takes: see
    /// [`leasehold::Barrier::wait`](crate::Barrier::wait). A thread that waits can be stopped by
    /// [`Client::shutdown`](super::Client::shutdown) only.
    pub fn wait(&self) -> Result<Met, Error<AcquireError>> {
        call(&self.host, self.inner.wait())
    }

    /// Waits for `limit` at most: see [`leasehold::Barrier::wait_timeout`](crate::Barrier::wait_timeout).
    pub fn wait_timeout(&self, limit: Duration) -> Result<Met, Error<AcquireError>> {
        call(&self.host, self.inner.wait_timeout(limit))
    }

    /// How the barrier stands: how many wait. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// The same, who is behind each, and who took what from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        call(&self.host, self.inner.inspect_in_full())
    }

    /// Forgets one of those who have met, who was [seen](crate::Sharer::seen): see
    /// [`leasehold::Barrier::free_by_force`](crate::Barrier::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        call(&self.host, self.inner.free_by_force(seen))
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Barrier").field(&self.inner).finish()
    }
}
