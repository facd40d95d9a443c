//! The client: connects to a store, and creates locks that share one session and one keeper.

pub(crate) mod connect;
pub(crate) mod inventory;
pub(crate) mod monitor;
pub(crate) mod session_info;

use crate::engine::{Engine, ShutdownError, StartError, Timings};
use crate::error::{ConnectError, InspectError, LockError};
use crate::guard::owner::{Owner, Owners};
use crate::lock::barrier::Barrier;
use crate::lock::election::Election;
use crate::lock::latch::Latch;
use crate::lock::multi::MultiMutex;
use crate::lock::mutex::Mutex;
use crate::lock::reentrant::ReentrantMutex;
use crate::lock::request::Request;
use crate::lock::rwlock::RwLock;
use crate::lock::semaphore::Semaphore;
use crate::store::{Diagnosis, MemoryStore, Store};
use crate::store::{StoreConfig, StoreUrl};
use inventory::LockInfo;
use leasehold_core::{Label, Lease, Lock, LockName, Moment, NameError, SessionId, SessionMetadata};
use leasehold_store::{Environment, System};
use session_info::SessionInfo;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The shortest lifetime of a session without a heartbeat.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

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
    pub(crate) owners: Arc<Owners>,
}

/// Configures and connects a [`Client`]: see [`Client::builder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::builder("memory:")
///     .label("billing on web-3")
///     .call_timeout(Duration::from_millis(500))
///     .connect()
///     .await?;
/// # let _ = client; Ok(()) }
/// ```
#[must_use = "a builder does nothing until `connect`, or `connect_blocking`"]
pub struct ClientBuilder {
    target: Target,
    access: Access,
    label: Option<String>,
    session_labels: BTreeMap<String, String>,
    instance: Option<String>,
    timings: Timings,
    /// Set to replace the machine's clock, randomness and threads.
    environment: Option<Arc<dyn Environment>>,
}

enum Target {
    Url(String),
    Store(Arc<dyn Store>),
}

/// Credentials, certificates and key prefix that override those of the URL.
#[derive(Default)]
struct Access {
    username: Option<String>,
    password: Option<String>,
    prefix: Option<String>,
    /// Set to inspect a server regardless of its findings.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has findings"))]
    lenient: bool,
    /// The certificate authority to trust in place of the public ones.
    root: Option<Vec<u8>>,
    /// The client's certificate and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Access {
    /// Fails if anything is set: this kind of store supports none of it.
    fn none_for(&self, store: &str) -> Result<(), ConnectError> {
        let Self { username, password, prefix, root, own, lenient: _ } = self;
        if username.is_some() || password.is_some() || prefix.is_some() {
            let text = format!("`{store}` takes no user, password or key prefix: these are for Redis");
            return Err(ConnectError::Setting(text));
        }
        if root.is_some() || own.is_some() {
            let text = format!("`{store}` takes no certificates: these are for Redis over TLS");
            return Err(ConnectError::Setting(text));
        }
        Ok(())
    }

    /// Applies these settings to a server's configuration.
    #[cfg(feature = "redis")]
    fn to(&self, mut config: crate::store::RedisConfig) -> Result<crate::store::RedisConfig, ConnectError> {
        if let Some(username) = &self.username {
            config = config.username(username);
        }
        if let Some(password) = &self.password {
            config = config.password(password);
        }
        if let Some(prefix) = &self.prefix {
            config = config.prefix(prefix).map_err(|error| ConnectError::Setting(error.to_string()))?;
        }
        if self.lenient {
            config = config.lenient();
        }
        if let Some(root) = &self.root {
            config = config.root_certificate(root.clone());
        }
        if let Some((certificate, key)) = &self.own {
            config = config.client_certificate(certificate.clone(), key.clone());
        }
        Ok(config)
    }
}

impl fmt::Debug for ClientBuilder {
    /// Shows neither the URL nor any credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("label", &self.label)
            .field("timings", &self.timings)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// The default lifetime of a session without a heartbeat.
    pub(crate) const SESSION: Duration = Duration::from_secs(10);

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
    /// refused. [`ClientBuilder::diagnose`] returns all findings.
    ///
    /// Fails if the URL has none of these forms, if the store cannot be reached or rejects the user, or if it
    /// is too old.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
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
        Ok(Mutex::new(self.engine.clone(), &self.checked(Lock::mutex(named(name)?))?))
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
        let lock = self.checked(Lock::reentrant(named(name)?))?;
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
        Ok(Election::new(self.engine.clone(), &self.checked(Lock::election(named(name)?))?))
    }

    /// The semaphore of that name, with so many permits where the store knows no other number: see [`Semaphore`].
    ///
    /// Fails like [`mutex`](Self::mutex), and for zero permits or more than [`Semaphore::MOST`]. Nothing is
    /// sent.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        counted("permits", permits, Semaphore::MOST)?;
        Ok(Semaphore::new(self.engine.clone(), &self.checked(Lock::semaphore(named(name)?))?, permits))
    }

    /// Creates a handle to the [`RwLock`] of that name, which is held by many readers or by one writer.
    ///
    /// Fails like [`mutex`](Self::mutex). Nothing is sent.
    pub fn rwlock<N>(&self, name: N) -> Result<RwLock, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::rwlock(named(name)?))?;
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
        counted("arrivals", arrivals, u32::MAX)?;
        Ok(Latch::new(self.engine.clone(), &self.checked(Lock::latch(named(name)?))?, arrivals))
    }

    /// Creates a handle to the [`Barrier`] of that name, at which that many parties wait for one another.
    ///
    /// Fails like [`mutex`](Self::mutex), for zero parties, and for more than [`Barrier::MOST`]. Nothing is
    /// sent.
    pub fn barrier<N>(&self, name: N, parties: u32) -> Result<Barrier, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        counted("parties", parties, Barrier::MOST)?;
        Ok(Barrier::new(self.engine.clone(), &self.checked(Lock::barrier(named(name)?))?, parties))
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
    /// assert!(client.owner().as_str().starts_with("billing-7f9c:"));
    /// assert_ne!(client.owner(), client.owner());
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> Owner {
        self.owners.make()
    }

    /// Creates a handle that acquires all of several locks or none: the [mutexes](Self::mutex) of these
    /// names. Duplicate names count once.
    ///
    /// Fails like [`mutex`](Self::mutex), if there is no name, and with [`LockError::TooManyNames`] if there
    /// are more than [`MultiMutex::MOST`]. Nothing is sent.
    pub fn multi_mutex<N>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let mut requests = Vec::new();
        for name in names {
            let lock = self.checked(Lock::mutex(named(name)?))?;
            requests.push(Request::new(self.engine.clone(), &lock));
        }
        MultiMutex::of(self.engine.clone(), requests)
    }

    /// Returns the current time on the clock of [`Moment`], which keeps running while the machine is
    /// suspended.
    pub fn now(&self) -> Moment {
        self.engine.environment.now()
    }

    /// Returns the id of this client's session. It is part of every hold, and is not a secret. If the session
    /// [lapses](ClientBuilder::session), another one replaces it. In a store of several servers the client
    /// has a session on each server it uses; they share this id until one of them lapses.
    pub fn session(&self) -> SessionId {
        self.engine.sessions.id()
    }

    /// Lists the sessions of the store, in no particular order: each session's client, its remaining
    /// lifetime, and the locks it holds.
    ///
    /// A session reports a lock with a heartbeat, once it has held the lock long enough to extend it, about a
    /// second. A reported lock may be free by now; [`locks`](Self::locks) verifies each. Dead sessions are
    /// listed until the store removes them. Clients [without a session](ClientBuilder::without_session) are
    /// not listed.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request. A
    /// [quorum](crate::store::QuorumStore) keeps no sessions and refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, InspectError> {
        session_info::sessions(&self.engine).await
    }

    /// Lists the locks that sessions report and that are still held, by name, with the session behind each.
    /// Each lock is inspected, in batches; the store's key space is not scanned.
    ///
    /// It shows locks held for more than a moment (see [`sessions`](Self::sessions)). It does not show locks
    /// held more briefly, by clients without a session, or by clients of other libraries: inspect those [by
    /// name](crate::Mutex::inspect).
    ///
    /// Fails like [`sessions`](Self::sessions).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn locks(&self) -> Result<Vec<LockInfo>, InspectError> {
        inventory::locks(&self.engine).await
    }

    /// Waits until the keeper has released what dropped guards held and undone what dropped acquires may have
    /// left, and until a [quorum](crate::store::QuorumStore) has sent its requests also to the nodes whose
    /// replies were not needed: for those, 5 s at most with a call timeout of 2 s. A program that exits
    /// without this call leaves the rest to the leases.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn flush(&self) {
        self.engine.flush().await;
    }

    /// Releases everything and leaves all queues, within a time limit: for a program that is asked to exit.
    ///
    /// No lock is acquired any more: acquires fail with
    /// [`AcquireError::Closed`](crate::AcquireError::Closed), including those that wait. All guards of this
    /// client and its clones are lost at once, with [`LostReason::ShutDown`](crate::LostReason::ShutDown), so
    /// stop the work under them first. Only then are their holds released, in one batch where the store
    /// supports it, together with what dropped guards and acquires left behind. Once this has returned,
    /// nothing more is sent about any hold.
    ///
    /// Fails if the store did not reply within `within`, or refused: the error names the locks that remain,
    /// and until when at the latest. Concurrent calls, also on clones, get the same result; the earliest of
    /// their limits applies.
    ///
    /// A [`release`](crate::Guard::release) in progress is completed as part of the shutdown, and returns
    /// `Ok` unless that fails. A release that starts later waits for the end of the shutdown and returns
    /// [`ReleaseError::Lost`](crate::ReleaseError::Lost). Dropping a guard then does nothing.
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
    /// if let Err(left) = client.shutdown(Duration::from_secs(5)).await {
    ///     eprintln!("{left}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        self.engine.shut_down(within).await
    }
}

impl ClientBuilder {
    fn new(target: Target) -> Self {
        let timings = Timings {
            call: Duration::from_secs(2),
            outage: Duration::from_secs(30),
            watchdog: Duration::from_secs(30),
            session: Some(Client::SESSION),
        };
        let (access, session_labels) = (Access::default(), BTreeMap::new());
        Self { target, access, label: None, session_labels, instance: None, timings, environment: None }
    }

    /// Sets the user to log in as, in place of the URL's.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.access.username = Some(username.into());
        self
    }

    /// Sets the password to log in with, in place of the URL's.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.access.password = Some(password.into());
        self
    }

    /// Sets the certificate, as PEM, of the authority that signed the server's certificate, in place of the
    /// public authorities and the URL's `?ca=`. For TLS URLs only: with any other URL, connecting fails.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.access.root = Some(pem.into());
        self
    }

    /// Sets the client certificate and its key, as PEM, for servers that require one (mTLS), in place of the
    /// URL's `?cert=` and `?key=`. For TLS URLs only: with any other URL, connecting fails.
    ///
    /// ```no_run
    /// # async fn example(certificate: Vec<u8>, key: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("rediss://locks.example:6380")
    ///     .client_certificate(certificate, key) // from a vault, for example
    ///     .connect()
    ///     .await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn client_certificate(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.access.own = Some((cert_pem.into(), key_pem.into()));
        self
    }

    /// Sets the prefix of all keys and channels, in place of the URL's `?prefix=`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.access.prefix = Some(prefix.into());
        self
    }

    /// Sets the label that other clients see while this client holds a lock. Default: `host/pid/program`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets how long one call to the store may take, including resends. Default: 2 s.
    pub fn call_timeout(mut self, within: Duration) -> Self {
        self.timings.call = within;
        self
    }

    /// Sets how long a waiter without a time limit tolerates a store that does not reply. Default: 30 s.
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.timings.outage = limit;
        self
    }

    /// Sets the lease of locks without a lease of their own. Default: 30 s. It is renewed after every third
    /// of it, and bounds how long a lock outlives its process.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.timings.watchdog = lease;
        self
    }

    /// Sets how long this client's session lives without a heartbeat. Default: 10 s; at least 1 s. Four
    /// heartbeats are sent in that time.
    ///
    /// Everything that the client holds or waits for lives with its session. If a process dies, its locks are
    /// released when its session ends, however long their leases are. The same holds for a process that
    /// cannot reach the store for that long, or is suspended. So this setting trades how soon a crash is
    /// detected against how long an outage of the store is tolerated; a Redis fail-over takes some seconds.
    /// The client counts from before each heartbeat was sent, and considers its locks valid no longer than
    /// that, with a margin for clock drift.
    ///
    /// If the store itself knows which processes live (`sqlite:`), a death is detected at once, and no
    /// session lapses.
    pub fn session(mut self, alive: Duration) -> Self {
        self.timings.session = Some(alive);
        self
    }

    /// Uses no session: this client's holds end with their leases only. An outage of the store is tolerated
    /// as long as the leases last, and the lock of a dead process is not free before its lease ends.
    pub fn without_session(mut self) -> Self {
        self.timings.session = None;
        self
    }

    /// Adds a label to this client's session, beside its label, host, process and program: a zone or a
    /// release, say. All of them together have at most 4 KiB.
    pub fn session_label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.session_labels.insert(name.into(), value.into());
        self
    }

    /// Sets the prefix of the [owners](Client::owner) that this client creates, in place of a random UUID: a
    /// pod name, say, so that operators can tell what holds a [`ReentrantMutex`]. At most 235 bytes, and no
    /// control characters.
    ///
    /// No two clients may use the same id at the same time, on any host: their owners could be equal, and
    /// would then enter each other's locks.
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.instance = Some(id.into());
        self
    }

    /// Replaces the machine's clock, randomness and threads, for a simulated environment. With an [existing
    /// store](Client::with_store), no tokio runtime is needed then.
    pub fn environment(mut self, environment: impl Environment) -> Self {
        self.environment = Some(Arc::new(environment));
        self
    }

    /// Connects, diagnoses each server of the store from its own settings and state, and disconnects. No key
    /// is written. A server with [findings](crate::store::Finding) is diagnosed even if the URL has
    /// `?strict=1`. All servers of a store are diagnosed. The result is empty for `memory:` and `sqlite:`,
    /// which have no server and no settings that could endanger locks.
    ///
    /// Fails if the store cannot be reached, rejects the user, or is too old.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    ///
    /// for found in Client::builder("memory:").diagnose().await? {
    ///     println!("{}: {} findings", found.node, found.findings.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(mut self) -> Result<Vec<Diagnosis>, ConnectError> {
        self.check_surroundings()?;
        self.access.lenient = true;
        let within = self.timings.call;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => {
                let environment = self.environment.unwrap_or_else(|| Arc::new(System));
                open(&url, self.access, within, &environment).await?
            }
        };
        Ok(store.diagnose(within).await?)
    }

    /// Fails if no call could succeed in this context.
    fn check_surroundings(&self) -> Result<(), ConnectError> {
        let brings_its_own = self.environment.is_some() && matches!(self.target, Target::Store(_));
        if !brings_its_own && tokio::runtime::Handle::try_current().is_err() {
            let text = "there is no tokio runtime here: connect inside one";
            return Err(ConnectError::Setting(text.into()));
        }
        if self.timings.call.is_zero() {
            return Err(ConnectError::Setting("the call timeout must not be zero".into()));
        }
        Ok(())
    }

    /// Connects to the store.
    ///
    /// Fails like [`Client::connect`], if a setting is invalid, and outside of a tokio runtime where one is
    /// needed.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.check_surroundings()?;
        if let Err(error) = Lease::For(self.timings.watchdog).check() {
            return Err(ConnectError::Setting(format!("the watchdog lease: {error}")));
        }
        if self.timings.session.is_some_and(|alive| alive < SHORTEST_SESSION) {
            let text =
                "a session must live for at least 1 s: a shorter one would end at any brief network delay";
            return Err(ConnectError::Setting(text.into()));
        }
        let environment = self.environment.unwrap_or_else(|| Arc::new(System));
        let owners = owners(self.instance, &environment)?;
        let about = about(self.label, self.session_labels, &*environment)?;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => open(&url, self.access, self.timings.call, &environment).await?,
        };
        if let Some(most) = store.capabilities().max_lease.filter(|most| self.timings.watchdog > *most) {
            let lease = self.timings.watchdog;
            let error = leasehold_core::LeaseError::TooLongForStore { lease, max: most };
            return Err(ConnectError::Setting(format!("the watchdog lease: {error}")));
        }
        let engine = Engine::start(store, environment, about, self.timings).await;
        let engine = engine.map_err(|error| match error {
            StartError::Session(fault) => ConnectError::Store(fault),
            StartError::Keeper(error) => ConnectError::Keeper(Arc::new(error)),
        })?;
        Ok(Client { engine, owners: Arc::new(owners) })
    }
}

/// Parses a lock name.
pub(crate) fn named<N>(name: N) -> Result<LockName, LockError>
where
    N: TryInto<LockName>,
    N::Error: Into<NameError>,
{
    name.try_into().map_err(|error| LockError::Name(error.into()))
}

/// Fails if the number is out of range.
fn counted(what: &'static str, given: u32, most: u32) -> Result<(), LockError> {
    if (1..=most).contains(&given) { Ok(()) } else { Err(LockError::Count { what, given, most }) }
}

/// Opens the store of a URL.
async fn open(
    url: &str,
    access: Access,
    within: Duration,
    environment: &Arc<dyn Environment>,
) -> Result<Arc<dyn Store>, ConnectError> {
    #[cfg(feature = "redis")]
    use crate::store::{RedisConfig, RedisStore};
    #[cfg(feature = "redis")]
    let settled = |config: RedisConfig| {
        Ok::<_, ConnectError>(
            access.to(config)?.connect_timeout(within).with_shared_environment(Arc::clone(environment)),
        )
    };
    #[cfg(not(feature = "redis"))]
    let _ = (within, environment);
    match StoreUrl::parse(url)?.into_config() {
        StoreConfig::Memory(name) => {
            access.none_for("memory:")?;
            Ok(Arc::new(MemoryStore::named(&name)))
        }
        StoreConfig::Sqlite(path) => {
            access.none_for("sqlite:")?;
            open_sqlite(&path).await
        }
        #[cfg(feature = "redis")]
        StoreConfig::Redis(config) => Ok(Arc::new(RedisStore::connect(settled(*config)?).await?)),
        #[cfg(feature = "redis")]
        StoreConfig::Shards(shards) => {
            let shards = shards.into_iter().map(settled).collect::<Result<Vec<_>, _>>()?;
            Ok(Arc::new(RedisStore::connect_shards(shards).await?))
        }
        #[cfg(feature = "redis")]
        StoreConfig::Quorum(quorum) => {
            Ok(Arc::new(RedisStore::connect_quorum(quorum.try_map(settled)?).await?))
        }
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Result<Arc<dyn Store>, ConnectError> {
    Ok(Arc::new(crate::store::SqliteStore::open(path).await?))
}

#[cfg(not(feature = "sqlite"))]
#[allow(clippy::unused_async, reason = "matches the signature of the build that has the store")]
async fn open_sqlite(_path: &str) -> Result<Arc<dyn Store>, ConnectError> {
    Err(ConnectError::Url("this build has no SQLite store: enable the feature `sqlite`".into()))
}

/// The factory of this client's owners.
fn owners(instance: Option<String>, environment: &Arc<dyn Environment>) -> Result<Owners, ConnectError> {
    Owners::new(instance, Arc::clone(environment)).ok_or_else(|| {
        let most = Owners::MAX_INSTANCE;
        let text = format!("an instance id has 1 to {most} bytes and no control characters, unlike this one");
        ConnectError::Setting(text)
    })
}

/// The metadata of this client's session, as far as it is known.
fn about(
    label: Option<String>,
    labels: BTreeMap<String, String>,
    environment: &dyn Environment,
) -> Result<SessionMetadata, ConnectError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_deref().and_then(std::path::Path::file_name).map(|name| name.to_string_lossy());
    let (pid, program) = (std::process::id(), program.unwrap_or_default().into_owned());
    let label = match label {
        Some(label) => Label::new(label).map_err(|error| ConnectError::Setting(error.to_string()))?,
        None => own_label(&format!("{host}/{pid}/{program}")),
    };
    let started = environment.system_time().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let about = SessionMetadata {
        label,
        host,
        pid,
        program,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        labels,
    };
    let len = about.to_json().len();
    if len > SessionMetadata::MAX_LEN {
        let text = format!(
            "the session's labels have {len} bytes, but at most {} are allowed",
            SessionMetadata::MAX_LEN
        );
        return Err(ConnectError::Setting(text));
    }
    Ok(about)
}

/// `host/pid/program`, shortened to a valid label.
fn own_label(text: &str) -> Label {
    let mut clean = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if clean.len() + c.len_utf8() > Label::MAX_LEN {
            break;
        }
        clean.push(c);
    }
    Label::new(clean).unwrap_or_else(|_| unlabelled())
}

fn unlabelled() -> Label {
    Label::new("").expect("an empty label is a label")
}
