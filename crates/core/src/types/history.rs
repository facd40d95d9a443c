//! The history of a lock, for people to read.

use crate::{FencingToken, Label};
use serde::{Deserialize, Serialize};

/// The greatest number of holds in the history of a lock.
pub const MAX_HISTORY: u16 = 100;

/// A hold that was released.
///
/// ```
/// use leasehold_core::{FencingToken, HistoryEntry, Label};
///
/// let label = Label::new("web-3/4711/billing")?;
/// let entry = HistoryEntry { from_ms: 5_000, to_ms: 7_500, fence: Some(FencingToken::new(7)), label };
/// assert_eq!(entry.to_ms - entry.from_ms, 2_500);
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When the hold began, in milliseconds of the store's clock.
    pub from_ms: u64,
    /// When it was released.
    pub to_ms: u64,
    /// Its fencing token, if the store knew it.
    pub fence: Option<FencingToken>,
    /// The label of its holder.
    pub label: Label,
}
