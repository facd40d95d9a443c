//! The last holds of a lock that ended other than by their leases, and how they ended.
//!
//! They are kept so that an operation that arrives twice, or late, gets the status of its hold. A single
//! entry is not enough: holds of a ReentrantMutex end side by side, and the next holder of a Mutex can be
//! done before a client repeats a release whose reply was lost.

use crate::{Ended, HoldId};
use serde::{Deserialize, Serialize};

/// The holds that ended last.
///
/// Part of the record of [`LockState`](super::LockState).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndedHolds {
    /// Each hold and how it ended, most recent first.
    pub holds: Vec<(HoldId, Ended)>,
}

impl EndedHolds {
    /// The maximum number of entries.
    pub const MAX_LEN: usize = 8;

    /// How a hold ended, if it is among them.
    pub fn find(&self, hold: &HoldId) -> Option<Ended> {
        self.holds.iter().find(|(ended, _)| ended == hold).map(|(_, ended)| *ended)
    }

    /// Adds an entry, and drops the oldest one beyond the maximum.
    pub(super) fn push(&mut self, hold: HoldId, ended: Ended) {
        self.holds.insert(0, (hold, ended));
        self.holds.truncate(Self::MAX_LEN);
    }
}
