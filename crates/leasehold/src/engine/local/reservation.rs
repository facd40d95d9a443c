//! What the store is asked for a hold that is handed on inside the process, and what its answers mean.

use leasehold_core::Moment;
use std::time::Duration;

/// A request for a hold that is handed on: it reserves fencing tokens and reports whether other clients wait.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Call {
    /// The lease that the next holder needs at least, if the hold must be extended as well.
    pub(in crate::engine) lease: Option<Duration>,
    /// Set to be notified when another process wants the lock.
    pub(in crate::engine) tell: bool,
}

/// What a reply of the store means for a hold.
pub(in crate::engine) enum Heard {
    /// Its holder, or the queue, takes care of it.
    Noted,
    /// The store must be asked once more.
    Ask(Call),
    /// It must be returned to the store.
    GiveBack,
}

/// The result of checking the entry of a hold that was kept for later acquisitions.
pub(in crate::engine) enum Rest {
    /// It has a holder, or is about to.
    InUse,
    /// It is kept until then.
    Until(Moment),
    /// It must be returned to the store.
    Over,
}
