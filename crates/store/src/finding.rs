//! Findings: what can make a store lose locks, and what a store reports about itself.
//!
//! Owns the wording: what a finding is, why it matters, and what to do. Each store decides itself what it checks and
//! when.

use crate::trial::TrialKind;
use std::fmt;
use std::time::Duration;

/// A finding about a store that can make it lose locks.
///
/// A [warning](Severity::Warning) is logged once when a store connects. With
/// `RedisConfig::strict` it is an error instead:
/// [`FaultKind::Unsafe`](crate::FaultKind::Unsafe). So is always a finding that is [critical](Severity::Critical). A [`Diagnosis`](crate::Diagnosis) contains all findings.
///
/// ```
/// use leasehold::store::{Finding, FindingKind, Severity};
///
/// fn needs_action(findings: &[Finding]) -> Vec<String> {
///     let serious = findings.iter().filter(|finding| finding.severity >= Severity::Warning);
///     serious.map(|finding| format!("{}: {}", finding.kind, finding.kind.remedy())).collect()
/// }
///
/// let kind = FindingKind::Eviction { policy: "allkeys-lru".into(), maxmemory: 1 << 30 };
/// let found = [Finding::new(FindingKind::NotPersistent, Severity::Notice), Finding::new(kind, Severity::Warning)];
/// assert!(needs_action(&found)[0].contains("noeviction"));
/// assert_eq!(needs_action(&found).len(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// How serious it is for this store.
    pub severity: Severity,
}

/// How serious a finding is.
///
/// ```
/// use leasehold::store::Severity;
///
/// assert!(Severity::Notice < Severity::Warning && Severity::Warning < Severity::Critical);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// It may be intended.
    Notice,
    /// Locks can be lost without any error.
    Warning,
    /// Two clients can hold a lock at once there: the server is refused.
    Critical,
}

/// The kind of a finding. Its text says what was found and why it matters; [`remedy`](Self::remedy) says what to do.
///
/// ```
/// use leasehold::store::FindingKind;
///
/// let replica = FindingKind::Replica { writes: false };
/// println!("{replica}: {}", replica.remedy());
/// assert_eq!(replica.as_str(), "replica");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// The server's eviction policy can remove locks. Every policy but `noeviction` can, as each key of Leasehold has
    /// an expiry.
    Eviction {
        /// The policy.
        policy: String,
        /// The limit in bytes above which it evicts; 0 if there is no limit, so that nothing is evicted.
        maxmemory: u64,
    },
    /// The server has reached its memory limit, and evicts nothing.
    MemoryFull {
        /// Bytes in use.
        used: u64,
        /// The limit in bytes.
        maxmemory: u64,
    },
    /// The server keeps no append-only file. On a single server this may be intended, since holders detect a restart;
    /// a node of a quorum that has forgotten its vote may vote twice.
    NotPersistent,
    /// The server is a replica.
    Replica {
        /// Whether it accepts writes.
        writes: bool,
    },
    /// The server has replicas, and takes writes while it is cut off from all of them (`min-replicas-to-write 0`).
    WritesWithoutReplicas {
        /// How many replicas are connected.
        replicas: u64,
    },
    /// The Lua interpreter of the server's version has known vulnerabilities.
    LuaVulnerabilities {
        /// Its product and version.
        server: String,
        /// The names of the vulnerabilities.
        vulnerabilities: Vec<String>,
        /// The version in which all of these are fixed.
        fixed_in: String,
    },
    /// The product does not keep two clients from holding a lock at once.
    NotExclusive {
        /// Its product and version.
        server: String,
        /// Why not.
        why: &'static str,
    },
    /// The product is none that Leasehold is tested with.
    UntestedProduct {
        /// Its product and version.
        server: String,
    },
    /// What locks need was tried there, and failed.
    FailedTrial {
        /// What was tried.
        trial: TrialKind,
        /// What was seen instead.
        seen: String,
    },
    /// The clocks of server and client differ by more than a second.
    ClockDiffers(ClockDifference),
    /// It is one of several servers of a store, and cannot be queried, for this reason.
    Unreachable(String),
    /// The user may not query the server's settings.
    InfoDenied,
}

/// The difference between a server's clock and the client's.
///
/// ```
/// use leasehold::store::ClockDifference;
/// use std::time::Duration;
///
/// let behind = ClockDifference { ahead_us: -1_500_000, uncertainty: Duration::from_micros(80) };
/// assert_eq!(behind.to_string(), "1.5s behind ours, give or take 80µs");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// Microseconds by which the server's clock is ahead; negative if it is behind.
    pub ahead_us: i64,
    /// The error bound: half of the round trip.
    pub uncertainty: Duration,
}

impl Finding {
    /// Creates a finding.
    pub const fn new(kind: FindingKind, severity: Severity) -> Self {
        Self { kind, severity }
    }
}

impl fmt::Display for Finding {
    /// What it is, why it matters, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.kind.remedy())
    }
}

impl FindingKind {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Eviction { .. } => "set `maxmemory-policy noeviction`".to_owned(),
            Self::MemoryFull { .. } => "raise `maxmemory`, or free some".to_owned(),
            Self::NotPersistent => {
                "set `appendonly yes`, with `appendfsync always` where a restart may lose nothing".to_owned()
            }
            Self::Replica { .. } => {
                "connect to its primary, or through its Sentinels with `redis+sentinel://`".to_owned()
            }
            Self::WritesWithoutReplicas { .. } => {
                "with two replicas or more, set `min-replicas-to-write 1` on all servers, and `min-replicas-max-lag` below \
                 the time that a promotion takes; with one, a promoted server would refuse all writes"
                    .to_owned()
            }
            Self::LuaVulnerabilities { fixed_in, .. } => format!(
                "upgrade to {fixed_in} or later, or ask your distribution; until then allow no other user to run scripts there"
            ),
            Self::NotExclusive { .. } => {
                "use Redis or Valkey for locks, or `?probe=skip` if this deployment is set up otherwise".to_owned()
            }
            Self::UntestedProduct { .. } => {
                "look it up in docs/reference/servers.md, and run `leasehold doctor` against it".to_owned()
            }
            Self::FailedTrial { trial, .. } if trial.is_needed_for_exclusion() => {
                "use Redis or Valkey for locks, and report this with the output of `leasehold doctor`".to_owned()
            }
            Self::FailedTrial { .. } => "let the user and the network pass messages".to_owned(),
            Self::ClockDiffers(_) => "let NTP slew both clocks, and not step them".to_owned(),
            Self::Unreachable(_) => "check that it runs and that this host may connect to it".to_owned(),
            Self::InfoDenied => "allow INFO to the user, or connect as another one".to_owned(),
        }
    }

    /// A stable identifier.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Eviction { .. } => "eviction",
            Self::MemoryFull { .. } => "memory_full",
            Self::NotPersistent => "not_persistent",
            Self::Replica { .. } => "replica",
            Self::WritesWithoutReplicas { .. } => "writes_without_replicas",
            Self::LuaVulnerabilities { .. } => "lua_vulnerabilities",
            Self::NotExclusive { .. } => "not_exclusive",
            Self::UntestedProduct { .. } => "untested_product",
            Self::FailedTrial { .. } => "failed_trial",
            Self::ClockDiffers(_) => "clock_differs",
            Self::Unreachable(_) => "unreachable",
            Self::InfoDenied => "info_denied",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { policy, maxmemory: 0 } => write!(
                f,
                "its eviction policy is `{policy}`; it would remove locks if it had a `maxmemory`"
            ),
            Self::Eviction { policy, maxmemory } => write!(
                f,
                "its eviction policy is `{policy}`: when its {maxmemory} bytes are full it removes held locks, \
                 and other clients acquire them"
            ),
            Self::MemoryFull { used, maxmemory } => write!(
                f,
                "its memory is full, with {used} bytes of {maxmemory}: no client can acquire a lock; releases and renewals go on"
            ),
            Self::NotPersistent => f.write_str(
                "it keeps no append-only file: a restart loses the locks that were granted since its last snapshot, or \
                 all of them",
            ),
            Self::Replica { writes: false } => {
                f.write_str("it is a replica, and accepts no writes: no client can acquire a lock there")
            }
            Self::Replica { writes: true } => f.write_str(
                "it is a replica that accepts writes: its locks are known nowhere else, and its primary's data replace \
                 them at any time",
            ),
            Self::WritesWithoutReplicas { replicas } => write!(
                f,
                "it has replicas ({replicas}), and takes writes without any: cut off from them it grants and renews locks that \
                 the promoted replica grants to others, for as long as the partition lasts"
            ),
            Self::LuaVulnerabilities { server, vulnerabilities, .. } => write!(
                f,
                "the Lua of its version, {server}, has known vulnerabilities ({}; distributions may have fixed them under the \
                 same number): a user who may run scripts there may crash it, or do more",
                vulnerabilities.join(", ")
            ),
            Self::NotExclusive { server, why } => {
                write!(f, "it is {server}, where two clients can hold a lock at once: {why}")
            }
            Self::UntestedProduct { server } => {
                write!(f, "it is {server}, which Leasehold is not tested with: what locks need most was tried there, not all")
            }
            Self::FailedTrial { trial, seen } if trial.is_needed_for_exclusion() => write!(
                f,
                "it cannot keep locks apart, as a trial shows: {}; seen: {seen}",
                trial.description()
            ),
            Self::FailedTrial { trial, seen } => write!(
                f,
                "waiters there poll, since a trial failed: {}; seen: {seen}",
                trial.description()
            ),
            Self::ClockDiffers(difference) => write!(
                f,
                "its clock is {difference}, so one of the two is wrong: locks do not use the client's, but a clock that is \
                 corrected by a step ends holds early or late"
            ),
            Self::Unreachable(why) => write!(f, "it cannot be queried: {why}"),
            Self::InfoDenied => f.write_str("the user may not run INFO: its settings are unknown"),
        }
    }
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (apart, side) = (
            Duration::from_micros(self.ahead_us.unsigned_abs()),
            if self.ahead_us < 0 { "behind" } else { "ahead of" },
        );
        write!(f, "{apart:?} {side} ours, give or take {:?}", self.uncertainty)
    }
}
