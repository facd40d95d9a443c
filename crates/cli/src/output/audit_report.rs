//! An entry of a lock's audit, as it is printed.

use crate::output::printable::printable;
use crate::output::times::Clock;
use crate::output::timestamp::rfc3339;
use leasehold::inspect::{AuditEntry, Ended};
use leasehold::{FencingToken, Label};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// An entry of the audit. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct AuditReport<'a> {
    at: String,
    how: &'static str,
    fence: Option<u64>,
    whose: Option<&'a str>,
    by: &'a str,
    #[serde(skip)]
    at_time: SystemTime,
}

impl<'a> AuditReport<'a> {
    pub(crate) fn new(entry: &'a AuditEntry) -> Self {
        let at_time = SystemTime::UNIX_EPOCH + Duration::from_millis(entry.at_ms);
        Self {
            at: rfc3339(at_time),
            at_time,
            how: match entry.ended {
                Ended::ForceReleased => "force_released",
                Ended::Evicted => "evicted",
                _ => "other",
            },
            fence: entry.fence.map(FencingToken::as_u64),
            whose: entry.holder.as_ref().map(Label::as_str),
            by: entry.actor.as_str(),
        }
    }

    /// The entry on one line.
    pub(crate) fn text(&self, clock: &Clock) -> String {
        let fence = self.fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
        let holder = self.whose.unwrap_or("a client of another library");
        let at = clock.instant(self.at_time);
        format!("{at} {} from {}{fence} by {}", self.how, printable(holder), printable(self.by))
    }
}
