//! What is written down when a lock is taken from its holder: who did it, when, and which hold it was.
//!
//! It is beside the record, since it outlives it: the lock of a nightly job is asked about in the morning.

use crate::{AUDIT_KEPT, AuditEntry, whole_millis};
use serde::{Deserialize, Serialize};

/// Who took a lock from whom, as long as anybody may want to know.
///
/// [`LockState`](super::LockState) has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// When it expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The last one first.
    pub entries: Vec<AuditEntry>,
}

impl Audit {
    /// How many entries are kept.
    pub const MOST: usize = 32;

    /// Writes an entry down, and forgets the oldest where there are too many.
    pub(super) fn note(audit: &mut Option<Self>, entry: AuditEntry) {
        let expires_ms = entry.at_ms + whole_millis(AUDIT_KEPT);
        let audit = audit.get_or_insert_with(|| Self { expires_ms, entries: Vec::new() });
        audit.expires_ms = expires_ms;
        audit.entries.insert(0, entry);
        audit.entries.truncate(Self::MOST);
    }
}
