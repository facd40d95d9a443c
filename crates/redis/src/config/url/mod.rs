//! URLs of Redis stores.
//!
//! Owns the errors and the public functions. [`parse`] reads URLs, [`redact`] writes them without passwords.
//!
//! No error shows a part of the URL that could be a password: if an `@` or a `/` is missing, the password is where the
//! port should be; a `?` in a password puts the rest of it where the settings should be.

mod parse;
mod redact;
#[cfg(test)]
mod tests;

use super::RedisConfig;
use super::quorum::QuorumConfig;
use leasehold_core::KeyError;
use leasehold_store::{FindingCodeError, QuorumError};
use std::str::FromStr;

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
    /// The choice whether holds are durable is neither 1 nor 0.
    #[error("`durable` is 1 or 0, as in `?durable=1`")]
    Durable,
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
    /// The text after the `?` is not made of settings.
    #[error(
        "the text after the `?` has a part that is no setting, as in `?strict=1`: {settings}; if it is part of a password, write `%3F` for `?` and `%26` for `&` in it",
        settings = SETTINGS
    )]
    Setting,
    /// The setting does not exist.
    #[error("there is no setting `{name}`: {settings}", settings = SETTINGS)]
    UnknownSetting {
        /// Its name: at most 32 lower-case letters and `_`. Others are reported as [`Setting`](Self::Setting), and so is a
        /// name that may be part of a password.
        name: String,
    },
    /// A setting is given twice.
    #[error("the URL gives `{setting}` twice: leave out one of them")]
    Twice {
        /// Name of the setting.
        setting: String,
    },
    /// A login at Sentinels is given for a server that is found without them.
    #[error("`sentinel_user` and `sentinel_password` are for `redis+sentinel://` and `rediss+sentinel://`")]
    NoSentinels,
    /// A certificate is given for a connection without TLS.
    #[error(
        "`ca`, `cert` and `key` are for `rediss://`, `rediss+sentinel://`, `rediss+cluster://`, `rediss+shard://` and `redlocks://`: without TLS no certificate is checked"
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
    /// The value of `probe` is not `skip`.
    #[error("`probe` is `skip`, as in `?probe=skip`, or absent")]
    Probe,
    /// The value of `tracking` is neither 1 nor 0.
    #[error("`tracking` is 1 or 0, as in `?tracking=1`")]
    Tracking,
    /// The value of `strict` is neither 1 nor 0.
    #[error("`strict` is 1 or 0, as in `?strict=1`")]
    Strict,
    /// The value of `accept` contains a text that is no code of a finding.
    #[error("`accept` takes codes with commas between them, as in `?accept=lua_vulnerabilities`: {0}")]
    Accept(#[source] FindingCodeError),
    /// The minimum uptime of a node is not a duration.
    #[error(
        "the minimum uptime of a node is a duration, as in `?min_uptime=90s` or `1h30m`, with `ms`, `s`, `m`, `h` and `d`"
    )]
    MinUptime,
    /// The timeout of a node is not a duration.
    #[error(
        "the timeout of a node is a duration, as in `?node_timeout=20ms` or `1.5s`, with `ms`, `s`, `m`, `h` and `d`"
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

/// The settings of a URL.
const SETTINGS: &str = "the settings are `prefix`, `replicas`, `durable`, `user`, `password`, `db`, `protocol`, `tracking`, `probe`, `accept` and `strict`, with TLS `ca`, `cert` and `key`, with Sentinels `sentinel_user` and `sentinel_password`, and with a quorum `min_uptime` and `node_timeout`";

impl RedisConfig {
    /// Parses a URL. Same as [`FromStr`].
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        parse::parse(url)
    }

    /// Parses a URL of [shards](leasehold_store::Shards): `redis+shard://host,host,host`, or `rediss+shard://` with TLS. The
    /// rest of the URL applies to each server.
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
        parse::parse_shards(url)
    }
}

impl FromStr for RedisConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::from_url(url)
    }
}

impl QuorumConfig {
    /// Parses a URL. Same as [`FromStr`].
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        parse::parse_quorum(url)
    }
}

impl FromStr for QuorumConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::from_url(url)
    }
}
