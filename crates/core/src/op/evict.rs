//! Removing a dead session from a lock.

use crate::{FencingToken, Label, SessionId};

/// Remove a dead session from a lock: its hold, its queue entry, or both. A lock that becomes free is granted
/// to the next waiter.
///
/// The same step checks that the session is dead, so a session that returns in time keeps its hold and its
/// queue entry.
///
/// ```
/// use leasehold_core::model::{LockState, SessionStatus};
/// use leasehold_core::{
///     Acquire, Claim, Ended, Evict, Evicted, HoldStatus, HoldId, Inspect, Label, Liveness, Op, LockMode, Reply,
///     SessionId,
/// };
///
/// let dead = SessionId::from_random([1; 12]);
/// let claim = Claim::new(HoldId::from_random(dead, [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 60_000, label: label.clone(), queue: None, expire_foreign_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 }, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let (mut lock, all_lapsed) = (LockState::default(), &|_| SessionStatus::Lapsed);
/// lock.apply(1_000_000, &Op::Acquire(ask), all_lapsed);
/// let (reply, _) = lock.apply(2_000_000, &Op::Evict(Evict { session: dead, actor: label }), all_lapsed);
/// assert!(matches!(reply, Reply::Evict(Evicted::Removed { fence: Some(_), was_queued: false })));
///
/// let inspect = Inspect { claim: Some(claim), details: true };
/// let (reply, _) = lock.apply(3_000_000, &Op::Inspect(inspect), all_lapsed);
/// assert!(matches!(reply, Reply::Inspect(seen)
///     if seen.hold_status == Some(HoldStatus::Ended(Ended::Evicted)) && seen.audit.len() == 1));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// The session to remove.
    pub session: SessionId,
    /// The client that requests it, for the audit.
    pub actor: Label,
}

/// The result of an [`Evict`].
///
/// See [`Evict`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// The session is alive. Nothing was changed.
    Alive,
    /// The session is dead, and no longer holds the lock or waits for it.
    Removed {
        /// The fencing token of the hold that was removed.
        fence: Option<FencingToken>,
        /// Set if a queue entry was removed.
        was_queued: bool,
    },
}
