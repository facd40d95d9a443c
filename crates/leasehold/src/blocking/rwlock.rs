//! The blocking readers-writer lock.

use super::guard::face;
use super::host::{Host, refuse_async};
use super::{Error, call, thread};
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError, RunError};
use crate::owner::{Owner, Owners};
use crate::request::{Request, settings};
use crate::{Attempt, FullStatus, Status};
use leasehold_core::{FencingToken, Lease, LockName, ObservedHolder, RetryPolicy};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A readers-writer lock, held by any number of readers or by one writer:
/// [`leasehold::RwLock`](crate::RwLock), for threads.
///
/// Without another owner, a thread is its own owner, as with a [`ReentrantMutex`](super::ReentrantMutex): a
/// thread that reads may read again at once, and a request that would wait for its own thread fails. What is
/// documented there about scopes, pools and the threads of a runtime applies here.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn look_up() -> bool { false }
/// # fn rebuild() {}
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
///
/// let reading = index.upgradable_read()?;
/// if look_up() {
///     return Ok(reading.release()?);
/// }
/// let writing = reading.upgrade()?; // once the other readers are done
/// rebuild();
/// let reading = writing.downgrade()?; // admits the other readers
/// reading.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    inner: crate::RwLock,
    /// The owner factory of the lock's client, for the owners of threads.
    owners: Arc<Owners>,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// Settings, as of the async lock.
impl RwLock {
    pub(super) fn new(inner: crate::RwLock, owners: Arc<Owners>, host: Arc<Host>) -> Self {
        Self { inner, owners, host }
    }

    /// Sets the owner that acquires the lock, whatever the calling thread and its scope.
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self { inner: self.inner.owned_by(owner), ..self }
    }

    settings! {
        /// Sets the lease of readers and writers: see [`leasehold::RwLock::lease`](crate::RwLock::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed: see
        /// [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Limits how long [`read`](Self::read), [`write`](Self::write) and
        /// [`upgradable_read`](Self::upgradable_read) wait. Without this setting, they wait forever.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy instead of queueing: see [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// Sets the lease of readers, upgradable or not.
    #[must_use]
    pub fn read_lease(self, lease: impl Into<Lease>) -> Self {
        Self { inner: self.inner.read_lease(lease), ..self }
    }

    /// Sets the lease of writers.
    #[must_use]
    pub fn write_lease(self, lease: impl Into<Lease>) -> Self {
        Self { inner: self.inner.write_lease(lease), ..self }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call blocks until the async method of the same name completes. Only
/// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
impl RwLock {
    /// Acquires the lock for reading: see [`leasehold::RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<ReadGuard, Error<AcquireError>> {
        self.call(self.inner.read()).map(|guard| ReadGuard::new(guard, self.host.clone()))
    }

    /// Acquires the lock for reading within `limit`. Otherwise like [`read`](Self::read).
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard, Error<AcquireError>> {
        self.call(self.inner.read_timeout(limit)).map(|guard| ReadGuard::new(guard, self.host.clone()))
    }

    /// Tries once to acquire the lock for reading: see
    /// [`leasehold::RwLock::try_read`](crate::RwLock::try_read). Blocks only for the store's reply.
    pub fn try_read(&self) -> Result<Attempt<ReadGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_read())?;
        Ok(tried.map(|guard| ReadGuard::new(guard, self.host.clone())))
    }

    /// Acquires the lock for writing: see [`leasehold::RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<WriteGuard, Error<AcquireError>> {
        self.call(self.inner.write()).map(|guard| WriteGuard::new(guard, self.host.clone()))
    }

    /// Acquires the lock for writing within `limit`. Otherwise like [`write`](Self::write).
    pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard, Error<AcquireError>> {
        self.call(self.inner.write_timeout(limit)).map(|guard| WriteGuard::new(guard, self.host.clone()))
    }

    /// Tries once to acquire the lock for writing: see
    /// [`leasehold::RwLock::try_write`](crate::RwLock::try_write). Blocks only for the store's reply.
    pub fn try_write(&self) -> Result<Attempt<WriteGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_write())?;
        Ok(tried.map(|guard| WriteGuard::new(guard, self.host.clone())))
    }

    /// Acquires the lock for reading, with the right to [upgrade](UpgradableGuard::upgrade): see
    /// [`leasehold::RwLock::upgradable_read`](crate::RwLock::upgradable_read).
    pub fn upgradable_read(&self) -> Result<UpgradableGuard, Error<AcquireError>> {
        self.call(self.inner.upgradable_read()).map(|guard| UpgradableGuard::new(guard, self.host.clone()))
    }

    /// Acquires the lock for an upgradable read within `limit`. Otherwise like
    /// [`upgradable_read`](Self::upgradable_read).
    pub fn upgradable_read_timeout(&self, limit: Duration) -> Result<UpgradableGuard, Error<AcquireError>> {
        let read = self.call(self.inner.upgradable_read_timeout(limit))?;
        Ok(UpgradableGuard::new(read, self.host.clone()))
    }

    /// Tries once to acquire the lock for an upgradable read: see
    /// [`leasehold::RwLock::try_upgradable_read`](crate::RwLock::try_upgradable_read). Blocks only for the
    /// store's reply.
    pub fn try_upgradable_read(&self) -> Result<Attempt<UpgradableGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_upgradable_read())?;
        Ok(tried.map(|guard| UpgradableGuard::new(guard, self.host.clone())))
    }

    /// Runs a function as a reader, in the scope of the read's owner: whatever it acquires is acquired for
    /// that owner.
    ///
    /// Fails like [`Mutex::run`](super::Mutex::run): if the hold is lost meanwhile, once the function has
    /// returned.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = std::sync::RwLock::new(vec![7]);
    /// let prices = leasehold::blocking::Client::connect("memory:")?.rwlock("prices")?;
    /// let first = prices.run_reading(|_| rows.read().map(|rows| rows[0]).unwrap_or_default())?;
    /// prices.run_writing(|_| rows.write().map(|mut rows| rows.push(first)).is_ok())?;
    /// # Ok(()) }
    /// ```
    pub fn run_reading<T>(&self, work: impl FnOnce(&ReadGuard) -> T) -> Result<T, Error<RunError>> {
        let held = self.read().map_err(|error| error.map(RunError::Acquire))?;
        let result = held.owner().sync_scope(|| work(&held));
        held.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        self.told(held.release());
        Ok(result)
    }

    /// Runs a function as the writer: like [`run_reading`](Self::run_reading), including errors.
    pub fn run_writing<T>(&self, work: impl FnOnce(&WriteGuard) -> T) -> Result<T, Error<RunError>> {
        let held = self.write().map_err(|error| error.map(RunError::Acquire))?;
        let result = held.owner().sync_scope(|| work(&held));
        held.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        self.told(held.release());
        Ok(result)
    }

    /// Returns the current state of the lock: all holders, and the number of waiters. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        self.call(self.inner.inspect())
    }

    /// Returns the current state of the lock with the details an operator needs: see
    /// [`leasehold::Mutex::inspect_full`](crate::Mutex::inspect_full).
    pub fn inspect_full(&self) -> Result<FullStatus, Error<InspectError>> {
        self.call(self.inner.inspect_full())
    }

    /// Releases by force one hold that was [seen](crate::SharedHolder::seen), dead or alive: see
    /// [`leasehold::RwLock::force_release`](crate::RwLock::force_release).
    pub fn force_release(&self, seen: ObservedHolder) -> Result<(), Error<ForceReleaseError>> {
        self.call(self.inner.force_release(seen))
    }

    /// Blocks until a call of the async API completes, with this thread as owner if there is no scope. An
    /// owner set with [`owned_by`](Self::owned_by) overrides both.
    fn call<T, E>(&self, future: impl Future<Output = Result<T, E>>) -> Result<T, Error<E>> {
        thread::for_whom(&self.owners, || call(&self.host, future))
    }

    fn told(&self, released: Result<(), Error<ReleaseError>>) {
        if let Err(error) = released {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::RwLock").field(&self.inner).finish()
    }
}

/// A reader's hold of an [`RwLock`]: [`leasehold::ReadGuard`](crate::ReadGuard), for threads.
///
/// It is renewed whatever its thread does meanwhile. Dropping it releases the lock in the background, also in
/// an async context and while a thread panics.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
/// let reading = index.read()?;
/// std::thread::scope(|threads| {
///     let beside = threads.spawn(|| index.read().is_ok()); // another owner reads at the same time
///     assert!(beside.join().expect("no panic"));
/// });
/// reading.check()?;
/// reading.release()?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock"]
pub struct ReadGuard {
    inner: crate::ReadGuard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// A reader's hold of an [`RwLock`], with the right to become the writer:
/// [`leasehold::UpgradableGuard`](crate::UpgradableGuard), for threads. See [`RwLock`] for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct UpgradableGuard {
    inner: crate::UpgradableGuard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// The writer's hold of an [`RwLock`]: [`leasehold::WriteGuard`](crate::WriteGuard), for threads. See
/// [`RwLock`] for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct WriteGuard {
    inner: crate::WriteGuard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

face!(ReadGuard by Guard);
face!(UpgradableGuard by Guard);
face!(WriteGuard by Guard);

/// Further methods common to the guards.
macro_rules! held {
    ($($guard:ident)+) => { $(
        impl $guard {
            /// Returns the lock's name.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }

            /// Returns the owner that holds the lock, which may be a thread.
            pub fn owner(&self) -> &Owner {
                self.inner.owner()
            }

            /// Returns the fencing token of this hold: a number greater than that of every earlier hold of
            /// the lock.
            pub fn fencing_token(&self) -> FencingToken {
                self.inner.fencing_token()
            }

            /// Releases the lock, and admits the next waiters.
            ///
            /// Fails like [`leasehold::Guard::release`](crate::Guard::release). In an async context the lock
            /// is released in the background, as if the guard had been dropped, without waiting for the
            /// result.
            pub fn release(self) -> Result<(), Error<ReleaseError>> {
                let Self { inner, host } = self;
                call(&host, inner.release())
            }
        }
    )+ };
}

held! { ReadGuard UpgradableGuard WriteGuard }

/// A failed upgrade or downgrade: the hold is unchanged.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
/// let other = std::thread::scope(|threads| threads.spawn(|| index.read()).join()).expect("no panic")?;
/// let reading = index.upgradable_read()?;
/// let not = reading.upgrade_timeout(Duration::from_millis(20)).expect_err("another reader holds it");
/// println!("{not}"); // "timed out after 20ms: held by …"
/// let reading = not.guard;
/// other.release()?;
/// reading.upgrade()?.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConversionError<G: fmt::Debug> {
    /// The guard, still held as before unless it was lost meanwhile.
    pub guard: G,
    /// Why it was not converted.
    #[source]
    pub error: Error<AcquireError>,
}

#[allow(
    clippy::result_large_err,
    reason = "the error contains the guard, which is as large in the success case"
)]
impl UpgradableGuard {
    /// Becomes the writer once all other readers are done: see
    /// [`leasehold::UpgradableGuard::upgrade`](crate::UpgradableGuard::upgrade).
    ///
    /// Fails with the unchanged guard, also in an async context.
    pub fn upgrade(self) -> Result<WriteGuard, ConversionError<Self>> {
        let shift = |inner: crate::UpgradableGuard| inner.upgrade();
        shifted(self.inner, self.host, shift, WriteGuard::new, Self::new)
    }

    /// Becomes the writer within `limit`. Otherwise like [`upgrade`](Self::upgrade).
    pub fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, ConversionError<Self>> {
        let shift = |inner: crate::UpgradableGuard| inner.upgrade_timeout(limit);
        shifted(self.inner, self.host, shift, WriteGuard::new, Self::new)
    }
}

#[allow(
    clippy::result_large_err,
    reason = "the error contains the guard, which is as large in the success case"
)]
impl WriteGuard {
    /// Becomes a reader, and admits the readers at the front of the queue: see
    /// [`leasehold::WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// Fails with the unchanged guard, also in an async context.
    pub fn downgrade(self) -> Result<ReadGuard, ConversionError<Self>> {
        let shift = |inner: crate::WriteGuard| inner.downgrade();
        shifted(self.inner, self.host, shift, ReadGuard::new, Self::new)
    }
}

/// Blocks until a guard has been converted; a failure returns the original guard.
#[allow(
    clippy::result_large_err,
    reason = "the error contains the guard, which is as large in the success case"
)]
fn shifted<A: fmt::Debug, B, From: fmt::Debug, To, F>(
    inner: A,
    host: Arc<Host>,
    shift: impl FnOnce(A) -> F,
    to: impl FnOnce(B, Arc<Host>) -> To,
    back: impl FnOnce(A, Arc<Host>) -> From,
) -> Result<To, ConversionError<From>>
where
    F: Future<Output = Result<B, crate::ConversionError<A>>>,
{
    if let Err(refused) = refuse_async() {
        return Err(ConversionError { guard: back(inner, host), error: refused.into() });
    }
    match host.wait_anywhere(shift(inner)) {
        Ok(held) => Ok(to(held, host)),
        Err(crate::ConversionError { guard, error }) => {
            Err(ConversionError { guard: back(guard, host), error: Error::Failed(error) })
        }
    }
}
