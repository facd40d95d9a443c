//! The leases that count for a hold that its owner enters again.

use std::time::Duration;

/// The leases for which the owner of a hold had the lock before he entered again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Earlier {
    pub(crate) longest: Duration,
    /// Set to add a lease to the longest of them, in place of letting the longest rule.
    pub(crate) sum: bool,
}

impl Earlier {
    /// How long one more hold lasts for which this lease is given.
    pub(crate) fn with(self, lease: Duration) -> Duration {
        if self.sum { self.longest + lease } else { self.longest.max(lease) }
    }
}
