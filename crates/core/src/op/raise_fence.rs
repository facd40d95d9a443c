//! Raising the fencing token of a hold, for a quorum of stores.

use crate::{Claim, FencingToken};

/// Raise the fencing token of a hold: the second round of an acquire over several stores, each of which has
/// granted the hold with its own token. The greatest of these becomes the token of the hold. It counts once a
/// majority that still has the hold has stored it, so every majority grants the next holder a greater one.
///
/// The operation compares the hold, so one that arrives late changes nothing. It lowers a token only if it is
/// [exact](Self::exact).
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, FencingToken, HoldId, Label, Liveness, Op, LockMode, RaiseFence, FenceRaised, Reply, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 3_000, label: Label::new("billing")?, queue: None, expire_foreign_ms: None,
///     liveness: Liveness::Lease, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// lock.apply(1_000_000, &Op::Acquire(ask), &all_alive);
///
/// let raise = Op::RaiseFence(RaiseFence { claim, fence: FencingToken::new(4_000_000), exact: false });
/// let (reply, _) = lock.apply(1_001_000, &raise, &all_alive);
/// assert_eq!(reply, Reply::RaiseFence(FenceRaised::Raised));
/// let (reply, _) = lock.apply(9_000_000, &raise, &all_alive);
/// assert_eq!(reply, Reply::RaiseFence(FenceRaised::NotHeld)); // its lease has ended
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaiseFence {
    /// The hold.
    pub claim: Claim,
    /// The token of the hold is at least this from now on.
    pub fence: FencingToken,
    /// Set if it is exactly that: for a hold that other stores got earlier, and whose token here no client has seen.
    pub exact: bool,
}

/// The result of a [`RaiseFence`].
///
/// See [`RaiseFence`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceRaised {
    /// The hold exists, and its token is at least the requested one.
    Raised,
    /// The hold does not exist any more, or its token is not known. Nothing was changed.
    NotHeld,
}
