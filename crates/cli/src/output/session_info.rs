//! The session of a holder, and the audit, as they are printed: text from other clients, made safe for a terminal.

use crate::output::report::millis;
use crate::output::stamp::rfc3339;
use leasehold::{AuditEntry, Ended, SessionInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// The session of a holder. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct Behind<'a> {
    pub(crate) session: String,
    pub(crate) alive: bool,
    /// Also null if the session needs no heartbeats.
    pub(crate) alive_ms: Option<u64>,
    pub(crate) label: Option<&'a str>,
    pub(crate) host: Option<&'a str>,
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<&'a str>,
    pub(crate) version: Option<&'a str>,
    pub(crate) started: Option<String>,
    pub(crate) labels: BTreeMap<&'a str, &'a str>,
}

impl<'a> Behind<'a> {
    pub(crate) fn of(info: &'a SessionInfo) -> Self {
        let about = info.about.as_ref();
        Self {
            session: info.session.to_string(),
            alive: info.alive_for.is_some(),
            alive_ms: info.alive_for.filter(|alive| *alive != Duration::MAX).map(millis),
            label: about.map(|about| about.label.as_str()),
            host: about.map(|about| about.host.as_str()),
            pid: about.map(|about| about.pid),
            program: about.map(|about| about.program.as_str()),
            version: about.map(|about| about.version.as_str()),
            started: info.since().map(rfc3339),
            labels: about
                .map(|about| {
                    about.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
                })
                .unwrap_or_default(),
        }
    }

    /// Whether it is alive, in a word or two.
    pub(crate) fn state(&self) -> String {
        match (self.alive, self.alive_ms) {
            (false, _) => "dead".to_owned(),
            (true, None) => "alive".to_owned(),
            (true, Some(ms)) => format!("alive for {:?}, unless renewed", Duration::from_millis(ms)),
        }
    }
}

/// An entry of the audit. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct Taken<'a> {
    at: String,
    how: &'static str,
    fence: Option<u64>,
    whose: Option<&'a str>,
    by: &'a str,
}

impl<'a> Taken<'a> {
    pub(crate) fn of(entry: &'a AuditEntry) -> Self {
        Self {
            at: rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(entry.at_ms)),
            how: match entry.ended {
                Ended::ForceReleased => "freed",
                Ended::Evicted => "evicted",
                _ => "other",
            },
            fence: entry.fence.map(leasehold::FencingToken::as_u64),
            whose: entry.holder.as_ref().map(leasehold::Label::as_str),
            by: entry.actor.as_str(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let fence = self.fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
        let whose = self.whose.unwrap_or("a client of another library");
        format!("{} {} from {}{fence} by {}", self.at, self.how, plain(whose), plain(self.by))
    }
}

/// A text from another client, without the characters that a terminal would interpret.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_clients_cannot_control_a_terminal() {
        assert_eq!(plain("web-3\x1b[2J\u{9b}x\n"), "web-3\u{fffd}[2J\u{fffd}x\u{fffd}");
    }
}
