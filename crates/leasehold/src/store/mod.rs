//! Stores: each executes one typed operation atomically, and tells a session of its grants.
//!
//! A [`Store`] is narrow on purpose. What an operation means is [`leasehold_core::model`]; how often it
//! is sent again, and what becomes of its reply, is the engine's. A store never resends by itself.
//!
//! 1. An operation is done, refused, or nobody knows: [`Outcome`]. A fault is never a "no".
//! 2. Every call ends within the time it was given.
//! 3. Once [`Store::open_mailbox`] has returned, no grant to that session is missed silently: either it
//!    reaches the [`Postbox`], or the postbox is told that some may have been missed.

mod fault;
mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use fault::{Fault, FaultKind, Phase};
pub use leasehold_core::{Lock, Op, Reply, Wake};
pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisStore, UrlError};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

use futures_util::future::BoxFuture;
use leasehold_core::{KeyError, SessionId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What became of an operation.
#[derive(Debug)]
pub enum Outcome {
    /// It was executed, and this is the reply.
    Done(Reply),
    /// It was not executed, for certain.
    Refused(Fault),
    /// It may have been executed, or may be yet: the reply was lost, late, or the call was cut short.
    Unknown(Fault),
}

/// Something that executes operations on locks, one at a time and atomically.
///
/// All futures may be dropped at any await; an operation whose future is dropped is one of unknown
/// outcome.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Executes one operation, and answers within `within`.
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome>;

    /// Executes several operations, each by itself, in one go where the store can. The outcomes are in
    /// the order of the operations.
    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let all = ops.iter().map(move |(lock, op)| self.execute(lock, op, within));
        Box::pin(futures_util::future::join_all(all))
    }

    /// Opens the mailbox of a session. When this has returned, its grants go to `post`.
    fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>>;

    /// Whether messages can come at all. Where they cannot, waiters look more often.
    fn has_mailboxes(&self) -> bool {
        true
    }

    /// Closes the mailbox of a session. Does not wait for anything.
    fn close_mailbox(&self, session: SessionId);

    /// The same store by way of a connection of its own, for the keeper: it is used from another
    /// thread, with another runtime.
    fn sibling(&self) -> Arc<dyn Store>;

    /// Why a lock cannot be in this store, if it cannot.
    fn check(&self, lock: &Lock) -> Result<(), KeyError>;
}

/// Where a session's grants go.
pub trait Postbox: Send + Sync + 'static {
    /// A message has come. Does not block.
    fn deliver(&self, wake: Wake);

    /// Messages may have been missed: the mailbox was opened anew. Does not block.
    fn renewed(&self);
}
