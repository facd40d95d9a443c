//! The same locks for threads: every call waits, and gives its result.
//!
//! A facade, with no logic of its own: each call runs the one of the same name in the crate's root, and everything said
//! there holds here. What a client has to do between calls (renewing what is held, receiving grants, giving back what
//! was dropped) goes on by itself, on threads of its own, while the caller's threads compute, sleep or wait for
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
//! let guard = orders.acquire()?; // waits in a queue, and is renewed until it is released
//! guard.check()?; // still ours? by our own clock, without asking anybody
//! println!("to be sent along with every write: {}", guard.fencing_token());
//! guard.release()?; // hands it to the next who waits
//! # Ok(()) }
//! ```
//!
//! # Threads
//!
//! Clients, locks and guards can be shared by threads and moved between them. A guard may be released on another thread
//! than the one that acquired it. A [`Mutex`] never re-enters: a thread that acquires it twice waits for itself. A
//! [`ReentrantMutex`] does, and takes a thread for its owner where nobody says for whom it works; so does an [`RwLock`].
//!
//! A thread that panics drops its guards, and dropping one gives the lock back in the background. So does the drop of a
//! guard anywhere else, in an async context as well: it never waits.
//!
//! # Async contexts
//!
//! Inside a future that a tokio runtime polls every call that could wait is refused with [`AsyncContext`]: it would keep
//! the runtime's other tasks from running. There, use [`leasehold::Client`](crate::Client). Threads of `spawn_blocking`
//! and closures of `block_in_place` may wait, and so may `main` and threads of one's own. Other runtimes, and futures in
//! `tokio::task::unconstrained`, are not recognized: a call made there blocks their thread, and works.
//!
//! # Forks
//!
//! A client does not survive `fork`: its threads are not in the child, where a call would wait for ever, and the child
//! would share the connection. Connect after the fork.

mod barrier;
mod election;
mod guard;
mod host;
mod latch;
mod multi;
mod mutex;
mod reentrant;
mod rwlock;
mod semaphore;
mod thread;

pub use barrier::Barrier;
pub use election::{Election, Leaders, Leadership, OncePer, Turn};
pub use guard::Guard;
pub use host::AsyncContext;
pub use latch::Latch;
pub use multi::{MultiGuard, MultiMutex};
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rwlock::{NotShifted, ReadGuard, RwLock, UpgradableGuard, WriteGuard};
pub use semaphore::{Permit, Semaphore};

use crate::attach::AttachError;
use crate::client::ClientBuilder;
use crate::error::{ConnectError, ExtendError, InspectError, LockError, ReleaseError};
use crate::store::Store;
use crate::{
    DetachedHold, LockInfo, LockName, Moment, NameError, Owner, SessionId, SessionInfo, ShutdownError,
};
use host::{Host, refuse_async};
use leasehold_core::Lease;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Why a blocking call has no result: that it was made where nobody may block, or the error of the call itself.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{AcquireError, blocking};
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
    /// What the call of the same name of the async API fails with.
    #[error(transparent)]
    Failed(E),
}

impl<E> Error<E> {
    /// The error of the call itself, if it was made.
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

/// Why a detached hold did not become a guard.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{AttachError, blocking};
/// use std::time::Duration;
///
/// let client = blocking::Client::connect("memory:")?;
/// let hold = client.mutex("index")?.lease(Duration::from_secs(60)).acquire_detached()?;
/// match client.attach(hold) {
///     Ok(guard) => guard.release()?,
///     // The hold comes back, and can be attached later if it is not lost.
///     Err(blocking::NotAttached::Failed(AttachError::NotExtended { hold, error })) => println!("{hold:?}: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotAttached {
    /// It was tried inside an async context: nothing was done.
    #[error("{}", AsyncContext)]
    AsyncContext {
        /// The hold, as it was.
        hold: Box<DetachedHold>,
    },
    /// It could not be.
    #[error(transparent)]
    Failed(AttachError),
}

/// A client of a store, for threads.
///
/// Cheap to clone; clones are the same client. It has one thread more than a [`leasehold::Client`](crate::Client), for
/// its connection. The threads end once the last clone and the last lock and guard of it are gone, and what was dropped
/// has been given back. A program that ends without waiting for that leaves it to the leases: see
/// [`shutdown`](Self::shutdown) and [`settle`](Self::settle).
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
pub struct Client {
    inner: crate::Client,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl ClientBuilder {
    /// Connects, and waits for it: for a client whose calls wait as well, see [`blocking`](self).
    ///
    /// Fails as [`connect`](Self::connect) does, and inside an async context.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("memory:").label("billing on web-3").connect_blocking()?;
    /// client.mutex("orders/42")?.acquire()?.release()?;
    /// # Ok(()) }
    /// ```
    pub fn connect_blocking(self) -> Result<Client, Error<ConnectError>> {
        Client::of_builder(self)
    }
}

impl Client {
    /// Connects to the store of a URL, as [`leasehold::Client::connect`](crate::Client::connect) does.
    pub fn connect(url: &str) -> Result<Self, Error<ConnectError>> {
        Self::builder(url).connect_blocking()
    }

    /// A client of the store of a URL, with settings: the builder of the async client, whose
    /// [`connect_blocking`](ClientBuilder::connect_blocking) makes one for threads.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        crate::Client::builder(url)
    }

    /// A client of a store that is there already; see [`builder`](Self::builder).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{blocking::Client, store::MemoryStore};
    ///
    /// let client = Client::of_store(MemoryStore::new()).connect_blocking()?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn of_store(store: impl Store) -> ClientBuilder {
        crate::Client::of_store(store)
    }

    pub(crate) fn of_builder(builder: ClientBuilder) -> Result<Self, Error<ConnectError>> {
        refuse_async()?;
        let host = Host::start().map_err(|error| Error::Failed(ConnectError::Thread(Arc::new(error))))?;
        let host = Arc::new(host);
        let inner = call(&host, builder.connect())?;
        host.outlive(inner.engine.keeper.end());
        Ok(Self { inner, host })
    }

    /// The lock of that name with one holder at a time. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::mutex`](crate::Client::mutex) does.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Mutex::new(self.inner.mutex(name)?, self.host.clone()))
    }

    /// The lock of that name which its owner may acquire again and again: see [`ReentrantMutex`]. Nothing is sent, and
    /// nobody waits.
    ///
    /// Fails as [`leasehold::Client::reentrant_mutex`](crate::Client::reentrant_mutex) does.
    pub fn reentrant_mutex<N>(&self, name: N) -> Result<ReentrantMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let inner = self.inner.reentrant_mutex(name)?;
        Ok(ReentrantMutex::new(inner, self.inner.owners.clone(), self.host.clone()))
    }

    /// All of several locks, or none of them: see [`MultiMutex`]. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::multi_mutex`](crate::Client::multi_mutex) does.
    pub fn multi_mutex<N>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(MultiMutex::new(self.inner.multi_mutex(names)?, self.host.clone()))
    }

    /// The election of that name: see [`Election`]. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::election`](crate::Client::election) does.
    pub fn election<N>(&self, name: N) -> Result<Election, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Election::new(self.inner.election(name)?, self.host.clone()))
    }

    /// What is done once in a `period`, whoever comes first: see [`OncePer`]. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::once_per`](crate::Client::once_per) does.
    pub fn once_per<N>(&self, name: N, period: Duration) -> Result<OncePer, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(OncePer::new(self.inner.once_per(name, period)?, self.host.clone()))
    }

    /// The semaphore of that name, with so many permits where the store knows no other number: see [`Semaphore`]. Nothing
    /// is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::semaphore`](crate::Client::semaphore) does.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Semaphore::new(self.inner.semaphore(name, permits)?, self.host.clone()))
    }

    /// The lock of that name which readers share and a writer has alone: see [`RwLock`]. Nothing is sent, and nobody
    /// waits.
    ///
    /// Fails as [`leasehold::Client::rwlock`](crate::Client::rwlock) does.
    pub fn rwlock<N>(&self, name: N) -> Result<RwLock, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(RwLock::new(self.inner.rwlock(name)?, self.inner.owners.clone(), self.host.clone()))
    }

    /// The latch of that name which opens when so many have arrived: see [`Latch`]. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::latch`](crate::Client::latch) does.
    pub fn latch<N>(&self, name: N, arrivals: u32) -> Result<Latch, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Latch::new(self.inner.latch(name, arrivals)?, self.host.clone()))
    }

    /// The barrier of that name at which so many wait for one another: see [`Barrier`]. Nothing is sent, and nobody waits.
    ///
    /// Fails as [`leasehold::Client::barrier`](crate::Client::barrier) does.
    pub fn barrier<N>(&self, name: N, parties: u32) -> Result<Barrier, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Barrier::new(self.inner.barrier(name, parties)?, self.host.clone()))
    }

    /// An owner that nobody has been before: for one piece of work, which may be spread over threads and processes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let account = client.reentrant_mutex("account/7")?;
    /// let job = client.owner();
    /// // Two threads of one job do not exclude each other.
    /// let enter = || job.sync_scope(|| account.acquire());
    /// let outer = enter()?;
    /// let inner = std::thread::scope(|threads| threads.spawn(enter).join()).expect("no panic")?;
    /// assert_eq!(inner.count(), 2);
    /// # inner.release()?;
    /// # outer.release()?;
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// Now, on the clock of [`Moment`], which goes on while the machine is suspended.
    pub fn now(&self) -> Moment {
        self.inner.now()
    }

    /// The id of this client's session: see [`leasehold::Client::session`](crate::Client::session).
    pub fn session(&self) -> SessionId {
        self.inner.session()
    }

    /// The sessions of the store: see [`leasehold::Client::sessions`](crate::Client::sessions).
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, Error<InspectError>> {
        call(&self.host, self.inner.sessions())
    }

    /// The locks that are held: see [`leasehold::Client::locks`](crate::Client::locks).
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    pub fn locks(&self) -> Result<Vec<LockInfo>, Error<InspectError>> {
        call(&self.host, self.inner.locks())
    }

    /// Lengthens a detached hold to last `lease` from now, if it would end earlier: see [`DetachedHold::extend`].
    pub fn extend_detached(
        &self,
        hold: &mut DetachedHold,
        lease: impl Into<Lease>,
    ) -> Result<(), Error<ExtendError>> {
        call(&self.host, hold.extend(&self.inner, lease))
    }

    /// Gives a detached hold back, and hands the lock to the next who waits: see [`DetachedHold::release`].
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
        call(&self.host, hold.release(&self.inner))
    }

    /// Turns a detached hold into an ordinary guard, which this client keeps from now on: see [`DetachedHold::attach`].
    pub fn attach(&self, hold: DetachedHold) -> Result<Guard, NotAttached> {
        if refuse_async().is_err() {
            return Err(NotAttached::AsyncContext { hold: Box::new(hold) });
        }
        let attached = self.host.wait_anywhere(hold.attach(&self.inner));
        attached.map(|guard| Guard::new(guard, self.host.clone())).map_err(NotAttached::Failed)
    }

    /// Waits until what dropped guards held has been given back: see [`leasehold::Client::settle`](crate::Client::settle).
    ///
    /// Fails in an async context, and by nothing else.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let nightly = client.mutex("nightly")?;
    /// drop(nightly.acquire()?);
    /// client.settle()?;
    /// assert!(!nightly.inspect()?.held);
    /// # Ok(()) }
    /// ```
    pub fn settle(&self) -> Result<(), AsyncContext> {
        self.host.wait(self.inner.settle())
    }

    /// Gives everything back and leaves all queues, within a bound: see
    /// [`leasehold::Client::shutdown`](crate::Client::shutdown). Threads that wait for a lock are told so, with
    /// [`AcquireError::Closed`](crate::AcquireError::Closed).
    pub fn shutdown(&self, within: Duration) -> Result<(), Error<ShutdownError>> {
        call(&self.host, self.inner.shutdown(within))
    }

    /// The same client for futures: to be given to code that is async, or to [`block_on`](Self::block_on). Its
    /// connection lives in this client's thread, so keep one of this client's clones for as long as it is used.
    pub fn as_async(&self) -> &crate::Client {
        &self.inner
    }

    /// Waits for a future, by the calling thread: for what has no blocking call of its own. The future runs within this
    /// client's runtime; what it spawns runs on this client's thread, and must not block it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let mut monitor = client.as_async().monitor();
    /// let round = client.block_on(monitor.round())?;
    /// println!("{} sessions live", round.alive);
    /// # Ok(()) }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, AsyncContext> {
        self.host.wait(future)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Client").field(&self.inner).finish()
    }
}

/// Waits for a call of the async API.
fn call<T, E>(host: &Host, future: impl Future<Output = Result<T, E>>) -> Result<T, Error<E>> {
    host.wait(future)?.map_err(Error::Failed)
}
