//! The guard of a thread: what the async guard is, and waiting.

use super::host::Host;
use super::{AsyncContext, Error, call};
use crate::error::{ExtendError, Lost, ReleaseError};
use leasehold_core::{FencingToken, Lease, LockName, Moment};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A lock that is held: [`leasehold::Guard`](crate::Guard), for threads.
///
/// It is renewed while its thread does something else, or nothing. Any thread may use it, and release it. One that is
/// dropped gives its lock back in the background, in an async context and while a thread panics, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// # let steps = [1, 2];
/// # fn rebuild(_: &i32, _: u64) {}
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let guard = client.mutex("index")?.acquire()?;
/// for step in &steps {
///     guard.check()?; // stops here if the lock was lost
///     rebuild(step, guard.fencing_token().as_u64());
/// }
/// guard.release()?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    inner: crate::Guard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl Guard {
    pub(super) fn new(inner: crate::Guard, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// The number of this hold: greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Until when the hold may be believed as things stand: see
    /// [`leasehold::Guard::valid_until`](crate::Guard::valid_until).
    pub fn valid_until(&self) -> Moment {
        self.inner.valid_until()
    }

    /// How long the hold may be believed as things stand: see
    /// [`leasehold::Guard::remaining`](crate::Guard::remaining).
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Whether the lock is still held: fails once its deadline has passed, or it is known to be lost. Needs no network,
    /// and never waits.
    pub fn check(&self) -> Result<(), Lost> {
        self.inner.check()
    }

    /// Whether the hold ends by its cap as things stand: see
    /// [`leasehold::Guard::is_capped`](crate::Guard::is_capped).
    pub fn is_capped(&self) -> bool {
        self.inner.is_capped()
    }

    /// Waits until the lock is lost, for `limit` at most: says why, or nothing if it is held still.
    ///
    /// Fails in an async context, and by nothing else.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let guard = client.mutex("index")?.acquire()?;
    /// // One thread works, and another one watches.
    /// std::thread::scope(|threads| {
    ///     let watching = threads.spawn(|| guard.lost(Duration::from_millis(50)));
    ///     assert_eq!(watching.join().expect("no panic"), Ok(None));
    /// });
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn lost(&self, limit: Duration) -> Result<Option<Lost>, AsyncContext> {
        let waited = async { tokio::time::timeout(limit, self.inner.lost()).await.ok() };
        // A timer can be late where the machine was suspended; the clock of a check is not.
        Ok(self.host.wait(waited)?.or_else(|| self.inner.check().err()))
    }

    /// A token that is cancelled when the lock is lost: a flag for loops, on any thread
    /// ([`is_cancelled`](CancellationToken::is_cancelled)), and for async code. It outlives the guard, and is never
    /// cancelled by a release.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let items = [1, 2, 3];
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let guard = client.mutex("index")?.acquire()?;
    /// let lost = guard.lost_signal();
    /// let worker = std::thread::spawn(move || items.iter().take_while(|_| !lost.is_cancelled()).count());
    /// assert_eq!(worker.join().expect("no panic"), 3);
    /// # guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn lost_signal(&self) -> CancellationToken {
        self.inner.lost_signal()
    }

    /// Lengthens the hold now: see [`leasehold::Guard::extend`](crate::Guard::extend).
    pub fn extend(&self) -> Result<(), Error<ExtendError>> {
        call(&self.host, self.inner.extend())
    }

    /// Lengthens the hold to last `lease` from now, if it would end earlier: see
    /// [`leasehold::Guard::extend_to`](crate::Guard::extend_to).
    pub fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), Error<ExtendError>> {
        call(&self.host, self.inner.extend_to(lease))
    }

    /// Gives the lock back, and hands it to the next who waits.
    ///
    /// Fails as [`leasehold::Guard::release`](crate::Guard::release) does. In an async context it is given back all the
    /// same, in the background, as if the guard had been dropped: only nobody waits for it.
    pub fn release(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Guard").field(&self.inner).finish()
    }
}
