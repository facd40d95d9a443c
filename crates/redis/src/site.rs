//! How a server is found: at an address, by Sentinels, or in a cluster.
//!
//! Owns what the user has named. Asking Sentinels is [`sentinel`](super::sentinel)'s, and asking the nodes of a cluster
//! [`cluster`](super::cluster)'s.

use super::address::{Address, Login};
use leasehold_store::{Fault, FaultKind, Phase};
use std::fmt;
use std::sync::Arc;

/// How the server is found.
#[derive(Debug, Clone)]
pub(super) enum ServerLocation {
    /// It is always there.
    At(Address),
    /// It is where others say.
    Named(Group),
    /// There are several, each with a part of the keys.
    Cluster(Seeds),
    /// It is one of those: a primary, as the others say.
    Member(Address, ConnPurpose),
}

/// What one connects to a node of a cluster for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnPurpose {
    /// To send operations.
    Calls,
    /// To hear what is said there.
    Messages,
}

/// Those who know where the primary of a name is.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) sentinels: Vec<Address>,
    pub(super) name: String,
    /// Whether the primary is talked to by TLS.
    pub(super) tls: bool,
    /// Who one is to the Sentinels.
    pub(super) login: Login,
}

impl Group {
    /// Sentinels, one at least, and what they call the primary.
    pub(super) fn new(sentinels: Vec<Address>, name: String, tls: bool) -> Self {
        Self { sentinels, name, tls, login: Login::default() }
    }

    /// Whether they and the primary are talked to by TLS.
    pub(super) const fn is_tls(&self) -> bool {
        self.tls
    }

    #[cfg(test)]
    pub(super) fn spelled_out(&self) -> String {
        let kind = if self.tls { "tls" } else { "tcp" };
        let user = self.login.username.as_ref().map(|user| format!(" by {user}")).unwrap_or_default();
        let password = self.login.password.as_ref().map(|password| format!(" with {password}"));
        format!("{kind}{user}{}", password.unwrap_or_default())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> = self.sentinels.iter().map(Address::to_string).collect();
        write!(f, "{} of {}", self.name, sentinels.join(", "))
    }
}

/// The nodes that were named: they know the others.
#[derive(Debug, Clone)]
pub(super) struct Seeds {
    pub(super) nodes: Vec<Address>,
    tls: bool,
}

impl Seeds {
    /// Nodes, one at least.
    pub(super) const fn new(nodes: Vec<Address>, tls: bool) -> Self {
        Self { nodes, tls }
    }

    /// Whether all are talked to by TLS.
    pub(super) const fn is_tls(&self) -> bool {
        self.tls
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(Address::to_string).collect();
        f.write_str(&nodes.join(", "))
    }
}

/// The fault of who wants one server, where there is a cluster.
pub(super) fn no_one_server(node: &Arc<str>) -> Fault {
    let text = "it is a cluster, and this is for one server".to_owned();
    Fault::new(FaultKind::Unsupported(text), Phase::Connect, Arc::clone(node))
}
