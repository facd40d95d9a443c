//! The holders of a shared lock, as they are printed.

use crate::output::report::millis;
use crate::output::session_info::{Behind, plain};
use crate::output::stamp::rfc3339;
use leasehold::core::Kind;
use leasehold::{LockMode, SessionInfo, SharedHolder, Status};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// A holder of a shared lock. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct Having<'a> {
    portion: &'static str,
    /// The number of permits or arrivals, if the kind counts them.
    count: Option<u32>,
    holder: Option<&'a str>,
    owner: Option<&'a str>,
    since: Option<String>,
    remaining_ms: Option<u64>,
    pub(crate) fence: Option<u64>,
    pub(crate) behind: Option<Behind<'a>>,
}

/// How many permits or arrivals are taken, and how many there are. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct Counted {
    taken: Option<u64>,
    limit: Option<u32>,
}

impl Counted {
    pub(crate) fn of(kind: Kind, status: &Status) -> Self {
        let counts = matches!(kind, Kind::Semaphore | Kind::Latch);
        Self { taken: counts.then(|| status.taken()), limit: status.limit }
    }

    /// "TAKEN of LIMIT".
    pub(crate) fn text(&self) -> Option<String> {
        let of = self.limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        self.taken.map(|taken| format!("{taken}{of}"))
    }
}

impl<'a> Having<'a> {
    /// All holders of a lock; empty for a kind that cannot be shared.
    pub(crate) fn all(
        status: &'a Status,
        behind: impl Fn(&'a SharedHolder) -> Option<&'a SessionInfo>,
    ) -> Vec<Self> {
        status.sharers.iter().map(|sharer| Self::of(sharer, behind(sharer))).collect()
    }

    fn of(sharer: &'a SharedHolder, behind: Option<&'a SessionInfo>) -> Self {
        let (portion, count) = match sharer.mode {
            LockMode::Permits { count, .. } => ("permits", Some(count)),
            LockMode::Read => ("read", None),
            LockMode::Upgradable => ("upgradable_read", None),
            LockMode::Write => ("write", None),
            LockMode::Upgrade => ("upgraded_write", None),
            LockMode::CountDown { count, .. } => ("arrivals", Some(count)),
            LockMode::LatchWait { .. } => ("pass", None),
            LockMode::BarrierWait { .. } => ("meeting", None),
            _ => ("other", None),
        };
        Self {
            portion,
            count,
            holder: sharer.holder.as_deref().filter(|label| !label.is_empty()),
            owner: sharer.owner.as_ref().map(leasehold::Owner::as_str),
            since: sharer.since.map(rfc3339),
            remaining_ms: sharer.remaining.map(millis),
            fence: sharer.fence.map(leasehold::FencingToken::as_u64),
            behind: behind.map(Behind::of),
        }
    }

    /// When the hold began, its remaining time, and the label of its holder.
    pub(crate) fn held(&self) -> (Option<&str>, Option<u64>, Option<&str>) {
        (self.since.as_deref(), self.remaining_ms, self.holder)
    }

    /// The mode of the hold, or the number of permits.
    pub(crate) fn what(&self) -> String {
        match (self.portion, self.count) {
            ("permits", Some(1)) => "1 permit".to_owned(),
            ("arrivals", Some(1)) => "1 arrival".to_owned(),
            (portion, Some(count)) => format!("{count} {portion}"),
            (portion, None) => portion.replace('_', " "),
        }
    }

    /// The holder, and its owner.
    pub(crate) fn whom(&self) -> String {
        let mut text = self.holder.map_or_else(|| "a client without a label".to_owned(), plain);
        // Writing to a string cannot fail.
        if let Some(Behind { host: Some(host), pid: Some(pid), program: Some(program), .. }) = &self.behind {
            let _ = write!(text, ", program {} with process {pid} on {}", plain(program), plain(host));
        }
        match &self.behind {
            Some(behind) if !behind.alive => text.push_str(", whose session is dead"),
            Some(_) => text.push_str(", whose session is alive"),
            None => {}
        }
        if let Some(owner) = self.owner {
            let _ = write!(text, ", for the owner {}", plain(owner));
        }
        if let Some(fence) = self.fence {
            let _ = write!(text, " (fence {fence})");
        }
        text
    }

    /// The whole hold, on one line.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} by {}", self.what(), self.whom());
        if let Some(since) = &self.since {
            let _ = write!(text, ", since {since}");
        }
        if let Some(ms) = self.remaining_ms {
            let _ = write!(text, ", for {:?} unless it is renewed", Duration::from_millis(ms));
        }
        text
    }
}
