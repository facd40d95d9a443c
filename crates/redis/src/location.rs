//! How a server is found: at an address, by Sentinels, or in a cluster.
//!
//! Owns the configured addresses. [`sentinel`](super::conn::sentinel) queries Sentinels, and [`cluster`](super::cluster)
//! queries the nodes of a cluster.

use super::config::address::{Address, Login};
use leasehold_store::{Fault, FaultKind, Phase};
use std::fmt;
use std::sync::Arc;

/// How the server is found.
#[derive(Debug, Clone)]
pub(crate) enum ServerLocation {
    /// At a fixed address.
    Fixed(Address),
    /// At the address that Sentinels report.
    Sentinel(SentinelGroup),
    /// On the nodes of a cluster, each of which serves some of the slots.
    Cluster(ClusterSeeds),
    /// One node of a cluster: a primary, according to the slot map.
    ClusterNode(Address),
}

/// The Sentinels that watch a primary, and the name under which they know it.
#[derive(Debug, Clone)]
pub(crate) struct SentinelGroup {
    pub(crate) sentinels: Vec<Address>,
    pub(crate) name: String,
    /// Whether connections use TLS.
    pub(crate) tls: bool,
    /// The login at the Sentinels.
    pub(crate) login: Login,
}

impl SentinelGroup {
    /// Creates a group of at least one Sentinel for the primary `name`.
    pub(crate) fn new(sentinels: Vec<Address>, name: String, tls: bool) -> Self {
        Self { sentinels, name, tls, login: Login::default() }
    }

    /// Whether connections to the Sentinels and the primary use TLS.
    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }

    #[cfg(test)]
    pub(crate) fn summary_for_test(&self) -> String {
        let kind = if self.tls { "tls" } else { "tcp" };
        let user = self.login.username.as_ref().map(|user| format!(" by {user}")).unwrap_or_default();
        let password = self.login.password.as_ref().map(|password| format!(" with {password}"));
        format!("{kind}{user}{}", password.unwrap_or_default())
    }
}

impl fmt::Display for SentinelGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> = self.sentinels.iter().map(Address::to_string).collect();
        write!(f, "{} of {}", self.name, sentinels.join(", "))
    }
}

/// The configured nodes of a cluster, from which the others are found.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSeeds {
    pub(crate) nodes: Vec<Address>,
    tls: bool,
}

impl ClusterSeeds {
    /// At least one node.
    pub(crate) const fn new(nodes: Vec<Address>, tls: bool) -> Self {
        Self { nodes, tls }
    }

    /// Whether connections use TLS.
    pub(crate) const fn is_tls(&self) -> bool {
        self.tls
    }
}

impl fmt::Display for ClusterSeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(Address::to_string).collect();
        f.write_str(&nodes.join(", "))
    }
}

/// The fault of a configuration for a single server that leads to a cluster.
pub(crate) fn not_a_single_server(node: &Arc<str>) -> Fault {
    let text = "it is a cluster, and this is for one server".to_owned();
    Fault::new(FaultKind::Unsupported(text), Phase::Connect, Arc::clone(node))
}
