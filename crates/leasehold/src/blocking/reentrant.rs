//! The blocking re-entrant mutex.

use super::facade::run;
use super::{Error, HoldEnds};
use crate::error::{AcquireError, InspectError, ReleaseError, RunError};
use crate::guard::owner::Owner;
use crate::{Attempt, DetachedHold, Released};
use leasehold_core::{FencingToken, LockName, Votes};
use std::time::Duration;

facade! {
    /// A lock with one [owner](Owner) at a time, which may acquire it again and again, on any thread and in any
    /// process: [`leasehold::ReentrantMutex`](crate::ReentrantMutex), for threads.
    ///
    /// The owner is the one set on the lock with [`owned_by`](Self::owned_by), else that of the thread's scope
    /// ([`Owner::sync_scope`]), else the thread itself: it can acquire again what it holds, while other threads
    /// wait. The async lock differs in the last case, where each acquire gets a new owner. Threads in scopes of
    /// one owner do **not** exclude each other.
    ///
    /// A thread is a different owner for each client. On the threads of a tokio runtime (`spawn_blocking`,
    /// `block_in_place`) each task is an owner, not the thread, which later runs other tasks. Other thread
    /// pools do not reveal where a job ends: if a guard may outlive the job that acquired it, run each job in
    /// a scope, since otherwise the next job on that thread could re-enter the lock.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Released;
    /// use leasehold::blocking::{Client, ReentrantMutex};
    ///
    /// fn transfer(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
    ///     let guard = account.acquire()?;
    ///     withdraw(account)?; // acquires the lock that its caller holds
    ///     assert_eq!(guard.release()?, Released::NoLongerHeld);
    ///     Ok(())
    /// }
    ///
    /// fn withdraw(account: &ReentrantMutex) -> Result<(), Box<dyn std::error::Error>> {
    ///     let guard = account.acquire()?;
    ///     guard.check()?;
    ///     assert_eq!(guard.release()?, Released::StillHeld { count: 1 });
    ///     Ok(())
    /// }
    ///
    /// let client = Client::connect("memory:")?;
    /// transfer(&client.reentrant_mutex("account/7")?)?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct ReentrantMutex;

    settings { lease max_hold max_renewals lock_delay history deadlock max_wait retry low_priority_for expire_foreign yield_every class }

    set {
        /// Sets the owner that acquires the lock, whatever the calling thread and its scope.
        pub fn owned_by(self, owner: &Owner) -> Self;

        /// Adds up the leases of re-entries: see
        /// [`leasehold::ReentrantMutex::sum_leases`](crate::ReentrantMutex::sum_leases).
        pub fn sum_leases(self, sum: bool) -> Self;
    }

    forward {
        /// Returns the lock's name.
        pub fn name(&self) -> &LockName;
    }

    wait_as_owner {
        /// Acquires the lock as a detached hold: see
        /// [`leasehold::ReentrantMutex::acquire_detached`](crate::ReentrantMutex::acquire_detached).
        pub fn acquire_detached(&self) -> Result<DetachedHold, Error<AcquireError>>;

        /// Tries once to acquire the lock: see
        /// [`leasehold::ReentrantMutex::try_acquire`](crate::ReentrantMutex::try_acquire). Blocks only for the
        /// store's reply.
        pub fn try_acquire(&self) -> Result<Attempt<ReentrantGuard>, Error<AcquireError>>;

        /// Acquires the lock: at once if its owner holds it, in any process; otherwise waits for as long as
        /// [`max_wait`](Self::max_wait) allows, or without a limit. See
        /// [`leasehold::ReentrantMutex::acquire`](crate::ReentrantMutex::acquire). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn acquire(&self) -> Result<ReentrantGuard, Error<AcquireError>>;

        /// Acquires the lock within `limit`. Otherwise like [`acquire`](Self::acquire).
        pub fn acquire_timeout(&self, limit: Duration) -> Result<ReentrantGuard, Error<AcquireError>>;

        /// Returns how many holds of the lock the owner has for which this thread would acquire it, across all
        /// threads and processes; 0 if it does not hold the lock.
        ///
        /// Fails if the store does not reply within the call timeout, or refuses the request.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let client = leasehold::blocking::Client::connect("memory:")?;
        /// let account = client.reentrant_mutex("account/7")?;
        /// let guard = account.acquire()?;
        /// assert_eq!(account.hold_count()?, 1);
        /// guard.release()?;
        /// assert_eq!(account.hold_count()?, 0);
        /// # Ok(()) }
        /// ```
        pub fn hold_count(&self) -> Result<u64, Error<InspectError>>;
    }

    wait {
        #[doc = see!("Observes the ends of holds, by whichever client", ReentrantMutex::observe_ends)]
        pub fn observe_ends(&self) -> Result<HoldEnds, Error<InspectError>>;
    }

    operator { "Releases the lock by force, with all its holds, from the owner that was observed, dead or alive" }
}

impl ReentrantMutex {
    /// Runs a function under the lock and in its owner's scope: whatever it acquires is acquired for that
    /// owner.
    ///
    /// Fails like [`Mutex::run`](super::Mutex::run): if the lock is lost meanwhile, once the function has
    /// returned.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let sums = client.reentrant_mutex("sums")?;
    /// let twice = sums.run(|_guard| sums.run(|inner| inner.count()))??;
    /// assert_eq!(twice, 2);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&ReentrantGuard) -> T) -> Result<T, Error<RunError<T>>> {
        let work = |guard: &ReentrantGuard| guard.owner().sync_scope(|| work(guard));
        run(
            self.name(),
            self.acquire(),
            work,
            (ReentrantGuard::check, ReentrantGuard::fencing_token),
            ReentrantGuard::release,
        )
    }
}

facade! {
    /// One hold of a [`ReentrantMutex`], released separately from the owner's others, in any order and on any
    /// thread: [`leasehold::ReentrantGuard`](crate::ReentrantGuard), for threads.
    ///
    /// It is renewed whatever its thread does meanwhile. Dropping it releases the hold in the background,
    /// also in an async context and while a thread panics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn book(_: u64) {}
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let account = client.reentrant_mutex("account/7")?;
    /// let (outer, inner) = (account.acquire()?, account.acquire()?);
    /// assert_eq!((outer.count(), inner.count()), (1, 2));
    /// inner.check()?; // stops here if it was lost
    /// book(inner.fencing_token().as_u64());
    /// outer.release()?;
    /// inner.release()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping a guard releases its lock"]
    pub struct ReentrantGuard;

    guard { Guard }

    watch { }

    forward {
        /// Returns the lock's name.
        pub fn name(&self) -> &LockName;

        /// Returns the owner that holds the lock, which may be a thread. Pass it to other threads that are to
        /// re-enter the lock.
        pub fn owner(&self) -> &Owner;

        /// Returns how many holds the owner had across all processes when this guard was acquired, this one
        /// included. [`ReentrantMutex::hold_count`] returns the current number.
        pub fn count(&self) -> u64;

        /// Returns the fencing token: the same for all guards from the owner's first acquire to its last
        /// release, and greater than that of every earlier owner.
        pub fn fencing_token(&self) -> FencingToken;

        /// Returns how many nodes of a quorum have the hold, as of its last extend: see
        /// [`leasehold::Guard::votes`](crate::Guard::votes).
        pub fn votes(&self) -> Option<Votes>;
    }

    end {
        /// Releases this hold. If it was the owner's last, the lock is handed to the next waiter.
        ///
        /// Fails like [`leasehold::ReentrantGuard::release`](crate::ReentrantGuard::release). In an async
        /// context the hold is released in the background, as if the guard had been dropped, without waiting
        /// for the result.
        pub fn release(self) -> Result<Released, Error<ReleaseError>>;
    }
}
