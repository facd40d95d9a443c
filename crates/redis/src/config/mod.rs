//! [`RedisConfig`]: the location of a Redis store, and the settings of its connections.
//!
//! [`url`] parses URLs, [`tls`] performs handshakes, [`acl`] lists permissions, [`version`] checks versions, and
//! [`quorum`] configures several servers.

pub(crate) mod acl;
pub(crate) mod address;
pub(crate) mod certificates;
pub(crate) mod connector;
pub(crate) mod credentials;
pub(crate) mod quorum;
pub(crate) mod tls;
pub(crate) mod url;
pub(crate) mod version;

use super::config::address::{Address, Login, Protocol};
use super::config::certificates::{Certificates, Pem};
use super::config::connector::Connector;
use super::config::credentials::Provider;
use super::location::{SentinelGroup, ServerLocation};
use super::reported_findings::ReportedFindings;
use super::trials::{Confirmations, TriedServers};
use leasehold_core::{KeyError, KeySpace};
use leasehold_store::{CredentialsProvider, Environment, Finding, FindingCode, Severity, System};
use redis::{ConnectionInfo, RedisResult};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Half of a session's time by default: a provider that once does not answer costs no session.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(5);

/// Address and connection settings of a Redis or Valkey server.
///
/// Parse a URL, then set secrets and other values that should not be part of a URL:
///
/// ```
/// use leasehold::store::RedisConfig;
///
/// # let secret = String::from("from a file");
/// let config: RedisConfig = "rediss://locks.example:6380/1?prefix=app:".parse()?;
/// let config = config.username("locks").password(secret);
/// assert_eq!(config.address(), "locks.example:6380");
/// assert!(!format!("{config:?}").contains("from a file"));
/// # Ok::<(), leasehold::store::UrlError>(())
/// ```
///
/// | URL | Meaning |
/// |---|---|
/// | `redis://[user[:password]@]host[:port][/db]` | plain TCP |
/// | `rediss://…` | TLS with certificate verification; never falls back to plain text |
/// | `redis+unix:///path` | Unix socket |
/// | `redis+sentinel://[user[:password]@]host[:port],…/name[/db]` | the current primary of the group `name`, which these Sentinels report; `rediss+sentinel://` uses TLS for the Sentinels and for the server |
/// | `redis+cluster://[user[:password]@]host[:port],…` | a cluster, discovered through these nodes; `rediss+cluster://` uses TLS for all nodes |
/// | `?prefix=` | prefix of all keys and channels |
/// | `?durable=1` | a hold counts once the append-only file has it: [`durable`](Self::durable) |
/// | `?replicas=` | number of replicas that must acknowledge a hold: [`replicas`](Self::replicas) |
/// | `?user=`, `?password=`, `?db=` | the same as in front of and behind the host; needed for sockets |
/// | `?ca=`, `?cert=`, `?key=` | with TLS, PEM files: the authority that signed the server's certificate, in place of the public ones; the client's certificate and its key, if the server requires one. The files are read for each connection; if they cannot be used at that moment, their last usable content is |
/// | `?sentinel_user=`, `?sentinel_password=` | credentials for the Sentinels; user and password are those of the server |
/// | `?protocol=resp2` | use RESP2, for proxies and services without RESP3: [`resp2`](RedisConfig::resp2) |
/// | `?tracking=1` | learn at once if another client removes a held lock: [`client_tracking`](RedisConfig::client_tracking) |
/// | `?probe=skip` | use a server untried: [`skip_trials`](RedisConfig::skip_trials) |
/// | `?accept=` | codes of findings that the user has accepted, with commas between them: [`accept`](Self::accept) |
/// | `?strict=1` | refuse a server with unsafe [findings](leasehold_store::Finding): [`strict`](RedisConfig::strict) |
///
/// Percent-encode characters that have a meaning in a URL.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent of one another")]
pub struct RedisConfig {
    location: ServerLocation,
    login: Login,
    /// Set if it gives the credentials in place of `login`, and how long one answer may take.
    provider: Option<Provider>,
    provider_timeout: Duration,
    db: u32,
    protocol: Protocol,
    /// Number of replicas that must acknowledge a hold before it counts.
    replicas: u32,
    /// Whether a hold counts only once the append-only file has it, synced.
    durable: bool,
    /// Whether a connection is made only to a server that can say what is on its disk.
    checks_disk: bool,
    keys: KeySpace,
    connect_timeout: Duration,
    certificates: Certificates,
    /// Set for a node of a quorum: minimum uptime before the node grants locks.
    min_uptime: Option<Duration>,
    /// Whether to learn of changes to the keys of held locks at once.
    tracking: bool,
    /// Whether to refuse a server with unsafe findings.
    strict: bool,
    /// Findings that the user has accepted.
    accepted: BTreeSet<FindingCode>,
    /// Whether to use a server whatever its product is, and without trying it.
    skips_trials: bool,
    /// Whether to use a server whatever its findings are, to diagnose it.
    diagnoses: bool,
    /// The servers that were tried, by any connection made from this configuration.
    tried: Arc<TriedServers>,
    /// Findings already logged, by any connection made from this configuration, the keeper's included.
    reported: Arc<ReportedFindings>,
    /// Set if the user supplies the streams.
    connector: Option<Connector>,
    /// Set to open each stream through a relay on this port: see [`through_relay`](Self::through_relay).
    relay: Option<u16>,
    /// Clock and randomness of the connections.
    environment: Arc<dyn Environment>,
}

impl RedisConfig {
    pub(crate) fn at(location: ServerLocation) -> Self {
        Self {
            location,
            login: Login::default(),
            provider: None,
            provider_timeout: CREDENTIALS_TIMEOUT,
            db: 0,
            protocol: Protocol::Resp3,
            replicas: 0,
            durable: false,
            checks_disk: false,
            keys: KeySpace::default(),
            connect_timeout: CONNECT_TIMEOUT,
            certificates: Certificates::default(),
            min_uptime: None,
            tracking: false,
            strict: false,
            accepted: BTreeSet::new(),
            skips_trials: false,
            diagnoses: false,
            tried: Arc::default(),
            reported: Arc::default(),
            connector: None,
            relay: None,
            environment: Arc::new(System),
        }
    }

    /// Sets the user to authenticate as. Without a password, the client authenticates with an empty one: a user that
    /// the server does not know is an error, and never falls back to the default user.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.login.username = Some(username.into());
        self
    }

    /// Sets the password. Without a user, it is that of the default user.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// Asks a provider for the credentials of each connection to the server, in place of one password for all: for
    /// passwords that change. Clones of this configuration share it.
    ///
    /// The provider is asked before each connection is opened, reconnections and the keeper's connection included. With
    /// RESP2, one answer serves for two connections. Sentinels are not asked about: they get the credentials of the URL
    /// (`?sentinel_user=`, `?sentinel_password=`). If the provider names no user, it is the one set here or in the URL. A
    /// password together with a provider is an error on connecting.
    ///
    /// A provider that fails, panics or is late fails the attempt, with a transient
    /// [`CredentialsFault`](leasehold_store::CredentialsFault). So does a server that rejects what the provider gave:
    /// [`RedisStore::connect`](crate::RedisStore::connect) asks again until [`connect_timeout`](Self::connect_timeout) is
    /// over, and a reconnection asks again with each attempt. An open connection stays as it is when the password changes.
    ///
    /// ```
    /// use leasehold::store::{Credentials, RedisConfig};
    /// use std::io;
    ///
    /// # async fn token() -> io::Result<String> { Ok(String::from("from a vault")) }
    /// let config = RedisConfig::from_url("rediss://locks.example")?
    ///     .credentials(|| async { Ok::<_, io::Error>(Credentials::new(token().await?).with_user("locks")) });
    /// # let _ = config;
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    #[must_use]
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.provider = Some(Provider::new(provider));
        self
    }

    /// Limits the time of one answer of the [provider of credentials](Self::credentials). Default: 5 s. It does not count
    /// as time of the connection attempt.
    ///
    /// While the client has no connection, it sends no heartbeats: keep this below the time that a session lives without
    /// them, 10 s by default.
    #[must_use]
    pub const fn credentials_timeout(mut self, within: Duration) -> Self {
        self.provider_timeout = within;
        self
    }

    /// Sets the number of the database. Default: 0.
    #[must_use]
    pub const fn db(mut self, db: u32) -> Self {
        self.db = db;
        self
    }

    /// Sets how many replicas must acknowledge a hold before an acquire succeeds. Default: none. If too few
    /// acknowledge it in time, the acquire fails with
    /// [`FaultKind::Unconfirmed`](leasehold_store::FaultKind::Unconfirmed), and the lock is released again. Renewals and
    /// heartbeats count in the same way: what too few replicas have lengthens no hold.
    ///
    /// Each acquire, and each batch of renewals or heartbeats, then takes one more round trip, plus the time until the
    /// replicas acknowledge. This narrows the window in which a fail-over loses a hold, but does not close it: a replica that
    /// has not acknowledged may be promoted. See `WAIT` in the Redis documentation.
    #[must_use]
    pub const fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Has a hold count only once it is in the server's append-only file, and that is synced to the disk. Same as `?durable=1` in
    /// a URL. Default: off. Then a server that crashes and restarts may have forgotten the last second of its holds
    /// (`appendfsync everysec`), and grants them again while the first holders rely on them.
    ///
    /// If it is not synced in time, the acquire fails with [`FaultKind::Unsynced`](leasehold_store::FaultKind::Unsynced), and the
    /// lock is released again. Renewals and heartbeats count in the same way.
    ///
    /// Each acquire, and each batch of renewals or heartbeats, then takes one more round trip, plus the time until the
    /// next sync: with `appendfsync always` that of the disk, with `everysec` up to 1.3 s.
    ///
    /// It needs a server with `appendonly yes`: Redis 8 that is no cluster; or, with `appendfsync always`, Redis 7.2, Valkey 7.2 or newer, which
    /// with `everysec` answer too early. Others are refused when a connection is made. What an operator changes later is not
    /// seen. It does not survive the loss of the disk, nor the promotion of a replica that lacks the hold: for that see
    /// [`replicas`](Self::replicas), with which it can be combined. See `WAITAOF` in the Redis documentation.
    #[must_use]
    pub const fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Uses RESP2 in place of RESP3, for proxies and services that support nothing newer. Same as `?protocol=resp2`
    /// in a URL.
    ///
    /// Messages then need a connection of their own, so each client opens twice as many connections. Nothing else
    /// changes. Cluster nodes always use RESP3, because sharded messages need it.
    ///
    /// ```
    /// use leasehold::store::RedisConfig;
    ///
    /// let config = RedisConfig::from_url("redis://behind-a-proxy.example")?.resp2();
    /// # let _ = config;
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    #[must_use]
    pub const fn resp2(mut self) -> Self {
        self.protocol = Protocol::Resp2;
        self
    }

    /// Uses RESP3, the default.
    pub(crate) const fn resp3(mut self) -> Self {
        self.protocol = Protocol::Resp3;
        self
    }

    /// Learns at once if another client deletes or overwrites the key of a held lock, if it expires, or if the server is
    /// flushed. Same as `?tracking=1` in a URL. Otherwise the holder learns of it at its next renewal.
    ///
    /// Uses `CLIENT TRACKING` of the server. A message of the server is taken as a hint to renew at once, and only the reply
    /// to that counts. Each renewal costs the server about a third as much again. Locks that are plain strings are watched, a
    /// [Mutex](leasehold_core::Kind::Mutex) and an [Election](leasehold_core::Kind::Election), each from 0.1 s after it was
    /// acquired, in a cluster from a second after; a flush is noticed for all kinds. Clients that wait for such a lock, held by
    /// a client of another library, learn at once when it is released.
    ///
    /// If the server refuses, all is as without this setting, and that is logged once. So it is with RESP2, on a connection of
    /// the user's, and over a quorum.
    ///
    /// ```
    /// use leasehold::store::RedisConfig;
    ///
    /// let config = RedisConfig::from_url("redis://locks.example")?.client_tracking();
    /// # let _ = config;
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    #[must_use]
    pub const fn client_tracking(mut self) -> Self {
        self.tracking = true;
        self
    }

    /// Learns of changes to the keys of held locks with their renewals, the default.
    pub(crate) const fn without_client_tracking(mut self) -> Self {
        self.tracking = false;
        self
    }

    /// Sets the prefix of all keys and channels. Fails if the prefix is longer than [`KeySpace::MAX_PREFIX`] bytes,
    /// or contains braces or control characters.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, KeyError> {
        self.keys = KeySpace::new(prefix)?;
        Ok(self)
    }

    /// Limits the time of one connection attempt, handshake included, without the time that a
    /// [provider of credentials](Self::credentials) takes. Default: 2 s. A call never exceeds its own deadline, whatever
    /// this value is.
    #[must_use]
    pub const fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets the certificate of the authority that signed the server's certificate, as PEM, in place of the public
    /// authorities. The text may contain several. Same as `?ca=`, without a file.
    ///
    /// Connecting fails if the text is no PEM certificate, or if the URL does not use TLS.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.change(|certificates| certificates.roots = Some(Pem::text(pem)));
        self
    }

    /// Refuses a server whose settings or version can break the guarantees of locks, in place of a warning in the
    /// log: any [`Finding`](leasehold_store::Finding) that is more severe than a notice. Same as `?strict=1` in a URL.
    ///
    /// The check runs each time a connection is made, reconnections included. A server that has become unsafe
    /// meanwhile is refused from then on, and the holds on it end with their leases: an unavailable lock is better
    /// than one that can vanish. A read-only replica is still waited for, as without this setting. If the user may
    /// not run `INFO`, nothing is known about the server, and it is not refused.
    ///
    /// ```no_run
    /// use leasehold::store::{FaultKind, RedisConfig, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = RedisConfig::from_url("redis://locks.example")?.strict();
    /// match RedisStore::connect(config).await {
    ///     Ok(store) => drop(store),
    ///     Err(fault) => match &fault.kind {
    ///         FaultKind::Unsafe(findings) => findings.iter().for_each(|finding| eprintln!("{finding}")),
    ///         _ => return Err(fault.into()),
    ///     },
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Accepts findings of these codes: they refuse no server, also with [`strict`](Self::strict), and are not logged as
    /// warnings. Same as `?accept=` in a URL; codes add up. Findings that
    /// [cannot be accepted](FindingCode::is_acceptable) stay as they are.
    ///
    /// ```
    /// use leasehold::store::{FindingCode, RedisConfig};
    ///
    /// // The Lua of Debian's 7.0.15 is mended under the same number.
    /// let config = RedisConfig::from_url("redis://locks.example")?.strict().accept([FindingCode::LuaVulnerabilities]);
    /// assert_eq!(config.redacted_url(), "redis://locks.example?accept=lua_vulnerabilities&strict=1");
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    #[must_use]
    pub fn accept(mut self, codes: impl IntoIterator<Item = FindingCode>) -> Self {
        self.accepted.extend(codes.into_iter().filter(|code| code.is_acceptable()));
        self
    }

    /// Uses a server whatever its findings are, and tries nothing when it connects: to diagnose the server.
    #[must_use]
    pub const fn for_diagnosis(mut self) -> Self {
        self.diagnoses = true;
        self
    }

    /// Uses a server untried, whatever its product is. Same as `?probe=skip` in a URL.
    ///
    /// Otherwise what locks need is tried when a connection is made, once for each run of a server, in one more round
    /// trip and on keys that no lock has. A server that fails a trial which exclusion needs is refused with
    /// [`FaultKind::Unsafe`](leasehold_store::FaultKind::Unsafe), and so is a product that is known not to exclude. What the
    /// user may not try is not held against the server. Skip this where every round trip at the start counts, or for a
    /// product that is set up to exclude and cannot say so.
    #[must_use]
    pub const fn skip_trials(mut self) -> Self {
        self.skips_trials = true;
        self
    }

    /// Uses a server that has warnings, also if the URL has `strict=1`. One whose findings are critical is refused all the same.
    #[must_use]
    pub const fn lenient(mut self) -> Self {
        self.strict = false;
        self
    }

    /// Sets the client's certificate chain and its private key, both as PEM, for servers that require one (mTLS). The
    /// key must not have a passphrase. Same as `?cert=` and `?key=`, without files. Sentinels receive the
    /// certificate, too.
    ///
    /// Connecting fails if a text is not valid PEM, if the key does not belong to the certificate, or if the URL does
    /// not use TLS. No error and no `Debug` output shows any part of the key.
    ///
    /// ```
    /// use leasehold::store::RedisConfig;
    ///
    /// # let (certificate, key) = (String::from("from a vault"), String::from("a secret from a vault"));
    /// let config: RedisConfig = "rediss://locks.example:6380".parse()?;
    /// let config = config.client_certificate(certificate, key);
    /// assert!(!format!("{config:?}").contains("from a vault"));
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    #[must_use]
    pub fn client_certificate(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.change(|certificates| {
            certificates.own = Some(Pem::text(cert_pem));
            certificates.key = Some(Pem::text(key_pem));
        });
        self
    }

    /// Changes the certificates. Returns `None` if the connection does not use TLS.
    pub(crate) fn with_certificates(mut self, change: impl FnOnce(&mut Certificates)) -> Option<Self> {
        let by_tls = match &self.location {
            ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => address.is_tls(),
            ServerLocation::Sentinel(group) => group.is_tls(),
            ServerLocation::Cluster(seeds) => seeds.is_tls(),
        };
        by_tls.then(|| {
            self.certificates.change(change);
            self
        })
    }

    /// Opens the streams to the server in place of the client library: for a tunnel, a proxy, or a simulated network.
    /// The function receives the [`address`](Self::address), and is called once for each connection attempt, the
    /// keeper's connection included, within [`connect_timeout`](Self::connect_timeout).
    ///
    /// The stream is used as it is. If the path needs TLS, the connector must provide it: a `rediss://` URL with a
    /// connector is refused on connecting, so that no secret travels in plain text.
    ///
    /// ```no_run
    /// use leasehold::{Client, store::{RedisConfig, RedisStore}};
    /// use tokio::net::UnixStream;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config: RedisConfig = "redis://locks.internal".parse()?;
    /// let config = config.connector(|_address| UnixStream::connect("/run/tunnel-to-locks.sock"));
    /// let client = Client::with_store(RedisStore::connect(config).await?).connect().await?;
    /// # let _ = client; Ok(()) }
    /// ```
    #[must_use]
    pub fn connector<F, R, S>(mut self, open: F) -> Self
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.connector = Some(Connector::new(open));
        self
    }

    /// Opens each stream through a relay on a port of 127.0.0.1, for `leasehold verify`, which injects faults there. The relay gets one line with the
    /// target first, `tcp HOST PORT` or `unix PATH`, and then passes bytes on: TLS is between the client and the server. This
    /// includes the servers that a reply names, as Sentinels and clusters do. Not for use by others: it may change.
    #[doc(hidden)]
    #[must_use]
    pub const fn through_relay(mut self, port: u16) -> Self {
        self.relay = Some(port);
        self
    }

    /// The prefix of all keys. Not for use by others: it may change.
    #[doc(hidden)]
    pub fn key_prefix(&self) -> &str {
        self.keys.prefix()
    }

    /// Replaces the machine's clock and randomness for the connections, for simulations.
    /// `ClientBuilder::environment` sets those of the client, and also these where it opens
    /// a URL.
    #[must_use]
    pub fn environment(self, environment: impl Environment) -> Self {
        self.with_shared_environment(Arc::new(environment))
    }

    /// Same as [`environment`](Self::environment), for an environment that is shared.
    #[must_use]
    pub fn with_shared_environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Returns `host:port`, or the path of the socket: the name of the server in messages. For Sentinels: the name of
    /// the primary and their addresses. For a cluster: the nodes that the URL names. Contains no user and no
    /// password.
    pub fn address(&self) -> String {
        match &self.location {
            ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => address.to_string(),
            ServerLocation::Sentinel(group) => group.to_string(),
            ServerLocation::Cluster(seeds) => seeds.to_string(),
        }
    }

    /// Returns the same settings for one node of the cluster.
    pub(crate) fn for_cluster_node(&self, address: &Address) -> Self {
        // Confirmations are requested separately.
        let location = ServerLocation::ClusterNode(address.clone());
        Self { location, replicas: 0, durable: false, ..self.clone() }
    }

    pub(crate) fn node(&self) -> Arc<str> {
        self.address().into()
    }

    pub(crate) const fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// Limit of one connection attempt.
    pub(crate) const fn attempt_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) const fn database(&self) -> u32 {
        self.db
    }

    /// Protocol for the server, and for the Sentinels that watch it.
    pub(crate) const fn protocol(&self) -> Protocol {
        match self.location {
            ServerLocation::Fixed(_) | ServerLocation::Sentinel(_) => self.protocol,
            ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => Protocol::Resp3,
        }
    }

    pub(crate) const fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Makes the server a node of a quorum, which grants locks once it has been up for `min_uptime`.
    pub(crate) const fn for_quorum(mut self, min_uptime: Duration) -> Self {
        self.min_uptime = Some(min_uptime);
        self
    }

    /// Minimum uptime before the server grants locks, if it is a node of a quorum.
    pub(crate) const fn min_uptime(&self) -> Option<Duration> {
        self.min_uptime
    }

    /// Whether to learn of changes to the keys of held locks at once.
    pub(crate) const fn is_tracking(&self) -> bool {
        self.tracking
    }

    pub(crate) const fn are_trials_skipped(&self) -> bool {
        self.skips_trials || self.diagnoses
    }

    /// Whether the URL of this configuration says so.
    pub(crate) const fn has_probe_skip(&self) -> bool {
        self.skips_trials
    }

    pub(crate) fn tried(&self) -> &TriedServers {
        &self.tried
    }

    /// Whether a server is refused for this finding.
    pub(crate) fn refuses(&self, finding: &Finding) -> bool {
        let from = if self.strict { Severity::Warning } else { Severity::Critical };
        !self.diagnoses && !finding.accepted && finding.severity >= from
    }

    /// Marks the findings that the user has accepted.
    pub(crate) fn mark_accepted(&self, findings: &mut [Finding]) {
        for finding in findings {
            finding.accepted = self.accepted.contains(&finding.kind.code());
        }
    }

    pub(crate) const fn accepted(&self) -> &BTreeSet<FindingCode> {
        &self.accepted
    }

    pub(crate) const fn is_strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn reported(&self) -> &ReportedFindings {
        &self.reported
    }

    pub(crate) const fn custom_connector(&self) -> Option<&Connector> {
        self.connector.as_ref()
    }

    pub(crate) const fn relay(&self) -> Option<u16> {
        self.relay
    }

    pub(crate) const fn shared_environment(&self) -> &Arc<dyn Environment> {
        &self.environment
    }

    pub(crate) const fn wanted_replicas(&self) -> u32 {
        self.replicas
    }

    /// The same for connections that carry confirmations alone. The others are not refused, so that a lock can be released
    /// whatever an operator has changed.
    pub(crate) fn for_confirmations(&self, by_disk: bool) -> Self {
        Self { checks_disk: by_disk, ..self.clone() }
    }

    pub(crate) const fn checks_disk(&self) -> bool {
        self.checks_disk
    }

    /// What confirms the holds.
    pub(crate) const fn confirmations(&self) -> Confirmations {
        Confirmations { by_replicas: self.replicas > 0, by_disk: self.durable }
    }

    pub(crate) const fn is_durable(&self) -> bool {
        self.durable
    }

    pub(crate) const fn login(&self) -> &Login {
        &self.login
    }

    pub(crate) const fn provider(&self) -> Option<&Provider> {
        self.provider.as_ref()
    }

    /// How long one answer of the provider may take.
    pub(crate) const fn provider_timeout(&self) -> Duration {
        self.provider_timeout
    }

    /// Whether a password is set for the server itself, even an empty one.
    pub const fn has_server_password(&self) -> bool {
        self.login.password.is_some()
    }

    /// Whether a password is set for the server or its Sentinels, even an empty one.
    pub fn has_password(&self) -> bool {
        let of_sentinels = match &self.location {
            ServerLocation::Sentinel(group) => group.login.password.is_some(),
            ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => false,
        };
        self.login.password.is_some() || of_sentinels
    }

    pub(crate) const fn location(&self) -> &ServerLocation {
        &self.location
    }

    /// Changes the Sentinel settings. Returns `None` without Sentinels.
    pub(crate) fn with_sentinels(mut self, change: impl FnOnce(&mut SentinelGroup)) -> Option<Self> {
        match &mut self.location {
            ServerLocation::Sentinel(group) => change(group),
            ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => {
                return None;
            }
        }
        Some(self)
    }

    /// Connection parameters of the server at `address` with a login, for the client library.
    pub(crate) fn info_for(&self, address: &Address, login: &Login) -> RedisResult<ConnectionInfo> {
        address.connection_info(login.settings(self.protocol()).set_db(self.db.into()))
    }

    /// Connection parameters of a Sentinel, for the client library.
    pub(crate) fn sentinel_info(
        &self,
        group: &SentinelGroup,
        address: &Address,
    ) -> RedisResult<ConnectionInfo> {
        address.connection_info(group.login.settings(self.protocol()))
    }

    #[cfg(test)]
    pub(crate) fn summary_for_test(&self) -> String {
        let kind = match &self.location {
            ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => match address {
                Address::Tcp { tls: true, .. } => "tls".to_owned(),
                Address::Tcp { .. } => "tcp".to_owned(),
                Address::Unix(_) => "unix".to_owned(),
            },
            ServerLocation::Sentinel(group) => group.summary_for_test(),
            ServerLocation::Cluster(seeds) if seeds.is_tls() => "tls".to_owned(),
            ServerLocation::Cluster(_) => "tcp".to_owned(),
        };
        let address = self.address().replace(['[', ']'], "");
        let Login { username, password } = &self.login;
        let user = username.as_ref().map(|user| format!(" user {user}")).unwrap_or_default();
        let password = password.as_ref().map(|password| format!(" password {password}"));
        let password = password.unwrap_or_default();
        let Certificates { roots, own, key, .. } = &self.certificates;
        let files = [("ca", roots), ("cert", own), ("key", key)].map(|(what, pem)| match pem {
            Some(Pem::File(path)) => format!(" {what} {}", path.display()),
            _ => String::new(),
        });
        let replicas =
            if self.replicas == 0 { String::new() } else { format!(" {} replicas", self.replicas) };
        let strict = if self.strict { " strict" } else { "" };
        let accepted: Vec<_> = self.accepted.iter().map(|code| format!(" accept {code}")).collect();
        let accepted = accepted.concat();
        let resp2 = if self.protocol == Protocol::Resp2 { " resp2" } else { "" };
        let (db, prefix, files) = (self.db, self.keys.prefix(), files.concat());
        let durable = if self.durable { " durable" } else { "" };
        format!(
            "{kind} {address} db {db} prefix `{prefix}`{user}{password}{files}{replicas}{durable}{resp2}{strict}{accepted}"
        )
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("location", &self.location)
            .field("login", &self.login)
            .field("provider", &self.provider.is_some())
            .field("db", &self.db)
            .field("protocol", &self.protocol)
            .field("replicas", &self.replicas)
            .field("durable", &self.durable)
            .field("prefix", &self.keys.prefix())
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates)
            .field("min_uptime", &self.min_uptime)
            .field("tracking", &self.tracking)
            .field("strict", &self.strict)
            .field("accepted", &self.accepted)
            .field("connector", &self.connector.is_some())
            .finish_non_exhaustive()
    }
}
