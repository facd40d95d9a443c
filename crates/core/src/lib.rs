//! The meaning of a lock held by lease, without any IO.
//!
//! This crate owns the vocabulary of Leasehold (names, hold ids, leases, fencing tokens, the keys of a lock),
//! the operations that a store executes ([`Op`], [`Reply`], [`Notification`], and [`SessionOp`] for sessions), their
//! meaning ([`model`]), and the state machines that decide what a client sends and when ([`contender`](machine::contender) acquires
//! a lock, [`renewal`](machine::renewal) keeps it, [`cohort`](machine::cohort) hands it off inside a process, [`heartbeat`](machine::heartbeat) keeps a session alive).
//!
//! It deliberately has no sockets, no clock, no threads and no source of randomness. `now` and random bits
//! come in as arguments, so that the same code runs in production, in the embedded stores and in a simulated
//! world.

pub mod machine;
pub mod model;
mod op;
mod types;

pub use op::acquire::{Acquire, Acquired, Enqueue, OwnerHolds, Predecessor};
pub use op::acquire_all::MultiAcquired;
pub use op::claim::{Claim, RESERVED_OWNER};
pub use op::evict::{Evict, Evicted};
pub use op::executed::Executed;
pub use op::extend::{Extend, Extended, Reserve};
pub use op::force_release::{ForceRelease, ForceReleased, ObservedHolder};
pub use op::holder::Holder;
pub use op::inspect::{Inspect, Inspection, MAX_LISTED_WAITERS, MAX_SHARED_HOLDERS, QueuedWaiter};
pub use op::kind::Kind;
pub use op::liveness::Liveness;
pub use op::lock::Lock;
pub use op::mode::LockMode;
pub use op::notification::{Notification, NotificationError};
pub use op::proclaim::{Proclaim, Proclaimed};
pub use op::raise_fence::{FenceRaised, RaiseFence};
pub use op::refused::Refused;
pub use op::release::{Release, ReleaseAction, Released};
pub use op::resize::{Resize, Resized};
pub use op::session::{
    Heartbeat, HeartbeatReply, SessionEntry, SessionList, SessionMetadata, SessionOp, SessionReply,
};
pub use op::skipped::Skipped;
pub use op::statistics::{ClassStatistics, MergeStatistics, StatisticsList, TimeHistogram};
pub use op::status::HoldStatus;
pub use op::votes::Votes;
pub use op::{Op, Reply};
pub use types::audit::{AuditEntry, Ended, Fingerprint, ParseFingerprintError};
pub use types::duration::{DurationError, parse_duration};
pub use types::fence::{FencingToken, ParseFencingTokenError};
pub use types::history::{HistoryEntry, MAX_HISTORY};
pub use types::id::{HoldId, Nonce, ParseIdError, Partition, SessionId};
pub use types::key::{KeyError, KeySpace, LockKeys};
pub use types::label::{Label, LabelError, OwnValue, OwnValueError};
pub use types::lease::{Lease, LeaseError};
pub use types::name::{KeyedName, LockName, NameError};
pub use types::retry::{Backoff, RetryPolicy};
pub use types::time::{Moment, delay_margin, drift, whole_millis};
pub use types::token_block::TokenBlock;

/// The first lease of every hold that excludes others, unless the caller requested a shorter one.
///
/// It bounds the life of a hold that no client wants any more (its acquire arrived after its undo), and one
/// rule of validity covers both the reply to an acquire and a grant from the queue. The keeper extends the
/// lease when it is due.
pub const FIRST_LEASE: std::time::Duration = std::time::Duration::from_secs(3);

/// How long the record beside a lock (fencing token, last ended hold, queue) outlives a hold or a waiter that no release
/// ended, and how long the fencing tokens of idle locks are remembered.
pub const RECORD_TTL: std::time::Duration = std::time::Duration::from_secs(3600);

/// How long a store remembers the holds of a lock that a release left idle: for a release that is sent again. A call, with
/// its repetitions, takes 2 s unless the client is built with another limit.
pub const RELEASED_TTL: std::time::Duration = std::time::Duration::from_secs(5);

/// How long the store keeps the audit of evictions and forced releases.
pub const AUDIT_TTL: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// How long the store keeps the history of a lock after its newest entry.
pub const HISTORY_TTL: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// How long the store keeps statistics after the first ones: then all of them begin anew.
pub const STATISTICS_TTL: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// The largest number of classes in the statistics of a store, without [`OTHER_CLASS`].
pub const MAX_CLASSES: usize = 200;

/// The class of the locks of all further classes.
pub const OTHER_CLASS: &str = "other";

/// How long a store remembers a dead session, in addition to the session's own time to live without a
/// heartbeat.
pub const DEAD_SESSION_TTL: std::time::Duration = std::time::Duration::from_secs(5);

/// The format version of what Leasehold writes beside a lock. A store refuses to touch a record of another
/// version.
pub const FORMAT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The scripts and the documents name the same times.
    #[test]
    fn what_the_store_keeps_lasts_for_the_documented_time() {
        let week = 604_800;
        let kept = [RECORD_TTL, RELEASED_TTL, AUDIT_TTL, HISTORY_TTL, STATISTICS_TTL, DEAD_SESSION_TTL];
        assert_eq!(kept.map(|ttl| ttl.as_secs()), [3_600, 5, week, week, week, 5]);
    }
}
