//! The leases that count for a hold with which an owner re-enters a lock.

use std::time::Duration;

/// The leases under which the owner already held the lock when it acquired the lock again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExistingLeases {
    pub(crate) longest: Duration,
    /// Set to add a new lease to the longest of them; otherwise the longest applies.
    pub(crate) sum_leases: bool,
}

impl ExistingLeases {
    /// The total lease of one more hold with this lease.
    pub(crate) fn with(self, lease: Duration) -> Duration {
        if self.sum_leases { self.longest + lease } else { self.longest.max(lease) }
    }
}
