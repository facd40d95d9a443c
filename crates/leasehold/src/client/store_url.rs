//! The URLs of all stores.
//!
//! Owns the schemes, and what may be shown of a URL. The Redis store parses what follows the scheme of a
//! server. Nothing here connects.
//!
//! 1. A redacted URL is built from the parsed configuration, never cut out of the text: a part that the parser does not
//!    understand is an error, and so cannot hide a secret.
//! 2. An error shows no part of the URL but the name of a setting, and that only if it cannot be part of a password.

#[cfg(feature = "redis")]
use leasehold_redis::{QuorumConfig, RedisConfig, UrlError};
use std::fmt;
use std::str::FromStr;

/// The parsed URL of a store.
///
/// [`Client::connect`](crate::Client::connect) parses its argument to this type, and its documentation lists
/// the schemes. Use it to show a URL in a log or to a user: `Debug` and [`redacted`](Self::redacted) show no
/// password.
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

/// The kind of store that a URL names.
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
    /// Independent servers, each with a part of the locks: [`Shards`](crate::store::Shards).
    Shards,
    /// A majority of independent servers: [`QuorumStore`](crate::store::QuorumStore).
    Quorum,
}

/// Why a text is not the URL of a store. The error does not show the text, which may contain a password.
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
    /// `sqlite:` with settings, or with a path that contains a `?`.
    #[error("a `sqlite:` URL has no settings, and its path no `?`")]
    FileSetting,
    /// A prefix for a store that has none.
    #[error("`memory:` and `sqlite:` take no key prefix: it is for Redis")]
    NoPrefix,
    /// The URL of a server, in a build without the feature `redis`.
    #[error("this build has no Redis store: switch the feature `redis` on")]
    NoRedis,
    /// The URL of a server has an invalid part after its scheme.
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
    /// Parses a URL, and opens nothing. [`FromStr`] does the same.
    pub fn parse(url: &str) -> Result<Self, StoreUrlError> {
        let (scheme, rest) = url.split_once(':').ok_or(StoreUrlError::NoScheme)?;
        let config = match scheme {
            "" => return Err(StoreUrlError::NoScheme),
            "memory" => StoreConfig::Memory(rest.to_owned()),
            "sqlite" if rest.is_empty() => return Err(StoreUrlError::NoPath),
            // As part of the path, a setting would silently select another file.
            "sqlite" if rest.contains('?') => return Err(StoreUrlError::FileSetting),
            "sqlite" => StoreConfig::Sqlite(rest.to_owned()),
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster" => one_server(url)?,
            "redis+shard" | "rediss+shard" => shards(url)?,
            "redlock" | "redlocks" => quorum(url)?,
            // The scheme is not shown (2): it may be a secret in the wrong position.
            _ => return Err(StoreUrlError::Scheme),
        };
        Ok(Self { config })
    }

    /// Returns the kind of store.
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

    /// Returns whether the store supports users and passwords: servers do, `memory:` and `sqlite:` do not.
    pub const fn supports_credentials(&self) -> bool {
        match self.kind() {
            StoreKind::Memory | StoreKind::Sqlite => false,
            StoreKind::Redis | StoreKind::Shards | StoreKind::Quorum => true,
        }
    }

    /// Returns whether the URL contains a password of the servers or of the Sentinels. An empty password
    /// counts.
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

    /// Sets the prefix of all keys and channels, in place of `?prefix=`. Fails for an invalid prefix, and for `memory:`
    /// and `sqlite:`, which have none.
    ///
    /// ```
    /// use leasehold::store::StoreUrl;
    ///
    /// # #[cfg(feature = "redis")] {
    /// let url = StoreUrl::parse("redis://locks.example")?.with_prefix("app:")?;
    /// assert_eq!(url.redacted(), "redis://locks.example?prefix=app:");
    /// # }
    /// # Ok::<(), leasehold::store::StoreUrlError>(())
    /// ```
    #[cfg(feature = "redis")]
    pub fn with_prefix(self, prefix: &str) -> Result<Self, StoreUrlError> {
        let prefixed = |config: RedisConfig| config.prefix(prefix).map_err(UrlError::Prefix);
        let config = match self.config {
            StoreConfig::Memory(_) | StoreConfig::Sqlite(_) => return Err(StoreUrlError::NoPrefix),
            StoreConfig::Redis(config) => StoreConfig::Redis(Box::new(prefixed(*config)?)),
            StoreConfig::Shards(shards) => {
                StoreConfig::Shards(shards.into_iter().map(prefixed).collect::<Result<_, _>>()?)
            }
            StoreConfig::Quorum(quorum) => StoreConfig::Quorum(quorum.try_map(prefixed)?),
        };
        Ok(Self { config })
    }

    /// Returns a URL of the same store with the same settings, without passwords. It keeps users and the
    /// paths of certificates and keys, and leaves out defaults.
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

    /// Returns the configuration of each server: one for a server, Sentinels or a cluster, one for each shard
    /// or node of a quorum, none for `memory:` and `sqlite:`.
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
