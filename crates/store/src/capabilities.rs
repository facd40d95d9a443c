//! What a store can do.

use std::time::Duration;

/// What a store can do, beside executing operations: [`Store::capabilities`](crate::Store::capabilities).
///
/// The default is a store in one place that has a queue for each lock and delivers messages, and does nothing of the rest.
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
    /// Whether it has more than one place. Sessions then begin in each of them when it is first used, and end when it has
    /// not been for a while: what becomes of one place does not touch what is held in the others.
    pub partitioned: bool,
    /// Whether messages can come at all. Where they cannot, waiters look more often.
    pub notifications: bool,
    /// Whether it has a queue for each lock, whose first is granted the lock when it is released. Where it has none, whoever
    /// waits asks again and again, each time for another hold, and [listens](crate::Store::listen) for a reason to do so.
    pub queue: bool,
    /// The longest lease that it may be asked to keep, if there is such a limit.
    pub longest_lease: Option<Duration>,
    /// How it knows which sessions are alive.
    pub sessions: SessionTracking,
    /// Whether a hold counts only once others have [confirmed](crate::Store::confirm) it, since this store is configured so.
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

    /// Sets [`longest_lease`](Self#structfield.longest_lease).
    #[must_use]
    pub const fn longest_lease(mut self, longest: Option<Duration>) -> Self {
        self.longest_lease = longest;
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
            longest_lease: None,
            sessions: SessionTracking::Never,
            confirmation: false,
        }
    }
}

/// How a store knows which sessions are alive.
///
/// ```
/// use leasehold::store::{MemoryStore, SessionTracking, Store};
///
/// assert_eq!(MemoryStore::new().capabilities().sessions, SessionTracking::ByHeartbeat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionTracking {
    /// It does not: leases alone end what a dead process has.
    Never,
    /// By their [beats](leasehold_core::Heartbeat).
    ByHeartbeat,
    /// By itself: it is told once who begins, and no beat is needed.
    ByStore,
}
