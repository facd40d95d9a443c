//! Configuration of a quorum of Redis servers.
//!
//! [`QuorumStore`] counts the votes. This module adds what only a server can report: its uptime.

use super::RedisConfig;
use crate::location::ServerLocation;
use crate::store::RedisStore;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_store::{Fault, FaultKind, Phase, QuorumError, QuorumStore, Store};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Default minimum uptime before a node votes: twice the lease that a watchdog keeps.
const MIN_UPTIME: Duration = Duration::from_secs(60);
/// Default limit for the answer of one node.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// Several independent Redis or Valkey servers as a quorum. Each is a single server, or a primary that Sentinels
/// watch.
///
/// Parse a URL, in which all servers share user, password, database, prefix and certificates, or combine
/// configurations, one for each server:
///
/// ```
/// use leasehold::store::{QuorumConfig, RedisConfig};
/// use std::time::Duration;
///
/// let config: QuorumConfig = "redlock://a.example,b.example,c.example:7000?prefix=app:&min_uptime=2m".parse()?;
/// assert_eq!(config.addresses()[2], "c.example:7000");
///
/// let node = |url: &str| RedisConfig::from_url(url);
/// let config = QuorumConfig::of([
///     node("rediss://a.example")?.password("…"),
///     node("redis+sentinel://s1,s2,s3/locks")?,
///     node("redis+unix:///run/redis.sock")?,
/// ])?
/// .min_uptime(Duration::from_secs(120));
/// # let _ = config;
/// # Ok::<(), leasehold::store::UrlError>(())
/// ```
///
/// | URL | Meaning |
/// |---|---|
/// | `redlock://[user[:password]@]host[:port],host[:port],…[/db]` | three or more servers |
/// | `redlocks://…` | the same with TLS |
/// | `?min_uptime=` | minimum uptime before a server grants locks: [`min_uptime`](Self::min_uptime) |
/// | `?node_timeout=` | limit for the answer of one server: [`node_timeout`](Self::node_timeout) |
///
/// The other settings are those of a [`RedisConfig`], except `replicas` and `durable`, which are refused: a quorum counts
/// nodes, not their replicas, and a node that was restarted grants nothing for a while.
#[derive(Clone)]
pub struct QuorumConfig {
    nodes: Vec<RedisConfig>,
    min_uptime: Duration,
    node_timeout: Duration,
}

impl QuorumConfig {
    /// Creates a quorum of these nodes. Fails for fewer than three nodes, for more than [`QuorumStore::MAX_NODES`], if two
    /// have the same address, or if one is a cluster, or waits for its [replicas](RedisConfig::replicas) or its [disk](RedisConfig::durable).
    pub fn of(nodes: impl IntoIterator<Item = RedisConfig>) -> Result<Self, QuorumError> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        match nodes.len() {
            few @ 0..3 => return Err(QuorumError::TooFew { nodes: few }),
            many if many > QuorumStore::MAX_NODES => return Err(QuorumError::TooMany { nodes: many }),
            _ => {}
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = nodes.iter().map(RedisConfig::address).find(|node| !seen.insert(node.clone())) {
            return Err(QuorumError::Twice { node: twice });
        }
        if let Some(cluster) = nodes.iter().find(|node| matches!(node.location(), ServerLocation::Cluster(_)))
        {
            return Err(QuorumError::Cluster { node: cluster.address() });
        }
        if nodes.iter().any(|node| node.wanted_replicas() > 0) {
            return Err(QuorumError::Replicas);
        }
        if nodes.iter().any(RedisConfig::is_durable) {
            return Err(QuorumError::Durable);
        }
        Ok(Self { nodes, min_uptime: MIN_UPTIME, node_timeout: NODE_TIMEOUT })
    }

    /// Sets how long a node must be up before it grants locks. Default: 60 s. This is also the longest lease: longer ones are
    /// refused.
    ///
    /// A restarted node may have lost the locks it granted, and could grant them again. It therefore grants nothing
    /// until all leases it granted before the restart have expired. It still releases and extends. The node's uptime
    /// is read whenever a connection to it is made. A node behind Sentinels must also have been the primary for this
    /// long, because a replica may not know all grants.
    ///
    /// All clients must use the same value. After a cold start of all nodes, no client can acquire a lock for this
    /// long. Zero disables the check: for tests, and where each node writes to disk before it answers (`appendfsync
    /// always`).
    #[must_use]
    pub const fn min_uptime(mut self, min_uptime: Duration) -> Self {
        self.min_uptime = min_uptime;
        self
    }

    /// Sets the limit for the answer of one node: see [`QuorumStore::node_timeout`].
    #[must_use]
    pub const fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Returns the addresses of the nodes, without users and passwords.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(RedisConfig::address).collect()
    }

    /// The nodes, in the order of the URL.
    pub fn nodes(&self) -> &[RedisConfig] {
        &self.nodes
    }

    /// The quorum's own settings that differ from their defaults, as a URL names them.
    pub(crate) fn own_settings(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let own =
            [("min_uptime", self.min_uptime, MIN_UPTIME), ("node_timeout", self.node_timeout, NODE_TIMEOUT)];
        own.into_iter().filter(|(_, value, default)| value != default).map(|(name, value, _)| (name, value))
    }

    /// Changes each node. Fails with the first change that fails.
    pub fn try_map<E>(mut self, change: impl Fn(RedisConfig) -> Result<RedisConfig, E>) -> Result<Self, E> {
        self.nodes = self.nodes.into_iter().map(change).collect::<Result<_, _>>()?;
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn summary_for_test(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(RedisConfig::summary_for_test).collect();
        format!("{}; {:?}, {:?}", nodes.join(", "), self.min_uptime, self.node_timeout)
    }
}

impl RedisStore {
    /// Connects to the servers of a quorum. Returns once a majority is connected; attempts to connect to the others continue
    /// in the background.
    ///
    /// Fails with [`FaultKind::NoQuorum`] once a majority cannot be reached; the error contains the fault of each
    /// node. Faults of a minority are logged as warnings.
    ///
    /// ```no_run
    /// use leasehold::store::RedisStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect_quorum("redlock://a.example,b.example,c.example".parse()?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect_quorum(config: QuorumConfig) -> Result<QuorumStore, Fault> {
        let (stores, quorum) = Self::quorum_of(config)?;
        let needed = quorum.needed();
        let (mut connected, mut failed) = (0, Vec::new());
        let mut attempts: FuturesUnordered<_> = stores.iter().map(Self::first_attempt).collect();
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(()) => connected += 1,
                Err(fault) => {
                    tracing::warn!(node = %fault.node, %fault, "a node of the quorum is unavailable");
                    failed.push(fault);
                }
            }
            if connected >= needed {
                return Ok(quorum);
            }
        }
        let kind = FaultKind::NoQuorum { needed, total: stores.len(), nodes: failed };
        Err(Fault::new(kind, Phase::Connect, "the quorum"))
    }

    /// Creates a quorum that connects at its first use, for example to [diagnose](Store::diagnose) the nodes that are left
    /// without a majority. Fails if the nodes cannot form a quorum.
    ///
    /// ```
    /// use leasehold::store::RedisStore;
    ///
    /// let quorum = RedisStore::lazy_quorum("redlock://a.example,b.example,c.example".parse()?)?;
    /// assert_eq!(quorum.needed(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lazy_quorum(config: QuorumConfig) -> Result<QuorumStore, Fault> {
        Ok(Self::quorum_of(config)?.1)
    }

    /// The stores of the nodes, and the quorum of them.
    fn quorum_of(config: QuorumConfig) -> Result<(Vec<Self>, QuorumStore), Fault> {
        let QuorumConfig { nodes, min_uptime, node_timeout } = config;
        let stores: Vec<_> = nodes.into_iter().map(|node| Self::lazy(node.for_quorum(min_uptime))).collect();
        let unusable = |error: QuorumError| {
            Fault::new(FaultKind::Unusable(error.to_string()), Phase::Connect, "the quorum")
        };
        let nodes = stores.iter().map(|store| Arc::new(store.clone()) as Arc<dyn Store>);
        let longest = Some(min_uptime).filter(|min_uptime| !min_uptime.is_zero());
        let quorum = QuorumStore::new(nodes).map_err(unusable)?.node_timeout(node_timeout).max_lease(longest);
        Ok((stores, quorum))
    }
}

impl fmt::Debug for QuorumConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumConfig")
            .field("nodes", &self.nodes)
            .field("min_uptime", &self.min_uptime)
            .field("node_timeout", &self.node_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_no_node() {
        let nodes = ["redis://a", "redis+cluster://b,c", "redis+sentinel://d/locks"];
        let refused = QuorumConfig::of(nodes.map(|url| RedisConfig::from_url(url).expect("a good URL")));
        let error = refused.expect_err("the uptime of each server of a cluster is unknown");
        assert!(
            matches!(error, QuorumError::Cluster { .. }) && error.to_string().contains("b:6379"),
            "{error}"
        );
    }
}
