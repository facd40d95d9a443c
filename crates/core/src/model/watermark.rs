//! The greatest fencing token of the locks whose records are gone.
//!
//! A record that remembered the last token of its name for an hour would be left behind by every name. One number does
//! for all names of a partition: when a lock becomes idle, the watermark is raised to its last token, and the next token of
//! a name without a record is greater than the watermark.

use crate::{FencingToken, RECORD_TTL, whole_millis};

/// The greatest fencing token of the idle locks of a partition.
///
/// Part of [`LockState`](super::LockState); see [`LockState::watermark`](super::LockState::watermark).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The token; `None` if no lock became idle within the last hour.
    pub fence: Option<FencingToken>,
    /// When it is forgotten, in milliseconds of the store's clock: an hour after the instant that the token stands for. From
    /// then on every time is later, also on a clock that is set back by less than an hour.
    pub expires_ms: u64,
}

impl Watermark {
    /// Raises it to the greatest token of a lock that becomes idle.
    pub(super) fn raise(&mut self, now_ms: u64, fence: Option<FencingToken>) {
        if let Some(fence) = fence.filter(|fence| Some(*fence) > self.fence) {
            *self = Self { fence: Some(fence), expires_ms: fence.as_u64() / 1000 + whole_millis(RECORD_TTL) };
            self.expire(now_ms);
        }
    }

    /// Forgets it once it has expired.
    pub(super) fn expire(&mut self, now_ms: u64) {
        if now_ms > self.expires_ms {
            *self = Self::default();
        }
    }
}
