//! How a lock is sought, and why it was not had.

use super::Session;
use crate::store::Fault;
use leasehold_core::Executed;
use leasehold_core::contender::{AcquireTerms, WaitStatus};
use leasehold_core::{Moment, RetryPolicy};
use std::sync::Arc;

/// How a lock is sought.
#[derive(Debug)]
pub(crate) struct AcquireParams {
    pub(crate) terms: Arc<AcquireTerms>,
    /// In whose name: the client's present session, if there is none.
    pub(crate) session: Option<Arc<Session>>,
    /// When to give up; never, if there is none.
    pub(crate) limit: Option<Moment>,
    /// Set to give up as soon as the lock is known to be taken.
    pub(crate) once: bool,
    /// Set to try again and again, without queueing.
    pub(crate) retry: Option<RetryPolicy>,
}

/// Why the lock was not had.
#[derive(Debug)]
pub(crate) enum AcquireFailure {
    /// It is taken, and the one try, or the tries, are used up.
    Taken(Box<WaitStatus>),
    /// It was taken for as long as one wanted to wait.
    TimedOut(Box<WaitStatus>),
    /// The store did not answer, or refused. If it is unknown whether any of the requests was executed, the lock may be
    /// held until its undo arrives or its first lease ends.
    Fault { fault: Fault, executed: Executed },
    /// The lease is shorter than the time that the news of it takes.
    TooSlow,
    /// The client was shut down.
    Closed,
}
