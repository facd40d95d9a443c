//! Reading the state of a lock.

use crate::{AuditEntry, Claim, Fingerprint, HistoryEntry, HoldStatus, Holder, Skipped, Votes};

/// Read the state of the lock.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// Set to learn the status of a hold.
    pub claim: Option<Claim>,
    /// Set to also read what only people need: [`Inspection::foreign_fingerprint`] and [`Inspection::audit`].
    pub details: bool,
}

/// The state of a lock.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The holder.
    pub holder: Option<Holder>,
    /// How many sessions wait for the lock.
    pub waiters: u64,
    /// The status of the hold that the request named.
    pub hold_status: Option<HoldStatus>,
    /// The fingerprint of the value at the key, where a client of another library holds the lock. Only with
    /// [details](Inspect::details).
    pub foreign_fingerprint: Option<Fingerprint>,
    /// The evictions and forced releases of this lock, most recent first. Only with [details](Inspect::details).
    pub audit: Vec<AuditEntry>,
    /// The last holds that were released with a [history](crate::Release::history), most recent first. Only with
    /// [details](Inspect::details).
    pub history: Vec<HistoryEntry>,
    /// All holders of a shared lock, oldest first; no more than [`MAX_SHARED_HOLDERS`]. Empty for a Mutex or a
    /// ReentrantMutex.
    pub shared_holders: Vec<Holder>,
    /// The total number of permits, arrivals or parties, for a lock that counts them and where it is known.
    pub limit: Option<u32>,
    /// The number of permits with which the clients acquire, if a [resize](crate::Resize) has set another limit; 0 until one
    /// of them acquires.
    pub agreed: Option<u32>,
    /// How many nodes of a quorum report this holder; `None` for any other store, and without a holder.
    pub votes: Option<Votes>,
    /// Set by a quorum, and by a node of one, if the lock has no holder and yet no client can acquire it for that many
    /// milliseconds: too few nodes are free, or vote.
    pub blocked_ms: Option<u64>,
    /// What is left out because it cannot be read: holders and lines of the audit that no client of this library has
    /// written like that. Only with [details](Inspect::details).
    pub skipped: Skipped,
}

/// The maximum number of holders of a shared lock that an inspection returns, so that every reply is bounded.
pub const MAX_SHARED_HOLDERS: usize = 4096;
