//! The client: creates locks that share one session and one keeper.

pub(crate) mod builder;
pub(crate) mod health;
pub(crate) mod inventory;
pub(crate) mod listing;
pub(crate) mod locks;
pub(crate) mod monitor;
mod open;
pub(crate) mod session_info;
mod session_metadata;
pub(crate) mod statistics;
pub(crate) mod stats;
#[cfg(feature = "signal")]
pub(crate) mod stop;
pub(crate) mod store_url;

use crate::engine::{self, Engine, ShutdownError, WaitGraph};
use crate::error::{ConnectError, InspectError, LockError};
use crate::guard::owner::{Owner, OwnerFactory};
use crate::lock::barrier::Barrier;
use crate::lock::election::Election;
use crate::lock::handle::LockHandle;
use crate::lock::keyed_semaphore::KeyedSemaphore;
use crate::lock::latch::Latch;
use crate::lock::multi::MultiMutex;
use crate::lock::multi::reentrant::MultiReentrantMutex;
use crate::lock::mutex::Mutex;
use crate::lock::reentrant::ReentrantMutex;
use crate::lock::rwlock::RwLock;
use crate::lock::semaphore::Semaphore;
use crate::store::Store;
use builder::{ClientBuilder, Target};
use inventory::LockInfo;
use leasehold_core::{Lock, LockName, Moment, NameError, SessionId};
use listing::Listing;
use session_info::SessionInfo;
use statistics::LockStatistics;
use std::sync::Arc;
use std::time::Duration;

/// A client of a store: creates locks, and renews and releases the holds acquired through them.
///
/// It needs a tokio runtime with IO and timers (`enable_all`). Its connection lives in the runtime in which
/// the client was connected: while that runtime is blocked, or not driven, calls from other runtimes wait.
/// Renewals do not, since the keeper has its own thread and connection. Connect in the runtime that lives as
/// long as the program, and give each single-threaded runtime its own client.
///
/// Cloning is cheap, and clones are the same client. When the last clone, lock and guard is dropped, the
/// connections close, and the keeper stops once it has released what was dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// println!("fencing token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    pub(crate) owners: Arc<OwnerFactory>,
}

impl Client {
    /// The default lifetime of a session without a heartbeat.
    pub(crate) const DEFAULT_SESSION_TTL: Duration = Duration::from_secs(10);

    /// Connects to the store of a URL:
    ///
    /// - `redis://[user[:password]@]host[:port][/db][?prefix=app:]`, `rediss://…` (TLS),
    ///   `redis+unix:///path/to/socket[?db=1]`: one Redis server
    /// - `redis+sentinel://[user[:password]@]host[:port],…/name[/db]`: the primary of that name, as reported
    ///   by these Sentinels; `rediss+sentinel://…` (TLS)
    /// - `redis+cluster://[user[:password]@]host[:port],…`: a cluster, discovered through these nodes;
    ///   `rediss+cluster://…` (TLS)
    /// - `redis+shard://[user[:password]@]host[:port],…[/db]`: independent servers; each lock name maps to
    ///   [one of them](crate::store::Shards); `rediss+shard://…` (TLS)
    /// - `redlock://[user[:password]@]host[:port],host[:port],…[/db][?min_uptime=60s]`: a majority of these
    ///   independent servers, see [`QuorumConfig`](crate::store::QuorumConfig); `redlocks://…` (TLS)
    /// - `sqlite:PATH`: a file, shared by the processes of one machine
    /// - `memory:`: this process only
    ///
    /// Problems with a server's settings or version are logged as warnings; with `?strict=1` such a server is
    /// rejected, unless `?accept=` has their codes. A server that can remove held locks when its memory is full, or that
    /// does not exclude, is always rejected, the former unless the URL has `?accept=eviction`. [`findings`](Self::findings)
    /// returns them, and [`ClientBuilder::diagnose`] reads each server again.
    ///
    /// Fails if the URL has none of these forms, if the store cannot be reached or rejects the user, or if it
    /// is too old.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Creates a client that connects when it is first used: see
    /// [`ClientBuilder::connect_lazy`](crate::ClientBuilder::connect_lazy), and
    /// [`connect_within`](crate::ClientBuilder::connect_within) to wait for the server.
    ///
    /// Fails if the URL has none of the forms that [`connect`](Self::connect) lists.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect_lazy(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect_lazy().await
    }

    /// Creates a builder for a client of the store of a URL: see [`connect`](Self::connect).
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(Target::Url(url.into()))
    }

    /// Creates a builder for a client of an existing store.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, store::MemoryStore};
    ///
    /// let client = Client::with_store(MemoryStore::new()).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn with_store(store: impl Store) -> ClientBuilder {
        ClientBuilder::new(Target::Store(Arc::new(store)))
    }

    /// Creates a handle to the [`Mutex`] of that name.
    ///
    /// Fails if the name is empty, too long or contains control characters, or if the store cannot form keys
    /// from it. Nothing is sent.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Mutex::new(self.engine.clone(), &self.checked(Lock::mutex(parse_name(name)?))?))
    }

    /// Creates a handle to the [`ReentrantMutex`] of that name, which its owner may acquire again while it
    /// holds the lock.
    ///
    /// Fails like [`mutex`](Self::mutex). Nothing is sent.
    pub fn reentrant_mutex<N>(&self, name: N) -> Result<ReentrantMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::reentrant(parse_name(name)?))?;
        Ok(ReentrantMutex::new(self.engine.clone(), self.owners.clone(), &lock))
    }

    /// Creates a handle to the [`Election`] of that name.
    ///
    /// Fails like [`mutex`](Self::mutex). Nothing is sent.
    pub fn election<N>(&self, name: N) -> Result<Election, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Election::new(self.engine.clone(), &self.checked(Lock::election(parse_name(name)?))?))
    }

    /// Creates a handle to the [`Semaphore`] of that name. `permits` applies unless the store already has
    /// another number for it.
    ///
    /// Fails like [`mutex`](Self::mutex), and for zero permits or more than [`Semaphore::MAX_PERMITS`].
    /// Nothing is sent.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        check_count("permits", permits, Semaphore::MAX_PERMITS)?;
        Ok(Semaphore::new(self.engine.clone(), &self.checked(Lock::semaphore(parse_name(name)?))?, permits))
    }

    /// Creates a handle to the [`KeyedSemaphore`] of that name: at most `permits` permits in all, and at most
    /// `permits_per_key` for each key. Both numbers apply unless the store already has others.
    ///
    /// Fails like [`semaphore`](Self::semaphore), for zero permits per key or more than `permits`, and for a name of more
    /// than 461 bytes. Nothing is sent.
    pub fn keyed_semaphore<N>(
        &self,
        name: N,
        permits: u32,
        permits_per_key: u32,
    ) -> Result<KeyedSemaphore, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let all = self.semaphore(name, permits)?;
        check_count("permits per key", permits_per_key, permits)?;
        KeyedSemaphore::new(all, permits_per_key)
    }

    /// Creates a handle to the [`RwLock`] of that name, which is held by many readers or by one writer.
    ///
    /// Fails like [`mutex`](Self::mutex). Nothing is sent.
    pub fn rwlock<N>(&self, name: N) -> Result<RwLock, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::rwlock(parse_name(name)?))?;
        Ok(RwLock::new(self.engine.clone(), self.owners.clone(), &lock))
    }

    /// Creates a handle to the [`Latch`] of that name, which opens after that many arrivals.
    ///
    /// Fails like [`mutex`](Self::mutex), and for zero arrivals. Nothing is sent.
    pub fn latch<N>(&self, name: N, arrivals: u32) -> Result<Latch, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        check_count("arrivals", arrivals, u32::MAX)?;
        Ok(Latch::new(self.engine.clone(), &self.checked(Lock::latch(parse_name(name)?))?, arrivals))
    }

    /// Creates a handle to the [`Barrier`] of that name, at which that many parties wait for one another.
    ///
    /// Fails like [`mutex`](Self::mutex), for zero parties, and for more than [`Barrier::MAX_PARTIES`].
    /// Nothing is sent.
    pub fn barrier<N>(&self, name: N, parties: u32) -> Result<Barrier, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        check_count("parties", parties, Barrier::MAX_PARTIES)?;
        Ok(Barrier::new(self.engine.clone(), &self.checked(Lock::barrier(parse_name(name)?))?, parties))
    }

    /// Returns the lock if the store can form keys for it.
    pub(crate) fn checked(&self, lock: Lock) -> Result<Lock, LockError> {
        self.engine.store.check(&lock)?;
        Ok(lock)
    }

    /// Creates a new, unique owner: this client's instance id and a number. An owner stands for one piece of
    /// work, which may spread over tasks and processes: see [`Owner`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    ///
    /// let client = Client::builder("memory:").instance_id("billing-7f9c").connect().await?;
    /// assert!(client.new_owner().as_str().starts_with("billing-7f9c:"));
    /// assert_ne!(client.new_owner(), client.new_owner());
    /// # Ok(()) }
    /// ```
    pub fn new_owner(&self) -> Owner {
        self.owners.create()
    }

    /// Creates a handle that acquires all of several locks or none: the [mutexes](Self::mutex) of these
    /// names. Duplicate names count once.
    ///
    /// Fails like [`mutex`](Self::mutex), if there is no name, and with [`LockError::TooManyNames`] if there
    /// are more than [`MultiMutex::MAX_LOCKS`]. Nothing is sent.
    pub fn multi_mutex<N>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let mut handles = Vec::new();
        for name in names {
            let lock = self.checked(Lock::mutex(parse_name(name)?))?;
            handles.push(LockHandle::new(self.engine.clone(), &lock));
        }
        MultiMutex::new(self.engine.clone(), handles)
    }

    /// Creates a handle that acquires all of several locks or none for one owner: the
    /// [re-entrant mutexes](Self::reentrant_mutex) of these names. Duplicate names count once.
    ///
    /// Fails like [`multi_mutex`](Self::multi_mutex). Nothing is sent.
    pub fn multi_reentrant_mutex<N>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<MultiReentrantMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let mut handles = Vec::new();
        for name in names {
            let lock = self.checked(Lock::reentrant(parse_name(name)?))?;
            handles.push(LockHandle::new(self.engine.clone(), &lock));
        }
        MultiReentrantMutex::new(self.engine.clone(), self.owners.clone(), handles)
    }

    /// Returns the current time on the clock of [`Moment`], which keeps running while the machine is
    /// suspended.
    pub fn now(&self) -> Moment {
        self.engine.environment.now()
    }

    /// Returns the id of this client's session. It is part of every hold, and is not a secret. If the session
    /// [lapses](ClientBuilder::session_ttl), another one replaces it. In a store of several servers the client
    /// has a session on each server it uses; they share this id until one of them lapses.
    pub fn session_id(&self) -> SessionId {
        self.engine.sessions.id()
    }

    /// Lists the sessions of the store, in no particular order: each session's client, its remaining
    /// lifetime, and the locks it holds. What cannot be read is [counted](Listing::skipped), and left out.
    ///
    /// A session reports a lock with a heartbeat, once it has held the lock long enough to extend it, about a
    /// second. A reported lock may be free by now; [`locks`](Self::locks) verifies each. Dead sessions are
    /// listed until the store removes them. Clients [without a session](ClientBuilder::without_session) are
    /// not listed.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request. A
    /// [quorum](crate::store::QuorumStore) keeps no sessions and refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn sessions(&self) -> Result<Listing<SessionInfo>, InspectError> {
        session_info::sessions(&self.engine).await
    }

    /// Lists the locks that sessions report and that are still held, by name, with the holder's session.
    /// Each lock is inspected, in batches; the store's key space is not scanned.
    ///
    /// It shows locks held for more than a moment (see [`sessions`](Self::sessions)). It does not show locks
    /// held more briefly, by clients without a session, or by clients of other libraries: inspect those [by
    /// name](crate::Mutex::inspect).
    ///
    /// Fails like [`sessions`](Self::sessions).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn locks(&self) -> Result<Listing<LockInfo>, InspectError> {
        inventory::locks(&self.engine).await
    }

    /// Reads the state of these locks, held or not, in the order given. A lock is left out if its key has another kind by now.
    ///
    /// Sends a request for each 256 of them. The sessions of the holders are named, and not looked up:
    /// [`LockInfo::holder_session`](crate::inspect::LockInfo::holder_session) is `None`. To look at one lock with its queue and history,
    /// [inspect it fully](crate::Mutex::inspect_full).
    ///
    /// Fails like [`sessions`](Self::sessions).
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::core::Lock;
    ///
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let locks = ["nightly", "hourly"].map(|name| Ok(Lock::mutex(name.parse()?)));
    /// let locks = locks.into_iter().collect::<Result<Vec<_>, leasehold::core::NameError>>()?;
    /// assert!(client.inspect_all(locks).await?.iter().all(|lock| !lock.status.held));
    /// # Ok(()) }
    /// ```
    pub async fn inspect_all(
        &self,
        locks: impl IntoIterator<Item = Lock>,
    ) -> Result<Listing<LockInfo>, InspectError> {
        inventory::inspect_all(&self.engine, locks.into_iter().collect()).await
    }

    /// Scans the keys of the store for [mutexes](crate::Mutex) and [reentrant mutexes](crate::ReentrantMutex) that are held, also by clients of other libraries, without a
    /// session, or for ever: what [`locks`](Self::locks) does not show. For operators, not for applications.
    ///
    /// It goes through all keys of each server in small steps with pauses, to those whose names begin with `start`, and
    /// inspects those that `is_wanted`. On Redis each key with a string is taken for a lock, as that is what a lock of redsync,
    /// redis-py, node-redlock or rslock looks like, and so is a hash of one field with a count, as that is what Redisson's `RLock`
    /// looks like: which of them are locks, you know. A holder of another library has neither
    /// [label](crate::inspect::Status::holder) nor [fencing token](crate::inspect::Status::fence). What the scan does not come to within the time is
    /// [counted](Listing::skipped). Names that appear or move to another server meanwhile can be missed.
    ///
    /// Fails for a store that other libraries do not share, and if the user of the server may not send SCAN.
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let found = client.scan("orders:", Duration::from_secs(60), |_| true).await?;
    /// for lock in found.iter().filter(|lock| lock.status.remaining.is_none()) {
    ///     println!("{} is held without an expiry", lock.name);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn scan(
        &self,
        start: &str,
        within: Duration,
        is_wanted: impl Fn(&LockName) -> bool,
    ) -> Result<Listing<LockInfo>, InspectError> {
        inventory::scan(&self.engine, start, within, is_wanted).await
    }

    /// Lists the statistics of the store by [class](crate::Mutex::class) of lock: how long locks were held and waited for, and how many
    /// holds were lost, as all clients have counted it within the last 7 days at most. See [`LockStatistics`].
    ///
    /// A client merges what it has counted every minute, and when it is shut down, unless its
    /// [statistics](ClientBuilder::statistics) are off. What cannot be read is [counted](Listing::skipped), and left out.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request. A
    /// [quorum](crate::store::QuorumStore) keeps no statistics and refuses the request. A store of several servers keeps all of
    /// them on one.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lock_statistics(&self) -> Result<Listing<LockStatistics>, InspectError> {
        statistics::lock_statistics(&self.engine).await
    }

    /// Reads what waits for what in all processes that use the store, and which of them wait for each other: see [`WaitGraph`].
    ///
    /// A wait is seen once it has lasted for about half a second, with what the same task, thread or owner holds. If there is
    /// a cycle, a second look follows after 0.7 s, and the cycle is reported if both show it. Not seen are waits of clients
    /// [without a session](ClientBuilder::without_session) and of other libraries.
    ///
    /// A lock counts as held by the task that acquired it, outside of tasks by the thread, and in the
    /// [scope](Owner::scope) of an owner by that owner. A guard that is given to another task, or a task that does other work
    /// while it waits, can make waits look like a cycle that is none: give each part an owner of its own. A task that waits for
    /// its own lock is not reported as a cycle.
    ///
    /// Sends a request that lists the sessions, and one for each 256 locks for which something waits; twice if there are
    /// cycles. Fails like [`sessions`](Self::sessions).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn wait_graph(&self) -> Result<WaitGraph, InspectError> {
        Ok(engine::wait_graph(&self.engine).await?)
    }

    /// Waits until the keeper has released the locks of dropped guards and undone dropped acquires, and until
    /// a [quorum](crate::store::QuorumStore) has sent its requests also to the nodes whose replies were not
    /// needed: for those, 5 s at most with a call timeout of 2 s. In an outage an undo is tried until the store has ended by
    /// itself what was requested: 3 s after a single try, 24 s after a wait, 84 s after one at a barrier, and a call.
    /// A program that exits without this call leaves the rest to the leases.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn flush(&self) {
        self.engine.flush().await;
    }

    /// Releases everything and leaves all queues, within a time limit: for a program that is about to exit.
    ///
    /// No lock is acquired any more: acquires fail with
    /// [`AcquireError::Closed`](crate::error::AcquireError::Closed), including those that wait. All guards of this
    /// client and its clones are lost at once, with [`LostReason::ShutDown`](crate::LostReason::ShutDown), so
    /// stop the work under them first. Only then are their holds released, in one batch where the store
    /// supports it, together with those of dropped guards and acquires. Once this has returned,
    /// nothing more is sent about any hold.
    ///
    /// Fails if the store did not reply within `within`, or refused: the error names the locks that remain,
    /// and until when at the latest. Concurrent calls, also on clones, get the same result; the earliest of
    /// their limits applies.
    ///
    /// A [`release`](crate::Guard::release) in progress is completed as part of the shutdown, and returns
    /// `Ok` unless that fails. A release that starts later waits for the end of the shutdown and returns
    /// [`ReleaseError::Lost`](crate::error::ReleaseError::Lost). Dropping a guard then does nothing. A hold kept in the error
    /// of a release that failed before is released as well, or named.
    /// [`inspect`](crate::Mutex::inspect) works as before.
    ///
    /// Cancel safety: if the future is dropped after it was polled, the shutdown continues in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::connect("memory:").await?;
    /// # async fn asked_to_end() {}
    /// # async fn serve(_: &leasehold::Client) { std::future::pending::<()>().await }
    /// tokio::select! {
    ///     () = serve(&client) => {}
    ///     () = asked_to_end() => {}
    /// }
    /// if let Err(error) = client.shutdown(Duration::from_secs(5)).await {
    ///     eprintln!("{error}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        self.engine.shut_down(within).await
    }
}

/// Parses a lock name.
pub(crate) fn parse_name<N>(name: N) -> Result<LockName, LockError>
where
    N: TryInto<LockName>,
    N::Error: Into<NameError>,
{
    name.try_into().map_err(|error| LockError::Name(error.into()))
}

/// Fails if the number is out of range.
fn check_count(what: &'static str, given: u32, max: u32) -> Result<(), LockError> {
    if (1..=max).contains(&given) { Ok(()) } else { Err(LockError::Count { what, given, max }) }
}
