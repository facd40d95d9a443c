//! Writes configurations as URLs without passwords.

use super::parse::{DEFAULT_PORT, DEFAULT_SENTINEL_PORT};
use crate::config::RedisConfig;
use crate::config::address::{Address, Protocol};
use crate::config::certificates::{Certificates, Pem};
use crate::config::quorum::QuorumConfig;
use crate::location::ServerLocation;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::net::Ipv6Addr;
use std::time::Duration;

/// Characters that are encoded in a host, a user or a name.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that are encoded in paths and settings.
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/').remove(b':').remove(b',');

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

/// A URL that parses to this configuration, except for passwords.
fn redacted(config: &RedisConfig) -> String {
    let (kind, addresses) = match config.location() {
        ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => {
            ("", std::slice::from_ref(address))
        }
        ServerLocation::Sentinel(group) => ("+sentinel", group.sentinels.as_slice()),
        ServerLocation::Cluster(seeds) => ("+cluster", seeds.nodes.as_slice()),
    };
    if let [Address::Unix(path)] = addresses {
        let path = utf8_percent_encode(&path.to_string_lossy(), ENCODED_IN_PATH).to_string();
        return ["redis+unix://", &path, &query(config, true, [])].concat();
    }
    let tls = if addresses.iter().any(Address::is_tls) { "s" } else { "" };
    url(&format!("redis{tls}{kind}"), config, addresses, [])
}

/// A URL that parses to these shards, except for passwords.
fn redacted_shards(shards: &[RedisConfig]) -> String {
    url_of_servers("redis", "+shard", shards, [])
}

/// A URL that parses to a quorum of these nodes, except for passwords.
fn redacted_quorum(
    nodes: &[RedisConfig],
    durations: impl IntoIterator<Item = (&'static str, Duration)>,
) -> String {
    let durations = durations.into_iter().map(|(name, value)| (name, format!("{}ms", value.as_millis())));
    url_of_servers("redlock", "", nodes, durations)
}

/// The URL of independent servers that share all settings.
fn url_of_servers(
    scheme: &str,
    kind: &str,
    servers: &[RedisConfig],
    extra: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    let address = |server: &RedisConfig| match server.location() {
        ServerLocation::Fixed(address) => Some(address.clone()),
        ServerLocation::Sentinel(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => None,
    };
    let addresses: Vec<_> = servers.iter().filter_map(address).collect();
    let tls = if addresses.iter().any(Address::is_tls) { "s" } else { "" };
    match servers.first() {
        Some(first) => url(&format!("{scheme}{tls}{kind}"), first, &addresses, extra),
        None => format!("{scheme}{kind}://"),
    }
}

/// `scheme://[user@]host[:port],…[/name][/db][?…]`
fn url(
    scheme: &str,
    config: &RedisConfig,
    addresses: &[Address],
    extra: impl IntoIterator<Item = (&'static str, String)>,
) -> String {
    let user = config.login().username.as_deref().filter(|user| !user.is_empty());
    let user = user.map(|user| format!("{}@", utf8_percent_encode(user, ENCODED))).unwrap_or_default();
    let (default, name) = match config.location() {
        ServerLocation::Sentinel(group) => {
            (DEFAULT_SENTINEL_PORT, format!("/{}", utf8_percent_encode(&group.name, ENCODED)))
        }
        ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => {
            (DEFAULT_PORT, String::new())
        }
    };
    let server = |address: &Address| match address {
        Address::Tcp { host, port, .. } => {
            let host = match host.parse::<Ipv6Addr>() {
                Ok(_) => format!("[{host}]"),
                Err(_) => utf8_percent_encode(host, ENCODED).to_string(),
            };
            if *port == default { host } else { format!("{host}:{port}") }
        }
        Address::Unix(_) => String::new(),
    };
    let servers = addresses.iter().map(server).collect::<Vec<_>>().join(",");
    let db = Some(config.database()).filter(|db| *db != 0).map(|db| format!("/{db}")).unwrap_or_default();
    format!("{scheme}://{user}{servers}{name}{db}{}", query(config, false, extra))
}

/// `?…`, or nothing. The user and the database of a socket are settings; elsewhere they are in the location.
fn query(
    config: &RedisConfig,
    socket: bool,
    extra: impl IntoIterator<Item = (&'static str, String)>,
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
    let Certificates { roots, own: certificate, key, .. } = config.certificates();
    let accepted: Vec<_> = config.accepted().iter().map(|code| code.as_str()).collect();
    let settings = [
        ("prefix", prefix.map(str::to_owned)),
        ("user", user),
        ("db", db.map(|db| db.to_string())),
        ("replicas", replicas.map(|replicas| replicas.to_string())),
        ("durable", config.is_durable().then(|| "1".to_owned())),
        ("protocol", resp2.then(|| "resp2".to_owned())),
        ("tracking", config.is_tracking().then(|| "1".to_owned())),
        ("probe", config.has_probe_skip().then(|| "skip".to_owned())),
        ("accept", Some(accepted.join(",")).filter(|codes| !codes.is_empty())),
        ("strict", config.is_strict().then(|| "1".to_owned())),
        ("sentinel_user", sentinel_user),
        ("ca", file(roots)),
        ("cert", file(certificate)),
        ("key", file(key)),
    ];
    let settings = settings.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let pairs: Vec<_> = settings
        .chain(extra)
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, ENCODED_IN_PATH)))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}
