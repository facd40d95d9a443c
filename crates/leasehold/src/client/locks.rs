//! Locks as an interface, so that an application can be tested without a store, or with losses on demand.

use crate::Error;
use crate::client::Client;
use crate::guard::lock_guard::LockGuard;
use crate::lock::handle::Attempt;
use crate::lock::mutex::Mutex;
use futures_util::future::BoxFuture;
use std::fmt;
use std::time::Duration;

/// A provider of locks that exclude each other by name. [`Client`] is one: its locks are [mutexes](Mutex).
///
/// An application that takes an `Arc<dyn Locks>` does not depend on a store. A test passes a client of `memory:`, or a
/// provider of its own, for example to see what the application does when it loses a lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, Error, LockOptions, Locks};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// struct Billing {
///     locks: Arc<dyn Locks>,
/// }
///
/// impl Billing {
///     async fn charge(&self, account: u32) -> Result<(), Error> {
///         let options = LockOptions::new().max_wait(Duration::from_secs(5));
///         let guard = self.locks.acquire(&format!("account/{account}"), &options).await?;
///         guard.check()?; // before each action that must not happen without the lock
///         Ok(guard.release().await?)
///     }
/// }
///
/// let billing = Billing { locks: Arc::new(Client::connect("memory:").await?) };
/// billing.charge(7).await?;
/// # Ok(()) }
/// ```
///
/// A provider for a test, whose locks are lost as soon as they are acquired:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::future::BoxFuture;
/// use leasehold::error::{LockError, LostHold, ReleaseError};
/// use leasehold::{Attempt, Error, FencingToken, LockGuard, LockName, LockOptions, Locks, LostReason};
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// struct Lost(LostHold);
///
/// impl LockGuard for Lost {
///     fn name(&self) -> &LockName { &self.0.lock }
///     fn fencing_token(&self) -> FencingToken { self.0.fence }
///     fn remaining(&self) -> Duration { Duration::ZERO }
///     fn check(&self) -> Result<(), LostHold> { Err(self.0.clone()) }
///     fn lost(&self) -> BoxFuture<'_, LostHold> { Box::pin(async { self.0.clone() }) }
///     fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), ReleaseError>> {
///         Box::pin(async { Err(ReleaseError::Lost(self.0.reason)) })
///     }
/// }
///
/// #[derive(Debug)]
/// struct LosingLocks;
///
/// impl Locks for LosingLocks {
///     fn acquire<'a>(&'a self, name: &'a str, _: &'a LockOptions) -> BoxFuture<'a, Result<Box<dyn LockGuard>, Error>> {
///         Box::pin(async move {
///             let lost = LostHold::new(LockName::new(name)?, FencingToken::new(1), LostReason::Evicted);
///             Ok(Box::new(Lost(lost)) as Box<dyn LockGuard>)
///         })
///     }
///
///     fn try_acquire<'a>(
///         &'a self,
///         name: &'a str,
///         options: &'a LockOptions,
///     ) -> BoxFuture<'a, Result<Attempt<Box<dyn LockGuard>>, Error>> {
///         Box::pin(async move { Ok(Attempt::Granted(self.acquire(name, options).await?)) })
///     }
/// }
///
/// let guard = LosingLocks.acquire("account/7", &LockOptions::new()).await?;
/// assert!(Error::from(guard.check().unwrap_err()).is_lost());
/// # Ok(()) }
/// ```
pub trait Locks: fmt::Debug + Send + Sync {
    /// Acquires the lock of that name, and waits for it as long as the options allow: like [`Mutex::acquire`].
    ///
    /// Fails like that method, and if the name is not a valid one.
    ///
    /// Cancel safety: as for that method.
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        options: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Box<dyn LockGuard>, Error>>;

    /// Tries once to acquire the lock of that name: like [`Mutex::try_acquire`].
    ///
    /// Fails like that method, and if the name is not a valid one.
    ///
    /// Cancel safety: as for that method.
    fn try_acquire<'a>(
        &'a self,
        name: &'a str,
        options: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Attempt<Box<dyn LockGuard>>, Error>>;
}

/// How a lock of a [provider](Locks) is acquired and held.
///
/// ```
/// use leasehold::LockOptions;
/// use std::time::Duration;
///
/// let options = LockOptions::new().max_wait(Duration::from_secs(5)).max_hold(Duration::from_secs(60));
/// assert_eq!((options.lease, options.max_wait), (None, Some(Duration::from_secs(5))));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOptions {
    /// The lease, after which the hold ends. If not set, the hold is renewed: see [`Mutex::lease`].
    pub lease: Option<Duration>,
    /// How long to wait; without a limit if not set.
    pub max_wait: Option<Duration>,
    /// The cap on how long the lock is held: see [`Mutex::max_hold`].
    pub max_hold: Option<Duration>,
}

impl LockOptions {
    /// No lease, no limit and no cap: a hold is renewed until it is released.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the lease.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long to wait.
    #[must_use]
    pub const fn max_wait(mut self, limit: Duration) -> Self {
        self.max_wait = Some(limit);
        self
    }

    /// Sets the cap on how long the lock is held.
    #[must_use]
    pub const fn max_hold(mut self, cap: Duration) -> Self {
        self.max_hold = Some(cap);
        self
    }

    fn apply(&self, mut mutex: Mutex) -> Mutex {
        if let Some(lease) = self.lease {
            mutex = mutex.lease(lease);
        }
        if let Some(limit) = self.max_wait {
            mutex = mutex.max_wait(limit);
        }
        if let Some(cap) = self.max_hold {
            mutex = mutex.max_hold(cap);
        }
        mutex
    }
}

impl Locks for Client {
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        options: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Box<dyn LockGuard>, Error>> {
        Box::pin(async move {
            let guard = options.apply(self.mutex(name)?).acquire().await?;
            Ok(Box::new(guard) as Box<dyn LockGuard>)
        })
    }

    fn try_acquire<'a>(
        &'a self,
        name: &'a str,
        options: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Attempt<Box<dyn LockGuard>>, Error>> {
        Box::pin(async move {
            let attempt = options.apply(self.mutex(name)?).try_acquire().await?;
            Ok(attempt.map(|guard| Box::new(guard) as Box<dyn LockGuard>))
        })
    }
}
