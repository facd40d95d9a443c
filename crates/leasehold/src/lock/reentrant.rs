//! The re-entrant mutex: one owner at a time, which may acquire the lock again while it holds it.

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError, RunError};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::lock_guard::lock_guard;
use crate::guard::owner::{Owner, OwnerFactory};
use crate::guard::status::{FullStatus, Status};
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, AcquiredGuard, Attempt, LockHandle, settings};
use crate::lock::observe_ends::HoldEnds;
use crate::lock::run::run_under;
use leasehold_core::{Lease, Lock, LockName, ObservedHolder, RetryPolicy};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A lock with one [owner](Owner) at a time, which may acquire it again and again, in any task and any
/// process.
///
/// It is free once it has been released as often as it was acquired. In Redis it is the same hash as
/// Redisson's `RLock`, with the owner as field and the count as value, so both libraries exclude each other,
/// and re-enter where their owner is the same.
///
/// Each acquire is made for an owner: the one set with [`owned_by`](Self::owned_by), else that of the task's
/// [scope](Owner::scope), else a new one. A new owner excludes all others, so without a scope nothing is
/// re-entered. Sibling tasks that share an owner do **not** exclude each other.
///
/// An owner that already holds the lock acquires it at once, ahead of all waiters. Others wait as for a
/// [`Mutex`](crate::Mutex): fairly, and notified when they acquire it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ReentrantMutex, Released};
///
/// async fn transfer(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire().await?;
///     withdraw(account).await?; // acquires the lock that its caller holds
///     assert_eq!(guard.release().await?, Released::NoLongerHeld);
///     Ok(())
/// }
///
/// async fn withdraw(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire().await?;
///     guard.check()?;
///     assert_eq!(guard.release().await?, Released::StillHeld { count: 1 });
///     Ok(())
/// }
///
/// let client = Client::connect("memory:").await?;
/// let account = client.reentrant_mutex("account/7")?;
/// client.new_owner().scope(transfer(&account)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ReentrantMutex {
    handle: LockHandle,
    pub(crate) owners: Arc<OwnerFactory>,
    /// Set if the owner does not depend on the task.
    owner: Option<Owner>,
    sum_leases: bool,
}

impl ReentrantMutex {
    pub(crate) fn new(engine: Arc<Engine>, owners: Arc<OwnerFactory>, lock: &Lock) -> Self {
        Self { handle: LockHandle::new(engine, lock), owners, owner: None, sum_leases: false }
    }

    /// Sets the owner that acquires the lock, whatever the task's scope.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    settings! {
        /// Sets the lease: a hold ends when its lease ends. Without this setting, a watchdog renews the hold
        /// for as long as its guard lives.
        ///
        /// The longest lease requested since the owner acquired the lock applies, across all processes: a
        /// re-entry lasts that long if its own lease is shorter. No guard shortens or lengthens another, and
        /// the owner holds the lock until the last of them has ended.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed: like
        /// [`Mutex::max_hold`](crate::Mutex::max_hold), for each guard separately.
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed: like [`Mutex::max_renewals`](crate::Mutex::max_renewals), for
        /// each guard separately.
        pub fn max_renewals(self, most: u32) -> Self;

        /// Keeps the lock taken for at least `delay` after a loss of a guard: like
        /// [`Mutex::lock_delay`](crate::Mutex::lock_delay).
        pub fn lock_delay(self, delay: Duration) -> Self;

        /// Has the store keep the last `entries` holds that were released: like
        /// [`Mutex::history`](crate::Mutex::history).
        pub fn history(self, entries: u16) -> Self;

        /// Sets what an acquire does that waits in a cycle: other processes wait, directly or not, for a lock of the one that
        /// acquires, and hold this one. Without this setting, it goes on waiting.
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Polls for the lock by this policy instead of queueing for it: like
        /// [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Lets other waiters go first for so long: like
        /// [`Mutex::low_priority_for`](crate::Mutex::low_priority_for).
        pub fn low_priority_for(self, duration: Duration) -> Self;

        /// Sets an expiry on the lock's key if a client of another library locked it without one.
        pub fn expire_foreign(self, expiry: Duration) -> Self;

        /// Leaves the lock free at every `every`th release of this process that ends its owner's holds here,
        /// instead of handing it to the next waiter: for clients of Redisson, which do not queue. Like
        /// [`Mutex::yield_every`](crate::Mutex::yield_every).
        pub fn yield_every(self, every: u32) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Adds the [lease](Self::lease) of a re-entry to the longest lease requested before, instead of applying
    /// the longest of them: for work in consecutive steps, each with the time it needs. Without a lease
    /// nothing is added, since a watchdog renews those holds.
    ///
    /// The longest lease so far is the one that the store knows. A hold that another process acquired a
    /// moment ago may not have been extended to its lease yet, and counts as 3 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let report = client.reentrant_mutex("report")?.owned_by(&client.new_owner()).sum_leases(true);
    /// let gather = report.clone().lease(Duration::from_secs(2)).acquire().await?;
    /// let write = report.lease(Duration::from_secs(1)).acquire().await?; // for 3 s
    /// # while write.remaining() <= Duration::from_secs(2) { tokio::task::yield_now().await; }
    /// # write.release().await?;
    /// # gather.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn sum_leases(mut self, sum: bool) -> Self {
        self.sum_leases = sum;
        self
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Tries to acquire the lock once: succeeds if its owner holds it, or if it is free and no other client
    /// waits for it.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<Attempt<ReentrantGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.handle.try_acquire(&self.options(&owner)).await?;
        Ok(tried.map(|acquired| ReentrantGuard::new(acquired, owner)))
    }

    /// Acquires the lock: at once if its owner holds it, in any process; otherwise waits for as long as
    /// [`max_wait`](Self::max_wait) allows, or without a limit. If the owner acquires the lock in another
    /// process meanwhile, this call succeeds once it notices that, with its next poll after about a second.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses the request or does not
    /// reply for the client's [outage limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background. If other tasks of the same process wait, the process keeps its
    /// place in the queue.
    pub async fn acquire(&self) -> Result<ReentrantGuard, AcquireError> {
        self.acquire_within(self.handle.max_wait).await
    }

    /// Acquires the lock within `limit`. Otherwise like [`acquire`](Self::acquire), including cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<ReentrantGuard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    /// Acquires the lock as a detached hold, which no process renews: like
    /// [`Mutex::acquire_detached`](crate::Mutex::acquire_detached), including errors and cancel safety. It is one more hold
    /// of its owner, which can re-enter the lock while it lasts; the text ends this hold alone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, DetachedHold};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let owner = client.new_owner();
    /// let account = client.reentrant_mutex("account/7")?.lease(Duration::from_secs(600)).owned_by(&owner);
    /// let secret = account.acquire_detached().await?.to_secret_text();
    /// let guard = account.acquire().await?;
    /// assert_eq!(guard.count(), 2);
    /// guard.release().await?;
    /// secret.parse::<DetachedHold>()?.release(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire_detached(&self) -> Result<DetachedHold, AcquireError> {
        let owner = self.owner();
        self.handle.acquire_detached(&self.options(&owner)).await
    }

    /// Runs a future under the lock and in its owner's scope, and drops the future if the lock is lost.
    /// Whatever the future acquires in the same task is acquired for that owner, so it can re-enter the lock
    /// even if this task was in no scope before.
    ///
    /// Errors and cancel safety: as for [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sums = leasehold::Client::connect("memory:").await?.reentrant_mutex("sums")?;
    /// let twice = sums.run(async |_guard| sums.run(async |inner| inner.count()).await).await??;
    /// assert_eq!(twice, 2);
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(
        &self,
        work: impl FnOnce(Arc<ReentrantGuard>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        let held = self.acquire().await?;
        let owner = held.owner.clone();
        run_under(held, |held| owner.scoped(async move { work(held).await })).await
    }

    /// Observes the ends of holds, by whichever client: like [`Mutex::observe_ends`](crate::Mutex::observe_ends), including
    /// errors and cancel safety.
    pub async fn observe_ends(&self) -> Result<HoldEnds, InspectError> {
        HoldEnds::begin(&self.handle).await
    }

    /// Returns the current state of the lock: whether it is held, by which owner and how often, and for how
    /// much longer. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handle.inspect().await
    }

    /// Returns the current state of the lock with the details an operator needs: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.handle.inspect_full().await
    }

    /// Returns how many holds of the lock the owner has for which this task would acquire it, across all
    /// processes; 0 if it does not hold the lock.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let account = client.reentrant_mutex("account/7")?.owned_by(&client.new_owner());
    /// let guard = account.acquire().await?;
    /// assert_eq!(account.hold_count().await?, 1);
    /// guard.release().await?;
    /// assert_eq!(account.hold_count().await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn hold_count(&self) -> Result<u64, InspectError> {
        let owner = self.known_owner();
        let status = self.inspect().await?;
        Ok(if owner.is_some() && status.owner == owner { status.count } else { 0 })
    }

    /// Releases the lock by force, with all its holds, from the owner that was
    /// [observed](FullStatus::observed), dead or alive: like
    /// [`Mutex::force_release`](crate::Mutex::force_release). All guards of that owner are lost.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been released, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        change(&mut self.handle);
        self
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<ReentrantGuard, AcquireError> {
        let owner = self.owner();
        let acquired = self.handle.acquire(&self.options(&owner), limit).await?;
        Ok(ReentrantGuard::new(acquired, owner))
    }

    fn known_owner(&self) -> Option<Owner> {
        self.owner.clone().or_else(Owner::of_scope)
    }

    fn owner(&self) -> Owner {
        self.known_owner().unwrap_or_else(|| self.owners.create())
    }

    fn options(&self, owner: &Owner) -> AcquireOptions {
        let (value, by_lease) = (Some(owner.text().clone()), owner.is_remote());
        AcquireOptions { value, by_lease, sum_leases: self.sum_leases, ..AcquireOptions::default() }
    }
}

/// The result of releasing a [`ReentrantMutex`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::ReleaseError;
/// use leasehold::{Client, Released};
///
/// # let guard = Client::connect("memory:").await?.reentrant_mutex("account/7")?.acquire().await?;
/// match guard.release().await {
///     Ok(Released::NoLongerHeld) => println!("the next waiter holds it"),
///     Ok(Released::StillHeld { count }) => println!("our owner still has {count} holds"),
///     Err(ReleaseError::Lost(reason)) => println!("lost before the release: {reason}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The owner no longer holds the lock: it is free, or granted to the next waiter.
    NoLongerHeld,
    /// The owner still holds the lock.
    StillHeld {
        /// How many holds remain.
        count: u64,
    },
}

/// One hold of a [`ReentrantMutex`], released separately from the owner's others, in any order.
///
/// [`release`](Self::release) releases this hold and returns how many the owner still has. Dropping the guard
/// releases the hold too: in the background, as soon as possible, and without a result.
///
/// Each hold has its own lease and can be lost separately; when the owner loses the lock, all of its holds
/// are lost. The methods of [`Guard`] check that, and extend this hold. Its fencing token is the same for all guards from
/// the owner's first acquire to its last release, and greater than that of every earlier owner.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// # async fn book() {}
/// let account = client.reentrant_mutex("account/7")?.owned_by(&client.new_owner());
/// let (outer, inner) = (account.acquire().await?, account.acquire().await?);
/// assert_eq!((outer.count(), inner.count()), (1, 2));
/// assert_eq!(outer.fencing_token(), inner.fencing_token()); // same owner, same token
/// tokio::select! {
///     lost = inner.lost() => eprintln!("stopped: {lost}"),
///     () = book() => {
///         outer.release().await?;
///         inner.release().await?;
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its lock"]
pub struct ReentrantGuard {
    guard: Guard,
    owner: Owner,
    count: u64,
}

impl ReentrantGuard {
    fn new(acquired: AcquiredGuard, owner: Owner) -> Self {
        Self { guard: acquired.guard, owner, count: acquired.count }
    }

    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns how many holds the owner had across all processes when this guard was acquired, this one
    /// included. [`ReentrantMutex::hold_count`] returns the current number.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Releases this hold. If it was the owner's last, the lock is handed to the next waiter.
    ///
    /// Fails with [`ReleaseError::Lost`] if the hold was lost before, with the reason, and if the store does
    /// not reply within the call timeout: then the error has the hold, to try again, as for
    /// [`Guard::release`](crate::Guard::release).
    ///
    /// Cancel safety: if the future is dropped, the hold is released in the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        Ok(match self.guard.release_hold().await? {
            0 => Released::NoLongerHeld,
            count => Released::StillHeld { count },
        })
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

lock_guard! { ReentrantGuard as Guard by release }

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("guard", &self.guard)
            .field("owner", &self.owner)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
