//! An entry of a lock's history, as it is printed.

use crate::output::printable::printable;
use crate::output::report::millis;
use crate::output::times::{Clock, spoken};
use crate::output::timestamp::rfc3339;
use leasehold::FencingToken;
use leasehold::inspect::HistoryEntry;
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// An entry of the history. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryReport<'a> {
    from: String,
    to: String,
    held_ms: u64,
    fence: Option<u64>,
    whose: &'a str,
    #[serde(skip)]
    from_at: SystemTime,
}

impl<'a> HistoryReport<'a> {
    pub(crate) fn new(entry: &'a HistoryEntry) -> Self {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let held = Duration::from_millis(entry.to_ms.saturating_sub(entry.from_ms));
        Self {
            from: rfc3339(at(entry.from_ms)),
            to: rfc3339(at(entry.to_ms)),
            held_ms: millis(held),
            fence: entry.fence.map(FencingToken::as_u64),
            whose: entry.label.as_str(),
            from_at: at(entry.from_ms),
        }
    }

    /// The entry on one line.
    pub(crate) fn text(&self, clock: &Clock) -> String {
        let fence = self.fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
        let held = match self.held_ms {
            ms @ 0..1_000 => format!("{ms}ms"),
            ms => spoken(Duration::from_millis(ms)),
        };
        format!("{} held for {held} by {}{fence}", clock.instant(self.from_at), printable(self.whose))
    }
}
