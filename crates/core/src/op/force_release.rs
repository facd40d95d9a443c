//! Ending a hold at an operator's request.

use crate::{FencingToken, Fingerprint, Holder, Label};

/// End a hold at an operator's request. The store notifies the holder, and grants the lock to the next waiter.
///
/// The operation compares the holder that the operator has [observed](ObservedHolder), so a client that has acquired
/// the lock since then keeps it.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, ForceRelease, ForceReleased, HoldId, Label, Liveness, Op, LockMode, Reply, ObservedHolder, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim, lease_ms: 60_000, label: label.clone(), queue: None, expire_foreign_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 }, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// let (reply, _) = lock.apply(1_000_000, &Op::Acquire(ask), &all_alive);
/// let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("the lock was free") };
///
/// let mut free = ForceRelease { observed: ObservedHolder::Hold(fence), actor: Label::new("the night shift")? };
/// let (reply, _) = lock.apply(2_000_000, &Op::ForceRelease(free.clone()), &all_alive);
/// assert_eq!(reply, Reply::ForceRelease(ForceReleased::Released));
/// let (reply, _) = lock.apply(3_000_000, &Op::ForceRelease(free), &all_alive);
/// assert_eq!(reply, Reply::ForceRelease(ForceReleased::Changed { holder: None })); // the holder has changed since
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForceRelease {
    /// The observed hold.
    pub observed: ObservedHolder,
    /// The operator that requests it, for the audit.
    pub actor: Label,
}

/// A holder as an [`Inspection`](crate::Inspection) showed it.
///
/// See [`ForceRelease`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedHolder {
    /// A hold of Leasehold, by its fencing token.
    Hold(FencingToken),
    /// A client of another library, by the fingerprint of its value.
    Foreign(Fingerprint),
}

/// The result of a [`ForceRelease`].
///
/// See [`ForceRelease`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForceReleased {
    /// The hold was ended.
    Released,
    /// The observed holder does not hold the lock any more. Nothing was changed.
    Changed {
        /// The holder now.
        holder: Option<Holder>,
    },
}
