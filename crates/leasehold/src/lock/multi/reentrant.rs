//! Several re-entrant locks, acquired together: [`MultiReentrantMutex`].

use super::set::LockSet;
use super::{MultiAttempt, MultiGuard};
use crate::engine::Engine;
use crate::error::{AcquireError, LockError, MultiReleaseError};
use crate::guard::owner::{Owner, OwnerFactory};
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, LockHandle, settings};
use leasehold_core::{Lease, LockName};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Several [re-entrant mutexes](crate::ReentrantMutex) that one owner acquires together: all of them, or none.
///
/// It is to a [`ReentrantMutex`](crate::ReentrantMutex) what a [`MultiMutex`](crate::MultiMutex) is to a
/// [`Mutex`](crate::Mutex), and waits in the same way: for one lock while it holds none of the others, and if
/// others are taken again and again, for one after the other in order of their names. So no two of them wait for
/// each other. The locks are always requested one after the other, on every store; if one is taken, those
/// acquired so far are released before it waits.
///
/// The locks are held by an [`Owner`](crate::Owner): the one set with [`owned_by`](Self::owned_by), else that of
/// the task's [scope](crate::Owner::scope), else a new one. Its owner acquires a lock that it already holds at
/// once, as one more hold, and can acquire each lock alone while it holds all. An owner that holds a lock,
/// and then acquires a set with another one in it, waits while it holds the first, as with single locks: that can
/// deadlock with an owner that acquires them in another order. Acquire the larger set first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::ReentrantMutex;
///
/// async fn book(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire().await?; // at once if the caller holds it
///     guard.release().await?;
///     Ok(())
/// }
///
/// let client = leasehold::Client::connect("memory:").await?;
/// let owner = client.new_owner();
/// let accounts = client.multi_reentrant_mutex(["account/7", "account/3"])?.owned_by(&owner);
/// let both = accounts.acquire().await?; // safe in any order of names: no deadlock
/// book(&client.reentrant_mutex("account/7")?.owned_by(&owner)).await?;
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiReentrantMutex {
    set: LockSet,
    pub(crate) owners: Arc<OwnerFactory>,
    /// Set if the owner does not depend on the task.
    owner: Option<Owner>,
}

impl MultiReentrantMutex {
    /// How many locks can be acquired together.
    pub const MAX_LOCKS: usize = super::MultiMutex::MAX_LOCKS;

    pub(crate) fn new(
        engine: Arc<Engine>,
        owners: Arc<OwnerFactory>,
        handles: Vec<LockHandle>,
    ) -> Result<Self, LockError> {
        Ok(Self { set: LockSet::new(engine, handles)?, owners, owner: None })
    }

    /// Sets the owner that acquires the locks, whatever the task's scope.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    settings! {
        /// Sets the lease of each hold: like [`ReentrantMutex::lease`](crate::ReentrantMutex::lease). The lease of all
        /// counts from the last acquisition.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long each hold lasts: like [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often each hold is renewed: like [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Sets what an acquire does that waits in a cycle: like [`Mutex::deadlock`](crate::Mutex::deadlock). Sets alone make
        /// none, but locks that the caller holds besides can.
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Returns the names of the locks, in order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.set.names()
    }

    /// Tries once: acquires all locks if each is held by the owner, or free and no other client waits for it.
    ///
    /// Fails like [`ReentrantMutex::try_acquire`](crate::ReentrantMutex::try_acquire).
    ///
    /// Cancel safety: if the future is dropped, acquisitions that may have happened are undone in the background.
    pub async fn try_acquire(&self) -> Result<MultiAttempt<MultiReentrantGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.set.try_acquire(&options(&owner)).await?;
        Ok(tried.map(|guard| MultiReentrantGuard { guard, owner }))
    }

    /// Acquires all of the locks, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a
    /// limit.
    ///
    /// Fails like [`ReentrantMutex::acquire`](crate::ReentrantMutex::acquire), naming the lock that was taken; and
    /// with [`AcquireError::Lost`] if a lease or a cap is too short to hold the first locks while waiting for the
    /// others.
    ///
    /// Cancel safety: if the future is dropped, nothing is held: queue entries are given up, and locks
    /// acquired so far are released in the background.
    pub async fn acquire(&self) -> Result<MultiReentrantGuard, AcquireError> {
        self.acquire_within(self.set.max_wait()).await
    }

    /// Acquires all of the locks within `limit`. Otherwise like [`acquire`](Self::acquire), including cancel
    /// safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<MultiReentrantGuard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        self.set.set(change);
        self
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<MultiReentrantGuard, AcquireError> {
        let owner = self.owner();
        let guard = self.set.acquire_within(&options(&owner), limit).await?;
        Ok(MultiReentrantGuard { guard, owner })
    }

    fn owner(&self) -> Owner {
        self.owner.clone().or_else(Owner::of_scope).unwrap_or_else(|| self.owners.create())
    }
}

fn options(owner: &Owner) -> AcquireOptions {
    let (value, by_lease) = (Some(owner.text().clone()), owner.is_remote());
    AcquireOptions { value, by_lease, ..AcquireOptions::default() }
}

/// Several re-entrant locks that one owner holds together: one hold of each.
///
/// They are lost together: when one of the holds is lost, the guard counts as lost. The methods of
/// [`MultiGuard`] check that. [`release`](Self::release) releases all of them; dropping the guard does so in the
/// background. The owner's other holds are not touched.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn pay() {}
/// let both = client.multi_reentrant_mutex(["till", "stock"])?.acquire().await?;
/// println!("{} holds them", both.owner());
/// tokio::select! {
///     lost = both.lost() => eprintln!("stopped: {lost}"),
///     () = pay() => both.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its locks"]
pub struct MultiReentrantGuard {
    guard: MultiGuard,
    owner: Owner,
}

impl MultiReentrantGuard {
    /// Returns the owner that holds the locks.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Releases this hold of each lock. A lock of which it was the owner's last hold is handed to its next waiter.
    /// A failure with one lock does not prevent the release of the others.
    ///
    /// Fails with the locks that were not released, and the reason for each: like [`MultiGuard::release`].
    ///
    /// Cancel safety: if the future is dropped, the holds are released in the background.
    pub async fn release(self) -> Result<(), MultiReleaseError> {
        self.guard.release().await
    }
}

impl Deref for MultiReentrantGuard {
    type Target = MultiGuard;

    fn deref(&self) -> &MultiGuard {
        &self.guard
    }
}

impl fmt::Debug for MultiReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiReentrantGuard").field("guard", &self.guard).field("owner", &self.owner).finish()
    }
}
