//! What a store can do.

use std::time::Duration;

/// What a store can do, besides executing operations: [`Store::capabilities`](crate::Store::capabilities).
///
/// The default is a store of one partition that has a queue for each lock and delivers messages, without the rest.
///
/// ```
/// use leasehold::store::{Capabilities, MemoryStore, QuorumStore, SessionTracking, Store};
/// use std::sync::Arc;
///
/// let memory = MemoryStore::new();
/// assert_eq!(memory.capabilities(), Capabilities::default().sessions(SessionTracking::ByHeartbeat));
///
/// let quorum = QuorumStore::new((0..3).map(|_| Arc::new(memory.clone()) as Arc<dyn Store>))?;
/// assert!(!quorum.capabilities().queue);
/// # Ok::<(), leasehold::store::QuorumError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "they are independent of one another")]
pub struct Capabilities {
    /// Whether it has more than one partition. A session then begins in a partition when a hold there is first extended, or
    /// a request first waits there, and ends when it has been unused for a while: a failure of one partition does not affect holds in the others.
    pub partitioned: bool,
    /// Whether it delivers messages. Otherwise waiters poll more often.
    pub notifications: bool,
    /// Whether each lock has a queue, and a release grants the lock to the first waiter in it. Otherwise waiters poll, each
    /// time with a new hold, and [subscribe](crate::Store::subscribe) to releases.
    pub queue: bool,
    /// The longest lease that it accepts, if limited.
    pub max_lease: Option<Duration>,
    /// How it tracks which sessions are alive.
    pub sessions: SessionTracking,
    /// Whether it is configured so that a hold counts only once it is [confirmed](crate::Store::confirm): by replicas, or by the disk. Its extends are
    /// unknown until they are confirmed.
    pub confirmation: bool,
}

impl Capabilities {
    /// Sets [`partitioned`](Self#structfield.partitioned).
    #[must_use]
    pub const fn partitioned(mut self, partitioned: bool) -> Self {
        self.partitioned = partitioned;
        self
    }

    /// Sets [`notifications`](Self#structfield.notifications).
    #[must_use]
    pub const fn notifications(mut self, notifications: bool) -> Self {
        self.notifications = notifications;
        self
    }

    /// Sets [`queue`](Self#structfield.queue).
    #[must_use]
    pub const fn queue(mut self, queue: bool) -> Self {
        self.queue = queue;
        self
    }

    /// Sets [`max_lease`](Self#structfield.max_lease).
    #[must_use]
    pub const fn max_lease(mut self, max: Option<Duration>) -> Self {
        self.max_lease = max;
        self
    }

    /// Sets [`sessions`](Self#structfield.sessions).
    #[must_use]
    pub const fn sessions(mut self, sessions: SessionTracking) -> Self {
        self.sessions = sessions;
        self
    }

    /// Sets [`confirmation`](Self#structfield.confirmation).
    #[must_use]
    pub const fn confirmation(mut self, confirmation: bool) -> Self {
        self.confirmation = confirmation;
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            partitioned: false,
            notifications: true,
            queue: true,
            max_lease: None,
            sessions: SessionTracking::Never,
            confirmation: false,
        }
    }
}

/// How a store tracks which sessions are alive.
///
/// ```
/// use leasehold::store::{MemoryStore, SessionTracking, Store};
///
/// assert_eq!(MemoryStore::new().capabilities().sessions, SessionTracking::ByHeartbeat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionTracking {
    /// It does not: the holds of a dead process end with their leases alone.
    Never,
    /// By their [heartbeats](leasehold_core::Heartbeat).
    ByHeartbeat,
    /// By itself: it registers each session once, and needs no heartbeats.
    ByStore,
}
