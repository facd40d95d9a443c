//! Permits by key: at most so many in all, and so many for each key.
//!
//! Two semaphores, of which each acquisition needs permits: first of the key's own, then of the one for all.
//!
//! 1. Always in that order, so no two acquisitions wait for each other.
//! 2. A key's permits are held while its requests wait in the queue for all, and released after those of that queue. So a
//!    key never has requests for more permits there than it may hold.
//! 3. Until both are held, the hold of the key is renewed whatever the settings: a lease and a cap count from then.

use crate::error::{
    AcquireError, InspectError, LockError, LostHold, MultiReleaseError, ReleaseError, RunError,
};
use crate::guard::lock_guard::LockGuard;
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{Attempt, LockHandle, settings};
use crate::lock::multi::{MultiAttempt, MultiGuard};
use crate::lock::run::run_under;
use crate::lock::semaphore::{Permit, Semaphore};
use futures_util::future::BoxFuture;
use leasehold_core::{FencingToken, KeyedName, Lease, Lock, LockName, Moment};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// How often to start over if the hold of the key is lost before the other one is acquired.
const MAX_ATTEMPTS: u32 = 3;

/// A counting semaphore with a limit for each key as well, such as a tenant, a user or a host: at most so many permits in
/// all, and so many of them for one key.
///
/// Waiting is fair between keys. Each key has a queue of its own, and only as many of its requests as it may hold permits
/// are in the queue for all. So however many requests of one key wait, a request of another key has at most `permits_per_key`
/// permits of that key before it in the queue for all. Within a key, and within the queue for all, requests are granted in
/// the order of their arrival there.
///
/// It is made of two [semaphores](Semaphore): one of this name [for all](Self::all), which clients that know no keys
/// may use as well, and one [of each key](Self::of_key), whose name is [made of both](leasehold_core::KeyedName). What
/// is documented there about numbers of permits, renewal and death applies to both.
///
/// What it costs: an acquisition is two requests, one after the other, and so is a release. Each [`KeyedPermit`] is two holds,
/// which are renewed, listed and lost separately; it counts as lost as soon as one of them is. On Redis each key leaves a
/// record for up to an hour. In a cluster, use a name with a hash tag, such as `{uploads}`: otherwise each key is in a
/// slot of its own, in which the client needs a session.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, MultiAttempt};
///
/// // 100 exports at a time, and at most 5 of one tenant.
/// let exports = Client::connect("memory:").await?.keyed_semaphore("exports", 100, 5)?;
/// let permit = exports.acquire("tenant-17").await?;
/// match exports.try_acquire_many("tenant-17", 5).await? {
///     MultiAttempt::Granted(_) => unreachable!("one of the five is held"),
///     MultiAttempt::Taken { lock, .. } if lock == *exports.name() => println!("busy"), // 503
///     MultiAttempt::Taken { .. } => println!("this tenant has too many, running or waiting"), // 429
/// }
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct KeyedSemaphore {
    all: Semaphore,
    name: KeyedName,
    per_key: u32,
}

impl KeyedSemaphore {
    /// Fails if the name is too long for keys.
    pub(crate) fn new(all: Semaphore, per_key: u32) -> Result<Self, LockError> {
        let name = KeyedName::new(all.name().clone())?;
        Ok(Self { all, name, per_key })
    }

    settings! {
        /// Sets the lease of both holds, counted from when both are held: like [`Semaphore::lease`].
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long both holds last, counted from when both are held: like
        /// [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often each hold is renewed: like [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Sets what an acquire does that waits in a cycle, for permits of its key or for those of all: like
        /// [`Mutex::deadlock`](crate::Mutex::deadlock).
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits, for both together. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Makes an acquire change either number of permits where other clients use another one: like
    /// [`Semaphore::resize_on_mismatch`]. The number of a key changes when a client acquires for that key.
    #[must_use]
    pub fn resize_on_mismatch(self) -> Self {
        Self { all: self.all.resize_on_mismatch(), ..self }
    }

    /// Returns the semaphore's name.
    pub fn name(&self) -> &LockName {
        self.all.name()
    }

    /// Returns the semaphore for all keys, for example to [inspect](Semaphore::inspect) or to
    /// [resize](Semaphore::resize) it. A permit acquired from it counts for no key.
    pub const fn all(&self) -> &Semaphore {
        &self.all
    }

    /// Returns the semaphore of a key alone, for example to [inspect](Semaphore::inspect) it, or to give this key
    /// [another number](Semaphore::resize) of permits, which is kept for as long as the semaphore of the key is used, and an
    /// hour longer. A permit acquired from it reserves one for the key, and is none of the
    /// permits for all.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let exports = leasehold::Client::connect("memory:").await?.keyed_semaphore("exports", 100, 5)?;
    /// exports.of_key("the best customer").resize(20).await?;
    /// let many = exports.acquire_many("the best customer", 20).await?;
    /// # many.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn of_key(&self, key: &str) -> Semaphore {
        self.all.sibling(&Lock::semaphore(self.name.for_key(key)), self.per_key)
    }

    /// Tries once to acquire a permit for a key: like [`try_acquire_many`](Self::try_acquire_many), including cancel safety.
    pub async fn try_acquire(&self, key: &str) -> Result<MultiAttempt<KeyedPermit>, AcquireError> {
        self.try_acquire_many(key, 1).await
    }

    /// Tries once to acquire `count` permits for a key: succeeds if the key may have them, if they are free, and if no other
    /// client waits, neither for permits of this key nor for those of all. Otherwise it gives back what it has acquired, and
    /// names the semaphore that was taken: the [one of the key](Self::of_key), or the [one for all](Self::all).
    ///
    /// Fails like [`Semaphore::try_acquire_many`]: for each of both numbers.
    ///
    /// Cancel safety: if the future is dropped, what may have been acquired is given back in the background.
    pub async fn try_acquire_many(
        &self,
        key: &str,
        count: u32,
    ) -> Result<MultiAttempt<KeyedPermit>, AcquireError> {
        let of_key = self.of_key(key);
        let (until, _) = self.all.handle().limit(Some(Duration::ZERO), self.all.handle().now());
        let own = match of_key.try_acquire_many(count).await? {
            Attempt::Granted(own) => own,
            Attempt::Taken(contention) => {
                return Ok(MultiAttempt::Taken { lock: of_key.name().clone(), contention });
            }
        };
        match self.all.try_acquire_many(count).await? {
            Attempt::Granted(all) => match self.join(all, own, until).await? {
                Ok(held) => Ok(MultiAttempt::Granted(held)),
                Err(lost) => Err(AcquireError::Lost(lost)),
            },
            Attempt::Taken(contention) => {
                if let Err(error) = own.release().await {
                    tracing::debug!(lock = %of_key.name(), %error, "not given back yet");
                }
                Ok(MultiAttempt::Taken { lock: self.name().clone(), contention })
            }
        }
    }

    /// Acquires a permit for a key, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a limit. Like
    /// [`acquire_many`](Self::acquire_many), including cancel safety.
    pub async fn acquire(&self, key: &str) -> Result<KeyedPermit, AcquireError> {
        self.acquire_many(key, 1).await
    }

    /// Acquires `count` permits for a key, all at once, and waits for as long as [`max_wait`](Self::max_wait) allows, or
    /// without a limit: first for those of the key, and then for those of all.
    ///
    /// Fails like [`Semaphore::acquire_many`]: with [`AcquireError::Impossible`] if `count` is more than one of both numbers,
    /// or if other clients use another one; and with [`AcquireError::TimedOut`] at the limit, which names the semaphore that
    /// was taken. Fails with [`AcquireError::Lost`] if the permits of the key were lost again and again while it waited.
    ///
    /// Cancel safety: if the future is dropped, its queue entries are given up, and what may have been acquired is given back
    /// in the background.
    pub async fn acquire_many(&self, key: &str, count: u32) -> Result<KeyedPermit, AcquireError> {
        self.acquire_within(key, count, self.all.handle().max_wait).await
    }

    /// Acquires a permit for a key within `limit`. Otherwise like [`acquire_many`](Self::acquire_many), including cancel
    /// safety.
    pub async fn acquire_timeout(&self, key: &str, limit: Duration) -> Result<KeyedPermit, AcquireError> {
        self.acquire_within(key, 1, Some(limit)).await
    }

    /// Acquires `count` permits for a key within `limit`. Otherwise like [`acquire_many`](Self::acquire_many), including
    /// cancel safety.
    pub async fn acquire_many_timeout(
        &self,
        key: &str,
        count: u32,
        limit: Duration,
    ) -> Result<KeyedPermit, AcquireError> {
        self.acquire_within(key, count, Some(limit)).await
    }

    /// Returns how many permits are free for a key: of its own, and of those for all. Otherwise like
    /// [`Semaphore::available_permits`], including errors and cancel safety.
    pub async fn available_permits(&self, key: &str) -> Result<u32, InspectError> {
        let own = self.of_key(key).available_permits().await?;
        Ok(own.min(self.all.available_permits().await?))
    }

    /// Runs a future with a permit for a key, and drops the future if the permit is lost: like
    /// [`Mutex::run`](crate::Mutex::run), including errors and cancel safety.
    pub async fn run<F: Future>(
        &self,
        key: &str,
        work: impl FnOnce(Arc<KeyedPermit>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        run_under(self.acquire(key).await?, work).await
    }

    fn set(self, change: impl Fn(&mut LockHandle)) -> Self {
        Self { all: self.all.set(change), ..self }
    }

    async fn acquire_within(
        &self,
        key: &str,
        count: u32,
        limit: Option<Duration>,
    ) -> Result<KeyedPermit, AcquireError> {
        let (start, of_key) = (self.all.handle().now(), self.of_key(key));
        let (until, _) = self.all.handle().limit(limit, start);
        let mut attempts = 0;
        loop {
            attempts += 1;
            // In boxes, since each of them is large.
            let own = Box::pin(of_key.acquire_since(count, limit, start)).await?;
            let all = Box::pin(self.all.acquire_since(count, limit, start));
            let lost = match own.unless_lost(all).await {
                Ok(all) => match self.join(all?, own, until).await? {
                    Ok(held) => return Ok(held),
                    Err(lost) => lost,
                },
                Err(lost) => lost,
            };
            if attempts == MAX_ATTEMPTS {
                return Err(AcquireError::Lost(lost));
            }
        }
    }

    /// Joins both holds, of which the one of the key is kept by the settings from now on (3). Fails if it was lost meanwhile.
    async fn join(
        &self,
        all: Permit,
        own: Permit,
        until: Option<Moment>,
    ) -> Result<Result<KeyedPermit, LostHold>, AcquireError> {
        let (handle, count, fence) = (self.all.handle(), all.count(), all.fencing_token());
        let own = handle.keep(own.into_guard()).map_err(AcquireError::Lease)?;
        let holds = MultiGuard::new(&handle.engine, vec![all.into_guard(), own]);
        let joined = holds.check_with_reason_until(until).await;
        Ok(joined.map(|()| KeyedPermit { name: self.name().clone(), fence, holds, count }))
    }
}

/// One or more permits of a [`KeyedSemaphore`]: some of its key, and as many of those for all.
///
/// [Releasing](Self::release) or dropping it returns both. They are lost together: when one hold is lost, this counts as
/// lost, and [`lost`](MultiGuard::lost) names the semaphore whose hold it was. It dereferences to a [`MultiGuard`], and not to
/// a [`Guard`](crate::Guard), because that would stand for one of the two holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn export() {}
/// let exports = leasehold::Client::connect("memory:").await?.keyed_semaphore("exports", 100, 5)?;
/// let permit = exports.acquire("tenant-17").await?;
/// tokio::select! {
///     lost = permit.lost() => eprintln!("stopped: {lost}"),
///     () = export() => permit.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a permit releases it"]
pub struct KeyedPermit {
    name: LockName,
    /// That of the hold for all keys.
    fence: FencingToken,
    /// First the hold for all keys: a dropped permit is released in this order.
    holds: MultiGuard,
    count: u32,
}

impl KeyedPermit {
    /// Returns the name of the semaphore for all keys.
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the number of permits: as many of the key as of those for all.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the fencing token of the hold of the semaphore for all keys: a number greater than that of every earlier one,
    /// whatever its key.
    pub const fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    /// Releases the permits, those for all and then those of the key, and admits the next waiters. A failure with one does not
    /// prevent the release of the other.
    ///
    /// Fails with what was not released, and the reason for each: like [`Guard::release`](crate::Guard::release).
    ///
    /// Cancel safety: if the future is dropped, the permits are released in the background.
    pub async fn release(self) -> Result<(), MultiReleaseError> {
        let mut failed = Vec::new();
        // If this future is dropped, the rest are dropped with it.
        for guard in self.holds.into_guards() {
            let name = guard.name().clone();
            if let Err(error) = guard.release().await {
                failed.push((name, error));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(MultiReleaseError { failed }) }
    }
}

impl Deref for KeyedPermit {
    type Target = MultiGuard;

    fn deref(&self) -> &MultiGuard {
        &self.holds
    }
}

impl LockGuard for KeyedPermit {
    fn name(&self) -> &LockName {
        self.name()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }

    fn remaining(&self) -> Duration {
        self.holds.remaining()
    }

    fn check(&self) -> Result<(), LostHold> {
        self.holds.check()
    }

    fn lost(&self) -> BoxFuture<'_, LostHold> {
        Box::pin(self.holds.lost())
    }

    /// Of two errors returns the loss; the other hold, if it was not released, is released in the background.
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let permit = *self;
            permit.release().await.or_else(MultiReleaseError::into_worst)
        })
    }
}

impl fmt::Debug for KeyedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPermit")
            .field("holds", &self.holds)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
