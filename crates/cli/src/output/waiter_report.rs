//! A waiter in the queue of a lock, as it is printed.

use crate::output::holder_report::{mode_text, mode_word};
use crate::output::printable::printable;
use crate::output::session_report::SessionReport;
use crate::output::times::Clock;
use crate::output::timestamp::rfc3339;
use leasehold::inspect::{FullStatus, LockMode, QueuedWaiter, SessionInfo};
use serde::Serialize;
use std::time::SystemTime;

/// A waiter. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct WaiterReport<'a> {
    session: String,
    label: Option<&'a str>,
    #[serde(rename = "portion")]
    mode: Option<&'static str>,
    count: Option<u32>,
    since: Option<String>,
    #[serde(rename = "behind")]
    about: Option<SessionReport<'a>>,
    #[serde(skip)]
    since_at: Option<SystemTime>,
}

impl<'a> WaiterReport<'a> {
    /// The waiters of a lock, in their order.
    pub(crate) fn all(details: &'a FullStatus) -> Vec<Self> {
        details.queue.iter().map(|waiter| Self::new(waiter, details.waiter_session(waiter))).collect()
    }

    fn new(waiter: &'a QueuedWaiter, session: Option<&'a SessionInfo>) -> Self {
        let mode = (waiter.mode != LockMode::Exclusive).then(|| mode_word(waiter.mode));
        Self {
            session: waiter.session.to_string(),
            label: waiter.label.as_deref().filter(|label| !label.is_empty()),
            mode: mode.map(|(mode, _)| mode),
            count: mode.and_then(|(_, count)| count),
            since: waiter.since.map(rfc3339),
            about: session.map(SessionReport::new),
            since_at: waiter.since,
        }
    }

    /// The waiter on one line.
    pub(crate) fn text(&self, clock: &Clock) -> String {
        let label = || self.label.map(printable);
        let process = self.about.as_ref().and_then(SessionReport::process);
        let name = process.or_else(label).unwrap_or_else(|| format!("session {}", self.session));
        let is_dead = self.about.as_ref().is_some_and(|session| !session.alive);
        let dead = if is_dead { ", whose session is dead" } else { "" };
        let mode = self.mode.map(|mode| format!(", for {}", mode_text(mode, self.count))).unwrap_or_default();
        let since = self.since_at.map(|since| format!(", since {}", clock.age(since))).unwrap_or_default();
        format!("{name}{dead}{mode}{since}")
    }
}
