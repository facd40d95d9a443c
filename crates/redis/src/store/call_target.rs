//! The connection that a call is sent on: of a link, of the user, or of a node of a cluster.

use crate::cluster::Node;
use crate::conn::batches::{PendingReply, Sending, SharedParts};
use crate::conn::borrowed::BorrowedConnection;
use crate::conn::link::{Link, LinkConnection, NoReply};
use crate::script::Call;
use crate::script::batch::BatchedOp;
use leasehold_core::LockKeys;
use leasehold_store::FaultKind;
use redis::{Pipeline, Value};
use std::sync::Arc;
use tokio::time::Instant;
/// A connection to send on.
pub(crate) enum CallTarget<'a> {
    Link(&'a Link, LinkConnection),
    Borrowed(&'a BorrowedConnection),
    /// A node of a cluster; without a connection if the cluster module has sent the call already.
    Node(Arc<Node>, Option<LinkConnection>),
}

impl CallTarget<'_> {
    /// Reason not to send this call: the server is a node of a quorum that does not grant locks yet.
    pub(super) fn refusal(&self, call: &Call) -> Option<FaultKind> {
        match self {
            Self::Link(_, connection) if call.may_acquire() => connection.vote_delay()?.refusal(),
            // A node of a quorum is a single server, which only a link leads to.
            Self::Link(..) | Self::Borrowed(_) | Self::Node(..) => None,
        }
    }

    /// Whether the server reports changes of the keys that it reads for this connection.
    pub(super) const fn is_tracking(&self) -> bool {
        match self {
            Self::Link(_, connection) | Self::Node(_, Some(connection)) => connection.is_tracking(),
            Self::Borrowed(_) | Self::Node(_, None) => false,
        }
    }

    /// Decides how an operation on these keys is sent.
    pub(super) fn join(
        &self,
        slot: u16,
        deadline: Instant,
        keys: LockKeys,
        op: impl FnOnce(LockKeys) -> BatchedOp,
        shared: impl FnOnce(&LockKeys) -> SharedParts,
    ) -> Sending {
        let (batches, conn) = match self {
            // A node of a quorum is asked for its vote each time.
            Self::Link(_, connection) if connection.vote_delay().is_some() => {
                return Sending::Alone(keys, None);
            }
            Self::Link(_, connection) | Self::Node(_, Some(connection)) => connection.batches(),
            Self::Borrowed(borrowed) => borrowed.batches(),
            Self::Node(_, None) => return Sending::Alone(keys, None),
        };
        batches.join(slot, conn, deadline, keys, op, shared)
    }

    /// Waits for the reply to an operation that is sent with others; `None` if it should be sent alone.
    pub(super) async fn receive(
        &self,
        reply: PendingReply,
        deadline: Instant,
    ) -> Result<Option<Value>, NoReply> {
        match self {
            Self::Link(link, connection) => link.receive(connection, reply, deadline).await,
            Self::Borrowed(borrowed) => borrowed.receive(reply, deadline).await,
            Self::Node(node, Some(connection)) => node.link.receive(connection, reply, deadline).await,
            Self::Node(_, None) => Ok(None),
        }
    }

    pub(super) async fn send(&mut self, call: &Call, deadline: Instant) -> Result<Value, NoReply> {
        match self {
            Self::Link(link, connection) => link.call(connection, call.cmd(), deadline).await,
            Self::Borrowed(borrowed) => borrowed.call(call.cmd(), deadline).await,
            // The cluster module sends calls itself.
            Self::Node(..) => Err(NoReply::TimedOut),
        }
    }

    pub(super) async fn send_all(
        &mut self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, NoReply> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Self::Link(link, connection) => link.call_all(connection, pipeline, deadline).await,
            Self::Borrowed(borrowed) => borrowed.call_all(pipeline, deadline).await,
            Self::Node(node, Some(connection)) => node.link.call_all(connection, pipeline, deadline).await,
            Self::Node(_, None) => Err(NoReply::TimedOut),
        }
    }
}
