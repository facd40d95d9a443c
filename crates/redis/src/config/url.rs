//! Parser for the URLs of Redis stores.
//!
//! No error shows a part of the URL that could be a password: with one forgotten `@` or `/`, the password stands
//! where the port should be.

use super::RedisConfig;
use super::address::{Address, Protocol};
use super::certificates::{Certificates, Pem};
use super::quorum::QuorumConfig;
use crate::location::{ClusterSeeds, SentinelGroup, ServerLocation};
use leasehold_core::KeyError;
use leasehold_store::QuorumError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const DEFAULT_PORT: u16 = 6379;
const SENTINELS_PORT: u16 = 26379;

/// Error for a text that is not a valid URL of a Redis store. It does not show the text, which may contain a
/// password.
///
/// ```
/// use leasehold::store::{RedisConfig, UrlError};
///
/// let error = RedisConfig::from_url("redis://:secret@db.example:port/").unwrap_err();
/// assert_eq!(error, UrlError::Port);
/// assert!(!error.to_string().contains("secret"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme is unknown.
    #[error(
        "the URL of a Redis store begins with `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `rediss+sentinel://`, `redis+cluster://` or `rediss+cluster://`, and that of several servers with `redis+shard://`, `rediss+shard://`, `redlock://` or `redlocks://`; this one does not"
    )]
    Scheme,
    /// The URL names several independent servers.
    #[error("this URL names several servers, not one: open it with `Client::connect` or `Shards`")]
    Shards,
    /// The host is missing.
    #[error("the URL names no host: write `redis://host:6379`, and `[…]` around an IPv6 address")]
    Host,
    /// The name of the primary is missing behind the Sentinels.
    #[error(
        "the URL names no primary behind the Sentinels: write `redis+sentinel://host,host,host/mymaster`"
    )]
    Primary,
    /// The port is not a number from 1 to 65535.
    #[error(
        "the text after the host's `:` is not a port from 1 to 65535; if it is part of a password, write `%40` for `@`, `%2F` for `/` and `%3F` for `?` in it"
    )]
    Port,
    /// The database is not a number.
    #[error("the database is a number, as in `redis://host/1` or `?db=1`")]
    Database,
    /// The URL selects a database of a cluster other than 0.
    #[error("a cluster has only one database: its URL ends with its nodes, `redis+cluster://host,host,host`")]
    ClusterDatabase,
    /// The number of replicas is not a number from 1 to 100.
    #[error("`replicas` is a number from 1 to 100, as in `?replicas=1`")]
    Replicas,
    /// The path of the socket is missing or relative.
    #[error("a socket's path is absolute: `redis+unix:///run/redis.sock`, three slashes")]
    SocketPath,
    /// The URL of a Unix socket contains something in front of the path.
    #[error("a Unix socket has no host: user and password follow the path, as in `?user=…&password=…`")]
    SocketHost,
    /// A `%` is not followed by two hexadecimal digits, or the result is not UTF-8.
    #[error("the {part} contains an invalid `%` sequence: write `%25` for a `%`")]
    Percent {
        /// Part of the URL.
        part: &'static str,
    },
    /// The setting does not exist.
    #[error(
        "unknown setting after the `?`: the settings are `prefix`, `replicas`, `user`, `password`, `db`, `protocol` and `strict`, with TLS `ca`, `cert` and `key`, and with Sentinels `sentinel_user` and `sentinel_password`"
    )]
    Setting,
    /// A certificate is given for a connection without TLS.
    #[error(
        "`ca`, `cert` and `key` are for `rediss://`, `rediss+sentinel://`, `rediss+cluster://` and `rediss+shard://`: without TLS no certificate is checked"
    )]
    NoTls,
    /// The client's certificate is given without its key, or the key without its certificate.
    #[error("`cert` and `key` go together: the files of the client's certificate and of its key")]
    KeyPair,
    /// The path of a certificate or a key is empty.
    #[error("the {part} is the path of a file")]
    File {
        /// Part of the URL.
        part: &'static str,
    },
    /// The protocol is not supported.
    #[error("`protocol` is resp2 or resp3, as in `?protocol=resp2`")]
    Protocol,
    /// RESP2 is requested for a cluster.
    #[error("a cluster requires RESP3: leave out `protocol`")]
    ClusterProtocol,
    /// The value of `strict` is neither 1 nor 0.
    #[error("`strict` is 1 or 0, as in `?strict=1`")]
    Strict,
    /// The minimum uptime of a node is not a duration.
    #[error(
        "the minimum uptime of a node is a duration, as in `?min_uptime=90s`: a number, and `ms`, `s`, `m` or `h`"
    )]
    MinUptime,
    /// The timeout of a node is not a duration.
    #[error(
        "the timeout of a node is a duration, as in `?node_timeout=20ms`: a number, and `ms`, `s`, `m` or `h`"
    )]
    NodeTimeout,
    /// The nodes do not form a quorum.
    #[error("these nodes do not form a quorum")]
    Quorum(#[from] QuorumError),
    /// The URL contains a fragment.
    #[error(
        "the URL of a store has no fragment: write `%23` for a `#` in a password; TLS verification cannot be relaxed"
    )]
    Fragment,
    /// The prefix of the keys is not valid.
    #[error("the prefix is not valid")]
    Prefix(#[from] KeyError),
}

impl RedisConfig {
    /// The server of a URL. The same as [`FromStr`].
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        parse(url)
    }

    /// The servers of a URL of [shards](leasehold_store::Shards): `redis+shard://host,host,host`, or `rediss+shard://`. What
    /// follows them is for all of them.
    ///
    /// ```
    /// use leasehold::store::RedisConfig;
    ///
    /// let shards = RedisConfig::shards_from_url("redis+shard://locks:secret@a.example,b.example:6380/1?prefix=app:")?;
    /// let addresses: Vec<_> = shards.iter().map(RedisConfig::address).collect();
    /// assert_eq!(addresses, ["a.example:6379", "b.example:6380"]);
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    pub fn shards_from_url(url: &str) -> Result<Vec<Self>, UrlError> {
        parse_shards(url)
    }
}

impl FromStr for RedisConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::from_url(url)
    }
}

impl QuorumConfig {
    /// The servers of a URL. The same as [`FromStr`].
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        parse_quorum(url)
    }
}

impl FromStr for QuorumConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::from_url(url)
    }
}

/// Parses a URL.
fn parse(url: &str) -> Result<RedisConfig, UrlError> {
    let (scheme, place, query) = parts(url)?;
    let config = match scheme {
        "redis" => network(place, false)?,
        "rediss" => network(place, true)?,
        "redis+unix" => socket(place)?,
        "redis+sentinel" => sentinels(place, false)?,
        "rediss+sentinel" => sentinels(place, true)?,
        "redis+shard" | "rediss+shard" => return Err(UrlError::Shards),
        "redis+cluster" => cluster(place, false)?,
        "rediss+cluster" => cluster(place, true)?,
        _ => return Err(UrlError::Scheme),
    };
    settings(config, query)
}

/// Parses a URL of several independent servers: `[user[:password]@]host[:port],…[/db]`
fn parse_shards(url: &str) -> Result<Vec<RedisConfig>, UrlError> {
    let (scheme, place, query) = parts(url)?;
    let tls = match scheme {
        "redis+shard" => false,
        "rediss+shard" => true,
        _ => return Err(UrlError::Scheme),
    };
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, servers) = split_credentials(authority);
    let shard = |server| {
        let (host, port) = host_and_port(server, DEFAULT_PORT)?;
        let config = RedisConfig::at(ServerLocation::Fixed(Address::Tcp { host, port, tls }));
        settings(logged_in(in_database(config, path)?, credentials)?, query)
    };
    servers.split(',').map(shard).collect()
}

/// Splits a URL into scheme, servers with their path, and settings.
fn parts(url: &str) -> Result<(&str, &str, Option<&str>), UrlError> {
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
    if rest.contains('#') {
        return Err(UrlError::Fragment);
    }
    Ok(match rest.split_once('?') {
        Some((place, query)) => (scheme, place, Some(query)),
        None => (scheme, rest, None),
    })
}

/// Parses the URL of a quorum: `redlock://[user[:password]@]host[:port],…[/db]`, and with TLS `redlocks://`. What stands in it
/// beside the hosts is for each of them.
fn parse_quorum(url: &str) -> Result<QuorumConfig, UrlError> {
    let (scheme, place, query) = parts(url)?;
    let scheme = match scheme {
        "redlock" => "redis",
        "redlocks" => "rediss",
        _ => return Err(UrlError::Scheme),
    };
    let query = query.unwrap_or_default();
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (login, servers) = match authority.rsplit_once('@') {
        Some((credentials, servers)) => ([credentials, "@"].concat(), servers),
        None => (String::new(), authority),
    };
    let (own, others): (Vec<_>, Vec<_>) = query
        .split('&')
        .partition(|pair| pair.starts_with("min_uptime=") || pair.starts_with("node_timeout="));
    let others = others.join("&");
    let node = |server| parse(&format!("{scheme}://{login}{server}/{path}?{others}"));
    let mut config = QuorumConfig::of(servers.split(',').map(node).collect::<Result<Vec<_>, _>>()?)?;
    for pair in own {
        config = match pair.split_once('=') {
            Some(("min_uptime", text)) => config.min_uptime(duration(text).ok_or(UrlError::MinUptime)?),
            Some((_, text)) => {
                let timeout = duration(text).filter(|timeout| !timeout.is_zero());
                config.node_timeout(timeout.ok_or(UrlError::NodeTimeout)?)
            }
            None => config,
        };
    }
    Ok(config)
}

/// Parses a whole number with a unit.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(ms)?))
}

/// `[user[:password]@]host[:port][/db]`
fn network(place: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, server) = split_credentials(authority);
    let (host, port) = host_and_port(server, DEFAULT_PORT)?;
    let config = RedisConfig::at(ServerLocation::Fixed(Address::Tcp { host, port, tls }));
    logged_in(in_database(config, path)?, credentials)
}

/// `[user[:password]@]host[:port],…/name[/db]`
fn sentinels(place: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, servers) = split_credentials(authority);
    let (name, path) = path.split_once('/').unwrap_or((path, ""));
    let sentinel = |server| -> Result<_, UrlError> {
        let (host, port) = host_and_port(server, SENTINELS_PORT)?;
        Ok(Address::Tcp { host, port, tls })
    };
    let sentinels = servers.split(',').map(sentinel).collect::<Result<Vec<_>, _>>()?;
    // It is the end of a password with a `/` in it, and the host behind that.
    if name.contains('@') {
        return Err(UrlError::Primary);
    }
    let name = decoded(name, "name of the primary")?;
    if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(UrlError::Primary);
    }
    let config = RedisConfig::at(ServerLocation::Sentinel(SentinelGroup::new(sentinels, name, tls)));
    logged_in(in_database(config, path)?, credentials)
}

/// `[user[:password]@]host[:port],…`
fn cluster(place: &str, tls: bool) -> Result<RedisConfig, UrlError> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, servers) = split_credentials(authority);
    if !matches!(path, "" | "0") {
        return Err(UrlError::ClusterDatabase);
    }
    let node = |server| -> Result<_, UrlError> {
        let (host, port) = host_and_port(server, DEFAULT_PORT)?;
        Ok(Address::Tcp { host, port, tls })
    };
    let nodes = servers.split(',').map(node).collect::<Result<Vec<_>, _>>()?;
    logged_in(RedisConfig::at(ServerLocation::Cluster(ClusterSeeds::new(nodes, tls))), credentials)
}

fn split_credentials(authority: &str) -> (Option<&str>, &str) {
    match authority.rsplit_once('@') {
        Some((credentials, server)) => (Some(credentials), server),
        None => (None, authority),
    }
}

fn in_database(config: RedisConfig, path: &str) -> Result<RedisConfig, UrlError> {
    if path.is_empty() { Ok(config) } else { Ok(config.db(database(path)?)) }
}

fn logged_in(mut config: RedisConfig, credentials: Option<&str>) -> Result<RedisConfig, UrlError> {
    let Some(credentials) = credentials else { return Ok(config) };
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    if !user.is_empty() {
        config = config.username(decoded(user, "user")?);
    }
    match password {
        Some(password) => Ok(config.password(decoded(password, "password")?)),
        None => Ok(config),
    }
}

fn host_and_port(server: &str, default: u16) -> Result<(String, u16), UrlError> {
    let (host, port) = match server.strip_prefix('[') {
        Some(server) => {
            let (host, rest) = server.split_once(']').ok_or(UrlError::Host)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Host)?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(UrlError::Host),
            }
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        },
    };
    let port = match port {
        None => default,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(UrlError::Port),
        },
    };
    let host = decoded(host, "host")?;
    if host.is_empty() || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(UrlError::Host);
    }
    Ok((host, port))
}

fn socket(place: &str) -> Result<RedisConfig, UrlError> {
    match place.find('/') {
        Some(0) if place.len() > 1 => {
            let path = decoded(place, "path")?;
            if path.contains('\0') {
                return Err(UrlError::SocketPath);
            }
            Ok(RedisConfig::at(ServerLocation::Fixed(Address::Unix(PathBuf::from(path)))))
        }
        Some(at) if at > 0 && place[..at].contains('@') => Err(UrlError::SocketHost),
        _ => Err(UrlError::SocketPath),
    }
}

fn settings(mut config: RedisConfig, query: Option<&str>) -> Result<RedisConfig, UrlError> {
    let pairs = query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty());
    for pair in pairs {
        let (key, value) = pair.split_once('=').ok_or(UrlError::Setting)?;
        config = match key {
            "prefix" => config.prefix(&decoded(value, "prefix")?)?,
            "user" => config.username(decoded(value, "user")?),
            "password" => config.password(decoded(value, "password")?),
            "db" => match (database(value)?, config.location()) {
                (1.., ServerLocation::Cluster(_)) => return Err(UrlError::ClusterDatabase),
                (db, _) => config.db(db),
            },
            "replicas" => {
                let replicas = value.parse().ok().filter(|replicas| (1..=100).contains(replicas));
                config.replicas(replicas.ok_or(UrlError::Replicas)?)
            }
            "protocol" => match (value, config.location()) {
                ("resp2" | "2", ServerLocation::Cluster(_)) => return Err(UrlError::ClusterProtocol),
                ("resp2" | "2", _) => config.resp2(),
                ("resp3" | "3", _) => config.resp3(),
                _ => return Err(UrlError::Protocol),
            },
            "strict" => match value {
                "1" => config.strict(),
                "0" => config.lenient(),
                _ => return Err(UrlError::Strict),
            },
            "sentinel_user" => {
                let user = decoded(value, "Sentinels' user")?;
                config.with_sentinels(|group| group.login.username = Some(user)).ok_or(UrlError::Setting)?
            }
            "sentinel_password" => {
                let password = decoded(value, "Sentinels' password")?;
                config
                    .with_sentinels(|group| group.login.password = Some(password))
                    .ok_or(UrlError::Setting)?
            }
            "ca" => with_file(config, value, "ca", |certificates| &mut certificates.roots)?,
            "cert" => with_file(config, value, "cert", |certificates| &mut certificates.own)?,
            "key" => with_file(config, value, "key", |certificates| &mut certificates.key)?,
            _ => return Err(UrlError::Setting),
        };
    }
    let certificates = config.certificates();
    if certificates.own.is_some() != certificates.key.is_some() {
        return Err(UrlError::KeyPair);
    }
    Ok(config)
}

/// Sets a certificate or key whose file is read for each connection.
fn with_file(
    config: RedisConfig,
    value: &str,
    part: &'static str,
    place: impl FnOnce(&mut Certificates) -> &mut Option<Pem>,
) -> Result<RedisConfig, UrlError> {
    let path = decoded(value, part)?;
    if path.is_empty() || path.contains('\0') {
        return Err(UrlError::File { part });
    }
    let change = |certificates: &mut Certificates| *place(certificates) = Some(Pem::File(path.into()));
    config.with_certificates(change).ok_or(UrlError::NoTls)
}

fn database(text: &str) -> Result<u32, UrlError> {
    // Redis numbers databases with a C int.
    text.parse().ok().filter(|db| i32::try_from(*db).is_ok()).ok_or(UrlError::Database)
}

fn decoded(text: &str, part: &'static str) -> Result<String, UrlError> {
    let wrong = UrlError::Percent { part };
    for (at, _) in text.match_indices('%') {
        let digits = text.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(wrong);
        }
    }
    percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| wrong)
}

/// What a URL shows as it is where it has no other meaning.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same, of paths and settings.
const PLAIN_IN_PATH: &AsciiSet = &PLAIN.remove(b'/').remove(b':').remove(b',');

impl RedisConfig {
    /// The URL of this configuration, without passwords.
    pub fn redacted_url(&self) -> String {
        redacted(self)
    }

    /// The URL of these shards, without passwords.
    pub fn redacted_shards_url(shards: &[Self]) -> String {
        redacted_shards(shards)
    }
}

impl QuorumConfig {
    /// The URL of these nodes, without passwords. Only what a URL can set is written.
    pub fn redacted_url(&self) -> String {
        redacted_quorum(self.nodes(), self.own_settings())
    }
}

/// The URL that [`parse`] makes this configuration of, passwords excepted.
fn redacted(config: &RedisConfig) -> String {
    let (kind, addresses) = match config.location() {
        ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address, _) => {
            ("", std::slice::from_ref(address))
        }
        ServerLocation::Sentinel(group) => ("+sentinel", group.sentinels.as_slice()),
        ServerLocation::Cluster(seeds) => ("+cluster", seeds.nodes.as_slice()),
    };
    if let [Address::Unix(path)] = addresses {
        let path = utf8_percent_encode(&path.to_string_lossy(), PLAIN_IN_PATH).to_string();
        return ["redis+unix://", &path, &written_settings(config, true, [])].concat();
    }
    let tls = if addresses.iter().any(Address::is_tls) { "s" } else { "" };
    written(&format!("redis{tls}{kind}"), config, addresses, [])
}

/// The URL that [`parse_shards`] makes these configurations of, passwords excepted.
fn redacted_shards(shards: &[RedisConfig]) -> String {
    written_servers("redis", "+shard", shards, [])
}

/// The URL that [`parse_quorum`] makes of these nodes and durations, passwords excepted.
fn redacted_quorum(
    nodes: &[RedisConfig],
    durations: impl IntoIterator<Item = (&'static str, Duration)>,
) -> String {
    let durations = durations.into_iter().map(|(name, value)| (name, format!("{}ms", value.as_millis())));
    written_servers("redlock", "", nodes, durations)
}

/// Independent servers, with all settings in common.
fn written_servers(
    scheme: &str,
    kind: &str,
    servers: &[RedisConfig],
    own: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    let address = |server: &RedisConfig| match server.location() {
        ServerLocation::Fixed(address) => Some(address.clone()),
        ServerLocation::Sentinel(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => None,
    };
    let addresses: Vec<_> = servers.iter().filter_map(address).collect();
    let tls = if addresses.iter().any(Address::is_tls) { "s" } else { "" };
    match servers.first() {
        Some(first) => written(&format!("{scheme}{tls}{kind}"), first, &addresses, own),
        None => format!("{scheme}{kind}://"),
    }
}

/// `scheme://[user@]host[:port],…[/name][/db][?…]`
fn written(
    scheme: &str,
    config: &RedisConfig,
    addresses: &[Address],
    own: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    let user = config.login().username.as_deref().filter(|user| !user.is_empty());
    let user = user.map(|user| format!("{}@", utf8_percent_encode(user, PLAIN))).unwrap_or_default();
    let (default, name) = match config.location() {
        ServerLocation::Sentinel(group) => {
            (SENTINELS_PORT, format!("/{}", utf8_percent_encode(&group.name, PLAIN)))
        }
        ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => {
            (DEFAULT_PORT, String::new())
        }
    };
    let server = |address: &Address| match address {
        Address::Tcp { host, port, .. } => {
            let host = match host.parse::<Ipv6Addr>() {
                Ok(_) => format!("[{host}]"),
                Err(_) => utf8_percent_encode(host, PLAIN).to_string(),
            };
            if *port == default { host } else { format!("{host}:{port}") }
        }
        Address::Unix(_) => String::new(),
    };
    let servers = addresses.iter().map(server).collect::<Vec<_>>().join(",");
    let db = Some(config.database()).filter(|db| *db != 0).map(|db| format!("/{db}")).unwrap_or_default();
    format!("{scheme}://{user}{servers}{name}{db}{}", written_settings(config, false, own))
}

/// `?…`, or nothing. Only of a socket are user and database settings.
fn written_settings(
    config: &RedisConfig,
    socket: bool,
    own: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    let prefix = Some(config.keys().prefix()).filter(|prefix| !prefix.is_empty());
    let user = config.login().username.clone().filter(|user| socket || user.is_empty());
    let db = Some(config.database()).filter(|db| socket && *db != 0);
    let replicas = Some(config.wanted_replicas()).filter(|replicas| *replicas != 0);
    let resp2 =
        config.protocol() == Protocol::Resp2 && !matches!(config.location(), ServerLocation::Cluster(_));
    let sentinel_user = match config.location() {
        ServerLocation::Sentinel(group) => group.login.username.clone(),
        ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => None,
    };
    let file = |pem: &Option<Pem>| match pem {
        Some(Pem::File(path)) => Some(path.to_string_lossy().into_owned()),
        Some(Pem::Text(_)) | None => None,
    };
    let Certificates { roots, own: certificate, key } = config.certificates();
    let settings = [
        ("prefix", prefix.map(str::to_owned)),
        ("user", user),
        ("db", db.map(|db| db.to_string())),
        ("replicas", replicas.map(|replicas| replicas.to_string())),
        ("protocol", resp2.then(|| "resp2".to_owned())),
        ("strict", config.is_strict().then(|| "1".to_owned())),
        ("sentinel_user", sentinel_user),
        ("ca", file(roots)),
        ("cert", file(certificate)),
        ("key", file(key)),
    ];
    let settings = settings.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let pairs: Vec<_> = settings
        .chain(own)
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, PLAIN_IN_PATH)))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        match parse(url) {
            Ok(config) => config.summary_for_test(),
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn urls_and_what_they_mean() {
        for (url, meaning) in [
            ("redis://h", "tcp h:6379 db 0 prefix ``"),
            ("redis://h:7/2", "tcp h:7 db 2 prefix ``"),
            ("redis://h/", "tcp h:6379 db 0 prefix ``"),
            ("rediss://u:p@h:1?prefix=app:", "tls h:1 db 0 prefix `app:` user u password p"),
            ("redis://:p%40:%2F@h", "tcp h:6379 db 0 prefix `` password p@:/"),
            ("redis://:p@ss@h", "tcp h:6379 db 0 prefix `` password p@ss"),
            ("redis://u@h", "tcp h:6379 db 0 prefix `` user u"),
            ("redis://u:@h", "tcp h:6379 db 0 prefix `` user u password "),
            ("redis://[::1]:7000/1", "tcp ::1:7000 db 1 prefix ``"),
            ("redis://[::1]", "tcp ::1:6379 db 0 prefix ``"),
            ("redis://h?db=3&user=u&password=a%26b", "tcp h:6379 db 3 prefix `` user u password a&b"),
            ("redis+unix:///run/r%20s.sock?db=1", "unix /run/r s.sock db 1 prefix ``"),
            ("redis+sentinel://a,b:7,[::1]/main", "tcp main of a:26379, b:7, ::1:26379 db 0 prefix ``"),
            (
                "rediss+sentinel://u:p@a/m%2Fn/2?sentinel_user=s&sentinel_password=t&prefix=app:",
                "tls by s with t m/n of a:26379 db 2 prefix `app:` user u password p",
            ),
            ("redis+cluster://a,b:7,[::1]", "tcp a:6379, b:7, ::1:6379 db 0 prefix ``"),
            ("redis+cluster://u:p@a/?db=0&strict=1", "tcp a:6379 db 0 prefix `` user u password p strict"),
            ("rediss+cluster://a,b?ca=/ca&replicas=1", "tls a:6379, b:6379 db 0 prefix `` ca /ca 1 replicas"),
            ("redis+cluster://a/1", "ClusterDatabase"),
            ("redis+cluster://a?db=1", "ClusterDatabase"),
            ("redis+cluster://a,,b", "Host"),
            ("redis+cluster://a?ca=/ca", "NoTls"),
            ("redis://h?strict=1", "tcp h:6379 db 0 prefix `` strict"),
            ("redis://h?protocol=resp2", "tcp h:6379 db 0 prefix `` resp2"),
            ("rediss://h?protocol=2&strict=1", "tls h:6379 db 0 prefix `` resp2 strict"),
            ("redis+unix:///s?protocol=resp2&protocol=resp3", "unix /s db 0 prefix ``"),
            ("redis+sentinel://a/main?protocol=resp2", "tcp main of a:26379 db 0 prefix `` resp2"),
            ("redis+cluster://a?protocol=resp3", "tcp a:6379 db 0 prefix ``"),
            ("redis+cluster://a?protocol=resp2", "ClusterProtocol"),
            ("redis://h?protocol=RESP2", "Protocol"),
            ("redis://h?protocol=", "Protocol"),
            ("redis+sentinel://a/main?strict=1", "tcp main of a:26379 db 0 prefix `` strict"),
            ("redis://h?strict=1&strict=0", "tcp h:6379 db 0 prefix ``"),
            ("redis://h?strict=", "Strict"),
            ("redis://h?strict=true", "Strict"),
            ("redis://h?strict", "Setting"),
            ("http://h", "Scheme"),
            ("redis://h?replicas=2", "tcp h:6379 db 0 prefix `` 2 replicas"),
            ("redis://h?replicas=0", "Replicas"),
            ("redis://h?replicas=secret", "Replicas"),
            ("redis+sentinel://a,b", "Primary"),
            ("redis+sentinel://a//1", "Primary"),
            ("redis+sentinel://u:12/secret@a/main", "Primary"),
            ("redis+sentinel://u:12/secret@a", "Primary"),
            ("redis+sentinel://a,,b/main", "Host"),
            ("redis+sentinel://a,b:secret/main", "Port"),
            ("redis+sentinel://a/main/secret", "Database"),
            ("redis://h?sentinel_password=secret", "Setting"),
            ("h:6379", "Scheme"),
            ("redis://", "Host"),
            ("redis://:secret@", "Host"),
            ("redis://[::1", "Host"),
            ("redis://[h]", "Host"),
            ("redis://h h", "Host"),
            ("redis://h:secret", "Port"),
            ("redis://h:0", "Port"),
            ("redis://h:65536", "Port"),
            ("redis://u:sec/ret@h", "Port"),
            ("redis://h/x", "Database"),
            ("redis://h/4294967295", "Database"),
            ("redis://:%zz@h", "Percent { part: \"password\" }"),
            ("redis://:%ff@h", "Percent { part: \"password\" }"),
            ("redis://h?secret", "Setting"),
            ("redis://h?x=secret", "Setting"),
            ("rediss://h#insecure", "Fragment"),
            ("rediss://h?ca=/a%20b&cert=c&key=d", "tls h:6379 db 0 prefix `` ca /a b cert c key d"),
            ("rediss+sentinel://a/main?ca=/ca", "tls main of a:26379 db 0 prefix `` ca /ca"),
            ("redis://h?ca=/secret", "NoTls"),
            ("redis+unix:///s?cert=/c&key=/k", "NoTls"),
            ("redis+sentinel://a/main?key=/k", "NoTls"),
            ("rediss://h?cert=/secret", "KeyPair"),
            ("rediss://h?key=/secret", "KeyPair"),
            ("rediss://h?ca=", "File { part: \"ca\" }"),
            ("rediss://h?ca=a%00", "File { part: \"ca\" }"),
            ("redis+unix://run/redis.sock", "SocketPath"),
            ("redis+unix:///", "SocketPath"),
            ("redis+unix://u:p@/run/redis.sock", "SocketHost"),
            ("redis://h?prefix=%7Bx", "Prefix(PrefixCharacter)"),
        ] {
            assert_eq!(shown(url), meaning, "{url}");
        }
    }

    #[test]
    fn urls_of_quorums_and_what_they_mean() {
        let shown = |url: &str| match parse_quorum(url) {
            Ok(config) => config.summary_for_test(),
            Err(error) => format!("{error:?}"),
        };
        let node = |host: &str| format!("tcp {host} db 0 prefix ``");
        let three = [node("a:6379"), node("b:7"), node("::1:6379")].join(", ");
        for (url, meaning) in [
            ("redlock://a,b:7,[::1]", format!("{three}; 60s, 50ms")),
            ("redlock://a,b:7,[::1]?min_uptime=0s&node_timeout=20ms", format!("{three}; 0ns, 20ms")),
            (
                "redlocks://u:p,q@a,b,c/2?prefix=app:&min_uptime=2m",
                ["a", "b", "c"]
                    .map(|h| format!("tls {h}:6379 db 2 prefix `app:` user u password p,q"))
                    .join(", ")
                    + "; 120s, 50ms",
            ),
            ("redlock://a,b", "Quorum(TooFew { nodes: 2 })".to_owned()),
            ("redlock://a,b,a:6379", "Quorum(Twice { node: \"a:6379\" })".to_owned()),
            ("redlock://a,b,c?replicas=1", "Quorum(Replicas)".to_owned()),
            ("redlock://a,b,c?min_uptime=soon", "MinUptime".to_owned()),
            ("redlock://a,b,c?min_uptime=5", "MinUptime".to_owned()),
            ("redlock://a,b,c?node_timeout=0s", "NodeTimeout".to_owned()),
            ("redlock://a,,c", "Host".to_owned()),
            ("redlock://a,b:secret,c", "Port".to_owned()),
            ("redlock://a,b,c?x=secret", "Setting".to_owned()),
            ("redlock://a,b,c#x", "Fragment".to_owned()),
            ("redis://a,b,c", "Scheme".to_owned()),
        ] {
            assert_eq!(shown(url), meaning, "{url}");
        }
    }

    #[test]
    fn no_error_shows_a_secret() {
        for url in
            ["redis://u:secret", "redis://h:secret@", "secret", "redis://h?secret=secret", "secret://h"]
        {
            let error = parse(url).expect_err("not a URL");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
        }
    }
}
