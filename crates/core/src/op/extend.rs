//! Extending a hold.

use crate::{Claim, FencingToken, TokenBlock, Votes};

/// Extend a hold: its expiry never moves closer.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    /// The hold.
    pub claim: Claim,
    /// How long the hold lasts from now at least, in milliseconds.
    pub lease_ms: u64,
    /// Set from time to time, so that the record beside a long hold does not expire before it.
    pub keep_record: bool,
    /// Set to reserve fencing tokens for the tasks to which a Mutex is handed off.
    pub reserve: Option<Reserve>,
    /// Set to extend the hold only if it was granted with this token. A store that has lost a grant may have granted the
    /// same hold anew, and its client does not know.
    pub fence: Option<FencingToken>,
}

/// What to reserve together with an [`Extend`](crate::Extend) of a Mutex.
///
/// See [`TokenBlock`](crate::TokenBlock) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// How many fencing tokens. The store reserves at most [`TokenBlock::MAX_LEN`](crate::TokenBlock::MAX_LEN), and fewer where its clock has not
    /// advanced as far since the grant, or since the last reservation.
    pub tokens: u32,
    /// Set to be [notified](crate::Notification::Wanted) when another session requests the lock.
    pub notify_wanted: bool,
}

/// What became of an [`Extend`].
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// The hold exists, and lasts at least as long as requested. Nothing is reserved, even if requested: the
    /// store knows nothing of the hold but its key.
    Extended,
    /// The same, and these tokens are reserved for the hold.
    Reserved {
        /// The tokens.
        block: TokenBlock,
        /// Set if others are in the queue, dead or alive.
        others_wait: bool,
    },
    /// The same over a quorum, and these votes stand now. Nothing is reserved.
    Voted(Votes),
    /// The hold does not exist any more.
    NotHeld,
}
