//! A client: an identity, a store, and the keeper of what it holds.

use crate::barrier::Barrier;
use crate::census::{self, LockInfo};
use crate::election::Election;
use crate::engine::{Engine, ShutdownError, StartError, Timings};
use crate::error::{ConnectError, InspectError, LockError};
use crate::latch::Latch;
use crate::multi::MultiMutex;
use crate::mutex::Mutex;
use crate::owner::{Owner, Owners};
use crate::reentrant::ReentrantMutex;
use crate::request::Request;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::session_info::{self, SessionInfo};
use crate::store::{Examination, MemoryStore, Store};
use crate::store::{StoreConfig, StoreUrl};
use leasehold_core::{About, Label, Lease, Lock, LockName, Moment, NameError, SessionId};
use leasehold_store::{System, World};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The shortest life of a session without a beat.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// A client of a store: makes locks, and keeps what they hold.
///
/// It needs a tokio runtime with IO and timers (`enable_all`). Its connection lives in the runtime in which
/// it was connected: while that one is blocked, or nobody drives it, calls from other runtimes wait.
/// (Renewals do not: the keeper has a thread and a connection of its own.) So connect in the runtime that
/// lives as long as the program, and give each single-threaded runtime a client of its own.
///
/// Cheap to clone; clones are the same client. When the last clone and the last lock and guard of it are
/// gone, so are its connections, and its keeper ends once it has given back what was dropped.
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

/// How a [`Client`] is made: [`Client::builder`].
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
    /// Set if it is not the machine's.
    world: Option<Arc<dyn World>>,
}

enum Target {
    Url(String),
    Store(Arc<dyn Store>),
}

/// What lets a client into a server, and where, beside what the URL says.
#[derive(Default)]
struct Access {
    username: Option<String>,
    password: Option<String>,
    prefix: Option<String>,
    /// Set if a server is to be looked at whatever its hazards are.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has hazards"))]
    lenient: bool,
    /// The authority that is trusted in place of the public ones.
    root: Option<Vec<u8>>,
    /// A certificate and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Access {
    /// Fails if anything is set: this kind of store would not heed it.
    fn none_for(&self, store: &str) -> Result<(), ConnectError> {
        let Self { username, password, prefix, root, own, lenient: _ } = self;
        if username.is_some() || password.is_some() || prefix.is_some() {
            let text = format!("`{store}` has no user, password or key prefix: these are for Redis");
            return Err(ConnectError::Setting(text));
        }
        if root.is_some() || own.is_some() {
            let text = format!("`{store}` has no certificates: these are for Redis by TLS");
            return Err(ConnectError::Setting(text));
        }
        Ok(())
    }

    /// The same server, with what lets us in.
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
    /// Shows neither the URL nor what lets a client in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("label", &self.label)
            .field("timings", &self.timings)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// How long a session lives without a beat, if nothing is set.
    pub(crate) const SESSION: Duration = Duration::from_secs(10);

    /// Connects to the store of a URL:
    ///
    /// - `redis://[user[:password]@]host[:port][/db][?prefix=app:]`, `rediss://…` (TLS),
    ///   `redis+unix:///path/to/socket[?db=1]`
    /// - `redis+sentinel://[user[:password]@]host[:port],…/name[/db]`: the primary of that name, wherever these Sentinels
    ///   say that it is; `rediss+sentinel://…` (TLS)
    /// - `redis+cluster://[user[:password]@]host[:port],…`: a cluster, of which these nodes know the others;
    ///   `rediss+cluster://…` (TLS)
    /// - `redis+shard://[user[:password]@]host[:port],…[/db]`: independent servers, of which each name
    ///   [has one](crate::store::Shards); `rediss+shard://…` (TLS)
    /// - `redlock://[user[:password]@]host[:port],host[:port],…[/db][?min_uptime=60s]`: a majority of these servers, which are
    ///   independent of one another, see [`QuorumConfig`](crate::store::QuorumConfig); `redlocks://…` (TLS)
    /// - `sqlite:PATH`: the processes of one machine
    /// - `memory:`: this process
    ///
    /// What is wrong with a server's settings, or its version, is logged as a warning; with `?strict=1` such a server is
    /// refused. [`ClientBuilder::examine`] tells all that can be found out.
    ///
    /// Fails if the URL is none of these, if the store cannot be reached or does not let the user in, or
    /// if it is too old.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// A client of the store of a URL, with settings.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(Target::Url(url.into()))
    }

    /// A client of a store that is there already.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, store::MemoryStore};
    ///
    /// let client = Client::of_store(MemoryStore::new()).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn of_store(store: impl Store) -> ClientBuilder {
        ClientBuilder::new(Target::Store(Arc::new(store)))
    }

    /// The lock of that name with one holder at a time.
    ///
    /// Fails if the name is empty, too long or has control characters, or if the store has no keys for
    /// it. Nothing is sent.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Mutex::new(self.engine.clone(), &self.checked(Lock::mutex(named(name)?))?))
    }

    /// The lock of that name which its owner may acquire again and again: see [`ReentrantMutex`].
    ///
    /// Fails as [`mutex`](Self::mutex) does. Nothing is sent.
    pub fn reentrant_mutex<N>(&self, name: N) -> Result<ReentrantMutex, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::reentrant(named(name)?))?;
        Ok(ReentrantMutex::new(self.engine.clone(), self.owners.clone(), &lock))
    }

    /// The election of that name: see [`Election`].
    ///
    /// Fails as [`mutex`](Self::mutex) does. Nothing is sent.
    pub fn election<N>(&self, name: N) -> Result<Election, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        Ok(Election::new(self.engine.clone(), &self.checked(Lock::election(named(name)?))?))
    }

    /// The semaphore of that name, with so many permits where the store knows no other number: see [`Semaphore`].
    ///
    /// Fails as [`mutex`](Self::mutex) does, and for no permit at all. Nothing is sent.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        counted("permits", permits, Semaphore::MOST)?;
        Ok(Semaphore::new(self.engine.clone(), &self.checked(Lock::semaphore(named(name)?))?, permits))
    }

    /// The lock of that name which readers share and a writer has alone: see [`RwLock`].
    ///
    /// Fails as [`mutex`](Self::mutex) does. Nothing is sent.
    pub fn rwlock<N>(&self, name: N) -> Result<RwLock, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::rwlock(named(name)?))?;
        Ok(RwLock::new(self.engine.clone(), self.owners.clone(), &lock))
    }

    /// The latch of that name which opens when so many have arrived: see [`Latch`].
    ///
    /// Fails as [`mutex`](Self::mutex) does, and for no arrival at all. Nothing is sent.
    pub fn latch<N>(&self, name: N, arrivals: u32) -> Result<Latch, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        counted("arrivals", arrivals, u32::MAX)?;
        Ok(Latch::new(self.engine.clone(), &self.checked(Lock::latch(named(name)?))?, arrivals))
    }

    /// The barrier of that name at which so many wait for one another: see [`Barrier`].
    ///
    /// Fails as [`mutex`](Self::mutex) does, for nobody at all, and for more than [`Barrier::MOST`]. Nothing is sent.
    pub fn barrier<N>(&self, name: N, parties: u32) -> Result<Barrier, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        counted("parties", parties, Barrier::MOST)?;
        Ok(Barrier::new(self.engine.clone(), &self.checked(Lock::barrier(named(name)?))?, parties))
    }

    /// The lock, if the store has keys for it.
    pub(crate) fn checked(&self, lock: Lock) -> Result<Lock, LockError> {
        self.engine.store.check(&lock)?;
        Ok(lock)
    }

    /// An owner that nobody has been before: this client's instance id and a number. For one piece of work, which may be
    /// spread over tasks and processes: see [`Owner`].
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

    /// All of several locks, or none of them: those that [`mutex`](Self::mutex) gives by each of these names. A name that comes
    /// twice counts once.
    ///
    /// Fails as that does, if there is no name, and with [`LockError::TooManyNames`] if there are more than
    /// [`MultiMutex::MOST`]. Nothing is sent.
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

    /// Now, on the clock of [`Moment`], which goes on while the machine is suspended.
    pub fn now(&self) -> Moment {
        self.engine.world.now()
    }

    /// The id of this client's session: part of what it holds, and no secret. Another one follows if it
    /// [lapses](ClientBuilder::session). In a store of several servers it has one on each that it uses, and they are called
    /// so as long as none has lapsed.
    pub fn session(&self) -> SessionId {
        self.engine.sessions.id()
    }

    /// The sessions of the store, in no order: who is behind each, how long it is alive, and which locks it holds.
    ///
    /// A session tells of a lock with a beat, once it has held it for so long that it was extended: a second or so. What
    /// it told of may be over by now: [`locks`](Self::locks) looks. Dead sessions are there until the store forgets
    /// them. Clients [without a session](ClientBuilder::without_session) are not there.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses; a [quorum](crate::store::QuorumStore) keeps no
    /// sessions, and says so.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, InspectError> {
        session_info::sessions(&self.engine).await
    }

    /// The locks that sessions say they hold and that are held, by name, and who is behind each. Every one of them is
    /// looked at, in batches; no search goes through the store's keys.
    ///
    /// So it shows what is held for longer than a moment (see [`sessions`](Self::sessions)). It does not show what is
    /// held for less, by clients without a session, or by other libraries: ask about those
    /// [by name](crate::Mutex::inspect).
    ///
    /// Fails as [`sessions`](Self::sessions) does.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn locks(&self) -> Result<Vec<LockInfo>, InspectError> {
        census::locks(&self.engine).await
    }

    /// Waits until the keeper has given back what dropped guards held and has undone what dropped
    /// acquires may have left, and until a [quorum](crate::store::QuorumStore) has asked also those nodes for which nobody had to
    /// wait: for those 5 s at most, with a call timeout of 2 s. A program that ends without it leaves that to the leases.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn settle(&self) {
        self.engine.settle().await;
    }

    /// Gives everything back and leaves all queues, within a bound: for a program that is asked to end.
    ///
    /// No lock is acquired any more: acquires fail with [`AcquireError::Closed`](crate::AcquireError::Closed), also
    /// those that wait. All guards of this client and its clones are lost at once, with
    /// [`LostReason::ShutDown`](crate::LostReason::ShutDown), so stop what works under them first; only then is
    /// what they held released, in one batch where the store can. What dropped guards and acquires had left is given
    /// back as well. When this has returned nothing more is sent about any hold.
    ///
    /// Fails if that could not be done within `within`, since the store did not answer or refused: the error says
    /// which locks are left, and until when at the latest. Of two calls, of clones as well, each gets the same result,
    /// and the earlier of their ends counts.
    ///
    /// A [`release`](crate::Guard::release) that is on its way is done with the rest, and gives `Ok` unless that fails; one that
    /// begins later waits for the end of the shutdown, and gives
    /// [`ReleaseError::Lost`](crate::ReleaseError::Lost). Dropping a guard then does nothing.
    /// [`inspect`](crate::Mutex::inspect) works as before.
    ///
    /// Cancel safety: if the future is dropped once it was polled, the shutdown goes on in the background.
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
        Self { target, access, label: None, session_labels, instance: None, timings, world: None }
    }

    /// The user to log in as, in place of the URL's.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.access.username = Some(username.into());
        self
    }

    /// The password to log in with, in place of the URL's: for secrets that come from elsewhere.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.access.password = Some(password.into());
        self
    }

    /// The certificate, as PEM, of the authority that signed the server's, in place of the public ones and the URL's
    /// `?ca=`. For URLs of TLS alone: with another one, connecting fails.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.access.root = Some(pem.into());
        self
    }

    /// What the server is shown of us, where it wants to see something (mTLS): a certificate and its key, as PEM, in
    /// place of the URL's `?cert=` and `?key=`. For URLs of TLS alone: with another one, connecting fails.
    ///
    /// ```no_run
    /// # async fn example(certificate: Vec<u8>, key: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("rediss://locks.example:6380")
    ///     .client_certificate(certificate, key) // from a vault, say
    ///     .connect()
    ///     .await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn client_certificate(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.access.own = Some((cert_pem.into(), key_pem.into()));
        self
    }

    /// What all keys and channels begin with, in place of the URL's `?prefix=`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.access.prefix = Some(prefix.into());
        self
    }

    /// What others see of this client where it holds a lock; `host/pid/program` if nothing is set.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// How long any call to the store may take, its resends included: 2 s if nothing is set.
    pub fn call_timeout(mut self, within: Duration) -> Self {
        self.timings.call = within;
        self
    }

    /// How long a waiter that has no limit of its own rides out a store that does not answer: 30 s if
    /// nothing is set.
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.timings.outage = limit;
        self
    }

    /// The lease of locks for which none is given: 30 s if nothing is set. It is renewed every third of
    /// it, and is how long a lock outlives its process at most.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.timings.watchdog = lease;
        self
    }

    /// How long this client's session lives without a beat: 10 s if nothing is set, 1 s at least. It beats four times as
    /// often.
    ///
    /// All that the client holds, or waits for, lives with its session. A process that dies loses its locks when its
    /// session ends, however long their leases are; and so does one that cannot reach the store for that long, or
    /// stands still. So this is how soon a crash is noticed, against how long an outage of the store is ridden out: a
    /// fail-over of Redis takes some seconds. The client counts from before each beat was sent, and believes in its
    /// locks no longer than that, with a margin for the drift of clocks.
    ///
    /// Where the store knows by itself which processes live (`sqlite:`), a death is noticed at once, and nothing
    /// lapses.
    pub fn session(mut self, alive: Duration) -> Self {
        self.timings.session = Some(alive);
        self
    }

    /// Without a session: what this client holds ends with its lease, and by nothing else. An outage of the store is
    /// ridden out as long as the leases last, and a lock whose process has died is not free before its lease ends.
    pub fn without_session(mut self) -> Self {
        self.timings.session = None;
        self
    }

    /// Something that people should see of this client beside its label, its host, its process and its program: a zone,
    /// say, or a release. All of it has 4 KiB at most.
    pub fn session_label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.session_labels.insert(name.into(), value.into());
        self
    }

    /// What the [owners](Client::owner) that this client makes begin with, in place of a random UUID: the name of a pod,
    /// say, so that people know who has a [`ReentrantMutex`]. At most 235 bytes, and no control characters.
    ///
    /// No two clients may have the same at the same time, on any host: their owners could be the same, and would then
    /// enter one another's locks.
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.instance = Some(id.into());
        self
    }

    /// Another source of time, chance and threads than the machine's, for a simulated world. Where the store is one
    /// that is [there already](Client::of_store), no tokio runtime is needed then.
    pub fn world(mut self, world: impl World) -> Self {
        self.world = Some(Arc::new(world));
        self
    }

    /// Connects, looks over what the store tells of itself, and leaves again: no key is written. A
    /// server with [hazards](crate::store::Hazard) is looked at also where the URL says `?strict=1`. Of a store of several servers
    /// all are looked at; there is nothing where there is no server: `memory:` and `sqlite:` have no settings that could fail their locks.
    ///
    /// Fails if the store cannot be reached, does not let the user in, or is too old.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    ///
    /// for found in Client::builder("memory:").examine().await? {
    ///     println!("{}: {} hazards", found.node, found.hazards.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn examine(mut self) -> Result<Vec<Examination>, ConnectError> {
        self.check_surroundings()?;
        self.access.lenient = true;
        let within = self.timings.call;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => {
                let world = self.world.unwrap_or_else(|| Arc::new(System));
                open(&url, self.access, within, &world).await?
            }
        };
        Ok(store.examine(within).await?)
    }

    /// Fails where no call could be made.
    fn check_surroundings(&self) -> Result<(), ConnectError> {
        let brings_its_own = self.world.is_some() && matches!(self.target, Target::Store(_));
        if !brings_its_own && tokio::runtime::Handle::try_current().is_err() {
            let text = "there is no tokio runtime here: connect inside of one";
            return Err(ConnectError::Setting(text.into()));
        }
        if self.timings.call.is_zero() {
            return Err(ConnectError::Setting("a call timeout of zero leaves no time for any call".into()));
        }
        Ok(())
    }

    /// Connects.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.check_surroundings()?;
        if let Err(error) = Lease::For(self.timings.watchdog).check() {
            return Err(ConnectError::Setting(format!("the watchdog's lease: {error}")));
        }
        if self.timings.session.is_some_and(|alive| alive < SHORTEST_SESSION) {
            let text =
                "a session lives for 1 s at least: shorter ones would end with any hiccup of the network";
            return Err(ConnectError::Setting(text.into()));
        }
        let world = self.world.unwrap_or_else(|| Arc::new(System));
        let owners = owners(self.instance, &world)?;
        let about = about(self.label, self.session_labels, &*world)?;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => open(&url, self.access, self.timings.call, &world).await?,
        };
        if let Some(most) = store.capabilities().longest_lease.filter(|most| self.timings.watchdog > *most) {
            let lease = self.timings.watchdog;
            let error = leasehold_core::LeaseError::LongerThanKept { lease, most };
            return Err(ConnectError::Setting(format!("the watchdog's lease: {error}")));
        }
        let engine = Engine::start(store, world, about, self.timings).await;
        let engine = engine.map_err(|error| match error {
            StartError::Session(fault) => ConnectError::Store(fault),
            StartError::Keeper(error) => ConnectError::Keeper(Arc::new(error)),
        })?;
        Ok(Client { engine, owners: Arc::new(owners) })
    }
}

/// The name of a lock.
pub(crate) fn named<N>(name: N) -> Result<LockName, LockError>
where
    N: TryInto<LockName>,
    N::Error: Into<NameError>,
{
    name.try_into().map_err(|error| LockError::Name(error.into()))
}

/// Refuses a number that there cannot be.
fn counted(what: &'static str, given: u32, most: u32) -> Result<(), LockError> {
    if (1..=most).contains(&given) { Ok(()) } else { Err(LockError::Count { what, given, most }) }
}

/// Opens the store of a URL.
async fn open(
    url: &str,
    access: Access,
    within: Duration,
    world: &Arc<dyn World>,
) -> Result<Arc<dyn Store>, ConnectError> {
    #[cfg(feature = "redis")]
    use crate::store::{RedisConfig, RedisStore};
    #[cfg(feature = "redis")]
    let settled = |config: RedisConfig| {
        Ok::<_, ConnectError>(access.to(config)?.connect_timeout(within).in_world(Arc::clone(world)))
    };
    #[cfg(not(feature = "redis"))]
    let _ = (within, world);
    match StoreUrl::parse(url)?.into_config() {
        StoreConfig::Memory(name) => {
            access.none_for("memory:")?;
            Ok(Arc::new(MemoryStore::of_process(&name)))
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
#[allow(clippy::unused_async, reason = "it stands for one that waits")]
async fn open_sqlite(_path: &str) -> Result<Arc<dyn Store>, ConnectError> {
    Err(ConnectError::Url("this build has no SQLite store: switch the feature `sqlite` on".into()))
}

/// The owners that this client makes.
fn owners(instance: Option<String>, world: &Arc<dyn World>) -> Result<Owners, ConnectError> {
    Owners::new(instance, Arc::clone(world)).ok_or_else(|| {
        let most = Owners::MAX_INSTANCE;
        let text =
            format!("an instance id has 1 to {most} bytes and no control characters, and this one has not");
        ConnectError::Setting(text)
    })
}

/// Who this client is, as far as that is known.
fn about(
    label: Option<String>,
    labels: BTreeMap<String, String>,
    world: &dyn World,
) -> Result<About, ConnectError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_deref().and_then(std::path::Path::file_name).map(|name| name.to_string_lossy());
    let (pid, program) = (std::process::id(), program.unwrap_or_default().into_owned());
    let label = match label {
        Some(label) => Label::new(label).map_err(|error| ConnectError::Setting(error.to_string()))?,
        None => own_label(&format!("{host}/{pid}/{program}")),
    };
    let started = world.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let about = About {
        label,
        host,
        pid,
        program,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        labels,
    };
    let len = about.to_json().len();
    if len > About::MAX_LEN {
        let text = format!(
            "what people should see of this client has {} bytes at most, and this has {len}",
            About::MAX_LEN
        );
        return Err(ConnectError::Setting(text));
    }
    Ok(about)
}

/// `host/pid/program`, as far as a label can be that.
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
