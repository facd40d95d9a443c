//! The leases that count for a hold that its owner enters again.

use std::time::Duration;

/// The leases under which the owner already held the lock when it acquired it again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Earlier {
    pub(crate) longest: Duration,
    /// Set to add a new lease to the longest of them; otherwise the longest applies.
    pub(crate) sum: bool,
}

impl Earlier {
    /// The total lease of one more hold with this lease.
    pub(crate) fn with(self, lease: Duration) -> Duration {
        if self.sum { self.longest + lease } else { self.longest.max(lease) }
    }
}
