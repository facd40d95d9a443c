//! Replacing what observers see of the leader of an Election.

use crate::{Claim, FencingToken, Label};

/// Replace the text that observers of an Election see for its leader: the label of its hold. The fencing token and the lease
/// stay as they are.
///
/// The operation compares the hold and the text that the leader last saw. So one that is repeated changes nothing more, and
/// one that arrives late undoes no later one, unless that restored the same text.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, HoldId, Kind, Label, Liveness, LockMode, Op, Proclaim, Proclaimed, Reply, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let campaign = Acquire {
///     claim: claim.clone(), lease_ms: 3_000, label: Label::new("web-3")?, queue: None, expire_foreign_ms: None,
///     liveness: Liveness::Lease, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::new(Kind::Election);
/// let (reply, _) = lock.apply(1_000_000, &Op::Acquire(campaign), &all_alive);
/// let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
///
/// let ready = Proclaim { claim, fence, observed: Label::new("web-3")?, value: Label::new("ready")? };
/// let (reply, _) = lock.apply(1_001_000, &Op::Proclaim(ready.clone()), &all_alive);
/// assert_eq!(reply, Reply::Proclaim(Proclaimed::Done));
/// let (reply, _) = lock.apply(9_000_000, &Op::Proclaim(ready), &all_alive);
/// assert_eq!(reply, Reply::Proclaim(Proclaimed::NotHeld)); // its lease has ended
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proclaim {
    /// The hold of the leader.
    pub claim: Claim,
    /// Its fencing token. A store that has lost a grant may have granted the same hold anew.
    pub fence: FencingToken,
    /// The text that the leader last saw.
    pub observed: Label,
    /// The new text.
    pub value: Label,
}

/// The result of a [`Proclaim`].
///
/// See [`Proclaim`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proclaimed {
    /// The text is the requested one, by this request or an earlier one.
    Done,
    /// The hold exists, and its text is another one than those in the request. Nothing was changed.
    Changed {
        /// The text.
        value: Label,
    },
    /// The hold does not exist any more, or its token is another one. Nothing was changed.
    NotHeld,
}
