//! Several locks acquired together, blocking.

use super::Error;
use crate::MultiAttempt;
use crate::error::{AcquireError, MultiReleaseError};
use crate::guard::owner::Owner;
use leasehold_core::{FencingToken, LockName};
use std::time::Duration;

facade! {
    /// Several [mutexes](super::Mutex) that are acquired together, all of them or none:
    /// [`leasehold::MultiMutex`](crate::MultiMutex), for threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn transfer(_from: &str, _to: &str) {}
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let accounts = client.multi_mutex(["account/7", "account/3"])?;
    /// let both = accounts.acquire()?; // safe in any order of names: no deadlock
    /// transfer("account/7", "account/3");
    /// both.release()?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct MultiMutex;

    settings { lease max_hold max_renewals deadlock max_wait class }

    forward {
        /// Returns the names of the locks, in order.
        pub fn names(&self) -> impl Iterator<Item = &LockName>;
    }

    wait {
        /// Tries once to acquire all locks: see
        /// [`leasehold::MultiMutex::try_acquire`](crate::MultiMutex::try_acquire). Blocks only for the store's
        /// reply.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use leasehold::{MultiAttempt, blocking::Client};
        ///
        /// let client = Client::connect("memory:")?;
        /// let stock = client.mutex("stock")?.acquire()?;
        /// match client.multi_mutex(["till", "stock"])?.try_acquire()? {
        ///     MultiAttempt::Granted(_) => unreachable!("one of them is taken"),
        ///     MultiAttempt::Taken { lock, contention } => println!("{lock} is {contention}"),
        /// }
        /// # stock.release()?;
        /// # Ok(()) }
        /// ```
        pub fn try_acquire(&self) -> Result<MultiAttempt<MultiGuard>, Error<AcquireError>>;

        /// Acquires all of the locks, and waits for as long as [`max_wait`](Self::max_wait) allows, or
        /// without a limit: see [`leasehold::MultiMutex::acquire`](crate::MultiMutex::acquire). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn acquire(&self) -> Result<MultiGuard, Error<AcquireError>>;

        /// Acquires all of the locks within `limit`. Otherwise like [`acquire`](Self::acquire).
        pub fn acquire_timeout(&self, limit: Duration) -> Result<MultiGuard, Error<AcquireError>>;
    }
}

facade! {
    /// Several locks that are held together: [`leasehold::MultiGuard`](crate::MultiGuard), for threads.
    ///
    /// It counts as lost as soon as one of them is. The locks are renewed whatever their thread does meanwhile.
    /// Any thread may use and release the guard. Dropping it releases all locks in the background, also in an
    /// async context and while a thread panics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn pay() {}
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let both = client.multi_mutex(["till", "stock"])?.acquire()?;
    /// for (name, token) in both.fencing_tokens() {
    ///     println!("{name}: {token}");
    /// }
    /// both.check()?; // stops here if one of them was lost
    /// pay();
    /// both.release()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping a guard releases its locks"]
    pub struct MultiGuard;

    guard { MultiGuard }

    forward {
        /// Returns each lock's name and fencing token: a number greater than that of every earlier hold of that
        /// lock.
        pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)>;

        /// Returns the fencing token of one of the locks; `None` if no lock has that name.
        pub fn fencing_token(&self, name: &str) -> Option<FencingToken>;
    }

    end {
        /// Releases all locks, and hands each to its next waiter. A failure with one lock does not prevent the
        /// release of the others.
        ///
        /// Fails with the locks that were not released, and the reason for each. In an async context they are
        /// released in the background, as if the guard had been dropped, without waiting for the result.
        pub fn release(self) -> Result<(), Error<MultiReleaseError>>;
    }
}

facade! {
    /// Several [re-entrant mutexes](super::ReentrantMutex) that one owner acquires together, all of them or none:
    /// [`leasehold::MultiReentrantMutex`](crate::MultiReentrantMutex), for threads.
    ///
    /// Without another owner, a thread is its own owner, as with a [`ReentrantMutex`](super::ReentrantMutex).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let accounts = client.multi_reentrant_mutex(["account/7", "account/3"])?;
    /// let both = accounts.acquire()?; // safe in any order of names: no deadlock
    /// let again = client.reentrant_mutex("account/7")?.acquire()?; // this thread holds it
    /// again.release()?;
    /// both.release()?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct MultiReentrantMutex;

    settings { lease max_hold max_renewals deadlock max_wait class }

    set {
        /// Sets the owner that acquires the locks, whatever the calling thread and its scope.
        pub fn owned_by(self, owner: &Owner) -> Self;
    }

    forward {
        /// Returns the names of the locks, in order.
        pub fn names(&self) -> impl Iterator<Item = &LockName>;
    }

    wait_as_owner {
        /// Tries once to acquire all locks: see
        /// [`leasehold::MultiReentrantMutex::try_acquire`](crate::MultiReentrantMutex::try_acquire). Blocks only for the
        /// store's replies.
        pub fn try_acquire(&self) -> Result<MultiAttempt<MultiReentrantGuard>, Error<AcquireError>>;

        /// Acquires all of the locks, and waits for as long as [`max_wait`](Self::max_wait) allows, or
        /// without a limit: see [`leasehold::MultiReentrantMutex::acquire`](crate::MultiReentrantMutex::acquire).
        pub fn acquire(&self) -> Result<MultiReentrantGuard, Error<AcquireError>>;

        /// Acquires all of the locks within `limit`. Otherwise like [`acquire`](Self::acquire).
        pub fn acquire_timeout(&self, limit: Duration) -> Result<MultiReentrantGuard, Error<AcquireError>>;
    }
}

facade! {
    /// Several re-entrant locks that one owner holds together:
    /// [`leasehold::MultiReentrantGuard`](crate::MultiReentrantGuard), for threads. See [`MultiReentrantMutex`] for an
    /// example.
    #[must_use = "dropping a guard releases its locks"]
    pub struct MultiReentrantGuard;

    guard { MultiGuard }

    forward {
        /// Returns the owner that holds the locks, which may be a thread.
        pub fn owner(&self) -> &Owner;

        /// Returns each lock's name and fencing token.
        pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)>;

        /// Returns the fencing token of one of the locks; `None` if no lock has that name.
        pub fn fencing_token(&self, name: &str) -> Option<FencingToken>;
    }

    end {
        /// Releases this hold of each lock. A failure with one lock does not prevent the release of the others.
        ///
        /// Fails with the locks that were not released, and the reason for each. In an async context they are
        /// released in the background, as if the guard had been dropped, without waiting for the result.
        pub fn release(self) -> Result<(), Error<MultiReleaseError>>;
    }
}
