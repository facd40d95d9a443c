//! The RwLock of threads.

use super::guard::face;
use super::host::{Host, refuse_async};
use super::{Error, call, thread};
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError, RunError};
use crate::owner::{Owner, Owners};
use crate::request::{Request, settings};
use crate::{Attempt, Details, Status};
use leasehold_core::{FencingToken, Lease, LockName, RetryPolicy, Seen};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A lock that any number of readers can have at a time, or one writer: [`leasehold::RwLock`](crate::RwLock), for threads.
///
/// Where nobody says for whom a thread works, it works for itself, as with a
/// [`ReentrantMutex`](super::ReentrantMutex): a thread that reads reads once more at once, and one that would wait for itself
/// is told so. What is said there of scopes, pools and the threads of a runtime holds here.
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
/// let writing = reading.upgrade()?; // when the other readers are done
/// rebuild();
/// let reading = writing.downgrade()?; // lets the other readers in
/// reading.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    inner: crate::RwLock,
    /// Of the client whose lock it is: they make the owners of threads.
    owners: Arc<Owners>,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async lock.
impl RwLock {
    pub(super) fn new(inner: crate::RwLock, owners: Arc<Owners>, host: Arc<Host>) -> Self {
        Self { inner, owners, host }
    }

    /// For whom it is acquired, whatever thread asks, and whatever scope it is in.
    #[must_use]
    pub fn owned_by(self, owner: &Owner) -> Self {
        Self { inner: self.inner.owned_by(owner), ..self }
    }

    settings! {
        /// How long a hold lasts, of readers and writers: see [`leasehold::RwLock::lease`](crate::RwLock::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: see
        /// [`leasehold::Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: see [`leasehold::Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`read`](Self::read) and the others wait at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy in place of queueing: see [`leasehold::Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// How long a hold of a reader lasts, upgradable or not.
    #[must_use]
    pub fn read_lease(self, lease: impl Into<Lease>) -> Self {
        Self { inner: self.inner.read_lease(lease), ..self }
    }

    /// How long a hold of a writer lasts.
    #[must_use]
    pub fn write_lease(self, lease: impl Into<Lease>) -> Self {
        Self { inner: self.inner.write_lease(lease), ..self }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name. A thread that waits can be stopped by
/// [`Client::shutdown`](super::Client::shutdown) only.
impl RwLock {
    /// Reads: see [`leasehold::RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<ReadGuard, Error<AcquireError>> {
        self.call(self.inner.read()).map(|guard| ReadGuard::new(guard, self.host.clone()))
    }

    /// Reads within `limit`. Otherwise as [`read`](Self::read).
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard, Error<AcquireError>> {
        self.call(self.inner.read_timeout(limit)).map(|guard| ReadGuard::new(guard, self.host.clone()))
    }

    /// Tries once to read: see [`leasehold::RwLock::try_read`](crate::RwLock::try_read). It waits for the store alone.
    pub fn try_read(&self) -> Result<Attempt<ReadGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_read())?;
        Ok(tried.map(|guard| ReadGuard::new(guard, self.host.clone())))
    }

    /// Writes: see [`leasehold::RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<WriteGuard, Error<AcquireError>> {
        self.call(self.inner.write()).map(|guard| WriteGuard::new(guard, self.host.clone()))
    }

    /// Writes within `limit`. Otherwise as [`write`](Self::write).
    pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard, Error<AcquireError>> {
        self.call(self.inner.write_timeout(limit)).map(|guard| WriteGuard::new(guard, self.host.clone()))
    }

    /// Tries once to write: see [`leasehold::RwLock::try_write`](crate::RwLock::try_write). It waits for the store alone.
    pub fn try_write(&self) -> Result<Attempt<WriteGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_write())?;
        Ok(tried.map(|guard| WriteGuard::new(guard, self.host.clone())))
    }

    /// Reads, with the right to [upgrade](UpgradableGuard::upgrade): see
    /// [`leasehold::RwLock::upgradable_read`](crate::RwLock::upgradable_read).
    pub fn upgradable_read(&self) -> Result<UpgradableGuard, Error<AcquireError>> {
        self.call(self.inner.upgradable_read()).map(|guard| UpgradableGuard::new(guard, self.host.clone()))
    }

    /// Reads with the right to upgrade, within `limit`. Otherwise as [`upgradable_read`](Self::upgradable_read).
    pub fn upgradable_read_timeout(&self, limit: Duration) -> Result<UpgradableGuard, Error<AcquireError>> {
        let read = self.call(self.inner.upgradable_read_timeout(limit))?;
        Ok(UpgradableGuard::new(read, self.host.clone()))
    }

    /// Tries once to read with the right to upgrade: see
    /// [`leasehold::RwLock::try_upgradable_read`](crate::RwLock::try_upgradable_read). It waits for the store alone.
    pub fn try_upgradable_read(&self) -> Result<Attempt<UpgradableGuard>, Error<AcquireError>> {
        let tried = self.call(self.inner.try_upgradable_read())?;
        Ok(tried.map(|guard| UpgradableGuard::new(guard, self.host.clone())))
    }

    /// Runs a function as a reader, and for the owner of the read: whatever it acquires is acquired for him.
    ///
    /// Fails as [`Mutex::run`](super::Mutex::run) does: if the hold is lost meanwhile, when the function has ended.
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

    /// Runs a function as the writer: as [`run_reading`](Self::run_reading), also as to errors.
    pub fn run_writing<T>(&self, work: impl FnOnce(&WriteGuard) -> T) -> Result<T, Error<RunError>> {
        let held = self.write().map_err(|error| error.map(RunError::Acquire))?;
        let result = held.owner().sync_scope(|| work(&held));
        held.check().map_err(|lost| Error::Failed(RunError::Lost(lost)))?;
        self.told(held.release());
        Ok(result)
    }

    /// How the lock stands: all who have it, and how many wait. Changes nothing.
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        self.call(self.inner.inspect())
    }

    /// How the lock stands, who is behind each hold, and who took it from whom: see
    /// [`leasehold::Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        self.call(self.inner.inspect_in_full())
    }

    /// Takes the lock from one who was [seen](crate::Sharer::seen) to have it, dead or alive: see
    /// [`leasehold::RwLock::free_by_force`](crate::RwLock::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        self.call(self.inner.free_by_force(seen))
    }

    /// Waits for a call of the async API, which is made for this thread where no scope says for whom. Who was given by
    /// [`owned_by`](Self::owned_by) comes before either.
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
/// It is renewed while its thread does something else, or nothing. One that is dropped gives the lock back in the
/// background, in an async context and while a thread panics, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
/// let reading = index.read()?;
/// std::thread::scope(|threads| {
///     let beside = threads.spawn(|| index.read().is_ok()); // somebody else, who reads at the same time
///     assert!(beside.join().expect("no panic"));
/// });
/// reading.check()?;
/// reading.release()?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct ReadGuard {
    inner: crate::ReadGuard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// A reader's hold of an [`RwLock`], with the right to become the writer:
/// [`leasehold::UpgradableGuard`](crate::UpgradableGuard), for threads. [`RwLock`] shows it in use.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct UpgradableGuard {
    inner: crate::UpgradableGuard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The writer's hold of an [`RwLock`]: [`leasehold::WriteGuard`](crate::WriteGuard), for threads. [`RwLock`] shows it in
/// use.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct WriteGuard {
    inner: crate::WriteGuard,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(ReadGuard by Guard);
face!(UpgradableGuard by Guard);
face!(WriteGuard by Guard);

/// What the guards have in common beside that.
macro_rules! held {
    ($($guard:ident)+) => { $(
        impl $guard {
            /// The lock's name.
            pub fn name(&self) -> &LockName {
                self.inner.name()
            }

            /// Who has the lock: of a thread that worked for itself, the thread.
            pub fn owner(&self) -> &Owner {
                self.inner.owner()
            }

            /// The number of this hold: greater than that of every earlier hold of the lock.
            pub fn fencing_token(&self) -> FencingToken {
                self.inner.fencing_token()
            }

            /// Gives the lock back, and lets in who waits.
            ///
            /// Fails as [`leasehold::Guard::release`](crate::Guard::release) does. In an async context it is given back all
            /// the same, in the background, as if the guard had been dropped: only nobody waits for it.
            pub fn release(self) -> Result<(), Error<ReleaseError>> {
                let Self { inner, host } = self;
                call(&host, inner.release())
            }
        }
    )+ };
}

held! { ReadGuard UpgradableGuard WriteGuard }

/// An upgrade that failed, or a downgrade: the hold is what it was.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
/// let other = std::thread::scope(|threads| threads.spawn(|| index.read()).join()).expect("no panic")?;
/// let reading = index.upgradable_read()?;
/// let not = reading.upgrade_timeout(Duration::from_millis(20)).expect_err("another one reads");
/// println!("{not}"); // "timed out after 20ms: held by …"
/// let reading = not.guard;
/// other.release()?;
/// reading.upgrade()?.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotShifted<G: fmt::Debug> {
    /// What is held as before, unless it was lost meanwhile.
    pub guard: G,
    /// Why it is no more, or less, than that.
    #[source]
    pub error: Error<AcquireError>,
}

#[allow(clippy::result_large_err, reason = "what is large is the guard, which is large where it works, too")]
impl UpgradableGuard {
    /// Becomes the writer, when all other readers are done: see
    /// [`leasehold::UpgradableGuard::upgrade`](crate::UpgradableGuard::upgrade).
    ///
    /// Fails with the guard as it was, in an async context as well.
    pub fn upgrade(self) -> Result<WriteGuard, NotShifted<Self>> {
        let shift = |inner: crate::UpgradableGuard| inner.upgrade();
        shifted(self.inner, self.host, shift, WriteGuard::new, Self::new)
    }

    /// Becomes the writer within `limit`. Otherwise as [`upgrade`](Self::upgrade).
    pub fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, NotShifted<Self>> {
        let shift = |inner: crate::UpgradableGuard| inner.upgrade_timeout(limit);
        shifted(self.inner, self.host, shift, WriteGuard::new, Self::new)
    }
}

#[allow(clippy::result_large_err, reason = "what is large is the guard, which is large where it works, too")]
impl WriteGuard {
    /// Becomes a reader, and lets in the readers who wait first: see
    /// [`leasehold::WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// Fails with the guard as it was, in an async context as well.
    pub fn downgrade(self) -> Result<ReadGuard, NotShifted<Self>> {
        let shift = |inner: crate::WriteGuard| inner.downgrade();
        shifted(self.inner, self.host, shift, ReadGuard::new, Self::new)
    }
}

/// Waits until a hold has become another one, which hands it back where it has not.
#[allow(clippy::result_large_err, reason = "what is large is the guard, which is large where it works, too")]
fn shifted<A: fmt::Debug, B, From: fmt::Debug, To, F>(
    inner: A,
    host: Arc<Host>,
    shift: impl FnOnce(A) -> F,
    to: impl FnOnce(B, Arc<Host>) -> To,
    back: impl FnOnce(A, Arc<Host>) -> From,
) -> Result<To, NotShifted<From>>
where
    F: Future<Output = Result<B, crate::NotShifted<A>>>,
{
    if let Err(refused) = refuse_async() {
        return Err(NotShifted { guard: back(inner, host), error: refused.into() });
    }
    match host.wait_anywhere(shift(inner)) {
        Ok(held) => Ok(to(held, host)),
        Err(crate::NotShifted { guard, error }) => {
            Err(NotShifted { guard: back(guard, host), error: Error::Failed(error) })
        }
    }
}
