//! The ReentrantMutex: one owner at a time, who may enter again and again.

use crate::engine::Engine;
use crate::error::{AcquireError, ExtendError, FreeError, InspectError, Lost, ReleaseError, RunError};
use crate::guard::Guard;
use crate::owner::{Owner, Owners};
use crate::request::{Asker, Attempt, Kept, Request, settings};
use crate::status::{Details, Status};
use leasehold_core::{FencingToken, Lease, Lock, LockName, Moment, RetryPolicy, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A lock with one [owner](Owner) at a time, who may acquire it again and again, in any task and any process.
///
/// It is free once it was released as often as it was acquired. In Redis it is the hash that Redisson's `RLock` is,
/// field = owner and value = count, so that both libraries exclude each other and enter again where their owner is the
/// same.
///
/// Each acquire says for whom: the owner that was [given](Self::owned_by), else the one in whose
/// [scope](Owner::scope) the task is, else one of its own, which excludes everybody: without a scope nothing is entered
/// again. Siblings that share an owner do **not** exclude each other.
///
/// Whose owner has the lock gets it at once, past all that wait. The others wait as for a
/// [`Mutex`](crate::Mutex): fair, and told when it is their turn.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ReentrantMutex, Released};
///
/// async fn transfer(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
///     let guard = account.acquire().await?;
///     withdraw(account).await?; // acquires what its caller has acquired
///     assert_eq!(guard.release().await?, Released::Free);
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
/// client.owner().scope(transfer(&account)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ReentrantMutex {
    request: Request,
    owners: Arc<Owners>,
    /// Set if it does not depend on the task.
    owner: Option<Owner>,
    sum: bool,
}

impl ReentrantMutex {
    pub(crate) fn new(engine: Arc<Engine>, owners: Arc<Owners>, lock: &Lock) -> Self {
        Self { request: Request::new(engine, lock), owners, owner: None, sum: false }
    }

    /// For whom it is acquired, whatever scope the task is in.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    settings! {
        /// How long a hold lasts: it ends when the lease ends. Without a lease a watchdog renews the hold for as long as its
        /// guard lives.
        ///
        /// The longest lease rules that was asked for since the owner has the lock, in whatever process: whoever enters
        /// again holds it for that long, where it is longer than his own. No guard shortens or lengthens another, and the
        /// lock is the owner's until the last of them has ended.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: as [`Mutex::max_hold`](crate::Mutex::max_hold), for each guard
        /// by itself.
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: as [`Mutex::max_renewals`](crate::Mutex::max_renewals), for each guard by
        /// itself.
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock by this policy in place of queueing for it: as [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Gives the key an expiry if a client of another library has locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Lets the lock lie free at every `every`th release of this process that ends its owner's holds here, in place of
        /// handing it to the next waiter: for clients of Redisson, who do not queue. As
        /// [`Mutex::share`](crate::Mutex::share).
        pub fn share(self, every: u32) -> Self;
    }

    /// Adds the [lease](Self::lease) of one who enters again to the longest that was asked for before, in place of
    /// letting the longest of them rule: for work whose parts follow one another, each with the time it needs. Nothing
    /// is added where no lease is set, since a watchdog renews those.
    ///
    /// The longest so far is as the store knows it: that of a hold of another process which was acquired a moment ago
    /// may not have reached it, and counts as 3 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let report = client.reentrant_mutex("report")?.owned_by(&client.owner()).sum_leases(true);
    /// let gather = report.clone().lease(Duration::from_secs(2)).acquire().await?;
    /// let write = report.lease(Duration::from_secs(1)).acquire().await?; // for 3 s
    /// # while write.remaining() <= Duration::from_secs(2) { tokio::task::yield_now().await; }
    /// # write.release().await?;
    /// # gather.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn sum_leases(mut self, sum: bool) -> Self {
        self.sum = sum;
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Tries once: takes the lock if its owner has it, or if it is free and nobody waits for it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the background.
    pub async fn try_acquire(&self) -> Result<Attempt<ReentrantGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.request.try_acquire(&self.asker(&owner)).await?;
        Ok(tried.map(|kept| ReentrantGuard::new(kept, owner)))
    }

    /// Acquires the lock: at once where its owner has it, wherever that is; else however long it takes, or for as long as
    /// [`wait`](Self::wait) says. So it does if its owner gets it meanwhile in another process, as soon as that is noticed:
    /// with the next look, a second or so.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses, or does not answer for as long as
    /// the client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition that may have
    /// happened is undone in the background. Whoever waits in the same process keeps the process's place.
    pub async fn acquire(&self) -> Result<ReentrantGuard, AcquireError> {
        self.acquire_within(self.request.wait).await
    }

    /// Acquires the lock within `limit`. Otherwise as [`acquire`](Self::acquire), also as to cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<ReentrantGuard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    /// Runs a future under the lock and for its owner, and drops it if the lock is lost. Whatever it acquires in the same
    /// task is acquired for that owner: it enters again, also where this task was in no scope before.
    ///
    /// Fails if the lock is not acquired, or lost before the future has ended. If giving it back fails, that is not an
    /// error: the future has ended by then.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it, and the lock is given back in the
    /// background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sums = leasehold::Client::connect("memory:").await?.reentrant_mutex("sums")?;
    /// let twice = sums.run(async |_guard| sums.run(async |inner| inner.count()).await).await??;
    /// assert_eq!(twice, 2);
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&ReentrantGuard) -> T) -> Result<T, RunError> {
        let held = self.acquire().await?;
        let result = held.guard.unless_lost(held.owner.scope(work(&held))).await?;
        if let Err(error) = held.release().await {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// How the lock stands: whether it is held, by which owner and how often, and for how long still. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.request.inspect().await
    }

    /// How the lock stands, and what people want to know beside that: as
    /// [`Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        self.request.inspect_in_full().await
    }

    /// How often the owner has the lock for whom this task would acquire it, over all processes; 0 if he does not have it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let account = client.reentrant_mutex("account/7")?.owned_by(&client.owner());
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

    /// Takes the lock, with all its entries, from the owner that was [seen](Details::seen), dead or alive: as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force). All guards of that owner are lost.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been freed, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<ReentrantGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.request.acquire(&self.asker(&owner), limit).await?;
        Ok(ReentrantGuard::new(kept, owner))
    }

    fn known_owner(&self) -> Option<Owner> {
        self.owner.clone().or_else(Owner::current)
    }

    fn owner(&self) -> Owner {
        self.known_owner().unwrap_or_else(|| self.owners.make())
    }

    fn asker(&self, owner: &Owner) -> Asker {
        let (value, by_lease) = (Some(owner.text().clone()), owner.has_travelled());
        Asker { value, by_lease, sum: self.sum, ..Asker::default() }
    }
}

/// What a release of a [`ReentrantMutex`] has left.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ReleaseError, Released};
///
/// # let guard = Client::connect("memory:").await?.reentrant_mutex("account/7")?.acquire().await?;
/// match guard.release().await {
///     Ok(Released::Free) => println!("the next one has it"),
///     Ok(Released::StillHeld { count }) => println!("our owner has it {count} times more"),
///     Err(ReleaseError::Lost(reason)) => println!("it was not ours any more: {reason}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// It is no longer the owner's: free, or the next one's.
    Free,
    /// The owner has it yet.
    StillHeld {
        /// How often.
        count: u64,
    },
}

/// One entry into a [`ReentrantMutex`]: to be released by itself, in any order.
///
/// [`release`](Self::release) gives it back and says how often the owner has the lock yet. A guard that is dropped
/// gives it back too, as soon as it can and without waiting for it.
///
/// Each has a lease of its own and can be lost by itself; what ends the lock for its owner ends all of them. See
/// [`Guard`] for what a lease means to work that must not be done without the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// # async fn book() {}
/// let account = client.reentrant_mutex("account/7")?.owned_by(&client.owner());
/// let (outer, inner) = (account.acquire().await?, account.acquire().await?);
/// assert_eq!((outer.count(), inner.count()), (1, 2));
/// assert_eq!(outer.fencing_token(), inner.fencing_token()); // one stay of the owner's, one token
/// tokio::select! {
///     lost = inner.lost() => eprintln!("stopped: {lost}"),
///     () = book() => {
///         outer.release().await?;
///         inner.release().await?;
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct ReentrantGuard {
    guard: Guard,
    owner: Owner,
    count: u64,
}

impl ReentrantGuard {
    fn new(kept: Kept, owner: Owner) -> Self {
        Self { guard: kept.guard, owner, count: kept.count }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// Who has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// How often its owner had the lock when this guard was acquired, with this one, over all processes.
    /// [`ReentrantMutex::hold_count`] says how often now.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The number of the owner's stay: the same for all guards from his first acquire to his last release, and greater
    /// than that of every earlier stay of anybody.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Until when this guard may be believed as things stand: as [`Guard::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.guard.valid_until()
    }

    /// How long this guard may be believed as things stand: as [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether the lock is still held by this guard: as [`Guard::check`], without the network.
    pub fn check(&self) -> Result<(), Lost> {
        self.guard.check()
    }

    /// Whether it ends by its cap as things stand: as [`Guard::is_capped`].
    pub fn is_capped(&self) -> bool {
        self.guard.is_capped()
    }

    /// Waits until this guard is lost, and says why: as [`Guard::lost`].
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> Lost {
        self.guard.lost().await
    }

    /// A token that is cancelled when this guard is lost: as [`Guard::lost_signal`].
    pub fn lost_signal(&self) -> CancellationToken {
        self.guard.lost_signal()
    }

    /// Lengthens the hold now: as [`Guard::extend`], also as to errors and cancel safety. With
    /// [`sum_leases`](ReentrantMutex::sum_leases), to the sum.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        self.guard.extend().await
    }

    /// Lengthens the hold to last `lease` from now, if it would end earlier: as [`Guard::extend_to`], also as to errors
    /// and cancel safety.
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        self.guard.extend_to(lease).await
    }

    /// Gives this entry back. If it was the owner's last, the lock goes to the next who waits.
    ///
    /// Fails with [`ReleaseError::Lost`] if it was not held any more, which says why, and if the store does not answer
    /// within the call timeout: then this entry ends with its lease at the latest. Once this has returned, nothing more
    /// is sent about it.
    ///
    /// Cancel safety: if the future is dropped, the entry is given back in the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        Ok(match self.guard.give_back().await? {
            0 => Released::Free,
            count => Released::StillHeld { count },
        })
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("guard", &self.guard)
            .field("owner", &self.owner)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
