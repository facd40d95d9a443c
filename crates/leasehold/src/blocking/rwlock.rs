//! The blocking readers-writer lock.

use super::facade::{IntoBlocking, run};
use super::runtime_thread::{RuntimeThread, check_not_async};
use super::{Error, HoldEnds};
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError, RunError};
use crate::guard::owner::Owner;
use crate::{Attempt, DetachedHold};
use leasehold_core::{FencingToken, Lease, LockName};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

facade! {
    /// A readers-writer lock, held by any number of readers or by one writer:
    /// [`leasehold::RwLock`](crate::RwLock), for threads.
    ///
    /// Without another owner, a thread is its own owner, as with a [`ReentrantMutex`](super::ReentrantMutex):
    /// a thread that reads may read again at once, one that writes may write again, and a request that would wait
    /// for its own thread fails.
    /// What is documented there about scopes, pools and the threads of a runtime applies here.
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
    pub struct RwLock;

    settings { lease max_hold max_renewals lock_delay history deadlock max_wait retry low_priority_for class }

    set {
        /// Sets the owner that acquires the lock, whatever the calling thread and its scope.
        pub fn owned_by(self, owner: &Owner) -> Self;

        /// Sets the lease of readers, upgradable or not.
        pub fn read_lease(self, lease: impl Into<Lease>) -> Self;

        /// Sets the lease of writers.
        pub fn write_lease(self, lease: impl Into<Lease>) -> Self;
    }

    forward {
        /// Returns the lock's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Releases all reads by force, and returns how many: see
        /// [`leasehold::RwLock::force_release_readers`](crate::RwLock::force_release_readers).
        pub fn force_release_readers(&self) -> Result<u64, Error<ForceReleaseError>>;

        /// Releases the write by force, and returns whether there was one: see
        /// [`leasehold::RwLock::force_release_writer`](crate::RwLock::force_release_writer).
        pub fn force_release_writer(&self) -> Result<bool, Error<ForceReleaseError>>;
    }

    wait_as_owner {
        /// Acquires the lock for reading as a detached hold: see
        /// [`leasehold::RwLock::read_detached`](crate::RwLock::read_detached).
        pub fn read_detached(&self) -> Result<DetachedHold, Error<AcquireError>>;

        /// Acquires the lock for writing as a detached hold: see
        /// [`leasehold::RwLock::write_detached`](crate::RwLock::write_detached).
        pub fn write_detached(&self) -> Result<DetachedHold, Error<AcquireError>>;

        /// Acquires the lock for reading: see [`leasehold::RwLock::read`](crate::RwLock::read).
        pub fn read(&self) -> Result<ReadGuard, Error<AcquireError>>;

        /// Acquires the lock for reading within `limit`. Otherwise like [`read`](Self::read).
        pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard, Error<AcquireError>>;

        /// Tries once to acquire the lock for reading: see
        /// [`leasehold::RwLock::try_read`](crate::RwLock::try_read). Blocks only for the store's reply.
        pub fn try_read(&self) -> Result<Attempt<ReadGuard>, Error<AcquireError>>;

        /// Acquires the lock for writing: see [`leasehold::RwLock::write`](crate::RwLock::write).
        pub fn write(&self) -> Result<WriteGuard, Error<AcquireError>>;

        /// Acquires the lock for writing within `limit`. Otherwise like [`write`](Self::write).
        pub fn write_timeout(&self, limit: Duration) -> Result<WriteGuard, Error<AcquireError>>;

        /// Tries once to acquire the lock for writing: see
        /// [`leasehold::RwLock::try_write`](crate::RwLock::try_write). Blocks only for the store's reply.
        pub fn try_write(&self) -> Result<Attempt<WriteGuard>, Error<AcquireError>>;

        /// Acquires the lock for reading, with the right to [upgrade](UpgradableGuard::upgrade): see
        /// [`leasehold::RwLock::upgradable_read`](crate::RwLock::upgradable_read).
        pub fn upgradable_read(&self) -> Result<UpgradableGuard, Error<AcquireError>>;

        /// Acquires the lock for an upgradable read within `limit`. Otherwise like
        /// [`upgradable_read`](Self::upgradable_read).
        pub fn upgradable_read_timeout(&self, limit: Duration) -> Result<UpgradableGuard, Error<AcquireError>>;

        /// Tries once to acquire the lock for an upgradable read: see
        /// [`leasehold::RwLock::try_upgradable_read`](crate::RwLock::try_upgradable_read). Blocks only for the
        /// store's reply.
        pub fn try_upgradable_read(&self) -> Result<Attempt<UpgradableGuard>, Error<AcquireError>>;
    }

    wait {
        #[doc = see!("Observes the ends of holds, by whichever client", RwLock::observe_ends)]
        pub fn observe_ends(&self) -> Result<HoldEnds, Error<InspectError>>;
    }

    operator { "Releases by force one hold that was observed, dead or alive" }
}

impl RwLock {
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
    pub fn run_reading<T>(&self, work: impl FnOnce(&ReadGuard) -> T) -> Result<T, Error<RunError<T>>> {
        let work = |guard: &ReadGuard| guard.owner().sync_scope(|| work(guard));
        run(self.name(), self.read(), work, (ReadGuard::check, ReadGuard::fencing_token), ReadGuard::release)
    }

    /// Runs a function as the writer: like [`run_reading`](Self::run_reading), including errors.
    pub fn run_writing<T>(&self, work: impl FnOnce(&WriteGuard) -> T) -> Result<T, Error<RunError<T>>> {
        let work = |guard: &WriteGuard| guard.owner().sync_scope(|| work(guard));
        run(
            self.name(),
            self.write(),
            work,
            (WriteGuard::check, WriteGuard::fencing_token),
            WriteGuard::release,
        )
    }
}

facade! {
    /// A reader's hold of an [`RwLock`]: [`leasehold::ReadGuard`](crate::ReadGuard), for threads.
    ///
    /// It is renewed whatever its thread does meanwhile. Dropping it releases the lock in the background,
    /// also in an async context and while a thread panics.
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
    pub struct ReadGuard;

    guard { Guard }

    watch { }
}

facade! {
    /// A reader's hold of an [`RwLock`], with the right to become the writer:
    /// [`leasehold::UpgradableGuard`](crate::UpgradableGuard), for threads. See [`RwLock`] for an example.
    #[must_use = "dropping a guard releases its lock"]
    pub struct UpgradableGuard;

    guard { Guard }

    watch { }
}

facade! {
    /// The writer's hold of an [`RwLock`]: [`leasehold::WriteGuard`](crate::WriteGuard), for threads. See
    /// [`RwLock`] for an example.
    #[must_use = "dropping a guard releases its lock"]
    pub struct WriteGuard;

    guard { Guard }

    watch { }
}

/// The further methods of the guards, which differ in nothing but their type.
macro_rules! guards {
    ($($guard:ident)+) => { $(
        facade! {
            impl $guard;

            forward {
                /// Returns the lock's name.
                pub fn name(&self) -> &LockName;

                /// Returns the owner that holds the lock, which may be a thread.
                pub fn owner(&self) -> &Owner;

                /// Returns the fencing token of this hold: a number greater than that of every earlier hold of
                /// the lock.
                pub fn fencing_token(&self) -> FencingToken;
            }

            end {
                /// Releases the lock, and admits the next waiters.
                ///
                /// Fails like [`leasehold::Guard::release`](crate::Guard::release). In an async context the
                /// lock is released in the background, as if the guard had been dropped, without waiting for
                /// the result.
                pub fn release(self) -> Result<(), Error<ReleaseError>>;
            }
        }
    )+ };
}

guards! { ReadGuard UpgradableGuard WriteGuard }

/// A failed upgrade or downgrade: the hold is unchanged.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::blocking::Client::connect("memory:")?.rwlock("index")?;
/// let other = std::thread::scope(|threads| threads.spawn(|| index.read()).join()).expect("no panic")?;
/// let reading = index.upgradable_read()?;
/// let failed = reading.upgrade_timeout(Duration::from_millis(20)).expect_err("another reader holds it");
/// println!("{failed}"); // "timed out after 20ms: held by …"
/// let reading = failed.guard;
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
        converted(self.inner, &self.thread, crate::UpgradableGuard::upgrade)
    }

    /// Becomes the writer within `limit`. Otherwise like [`upgrade`](Self::upgrade).
    pub fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, ConversionError<Self>> {
        converted(self.inner, &self.thread, |inner| inner.upgrade_timeout(limit))
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
        converted(self.inner, &self.thread, crate::WriteGuard::downgrade)
    }
}

/// Blocks until a guard has been converted; a failure returns the original guard.
#[allow(
    clippy::result_large_err,
    reason = "the error contains the guard, which is as large in the success case"
)]
fn converted<A, B, F>(
    inner: A,
    thread: &Arc<RuntimeThread>,
    convert: impl FnOnce(A) -> F,
) -> Result<B::Blocking, ConversionError<A::Blocking>>
where
    A: IntoBlocking + fmt::Debug,
    A::Blocking: fmt::Debug,
    B: IntoBlocking,
    F: Future<Output = Result<B, crate::error::ConversionError<A>>>,
{
    if let Err(error) = check_not_async() {
        return Err(ConversionError { guard: inner.into_blocking(thread), error: error.into() });
    }
    match thread.wait_unchecked(convert(inner)) {
        Ok(held) => Ok(held.into_blocking(thread)),
        Err(crate::error::ConversionError { guard, error }) => {
            Err(ConversionError { guard: guard.into_blocking(thread), error: Error::Failed(error) })
        }
    }
}
