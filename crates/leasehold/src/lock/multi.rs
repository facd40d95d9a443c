//! Several locks, acquired together: [`MultiMutex`].

pub(crate) mod reentrant;
mod set;

use crate::engine::Engine;
use crate::error::{AcquireError, ExtendError, LockError, LostHold, MultiReleaseError, ReleaseError};
use crate::guard::Guard;
use crate::lock::contention::Contention;
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, LockHandle, settings};
use futures_util::future::join_all;
use leasehold_core::{FencingToken, Lease, LockName, Moment};
use set::LockSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Several [mutexes](crate::Mutex) that are acquired together: all of them, or none.
///
/// While it waits for one lock it holds none of the others, so it does not block clients that need only
/// those. If a lock is taken, it waits in that lock's fair queue, and once it holds that lock it requests the
/// others in one step. If other locks are taken again and again, it acquires the locks one after the other,
/// in order of their names. Every `MultiMutex` that waits while holding locks does so in that order, so no
/// two wait for each other; and each queue is fair, so every client acquires its locks eventually as long as
/// no client keeps one forever. This does not apply to a caller that separately holds a
/// [`Mutex`](crate::Mutex) or another `MultiMutex` while it acquires this one.
///
/// Each lock is an ordinary [`Mutex`](crate::Mutex), which other clients, also those of other libraries, can
/// acquire alone. On SQLite, in memory and on a single Redis server, all locks are acquired in one step.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn transfer(_from: &str, _to: &str) {}
/// let accounts = client.multi_mutex(["account/7", "account/3"])?;
/// let both = accounts.acquire().await?;
/// transfer("account/7", "account/3").await;
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiMutex {
    set: LockSet,
}

/// The result of a single attempt to acquire several locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, MultiAttempt};
///
/// let client = Client::connect("memory:").await?;
/// let stock = client.mutex("stock")?.acquire().await?;
/// match client.multi_mutex(["till", "stock"])?.try_acquire().await? {
///     MultiAttempt::Granted(_) => unreachable!("one of them is taken"),
///     MultiAttempt::Taken { lock, contention } => println!("{lock} is {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a guard releases its locks"]
pub enum MultiAttempt<G = MultiGuard> {
    /// All locks are held.
    Granted(G),
    /// No lock is held: at least one is taken.
    Taken {
        /// The first lock found taken. There may be others.
        lock: LockName,
        /// What prevents the acquisition.
        contention: Contention,
    },
}

impl<G> MultiAttempt<G> {
    /// Returns the guard, if all locks are held.
    pub fn granted(self) -> Option<G> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Taken { .. } => None,
        }
    }

    /// Converts the guard of granted locks.
    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> MultiAttempt<H> {
        match self {
            Self::Granted(held) => MultiAttempt::Granted(wrap(held)),
            Self::Taken { lock, contention } => MultiAttempt::Taken { lock, contention },
        }
    }
}

impl MultiMutex {
    /// How many locks can be acquired together: other requests wait while a store acquires them in one step.
    pub const MAX_LOCKS: usize = 64;

    pub(crate) fn new(engine: Arc<Engine>, handles: Vec<LockHandle>) -> Result<Self, LockError> {
        Ok(Self { set: LockSet::new(engine, handles)? })
    }

    settings! {
        /// Sets the lease of each hold: like [`Mutex::lease`](crate::Mutex::lease). If the locks were
        /// acquired one after the other, the lease of all counts from the last acquisition.
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

    /// Tries once: acquires all locks if all are free and no other client waits for any of them.
    ///
    /// Fails like [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<MultiAttempt, AcquireError> {
        self.set.try_acquire(&AcquireOptions::default()).await
    }

    /// Acquires all of the locks, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a
    /// limit.
    ///
    /// Fails like [`Mutex::acquire`](crate::Mutex::acquire), naming the lock that was taken; and with
    /// [`AcquireError::Lost`] if a lease or a cap is too short to hold the first locks while waiting for the
    /// others.
    ///
    /// Cancel safety: if the future is dropped, nothing is held: queue entries are given up, and locks
    /// acquired so far are released in the background.
    pub async fn acquire(&self) -> Result<MultiGuard, AcquireError> {
        self.set.acquire_within(&AcquireOptions::default(), self.set.max_wait()).await
    }

    /// Acquires all of the locks within `limit`. Otherwise like [`acquire`](Self::acquire), including cancel
    /// safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<MultiGuard, AcquireError> {
        self.set.acquire_within(&AcquireOptions::default(), Some(limit)).await
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        self.set.set(change);
        self
    }
}

/// Several locks that are held together.
///
/// They are lost together: when one of them is lost, the guard counts as lost. [`release`](Self::release)
/// releases all of them; dropping the guard does so in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn pay() {}
/// let both = client.multi_mutex(["till", "stock"])?.acquire().await?;
/// for (name, token) in both.fencing_tokens() {
///     println!("{name}: {token}");
/// }
/// tokio::select! {
///     lost = both.lost() => eprintln!("stopped: {lost}"),
///     () = pay() => both.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases its locks"]
pub struct MultiGuard {
    engine: Arc<Engine>,
    guards: Vec<Guard>,
    /// Cancelled when any of them is lost.
    signal: CancellationToken,
}

impl MultiGuard {
    pub(super) fn new(engine: &Arc<Engine>, guards: Vec<Guard>) -> Self {
        let signal = CancellationToken::new();
        for guard in &guards {
            guard.share_signal(&signal);
        }
        Self { engine: engine.clone(), guards, signal }
    }

    /// The guards, each for itself.
    pub(super) fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// Adds a lock.
    fn push(&mut self, guard: Guard) {
        guard.share_signal(&self.signal);
        self.guards.push(guard);
    }

    /// Returns each lock's name and fencing token: a number greater than that of every earlier hold of that
    /// lock.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.fencing_token()))
    }

    /// Returns the fencing token of one of the locks; `None` if no lock has that name.
    pub fn fencing_token(&self, name: &str) -> Option<FencingToken> {
        let guard = self.guards.iter().find(|guard| guard.name().as_str() == name)?;
        Some(guard.fencing_token())
    }

    /// Checks that all locks are still held. Fails once one of the holds has ended, or is known to be lost.
    /// Needs no network; like [`Guard::check`].
    pub fn check(&self) -> Result<(), LostHold> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Returns whether one of the holds ends at its cap: like [`Guard::is_capped`].
    pub fn is_capped(&self) -> bool {
        self.guards.iter().any(Guard::is_capped)
    }

    /// Returns until when all holds are valid: like [`Guard::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(Moment::ZERO)
    }

    /// Returns how long all holds are still valid: like [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.engine.environment.now())
    }

    /// Waits until one of the locks is lost, and returns which and why. Does not complete while all are held.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> LostHold {
        loop {
            self.signal.cancelled().await;
            // Another hold may be known to be lost while its reason is not known yet.
            if let Some(lost) = self.guards.iter().find_map(Guard::announced_loss) {
                return lost;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns a token that is cancelled when one of the locks is lost: like [`Guard::lost_signal`].
    pub fn lost_signal(&self) -> CancellationToken {
        self.signal.child_token()
    }

    /// Extends all holds now: like [`Guard::extend`].
    ///
    /// Fails like that method, with the first error; the other holds may have been extended.
    ///
    /// Cancel safety: if the future is dropped, some holds may have been extended.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        join_all(self.guards.iter().map(Guard::extend)).await.into_iter().collect::<Result<(), _>>()?;
        Ok(self.check_with_reason_until(None).await?)
    }

    /// Extends all holds so that they last `lease` from now, if they would end earlier: like
    /// [`Guard::extend_to`].
    ///
    /// Errors and cancel safety: as for [`extend`](Self::extend).
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        let lease = lease.into();
        let extended = join_all(self.guards.iter().map(|guard| guard.extend_to(lease))).await;
        extended.into_iter().collect::<Result<(), _>>()?;
        Ok(self.check_with_reason_until(None).await?)
    }

    /// Like [`check`](Self::check), but if the store is being asked why a hold is gone, waits for its answer, until `limit`
    /// at the latest: one may have been lost while another was extended or acquired.
    pub(crate) async fn check_with_reason_until(&self, limit: Option<Moment>) -> Result<(), LostHold> {
        for guard in &self.guards {
            guard.check_with_reason_until(limit).await?;
        }
        Ok(())
    }

    /// Releases all locks, and hands each to its next waiter. A failure with one lock does not prevent the
    /// release of the others.
    ///
    /// Fails with the locks that were not released, and the reason for each: like [`Guard::release`].
    ///
    /// Cancel safety: if the future is dropped, the locks are released in the background.
    pub async fn release(self) -> Result<(), MultiReleaseError> {
        let release = |guard: Guard| async {
            let name = guard.name().clone();
            guard.release().await.map_err(|error| (name, error))
        };
        let released = join_all(self.guards.into_iter().map(release)).await;
        let failed: Vec<(LockName, ReleaseError)> = released.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(MultiReleaseError { failed }) }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
