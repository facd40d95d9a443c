//! A holder of a shared lock, as it is printed.

use crate::output::printable::printable;
use crate::output::report::millis;
use crate::output::session_report::SessionReport;
use crate::output::times::{Clock, spoken};
use crate::output::timestamp::rfc3339;
use leasehold::inspect::{LockMode, SessionInfo, SharedHolder, Status};
use leasehold::{FencingToken, Owner};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// A holder of a shared lock. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct HolderReport<'a> {
    #[serde(rename = "portion")]
    mode: &'static str,
    /// The number of permits or arrivals, if the kind counts them.
    count: Option<u32>,
    pub(crate) holder: Option<&'a str>,
    owner: Option<&'a str>,
    pub(crate) since: Option<String>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) fence: Option<u64>,
    #[serde(rename = "behind")]
    pub(crate) session: Option<SessionReport<'a>>,
    #[serde(skip)]
    pub(crate) since_at: Option<SystemTime>,
    #[serde(skip)]
    has_session: bool,
}

impl<'a> HolderReport<'a> {
    /// All holders of a lock; empty for a kind that cannot be shared.
    pub(crate) fn all(
        status: &'a Status,
        session: impl Fn(&'a SharedHolder) -> Option<&'a SessionInfo>,
    ) -> Vec<Self> {
        status.shared_holders.iter().map(|holder| Self::new(holder, session(holder))).collect()
    }

    fn new(holder: &'a SharedHolder, session: Option<&'a SessionInfo>) -> Self {
        let (mode, count) = mode_word(holder.mode);
        Self {
            mode,
            count,
            holder: holder.label.as_deref().filter(|label| !label.is_empty()),
            owner: holder.owner.as_ref().map(Owner::as_str),
            since: holder.since.map(rfc3339),
            remaining_ms: holder.remaining.map(millis),
            fence: holder.fence.map(FencingToken::as_u64),
            session: session.map(SessionReport::new),
            since_at: holder.since,
            has_session: holder.session.is_some(),
        }
    }

    /// The mode of the hold, or the number of permits.
    pub(crate) fn mode_text(&self) -> String {
        mode_text(self.mode, self.count)
    }

    /// The holder, its session and its owner.
    pub(crate) fn holder_text(&self) -> String {
        let label = self.holder.map_or_else(|| "a client without a label".to_owned(), printable);
        describe_holder(&label, self.session.as_ref(), self.owner, 1, self.fence)
    }

    /// The whole hold, on one line.
    pub(crate) fn text(&self, clock: &Clock) -> String {
        let since = self.since_at.map(|since| format!(", since {}", clock.instant_and_age(since)));
        let since = since.unwrap_or_default();
        let remaining = self.remaining_ms.map(Duration::from_millis);
        let unless = unless_extended(self.has_session);
        let remaining = remaining.map(|time| format!(", for {} {unless}", spoken(time)));
        let remaining = remaining.unwrap_or_default();
        format!("{} by {}{since}{remaining}", self.mode_text(), self.holder_text())
    }
}

/// What would move the end of a hold. Of one without a session a store does not report whether its client renews it, as over a
/// quorum: a turn of `run --once-per` never is, and a detached hold only by `extend`.
pub(crate) const fn unless_extended(has_session: bool) -> &'static str {
    if has_session { "unless it is renewed" } else { "unless its holder extends it" }
}

/// The mode as a word for programs, and the number of permits or arrivals.
pub(crate) const fn mode_word(mode: LockMode) -> (&'static str, Option<u32>) {
    match mode {
        LockMode::Permits { count, .. } => ("permits", Some(count)),
        LockMode::Read => ("read", None),
        LockMode::Upgradable => ("upgradable_read", None),
        LockMode::Write => ("write", None),
        LockMode::Upgrade => ("upgraded_write", None),
        LockMode::CountDown { count, .. } => ("arrivals", Some(count)),
        LockMode::LatchWait { .. } => ("pass", None),
        LockMode::BarrierWait { .. } => ("meeting", None),
        _ => ("other", None),
    }
}

/// A mode, by its word, for people.
pub(crate) fn mode_text(mode: &str, count: Option<u32>) -> String {
    match (mode, count) {
        ("permits", Some(1)) => "1 permit".to_owned(),
        ("arrivals", Some(1)) => "1 arrival".to_owned(),
        (mode, Some(count)) => format!("{count} {mode}"),
        (mode, None) => mode.replace('_', " "),
    }
}

/// A holder on one line: its label, session, owner with the number of holds, and fencing token.
pub(crate) fn describe_holder(
    label: &str,
    session: Option<&SessionReport<'_>>,
    owner: Option<&str>,
    count: u64,
    fence: Option<u64>,
) -> String {
    let session = session.map(SessionReport::clause).unwrap_or_default();
    let owner = owner.map(|owner| format!(", for the owner {}", printable(owner))).unwrap_or_default();
    let times = if count > 1 { format!(", {count} times") } else { String::new() };
    let fence = fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
    format!("{label}{session}{owner}{times}{fence}")
}
