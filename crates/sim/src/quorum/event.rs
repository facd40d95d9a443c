//! What happens in the world of a quorum: all that its checks know.

use crate::event::{GuardId, LeasePolicy, LockId};
use crate::world::time::Instant;
use leasehold::LostReason;
use leasehold_core::{
    Acquired, Extended, FenceRaised, FencingToken, Op, Release, ReleaseAction, Released, Reply, Votes,
};
use std::fmt;

/// The number of nodes, and how many of them are a majority.
pub(crate) const NODES: usize = 5;
pub(crate) const NEEDED: usize = 3;

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientNo(pub(crate) u8);

/// A task of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskNo(pub(crate) ClientNo, pub(crate) u8);

/// A node: an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeNo(pub(crate) usize);

/// A hold that a client requested from the quorum, numbered in the order of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldNo(pub(crate) u32);

/// An owner of `ReentrantMutex`es.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerNo(pub(crate) usize);

/// A new guard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewGuard {
    pub(crate) hold: HoldNo,
    pub(crate) lock: LockId,
    pub(crate) task: TaskNo,
    /// Set for a ReentrantMutex.
    pub(crate) owner: Option<OwnerNo>,
    pub(crate) fence: FencingToken,
    pub(crate) lease: LeasePolicy,
    pub(crate) until: Instant,
    /// What the slowest clock of a node showed when the hold was requested.
    pub(crate) slowest_us: u64,
}

/// A hold that a node has forgotten.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForgottenHold {
    pub(crate) hold: HoldNo,
    /// How many other nodes keep it for as long as its client may rely on it.
    pub(crate) kept_by: usize,
    /// How many other nodes have it.
    pub(crate) held_by: usize,
    /// Set if a message about it is under way, which may give it to a node.
    pub(crate) is_in_flight: bool,
}

/// The outcome of a request for a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Granted(FencingToken),
    /// Not granted, or not known, or no task awaits the reply any more.
    NotGranted,
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'a> {
    /// A client requests a hold.
    Requested { client: ClientNo, lock: LockId, hold: HoldNo },
    /// The quorum has replied.
    Answered { hold: HoldNo, outcome: RequestOutcome },
    /// A task acquired a lock.
    Acquired { guard: GuardId, new: &'a NewGuard },
    /// The time until which a guard is valid changed.
    ValidUntil { guard: GuardId, until: Instant },
    /// A task learned that its guard is lost.
    Lost { guard: GuardId, reason: &'a LostReason },
    /// A task begins to release its guard, or drops it.
    Releasing { guard: GuardId },
    /// A majority has confirmed the release.
    Released { guard: GuardId },
    /// A node executed an operation.
    Executed {
        client: ClientNo,
        node: NodeNo,
        lock: LockId,
        hold: Option<HoldNo>,
        /// Set if the quorum has granted the hold before.
        is_granted: bool,
        op: &'a Op,
        reply: &'a Reply,
        /// When the client sent the request.
        sent_at: Instant,
    },
    /// A reply has arrived at the client.
    Replied { client: ClientNo, node: NodeNo, sent_at: Instant },
    /// A request or a reply was lost, at the time at which it would have arrived.
    MessageLost { client: ClientNo, node: NodeNo, is_reply: bool, sent_at: Instant },
    /// A message was late, or a node was away.
    Fault { what: &'a str, client: Option<ClientNo>, node: NodeNo },
    /// A node lost its data.
    Forgot { node: NodeNo, holds: &'a [ForgottenHold] },
    /// How many nodes have the hold of a guard now, and what the guard says.
    Seen { guard: GuardId, is_valid: bool, held_by: usize, votes: Option<Votes> },
    /// A node has this hold now.
    SeenAtNode { node: NodeNo, lock: LockId, hold: HoldNo },
    /// No fault begins from now on.
    FaultsEnded,
    /// What a task does, for the trace.
    Note { task: TaskNo, what: &'a str, lock: LockId },
    /// A task has begun.
    TaskBegan(TaskNo),
    /// A task could not acquire a lock although there are no faults any more.
    TaskFailed(TaskNo, &'a str),
    /// A task has ended.
    TaskEnded(TaskNo),
    /// A node has a holder after all clients have ended, and after all leases.
    Remains { node: NodeNo, lock: LockId },
    /// Time has passed.
    Tick,
}

impl fmt::Display for ClientNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl fmt::Display for TaskNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl fmt::Display for NodeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for HoldNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested { client, lock, hold } => write!(f, "{client} {lock} requests {hold}"),
            Self::Answered { hold, outcome } => write!(f, "{hold} {outcome:?}"),
            Self::Acquired { guard, new } => {
                let NewGuard { hold, lock, task, owner, fence, lease, until, .. } = new;
                write!(f, "{task} {lock} acquired {hold} as {guard}, {fence:?}, until {until}, {lease:?}")?;
                owner.map_or(Ok(()), |owner| write!(f, ", for {owner:?}"))
            }
            Self::ValidUntil { guard, until } => write!(f, "{guard} is valid until {until}"),
            Self::Lost { guard, reason } => write!(f, "{guard} is lost: {reason}"),
            Self::Releasing { guard } => write!(f, "{guard} is being released"),
            Self::Released { guard } => write!(f, "{guard} is released"),
            Self::Executed { client, node, lock, hold, op, reply, .. } => {
                let hold = hold.map_or_else(|| "-".to_owned(), |hold| hold.to_string());
                write!(f, "{node} {lock} executes {} of {hold} for {client}: ", Short(op))?;
                write!(f, "{}", ShortReply(reply))
            }
            Self::Replied { client, node, .. } => write!(f, "{client} receives a reply of {node}"),
            Self::MessageLost { client, node, is_reply, .. } => {
                write!(f, "{client} {node} loses a {}", if *is_reply { "reply" } else { "request" })
            }
            Self::Fault { what, client: Some(client), node } => write!(f, "{client} {node} {what}"),
            Self::Fault { what, client: None, node } => write!(f, "{node} {what}"),
            Self::Forgot { node, holds } => {
                write!(f, "{node} forgets everything")?;
                holds.iter().try_for_each(|forgotten| {
                    let ForgottenHold { hold, kept_by, held_by, .. } = forgotten;
                    write!(f, ", {hold} (others have it: {held_by}, long enough: {kept_by})")
                })
            }
            Self::Seen { guard, held_by, votes, .. } => {
                write!(f, "{guard} is on {held_by} nodes, and says {votes:?}")
            }
            Self::SeenAtNode { node, lock, hold } => write!(f, "{node} {lock} has {hold}"),
            Self::FaultsEnded => f.write_str("no more faults"),
            Self::Note { task, what, lock } => write!(f, "{task} {lock} {what}"),
            Self::TaskBegan(task) => write!(f, "{task} begins"),
            Self::TaskFailed(task, error) => write!(f, "{task} failed: {error}"),
            Self::TaskEnded(task) => write!(f, "{task} has ended"),
            Self::Remains { node, lock } => write!(f, "{node} {lock} has a holder"),
            Self::Tick => f.write_str("tick"),
        }
    }
}

/// An operation, in short.
struct Short<'a>(&'a Op);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Op::Acquire(acquire) => write!(f, "acquire ({} ms)", acquire.lease_ms),
            Op::Extend(extend) => write!(f, "extend ({} ms)", extend.lease_ms),
            Op::Release(Release { action: ReleaseAction::Free, .. }) => f.write_str("undo"),
            Op::Release(_) => f.write_str("release"),
            Op::Inspect(_) => f.write_str("inspect"),
            Op::RaiseFence(raise) => {
                write!(f, "store {:?}{}", raise.fence, if raise.exact { " exactly" } else { "" })
            }
            _ => f.write_str("another operation"),
        }
    }
}

/// A reply, in short.
struct ShortReply<'a>(&'a Reply);

impl fmt::Display for ShortReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reply::Acquire(Acquired::Granted { fence, .. }) => write!(f, "granted, {fence:?}"),
            Reply::Acquire(Acquired::Taken { .. }) => f.write_str("taken"),
            Reply::Acquire(other) => write!(f, "{other:?}"),
            Reply::Extend(Extended::NotHeld) | Reply::RaiseFence(FenceRaised::NotHeld) => {
                f.write_str("not held")
            }
            Reply::Extend(_) => f.write_str("extended"),
            Reply::RaiseFence(FenceRaised::Raised) => f.write_str("stored"),
            Reply::Release(Released { status, .. }) => write!(f, "{status:?}"),
            Reply::Inspect(seen) => write!(f, "{:?}", seen.hold_status),
            _ => f.write_str("another reply"),
        }
    }
}
