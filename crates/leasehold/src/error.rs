//! What callers are told when something does not work: each operation has an error of its own.
//!
//! The messages are fragments that read well after "failed to acquire `orders/42`: ". None of them
//! contains a token or a password.

use crate::LostReason;
use crate::engine::NotExtended;
use crate::owner::Owner;
use crate::store::{Fault, StoreUrlError};
use leasehold_core::contend::Standing;
use leasehold_core::{
    FencingToken, Holder, KeyError, LeaseError, LockName, NameError, OwnValueError, Refused,
};
use std::fmt;
use std::time::Duration;

/// Who stands in the way of an acquisition, as far as is known.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
///
/// let client = Client::builder("memory:").label("billing on web-3").connect().await?;
/// let orders = client.mutex("orders/42")?;
/// let _guard = orders.acquire().await?;
/// if let Attempt::Taken(contention) = orders.try_acquire().await? {
///     // "held by billing on web-3 for 2.9s unless it is extended"
///     println!("{contention}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Contention {
    /// Who holds the lock.
    pub holder: Option<Holder>,
    /// How many sessions wait before this one, if it has queued.
    pub ahead: Option<u64>,
}

impl From<Standing> for Contention {
    fn from(standing: Standing) -> Self {
        Self { holder: standing.holder, ahead: standing.position }
    }
}

impl Contention {
    /// Who has a ReentrantMutex, whichever library's client he is, if that is known; `None` for a Mutex.
    pub fn owner(&self) -> Option<Owner> {
        self.holder.as_ref()?.owner.clone().map(Owner::told)
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = &self.holder else { return f.write_str("held by nobody for the moment") };
        match &holder.label {
            Some(label) if holder.rests && !label.as_str().is_empty() => {
                write!(f, "left resting by {label}")?;
            }
            Some(_) if holder.rests => f.write_str("left resting by somebody without a label")?,
            Some(label) if !label.as_str().is_empty() => write!(f, "held by {label}")?,
            Some(_) => f.write_str("held by somebody without a label")?,
            None => f.write_str("held by a client of another library")?,
        }
        match (&holder.owner, holder.count) {
            (Some(owner), 1) => write!(f, " (owner {})", owner.as_str())?,
            (Some(owner), count) => write!(f, " (owner {}, {count} times)", owner.as_str())?,
            (None, _) => {}
        }
        match holder.remaining_ms {
            Some(ms) if holder.rests => write!(f, " for {:?}", Duration::from_millis(ms))?,
            Some(ms) => write!(f, " for {:?} unless it is extended", Duration::from_millis(ms))?,
            None => f.write_str(" without an expiry")?,
        }
        match self.ahead {
            Some(ahead @ 1..) => write!(f, ", with {ahead} waiting before"),
            _ => Ok(()),
        }
    }
}

/// Why a client could not be made.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ConnectError};
///
/// match Client::connect("memcached://locks.example.org").await {
///     Ok(client) => println!("connected as {}", client.session()),
///     Err(ConnectError::Store(fault)) if fault.is_transient() => eprintln!("later, perhaps: {fault}"),
///     Err(error) => eprintln!("to be mended by hand: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one of a store.
    #[error("the store's URL cannot be used: {0}")]
    Url(String),
    /// The store cannot be reached, or does not suit.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The keeper's thread could not be started.
    #[error("the keeper's thread could not be started: {0}")]
    Keeper(#[source] std::sync::Arc<std::io::Error>),
    /// The thread of a [blocking](crate::blocking) client could not be started.
    #[error("the thread of the blocking client could not be started: {0}")]
    Thread(#[source] std::sync::Arc<std::io::Error>),
    /// The client was told to count in a way that cannot be.
    #[error("{0}")]
    Setting(String),
}

impl From<StoreUrlError> for ConnectError {
    fn from(error: StoreUrlError) -> Self {
        match std::error::Error::source(&error) {
            Some(source) => Self::Url(format!("{error}: {source}")),
            None => Self::Url(error.to_string()),
        }
    }
}

/// Why there is no such lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, LockError, NameError};
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
    /// The name is not a lock's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The store has no keys for the name.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value of one's own cannot be.
    #[error(transparent)]
    Value(#[from] OwnValueError),
    /// A period that the store cannot keep.
    #[error("the period: {0}")]
    Period(LeaseError),
    /// A number of permits, arrivals or parties that cannot be.
    #[error("{given} cannot be the number of {what}: there is 1 at least, and {most} at most")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many were given.
        given: u32,
        /// How many there can be.
        most: u32,
    },
    /// Several locks were asked for, and none was named.
    #[error("no lock is named: give at least one")]
    NoName,
    /// More locks were asked for together than one step of a store should take.
    #[error(
        "{named} locks are named, and {most} can be held together at most: split the set, or take one lock for more of what it guards"
    )]
    TooManyNames {
        /// How many were named, each counted once.
        named: usize,
        /// How many can be.
        most: usize,
    },
}

/// Why a lock was not acquired. That it is taken is told by [`Attempt`](crate::Attempt) where one only
/// tries, and by [`AcquireError::TimedOut`] where one waits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{AcquireError, Client};
/// use std::time::Duration;
///
/// let orders = Client::connect("memory:").await?.mutex("orders/42")?;
/// match orders.acquire_timeout(Duration::from_secs(5)).await {
///     Ok(guard) => guard.release().await?,
///     Err(AcquireError::TimedOut { waited, contention, .. }) => {
///         println!("still taken after {waited:?}: {contention}");
///     }
///     // Not acquired, for certain.
///     Err(AcquireError::Store(fault)) => println!("no answer, or a refusal, from {}: {fault}", fault.node),
///     // Perhaps acquired, and undone in the background: not ours in either case.
///     Err(AcquireError::Unknown(fault)) => println!("the answer was lost: {fault}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// It was taken for as long as one wanted to wait.
    #[error("timed out after {waited:?}: {contention}")]
    TimedOut {
        /// The lock.
        lock: LockName,
        /// How long was waited.
        waited: Duration,
        /// Who stood in the way last.
        contention: Box<Contention>,
    },
    /// It was taken at every try of the retry policy.
    #[error("gave up after the last try: {contention}")]
    OutOfTries {
        /// The lock.
        lock: LockName,
        /// Who stood in the way last.
        contention: Box<Contention>,
    },
    /// The store could not be asked, or refused: the lock was not acquired.
    #[error(transparent)]
    Store(Fault),
    /// The store did not answer: whether the lock was acquired is not known. An undo is on its way; at
    /// the latest, the lock is free again when its short first lease (3 s) ends.
    #[error("it is not known whether the lock was acquired (if it was, it is free again within 3 s): {0}")]
    Unknown(#[source] Fault),
    /// It can never be acquired so: more is asked for than there is, others count on another number, or the owner would
    /// wait for himself. Nothing was changed.
    #[error("it can never be acquired so: {0}")]
    Impossible(Refused),
    /// The client was shut down before the lock was acquired, and acquires nothing any more.
    #[error("the client was shut down: connect a new one to acquire anything more")]
    Closed,
    /// The lease cannot be.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A detached hold was asked for without a lease: nobody renews it, so it would end at once or never.
    #[error("a detached hold is renewed by nobody: say how long it should last, by a lease")]
    NoLease,
    /// The lock was granted for a detached hold, and the hold was not lengthened from the short first lease to the
    /// one that was asked for: it was lost by then, or the store did not answer. What there may be of it is given
    /// back in the background, and ends with the lease at the latest.
    #[error("the lock was granted, but could not be held for its lease: {0}")]
    NotKept(#[source] Box<ExtendError>),
    /// Several locks were asked for, and one of them was lost again and again while the others were waited for: none is
    /// held. Of an [`RwLock`](crate::RwLock), what was to be upgraded or downgraded was lost meanwhile.
    #[error("while another was waited for, {0}: ask for a longer lease")]
    Lost(#[source] Lost),
    /// The lease is over before the news of it has arrived.
    #[error("a lease of {lease:?} is shorter than a round trip to the store: ask for a longer one")]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
    },
}

/// Why a lock was not released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ReleaseError};
///
/// # let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// match guard.release().await {
///     Ok(()) => println!("the next one has it"),
///     // Somebody else may have worked at the same time, so what was done is to be looked at.
///     Err(ReleaseError::Lost(reason)) => println!("lost while we worked: {reason}"),
///     // Nothing is wrong with the work; the others wait until the lease ends.
///     Err(error) => println!("{error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was not held any more, so nothing was changed.
    #[error("the lock was lost before it was released: {0}")]
    Lost(LostReason),
    /// The store could not be asked, or refused: the hold ends with its lease.
    #[error("the hold ends with its lease: {0}")]
    Store(#[source] Fault),
    /// The store did not answer; or only when it was asked once more, and by then it knew nothing of the hold. It may
    /// be released already, or ends with its lease.
    #[error("it is not known whether the lock was released; the hold ends with its lease at the latest: {0}")]
    Unknown(#[source] Fault),
}

/// Why some of several locks were not released. The others were.
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
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MultiReleaseError {
    /// Each lock that was not released, and why; at least one.
    pub failed: Vec<(LockName, ReleaseError)>,
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

/// A hold that is not there any more.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, Guard, Lost};
///
/// fn write(guard: &Guard, line: &str) -> Result<(), Lost> {
///     guard.check()?;
///     println!("{line}");
///     Ok(())
/// }
///
/// let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// if let Err(lost) = write(&guard, "paid") {
///     println!("hold {} of {} is over: {}", lost.fence, lost.lock, lost.reason);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the lock `{lock}` (fencing token {fence}) is lost: {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// The lock.
    pub lock: LockName,
    /// The hold's fencing token.
    pub fence: FencingToken,
    /// Why it was lost.
    pub reason: LostReason,
}

/// Why a hold was not extended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ExtendError};
/// use std::time::Duration;
///
/// # let guard = Client::connect("memory:").await?.mutex("orders/42")?.acquire().await?;
/// match guard.extend_to(Duration::from_secs(120)).await {
///     Ok(()) => println!("two minutes more"),
///     Err(ExtendError::Lost(lost)) => println!("to be stopped: {lost}"),
///     // Held still, for as long as before at least.
///     Err(ExtendError::Store(fault)) => println!("{fault}; {:?} are left", guard.remaining()),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// It was lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The lease cannot be.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The hold has a cap that stands against it. Nothing was sent; the hold lasts as long as it did.
    #[error(
        "the hold is capped: it lasts {left:?} more at most, so be done by then, release the lock and acquire it \
         anew, or set a longer cap (`Mutex::max_hold`, `Mutex::max_renewals`)"
    )]
    Capped {
        /// How long the hold can last still.
        left: Duration,
    },
    /// The store could not be asked, refused, or did not answer. The hold lasts as long as it did, and
    /// may last longer.
    #[error("the hold was not extended for certain: {0}")]
    Store(#[source] Fault),
}

impl ExtendError {
    pub(crate) fn of(why: NotExtended, lock: &LockName, fence: FencingToken) -> Self {
        match why {
            NotExtended::Lost(reason) => Lost { lock: lock.clone(), fence, reason }.into(),
            NotExtended::Fault(fault) => Self::Store(fault),
        }
    }
}

/// Why a future that ran under a lock has no result.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, RunError};
///
/// # async fn rebuild(_fence: u64) -> u32 { 3 }
/// let index = Client::connect("memory:").await?.mutex("index")?;
/// match index.run(async |guard| rebuild(guard.fencing_token().as_u64()).await).await {
///     Ok(pages) => println!("{pages} pages"),
///     Err(RunError::Acquire(error)) => println!("not begun: {error}"),
///     Err(RunError::Lost(lost)) => println!("dropped half-way: {lost}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, and the future was not started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the future ran, and the future was dropped.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a lock could not be inspected.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// match nightly.inspect().await {
///     Ok(status) if status.held => println!("at work since {:?}", status.since),
///     Ok(_) => println!("free"),
///     Err(error) => println!("nobody knows: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct InspectError(#[from] pub(crate) Fault);

impl InspectError {
    /// What went wrong: [`Meaningless`](crate::store::FaultKind::Meaningless), say, where the name is that of a lock of
    /// another kind.
    pub const fn fault(&self) -> &Fault {
        &self.0
    }
}

/// Why a lock was not freed by force.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, FreeError};
///
/// let client = Client::builder("memory:").label("the night shift").connect().await?;
/// let nightly = client.mutex("nightly")?;
/// if let Some(seen) = nightly.inspect_in_full().await?.seen {
///     match nightly.free_by_force(seen).await {
///         Ok(()) => println!("it was taken from its holder, who is told so"),
///         Err(FreeError::Changed { now }) => println!("left alone, since it is another's by now: {now}"),
///         Err(error) => println!("{error}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// It is not held as it was seen any more: nothing was taken from anybody.
    #[error("it is not held any more as it was seen: by now it is {now}")]
    Changed {
        /// Who holds it now.
        now: Box<Contention>,
    },
    /// The store could not be asked, or refused: nothing was taken from anybody.
    #[error(transparent)]
    Store(Fault),
    /// The store did not answer: the lock may have been taken from its holder. Its audit says so if it was.
    #[error("it is not known whether the lock was freed (look at it again): {0}")]
    Unknown(#[source] Fault),
}

/// Why a Semaphore has not another number of permits now.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, ResizeError};
///
/// let uploads = Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// uploads.resize(5).await?;
/// assert!(matches!(uploads.resize(0).await, Err(ResizeError::Impossible(_))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The number cannot be. Nothing was changed.
    #[error("no semaphore can have so many permits: {0}")]
    Impossible(Refused),
    /// Others changed the number again and again meanwhile.
    #[error("others changed the number of permits at the same time, to {limit:?} at last")]
    Contended {
        /// How many there are.
        limit: Option<u32>,
    },
    /// The store could not be asked, or refused.
    #[error(transparent)]
    Store(Fault),
    /// The store did not answer: whether the number was changed is not known.
    #[error("it is not known whether the number of permits was changed: {0}")]
    Unknown(#[source] Fault),
}
