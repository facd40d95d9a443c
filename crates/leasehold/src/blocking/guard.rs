//! The guards of threads: what the async guards are, and waiting.

use super::host::Host;
use super::{Error, call};
use crate::error::ReleaseError;
use leasehold_core::{FencingToken, LockName};
use std::sync::Arc;

/// What is the same for the guards of all kinds of locks. Each is a struct of its async twin, which has the same name, and
/// the host. A twin that has all this from another guard is `by` that one.
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

            #[doc = face!(@see "Until when it may be believed as things stand", $told::valid_until)]
            pub fn valid_until(&self) -> leasehold_core::Moment {
                self.inner.valid_until()
            }

            #[doc = face!(@see "How long it may be believed as things stand", $told::remaining)]
            pub fn remaining(&self) -> std::time::Duration {
                self.inner.remaining()
            }

            /// Whether it is still held: fails once its deadline has passed, or it is known to be lost. Needs no network,
            /// and never waits.
            pub fn check(&self) -> Result<(), crate::Lost> {
                self.inner.check()
            }

            #[doc = face!(@see "Whether it ends by its cap as things stand", $told::is_capped)]
            pub fn is_capped(&self) -> bool {
                self.inner.is_capped()
            }

            /// Waits until it is lost, for `limit` at most: says why, or nothing if it is held still.
            ///
            /// Fails in an async context, and by nothing else.
            pub fn lost(
                &self,
                limit: std::time::Duration,
            ) -> Result<Option<crate::Lost>, super::AsyncContext> {
                let waited = async { tokio::time::timeout(limit, self.inner.lost()).await.ok() };
                // A timer can be late where the machine was suspended; the clock of a check is not.
                Ok(self.host.wait(waited)?.or_else(|| self.inner.check().err()))
            }

            /// A token that is cancelled when it is lost: a flag for loops, on any thread
            /// ([`is_cancelled`](tokio_util::sync::CancellationToken::is_cancelled)), and for async code. It outlives the
            /// guard, and is never cancelled by a release.
            pub fn lost_signal(&self) -> tokio_util::sync::CancellationToken {
                self.inner.lost_signal()
            }

            #[doc = face!(@see "Lengthens it now", $told::extend)]
            pub fn extend(&self) -> Result<(), super::Error<crate::ExtendError>> {
                super::call(&self.host, self.inner.extend())
            }

            #[doc = face!(@see "Lengthens it to last `lease` from now, if it would end earlier", $told::extend_to)]
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
///
/// One thread works, and another one watches:
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
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    inner: crate::Guard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(Guard);

impl Guard {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// The number of this hold: greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
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
