//! The readers-writer lock: shared by readers, exclusive to a writer.

pub(crate) mod guards;

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError, RunError};
use crate::guard::detached::DetachedHold;
use crate::guard::owner::{Owner, OwnerFactory};
use crate::guard::status::{FullStatus, Status};
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, AcquiredGuard, Attempt, LockHandle, settings};
use crate::lock::observe_ends::HoldEnds;
use crate::lock::run::run_under;
use guards::{ReadGuard, UpgradableGuard, WriteGuard};
use leasehold_core::{Lease, Lock, LockMode, LockName, ObservedHolder, RetryPolicy};
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
/// reads may read again at once, even past a waiting writer, which would otherwise deadlock with it. An owner
/// that writes gets every mode at once. A request that would make an owner wait for itself fails at once with
/// [`AcquireError::Impossible`]: writing while it only reads. To read first and perhaps write later, start with
/// an [upgradable read](Self::upgradable_read).
///
/// | While a client holds it by | another owner's `read` | another's `upgradable_read` | another's `write` | its own owner's `read` | its own `upgradable_read` | its own `write` |
/// |---|---|---|---|---|---|---|
/// | `read` | granted | granted | waits | granted at once | fails | fails |
/// | `upgradable_read` | granted | waits | waits | granted at once | fails | fails: [`upgrade`](UpgradableGuard::upgrade) waits for the other readers |
/// | `write` or `upgrade` | waits | waits | waits | granted at once | granted at once | granted at once |
///
/// *Granted* applies if no earlier request waits; *at once* means past all waiters, in any process that knows
/// the owner. Each of an owner's writes is a hold of its own, with its own guard, lease and fencing token, and
/// can be lost alone. Other owners are admitted once the last of them is released: until then, releasing or
/// [downgrading](WriteGuard::downgrade) one of them admits no client. A resource that compares fencing tokens
/// refuses the token of an earlier hold after that of a later one: between the acquisition and the release of
/// a further write, use the token of that one, and afterwards acquire anew, or use one token for all.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::RwLock;
///
/// async fn rename(index: &RwLock) -> Result<(), Box<dyn std::error::Error>> {
///     let writing = index.write().await?; // at once if the caller already writes
///     Ok(writing.release().await?)
/// }
///
/// let client = leasehold::Client::connect("memory:").await?;
/// let index = client.rwlock("index")?.owned_by(&client.new_owner());
/// let writing = index.write().await?;
/// rename(&index).await?;
/// writing.release().await?;
/// # Ok(()) }
/// ```
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
    handles: ModeHandles,
    pub(crate) owners: Arc<OwnerFactory>,
    /// Set if the owner does not depend on the task.
    owner: Option<Owner>,
}

/// The lock in each of its modes.
#[derive(Debug, Clone)]
struct ModeHandles {
    read: LockHandle,
    write: LockHandle,
}

impl ModeHandles {
    /// Acquires the lock in one mode for an owner.
    async fn acquire(
        &self,
        owner: &Owner,
        mode: LockMode,
        limit: Option<Duration>,
    ) -> Result<AcquiredGuard, AcquireError> {
        self.handle(mode).acquire(&options(owner, mode), limit).await
    }

    /// Tries once to acquire the lock in one mode for an owner.
    async fn try_acquire(
        &self,
        owner: &Owner,
        mode: LockMode,
    ) -> Result<Attempt<AcquiredGuard>, AcquireError> {
        self.handle(mode).try_acquire(&options(owner, mode)).await
    }

    /// Acquires the lock in one mode for an owner, as a detached hold.
    async fn acquire_detached(&self, owner: &Owner, mode: LockMode) -> Result<DetachedHold, AcquireError> {
        self.handle(mode).acquire_detached(&options(owner, mode)).await
    }

    fn handle(&self, mode: LockMode) -> &LockHandle {
        match mode {
            LockMode::Write | LockMode::Upgrade => &self.write,
            _ => &self.read,
        }
    }
}

fn options(owner: &Owner, mode: LockMode) -> AcquireOptions {
    let (value, by_lease) = (Some(owner.text().clone()), owner.is_remote());
    AcquireOptions { value, by_lease, mode, ..AcquireOptions::default() }
}

impl RwLock {
    pub(crate) fn new(engine: Arc<Engine>, owners: Arc<OwnerFactory>, lock: &Lock) -> Self {
        let read = LockHandle::new(engine, lock);
        Self { handles: ModeHandles { write: read.clone(), read }, owners, owner: None }
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

        /// Keeps the lock taken for at least `delay` after a loss of a hold: like
        /// [`Mutex::lock_delay`](crate::Mutex::lock_delay).
        pub fn lock_delay(self, delay: Duration) -> Self;

        /// Has the store keep the last `entries` holds that were released: like
        /// [`Mutex::history`](crate::Mutex::history).
        pub fn history(self, entries: u16) -> Self;

        /// Sets what an acquire does that waits in a cycle: other processes wait, directly or not, for a lock of the one that
        /// acquires, and hold this one. Without this setting, it goes on waiting.
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`read`](Self::read), [`write`](Self::write) and
        /// [`upgradable_read`](Self::upgradable_read) wait. Without this setting, they wait forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Polls by this policy instead of queueing: like [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Lets other waiters go first for so long: like
        /// [`Mutex::low_priority_for`](crate::Mutex::low_priority_for).
        pub fn low_priority_for(self, duration: Duration) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Sets the lease of readers, upgradable or not: like [`lease`](Self::lease).
    #[must_use]
    pub fn read_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.handles.read.lease(lease.into());
        self
    }

    /// Sets the lease of writers: like [`lease`](Self::lease).
    #[must_use]
    pub fn write_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.handles.write.lease(lease.into());
        self
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.handles.read.name()
    }

    /// Acquires the lock for reading: waits until no writer holds the lock or is ahead in the queue.
    ///
    /// Fails with [`AcquireError::TimedOut`] if [`max_wait`](Self::max_wait) sets a limit, and if the store
    /// refuses the request or does not reply for the client's [outage
    /// limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background.
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.read_within(self.handles.read.max_wait).await
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
        let tried = self.handles.try_acquire(&owner, LockMode::Read).await?;
        Ok(tried.map(|acquired| ReadGuard { guard: acquired.guard, owner }))
    }

    /// Acquires the lock for writing: waits until no other client holds the lock, and all earlier requests
    /// are done. If its owner already writes, in any process, it is granted at once, as one more hold.
    ///
    /// Fails with [`AcquireError::Impossible`] if its owner holds the lock only for reading, and otherwise like
    /// [`read`](Self::read).
    ///
    /// Cancel safety: as for [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.write_within(self.handles.write.max_wait).await
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
        let tried = self.handles.try_acquire(&owner, LockMode::Write).await?;
        Ok(tried.map(|acquired| WriteGuard::new(acquired, owner, self.handles.clone())))
    }

    /// Acquires the lock for reading, with the right to [upgrade](UpgradableGuard::upgrade). Other readers
    /// are admitted beside it, but not another upgradable one.
    ///
    /// Fails with [`AcquireError::Impossible`] if its owner already reads and does not write, and otherwise like
    /// [`read`](Self::read).
    ///
    /// Cancel safety: as for [`read`](Self::read).
    pub async fn upgradable_read(&self) -> Result<UpgradableGuard, AcquireError> {
        self.upgradable_within(self.handles.read.max_wait).await
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
        let tried = self.handles.try_acquire(&owner, LockMode::Upgradable).await?;
        Ok(tried.map(|acquired| UpgradableGuard {
            guard: acquired.guard,
            owner,
            handles: self.handles.clone(),
        }))
    }

    /// Acquires the lock for reading as a detached hold, which no process renews: like
    /// [`Mutex::acquire_detached`](crate::Mutex::acquire_detached), including errors and cancel safety. The lease is that of
    /// [`read_lease`](Self::read_lease) or [`lease`](Self::lease). The text contains the owner: a process that knows
    /// it can also acquire for that owner.
    pub async fn read_detached(&self) -> Result<DetachedHold, AcquireError> {
        self.handles.acquire_detached(&self.owner(), LockMode::Read).await
    }

    /// Acquires the lock for writing as a detached hold: like [`read_detached`](Self::read_detached), with
    /// [`write_lease`](Self::write_lease).
    ///
    /// Cancel safety: as for that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, DetachedHold};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let index = client.rwlock("index")?.lease(Duration::from_secs(600));
    /// let secret = index.write_detached().await?.to_secret_text();
    /// assert!(index.try_read().await?.granted().is_none());
    ///
    /// let hold: DetachedHold = secret.parse()?;
    /// hold.release(&client).await?;
    /// assert!(index.try_read().await?.granted().is_some());
    /// # Ok(()) }
    /// ```
    pub async fn write_detached(&self) -> Result<DetachedHold, AcquireError> {
        self.handles.acquire_detached(&self.owner(), LockMode::Write).await
    }

    /// Runs a future as a reader, and drops the future if the hold is lost: like
    /// [`Mutex::run`](crate::Mutex::run), including errors and cancel safety. Whatever the future acquires in
    /// the same task is acquired for the same owner.
    pub async fn run_reading<F: Future>(
        &self,
        work: impl FnOnce(Arc<ReadGuard>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        let held = self.read().await?;
        let owner = held.owner.clone();
        run_under(held, |held| owner.scoped(async move { work(held).await })).await
    }

    /// Runs a future as the writer: like [`run_reading`](Self::run_reading), including errors and cancel
    /// safety.
    pub async fn run_writing<F: Future>(
        &self,
        work: impl FnOnce(Arc<WriteGuard>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        let held = self.write().await?;
        let owner = held.owner.clone();
        run_under(held, |held| owner.scoped(async move { work(held).await })).await
    }

    /// Observes the ends of holds, by whichever client: like [`Mutex::observe_ends`](crate::Mutex::observe_ends), including
    /// errors and cancel safety.
    pub async fn observe_ends(&self) -> Result<HoldEnds, InspectError> {
        HoldEnds::begin(&self.handles.read).await
    }

    /// Returns the current state of the lock: all holders, and the number of waiters. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handles.read.inspect().await
    }

    /// Returns the current state with the details an operator needs: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.handles.read.inspect_full().await
    }

    /// Releases by force one hold that was [observed](crate::inspect::SharedHolder::observed), dead or alive, and no
    /// other: like [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// Cancel safety: if the future is dropped, the hold may have been ended, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handles.read.force_release(observed).await
    }

    /// Releases all reads by force, upgradable ones included, dead or alive: for an operator, where readers keep a writer
    /// out. Returns how many. Their holders learn of it as of any forced release. Reads that begin during the call may stay.
    ///
    /// The store lists the oldest 4096 holders at a time. The call ends after 64 lists: of more than 262 144 readers some
    /// stay, and another call releases them.
    ///
    /// Fails like [`force_release`](Self::force_release), and may have released some by then.
    ///
    /// Cancel safety: if the future is dropped, some reads may have been released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
    /// let (one, two) = (index.read().await?, index.read().await?);
    /// assert_eq!((index.force_release_readers().await?, index.force_release_writer().await?), (2, false));
    /// one.lost().await;
    /// two.lost().await;
    /// # Ok(()) }
    /// ```
    pub async fn force_release_readers(&self) -> Result<u64, ForceReleaseError> {
        let reads = |mode| matches!(mode, LockMode::Read | LockMode::Upgradable);
        self.handles.read.force_release_all(reads).await
    }

    /// Releases the write by force, if there is one, dead or alive, with all further writes of its owner: like
    /// [`force_release_readers`](Self::force_release_readers), including cancel safety. Returns whether there was one. Of an
    /// upgraded read, the read stays. A write beside more than 4096 older reads of its owner is not found.
    pub async fn force_release_writer(&self) -> Result<bool, ForceReleaseError> {
        let writes = |mode| matches!(mode, LockMode::Write | LockMode::Upgrade);
        Ok(self.handles.write.force_release_all(writes).await? > 0)
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        change(&mut self.handles.read);
        change(&mut self.handles.write);
        self
    }

    async fn read_within(&self, limit: Option<Duration>) -> Result<ReadGuard, AcquireError> {
        let owner = self.owner();
        let acquired = self.handles.acquire(&owner, LockMode::Read, limit).await?;
        Ok(ReadGuard { guard: acquired.guard, owner })
    }

    async fn upgradable_within(&self, limit: Option<Duration>) -> Result<UpgradableGuard, AcquireError> {
        let owner = self.owner();
        let acquired = self.handles.acquire(&owner, LockMode::Upgradable, limit).await?;
        Ok(UpgradableGuard { guard: acquired.guard, owner, handles: self.handles.clone() })
    }

    async fn write_within(&self, limit: Option<Duration>) -> Result<WriteGuard, AcquireError> {
        let owner = self.owner();
        let acquired = self.handles.acquire(&owner, LockMode::Write, limit).await?;
        Ok(WriteGuard::new(acquired, owner, self.handles.clone()))
    }

    fn owner(&self) -> Owner {
        self.owner.clone().or_else(Owner::of_scope).unwrap_or_else(|| self.owners.create())
    }
}
