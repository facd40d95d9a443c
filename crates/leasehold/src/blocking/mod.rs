//! The same locks for threads: every call blocks until its result is known.
//!
//! A facade without logic of its own: each call runs the async call of the same name, and the documentation
//! there applies. What a client must do between calls (renew its holds, receive grants, release what was
//! dropped) happens on the client's own threads, while the caller's threads compute, sleep or wait for
//! something else.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::blocking::Client;
//!
//! // Or `redis://locks.example.org`, or `sqlite:/var/lib/app/locks.db`.
//! let client = Client::connect("memory:")?;
//! let orders = client.mutex("orders/42")?;
//!
//! let guard = orders.acquire()?; // waits in a fair queue; renewed until released
//! guard.check()?; // still held? reads a local clock, no network
//! println!("send this along with every write: {}", guard.fencing_token());
//! guard.release()?; // hands the lock to the next waiter
//! # Ok(()) }
//! ```
//!
//! # Threads
//!
//! Clients, locks and guards can be shared by threads and moved between them. A guard may be released on
//! another thread than the one that acquired it. A [`Mutex`] is not re-entrant: a thread that acquires it
//! twice waits for itself. A [`ReentrantMutex`] is, and uses the thread as its owner unless another owner is
//! set; so does an [`RwLock`].
//!
//! A thread that panics drops its guards, which releases their locks in the background. Dropping a guard
//! never blocks, in async contexts either.
//!
//! # Async contexts
//!
//! Inside a future polled by a tokio runtime, every call that could block fails with [`AsyncContext`]:
//! it would keep the runtime's other tasks from running. Use [`leasehold::Client`](crate::Client) there.
//! Threads of `spawn_blocking` and closures of `block_in_place` may block, and so may `main` and threads of
//! your own. Other runtimes, and futures in `tokio::task::unconstrained`, are not detected: a call made there
//! works, but blocks their thread.
//!
//! # Forks
//!
//! A client does not survive `fork`: its threads do not exist in the child, where a call would wait forever,
//! and the child would share the connection. Connect after the fork.

#[macro_use]
mod facade;

mod barrier;
mod election;
mod guard;
mod keyed_semaphore;
mod latch;
mod lock_guard;
mod multi;
mod mutex;
mod reentrant;
mod runtime_thread;
mod rwlock;
mod semaphore;

pub use barrier::Barrier;
pub use election::{Election, HoldEnds, Leaders, Leadership, OncePer, PeriodGuard};
pub use guard::Guard;
pub use keyed_semaphore::{KeyedPermit, KeyedSemaphore};
pub use latch::Latch;
pub use lock_guard::LockGuard;
pub use multi::{MultiGuard, MultiMutex, MultiReentrantGuard, MultiReentrantMutex};
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use runtime_thread::AsyncContext;
pub use rwlock::{ConversionError, ReadGuard, RwLock, UpgradableGuard, WriteGuard};
pub use semaphore::{Permit, Semaphore};

use crate::client::builder::ClientBuilder;
use crate::error::{ConnectError, ExtendError, InspectError, LockError, ReleaseError};
use crate::error::{NameError, ShutdownError, Unreleased};
use crate::inspect::{Listing, LockInfo, SessionId, SessionInfo};
use crate::store::Store;
use crate::{DetachedHold, LockName, Moment, Owner};
use facade::IntoBlocking;
use leasehold_core::Lease;
use runtime_thread::{RuntimeThread, check_not_async};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Why a blocking call has no result: it was made where blocking is not allowed, or the call itself failed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::AcquireError;
/// use leasehold::blocking;
/// use std::time::Duration;
///
/// let orders = blocking::Client::connect("memory:")?.mutex("orders/42")?;
/// match orders.acquire_timeout(Duration::from_secs(5)) {
///     Ok(guard) => guard.release()?,
///     Err(blocking::Error::Failed(AcquireError::TimedOut { contention, .. })) => println!("taken: {contention}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// It was made inside an async context: nothing was done.
    #[error(transparent)]
    AsyncContext(#[from] AsyncContext),
    /// The error of the async call of the same name.
    #[error(transparent)]
    Failed(E),
}

impl<E> Error<E> {
    /// Returns the error of the call itself, if it was made.
    pub fn failed(self) -> Option<E> {
        match self {
            Self::AsyncContext(_) => None,
            Self::Failed(error) => Some(error),
        }
    }

    fn map<F>(self, wrap: impl FnOnce(E) -> F) -> Error<F> {
        match self {
            Self::AsyncContext(error) => Error::AsyncContext(error),
            Self::Failed(error) => Error::Failed(wrap(error)),
        }
    }
}

/// Why a detached hold could not be turned into a guard.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::AttachError;
/// use leasehold::blocking;
/// use std::time::Duration;
///
/// let client = blocking::Client::connect("memory:")?;
/// let hold = client.mutex("index")?.lease(Duration::from_secs(60)).acquire_detached()?;
/// match client.attach(hold) {
///     Ok(guard) => guard.release()?,
///     // The hold is returned, and can be attached later unless it is lost.
///     Err(blocking::AttachError::Failed(AttachError::NotExtended { hold, error })) => println!("{hold:?}: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// It was called inside an async context: nothing was done.
    #[error("{}", AsyncContext)]
    AsyncContext {
        /// The hold, unchanged.
        hold: Box<DetachedHold>,
    },
    /// The call failed.
    #[error(transparent)]
    Failed(crate::error::AttachError),
}

facade! {
    /// A client of a store, for threads.
    ///
    /// Cloning is cheap, and clones are the same client. It has one more thread than a
    /// [`leasehold::Client`](crate::Client), for its connection. The threads end once the last clone, lock
    /// and guard has been dropped, and everything dropped has been released. A program that exits without
    /// waiting for that leaves the rest to the leases: see [`shutdown`](Self::shutdown) and
    /// [`flush`](Self::flush).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::blocking::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::builder("memory:").label("billing on web-3").connect_blocking()?;
    /// let sums = client.mutex("sums")?;
    /// std::thread::scope(|threads| {
    ///     for _ in 0..4 {
    ///         threads.spawn(|| sums.acquire()?.release().map_err(Box::<dyn std::error::Error + Send + Sync>::from));
    ///     }
    /// });
    /// client.shutdown(Duration::from_secs(5))?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct Client;
}

impl ClientBuilder {
    /// Connects a client for threads, whose calls block: see [`blocking`](self). Blocks until it is connected.
    ///
    /// Fails like [`connect`](Self::connect), and inside an async context.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("memory:").label("billing on web-3").connect_blocking()?;
    /// client.mutex("orders/42")?.acquire()?.release()?;
    /// # Ok(()) }
    /// ```
    pub fn connect_blocking(self) -> Result<Client, Error<ConnectError>> {
        Client::connect_with(self, Self::connect)
    }

    /// Connects a client for threads, and tries again for up to `limit` while the store cannot be reached: the
    /// blocking form of [`connect_within`](Self::connect_within).
    ///
    /// Fails like that, and inside an async context.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::blocking::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::builder("memory:").connect_blocking_within(Duration::from_secs(60))?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn connect_blocking_within(self, limit: Duration) -> Result<Client, Error<ConnectError>> {
        Client::connect_with(self, |builder| builder.connect_within(limit))
    }

    /// Creates a client for threads that connects when it is first used: the blocking form of
    /// [`connect_lazy`](Self::connect_lazy).
    ///
    /// Fails like that, and inside an async context.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::blocking::Client;
    /// use std::time::Duration;
    ///
    /// // No server listens there.
    /// let builder = Client::builder("redis://127.0.0.1:1").call_timeout(Duration::from_millis(50));
    /// let client = builder.connect_blocking_lazy()?;
    /// assert!(client.mutex("orders/42")?.try_acquire().is_err());
    /// # Ok(()) }
    /// ```
    pub fn connect_blocking_lazy(self) -> Result<Client, Error<ConnectError>> {
        Client::connect_with(self, Self::connect_lazy)
    }
}

impl Client {
    /// Connects to the store of a URL, like [`leasehold::Client::connect`](crate::Client::connect).
    pub fn connect(url: &str) -> Result<Self, Error<ConnectError>> {
        Self::builder(url).connect_blocking()
    }

    /// Creates a client that connects when it is first used, like
    /// [`leasehold::Client::connect_lazy`](crate::Client::connect_lazy).
    pub fn connect_lazy(url: &str) -> Result<Self, Error<ConnectError>> {
        Self::builder(url).connect_blocking_lazy()
    }

    /// Creates a builder for a client of the store of a URL. It is the builder of the async client; its
    /// [`connect_blocking`](ClientBuilder::connect_blocking) returns a client for threads.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        crate::Client::builder(url)
    }

    /// Creates a builder for a client of an existing store; see [`builder`](Self::builder).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{blocking::Client, store::MemoryStore};
    ///
    /// let client = Client::with_store(MemoryStore::new()).connect_blocking()?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn with_store(store: impl Store) -> ClientBuilder {
        crate::Client::with_store(store)
    }

    fn connect_with<F>(
        builder: ClientBuilder,
        connect: impl FnOnce(ClientBuilder) -> F,
    ) -> Result<Self, Error<ConnectError>>
    where
        F: Future<Output = Result<crate::Client, ConnectError>>,
    {
        check_not_async()?;
        let thread =
            RuntimeThread::start().map_err(|error| Error::Failed(ConnectError::Thread(Arc::new(error))))?;
        let thread = Arc::new(thread);
        let inner = call(&thread, connect(builder))?;
        thread.outlive(inner.engine.keeper.end());
        Ok(Self { inner, thread })
    }
}

facade! {
    impl Client;

    handles {
        /// Creates a handle to the [`Mutex`] of that name. Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::mutex`](crate::Client::mutex).
        pub fn mutex(name) -> Mutex;

        /// Creates a handle to the [`ReentrantMutex`] of that name, which its owner may acquire again while it
        /// holds the lock. Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::reentrant_mutex`](crate::Client::reentrant_mutex).
        pub fn reentrant_mutex(name) -> ReentrantMutex;

        /// Creates a handle to the [`Election`] of that name. Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::election`](crate::Client::election).
        pub fn election(name) -> Election;

        /// Creates a handle to a job that runs at most once per `period` across all processes: see [`OncePer`].
        /// Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::once_per`](crate::Client::once_per).
        pub fn once_per(name, period: Duration) -> OncePer;

        /// Creates a handle to the [`Semaphore`] of that name. `permits` applies unless the store already has
        /// another number for it. Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::semaphore`](crate::Client::semaphore).
        pub fn semaphore(name, permits: u32) -> Semaphore;

        /// Creates a handle to the [`KeyedSemaphore`] of that name: at most `permits` permits in all, and at most
        /// `permits_per_key` for each key. Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::keyed_semaphore`](crate::Client::keyed_semaphore).
        pub fn keyed_semaphore(name, permits: u32, permits_per_key: u32) -> KeyedSemaphore;

        /// Creates a handle to the [`RwLock`] of that name, which is held by many readers or by one writer.
        /// Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::rwlock`](crate::Client::rwlock).
        pub fn rwlock(name) -> RwLock;

        /// Creates a handle to the [`Latch`] of that name, which opens after that many arrivals. Sends nothing
        /// and does not block.
        ///
        /// Fails like [`leasehold::Client::latch`](crate::Client::latch).
        pub fn latch(name, arrivals: u32) -> Latch;

        /// Creates a handle to the [`Barrier`] of that name, at which that many parties wait for one another.
        /// Sends nothing and does not block.
        ///
        /// Fails like [`leasehold::Client::barrier`](crate::Client::barrier).
        pub fn barrier(name, parties: u32) -> Barrier;
    }

    forward {
        /// Creates a new, unique owner: for one piece of work, which may be spread over threads and processes.
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let client = leasehold::blocking::Client::connect("memory:")?;
        /// let account = client.reentrant_mutex("account/7")?;
        /// let job = client.new_owner();
        /// // Two threads of one job do not exclude each other.
        /// let enter = || job.sync_scope(|| account.acquire());
        /// let outer = enter()?;
        /// let inner = std::thread::scope(|threads| threads.spawn(enter).join()).expect("no panic")?;
        /// assert_eq!(inner.count(), 2);
        /// # inner.release()?;
        /// # outer.release()?;
        /// # Ok(()) }
        /// ```
        pub fn new_owner(&self) -> Owner;

        /// Returns the current time on the clock of [`Moment`], which keeps running while the machine is
        /// suspended.
        pub fn now(&self) -> Moment;

        /// Returns the id of this client's session: see
        /// [`leasehold::Client::session_id`](crate::Client::session_id).
        pub fn session_id(&self) -> SessionId;

        /// Returns figures of this client: see [`leasehold::Client::stats`](crate::Client::stats).
        pub fn stats(&self) -> crate::inspect::Stats;

        /// Returns what was found out about the servers: see
        /// [`leasehold::Client::findings`](crate::Client::findings).
        pub fn findings(&self) -> Vec<crate::store::ServerFinding>;
    }

    wait {
        /// Lists the sessions of the store: see [`leasehold::Client::sessions`](crate::Client::sessions).
        ///
        /// Fails if the store does not reply within the call timeout, or refuses the request.
        pub fn sessions(&self) -> Result<Listing<SessionInfo>, Error<InspectError>>;

        /// Lists the locks that are held: see [`leasehold::Client::locks`](crate::Client::locks).
        ///
        /// Fails if the store does not reply within the call timeout, or refuses the request.
        pub fn locks(&self) -> Result<Listing<LockInfo>, Error<InspectError>>;

        /// Releases everything and leaves all queues, within a time limit: see
        /// [`leasehold::Client::shutdown`](crate::Client::shutdown). Calls that wait for a lock fail with
        /// [`AcquireError::Closed`](crate::error::AcquireError::Closed).
        pub fn shutdown(&self, within: Duration) -> Result<(), Error<ShutdownError>>;
    }
}

impl Client {
    /// Creates a handle that acquires all of several locks or none: see [`MultiMutex`]. Sends nothing and
    /// does not block.
    ///
    /// Fails like [`leasehold::Client::multi_mutex`](crate::Client::multi_mutex).
    pub fn multi_mutex<N>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(self.inner.multi_mutex(names)?.into_blocking(&self.thread))
    }

    /// Creates a handle that acquires all of several re-entrant locks or none for one owner: see
    /// [`MultiReentrantMutex`]. Sends nothing and does not block.
    ///
    /// Fails like [`leasehold::Client::multi_reentrant_mutex`](crate::Client::multi_reentrant_mutex).
    pub fn multi_reentrant_mutex<N>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<MultiReentrantMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(self.inner.multi_reentrant_mutex(names)?.into_blocking(&self.thread))
    }

    /// Extends a detached hold so that it lasts `lease` from now, if it would end earlier: see
    /// [`DetachedHold::extend`].
    pub fn extend_detached(
        &self,
        hold: &mut DetachedHold,
        lease: impl Into<Lease>,
    ) -> Result<(), Error<ExtendError>> {
        call(&self.thread, hold.extend(&self.inner, lease))
    }

    /// Releases a detached hold, and hands the lock to the next waiter: see [`DetachedHold::release`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{DetachedHold, blocking::Client};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:")?;
    /// let deploy = client.mutex("deploy")?.lease(Duration::from_secs(600));
    /// let secret = deploy.acquire_detached()?.to_secret_text();
    ///
    /// // The next step, in another process:
    /// let mut hold: DetachedHold = secret.parse()?;
    /// client.extend_detached(&mut hold, Duration::from_secs(900))?;
    /// client.release_detached(&hold)?;
    /// # Ok(()) }
    /// ```
    pub fn release_detached(&self, hold: &DetachedHold) -> Result<(), Error<ReleaseError>> {
        call(&self.thread, hold.release(&self.inner))
    }

    /// Tries again to release a lock whose release had no answer: see [`Unreleased::release`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::blocking::{Client, Error};
    ///
    /// let client = Client::connect("memory:")?;
    /// let guard = client.mutex("orders/42")?.acquire()?;
    /// if let Err(Error::Failed(error)) = guard.release()
    ///     && let Some(unreleased) = error.into_unreleased()
    /// {
    ///     client.release_again(unreleased)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn release_again(&self, unreleased: Unreleased) -> Result<(), Error<ReleaseError>> {
        call(&self.thread, unreleased.release())
    }

    /// Turns a detached hold into an ordinary guard of this client: see [`DetachedHold::attach`].
    pub fn attach(&self, hold: DetachedHold) -> Result<Guard, AttachError> {
        if check_not_async().is_err() {
            return Err(AttachError::AsyncContext { hold: Box::new(hold) });
        }
        let attached = self.thread.wait_unchecked(hold.attach(&self.inner));
        attached.map(|guard| guard.into_blocking(&self.thread)).map_err(AttachError::Failed)
    }

    /// Waits until what dropped guards held has been released: see
    /// [`leasehold::Client::flush`](crate::Client::flush).
    ///
    /// Fails only in an async context.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let nightly = client.mutex("nightly")?;
    /// drop(nightly.acquire()?);
    /// client.flush()?;
    /// assert!(!nightly.inspect()?.held);
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) -> Result<(), AsyncContext> {
        self.thread.wait(self.inner.flush())
    }

    /// Returns the same client for futures: for async code, or for [`block_on`](Self::block_on). Its
    /// connection lives on this client's thread, so keep a clone of this client for as long as it is used.
    pub fn as_async(&self) -> &crate::Client {
        &self.inner
    }

    /// Blocks the calling thread until a future completes: for calls that have no blocking form. The future
    /// runs within this client's runtime; tasks it spawns run on this client's thread, and must not block it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let mut monitor = client.as_async().monitor();
    /// let round = client.block_on(monitor.run_once())?;
    /// println!("{} live sessions", round.alive);
    /// # Ok(()) }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, AsyncContext> {
        self.thread.wait(future)
    }
}

/// Blocks until a call of the async API completes.
fn call<T, E>(thread: &RuntimeThread, future: impl Future<Output = Result<T, E>>) -> Result<T, Error<E>> {
    thread.wait(future)?.map_err(Error::Failed)
}
