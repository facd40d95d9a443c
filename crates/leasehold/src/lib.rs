//! Distributed locks held by lease: across hosts with Redis or Valkey, across the processes of one machine
//! with SQLite, or within one process.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::Client;
//!
//! // Or `redis://locks.example.org`, or `sqlite:/var/lib/app/locks.db`.
//! let client = Client::connect("memory:").await?;
//! let orders = client.mutex("orders/42")?;
//!
//! let guard = orders.acquire().await?; // waits in a fair queue; renewed until released
//! guard.check()?; // still held? reads a local clock, no network
//! println!("send this along with every write: {}", guard.fencing_token());
//! guard.release().await?; // hands the lock to the next waiter
//! # Ok(()) }
//! ```
//!
//! # Where to find what
//!
//! | To … | see |
//! |---|---|
//! | connect, and set timeouts, labels and credentials | [`Client`], [`ClientBuilder`] |
//! | start while the lock server is down, and report readiness | [`Client::connect_lazy`], [`ClientBuilder::connect_within`], [`Client::health`] |
//! | acquire a lock, with or without waiting | [`Mutex::try_acquire`], [`Mutex::acquire`], [`Mutex::acquire_timeout`] |
//! | run a future under a lock and drop it if the lock is lost | [`Mutex::run`] |
//! | acquire a lock again while its owner holds it, in any task or process | [`Client::reentrant_mutex`], [`ReentrantMutex`], [`Owner`] |
//! | elect a leader, or observe the current one | [`Client::election`], [`Election::campaign`], [`Election::observe`] |
//! | run a job at most once per period across all processes | [`Client::once_per`], [`OncePer`] |
//! | admit several holders: readers, or up to `n` permits | [`Client::rwlock`], [`Client::semaphore`] |
//! | limit permits for each tenant or key as well, fairly | [`Client::keyed_semaphore`] |
//! | wait until other tasks and processes arrive | [`Client::latch`], [`Client::barrier`] |
//! | propagate the owner over HTTP | the module `tower`, with the feature of that name |
//! | set how long a hold lasts | [`Mutex::lease`], [`ClientBuilder::watchdog_lease`] |
//! | handle the errors of several operations alike | [`Error`], [`mod@error`] |
//! | accept a guard of any kind, or a provider of locks that tests replace | [`LockGuard`], [`Locks`] |
//! | check that a lock is still held, or be notified of its loss | [`Guard::check`], [`Guard::lost`], [`Client::session_lost_signal`], [`LostReason`] |
//! | make a write safe against a stale holder | [`Guard::fencing_token`] |
//! | release a lock, or wait for background releases | [`Guard::release`], [`Client::flush`] |
//! | hold a lock beyond the life of this process | [`Mutex::acquire_detached`], [`DetachedHold`] |
//! | release everything before the program exits | [`Client::shutdown`], and `Client::shutdown_on_signal` with the feature `signal` |
//! | keep a hung task from holding a lock forever | [`Mutex::max_hold`], [`Mutex::max_renewals`] |
//! | see the holder of a lock and its session | [`Mutex::inspect`], [`Mutex::inspect_full`], [`inspect::Contention`] |
//! | list sessions and held locks | [`Client::sessions`], [`Client::locks`], [`mod@inspect`] |
//! | find server settings and conditions that endanger locks | [`ClientBuilder::diagnose`], [`store::Finding`] |
//! | release a lock by force, or free the locks of dead sessions | [`Mutex::force_release`], [`Client::monitor`] |
//! | set how soon a crashed process is detected | [`ClientBuilder::session_ttl`], [`ClientBuilder::without_session`] |
//! | share a lock with clients of other libraries | [`Mutex::value`], [`Mutex::expire_foreign`], [`Mutex::yield_every`] |
//! | observe waits, holds and losses, for metrics, logs and traces | [`ClientBuilder::observer`], [`mod@telemetry`], [`Client::stats`] |
//! | use all this from plain threads | [`blocking`] |
//! | update keys without a lock, by WATCH, MULTI and EXEC | [`mod@optimistic`] |
//! | test code that uses locks: leases, losses and outages in no time | the module `testing`, with the feature of that name |
//! | implement a store | [`store::Store`], [`Client::with_store`], [`mod@core`] |
//!
//! # Modules
//!
//! At the root is what acquires, holds and releases: clients, locks, guards, and their settings. Each other item is in one
//! module:
//!
//! | Module | What is in it |
//! |---|---|
//! | [`mod@error`] | one error per operation; [`Error`], which all of them convert into, is at the root |
//! | [`mod@inspect`] | what can be observed: holders, queues, sessions, what waits for what, figures |
//! | [`mod@blocking`] | clients, locks and guards for plain threads |
//! | [`mod@store`] | stores, their URLs, faults and findings; the trait of a store |
//! | [`mod@telemetry`] | events of a client, and the observers that receive them |
//! | [`mod@optimistic`], [`mod@redis`] | WATCH, MULTI and EXEC; the client library of Redis, re-exported (feature `redis`) |
//! | [`mod@core`] | operations, replies and the model, for stores |
//! | `testing` | a store for tests of applications (feature `testing`) |
//! | `tower` | owners over HTTP (feature `tower`) |
//!
//! # Limits of a lease
//!
//! A lease is a promise about time. The client considers a hold lost before the store lets it expire, but it
//! cannot recall a write that is already in flight, and a Redis server that fails over may lose the lock.
//! Where two concurrent writers would do harm, pass the [fencing token](Guard::fencing_token) to the resource
//! that is written to, and let that resource reject every token smaller than the largest it has seen.
//!
//! Dropping a [`Guard`] releases its lock in the background, as soon as possible. Every future of this crate
//! can be dropped at any await point; the "Cancel safety" section of each function says what remains.
//!
//! # The runtime
//!
//! The async API needs a tokio runtime with timers and IO: that of `#[tokio::main]`, or one built with
//! `enable_all`. A client's connection to Redis lives in the runtime in which the client was connected. While
//! that runtime is blocked, or not driven, this client's calls from other threads wait too. Renewals do not:
//! the keeper runs on a thread and runtime of its own. Connect in the runtime that lives as long as the
//! program, and give each single-threaded runtime its own client.
//!
//! # Features
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `redis` | yes | the Redis and Valkey stores, and the module [`mod@optimistic`] |
//! | `connection-manager` | no | locks on a `redis::aio::ConnectionManager` of the application |
//! | `sqlite` | no | the SQLite store |
//! | `metrics` | no | figures for the recorder of the `metrics` facade |
//! | `signal` | no | `Client::shutdown_on_signal` |
//! | `testing` | no | the module `testing`: a store with a clock and faults that a test controls |
//! | `tower` | no | the module `tower`: layers that propagate an [`Owner`] over HTTP |
//!
//! Each only adds. The memory store is always available.
//!
//! # Systems
//!
//! Linux is tested. For Windows, CI checks that the library compiles with `redis`; no test runs there. On other systems than
//! Linux, `sqlite:` fails when it is opened, because that store needs Linux. On Windows, a `redis+unix:` URL fails when it
//! connects.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod client;
mod engine;
pub mod error;
mod guard;
pub mod inspect;
mod lock;
mod lost_reason;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;

pub use client::Client;
pub use client::builder::ClientBuilder;
pub use client::locks::{LockOptions, Locks};
pub use client::monitor::Monitor;
pub use error::any::Error;
pub use guard::Guard;
pub use guard::detached::DetachedHold;
pub use guard::lock_guard::LockGuard;
pub use guard::owner::Owner;
pub use lock::barrier::{Barrier, BarrierWaitResult};
pub use lock::deadlock::Deadlock;
pub use lock::election::{Election, Leadership};
pub use lock::handle::Attempt;
pub use lock::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
pub use lock::latch::Latch;
pub use lock::multi::reentrant::{MultiReentrantGuard, MultiReentrantMutex};
pub use lock::multi::{MultiAttempt, MultiGuard, MultiMutex};
pub use lock::mutex::Mutex;
pub use lock::once_per::{OncePer, PeriodGuard};
pub use lock::reentrant::{ReentrantGuard, ReentrantMutex, Released};
pub use lock::rwlock::RwLock;
pub use lock::rwlock::guards::{ReadGuard, UpgradableGuard, WriteGuard};
pub use lock::semaphore::{Permit, Semaphore};
pub use lost_reason::LostReason;

/// What a store implementation needs: operations, replies, ids, keys, and the [model](leasehold_core::model)
/// that defines what each operation means.
pub use leasehold_core as core;
pub use leasehold_core::{Backoff, FencingToken, Label, Lease, LockName, Moment, OwnValue, RetryPolicy};
#[cfg(feature = "redis")]
pub use leasehold_redis::{optimistic, redis};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// A glob import of the crate brings no name of what only simulations and stores need.
///
/// ```
/// use leasehold::*;
/// fn client(_: Client, _: store::MemoryStore, _: &dyn store::Environment) {}
/// ```
///
/// ```compile_fail,E0425
/// use leasehold::*;
/// fn simulated(_: World) {}
/// ```
///
/// ```compile_fail,E0405
/// use leasehold::*;
/// fn simulated(_: &dyn Environment) {}
/// ```
#[cfg(doctest)]
struct Glob;
