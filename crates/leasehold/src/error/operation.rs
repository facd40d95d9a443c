//! The errors of the operations of clients, locks and guards. Those of other modules are defined there.

use crate::LostReason;
use crate::engine::NotExtended;
use crate::guard::unreleased::ReleaseError;
use crate::inspect::WaitCycle;
use crate::lock::contention::Contention;
use crate::store::{Fault, StoreUrlError};
use leasehold_core::{
    FencingToken, KeyError, LabelError, LeaseError, LockName, NameError, OwnValueError, Refused,
};
use std::fmt;
use std::time::Duration;

/// Why a client could not connect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ConnectError;
///
/// match Client::connect("memcached://locks.example.org").await {
///     Ok(client) => println!("connected as {}", client.session_id()),
///     Err(ConnectError::Store(fault)) if fault.is_transient() => eprintln!("try again later: {fault}"),
///     Err(error) => eprintln!("fix the configuration: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL does not name a store.
    #[error("the store's URL cannot be used: {0}")]
    Url(String),
    /// The store cannot be reached, or is not suitable.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The keeper's thread could not be started.
    #[error("the keeper's thread could not be started: {0}")]
    Keeper(#[source] std::sync::Arc<std::io::Error>),
    /// The thread of a [blocking](crate::blocking) client could not be started.
    #[error("the thread of the blocking client could not be started: {0}")]
    Thread(#[source] std::sync::Arc<std::io::Error>),
    /// A setting of the client is invalid.
    #[error("{0}")]
    Setting(String),
    /// Tokio's clock is paused, as in a test: nothing that lasts a time would end when it should. Connect to a
    /// `leasehold::testing::TestStore` there, with the feature `testing`.
    #[error("{PAUSED_CLOCK}")]
    PausedClock,
}

/// Why nothing goes on while tokio's clock is paused, and what to do.
const PAUSED_CLOCK: &str = "tokio's clock is paused here, while leases, time limits and renewals run by the machine's clock: \
                            in tests, connect to a `leasehold::testing::TestStore` (feature `testing`), whose clients follow \
                            the paused clock";

impl ConnectError {
    /// Whether the same call may succeed later: the store could not be reached, did not reply, or is busy.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Store(fault) if fault.is_transient())
    }
}

impl From<StoreUrlError> for ConnectError {
    fn from(error: StoreUrlError) -> Self {
        match std::error::Error::source(&error) {
            Some(source) => Self::Url(format!("{error}: {source}")),
            None => Self::Url(error.to_string()),
        }
    }
}

/// Why a lock could not be created from its name and settings.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::{LockError, NameError};
///
/// let client = Client::connect("memory:").await?;
/// match client.mutex("") {
///     Ok(lock) => println!("{}", lock.name()),
///     Err(LockError::Name(NameError::Empty)) => println!("which order?"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The name is not a valid lock name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The store cannot form keys from this name.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value given for the lock's key is invalid.
    #[error(transparent)]
    Value(#[from] OwnValueError),
    /// The store cannot keep a record for this period.
    #[error("the period: {0}")]
    Period(LeaseError),
    /// The number of permits, arrivals or parties is out of range.
    #[error("{given} cannot be the number of {what}: it must be between 1 and {max}")]
    Count {
        /// What the number counts: permits, arrivals or parties.
        what: &'static str,
        /// The number given.
        given: u32,
        /// The largest number allowed.
        max: u32,
    },
    /// A set of locks was requested without any name.
    #[error("no lock name was given: give at least one")]
    NoName,
    /// The set has more locks than one operation of a store may acquire.
    #[error(
        "{given} locks were named, but a set holds at most {max}: split the set, or use one lock that covers more resources"
    )]
    TooManyNames {
        /// How many distinct names were given.
        given: usize,
        /// How many names are allowed.
        max: usize,
    },
}

/// Why a lock was not acquired. That the lock is taken is [`Attempt::Taken`](crate::Attempt::Taken) for a
/// single attempt, and [`AcquireError::TimedOut`] for a wait.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::AcquireError;
/// use std::time::Duration;
///
/// let orders = Client::connect("memory:").await?.mutex("orders/42")?;
/// match orders.acquire_timeout(Duration::from_secs(5)).await {
///     Ok(guard) => guard.release().await?,
///     Err(AcquireError::TimedOut { waited, contention, .. }) => {
///         println!("still taken after {waited:?}: {contention}");
///     }
///     // Certainly not acquired.
///     Err(AcquireError::Store(fault)) => println!("no reply, or a refusal, from {}: {fault}", fault.node),
///     // Perhaps acquired, and undone in the background: not held in either case.
///     Err(AcquireError::Unknown(fault)) => println!("the reply was lost: {fault}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The lock was still taken at the end of the time limit.
    #[error("timed out after {waited:?}: {contention}")]
    TimedOut {
        /// The lock.
        lock: LockName,
        /// How long the caller waited.
        waited: Duration,
        /// What prevented it last.
        contention: Box<Contention>,
    },
    /// The lock was taken at every attempt of the retry policy.
    #[error("gave up after the last try: {contention}")]
    RetriesExhausted {
        /// The lock.
        lock: LockName,
        /// What prevented it last.
        contention: Box<Contention>,
    },
    /// The wait was part of a cycle of processes that wait for each other's locks, and gave up so that the others go on:
    /// [`Deadlock::Refuse`](crate::Deadlock::Refuse). The lock was not acquired. Release what is held, and begin anew.
    #[error("a deadlock: {0}")]
    Deadlock(Box<WaitCycle>),
    /// The store could not be reached, or refused the request: the lock was not acquired.
    #[error(transparent)]
    Store(Fault),
    /// The store did not reply: whether the lock was acquired is not known. It is undone in the background;
    /// at the latest, the lock is free again when its short initial lease (3 s) ends. A wait may leave a place in the queue, for
    /// 3 to 21 s; if the lock is granted to that, it is free 3 s later.
    #[error("whether the lock was acquired is unknown (if so, it is free again within 3 s): {0}")]
    Unknown(#[source] Fault),
    /// The lock was granted, and too few replicas confirmed that in time (`?replicas=`), or not the disk (`?durable=1`): nothing is held. The hold is undone
    /// in the background; at the latest, the lock is free again when its short initial lease (3 s) ends.
    #[error("the lock was granted and not confirmed, and is given up: {0}")]
    Unconfirmed(#[source] Fault),
    /// The request can never succeed as it stands: it wants more permits than there are, other clients use another
    /// number now, or the owner would wait for itself. Nothing was changed.
    #[error("the request can never succeed: {0}")]
    Impossible(Refused),
    /// The client was shut down before the lock was acquired, and acquires nothing any more.
    #[error("the client was shut down: connect a new one to acquire anything more")]
    Closed,
    /// Tokio's clock was paused after the client had connected, as in a test: no wait would end when it should. Nothing was sent. Connect
    /// to a `leasehold::testing::TestStore` there, with the feature `testing`.
    #[error("{PAUSED_CLOCK}")]
    PausedClock,
    /// The lease is invalid.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A detached hold was requested without a lease. No process renews it, so it would end at once or never.
    #[error("no process renews a detached hold: set a lease for it")]
    NoLease,
    /// The lock was granted for a detached hold, but the hold was not extended from the short initial lease
    /// to the requested one: it was lost by then, or the store did not reply. What may remain of the hold is
    /// released in the background, and ends with the lease at the latest.
    #[error("the lock was granted, but could not be held for its lease: {0}")]
    NotExtended(#[source] Box<ExtendError>),
    /// The lock was granted, and lost before the acquire had ended; nothing is held. Of a set of locks, one was
    /// lost again and again while the others were waited for: a longer lease helps. Or replicas were to confirm
    /// the hold, and a primary that lacks it was promoted: try again. Or, for an
    /// [`RwLock`](crate::RwLock), the hold was lost while it was being upgraded or downgraded.
    #[error("before the acquire had ended, {0}")]
    Lost(#[source] LostHold),
    /// The lease ended before the grant arrived.
    #[error("a lease of {lease:?} is shorter than a round trip to the store: use a longer one")]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
    },
}

impl AcquireError {
    /// Whether the same call may succeed later, with the same settings and the same client.
    pub(crate) fn may_succeed_later(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::RetriesExhausted { .. }
            | Self::Deadlock(_)
            | Self::Unknown(_)
            | Self::Unconfirmed(_)
            | Self::NotExtended(_)
            | Self::Lost(_)
            | Self::LeaseTooShort { .. } => true,
            Self::Store(fault) => fault.is_transient(),
            Self::Impossible(_) | Self::Closed | Self::PausedClock | Self::Lease(_) | Self::NoLease => false,
        }
    }
}

/// Why some locks of a set were not released. All others were. An error
/// may have its hold, to [try again](crate::error::Unreleased::release).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let both = client.multi_mutex(["till", "stock"])?.acquire().await?;
/// if let Err(error) = both.release().await {
///     for (name, why) in &error.failed {
///         println!("{name}: {why}");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct MultiReleaseError {
    /// Each lock that was not released, with the reason; at least one.
    pub failed: Vec<(LockName, ReleaseError)>,
}

impl MultiReleaseError {
    /// Creates the error of these locks, for tests of code that handles one.
    ///
    /// ```
    /// use leasehold::error::{MultiReleaseError, ReleaseError};
    /// use leasehold::{LockName, LostReason};
    ///
    /// let lost = ReleaseError::Lost(LostReason::Expired);
    /// let error = MultiReleaseError::new(vec![(LockName::new("till")?, lost)]);
    /// assert!(leasehold::Error::from(error).is_lost());
    /// # Ok::<(), leasehold::error::NameError>(())
    /// ```
    pub const fn new(failed: Vec<(LockName, ReleaseError)>) -> Self {
        Self { failed }
    }

    /// Fails with the loss of a lock, if there is one, or else with the first error: for a caller that acts on one of them.
    /// The other locks are released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let both = client.multi_mutex(["till", "stock"])?.acquire().await?;
    /// both.release().await.or_else(|error| error.into_worst())?;
    /// # Ok(()) }
    /// ```
    pub fn into_worst(self) -> Result<(), ReleaseError> {
        let mut errors: Vec<_> = self.failed.into_iter().map(|(_, error)| error).collect();
        let lost = errors.iter().position(|error| matches!(error, ReleaseError::Lost(_)));
        if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(lost.unwrap_or_default())) }
    }
}

impl fmt::Display for MultiReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, error)) in self.failed.iter().enumerate() {
            write!(f, "{}`{name}`: {error}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for MultiReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let (_, error) = self.failed.first()?;
        Some(error)
    }
}

/// A hold that has been lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::LostHold;
/// use leasehold::{Client, Guard};
///
/// fn write(guard: &Guard, line: &str) -> Result<(), LostHold> {
///     guard.check()?;
///     println!("{line}");
///     Ok(())
/// }
///
/// let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// if let Err(lost) = write(&guard, "paid") {
///     println!("hold {} of {} has ended: {}", lost.fence, lost.lock, lost.reason);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the lock `{lock}` (fencing token {fence}) is lost: {reason}")]
#[non_exhaustive]
pub struct LostHold {
    /// The lock.
    pub lock: LockName,
    /// The hold's fencing token.
    pub fence: FencingToken,
    /// Why it was lost.
    pub reason: LostReason,
}

impl LostHold {
    /// Creates a loss, for tests of code that handles one.
    ///
    /// ```
    /// use leasehold::error::LostHold;
    /// use leasehold::{FencingToken, LockName, LostReason};
    ///
    /// let lost = LostHold::new(LockName::new("orders/42")?, FencingToken::new(7), LostReason::Expired);
    /// assert!(leasehold::Error::from(lost).is_lost());
    /// # Ok::<(), leasehold::error::NameError>(())
    /// ```
    pub const fn new(lock: LockName, fence: FencingToken, reason: LostReason) -> Self {
        Self { lock, fence, reason }
    }
}

/// Why a hold was not extended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ExtendError;
/// use std::time::Duration;
///
/// # let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// match guard.extend_to(Duration::from_secs(120)).await {
///     Ok(()) => println!("two minutes more"),
///     Err(ExtendError::Lost(lost)) => println!("stop the work: {lost}"),
///     // Still held, at least as long as before.
///     Err(ExtendError::Store(fault)) => println!("{fault}; {:?} are left", guard.remaining()),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The hold was lost.
    #[error(transparent)]
    Lost(#[from] LostHold),
    /// The lease is invalid.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The hold's cap does not allow the extension. Nothing was sent; the hold lasts as long as before.
    #[error(
        "the hold is capped: it lasts at most {remaining:?} more, so finish by then, release the lock and acquire it \
         again, or set a longer cap (`Mutex::max_hold`, `Mutex::max_renewals`)"
    )]
    Capped {
        /// How long the hold can still last.
        remaining: Duration,
    },
    /// The store could not be reached, refused the request, or did not reply. The hold lasts at least as long
    /// as before, and may last longer.
    #[error("the hold may not have been extended: {0}")]
    Store(#[source] Fault),
}

impl ExtendError {
    pub(crate) fn of(why: NotExtended, lock: &LockName, fence: FencingToken) -> Self {
        match why {
            NotExtended::Lost(reason) => LostHold { lock: lock.clone(), fence, reason }.into(),
            NotExtended::Fault(fault) => Self::Store(fault),
        }
    }

    /// Returns what happened between the client and its store, if that is the cause.
    pub const fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Store(fault) => Some(fault),
            Self::Lost(_) | Self::Lease(_) | Self::Capped { .. } => None,
        }
    }
}

/// Why permits of a [`Permit`](crate::Permit) were not returned.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ReturnPermitsError;
///
/// let mut permit = Client::connect("memory:").await?.semaphore("uploads", 3)?.acquire_many(2).await?;
/// assert!(matches!(permit.return_permits(2).await, Err(ReturnPermitsError::TooMany { held: 2, .. })));
/// # permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnPermitsError {
    /// The hold was lost, with all its permits.
    #[error(transparent)]
    Lost(#[from] LostHold),
    /// The hold would have no permit left. Nothing was sent.
    #[error(
        "{returned} of {held} permits are to be returned, and one has to stay: release the hold to return all"
    )]
    TooMany {
        /// How many were to be returned.
        returned: u32,
        /// How many the hold has.
        held: u32,
    },
    /// The store could not be reached, or refused the request. The hold has as many permits as before.
    #[error("the permits were not returned: {0}")]
    Store(#[source] Fault),
    /// The store did not reply. The permits may have been returned, or may still be. They no longer count as held, and the
    /// next call returns them if they are not returned yet.
    #[error("the permits may not have been returned: {0}")]
    Unknown(#[source] Fault),
}

/// Why a leader did not publish another value.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ProclaimError;
///
/// # let leadership = Client::connect("memory:").await?.election("scheduler")?.campaign().await?;
/// match leadership.proclaim("10.0.0.3:8080").await {
///     Ok(()) => println!("every observer sees it"),
///     Err(ProclaimError::Lost(lost)) => println!("another one may lead: {lost}"),
///     // Still the leader. It is safe to try again.
///     Err(ProclaimError::Store(fault)) => println!("it may be published, or not: {fault}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// It no longer leads. A value of a leader that follows was not changed.
    #[error(transparent)]
    Lost(#[from] LostHold),
    /// The value is invalid. Nothing was sent.
    #[error(transparent)]
    Value(#[from] LabelError),
    /// The store could not be reached, refused the request, or did not reply: the value may have been published, or may
    /// still be.
    #[error("the value may not have been published: {0}")]
    Store(#[source] Fault),
}

impl ProclaimError {
    /// Returns what happened between the client and its store, if that is the cause.
    pub const fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Store(fault) => Some(fault),
            Self::Lost(_) | Self::Value(_) => None,
        }
    }
}

/// Why a future that was to run under a lock has no result, or one that cannot be relied on.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::RunError;
///
/// # async fn rebuild(_fence: u64) -> u32 { 3 }
/// let index = Client::connect("memory:").await?.mutex("index")?;
/// match index.run(async |guard| rebuild(guard.fencing_token().as_u64()).await).await {
///     Ok(pages) => println!("{pages} pages"),
///     Err(RunError::Acquire(error)) => println!("not started: {error}"),
///     Err(RunError::Lost(lost)) => println!("dropped half way: {lost}"),
///     Err(RunError::LostAtRelease { result, lost }) => println!("{result} pages, to be checked: {lost}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T = ()> {
    /// The lock was not acquired, and the future was not started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the future ran, and the future was dropped.
    #[error(transparent)]
    Lost(#[from] LostHold),
    /// The future completed, and the lock had been lost by then: another client may have held it meanwhile.
    #[error("the work was completed, but may have overlapped with another holder's: {lost}")]
    LostAtRelease {
        /// What the future returned.
        result: T,
        /// The loss.
        #[source]
        lost: LostHold,
    },
}

impl<T> RunError<T> {
    /// Returns what the future returned, if it completed.
    pub fn into_result(self) -> Option<T> {
        match self {
            Self::LostAtRelease { result, .. } => Some(result),
            Self::Acquire(_) | Self::Lost(_) => None,
        }
    }

    /// Returns the loss of the lock, if it was acquired and lost.
    pub const fn lost(&self) -> Option<&LostHold> {
        match self {
            Self::Lost(lost) | Self::LostAtRelease { lost, .. } => Some(lost),
            Self::Acquire(_) => None,
        }
    }
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) => f.debug_tuple("Acquire").field(error).finish(),
            Self::Lost(lost) => f.debug_tuple("Lost").field(lost).finish(),
            Self::LostAtRelease { result: _, lost } => {
                f.debug_struct("LostAtRelease").field("lost", lost).finish_non_exhaustive()
            }
        }
    }
}

/// Why a lock could not be inspected.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// match nightly.inspect().await {
///     Ok(status) if status.held => println!("running since {:?}", status.since),
///     Ok(_) => println!("free"),
///     Err(error) => println!("unknown: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct InspectError(#[from] pub(crate) Fault);

impl InspectError {
    /// The cause: for example [`Refused`](crate::store::FaultKind::Refused) if the name belongs to a
    /// lock of another kind.
    pub const fn fault(&self) -> &Fault {
        &self.0
    }
}

/// Why a lock was not released by force.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ForceReleaseError;
///
/// let client = Client::builder("memory:").label("the night shift").connect().await?;
/// let nightly = client.mutex("nightly")?;
/// if let Some(observed) = nightly.inspect_full().await?.observed {
///     match nightly.force_release(observed).await {
///         Ok(()) => println!("released by force; its holder is notified"),
///         Err(ForceReleaseError::Changed { contention }) => println!("not released, since it has changed: {contention}"),
///         Err(error) => println!("{error}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ForceReleaseError {
    /// The lock no longer has the hold that was observed. Nothing was changed.
    #[error("the lock has changed since it was inspected: it is now {contention}")]
    Changed {
        /// What is known of the lock now.
        contention: Box<Contention>,
    },
    /// The store could not be reached, or refused the request: nothing was changed.
    #[error(transparent)]
    Store(Fault),
    /// The store did not reply: the lock may have been released. Its audit records it if so.
    #[error("whether the lock was released is unknown (inspect it again): {0}")]
    Unknown(#[source] Fault),
}

/// Why the number of a Semaphore's permits was not changed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::error::ResizeError;
///
/// let uploads = Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// uploads.resize(5).await?;
/// assert!(matches!(uploads.resize(0).await, Err(ResizeError::Impossible(_))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The number is out of range. Nothing was changed.
    #[error("invalid number of permits: {0}")]
    Impossible(Refused),
    /// Other clients kept changing the number at the same time.
    #[error("other clients changed the number of permits at the same time, last to {limit:?}")]
    Contended {
        /// The last number seen.
        limit: Option<u32>,
    },
    /// The store could not be reached, or refused the request.
    #[error(transparent)]
    Store(Fault),
    /// The store did not reply: whether the number was changed is not known.
    #[error("whether the number of permits was changed is unknown: {0}")]
    Unknown(#[source] Fault),
}
