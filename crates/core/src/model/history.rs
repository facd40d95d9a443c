//! The history of a lock: its last holds that were released, for clients that ask for it with each release.
//!
//! It is separate from the audit, which lists only what was ended by others, and which frequent holds must not push out.

use crate::{HISTORY_TTL, HistoryEntry, whole_millis};
use serde::{Deserialize, Serialize};

/// The last holds of a lock that were released.
///
/// Part of [`LockState`](super::LockState).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// When it expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The entries, most recent first.
    pub entries: Vec<HistoryEntry>,
}

impl History {
    /// Adds an entry, and drops the oldest ones beyond `most`.
    pub(super) fn push(history: &mut Option<Self>, entry: HistoryEntry, most: u16) {
        let expires_ms = entry.to_ms + whole_millis(HISTORY_TTL);
        let history = history.get_or_insert_with(|| Self { expires_ms, entries: Vec::new() });
        history.expires_ms = expires_ms;
        history.entries.insert(0, entry);
        history.entries.truncate(usize::from(most));
    }
}
