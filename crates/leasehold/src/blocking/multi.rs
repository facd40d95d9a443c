//! Several locks at once, for threads.

use super::guard::face;
use super::host::Host;
use super::{Error, call};
use crate::MultiAttempt;
use crate::error::{AcquireError, MultiReleaseError};
use crate::request::{Request, settings};
use leasehold_core::{FencingToken, Lease, LockName};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Several [mutexes](super::Mutex) that are held together, all of them or none:
/// [`leasehold::MultiMutex`](crate::MultiMutex), for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn transfer(_from: &str, _to: &str) {}
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let accounts = client.multi_mutex(["account/7", "account/3"])?;
/// let both = accounts.acquire()?; // whoever takes them the other way round does not wait for ever
/// transfer("account/7", "account/3");
/// both.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiMutex {
    inner: crate::MultiMutex,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async lock.
impl MultiMutex {
    pub(super) fn new(inner: crate::MultiMutex, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// How long a hold lasts: see [`leasehold::MultiMutex::lease`](crate::MultiMutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, of each: see [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often each hold is renewed at most: see
        /// [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// The names of the locks, in their order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.names()
    }
}

/// Each call waits for the one of the same name.
impl MultiMutex {
    /// Tries once: see [`leasehold::MultiMutex::try_acquire`](crate::MultiMutex::try_acquire). It waits for the store
    /// alone.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{MultiAttempt, blocking::Client};
    ///
    /// let client = Client::connect("memory:")?;
    /// let stock = client.mutex("stock")?.acquire()?;
    /// match client.multi_mutex(["till", "stock"])?.try_acquire()? {
    ///     MultiAttempt::Granted(_) => unreachable!("one of them is taken"),
    ///     MultiAttempt::Taken { lock, contention } => println!("{lock} is {contention}"),
    /// }
    /// # stock.release()?;
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Result<MultiAttempt<MultiGuard>, Error<AcquireError>> {
        call(&self.host, self.inner.try_acquire()).map(|tried| tried.map(|guard| self.held(guard)))
    }

    /// Acquires all of the locks, however long it takes, or for as long as [`wait`](Self::wait) says: see
    /// [`leasehold::MultiMutex::acquire`](crate::MultiMutex::acquire). A thread that waits can be stopped by
    /// [`Client::shutdown`](super::Client::shutdown) only.
    pub fn acquire(&self) -> Result<MultiGuard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire()).map(|guard| self.held(guard))
    }

    /// Acquires all of the locks within `limit`. Otherwise as [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<MultiGuard, Error<AcquireError>> {
        call(&self.host, self.inner.acquire_timeout(limit)).map(|guard| self.held(guard))
    }

    fn held(&self, guard: crate::MultiGuard) -> MultiGuard {
        MultiGuard::new(guard, self.host.clone())
    }
}

impl fmt::Debug for MultiMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::MultiMutex").field(&self.inner).finish()
    }
}

/// Several locks that are held together: [`leasehold::MultiGuard`](crate::MultiGuard), for threads.
///
/// It counts as lost as soon as one of them is. They are renewed while their thread does something else, or nothing. Any
/// thread may use it, and release it. One that is dropped gives all back in the background, in an async context and while
/// a thread panics, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn pay() {}
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let both = client.multi_mutex(["till", "stock"])?.acquire()?;
/// for (name, token) in both.fencing_tokens() {
///     println!("{name}: {token}");
/// }
/// both.check()?; // stops here if one of them was lost
/// pay();
/// both.release()?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the locks back"]
pub struct MultiGuard {
    inner: crate::MultiGuard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(MultiGuard);

impl MultiGuard {
    /// Each lock's name and the number of its hold: greater than that of every earlier hold of that lock.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.inner.fencing_tokens()
    }

    /// The number of the hold of one of the locks; `None` if that name is none of them.
    pub fn fencing_token(&self, name: &str) -> Option<FencingToken> {
        self.inner.fencing_token(name)
    }

    /// Gives all locks back, and hands each to the next who waits for it. All are tried, whatever becomes of one.
    ///
    /// Fails with those that were not released, and why. In an async context they are given back all the same, in the
    /// background, as if the guard had been dropped: only nobody waits for it.
    pub fn release(self) -> Result<(), Error<MultiReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}
