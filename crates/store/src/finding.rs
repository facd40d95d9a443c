//! Findings: what can make a store lose locks, and what a store reports about itself.
//!
//! Owns the wording: what a finding is, why it matters, and what to do. Each store decides itself what it checks and
//! when.

use crate::trial::TrialKind;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A finding about a store that can make it lose locks.
///
/// A [warning](Severity::Warning) is logged once when a store connects. With
/// `RedisConfig::strict` it is an error instead:
/// [`FaultKind::Unsafe`](crate::FaultKind::Unsafe). So is always a finding that is [critical](Severity::Critical).
/// What the user has accepted is neither: `RedisConfig::accept`. A [`Diagnosis`](crate::Diagnosis) contains all findings,
/// and [`Store::findings`](crate::Store::findings) those of the connections.
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
    /// Whether the user has accepted findings of this [code](FindingKind::code).
    pub accepted: bool,
}

/// A finding about one of the servers of a store: [`Store::findings`](crate::Store::findings).
///
/// ```
/// use leasehold::store::{Finding, FindingKind, ServerFinding, Severity};
///
/// let finding = Finding::new(FindingKind::InfoDenied, Severity::Notice);
/// let found = ServerFinding::new("locks.example:6379", finding);
/// assert!(found.to_string().starts_with("locks.example:6379: the user may not run INFO"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerFinding {
    /// The server: its address, or the primary's name and its Sentinels. It contains no user and no password.
    pub node: String,
    /// What was found there.
    pub finding: Finding,
}

/// The stable identifier of a kind of finding, which is what a user accepts.
///
/// ```
/// use leasehold::store::FindingCode;
///
/// assert_eq!("eviction".parse(), Ok(FindingCode::Eviction));
/// assert_eq!(FindingCode::Eviction.as_str(), "eviction");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingCode {
    /// [`FindingKind::Eviction`]
    Eviction,
    /// [`FindingKind::EvictionUnknown`]
    EvictionUnknown,
    /// [`FindingKind::MemoryFull`]
    MemoryFull,
    /// [`FindingKind::NotPersistent`]
    NotPersistent,
    /// [`FindingKind::Replica`]
    Replica,
    /// [`FindingKind::WritesWithoutReplicas`]
    WritesWithoutReplicas,
    /// [`FindingKind::LuaVulnerabilities`]
    LuaVulnerabilities,
    /// [`FindingKind::RestoreVulnerabilities`]
    RestoreVulnerabilities,
    /// [`FindingKind::NotExclusive`]
    NotExclusive,
    /// [`FindingKind::UntestedProduct`]
    UntestedProduct,
    /// [`FindingKind::FailedTrial`]
    FailedTrial,
    /// [`FindingKind::ClockDiffers`]
    ClockDiffers,
    /// [`FindingKind::Unreachable`]
    Unreachable,
    /// [`FindingKind::InfoDenied`]
    InfoDenied,
}

/// Error for a text that is no code of a finding.
///
/// ```
/// use leasehold::store::FindingCode;
///
/// let error = "evictions".parse::<FindingCode>().unwrap_err();
/// assert!(error.to_string().contains("`eviction`"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("findings that can be accepted are {}", FindingCode::acceptable_codes())]
#[non_exhaustive]
pub struct FindingCodeError;

impl FindingCode {
    /// All codes.
    pub const ALL: [Self; 14] = [
        Self::Eviction,
        Self::EvictionUnknown,
        Self::MemoryFull,
        Self::NotPersistent,
        Self::Replica,
        Self::WritesWithoutReplicas,
        Self::LuaVulnerabilities,
        Self::RestoreVulnerabilities,
        Self::NotExclusive,
        Self::UntestedProduct,
        Self::FailedTrial,
        Self::ClockDiffers,
        Self::Unreachable,
        Self::InfoDenied,
    ];

    /// The text of the code, as in a log and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::EvictionUnknown => "eviction_unknown",
            Self::MemoryFull => "memory_full",
            Self::NotPersistent => "not_persistent",
            Self::Replica => "replica",
            Self::WritesWithoutReplicas => "writes_without_replicas",
            Self::LuaVulnerabilities => "lua_vulnerabilities",
            Self::RestoreVulnerabilities => "restore_vulnerabilities",
            Self::NotExclusive => "not_exclusive",
            Self::UntestedProduct => "untested_product",
            Self::FailedTrial => "failed_trial",
            Self::ClockDiffers => "clock_differs",
            Self::Unreachable => "unreachable",
            Self::InfoDenied => "info_denied",
        }
    }

    /// Whether a user can accept such findings. A server that does not exclude is used with `?probe=skip` only, and of one
    /// that does not answer nothing is known.
    pub const fn is_acceptable(self) -> bool {
        !matches!(self, Self::NotExclusive | Self::FailedTrial | Self::Unreachable)
    }

    /// The codes that can be accepted, for a message.
    fn acceptable_codes() -> String {
        let codes = Self::ALL.into_iter().filter(|code| code.is_acceptable());
        codes.map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Parses a code that can be [accepted](FindingCode::is_acceptable).
impl FromStr for FindingCode {
    type Err = FindingCodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|code| code.as_str() == text && code.is_acceptable());
        found.ok_or(FindingCodeError)
    }
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
    /// Two clients can hold a lock at once there: the server is refused, unless the user has accepted the finding.
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
    /// The server does not report its eviction policy.
    EvictionUnknown,
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
    /// The RESTORE of the server's version has known vulnerabilities. Leasehold does not use it.
    RestoreVulnerabilities {
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
    /// Creates a finding that is not accepted.
    pub const fn new(kind: FindingKind, severity: Severity) -> Self {
        Self { kind, severity, accepted: false }
    }

    /// Whether it is more than a notice, and not accepted.
    pub fn needs_action(&self) -> bool {
        self.severity >= Severity::Warning && !self.accepted
    }
}

impl ServerFinding {
    /// Creates a finding about a server.
    pub fn new(node: impl Into<String>, finding: Finding) -> Self {
        Self { node: node.into(), finding }
    }
}

impl fmt::Display for ServerFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.finding)
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
            Self::EvictionUnknown => {
                "make sure that its `maxmemory-policy` is `noeviction`".to_owned()
            }
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
            Self::RestoreVulnerabilities { fixed_in, .. } => format!(
                "upgrade to {fixed_in} or later, or ask your distribution; until then allow no user to run RESTORE"
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
    pub const fn code(&self) -> FindingCode {
        match self {
            Self::Eviction { .. } => FindingCode::Eviction,
            Self::EvictionUnknown => FindingCode::EvictionUnknown,
            Self::MemoryFull { .. } => FindingCode::MemoryFull,
            Self::NotPersistent => FindingCode::NotPersistent,
            Self::Replica { .. } => FindingCode::Replica,
            Self::WritesWithoutReplicas { .. } => FindingCode::WritesWithoutReplicas,
            Self::LuaVulnerabilities { .. } => FindingCode::LuaVulnerabilities,
            Self::RestoreVulnerabilities { .. } => FindingCode::RestoreVulnerabilities,
            Self::NotExclusive { .. } => FindingCode::NotExclusive,
            Self::UntestedProduct { .. } => FindingCode::UntestedProduct,
            Self::FailedTrial { .. } => FindingCode::FailedTrial,
            Self::ClockDiffers(_) => FindingCode::ClockDiffers,
            Self::Unreachable(_) => FindingCode::Unreachable,
            Self::InfoDenied => FindingCode::InfoDenied,
        }
    }

    /// The text of its [code](Self::code).
    pub const fn as_str(&self) -> &'static str {
        self.code().as_str()
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
            Self::EvictionUnknown => f.write_str(
                "it does not report its eviction policy: every policy but `noeviction` removes held locks when the memory \
                 is full",
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
            Self::RestoreVulnerabilities { server, vulnerabilities, .. } => write!(
                f,
                "the RESTORE of its version, {server}, has known vulnerabilities ({}; distributions may have fixed them under \
                 the same number): a user who may run it may crash the server, or do more; Leasehold does not need it",
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
