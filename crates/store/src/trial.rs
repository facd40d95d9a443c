//! What was tried on a server, and what came out.
//!
//! Owns the names and the wording. The store of a server decides what it tries, and when.

use std::fmt;

/// A property of a server that locks need, and that was tried on a key of Leasehold's own, not assumed from its version.
///
/// ```
/// use leasehold::store::{Trial, TrialKind, TrialOutcome};
///
/// let trial = Trial::new(TrialKind::SetNx, TrialOutcome::Failed("a second SET succeeded".into()));
/// assert_eq!(trial.to_string(), "set_nx: failed, a second SET succeeded");
/// assert!(trial.kind.is_needed_for_exclusion());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trial {
    /// What was tried.
    pub kind: TrialKind,
    /// What came out.
    pub outcome: TrialOutcome,
}

/// What came out of a [`Trial`].
///
/// ```
/// use leasehold::store::TrialOutcome;
///
/// assert_eq!(TrialOutcome::NotTried("permission denied".into()).to_string(), "not tried, permission denied");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrialOutcome {
    /// As locks need it.
    Passed,
    /// Not as locks need it: what was seen instead.
    Failed(String),
    /// Unknown, for this reason.
    NotTried(String),
}

/// What is tried on a server.
///
/// ```
/// use leasehold::store::TrialKind;
///
/// assert_eq!(TrialKind::Atomicity.as_str(), "atomicity");
/// assert!(!TrialKind::Messages.is_needed_for_exclusion()); // without messages, waiters poll
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TrialKind {
    /// A Lua script is loaded and run by its SHA-1.
    Scripts,
    /// A script gets the server's time, as two numbers or their texts.
    Time,
    /// A script gets an error as a table, whose text begins with the error's code.
    Errors,
    /// `SET` with `NX` and `PX` sets a key once, and a script sees whether it did.
    SetNx,
    /// Expiries are in milliseconds, and can be read, changed and set to a moment.
    Expiry,
    /// Fields of a hash can be written, read and counted.
    Hashes,
    /// The kind of a key can be read.
    Kinds,
    /// While a script runs, no script of another connection does.
    Atomicity,
    /// A message that is published reaches a subscription.
    Messages,
    /// `WAIT` tells how many replicas have a write. Tried where the client waits for replicas.
    Replicas,
    /// `WAITAOF` tells whether a write is on the server's disk. Tried where the client waits for that.
    Disk,
}

impl Trial {
    /// Creates a trial with its outcome.
    pub const fn new(kind: TrialKind, outcome: TrialOutcome) -> Self {
        Self { kind, outcome }
    }
}

impl TrialKind {
    /// A stable identifier.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scripts => "scripts",
            Self::Time => "time",
            Self::Errors => "errors",
            Self::SetNx => "set_nx",
            Self::Expiry => "expiry",
            Self::Hashes => "hashes",
            Self::Kinds => "kinds",
            Self::Atomicity => "atomicity",
            Self::Messages => "messages",
            Self::Replicas => "replicas",
            Self::Disk => "disk",
        }
    }

    /// Whether two clients might hold a lock at once on a server without this property. The other properties cost time
    /// only.
    pub const fn is_needed_for_exclusion(self) -> bool {
        !matches!(self, Self::Messages)
    }

    /// What is tried, in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Scripts => "a script is loaded, and run by its SHA-1",
            Self::Time => "a script gets the server's time",
            Self::Errors => "a script gets an error with its code",
            Self::SetNx => "SET with NX and PX sets a key once",
            Self::Expiry => "expiries are in milliseconds",
            Self::Hashes => "fields of a hash are written and read",
            Self::Kinds => "the kind of a key is read",
            Self::Atomicity => "scripts of two connections do not interleave",
            Self::Messages => "a published message reaches a subscription",
            Self::Replicas => "WAIT tells how many replicas have a write",
            Self::Disk => "WAITAOF tells whether a write is on disk",
        }
    }
}

impl fmt::Display for TrialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for TrialOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(seen) => write!(f, "failed, {seen}"),
            Self::NotTried(why) => write!(f, "not tried, {why}"),
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.outcome)
    }
}
