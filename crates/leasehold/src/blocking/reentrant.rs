//! The blocking re-entrant mutex.

use super::guard::face;
use super::host::Host;
use super::{Error, call, thread};
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError, RunError};
use crate::owner::{Owner, Owners};
use crate::request::{Request, settings};
use crate::{Attempt, FullStatus, Released, Status};
use leasehold_core::{FencingToken, Lease, LockName, ObservedHolder, RetryPolicy};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A lock with one [owner](Owner) at a time, which may acquire it again and again, on any thread and in any
/// process: [`leasehold::ReentrantMutex`](crate::ReentrantMutex), for threads.
///
/// The owner is the one set on the lock with [`owned_by`](Self::owned_by), else that of the thread's scope
/// ([`Owner::sync_scope`]), else the thread itself: it can acquire again what it holds, while other threads
/// wait. The async lock differs in the last case, where each acquire gets a new owner. Threads in scopes of
/// one owner do **not** exclude each other.
///
/// A thread is a different owner for each client. On the threads of a tokio runtime (`spawn_blocking`,
/// `block_in_place`) each task is an owner, not the thread, which later runs other tasks. Other thread pools
/// do not reveal where a job ends: if a guard may outlive the job that acquired it, run each job in a scope,
/// since otherwise the next job on that thread could re-enter the lock.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Released;
/// use leasehold::blocking::{Client, ReentrantMutex};
///
/// fn transfer(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire()?;
///     withdraw(account)?; // acquires the lock that its caller holds
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
    /// The owner factory of the lock's client, for the owners of threads.
    owners: Arc<Owners>,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// Settings, as of the async lock.
impl ReentrantMutex {
    pub(super) fn new(inner: crate::ReentrantMutex, owners: Arc<Owners>, host: Arc<Host>) -> Self {
        Self { inner, owners, host }
    }

    /// Sets the owner that acquires the lock, whatever the calling thread and its scope.
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self { inner: self.inner.owned_by(owner), ..self }
    }

    settings! {
        /// Sets the lease of a hold: see [`leasehold::ReentrantMutex::lease`](crate::ReentrantMutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed, for each guard separately: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed, for each guard separately: see
        /// [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock instead of queueing for it: see
        /// [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Sets an expiry on the lock's key if a client of another library locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Leaves the lock free at every `every`th release, for clients of Redisson, which do not queue: see
        /// [`leasehold::ReentrantMutex::yield_every`](crate::ReentrantMutex::yield_every).
        pub fn yield_every(self, every: u32) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// Adds up the leases of re-entries: see
    /// [`leasehold::ReentrantMutex::sum_leases`](crate::ReentrantMutex::sum_leases).
    #[must_use]
    pub fn sum_leases(self, sum: bool) -> Self {
        Self { inner: self.inner.sum_leases(sum), ..self }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call blocks until the async method of the same name completes.
impl ReentrantMutex {
    /// Tries once to acquire the lock: see
    /// [`leasehold::ReentrantMutex::try_acquire`](crate::ReentrantMutex::try_acquire). Blocks only for the
    /// store's reply.
    pub fn try_acquire(&self) -> Result<Attempt<ReentrantGuard>, Error<AcquireError>> {
        self.call(self.inner.try_acquire()).map(|tried| tried.map(|guard| self.held(guard)))
    }

    /// Acquires the lock: at once if its owner holds it, in any process; otherwise waits for as long as
    /// [`wait`](Self::wait) allows, or without a limit. See
    /// [`leasehold::ReentrantMutex::acquire`](crate::ReentrantMutex::acquire). Only
    /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
    pub fn acquire(&self) -> Result<ReentrantGuard, Error<AcquireError>> {
        self.call(self.inner.acquire()).map(|guard| self.held(guard))
    }

    /// Acquires the lock within `limit`. Otherwise like [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<ReentrantGuard, Error<AcquireError>> {
        self.call(self.inner.acquire_timeout(limit)).map(|guard| self.held(guard))
    }

    /// Runs a function under the lock and in its owner's scope: whatever it acquires is acquired for that
    /// owner.
    ///
    /// Fails like [`Mutex::run`](super::Mutex::run): if the lock is lost meanwhile, once the function has
    /// returned.
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

    /// Returns the current state of the lock: whether it is held, by which owner and how often, and for how
    /// much longer. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        self.call(self.inner.inspect())
    }

    /// Returns the current state of the lock with the details an operator needs: see
    /// [`leasehold::Mutex::inspect_full`](crate::Mutex::inspect_full).
    pub fn inspect_full(&self) -> Result<FullStatus, Error<InspectError>> {
        self.call(self.inner.inspect_full())
    }

    /// Returns how many holds of the lock the owner has for which this thread would acquire it, across all
    /// threads and processes; 0 if it does not hold the lock.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
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

    /// Releases the lock by force, with all its holds, from the owner that was seen, dead or alive: see
    /// [`leasehold::ReentrantMutex::force_release`](crate::ReentrantMutex::force_release).
    pub fn force_release(&self, seen: ObservedHolder) -> Result<(), Error<ForceReleaseError>> {
        self.call(self.inner.force_release(seen))
    }

    /// Blocks until a call of the async API completes, with this thread as owner if there is no scope. An
    /// owner set with [`owned_by`](Self::owned_by) overrides both.
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

/// One hold of a [`ReentrantMutex`], released separately from the owner's others, in any order and on any
/// thread: [`leasehold::ReentrantGuard`](crate::ReentrantGuard), for threads.
///
/// It is renewed whatever its thread does meanwhile. Dropping it releases the hold in the background, also in
/// an async context and while a thread panics.
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
#[must_use = "dropping a guard releases its lock"]
pub struct ReentrantGuard {
    inner: crate::ReentrantGuard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

face!(ReentrantGuard);

impl ReentrantGuard {
    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Returns the owner that holds the lock, which may be a thread. Pass it to other threads that are to
    /// re-enter the lock.
    pub fn owner(&self) -> &Owner {
        self.inner.owner()
    }

    /// Returns how many holds the owner had across all processes when this guard was acquired, this one
    /// included. [`ReentrantMutex::hold_count`] returns the current number.
    pub fn count(&self) -> u64 {
        self.inner.count()
    }

    /// Returns the fencing token: the same for all guards from the owner's first acquire to its last release,
    /// and greater than that of every earlier owner.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Releases this hold. If it was the owner's last, the lock is handed to the next waiter.
    ///
    /// Fails like [`leasehold::ReentrantGuard::release`](crate::ReentrantGuard::release). In an async context
    /// the hold is released in the background, as if the guard had been dropped, without waiting for the
    /// result.
    pub fn release(self) -> Result<Released, Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.release())
    }
}
