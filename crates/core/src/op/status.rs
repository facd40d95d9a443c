//! The status of a hold.

use crate::Ended;

/// The status of a hold.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldStatus {
    /// It holds the lock.
    Held,
    /// It waits in the queue.
    Queued,
    /// It was ended, in this way.
    Ended(Ended),
    /// It was the last hold of the lock, and its key is gone: its lease expired, or the key was deleted. For
    /// a ReentrantMutex also where its owner has other holds of the lock, and this one is not among them.
    Vanished,
    /// Another client has held the lock since, or holds it now.
    Superseded,
    /// The store has no record of the lock: it never existed, ended long ago, or the store lost its data.
    Forgotten,
}
