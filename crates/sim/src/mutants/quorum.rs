//! Mutants of a quorum: see [`Mutant`]. They are at the nodes, and on the way to them.

use crate::mutants::Mutant;
use crate::quorum::holds::Hold;
use leasehold_core::{
    Acquire, Acquired, Ended, Extended, FIRST_LEASE, FenceRaised, ForceRelease, HoldStatus, Inspect,
    ObservedHolder, Op, Release, ReleaseAction, Released, Reply, whole_millis,
};

impl Mutant {
    /// Whether it is a defect of a quorum.
    pub const fn is_of_quorum(self) -> bool {
        matches!(
            self,
            Self::RepairIsNotSent
                | Self::ForgottenVoteIsReported
                | Self::ExtendAcquiresAnew
                | Self::VoteIsTakenAway
                | Self::MinorityIsMajority
                | Self::MissingVoteIsYes
                | Self::TokenIsNotStored
                | Self::LostVoteIsNotUndone
                | Self::ReleaseLeavesVotes
        )
    }
}

/// An operation at a node.
#[derive(Clone, Copy)]
pub(crate) struct NodeOp<'a> {
    pub(crate) op: &'a Op,
    /// The hold that it is about, as far as its client has requested it.
    pub(crate) hold: Option<&'a Hold>,
    /// Executes an operation at the node's store.
    pub(crate) apply: &'a dyn Fn(&Op) -> Reply,
}

/// The reply of a node.
pub(crate) struct NodeReply {
    pub(crate) reply: Reply,
    /// Whether the node has executed what was requested.
    pub(crate) is_real: bool,
}

impl NodeReply {
    pub(crate) const fn real(reply: Reply) -> Self {
        Self { reply, is_real: true }
    }

    const fn made_up(reply: Reply) -> Self {
        Self { reply, is_real: false }
    }
}

/// Executes an operation at a node with a mutant.
pub(crate) fn execute(mutant: Mutant, at: NodeOp<'_>) -> NodeReply {
    let NodeOp { op, hold, apply } = at;
    let is_granted = hold.is_some_and(Hold::is_granted);
    match (mutant, op) {
        (Mutant::ForgottenVoteIsReported, Op::Extend(_)) => match apply(op) {
            Reply::Extend(Extended::NotHeld) if is_granted => {
                NodeReply::made_up(Reply::Extend(Extended::Extended))
            }
            reply => NodeReply::real(reply),
        },
        (Mutant::ExtendAcquiresAnew, Op::Extend(extend)) => match (apply(op), hold) {
            (Reply::Extend(Extended::NotHeld), Some(hold)) if is_granted => {
                let lease_ms = extend.lease_ms.min(whole_millis(FIRST_LEASE));
                let acquire = Acquire { lease_ms, queue: None, ..hold.acquire.clone() };
                apply(&Op::Acquire(acquire));
                NodeReply::real(apply(op))
            }
            (reply, _) => NodeReply::real(reply),
        },
        (Mutant::VoteIsTakenAway, Op::Acquire(acquire)) => match apply(op) {
            Reply::Acquire(Acquired::Taken { .. }) => {
                take_away(acquire, apply);
                NodeReply::real(apply(op))
            }
            reply => NodeReply::real(reply),
        },
        (Mutant::TokenIsNotStored, Op::RaiseFence(_)) => {
            NodeReply::made_up(Reply::RaiseFence(FenceRaised::Raised))
        }
        (Mutant::LostVoteIsNotUndone, Op::Release(Release { action: ReleaseAction::Free, .. }))
        | (Mutant::ReleaseLeavesVotes, Op::Release(Release { action: ReleaseAction::FreeAndPublish, .. })) => {
            NodeReply::made_up(Reply::Release(Released {
                status: HoldStatus::Ended(Ended::Released),
                remaining_holds: 0,
                holder: None,
                next_waiter: None,
                next: None,
            }))
        }
        _ => NodeReply::real(apply(op)),
    }
}

/// Ends the hold of the present holder, as if the node had not granted it.
fn take_away(acquire: &Acquire, apply: &dyn Fn(&Op) -> Reply) {
    let Reply::Inspect(seen) = apply(&Op::Inspect(Inspect { claim: None, details: false })) else { return };
    if let Some(fence) = seen.holder.and_then(|holder| holder.fence) {
        let (observed, actor) = (ObservedHolder::Hold(fence), acquire.label.clone());
        apply(&Op::ForceRelease(ForceRelease { observed, actor }));
    }
}
