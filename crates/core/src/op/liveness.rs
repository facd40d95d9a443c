//! What ends a hold or a queue entry before its time.

use serde::{Deserialize, Serialize};

/// What ends a hold, or a queue entry, before its own time has run out.
///
/// ```
/// use leasehold_core::Liveness;
///
/// // One hold ends with the heartbeat of its process; the other one can move between processes.
/// assert!(Liveness::Session { alive_ms: 10_000 }.ends_with_session() && !Liveness::Lease.ends_with_session());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// The death of its session: once the session has sent no heartbeat for too long, any client may have the
    /// hold ended.
    ///
    /// A session that the store does not know may still be alive: the store may have lost it together with
    /// all its other data. The next heartbeat reports this to its client, which until then relies on the session only for
    /// as long as the last heartbeat allows. A hold of an unknown session may therefore be ended only once
    /// it is older than that.
    Session {
        /// How long the session lives without a heartbeat, in milliseconds.
        alive_ms: u64,
    },
    /// Nothing: the session is not recorded in any store, and its absence means nothing.
    Lease,
}

impl Liveness {
    /// Whether the death of its session ends it.
    pub const fn ends_with_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}
