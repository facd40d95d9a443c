//! URLs of all stores, parsed once at the edge.
//!
//! Owns which schemes there are, and what may be shown of a URL. What follows the scheme of a server is parsed in the Redis
//! store; connecting is the client's.
//!
//! 1. What is shown of a URL is written from its parsed configuration, never cut out of its text: a part that the parser does
//!    not understand is an error, and so cannot hide a secret.
//! 2. An error shows no part of the URL.

#[cfg(feature = "redis")]
use leasehold_redis::{QuorumConfig, RedisConfig, UrlError};
use std::fmt;
use std::str::FromStr;

/// The URL of a store, parsed: which kind of store it is, whether it contains a password, and how it reads without.
///
/// [`Client::connect`](crate::Client::connect) parses its URL by this and lists the schemes. Use it where a URL goes to
/// another process, a log or a user: `Debug` and [`redacted`](Self::redacted) show no password.
///
/// ```
/// use leasehold::store::StoreUrl;
///
/// # #[cfg(feature = "redis")] {
/// let url = StoreUrl::parse("redlock://locks:secret@a.example,b.example,c.example?prefix=app:")?;
/// assert!(url.has_password());
/// assert_eq!(url.redacted(), "redlock://locks@a.example,b.example,c.example?prefix=app:");
/// # }
/// # Ok::<(), leasehold::store::StoreUrlError>(())
/// ```
#[derive(Clone)]
pub struct StoreUrl {
    config: StoreConfig,
}

/// Which kind of store a URL is of.
///
/// ```
/// use leasehold::store::{StoreKind, StoreUrl};
///
/// assert_eq!(StoreUrl::parse("sqlite:locks.db")?.kind(), StoreKind::Sqlite);
/// # Ok::<(), leasehold::store::StoreUrlError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreKind {
    /// `memory:`, for the tasks of one process.
    Memory,
    /// `sqlite:`, for the processes of one machine.
    Sqlite,
    /// One Redis or Valkey server, the primary behind Sentinels, or a cluster.
    Redis,
    /// Independent servers with a part of the locks each: [`Shards`](crate::store::Shards).
    Shards,
    /// A majority of independent servers: [`QuorumStore`](crate::store::QuorumStore).
    Quorum,
}

/// Why a text is no URL of a store. It does not show the text, which may contain a password.
///
/// ```
/// use leasehold::store::StoreUrl;
///
/// let error = StoreUrl::parse("valkey://:secret@db.example").unwrap_err();
/// assert!(!format!("{error} {error:?}").contains("secret"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// There is no `:`.
    #[error("it has no scheme: write redis://…, sqlite:PATH or memory:")]
    NoScheme,
    /// No store has this scheme.
    #[error(
        "there is no store of its scheme: there are redis://, rediss://, redis+unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster://, redis+shard://, rediss+shard://, redlock://, redlocks://, sqlite: and memory:"
    )]
    Scheme,
    /// `sqlite:` without a path.
    #[error("`sqlite:` needs the path of a file behind it")]
    NoPath,
    /// The URL of a server, in a build without the feature `redis`.
    #[error("this build has no Redis store: switch the feature `redis` on")]
    NoRedis,
    /// The URL of a server is wrong behind its scheme.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] UrlError),
}

/// What the client needs to open the store.
#[derive(Clone)]
pub(crate) enum StoreConfig {
    /// The name of the store in this process.
    Memory(String),
    /// The path of the file.
    Sqlite(String),
    #[cfg(feature = "redis")]
    Redis(Box<RedisConfig>),
    #[cfg(feature = "redis")]
    Shards(Vec<RedisConfig>),
    #[cfg(feature = "redis")]
    Quorum(QuorumConfig),
}

impl StoreUrl {
    /// Parses a URL. Opens nothing. The same as [`FromStr`].
    pub fn parse(url: &str) -> Result<Self, StoreUrlError> {
        let (scheme, rest) = url.split_once(':').ok_or(StoreUrlError::NoScheme)?;
        let config = match scheme {
            "" => return Err(StoreUrlError::NoScheme),
            "memory" => StoreConfig::Memory(rest.to_owned()),
            "sqlite" if rest.is_empty() => return Err(StoreUrlError::NoPath),
            "sqlite" => StoreConfig::Sqlite(rest.to_owned()),
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster" => one_server(url)?,
            "redis+shard" | "rediss+shard" => shards(url)?,
            "redlock" | "redlocks" => quorum(url)?,
            // The scheme is not repeated (2): what stands there may be a secret in the wrong place.
            _ => return Err(StoreUrlError::Scheme),
        };
        Ok(Self { config })
    }

    /// Which kind of store it is.
    pub const fn kind(&self) -> StoreKind {
        match &self.config {
            StoreConfig::Memory(_) => StoreKind::Memory,
            StoreConfig::Sqlite(_) => StoreKind::Sqlite,
            #[cfg(feature = "redis")]
            StoreConfig::Redis(_) => StoreKind::Redis,
            #[cfg(feature = "redis")]
            StoreConfig::Shards(_) => StoreKind::Shards,
            #[cfg(feature = "redis")]
            StoreConfig::Quorum(_) => StoreKind::Quorum,
        }
    }

    /// Whether the store has users and passwords: the servers have, and `memory:` and `sqlite:` have not.
    pub const fn supports_credentials(&self) -> bool {
        match self.kind() {
            StoreKind::Memory | StoreKind::Sqlite => false,
            StoreKind::Redis | StoreKind::Shards | StoreKind::Quorum => true,
        }
    }

    /// Whether the URL contains a password: of the servers, or of the Sentinels. An empty one counts.
    pub fn has_password(&self) -> bool {
        match &self.config {
            StoreConfig::Memory(_) | StoreConfig::Sqlite(_) => false,
            #[cfg(feature = "redis")]
            StoreConfig::Redis(config) => config.has_password(),
            #[cfg(feature = "redis")]
            StoreConfig::Shards(shards) => shards.iter().any(RedisConfig::has_password),
            #[cfg(feature = "redis")]
            StoreConfig::Quorum(quorum) => quorum.nodes().iter().any(RedisConfig::has_password),
        }
    }

    /// A URL of the same store with the same settings, and without passwords. Users, and the paths of certificates and keys,
    /// stay. Defaults are left out.
    pub fn redacted(&self) -> String {
        match &self.config {
            StoreConfig::Memory(name) => format!("memory:{name}"),
            StoreConfig::Sqlite(path) => format!("sqlite:{path}"),
            #[cfg(feature = "redis")]
            StoreConfig::Redis(config) => config.redacted_url(),
            #[cfg(feature = "redis")]
            StoreConfig::Shards(shards) => RedisConfig::redacted_shards_url(shards),
            #[cfg(feature = "redis")]
            StoreConfig::Quorum(quorum) => quorum.redacted_url(),
        }
    }

    /// How each server of the store is reached: one for a server, Sentinels or a cluster, all of them for shards and a quorum,
    /// none for `memory:` and `sqlite:`.
    #[cfg(feature = "redis")]
    pub fn servers(&self) -> &[RedisConfig] {
        match &self.config {
            StoreConfig::Memory(_) | StoreConfig::Sqlite(_) => &[],
            StoreConfig::Redis(config) => std::slice::from_ref(&**config),
            StoreConfig::Shards(shards) => shards,
            StoreConfig::Quorum(quorum) => quorum.nodes(),
        }
    }

    pub(crate) fn into_config(self) -> StoreConfig {
        self.config
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(url: &str) -> Result<Self, StoreUrlError> {
        Self::parse(url)
    }
}

impl fmt::Debug for StoreUrl {
    /// Shows no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&self.redacted()).finish()
    }
}

#[cfg(feature = "redis")]
fn one_server(url: &str) -> Result<StoreConfig, StoreUrlError> {
    Ok(StoreConfig::Redis(Box::new(RedisConfig::from_url(url)?)))
}

#[cfg(feature = "redis")]
fn shards(url: &str) -> Result<StoreConfig, StoreUrlError> {
    Ok(StoreConfig::Shards(RedisConfig::shards_from_url(url)?))
}

#[cfg(feature = "redis")]
fn quorum(url: &str) -> Result<StoreConfig, StoreUrlError> {
    Ok(StoreConfig::Quorum(QuorumConfig::from_url(url)?))
}

#[cfg(not(feature = "redis"))]
use no_redis as one_server;
#[cfg(not(feature = "redis"))]
use no_redis as shards;
#[cfg(not(feature = "redis"))]
use no_redis as quorum;

#[cfg(not(feature = "redis"))]
const fn no_redis(_url: &str) -> Result<StoreConfig, StoreUrlError> {
    Err(StoreUrlError::NoRedis)
}

#[cfg(all(test, feature = "redis"))]
mod tests;
