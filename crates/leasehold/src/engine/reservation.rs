//! What the store is asked for a hold that is handed on inside the process, and what its answers mean.

use leasehold_core::Moment;
use std::time::Duration;

/// What the store is asked for a hold that is handed on: fencing tokens, and whether anybody waits.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Call {
    /// How long whoever has it next wants to have it at least, where it is to be lengthened as well.
    pub(in crate::engine) lease: Option<Duration>,
    /// Set to be told when another process asks for the lock.
    pub(in crate::engine) tell: bool,
}

/// What an answer of the store means for a hold.
pub(super) enum Heard {
    /// Whoever has it, or stands in line for it, sees to it.
    Noted,
    /// The store is to be asked once more.
    Ask(Call),
    /// It is to be given back.
    GiveBack,
}

/// What a look at the seat of a hold says that was kept for whoever comes.
pub(super) enum Rest {
    /// Somebody has it, or is about to.
    InUse,
    /// It is kept until then.
    Until(Moment),
    /// It is to be given back.
    Over,
}
