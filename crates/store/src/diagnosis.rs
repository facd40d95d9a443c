//! What a store reports about its servers.

use crate::fault::Fault;
use crate::finding::{ClockDifference, Finding, FindingKind, Severity};
use crate::trial::Trial;
use std::fmt;
use std::time::Duration;

/// The report of a store about one of its servers: [`Store::diagnose`](crate::Store::diagnose). A field is `None` if the
/// server did not report it.
///
/// ```no_run
/// use leasehold::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// for found in Client::builder("redis://locks.example").diagnose().await? {
///     println!("{} answers in {:?}", found.node, found.round_trip);
///     for finding in &found.findings {
///         println!("{finding}");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The server: its address, or the primary's name and its Sentinels.
    pub node: String,
    /// The product: `Redis`, `Valkey`, or another one that speaks their protocol.
    pub product: Option<String>,
    /// The version that the server reports.
    pub version: Option<String>,
    /// Its replication role.
    pub role: Option<Role>,
    /// The number of replicas connected to it.
    pub replicas: Option<u32>,
    /// Whether it keeps an append-only file.
    pub append_only: Option<bool>,
    /// How many snapshots it has made since it was started.
    pub snapshots: Option<u64>,
    /// Its eviction policy: what it removes when its memory is full.
    pub eviction_policy: Option<String>,
    /// The memory limit in bytes; 0 if there is none.
    pub maxmemory: Option<u64>,
    /// The memory in use, in bytes.
    pub used_memory: Option<u64>,
    /// The difference between its clock and the client's.
    pub clock: Option<ClockDifference>,
    /// The shortest of several round trips.
    pub round_trip: Duration,
    /// The user of the client's connection.
    pub user: Option<String>,
    /// What was tried there, and what came out.
    pub trials: Vec<Trial>,
    /// What can make it lose locks, the most serious first.
    pub findings: Vec<Finding>,
}

/// The replication role of a server.
///
/// ```
/// use leasehold::store::Role;
///
/// assert_eq!(Role::Primary.to_string(), "primary");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts writes, and sends them to its replicas.
    Primary,
    /// Applies the writes of another server.
    Replica,
}

impl Diagnosis {
    /// The report about a node that does not answer, while other nodes of the same store may.
    pub fn unreachable(node: impl Into<String>, fault: &Fault) -> Self {
        let mut found = Self::new(node);
        found.findings.push(Finding::new(FindingKind::Unreachable(fault.to_string()), Severity::Warning));
        found
    }

    /// A report about this node, without any data yet.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            product: None,
            version: None,
            role: None,
            replicas: None,
            append_only: None,
            snapshots: None,
            eviction_policy: None,
            maxmemory: None,
            used_memory: None,
            clock: None,
            round_trip: Duration::ZERO,
            user: None,
            trials: Vec::new(),
            findings: Vec::new(),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        })
    }
}
