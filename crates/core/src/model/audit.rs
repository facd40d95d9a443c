//! The audit of a lock: each eviction and forced release, with its time, author and hold.
//!
//! It is separate from the record because it outlives it: an operator may investigate the lock of a nightly
//! job in the morning.

use crate::{AUDIT_TTL, AuditEntry, whole_millis};
use serde::{Deserialize, Serialize};

/// The evictions and forced releases of a lock.
///
/// Part of [`LockState`](super::LockState).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// When it expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The entries, most recent first.
    pub entries: Vec<AuditEntry>,
}

impl Audit {
    /// The maximum number of entries.
    pub const MAX_ENTRIES: usize = 32;

    /// Adds an entry, and drops the oldest one beyond the maximum.
    pub(super) fn push(audit: &mut Option<Self>, entry: AuditEntry) {
        let expires_ms = entry.at_ms + whole_millis(AUDIT_TTL);
        let audit = audit.get_or_insert_with(|| Self { expires_ms, entries: Vec::new() });
        audit.expires_ms = expires_ms;
        audit.entries.insert(0, entry);
        audit.entries.truncate(Self::MAX_ENTRIES);
    }
}
