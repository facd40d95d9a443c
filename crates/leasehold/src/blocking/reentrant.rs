//! The ReentrantMutex of threads.

use super::guard::face;
use super::host::Host;
use super::{Error, call, thread};
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError, RunError};
use crate::owner::{Owner, Owners};
use crate::request::{Request, settings};
use crate::{Attempt, Details, Released, Status};
use leasehold_core::{FencingToken, Lease, LockName, RetryPolicy, Seen};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A lock with one [owner](Owner) at a time, who may acquire it again and again, on any thread and in any process:
/// [`leasehold::ReentrantMutex`](crate::ReentrantMutex), for threads.
///
/// Where nobody says for whom a thread works, it works for itself: what it acquires it can acquire again, and other threads
/// wait. That is where it differs from the async lock, which takes each acquire for somebody else's then. Who says so
/// is the lock ([`owned_by`](Self::owned_by)), or else the scope that the thread is in
/// ([`Owner::sync_scope`]). Threads in scopes of one owner do **not** exclude each other.
///
/// A thread is another owner to each client. On the threads of a tokio runtime (`spawn_blocking`, `block_in_place`) each
/// task is an owner, and not the thread, which runs others later. Other pools do not say where a job ends: if a guard may
/// outlive the job that acquired it, give each job a scope, since the next job on that thread would get in.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Released;
/// use leasehold::blocking::{Client, ReentrantMutex};
///
/// fn transfer(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire()?;
///     withdraw(account)?; // acquires what its caller has acquired
///     assert_eq!(guard.release()?, Released::Free);
///     Ok(())
/// }
///
/// fn withdraw(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire()?;
///     guard.check()?;
///     assert_eq!(guard.release()?, Released::StillHeld { count: 1 });
///     Ok(())
/// }
///
/// let client = Client::connect("memory:")?;
/// transfer(&client.reentrant_mutex("account/7")?)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ReentrantMutex {
    inner: crate::ReentrantMutex,
    /// Of the client whose lock it is: they make the owners of threads.
    owners: Arc<Owners>,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async lock.
impl ReentrantMutex {
    pub(super) fn new(inner: crate::ReentrantMutex, owners: Arc<Owners>, host: Arc<Host>) -> Self {
        Self { inner, owners, host }
    }

    /// For whom it is acquired, whatever thread asks, and whatever scope it is in.
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self { inner: self.inner.owned_by(owner), ..self }
    }

    settings! {
        /// How long a hold lasts: see [`leasehold::ReentrantMutex::lease`](crate::ReentrantMutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it, for each guard by itself: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most, for each guard by itself: see
        /// [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock in place of queueing for it: see [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Gives the key an expiry if a client of another library has locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Lets the lock lie free now and then, for clients of Redisson, who do not queue: see
        /// [`leasehold::ReentrantMutex::share`](crate::ReentrantMutex::share).
        pub fn share(self, every: u32) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// Adds the leases of those who enter again: see
    /// [`leasehold::ReentrantMutex::sum_leases`](crate::ReentrantMutex::sum_leases).
    #[must_use]
    pub fn sum_leases(self, sum: bool) -> Self {
        Self { inner: self.inner.sum_leases(sum), ..self }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name.
impl ReentrantMutex {
    /// Tries once: see [`leasehold::ReentrantMutex::try_acquire`](crate::ReentrantMutex::try_acquire). It waits for the
    /// store alone.
    pub fn try_acquire(&self) -> Result<Attempt<ReentrantGuard>, Error<AcquireError>> {
        self.call(self.inner.try_acquire()).map(|tried| tried.map(|guard| self.held(guard)))
    }

    /// Acquires the lock: at once where its owner has it, wherever that is; else however long it takes, or for as long as
    /// [`wait`](Self::wait) says. See [`leasehold::ReentrantMutex::acquire`](crate::ReentrantMutex::acquire). A thread
    /// that waits can be stopped by [`Client::shutdown`](super::Client::shutdown) only.
    pub fn acquire(&self) -> Result<ReentrantGuard, Error<AcquireError>> {
        self.call(self.inner.acquire()).map(|guard| self.held(guard))
    }

    /// Acquires the lock within `limit`. Otherwise as [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<ReentrantGuard, Error<AcquireError>> {
        self.call(self.inner.acquire_timeout(limit)).map(|guard| self.held(guard))
    }

    /// Runs a function under the lock and for its owner: whatever it acquires is acquired for that owner.
    ///
    /// Fails as [`Mutex::run`](super::Mutex::run) does: if the lock is lost meanwhile, when the function has ended.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let sums = client.reentrant_mutex("sums")?;
    /// let twice = sums.run(|_guard| sums.run(|inner| inner.count()))??;
    /// assert_eq!(twice, 2);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&ReentrantGuard) -> T) -> Result<T, Error<RunError>> {
        let guard = self.acquire().map_err(|error| error.map(RunError::Acquire))?;
        let result = guard.owner().sync_scope(|| work(&guard));
        guard.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        if let Err(error) = guard.release() {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// How the lock stands: whether it is held, by which owner and how often, and for how long still. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        self.call(self.inner.inspect())
    }

    /// How the lock stands, who is behind its holder, and who took it from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        self.call(self.inner.inspect_in_full())
    }

    /// How often the owner has the lock for whom this thread would acquire it, over all threads and processes; 0 if he
    /// does not have it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let account = client.reentrant_mutex("account/7")?;
    /// let guard = account.acquire()?;
    /// assert_eq!(account.hold_count()?, 1);
    /// guard.release()?;
    /// assert_eq!(account.hold_count()?, 0);
    /// # Ok(()) }
    /// ```
    pub fn hold_count(&self) -> Result<u64, Error<InspectError>> {
        self.call(self.inner.hold_count())
    }

    /// Takes the lock, with all its entries, from the owner that was seen, dead or alive: see
    /// [`leasehold::ReentrantMutex::free_by_force`](crate::ReentrantMutex::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        self.call(self.inner.free_by_force(seen))
    }

    /// Waits for a call of the async API, which is made for this thread where no scope says for whom. Who was given by
    /// [`owned_by`](Self::owned_by) comes before either.
    fn call<T, E>(&self, future: impl Future<Output = Result<T, E>>) -> Result<T, Error<E>> {
        thread::for_whom(&self.owners, || call(&self.host, future))
    }

    fn held(&self, guard: crate::ReentrantGuard) -> ReentrantGuard {
        ReentrantGuard::new(guard, self.host.clone())
    }
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::ReentrantMutex").field(&self.inner).finish()
    }
}

/// One entry into a [`ReentrantMutex`], to be released by itself, in any order and on any thread:
/// [`leasehold::ReentrantGuard`](crate::ReentrantGuard), for threads.
///
/// It is renewed while its thread does something else, or nothing. One that is dropped gives its entry back in the
/// background, in an async context and while a thread panics, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn book(_: u64) {}
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let account = client.reentrant_mutex("account/7")?;
/// let (outer, inner) = (account.acquire()?, account.acquire()?);
/// assert_eq!((outer.count(), inner.count()), (1, 2));
/// inner.check()?; // stops here if it was lost
/// book(inner.fencing_token().as_u64());
/// outer.release()?;
/// inner.release()?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct ReentrantGuard {
    inner: crate::ReentrantGuard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(ReentrantGuard);

impl ReentrantGuard {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Who has the lock: of a thread that worked for itself, the thread. Give him to others who are to get in.
    pub fn owner(&self) -> &Owner {
        self.inner.owner()
    }

    /// How often its owner had the lock when this guard was acquired, with this one, over all processes.
    /// [`ReentrantMutex::hold_count`] says how often now.
    pub fn count(&self) -> u64 {
        self.inner.count()
    }

    /// The number of the owner's stay: the same for all guards from his first acquire to his last release, and greater
    /// than that of every earlier stay of anybody.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Gives this entry back. If it was the owner's last, the lock goes to the next who waits.
    ///
    /// Fails as [`leasehold::ReentrantGuard::release`](crate::ReentrantGuard::release) does. In an async context it is
    /// given back all the same, in the background, as if the guard had been dropped: only nobody waits for it.
    pub fn release(self) -> Result<Released, Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}
