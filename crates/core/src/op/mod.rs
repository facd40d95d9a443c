//! The operations that a store executes and their replies: plain data.
//!
//! [`model`](crate::model) defines the meaning of every operation. A store does nothing else.

pub(crate) mod acquire;
pub(crate) mod acquire_all;
pub(crate) mod claim;
pub(crate) mod evict;
pub(crate) mod executed;
pub(crate) mod extend;
pub(crate) mod force_release;
pub(crate) mod holder;
pub(crate) mod inspect;
pub(crate) mod kind;
pub(crate) mod liveness;
pub(crate) mod lock;
pub(crate) mod mode;
pub(crate) mod notification;
pub(crate) mod proclaim;
pub(crate) mod raise_fence;
pub(crate) mod refused;
pub(crate) mod release;
pub(crate) mod resize;
pub(crate) mod session;
pub(crate) mod skipped;
pub(crate) mod statistics;
pub(crate) mod status;
pub(crate) mod votes;

use crate::{
    Acquire, Acquired, Claim, Evict, Evicted, Extend, Extended, FenceRaised, ForceRelease, ForceReleased,
    Inspect, Inspection, Kind, Proclaim, Proclaimed, RESERVED_OWNER, RaiseFence, Refused, Release,
    ReleaseAction, Released, Resize, Resized,
};

/// One operation on one lock.
///
/// Here a client acquires the lock, another client queues, and receives the lock on release. The example runs on the
/// model; every store behaves the same:
///
/// ```
/// use leasehold_core::{
///     Acquire, Acquired, Claim, Enqueue, Extend, Extended, HoldStatus, HoldId, Inspect, Label, Liveness, Nonce, Op,
///     ReleaseAction, LockMode, Release, Reply, SessionId, Notification, model::{LockState, all_alive},
/// };
///
/// let claim = |who: u8| Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
/// let acquire = |who: u8| Acquire {
///     claim: claim(who),
///     lease_ms: 3_000,
///     label: Label::new(format!("worker {who}")).expect("a short text is a label"),
///     queue: Some(Enqueue { nonce: Nonce::new(0, who.into()), ttl_ms: 3_000 }),
///     expire_foreign_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 },
///     predecessor: None,
///     mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// let mut now_us = 1_000_000;
/// let mut execute = |op: Op| {
///     now_us += 1_000;
///     lock.apply(now_us, &op, &all_alive)
/// };
///
/// let (reply, _) = execute(Op::Acquire(acquire(1)));
/// assert!(matches!(reply, Reply::Acquire(Acquired::Granted { others_wait: false, .. })));
///
/// let (reply, _) = execute(Op::Acquire(acquire(2)));
/// assert!(matches!(reply, Reply::Acquire(Acquired::Taken { position: Some(0), .. })));
///
/// let (reply, _) = execute(Op::Extend(Extend { claim: claim(1), lease_ms: 30_000, keep_record: false, reserve: None, fence: None }));
/// assert_eq!(reply, Reply::Extend(Extended::Extended));
///
/// // The release grants the lock to the waiter and notifies its mailbox.
/// let (reply, notifications) = execute(Op::Release(Release { claim: claim(1), action: ReleaseAction::Grant, next: None, history: 0 }));
/// assert!(matches!(reply, Reply::Release(released) if released.status == HoldStatus::Held));
/// assert!(matches!(notifications[0], Notification::Grant { to, nonce, .. }
///     if to == SessionId::from_random([2; 12]) && nonce == Nonce::new(0, 2)));
///
/// let (reply, _) = execute(Op::Inspect(Inspect { claim: Some(claim(2)), details: false }));
/// assert!(matches!(reply, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Held) && seen.waiters == 0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Acquire the lock, or queue for it, or poll whether it has been granted.
    Acquire(Acquire),
    /// Extend a hold.
    Extend(Extend),
    /// Release a hold, or leave the queue.
    Release(Release),
    /// Remove the hold and the queue entry of a dead session.
    Evict(Evict),
    /// End a hold at an operator's request.
    ForceRelease(ForceRelease),
    /// Read the state of the lock. Changes nothing.
    Inspect(Inspect),
    /// Set the number of permits of a Semaphore.
    Resize(Resize),
    /// Raise the fencing token of a hold to the value that a quorum of stores agreed on.
    RaiseFence(RaiseFence),
    /// Replace the text that observers of an Election see for its leader.
    Proclaim(Proclaim),
}

impl Op {
    /// Why a lock of that kind refuses the operation in any state; `None` if it does not.
    pub fn refusal_for(&self, kind: Kind) -> Option<Refused> {
        match self {
            _ if !self.is_supported_by(kind) => Some(Refused::Unsupported),
            _ if kind.has_owners() && !self.names_owners() => Some(Refused::NoOwner),
            Self::Release(Release { action: ReleaseAction::Cooldown { .. }, .. })
                if !kind.is_plain_string() =>
            {
                Some(Refused::NoCooldown)
            }
            Self::Release(Release { action: ReleaseAction::FreeAndPublish, .. })
                if !kind.supports_quorum() =>
            {
                Some(Refused::Unsupported)
            }
            // A hold without a permit would count as one that has ended.
            Self::Release(Release { action: ReleaseAction::KeepPermits { count }, next, .. })
                if kind != Kind::Semaphore || *count == 0 || next.is_some() =>
            {
                Some(Refused::Unsupported)
            }
            _ => None,
        }
    }

    /// Whether each claim names its owner, as the claims of a ReentrantMutex or an RwLock must.
    pub fn names_owners(&self) -> bool {
        let named =
            |claim: &Claim| claim.value.as_ref().is_some_and(|owner| owner.as_str() != RESERVED_OWNER);
        match self {
            Self::Acquire(ask) => named(&ask.claim),
            Self::Release(release) => {
                named(&release.claim) && release.next.as_ref().is_none_or(|next| named(&next.claim))
            }
            Self::Extend(extend) => named(&extend.claim),
            Self::RaiseFence(raise) => named(&raise.claim),
            Self::Proclaim(proclaim) => named(&proclaim.claim),
            Self::Inspect(inspect) => inspect.claim.as_ref().is_none_or(named),
            Self::Evict(_) | Self::ForceRelease(_) | Self::Resize(_) => true,
        }
    }

    /// Whether locks of that kind support the operation.
    pub fn is_supported_by(&self, kind: Kind) -> bool {
        match self {
            Self::Acquire(ask) => ask.mode.applies_to(kind),
            Self::Release(release) => release.next.as_ref().is_none_or(|next| next.mode.applies_to(kind)),
            Self::Resize(_) => kind == Kind::Semaphore,
            Self::RaiseFence(_) => kind.supports_quorum(),
            Self::Proclaim(_) => kind == Kind::Election,
            Self::Extend(Extend { reserve: Some(_), .. }) => kind.supports_handoff(),
            Self::Extend(_) | Self::Inspect(_) | Self::Evict(_) | Self::ForceRelease(_) => true,
        }
    }
}

/// The reply of a store.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// To an [`Op::Acquire`].
    Acquire(Acquired),
    /// To an [`Op::Extend`].
    Extend(Extended),
    /// To an [`Op::Release`].
    Release(Released),
    /// To an [`Op::Inspect`].
    Inspect(Inspection),
    /// To an [`Op::Evict`].
    Evict(Evicted),
    /// To an [`Op::ForceRelease`].
    ForceRelease(ForceReleased),
    /// To an [`Op::Resize`].
    Resize(Resized),
    /// To an [`Op::RaiseFence`].
    RaiseFence(FenceRaised),
    /// To an [`Op::Proclaim`].
    Proclaim(Proclaimed),
    /// The operation has no meaning here and had no effect. A client whose request for a shared lock is
    /// refused stops waiting for it, which can admit other waiters.
    Refused(Refused),
}
