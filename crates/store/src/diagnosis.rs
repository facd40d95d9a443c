//! What a store tells of itself.

use crate::fault::Fault;
use crate::finding::{ClockDifference, Finding, FindingKind, Severity};
use std::fmt;
use std::time::Duration;

/// What a store tells of itself, and its hazards: [`Store::diagnose`](crate::Store::diagnose). What is `None` was not
/// told.
///
/// ```no_run
/// use leasehold::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// for found in Client::builder("redis://locks.example").diagnose().await? {
///     println!("{} answers in {:?}", found.node, found.round_trip);
///     for hazard in &found.findings {
///         println!("{hazard}");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// At which server: its address, or the primary's name and its Sentinels.
    pub node: String,
    /// Whose server it is: `Redis`, `Valkey`.
    pub product: Option<String>,
    /// Which version, as it says itself.
    pub version: Option<String>,
    /// Which part it has.
    pub role: Option<Role>,
    /// How many replicas are connected to it.
    pub replicas: Option<u32>,
    /// Whether it keeps an append-only file.
    pub append_only: Option<bool>,
    /// How many snapshots it has made since it was started.
    pub snapshots: Option<u64>,
    /// What it removes when its memory is full.
    pub eviction_policy: Option<String>,
    /// The memory limit in bytes; 0 if there is none.
    pub maxmemory: Option<u64>,
    /// The memory in use, in bytes.
    pub used_memory: Option<u64>,
    /// How far its clock is from ours.
    pub clock: Option<ClockDifference>,
    /// The shortest of several round trips.
    pub round_trip: Duration,
    /// The user of our connection.
    pub user: Option<String>,
    /// What can make it fail its locks, the most serious first.
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
    /// Of a store at `node` that does not answer, while others of the same store may.
    pub fn unreachable(node: impl Into<String>, fault: &Fault) -> Self {
        let mut found = Self::new(node);
        found.findings.push(Finding::new(FindingKind::Unreachable(fault.to_string()), Severity::Warning));
        found
    }

    /// Of a store at `node` that has told nothing yet.
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
