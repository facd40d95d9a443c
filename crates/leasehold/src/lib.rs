//! Distributed locks held by lease: on Redis or Valkey, between the processes of one machine, or
//! inside one process.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::Client;
//!
//! // Or `redis://locks.example.org`, or `sqlite:/var/lib/app/locks.db`.
//! let client = Client::connect("memory:").await?;
//! let orders = client.mutex("orders/42")?;
//!
//! let guard = orders.acquire().await?; // waits in a queue, and is renewed until it is released
//! guard.check()?; // still ours? by our own clock, without asking anybody
//! println!("to be sent along with every write: {}", guard.fencing_token());
//! guard.release().await?; // hands it to the next who waits
//! # Ok(()) }
//! ```
//!
//! # Where to find what
//!
//! | To … | see |
//! |---|---|
//! | connect, and set time limits, labels and passwords | [`Client`], [`ClientBuilder`] |
//! | take a lock, by trying or by waiting | [`Mutex::try_acquire`], [`Mutex::acquire`], [`Mutex::acquire_timeout`] |
//! | run a future under a lock, and have it dropped on loss | [`Mutex::run`] |
//! | enter it again, in other tasks and processes too | [`Client::reentrant_mutex`], [`ReentrantMutex`], [`Owner`] |
//! | lead, or know who does | [`Client::election`], [`Election::campaign`], [`Election::observe`] |
//! | do something once in a period, whoever comes first | [`Client::once_per`], [`OncePer`] |
//! | let several in: readers, so many at once | [`Client::rwlock`], [`Client::semaphore`] |
//! | wait for others | [`Client::latch`], [`Client::barrier`] |
//! | have the owner travel over HTTP by itself | the module `tower`, with the feature of that name |
//! | choose how long it is held | [`Mutex::lease`], [`ClientBuilder::watchdog_lease`] |
//! | know whether it is held still, or learn that it is not | [`Guard::check`], [`Guard::lost`], [`LostReason`] |
//! | guard a write for certain | [`Guard::fencing_token`] |
//! | give it back, also what was dropped | [`Guard::release`], [`Client::settle`] |
//! | hold it beyond this process's life, for another to release | [`Mutex::acquire_detached`], [`DetachedHold`] |
//! | give everything back before the program ends | [`Client::shutdown`] |
//! | keep a hung task from holding it for ever | [`Mutex::max_hold`], [`Mutex::max_renewals`] |
//! | see who holds it, and who is behind that | [`Mutex::inspect`], [`Mutex::inspect_in_full`], [`Contention`] |
//! | see who is there, and what they hold | [`Client::sessions`], [`Client::locks`] |
//! | know what could fail its locks at a server | [`ClientBuilder::examine`], [`store::Hazard`] |
//! | take it by force, or from the dead | [`Mutex::free_by_force`], [`Client::monitor`] |
//! | choose how soon a death is noticed | [`ClientBuilder::session`], [`ClientBuilder::without_session`] |
//! | share it with clients of other libraries | [`Mutex::value`], [`Mutex::adopt`], [`Mutex::share`] |
//! | use all this from plain threads | [`blocking`] |
//! | do without a lock, by WATCH, MULTI and EXEC | [`mod@optimistic`] |
//! | bring a store of one's own | [`store::Store`], [`Client::of_store`], [`mod@core`] |
//!
//! # What to keep in mind
//!
//! A lock held by lease is a promise about time. The holder stops believing before the store does, but
//! it cannot take back a write that is under way, and a Redis server that fails over may have forgotten
//! the lock. Where two writers would do harm, give the [fencing token](Guard::fencing_token) to what is
//! written to, and have it refuse smaller ones than it has seen.
//!
//! A [`Guard`] that is dropped gives its lock back in the background, as soon as that can be done. A
//! future of this crate can be dropped at any await; each function says what is left then.
//!
//! # The runtime
//!
//! A tokio runtime with timers and IO: that of `#[tokio::main]`, or one that was built with
//! `enable_all`. A client's connection to Redis lives in the runtime in which the client was connected.
//! While that one is blocked, or nobody drives it, calls of this client from other threads wait, too;
//! renewal does not, since the keeper has a thread and a runtime of its own. So connect in the runtime
//! that lives as long as the program, and give each single-threaded runtime a client of its own.
//!
//! # Features
//!
//! `redis`, on by default, and `sqlite`, off by default, build the stores of those names. The memory store is always
//! there. `tower`, off by default, builds the module `tower`: the layers that carry an [`Owner`] over HTTP.

#[cfg(not(unix))]
compile_error!("leasehold needs a Unix system: its clock and its files are of that kind");

mod attach;
mod barrier;
pub mod blocking;
mod census;
mod client;
mod detached;
mod earlier;
mod election;
mod engine;
mod error;
mod guard;
mod latch;
mod monitor;
mod multi;
mod mutex;
mod once;
mod owner;
mod reentrant;
mod request;
mod rwlock;
mod semaphore;
mod session_info;
mod status;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;

pub use attach::AttachError;
pub use barrier::{Barrier, Met};
pub use census::LockInfo;
pub use client::{Client, ClientBuilder};
pub use detached::{DetachedHold, DetachedTextError};
pub use election::{Election, Leader, Leaders, Leadership};
pub use engine::{LostReason, ShutdownError, Unreturned};
pub use error::{
    AcquireError, ConnectError, Contention, ExtendError, FreeError, InspectError, LockError, Lost,
    MultiReleaseError, ReleaseError, ResizeError, RunError,
};
pub use guard::Guard;
pub use latch::Latch;
pub use monitor::{Eviction, Monitor, MonitorReport};
pub use multi::{MultiAttempt, MultiGuard, MultiMutex};
pub use mutex::Mutex;
pub use once::{OncePer, Turn};
pub use owner::{Owner, OwnerError};
pub use reentrant::{ReentrantGuard, ReentrantMutex, Released};
pub use request::Attempt;
pub use rwlock::{NotShifted, ReadGuard, RwLock, UpgradableGuard, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use session_info::SessionInfo;
pub use status::{Details, Sharer, Status};

/// The vocabulary that a store of one's own needs: operations, replies, ids, keys, and the
/// [model](leasehold_core::model) that says what each operation means.
pub use leasehold_core as core;
pub use leasehold_core::{
    About, AuditEntry, Ended, FencingToken, Fingerprint, Holder, KeyError, Label, LabelError, Lease,
    LeaseError, LockName, Moment, NameError, OwnValue, OwnValueError, Pause, Portion, Refused, RetryPolicy,
    Seen, SessionId,
};
#[cfg(feature = "redis")]
pub use leasehold_redis::optimistic;
pub use leasehold_store::World;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
