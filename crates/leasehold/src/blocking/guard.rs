//! Blocking guards: the async guards, with blocking calls.

use super::host::Host;
use super::{Error, call};
use crate::error::ReleaseError;
use leasehold_core::{FencingToken, LockName};
use std::sync::Arc;

/// The methods common to the guards of all kinds of locks. Each is a struct of the async guard of the same
/// name, and the host. With `by`, the documentation links to another guard, from which the async guard has
/// these methods.
macro_rules! face {
    (@see $words:literal, $guard:ident :: $method:ident) => {
        concat!(
            $words, ": see [`leasehold::", stringify!($guard), "::", stringify!($method), "`](crate::",
            stringify!($guard), "::", stringify!($method), ").",
        )
    };
    ($guard:ident) => { face!($guard by $guard); };
    ($guard:ident by $told:ident) => {
        impl $guard {
            pub(super) fn new(inner: crate::$guard, host: std::sync::Arc<super::host::Host>) -> Self {
                Self { inner, host }
            }

            #[doc = face!(@see "Returns until when the hold is valid", $told::valid_until)]
            pub fn valid_until(&self) -> leasehold_core::Moment {
                self.inner.valid_until()
            }

            #[doc = face!(@see "Returns how long the hold is still valid", $told::remaining)]
            pub fn remaining(&self) -> std::time::Duration {
                self.inner.remaining()
            }

            /// Checks that the lock is still held. Fails once the hold has ended, or is known to be lost.
            /// Needs no network, and never blocks.
            pub fn check(&self) -> Result<(), crate::Lost> {
                self.inner.check()
            }

            #[doc = face!(@see "Returns whether the hold ends at its cap", $told::is_capped)]
            pub fn is_capped(&self) -> bool {
                self.inner.is_capped()
            }

            /// Waits for at most `limit` until the lock is lost. Returns the loss, or `None` if the lock is
            /// still held.
            ///
            /// Fails only in an async context.
            pub fn lost(
                &self,
                limit: std::time::Duration,
            ) -> Result<Option<crate::Lost>, super::AsyncContext> {
                let waited = async { tokio::time::timeout(limit, self.inner.lost()).await.ok() };
                // After a suspend of the machine the timer can be late; the clock of `check` is not.
                Ok(self.host.wait(waited)?.or_else(|| self.inner.check().err()))
            }

            /// Returns a token that is cancelled when the lock is lost: a flag for loops on any thread
            /// ([`is_cancelled`](tokio_util::sync::CancellationToken::is_cancelled)), and for async code. It
            /// outlives the guard, and a release never cancels it.
            pub fn lost_signal(&self) -> tokio_util::sync::CancellationToken {
                self.inner.lost_signal()
            }

            #[doc = face!(@see "Extends the hold now", $told::extend)]
            pub fn extend(&self) -> Result<(), super::Error<crate::ExtendError>> {
                super::call(&self.host, self.inner.extend())
            }

            #[doc = face!(@see "Extends the hold so that it lasts `lease` from now, if it would end earlier", $told::extend_to)]
            pub fn extend_to(
                &self,
                lease: impl Into<leasehold_core::Lease>,
            ) -> Result<(), super::Error<crate::ExtendError>> {
                super::call(&self.host, self.inner.extend_to(lease))
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(concat!("blocking::", stringify!($guard))).field(&self.inner).finish()
            }
        }
    };
}
pub(super) use face;

/// A held lock: [`leasehold::Guard`](crate::Guard), for threads.
///
/// It is renewed whatever its thread does meanwhile. Any thread may use and release it. Dropping it releases
/// the lock in the background, also in an async context and while a thread panics.
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
///
/// One thread works while another waits for a loss:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let items = [1, 2, 3];
/// use std::time::Duration;
///
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let guard = client.mutex("index")?.acquire()?;
/// let lost = guard.lost_signal();
/// std::thread::scope(|threads| {
///     let working = threads.spawn(move || items.iter().take_while(|_| !lost.is_cancelled()).count());
///     let watching = threads.spawn(|| guard.lost(Duration::from_millis(50)));
///     assert_eq!(working.join().expect("no panic"), 3);
///     assert_eq!(watching.join().expect("no panic"), Ok(None)); // it was not lost
/// });
/// guard.release()?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock"]
pub struct Guard {
    inner: crate::Guard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

face!(Guard);

impl Guard {
    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Returns the fencing token of this hold: a number greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Releases the lock, and hands it to the next waiter.
    ///
    /// Fails like [`leasehold::Guard::release`](crate::Guard::release). In an async context the lock is
    /// released in the background, as if the guard had been dropped, without waiting for the result.
    pub fn release(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}
