//! Releasing a hold.

use crate::{Acquire, Acquired, Claim, HoldStatus, Holder, Refused, SessionId};

/// Give up a hold: free the lock if this claim holds it, leave the queue if it waits there.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The hold.
    pub claim: Claim,
    /// What happens to the lock when no hold is left.
    pub action: ReleaseAction,
    /// Set if tasks of the same process still wait: the same step acquires again, behind the other waiters.
    pub next: Option<Acquire>,
    /// How many holds the [history](crate::Inspection::history) of the lock keeps, this one included, which is added if it is
    /// released by this and its holder is known; [`MAX_HISTORY`](crate::MAX_HISTORY) at most. 0 to leave the history as it is.
    pub history: u16,
}

impl Release {
    /// The same without an entry in the history.
    #[must_use]
    pub fn without_history(&self) -> Self {
        Self { history: 0, ..self.clone() }
    }

    /// How many holds the history keeps, if the release adds one. A hold that only returns permits goes on.
    pub fn history_entries(&self) -> Option<u16> {
        let ends = !matches!(self.action, ReleaseAction::KeepPermits { .. });
        (ends && self.history > 0).then_some(self.history.min(crate::MAX_HISTORY))
    }
}

/// What happens to a lock when it is released.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAction {
    /// The store grants it to the first live waiter.
    Grant,
    /// The lock stays free, so that clients of other libraries, which do not queue, can take it.
    Free,
    /// The lock stays free, and the store notifies the clients that subscribe to its
    /// releases. A quorum uses this, where no store has a queue because each store is only one vote. For a Mutex or
    /// a ReentrantMutex only.
    FreeAndPublish,
    /// The lock stays taken without a holder for a time, and then goes to the first client that requests it or polls for
    /// it. Used for work that is done once per period. Same as [`Grant`](Self::Grant) if that time has already passed. Only
    /// for a lock that is a [plain string](crate::Kind::is_plain_string).
    Cooldown {
        /// How long the lock stays taken, from when it was granted to this hold, in milliseconds.
        for_ms: u64,
    },
    /// The hold stays, with this many of its permits, or with all if it has no more: for a Semaphore only. Sending it twice has
    /// the same effect as sending it once, and a late one gives no permit back.
    KeepPermits {
        /// How many permits the hold keeps, at least one.
        count: u32,
    },
}

/// The result of a [`Release`].
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The status of the hold before the release; [`HoldStatus::Held`] means that this operation released it.
    pub status: HoldStatus,
    /// How many holds the owner still has, whatever the status was: 0 if the lock is free now, as always after the release
    /// of a Mutex.
    pub remaining_holds: u64,
    /// The holder, where another client holds the lock.
    pub holder: Option<Holder>,
    /// A hint: of the sessions that wait at a node of a quorum, the one that a release which
    /// [notifies](ReleaseAction::FreeAndPublish) them has named.
    pub next_waiter: Option<SessionId>,
    /// The result of the acquire that came with the release.
    pub next: Option<Result<Acquired, Refused>>,
}
