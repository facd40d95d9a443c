//! Why an operation has no meaning for a lock.

use crate::RESERVED_OWNER;

/// Why an operation has no meaning.
///
/// ```
/// use leasehold_core::Refused;
///
/// let refused = Refused::WrongKind { found: "hash".into() };
/// assert!(refused.to_string().ends_with("the name is used for something else"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Something else is stored at the key.
    #[error(
        "its key holds a {found}, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"
    )]
    WrongKind {
        /// The type of the value, as the store's TYPE command calls it.
        found: String,
    },
    /// A claim of a ReentrantMutex or an RwLock does not name its owner.
    #[error(
        "a claim of a ReentrantMutex or an RwLock has to name its owner, by another text than `{RESERVED_OWNER}`: a field of Leasehold's own has that name"
    )]
    NoOwner,
    /// Locks of this kind do not have this mode or this operation.
    #[error("locks of this kind do not support this mode or operation")]
    Unsupported,
    /// The request exceeds the total, so it would wait forever; or it requests nothing.
    #[error("{count} of {limit} requested: this can never succeed")]
    OutOfRange {
        /// The requested number.
        count: u32,
        /// The total number.
        limit: u32,
    },
    /// The other clients that use this Semaphore, Latch or Barrier now use another number.
    #[error(
        "its number is {requested} in this request, and {known} for the clients that use it now: use one number everywhere"
    )]
    Disagreement {
        /// The number in the request.
        requested: u32,
        /// The number that the others use.
        known: u32,
        /// The number that the store goes by: of a Semaphore that was resized, another than the clients'.
        limit: u32,
    },
    /// The owner would wait for itself.
    #[error(
        "its owner already holds the lock, and would wait for itself: to write after reading, begin with an upgradable read"
    )]
    WouldDeadlock,
    /// The request is an upgrade, and its owner has no upgradable read any more.
    #[error("its owner has no upgradable read that could become a write")]
    NothingToUpgrade,
    /// A lock of this kind cannot stay taken without a holder.
    #[error("only a Mutex and an Election can be left taken until a time is over: release it")]
    NoCooldown,
    /// The lock's record was written in another format.
    #[error("its record has format {found}, and this version knows format {known}: use a version of Leasehold that knows both", known = crate::FORMAT)]
    Format {
        /// The format that was found.
        found: String,
    },
}

impl Refused {
    /// Whether the request itself can never succeed, whatever happens to the lock's keys.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::OutOfRange { .. }
                | Self::Disagreement { .. }
                | Self::WouldDeadlock
                | Self::NothingToUpgrade
        )
    }
}
