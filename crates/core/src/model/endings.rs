//! Which holds of a lock were ended last, other than by their leases, and how.
//!
//! It is kept so that an operation that comes twice, or late, is told what became of its hold. One is not enough: holds of
//! a ReentrantMutex end side by side, and whoever has a Mutex next can be done with it before the reply to a release
//! that was lost is asked for again.

use crate::{Ended, HoldId};
use serde::{Deserialize, Serialize};

/// The holds that were ended last.
///
/// [`LockState`](super::LockState) has it, in its record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Endings {
    /// Each with how it was ended, the last one first.
    pub kept: Vec<(HoldId, Ended)>,
}

impl Endings {
    /// How many are kept.
    pub const MOST: usize = 8;

    /// How a hold was ended, if it is among them.
    pub fn how(&self, hold: &HoldId) -> Option<Ended> {
        self.kept.iter().find(|(ended, _)| ended == hold).map(|(_, how)| *how)
    }

    /// Writes an end down, and forgets the oldest where there are too many.
    pub(super) fn note(&mut self, hold: HoldId, how: Ended) {
        self.kept.insert(0, (hold, how));
        self.kept.truncate(Self::MOST);
    }
}
