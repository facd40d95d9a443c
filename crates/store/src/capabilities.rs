//! What a store can do.

/// How a store knows which sessions are alive.
///
/// ```
/// use leasehold::store::{MemoryStore, SessionKeeping, Store};
///
/// assert_eq!(MemoryStore::new().sessions(), SessionKeeping::ByBeat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionKeeping {
    /// It does not: leases alone end what a dead process has.
    Never,
    /// By their [beats](leasehold_core::Beat).
    ByBeat,
    /// By itself: it is told once who begins, and no beat is needed.
    ByItself,
}
