//! The readers-writer lock: shared by readers, exclusive to a writer.

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError, RunError};
use crate::guard::Guard;
use crate::guard::owner::{Owner, Owners};
use crate::guard::status::{FullStatus, Status};
use crate::lock::request::{AcquireOptions, AcquiredGuard, Attempt, Request, settings};
use leasehold_core::{Lease, Lock, LockMode, LockName, ObservedHolder, Refused, RetryPolicy};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A readers-writer lock: held by any number of readers, or by one writer.
///
/// It is fair to both sides: readers that requested before a writer go before it, together; readers that
/// requested after it wait until it is done. So neither side starves. Each hold ends separately: a live
/// reader does not keep a dead one's hold alive. Each hold has its own fencing token.
///
/// The lock is held by an [`Owner`], as with a [`ReentrantMutex`](crate::ReentrantMutex): the one set with
/// [`owned_by`](Self::owned_by), else that of the task's [scope](Owner::scope), else a new one. An owner that
/// reads may read again at once, even past a waiting writer, which would otherwise deadlock with it; so may
/// an owner that writes. A request that would make an owner wait for itself fails at once with
/// [`AcquireError::Impossible`]: writing while it reads, or writing twice. To read first and perhaps write
/// later, start with an [upgradable read](Self::upgradable_read).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn look_up() -> bool { false }
/// # async fn rebuild() {}
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
///
/// let reading = index.upgradable_read().await?;
/// if look_up().await {
///     return Ok(reading.release().await?);
/// }
/// let writing = reading.upgrade().await?; // once the other readers are done
/// rebuild().await;
/// let reading = writing.downgrade().await?; // admits the other readers
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    access: Access,
    pub(crate) owners: Arc<Owners>,
    /// Set if the owner does not depend on the task.
    owner: Option<Owner>,
}

/// How each mode of the lock is requested.
#[derive(Debug, Clone)]
struct Access {
    read: Request,
    write: Request,
}

impl Access {
    /// Acquires the lock in one mode for an owner.
    async fn acquire(
        &self,
        owner: &Owner,
        mode: LockMode,
        limit: Option<Duration>,
    ) -> Result<AcquiredGuard, AcquireError> {
        let (request, options) = (self.request(mode), options(owner, mode));
        match request.acquire(&options, limit).await {
            Err(error) if waits_for_itself(&error) => {
                request.undone().await;
                request.acquire(&options, limit).await
            }
            acquired => acquired,
        }
    }

    /// Tries once to acquire the lock in one mode for an owner.
    async fn try_acquire(
        &self,
        owner: &Owner,
        mode: LockMode,
    ) -> Result<Attempt<AcquiredGuard>, AcquireError> {
        let (request, options) = (self.request(mode), options(owner, mode));
        match request.try_acquire(&options).await {
            Err(error) if waits_for_itself(&error) => {
                request.undone().await;
                request.try_acquire(&options).await
            }
            tried => tried,
        }
    }

    fn request(&self, mode: LockMode) -> &Request {
        match mode {
            LockMode::Write | LockMode::Upgrade => &self.write,
            _ => &self.read,
        }
    }
}

/// Whether the error says that the owner waits for itself. It may be caused by a hold given up a moment ago,
/// which is in the way until it is undone.
fn waits_for_itself(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Impossible(Refused::WouldDeadlock))
}

fn options(owner: &Owner, mode: LockMode) -> AcquireOptions {
    let (value, by_lease) = (Some(owner.text().clone()), owner.has_travelled());
    AcquireOptions { value, by_lease, mode, ..AcquireOptions::default() }
}

impl RwLock {
    pub(crate) fn new(engine: Arc<Engine>, owners: Arc<Owners>, lock: &Lock) -> Self {
        let read = Request::new(engine, lock);
        Self { access: Access { write: read.clone(), read }, owners, owner: None }
    }

    /// Sets the owner that acquires the lock, whatever the task's scope.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    settings! {
        /// Sets the lease of readers and writers: a hold ends when its lease ends. Without this setting, a
        /// watchdog renews the hold for as long as its guard lives.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed: like
        /// [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed: like [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Limits how long [`read`](Self::read), [`write`](Self::write) and
        /// [`upgradable_read`](Self::upgradable_read) wait. Without this setting, they wait forever.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy instead of queueing: like [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    /// Sets the lease of readers, upgradable or not: like [`lease`](Self::lease).
    #[must_use]
    pub fn read_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.access.read.lease(lease.into());
        self
    }

    /// Sets the lease of writers: like [`lease`](Self::lease).
    #[must_use]
    pub fn write_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.access.write.lease(lease.into());
        self
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.access.read.name()
    }

    /// Acquires the lock for reading: waits until no writer holds the lock or is ahead in the queue.
    ///
    /// Fails with [`AcquireError::TimedOut`] if [`wait`](Self::wait) sets a limit, and if the store refuses
    /// the request or does not reply for the client's [outage limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background.
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.read_within(self.access.read.wait).await
    }

    /// Acquires the lock for reading within `limit`. Otherwise like [`read`](Self::read), including cancel
    /// safety.
    pub async fn read_timeout(&self, limit: Duration) -> Result<ReadGuard, AcquireError> {
        self.read_within(Some(limit)).await
    }

    /// Tries once to acquire the lock for reading.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_read(&self) -> Result<Attempt<ReadGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, LockMode::Read).await?;
        Ok(tried.map(|kept| ReadGuard { guard: kept.guard, owner }))
    }

    /// Acquires the lock for writing: waits until no other client holds the lock, and all earlier requests
    /// are done.
    ///
    /// Fails with [`AcquireError::Impossible`] if its owner already holds the lock, and otherwise like
    /// [`read`](Self::read).
    ///
    /// Cancel safety: as for [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.write_within(self.access.write.wait).await
    }

    /// Acquires the lock for writing within `limit`. Otherwise like [`write`](Self::write), including cancel
    /// safety.
    pub async fn write_timeout(&self, limit: Duration) -> Result<WriteGuard, AcquireError> {
        self.write_within(Some(limit)).await
    }

    /// Tries once to acquire the lock for writing: like [`try_read`](Self::try_read), including cancel
    /// safety.
    pub async fn try_write(&self) -> Result<Attempt<WriteGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, LockMode::Write).await?;
        Ok(tried.map(|kept| WriteGuard::new(kept, owner, self.access.clone())))
    }

    /// Acquires the lock for reading, with the right to [upgrade](UpgradableGuard::upgrade). Other readers
    /// are admitted beside it, but not another upgradable one.
    ///
    /// Fails with [`AcquireError::Impossible`] if its owner already reads, and otherwise like
    /// [`read`](Self::read).
    ///
    /// Cancel safety: as for [`read`](Self::read).
    pub async fn upgradable_read(&self) -> Result<UpgradableGuard, AcquireError> {
        self.upgradable_within(self.access.read.wait).await
    }

    /// Acquires the lock for an upgradable read within `limit`. Otherwise like
    /// [`upgradable_read`](Self::upgradable_read), including cancel safety.
    pub async fn upgradable_read_timeout(&self, limit: Duration) -> Result<UpgradableGuard, AcquireError> {
        self.upgradable_within(Some(limit)).await
    }

    /// Tries once to acquire the lock for an upgradable read: like [`try_read`](Self::try_read), including
    /// cancel safety.
    pub async fn try_upgradable_read(&self) -> Result<Attempt<UpgradableGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, LockMode::Upgradable).await?;
        Ok(tried.map(|kept| UpgradableGuard { guard: kept.guard, owner, access: self.access.clone() }))
    }

    /// Runs a future as a reader, and drops the future if the hold is lost: like
    /// [`Mutex::run`](crate::Mutex::run), including errors and cancel safety. Whatever the future acquires in
    /// the same task is acquired for the same owner.
    pub async fn run_reading<T>(&self, work: impl AsyncFnOnce(&ReadGuard) -> T) -> Result<T, RunError> {
        let held = self.read().await?;
        let result = held.guard.unless_lost(held.owner.scope(work(&held))).await?;
        told(self.name(), held.release().await);
        Ok(result)
    }

    /// Runs a future as the writer: like [`run_reading`](Self::run_reading), including errors and cancel
    /// safety.
    pub async fn run_writing<T>(&self, work: impl AsyncFnOnce(&WriteGuard) -> T) -> Result<T, RunError> {
        let held = self.write().await?;
        let result = held.guard.unless_lost(held.owner.scope(work(&held))).await?;
        told(self.name(), held.release().await);
        Ok(result)
    }

    /// Returns the current state of the lock: all holders, and the number of waiters. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.access.read.inspect().await
    }

    /// Returns the current state with the details an operator needs: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.access.read.inspect_full().await
    }

    /// Releases by force one hold that was [seen](crate::SharedHolder::seen), dead or alive, and no other: like
    /// [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// Cancel safety: if the future is dropped, the hold may have been ended, or may still be.
    pub async fn force_release(&self, seen: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.access.read.force_release(seen).await
    }

    fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.access.read);
        change(&mut self.access.write);
        self
    }

    async fn read_within(&self, limit: Option<Duration>) -> Result<ReadGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, LockMode::Read, limit).await?;
        Ok(ReadGuard { guard: kept.guard, owner })
    }

    async fn upgradable_within(&self, limit: Option<Duration>) -> Result<UpgradableGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, LockMode::Upgradable, limit).await?;
        Ok(UpgradableGuard { guard: kept.guard, owner, access: self.access.clone() })
    }

    async fn write_within(&self, limit: Option<Duration>) -> Result<WriteGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, LockMode::Write, limit).await?;
        Ok(WriteGuard::new(kept, owner, self.access.clone()))
    }

    fn owner(&self) -> Owner {
        self.owner.clone().or_else(Owner::current).unwrap_or_else(|| self.owners.make())
    }
}

fn told(name: &LockName, released: Result<(), ReleaseError>) {
    if let Err(error) = released {
        tracing::warn!(lock = %name, %error, "not released");
    }
}

/// A reader's hold of an [`RwLock`].
///
/// The methods of [`Guard`] check whether it is still held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (one, other) = (index.read().await?, index.read().await?);
/// one.check()?;
/// one.release().await?;
/// other.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock"]
pub struct ReadGuard {
    guard: Guard,
    owner: Owner,
}

impl ReadGuard {
    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Releases the lock, and admits the next waiters: like [`Guard::release`], including errors and cancel
    /// safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

/// A reader's hold of an [`RwLock`], with the right to become the writer.
///
/// The methods of [`Guard`] check whether it is still held. See [`RwLock`] for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct UpgradableGuard {
    guard: Guard,
    owner: Owner,
    access: Access,
}

/// A failed upgrade or downgrade: the hold is unchanged.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (reading, other) = (index.upgradable_read().await?, index.read().await?);
/// let not = reading.upgrade_timeout(Duration::from_millis(20)).await.expect_err("another reader holds it");
/// println!("{not}"); // "timed out after 20ms: held by …"
/// let reading = not.guard;
/// other.release().await?;
/// reading.upgrade().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConversionError<G: fmt::Debug> {
    /// The guard, still held as before unless it was lost meanwhile.
    pub guard: G,
    /// Why it was not converted.
    #[source]
    pub error: AcquireError,
}

impl UpgradableGuard {
    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes the writer once all other readers are done: ahead of all waiters, and no new reader is
    /// admitted until then. The write has its own hold, lease and fencing token; the read hold stays beneath
    /// it until it is released.
    ///
    /// Fails with the unchanged guard and the error of [`RwLock::write`]; and with
    /// [`AcquireError::Impossible`] or [`AcquireError::Lost`] if the upgradable read was lost.
    ///
    /// Cancel safety: if the future is dropped, the upgradable read is dropped with it. Use
    /// [`upgrade_timeout`](Self::upgrade_timeout) to wait for a limited time and keep it.
    pub async fn upgrade(self) -> Result<WriteGuard, ConversionError<Self>> {
        let limit = self.access.write.wait;
        self.upgrade_within(limit).await
    }

    /// Becomes the writer within `limit`. Otherwise like [`upgrade`](Self::upgrade), including cancel safety.
    pub async fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, ConversionError<Self>> {
        self.upgrade_within(Some(limit)).await
    }

    /// Releases the lock, and admits the next waiters: like [`Guard::release`], including errors and cancel
    /// safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    async fn upgrade_within(self, limit: Option<Duration>) -> Result<WriteGuard, ConversionError<Self>> {
        match self.access.acquire(&self.owner, LockMode::Upgrade, limit).await {
            Ok(kept) => {
                // If the read was lost meanwhile, another writer may have changed what it read.
                if let Err(lost) = self.guard.check() {
                    return Err(ConversionError { guard: self, error: AcquireError::Lost(lost) });
                }
                let (owner, access) = (self.owner.clone(), self.access.clone());
                Ok(WriteGuard { guard: kept.guard, owner, access, under: Some(Box::new(self)) })
            }
            Err(error) => Err(ConversionError { guard: self, error }),
        }
    }
}

/// The writer's hold of an [`RwLock`].
///
/// The methods of [`Guard`] check whether it is still held. See [`RwLock`] for an example.
#[must_use = "dropping a guard releases its lock"]
pub struct WriteGuard {
    // Declared first, so that it drops before `under`: no other writer may get in between.
    guard: Guard,
    owner: Owner,
    access: Access,
    /// The upgradable read from which it was upgraded.
    under: Option<Box<UpgradableGuard>>,
}

impl WriteGuard {
    fn new(kept: AcquiredGuard, owner: Owner, access: Access) -> Self {
        Self { guard: kept.guard, owner, access, under: None }
    }

    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes a reader, and admits the readers at the front of the queue: no write happens in between. The
    /// read has its own hold, lease and fencing token.
    ///
    /// Fails with the unchanged guard if the store does not reply or refuses the request, or if the write is
    /// lost before the read is acquired. If the write cannot be released afterwards, that is not an error: it
    /// ends with its lease.
    ///
    /// Cancel safety: if the future is dropped, the lock is released in the background.
    pub async fn downgrade(self) -> Result<ReadGuard, ConversionError<Self>> {
        if let Err(lost) = self.guard.check() {
            // Another writer may have changed the data by now.
            return Err(ConversionError { guard: self, error: AcquireError::Lost(lost) });
        }
        // While the write is held the read is granted at once, so there is no reason to wait longer than
        // that.
        let limit = Some(self.guard.remaining());
        let kept = match self.access.acquire(&self.owner, LockMode::Read, limit).await {
            Ok(kept) => kept,
            Err(error) => return Err(ConversionError { guard: self, error }),
        };
        // The write may have ended during the request, and another writer may have written in between. A
        // write still valid after the read was acquired rules that out: this clock is never ahead of the
        // store's.
        match self.guard.check() {
            Ok(()) => {
                let owner = self.owner.clone();
                let name = self.guard.name().clone();
                told(&name, self.hand_on().await);
                Ok(ReadGuard { guard: kept.guard, owner })
            }
            Err(lost) => Err(ConversionError { guard: self, error: AcquireError::Lost(lost) }),
        }
    }

    /// Releases the lock, with the upgradable read it may have been upgraded from, and admits the next
    /// waiters: like [`Guard::release`], including errors and cancel safety. Errors are those of the write;
    /// if the store does not reply, the read is released in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Self { guard, under, .. } = self;
        let released = guard.release().await;
        release_under(under, &released).await;
        released
    }

    /// Like `release`, but leaves a release without a reply to the keeper, since no caller awaits its result.
    async fn hand_on(self) -> Result<(), ReleaseError> {
        let Self { guard, under, .. } = self;
        let released = guard.hand_on().await;
        release_under(under, &released).await;
        released
    }
}

/// Releases the read beneath a write after the write's release. No caller receives the result, so the keeper
/// completes it; and if the store did not reply before, it is not awaited again.
async fn release_under(under: Option<Box<UpgradableGuard>>, written: &Result<(), ReleaseError>) {
    let Some(under) = under else { return };
    match written {
        Ok(()) | Err(ReleaseError::Lost(_)) => {
            let name = under.guard.name().clone();
            told(&name, under.guard.hand_on().await);
        }
        Err(ReleaseError::Store(_) | ReleaseError::Unknown(_)) => drop(under),
    }
}

/// Methods common to the guards.
macro_rules! held {
    ($($guard:ident)+) => { $(
        impl Deref for $guard {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.guard
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("guard", &self.guard)
                    .field("owner", &self.owner)
                    .finish_non_exhaustive()
            }
        }
    )+ };
}

held! { ReadGuard UpgradableGuard WriteGuard }
