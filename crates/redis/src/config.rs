//! Where a Redis store is, and how it is reached.

use super::address::{Address, Login, Protocol};
use super::certificates::{Certificates, Pem};
use super::connector::Connector;
use super::site::{Errand, Group, Site};
use super::told::Told;
use leasehold_core::{KeyError, KeySpace};
use leasehold_store::{System, World};
use redis::{ConnectionInfo, RedisResult};
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a Redis or Valkey server is, and how it is reached.
///
/// From a URL, with settings put in afterwards where they should not stand in one:
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
/// | URL | |
/// |---|---|
/// | `redis://[user[:password]@]host[:port][/db]` | plain TCP |
/// | `rediss://…` | TLS, with the certificate checked; never falls back to plain text |
/// | `redis+unix:///path` | a Unix socket |
/// | `redis+sentinel://[user[:password]@]host[:port],…/name[/db]` | the primary of that name, as these Sentinels know it; `rediss+sentinel://` with TLS to all of them |
/// | `redis+cluster://[user[:password]@]host[:port],…` | a cluster, of which these nodes know the others; `rediss+cluster://` with TLS to all of them |
/// | `?prefix=` | what all keys and channels begin with |
/// | `?replicas=` | how many replicas have to have a hold before it counts: [`replicas`](Self::replicas) |
/// | `?user=`, `?password=`, `?db=` | the same as before the host, for sockets |
/// | `?ca=`, `?cert=`, `?key=` | with TLS, files of PEM: the authority that the server's certificate is signed by, in place of the public ones; our own certificate, and its key, where the server wants one. They are read for each connection |
/// | `?sentinel_user=`, `?sentinel_password=` | what the Sentinels want to know; user and password are the server's |
/// | `?protocol=resp2` | speaks RESP2, for proxies and services that know no RESP3: [`resp2`](RedisConfig::resp2) |
/// | `?strict=1` | refuses a server with [hazards](leasehold_store::Hazard): [`strict`](RedisConfig::strict) |
///
/// Characters that mean something in a URL are written as `%` and two hexadecimal digits.
#[derive(Clone)]
pub struct RedisConfig {
    site: Site,
    login: Login,
    db: u32,
    protocol: Protocol,
    /// How many replicas have to have a hold before it counts.
    replicas: u32,
    keys: KeySpace,
    connect_timeout: Duration,
    certificates: Certificates,
    /// Set if it is a node of a quorum: how long it has to be up before it gives a lock.
    min_uptime: Option<Duration>,
    /// Set if a server with hazards is refused.
    strict: bool,
    /// Which hazards have been told: by all connections that are made so, the keeper's included.
    told: Arc<Told>,
    /// Set if the user opens the streams.
    connector: Option<Connector>,
    /// Where the link's clock and its chance come from.
    world: Arc<dyn World>,
}

impl RedisConfig {
    pub(super) fn at(site: Site) -> Self {
        Self {
            site,
            login: Login::default(),
            db: 0,
            protocol: Protocol::Resp3,
            replicas: 0,
            keys: KeySpace::default(),
            connect_timeout: CONNECT_TIMEOUT,
            certificates: Certificates::default(),
            min_uptime: None,
            strict: false,
            told: Arc::default(),
            connector: None,
            world: Arc::new(System),
        }
    }

    /// The user to log in as. Without a password he is logged in with an empty one: a user whom the server does not
    /// know is an error, never the default user.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.login.username = Some(username.into());
        self
    }

    /// The password to log in with: the default user's, if no user is named.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// The number of the database; 0 if it is not set.
    #[must_use]
    pub const fn db(mut self, db: u32) -> Self {
        self.db = db;
        self
    }

    /// How many replicas have to have a hold before an acquire gives it; none if it is not set. An acquire that they do not
    /// confirm in time fails with [`FaultKind::Unconfirmed`](leasehold_store::FaultKind::Unconfirmed), and what it had is given
    /// back.
    ///
    /// Each acquire then waits for one round trip more, and for that of the replicas. It narrows what a fail-over can lose,
    /// and does not close it: a replica that has not confirmed may be the one that is promoted, and renewals are not waited
    /// for. See `WAIT` in the documentation of Redis.
    #[must_use]
    pub const fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Speaks RESP2 in place of RESP3: for proxies and services that know no other. So does `?protocol=resp2` in a URL.
    ///
    /// Messages then come on a connection of their own, so that each client has twice as many; all else is the same. With the
    /// nodes of a cluster RESP3 is spoken in any case: their sharded messages need it.
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

    /// Speaks RESP3, as it does if nothing is set.
    pub(super) const fn resp3(mut self) -> Self {
        self.protocol = Protocol::Resp3;
        self
    }

    /// What all keys and channels begin with. Fails for a prefix that is longer than
    /// [`KeySpace::MAX_PREFIX`] bytes, or has braces or control characters.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, KeyError> {
        self.keys = KeySpace::new(prefix)?;
        Ok(self)
    }

    /// How long one attempt to connect may take, greeting included; 2 s if it is not set. A call never takes longer
    /// than its own time, however long this is.
    #[must_use]
    pub const fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// The certificate, as PEM, of the authority that signed the server's, in place of the public ones; several, if
    /// there are more in it. The same as `?ca=`, without a file.
    ///
    /// A text that is none makes connecting fail, and so does a URL that is not one of TLS.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(Pem::text(pem));
        self
    }

    /// Refuses a server whose settings or version can make it fail locks, in place of a warning in the log: each
    /// [`Hazard`](leasehold_store::Hazard) that is more than a notice. So does `?strict=1` in a URL.
    ///
    /// It is looked at whenever a connection is made, also in place of one that broke. A server that got a hazard meanwhile
    /// serves nobody any more from then on, and what is held there ends with its lease: rather no lock than one that can
    /// vanish. A replica that takes no writes is waited for, as it is without this. A user that may not run INFO learns
    /// nothing, and so nothing is refused to him.
    ///
    /// ```no_run
    /// use leasehold::store::{FaultKind, RedisConfig, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = RedisConfig::from_url("redis://locks.example")?.strict();
    /// match RedisStore::connect(config).await {
    ///     Ok(store) => drop(store),
    ///     Err(fault) => match &fault.kind {
    ///         FaultKind::Hazardous(hazards) => hazards.iter().for_each(|hazard| eprintln!("{hazard}")),
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

    /// Tolerates hazards, whatever the URL says.
    #[must_use]
    pub const fn lenient(mut self) -> Self {
        self.strict = false;
        self
    }

    /// What we show the server of ourselves, where it wants to see something (mTLS): a certificate, with those that it
    /// is signed by, and its key without a passphrase, both as PEM. The same as `?cert=` and `?key=`, without files.
    /// Sentinels are shown it, too.
    ///
    /// Texts that are none, or do not belong together, make connecting fail, and so does a URL that is not one of TLS.
    /// Nothing of the key is shown by any error or `Debug`.
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
        self.certificates.own = Some(Pem::text(cert_pem));
        self.certificates.key = Some(Pem::text(key_pem));
        self
    }

    /// Changes the certificates, where the connection heeds any.
    pub(super) fn with_certificates(mut self, change: impl FnOnce(&mut Certificates)) -> Option<Self> {
        let by_tls = match &self.site {
            Site::At(address) | Site::Member(address, _) => address.is_tls(),
            Site::Named(group) => group.is_tls(),
            Site::Cluster(seeds) => seeds.is_tls(),
        };
        by_tls.then(|| {
            change(&mut self.certificates);
            self
        })
    }

    /// Opens the streams to the server in place of the client library: for a tunnel, a proxy, or a simulated
    /// network. It is given [`address`](Self::address) and called once for each attempt to connect, the keeper's
    /// connection included, within [`connect_timeout`](Self::connect_timeout).
    ///
    /// The stream is used as it comes. If the way needs TLS, the connector brings it; a `rediss://` URL with a
    /// connector is refused when it connects, so that nothing goes in plain text that should not.
    ///
    /// ```no_run
    /// use leasehold::{Client, store::{RedisConfig, RedisStore}};
    /// use tokio::net::UnixStream;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config: RedisConfig = "redis://locks.internal".parse()?;
    /// let config = config.connector(|_address| UnixStream::connect("/run/tunnel-to-locks.sock"));
    /// let client = Client::of_store(RedisStore::connect(config).await?).connect().await?;
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

    /// Another source of time and chance for the connection than the machine's, for a simulated world. The client's
    /// own is `ClientBuilder::world`, which sets this one, too, where it opens a URL.
    #[must_use]
    pub fn world(self, world: impl World) -> Self {
        self.in_world(Arc::new(world))
    }

    /// Like [`world`](Self::world), for one that is shared.
    #[must_use]
    pub fn in_world(mut self, world: Arc<dyn World>) -> Self {
        self.world = world;
        self
    }

    /// `host:port`, or the path of the socket: what messages name the server by. Of a primary that Sentinels know: its
    /// name and theirs; of a cluster, the nodes that were named. No user, no password.
    pub fn address(&self) -> String {
        match &self.site {
            Site::At(address) | Site::Member(address, _) => address.to_string(),
            Site::Named(group) => group.to_string(),
            Site::Cluster(seeds) => seeds.to_string(),
        }
    }

    /// The same settings for one node of the cluster.
    pub(super) fn of_member(&self, address: &Address, errand: Errand) -> Self {
        // What others have to confirm is asked elsewhere.
        Self { site: Site::Member(address.clone(), errand), replicas: 0, ..self.clone() }
    }

    pub(super) fn node(&self) -> Arc<str> {
        self.address().into()
    }

    pub(super) const fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// How long one attempt may take.
    pub(super) const fn patience(&self) -> Duration {
        self.connect_timeout
    }

    pub(super) const fn database(&self) -> u32 {
        self.db
    }

    /// What is spoken with the server, and with the Sentinels that know it.
    pub(super) const fn protocol(&self) -> Protocol {
        match self.site {
            Site::At(_) | Site::Named(_) => self.protocol,
            Site::Cluster(_) | Site::Member(..) => Protocol::Resp3,
        }
    }

    pub(super) const fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// It is a node of a quorum, and gives a lock once it has been up for so long.
    pub(super) const fn node_after(mut self, min_uptime: Duration) -> Self {
        self.min_uptime = Some(min_uptime);
        self
    }

    /// How long it has to be up before it gives a lock, if it is a node of a quorum.
    pub(super) const fn min_uptime(&self) -> Option<Duration> {
        self.min_uptime
    }

    pub(super) const fn is_strict(&self) -> bool {
        self.strict
    }

    pub(super) fn told(&self) -> &Told {
        &self.told
    }

    pub(super) const fn opener(&self) -> Option<&Connector> {
        self.connector.as_ref()
    }

    pub(super) const fn surroundings(&self) -> &Arc<dyn World> {
        &self.world
    }

    pub(super) const fn wanted_replicas(&self) -> u32 {
        self.replicas
    }

    pub(super) const fn login(&self) -> &Login {
        &self.login
    }

    /// Whether the server or its Sentinels have a password here, an empty one included: an empty one may replace another in
    /// the same URL.
    pub fn has_password(&self) -> bool {
        let of_sentinels = match &self.site {
            Site::Named(group) => group.login.password.is_some(),
            Site::At(_) | Site::Cluster(_) | Site::Member(..) => false,
        };
        self.login.password.is_some() || of_sentinels
    }

    pub(super) const fn site(&self) -> &Site {
        &self.site
    }

    /// Changes how the Sentinels are talked to, if there are any.
    pub(super) fn with_sentinels(mut self, change: impl FnOnce(&mut Group)) -> Option<Self> {
        match &mut self.site {
            Site::Named(group) => change(group),
            Site::At(_) | Site::Cluster(_) | Site::Member(..) => return None,
        }
        Some(self)
    }

    /// How the client library reaches the server at an address.
    pub(super) fn connection_info(&self, address: &Address) -> RedisResult<ConnectionInfo> {
        address.connection_info(self.login.settings(self.protocol()).set_db(self.db.into()))
    }

    /// How it reaches one that only says where the server is.
    pub(super) fn sentinel_info(&self, group: &Group, address: &Address) -> RedisResult<ConnectionInfo> {
        address.connection_info(group.login.settings(self.protocol()))
    }

    #[cfg(test)]
    pub(super) fn spelled_out(&self) -> String {
        let kind = match &self.site {
            Site::At(address) | Site::Member(address, _) => match address {
                Address::Tcp { tls: true, .. } => "tls".to_owned(),
                Address::Tcp { .. } => "tcp".to_owned(),
                Address::Unix(_) => "unix".to_owned(),
            },
            Site::Named(group) => group.spelled_out(),
            Site::Cluster(seeds) if seeds.is_tls() => "tls".to_owned(),
            Site::Cluster(_) => "tcp".to_owned(),
        };
        let address = self.address().replace(['[', ']'], "");
        let Login { username, password } = &self.login;
        let user = username.as_ref().map(|user| format!(" user {user}")).unwrap_or_default();
        let password = password.as_ref().map(|password| format!(" password {password}"));
        let password = password.unwrap_or_default();
        let Certificates { roots, own, key } = &self.certificates;
        let files = [("ca", roots), ("cert", own), ("key", key)].map(|(what, pem)| match pem {
            Some(Pem::File(path)) => format!(" {what} {}", path.display()),
            _ => String::new(),
        });
        let replicas =
            if self.replicas == 0 { String::new() } else { format!(" {} replicas", self.replicas) };
        let strict = if self.strict { " strict" } else { "" };
        let resp2 = if self.protocol == Protocol::Resp2 { " resp2" } else { "" };
        let (db, prefix, files) = (self.db, self.keys.prefix(), files.concat());
        format!("{kind} {address} db {db} prefix `{prefix}`{user}{password}{files}{replicas}{resp2}{strict}")
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("site", &self.site)
            .field("login", &self.login)
            .field("db", &self.db)
            .field("protocol", &self.protocol)
            .field("replicas", &self.replicas)
            .field("prefix", &self.keys.prefix())
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates)
            .field("min_uptime", &self.min_uptime)
            .field("strict", &self.strict)
            .field("connector", &self.connector.is_some())
            .finish_non_exhaustive()
    }
}
