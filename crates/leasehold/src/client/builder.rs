//! The builder of a client: its settings, and the order in which connecting checks and uses them.

use crate::client::Client;
use crate::client::open::{UrlOverrides, open};
use crate::client::session_metadata::session_metadata;
use crate::engine::activity::EnclosingHold;
use crate::engine::{Engine, StartError, Timings};
use crate::error::ConnectError;
use crate::guard::owner::OwnerFactory;
use crate::store::{CredentialsProvider, Diagnosis, FindingCode, SessionTracking, Store};
#[cfg(feature = "metrics")]
use crate::telemetry::MetricsObserver;
use crate::telemetry::{Observer, Telemetry, TelemetrySettings};
use leasehold_core::{FencingToken, Lease, LockName, RetryPolicy};
use leasehold_store::{Environment, System};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The pauses between attempts to connect.
const CONNECT_AGAIN: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(100), Duration::from_secs(5));

/// The shortest lifetime of a session without a heartbeat.
const MIN_SESSION_TTL: Duration = Duration::from_secs(1);

/// Configures and connects a [`Client`]: see [`Client::builder`]. A clone can try again after a store could not be
/// reached.
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
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`, or `connect_blocking`"]
pub struct ClientBuilder {
    target: Target,
    overrides: UrlOverrides,
    label: Option<String>,
    session_labels: BTreeMap<String, String>,
    history: u16,
    instance: Option<String>,
    timings: Timings,
    /// The holds of other processes under which this one runs.
    enclosing: Vec<EnclosingHold>,
    /// Set to replace the machine's clock, randomness and threads.
    environment: Option<Arc<dyn Environment>>,
    telemetry: TelemetrySettings,
    /// Set unless the client does not report to the `metrics` facade.
    #[cfg(feature = "metrics")]
    metrics: bool,
}

/// What the client connects to.
#[derive(Clone)]
pub(super) enum Target {
    Url(String),
    Store(Arc<dyn Store>),
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

impl ClientBuilder {
    pub(super) fn new(target: Target) -> Self {
        let timings = Timings {
            call: Duration::from_secs(2),
            outage: Duration::from_secs(30),
            watchdog: Duration::from_secs(30),
            session: Some(Client::DEFAULT_SESSION_TTL),
        };
        let (overrides, session_labels) = (UrlOverrides::default(), BTreeMap::new());
        Self {
            target,
            overrides,
            label: None,
            session_labels,
            history: 0,
            instance: None,
            timings,
            enclosing: Vec::new(),
            environment: None,
            telemetry: TelemetrySettings { statistics: true, ..TelemetrySettings::default() },
            #[cfg(feature = "metrics")]
            metrics: true,
        }
    }

    /// Sets the user to log in as, in place of the URL's.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.overrides.username = Some(username.into());
        self
    }

    /// Sets the password to log in with, in place of the URL's.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.overrides.password = Some(password.into());
        self
    }

    /// Asks a provider for the credentials of each connection, in place of one password for all: for passwords that
    /// change, such as the tokens of a cloud, which are valid for minutes. For URLs of servers only: with `memory:`,
    /// `sqlite:` or an [existing store](Client::with_store), or together with a password, connecting fails.
    ///
    /// The client opens a connection for its calls and one for its renewals to each server, and opens them again when
    /// they break: then the provider is asked again. It may fail, or answer late: the attempt fails, and the next one,
    /// after a pause, asks again. The same goes for a server that rejects what the provider gave, which is tried again
    /// while [`connect`](Self::connect) may take. Until then, holds are limited by their leases and by the session, as in
    /// any outage. The user is that of the provider's answer, or else that of the builder or the URL. Sentinels get the
    /// credentials of the URL only.
    ///
    /// The provider runs on a thread of its own for each request, with the tokio runtime of the connection at hand: the
    /// caller's, or the keeper's.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use leasehold::store::Credentials;
    /// use std::io;
    ///
    /// # async fn sign_token() -> io::Result<String> { Ok(String::new()) }
    /// let client = Client::builder("rediss://locks.example:6380")
    ///     .credentials(|| async { Ok::<_, io::Error>(Credentials::new(sign_token().await?).with_user("locks")) })
    ///     .connect()
    ///     .await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.overrides.credentials = Some(Arc::new(provider));
        self
    }

    /// Sets how long one answer of the [provider of credentials](Self::credentials) may take. Default: 5 s. It does not
    /// count as time of a call that makes the connection, but a call never exceeds its own limit.
    ///
    /// While it waits, the client sends no heartbeats over the connection that is missing: keep this below the
    /// [time of a session](Self::session_ttl).
    pub fn credentials_timeout(mut self, within: Duration) -> Self {
        self.overrides.credentials_timeout = Some(within);
        self
    }

    /// Names a hold of another process that lasts for as long as this process works: it is a command under a lock, started by
    /// the holder, say. Only [`Client::wait_graph`] uses this, to see that the holder waits for what this process waits
    /// for. Can be called several times, and the holds around that holder are known by its own client.
    ///
    /// The program `leasehold run` gives its command the name and the token in `LEASEHOLD_NAME` and `LEASEHOLD_FENCE`, a line
    /// for each lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, FencingToken};
    ///
    /// let mut builder = Client::builder("memory:");
    /// if let (Ok(name), Ok(fence)) = (std::env::var("LEASEHOLD_NAME"), std::env::var("LEASEHOLD_FENCE")) {
    ///     builder = builder.enclosing_hold(&name.parse()?, FencingToken::new(fence.parse()?));
    /// }
    /// let client = builder.connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn enclosing_hold(mut self, lock: &LockName, fence: FencingToken) -> Self {
        self.enclosing.push(EnclosingHold { lock: lock.as_str().to_owned(), fence: fence.as_u64() });
        self
    }

    /// Sets the certificate, as PEM, of the authority that signed the server's certificate, in place of the
    /// public authorities and the URL's `?ca=`. For TLS URLs only: with any other URL, connecting fails.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.overrides.root_certificate = Some(pem.into());
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
        self.overrides.client_certificate = Some((cert_pem.into(), key_pem.into()));
        self
    }

    /// Sets the prefix of all keys and channels, in place of the URL's `?prefix=`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.overrides.prefix = Some(prefix.into());
        self
    }

    /// Accepts findings of these codes, beside those of the URL's `?accept=`: they refuse no server, also with `?strict=1`,
    /// and are not logged as warnings. Without effect on `memory:`, `sqlite:` and an [existing
    /// store](Client::with_store), and on codes that [cannot be accepted](FindingCode::is_acceptable).
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, store::FindingCode};
    ///
    /// // The Lua of Debian's 7.0.15 is mended under the same number.
    /// let url = "redis://locks.example?strict=1";
    /// let client = Client::builder(url).accept([FindingCode::LuaVulnerabilities]).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn accept(mut self, codes: impl IntoIterator<Item = FindingCode>) -> Self {
        self.overrides.accepted.extend(codes);
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

    /// Sets the lease of holds of locks for which no lease is set. Default: 30 s. The client renews these
    /// holds whenever a third of the lease has passed. If the process dies, its locks are free when this lease
    /// ends at the latest.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.timings.watchdog = lease;
        self
    }

    /// Sets how long this client's session lives without a heartbeat. Default: 10 s; at least 1 s. Four
    /// heartbeats are sent in that time.
    ///
    /// All holds and queue entries of the client end with its session. If the process dies, is suspended, or
    /// cannot reach the store for this long, the client loses all its locks, however long their leases are. A
    /// shorter time frees the locks of a dead process sooner. A longer time lets the client keep its locks
    /// during a longer outage of the store; a Redis fail-over takes some seconds.
    ///
    /// The client counts this time from before it sent a heartbeat, less a margin for clock drift. So it
    /// treats its locks as lost before the store does.
    ///
    /// If the store itself knows which processes live (`sqlite:`), a death is detected at once, and no
    /// session lapses.
    pub fn session_ttl(mut self, alive: Duration) -> Self {
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

    /// Has the store keep a history of each lock of this client, its last `entries` holds, 100 at most: like
    /// [`Mutex::history`](crate::Mutex::history) for all locks, also those of kinds without that setting. 0, the default,
    /// keeps none, and costs nothing.
    pub fn history(mut self, entries: u16) -> Self {
        self.history = entries;
        self
    }

    /// Sets the prefix of the [owners](Client::new_owner) that this client creates, in place of a random UUID: a
    /// pod name, say, so that operators can tell what holds a [`ReentrantMutex`](crate::ReentrantMutex). At
    /// most 235 bytes, and no control characters.
    ///
    /// No two clients may use the same id at the same time, on any host: their owners could be equal, and
    /// would then enter each other's locks.
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.instance = Some(id.into());
        self
    }

    /// Has an observer called with what happens to this client's locks. May be called several times: each observer receives
    /// each event.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use leasehold::telemetry::{Observer, Renewed};
    /// use std::time::Duration;
    ///
    /// struct Slack;
    ///
    /// impl Observer for Slack {
    ///     fn renewed(&self, event: &Renewed<'_>) {
    ///         if event.slack < Duration::from_secs(1) {
    ///             eprintln!("{}: renewed in the last second", event.lock.class);
    ///         }
    ///     }
    /// }
    ///
    /// let client = Client::builder("memory:").observer(Slack).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.telemetry.observers.push(Arc::new(observer));
        self
    }

    /// Logs a warning, once for each acquire, when a lock has been waited for this long. Off by default: how long a wait may
    /// be depends on the work that is done under the lock.
    ///
    /// The warning comes while the acquire waits, and names the holder if it is known.
    pub fn slow_wait(mut self, limit: Duration) -> Self {
        self.telemetry.slow_wait = Some(limit);
        self
    }

    /// Logs a warning, once for each hold, when a guard has held its lock this long. Off by default.
    ///
    /// The warning comes with the first renewal after that, which is every third of the lease, or when the hold ends.
    pub fn slow_hold(mut self, limit: Duration) -> Self {
        self.telemetry.slow_hold = Some(limit);
        self
    }

    /// Sets whether this client counts its holds, waits and losses by [class](crate::Mutex::class), and merges that into the
    /// statistics of the store: [`Client::lock_statistics`]. Default: it does.
    ///
    /// A client that uses locks sends one small request a minute for it, and another one when it is shut down. The store keeps
    /// counts of times, of 200 classes at most, for 7 days; it keeps no names of locks, unless they have nothing that looks like
    /// an id. Nothing is counted by a client [without a session](Self::without_session), and for a
    /// [quorum](crate::store::QuorumStore), which keeps no statistics.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("memory:").statistics(false).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub fn statistics(mut self, counts: bool) -> Self {
        self.telemetry.statistics = counts;
        self
    }

    /// Sets whether this client reports to the recorder of the [`metrics`](https://docs.rs/metrics) facade that is installed.
    /// Default with the feature `metrics`: it does, like other libraries that use this facade. Without a recorder, nothing
    /// is recorded.
    ///
    /// Install the recorder before the client connects: each metric is registered once, with the recorder of that time.
    ///
    /// The labels are the kind of the lock and its [class](crate::Mutex::class), never its name. `docs/how-to/observe.md` in the
    /// repository lists the metrics.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::builder("memory:").metrics(false).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, records: bool) -> Self {
        self.metrics = records;
        self
    }

    /// Opens the connections to servers through a relay on a port of 127.0.0.1, for `leasehold verify`. Not for use by others: it may change.
    #[doc(hidden)]
    pub fn through_relay(mut self, port: u16) -> Self {
        self.overrides.relay = Some(port);
        self
    }

    /// Replaces the machine's clock, randomness and threads, for a simulated environment. With an [existing
    /// store](Client::with_store), no tokio runtime is needed then.
    pub fn environment(mut self, environment: impl Environment) -> Self {
        self.environment = Some(Arc::new(environment));
        self
    }

    /// Connects, diagnoses each server of the store from its own settings and state, and disconnects. No lock
    /// is changed: what locks need is tried on keys of its own, which are removed, or expire within 20 s. A server with
    /// [findings](crate::store::Finding) is diagnosed even if the URL has `?strict=1`. All servers of a store are diagnosed. The result is empty for `memory:` and `sqlite:`,
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
    /// for diagnosis in Client::builder("memory:").diagnose().await? {
    ///     println!("{}: {} findings", diagnosis.node, diagnosis.findings.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(mut self) -> Result<Vec<Diagnosis>, ConnectError> {
        self.check_environment()?;
        self.overrides.diagnoses = true;
        let within = self.timings.call;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => {
                let environment = self.environment.unwrap_or_else(|| Arc::new(System));
                open(&url, self.overrides, within, &environment, false).await?
            }
        };
        Ok(store.diagnose(within).await?)
    }

    /// Fails if no call could succeed in this context.
    fn check_environment(&self) -> Result<(), ConnectError> {
        let is_self_contained = self.environment.is_some() && matches!(self.target, Target::Store(_));
        if !is_self_contained && tokio::runtime::Handle::try_current().is_err() {
            let text = "there is no tokio runtime here: connect inside one";
            return Err(ConnectError::Setting(text.into()));
        }
        if self.overrides.credentials.is_some() && matches!(self.target, Target::Store(_)) {
            let text =
                "a provider of credentials is for the URL of a server: a store has a connection of its own";
            return Err(ConnectError::Setting(text.into()));
        }
        if self.timings.call.is_zero() {
            return Err(ConnectError::Setting("the call timeout must not be zero".into()));
        }
        if !self.environment.as_deref().unwrap_or(&System).timers_follow_clock() {
            return Err(ConnectError::PausedClock);
        }
        Ok(())
    }

    /// Connects to the store.
    ///
    /// Fails like [`Client::connect`], if a setting is invalid, and outside of a tokio runtime where one is
    /// needed; with [`ConnectError::PausedClock`] while tokio's clock is paused.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.start(false).await
    }

    /// Connects to the store, and tries again for up to `limit` while it cannot be reached: for a service that starts
    /// together with its lock server. An attempt that begins before the limit may end after it, by up to the call timeout.
    ///
    /// Fails like [`connect`](Self::connect), with the last fault if the store could not be reached in time.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::builder("memory:").connect_within(Duration::from_secs(60)).await?;
    /// # let _ = client; Ok(()) }
    /// ```
    pub async fn connect_within(self, limit: Duration) -> Result<Client, ConnectError> {
        let environment = self.environment.clone().unwrap_or_else(|| Arc::new(System));
        let deadline = environment.now() + limit;
        let mut tries = 0;
        loop {
            let error = match self.clone().connect().await {
                Err(error) if error.is_transient() && environment.now() < deadline => error,
                connected => return connected,
            };
            tries += 1;
            let pause = CONNECT_AGAIN.backoff_after(tries, environment.random()).unwrap_or_default();
            tracing::debug!(%error, ?pause, "cannot connect; trying again");
            // The last attempt begins at the limit.
            environment.sleep_until(deadline.min(environment.now() + pause)).await;
        }
    }

    /// Creates a client that connects when it is first used, so that a service starts while its lock server is down. Until
    /// the server can be reached, each call waits for it as long as the call may take, and fails with the reason then.
    /// [`Client::health`] says whether it is reached.
    ///
    /// A file of `sqlite:` is opened at once.
    ///
    /// Fails if the URL or a setting is invalid, and outside of a tokio runtime where one is needed. A wrong password, or
    /// a server that is too old, is the fault of each call.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// // No server listens there.
    /// let client = Client::builder("redis://127.0.0.1:1").call_timeout(Duration::from_millis(50)).connect_lazy().await?;
    /// let error = leasehold::Error::from(client.mutex("orders/42")?.try_acquire().await.unwrap_err());
    /// assert!(error.is_transient());
    /// # Ok(()) }
    /// ```
    pub async fn connect_lazy(self) -> Result<Client, ConnectError> {
        self.start(true).await
    }

    async fn start(self, lazily: bool) -> Result<Client, ConnectError> {
        self.check_environment()?;
        if let Err(error) = Lease::For(self.timings.watchdog).check() {
            return Err(ConnectError::Setting(format!("the watchdog lease: {error}")));
        }
        if self.timings.session.is_some_and(|alive| alive < MIN_SESSION_TTL) {
            let text =
                "a session must live for at least 1 s: a shorter one would end at any brief network delay";
            return Err(ConnectError::Setting(text.into()));
        }
        let environment = self.environment.unwrap_or_else(|| Arc::new(System));
        let owners = owners(self.instance, &environment)?;
        let metadata = session_metadata(self.label, self.session_labels, &*environment)?;
        let store = match self.target {
            Target::Store(store) => store,
            Target::Url(url) => open(&url, self.overrides, self.timings.call, &environment, lazily).await?,
        };
        if let Some(most) = store.capabilities().max_lease.filter(|most| self.timings.watchdog > *most) {
            let lease = self.timings.watchdog;
            let error = leasehold_core::LeaseError::TooLongForStore { lease, max: most };
            return Err(ConnectError::Setting(format!("the watchdog lease: {error}")));
        }
        // A store that tracks sessions by itself is there already.
        let lazily = lazily && store.capabilities().sessions != SessionTracking::ByStore;
        let mut telemetry = self.telemetry;
        telemetry.statistics &=
            self.timings.session.is_some() && store.capabilities().sessions != SessionTracking::Never;
        #[cfg(feature = "metrics")]
        if self.metrics {
            telemetry.observers.push(Arc::new(MetricsObserver::new()));
        }
        let telemetry = Arc::new(Telemetry::new(telemetry, environment.clone()));
        let (timings, history) = (self.timings, self.history);
        let engine = Engine::start(store, environment, metadata, timings, history, telemetry, lazily).await;
        let engine = engine.map_err(|error| match error {
            StartError::Session(fault) => ConnectError::Store(fault),
            StartError::Keeper(error) => ConnectError::Keeper(Arc::new(error)),
        })?;
        if !self.enclosing.is_empty() {
            engine.keeper.set_enclosing(self.enclosing);
        }
        Ok(Client { engine, owners: Arc::new(owners) })
    }
}

/// The factory of this client's owners.
fn owners(
    instance: Option<String>,
    environment: &Arc<dyn Environment>,
) -> Result<OwnerFactory, ConnectError> {
    OwnerFactory::new(instance, Arc::clone(environment)).ok_or_else(|| {
        let most = OwnerFactory::MAX_INSTANCE;
        let text = format!("an instance id has 1 to {most} bytes and no control characters, unlike this one");
        ConnectError::Setting(text)
    })
}
