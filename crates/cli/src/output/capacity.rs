//! The permits or arrivals of a lock, as they are printed.

use leasehold::core::Kind;
use leasehold::inspect::Status;
use serde::Serialize;

/// How many permits or arrivals are taken, and how many there are. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct Capacity {
    taken: Option<u64>,
    limit: Option<u32>,
}

impl Capacity {
    pub(crate) fn new(kind: Kind, status: &Status) -> Self {
        let counts = matches!(kind, Kind::Semaphore | Kind::Latch);
        Self { taken: counts.then(|| status.taken()), limit: status.limit }
    }

    /// "TAKEN of LIMIT".
    pub(crate) fn text(&self) -> Option<String> {
        let of = self.limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        self.taken.map(|taken| format!("{taken}{of}"))
    }
}
