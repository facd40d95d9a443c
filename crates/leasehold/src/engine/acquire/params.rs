//! How a lock is sought, and why it was not had.

use crate::engine::Session;
use crate::store::Fault;
use leasehold_core::Executed;
use leasehold_core::machine::contender::{AcquireTerms, WaitStatus};
use leasehold_core::{Moment, RetryPolicy};
use std::sync::Arc;

/// Parameters of an acquire loop.
#[derive(Debug)]
pub(crate) struct AcquireParams {
    pub(crate) terms: Arc<AcquireTerms>,
    /// The session to acquire under; the client's current session if `None`.
    pub(crate) session: Option<Arc<Session>>,
    /// When to give up; never if `None`.
    pub(crate) limit: Option<Moment>,
    /// Set to give up as soon as the lock is known to be held.
    pub(crate) once: bool,
    /// Set to retry with pauses, without queueing.
    pub(crate) retry: Option<RetryPolicy>,
}

/// Why a lock was not acquired.
#[derive(Debug)]
pub(crate) enum AcquireFailure {
    /// Another client holds it, and no attempts are left.
    Taken(Box<WaitStatus>),
    /// Another client held it until the deadline.
    TimedOut(Box<WaitStatus>),
    /// The store did not answer, or refused. If it is unknown whether any of the requests was executed, the lock may be
    /// held until its undo arrives or its first lease ends.
    Fault { fault: Fault, executed: Executed },
    /// The lease is shorter than the round trip to the store.
    TooSlow,
    /// The client was shut down.
    Closed,
}
