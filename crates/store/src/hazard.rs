//! What can make a store fail the locks in it.
//!
//! Owns the words: what it is, why it matters, what to do. Who looks, and when, is each store's own.

use std::fmt;
use std::time::Duration;

/// Something about a store that can make it fail its locks.
///
/// A [warning](Severity::Warning) is logged when a store connects, each once, and with
/// `RedisConfig::strict` it is an error instead:
/// [`FaultKind::Hazardous`](crate::FaultKind::Hazardous). All of them are in an [`Examination`](crate::Examination).
///
/// ```
/// use leasehold::store::{Hazard, HazardKind, Severity};
///
/// fn has_to_be_mended(hazards: &[Hazard]) -> Vec<String> {
///     let serious = hazards.iter().filter(|hazard| hazard.severity >= Severity::Warning);
///     serious.map(|hazard| format!("{}: {}", hazard.kind, hazard.kind.remedy())).collect()
/// }
///
/// let kind = HazardKind::Eviction { policy: "allkeys-lru".into(), maxmemory: 1 << 30 };
/// let found = [Hazard::new(HazardKind::NotPersistent, Severity::Notice), Hazard::new(kind, Severity::Warning)];
/// assert!(has_to_be_mended(&found)[0].contains("noeviction"));
/// assert_eq!(has_to_be_mended(&found).len(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hazard {
    /// What it is.
    pub kind: HazardKind,
    /// How much it matters where it was found.
    pub severity: Severity,
}

/// How much a hazard matters.
///
/// ```
/// use leasehold::store::Severity;
///
/// assert!(Severity::Notice < Severity::Warning);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// It can be meant so: good to know.
    Notice,
    /// Locks can be lost while all seems well.
    Warning,
}

/// What a hazard is. Its text says what there is and why it matters; [`remedy`](Self::remedy), what to do.
///
/// ```
/// use leasehold::store::HazardKind;
///
/// let replica = HazardKind::Replica { writes: false };
/// println!("{replica}: {}", replica.remedy());
/// assert_eq!(replica.word(), "replica");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HazardKind {
    /// The server's eviction policy can remove locks. All but `noeviction` can: each key of ours has an expiry.
    Eviction {
        /// The policy.
        policy: String,
        /// With how many bytes it begins; 0 if there is no such limit, so that nothing is removed.
        maxmemory: u64,
    },
    /// The server has as much as it may have, and removes nothing.
    MemoryFull {
        /// How many bytes it has.
        used: u64,
        /// How many it may have.
        maxmemory: u64,
    },
    /// The server keeps no append-only file. On one server that can be meant so, since holders learn of a restart; in a
    /// majority of several a server that has forgotten its vote may vote twice.
    NotPersistent,
    /// The server is a replica.
    Replica {
        /// Whether it takes writes all the same.
        writes: bool,
    },
    /// The server is of a version whose Lua has known holes.
    LuaHoles {
        /// Its product and version.
        server: String,
        /// The names of the holes.
        holes: Vec<String>,
        /// The version that has none of them that are known here.
        mended_in: String,
    },
    /// The server's clock and ours differ by more than a second.
    ClockApart(ClockDifference),
    /// It is one of several servers of a store, and cannot be asked, for this reason.
    Unreachable(String),
    /// The user may not ask the server about itself.
    NotTold,
}

/// How far a server's clock is from ours.
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
    /// By how many microseconds the server's clock is ahead of ours; less than 0 where it is behind.
    pub ahead_us: i64,
    /// How wrong that can be: half of the round trip.
    pub uncertainty: Duration,
}

impl Hazard {
    /// A hazard that matters so much.
    pub const fn new(kind: HazardKind, severity: Severity) -> Self {
        Self { kind, severity }
    }
}

impl fmt::Display for Hazard {
    /// What it is, why it matters, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.kind.remedy())
    }
}

impl HazardKind {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Eviction { .. } => "set `maxmemory-policy noeviction`".to_owned(),
            Self::MemoryFull { .. } => "raise `maxmemory`, or free some".to_owned(),
            Self::NotPersistent => {
                "set `appendonly yes`, with `appendfsync always` where a restart may lose nothing".to_owned()
            }
            Self::Replica { .. } => {
                "connect to its primary, or by its Sentinels with `redis+sentinel://`".to_owned()
            }
            Self::LuaHoles { mended_in, .. } => format!(
                "upgrade to {mended_in} or later, or ask your distribution; until then let nobody else run scripts there"
            ),
            Self::ClockApart(_) => "have both slewed by NTP, and not stepped".to_owned(),
            Self::Unreachable(_) => "see whether it runs, and who may reach it".to_owned(),
            Self::NotTold => "allow INFO to the user, or look as another one".to_owned(),
        }
    }

    /// A word for it, which stays as it is.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Eviction { .. } => "eviction",
            Self::MemoryFull { .. } => "memory_full",
            Self::NotPersistent => "not_persistent",
            Self::Replica { .. } => "replica",
            Self::LuaHoles { .. } => "lua_holes",
            Self::ClockApart(_) => "clock_apart",
            Self::Unreachable(_) => "unreachable",
            Self::NotTold => "not_told",
        }
    }
}

impl fmt::Display for HazardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { policy, maxmemory: 0 } => write!(
                f,
                "its eviction policy is `{policy}`, and only that it has no `maxmemory` keeps it from removing locks"
            ),
            Self::Eviction { policy, maxmemory } => write!(
                f,
                "its eviction policy is `{policy}`: when its {maxmemory} bytes are full it removes locks that are held, \
                 and others get them"
            ),
            Self::MemoryFull { used, maxmemory } => write!(
                f,
                "its memory is full, with {used} bytes of {maxmemory}: nobody acquires a lock; releases and renewals go on"
            ),
            Self::NotPersistent => f.write_str(
                "it keeps no append-only file: a restart loses the locks that were given since its last snapshot, or \
                 all of them",
            ),
            Self::Replica { writes: false } => {
                f.write_str("it is a replica, and takes no writes: nobody acquires a lock there")
            }
            Self::Replica { writes: true } => f.write_str(
                "it is a replica that takes writes: its locks are known nowhere else, and its primary's data replace \
                 them at any time",
            ),
            Self::LuaHoles { server, holes, .. } => write!(
                f,
                "by its version, {server}, its Lua has known holes ({}; distributions may have mended them under the \
                 same number): who may run scripts there may crash it, or do more",
                holes.join(", ")
            ),
            Self::ClockApart(difference) => write!(
                f,
                "its clock is {difference}, so one of the two is wrong: locks do not go by ours, but a clock that is \
                 put right by a step ends holds early, or late"
            ),
            Self::Unreachable(why) => write!(f, "it serves nobody: {why}"),
            Self::NotTold => f.write_str("the user may not run INFO: nothing is known of its settings"),
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
