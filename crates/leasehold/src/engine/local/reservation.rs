//! What the store is asked for a hold that is handed off inside the process, and what its replies mean.

use leasehold_core::Moment;
use std::time::Duration;

/// A request for a hold that is handed off: it reserves fencing tokens and reports whether other clients wait.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct ReserveRequest {
    /// The lease that the next holder needs at least, if the hold must be extended as well.
    pub(in crate::engine) lease: Option<Duration>,
    /// Set to be notified when another process wants the lock.
    pub(in crate::engine) notify_wanted: bool,
}

/// What the keeper does after the reply to a [`ReserveRequest`].
pub(in crate::engine) enum AfterReserve {
    /// Nothing: the hold's holder, or the queue, goes on.
    Nothing,
    /// Asks the store once more.
    Request(ReserveRequest),
    /// Returns the hold to the store.
    Release,
}

/// The result of checking the entry of a hold that was kept for later acquisitions.
pub(in crate::engine) enum IdleCheck {
    /// It has a holder, or is about to.
    InUse,
    /// It is kept until then.
    Until(Moment),
    /// It must be returned to the store.
    Over,
}
