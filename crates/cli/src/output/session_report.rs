//! The session of a holder, as it is printed.

use crate::output::printable::printable;
use crate::output::report::millis;
use crate::output::times::spoken;
use crate::output::timestamp::rfc3339;
use leasehold::inspect::{SessionInfo, SessionMetadata};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// The label of a session that names the command which its process runs.
pub(crate) const COMMAND_LABEL: &str = "command";

/// A session. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
pub(crate) struct SessionReport<'a> {
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
    #[serde(skip)]
    pub(crate) started_at: Option<SystemTime>,
    #[serde(skip)]
    about: Option<&'a SessionMetadata>,
}

impl<'a> SessionReport<'a> {
    pub(crate) fn new(info: &'a SessionInfo) -> Self {
        let about = info.metadata.as_ref();
        Self {
            session: info.id.to_string(),
            alive: info.alive_for.is_some(),
            alive_ms: info.alive_for.filter(|alive| *alive != Duration::MAX).map(millis),
            label: about.map(|about| about.label.as_str()),
            host: about.map(|about| about.host.as_str()),
            pid: about.map(|about| about.pid),
            program: about.map(|about| about.program.as_str()),
            version: about.map(|about| about.version.as_str()),
            started: info.since().map(rfc3339),
            started_at: info.since(),
            labels: labels(about),
            about,
        }
    }

    /// The command that the process runs, if it says so, or else its program.
    pub(crate) fn command(&self) -> Option<&'a str> {
        self.about.map(command)
    }

    /// `HOST/PID (COMMAND)`.
    pub(crate) fn process(&self) -> Option<String> {
        self.about.map(process)
    }

    /// Whether it is alive, in a word or two.
    pub(crate) fn state(&self) -> String {
        match (self.alive, self.alive_ms) {
            (false, _) => "dead".to_owned(),
            (true, None) => "alive".to_owned(),
            (true, Some(ms)) => format!("alive for {}, unless renewed", spoken(Duration::from_millis(ms))),
        }
    }

    /// The process, and whether its session is alive, as a clause that begins with a comma.
    pub(crate) fn clause(&self) -> String {
        let state = if self.alive { "alive" } else { "dead" };
        match (self.host, self.pid, self.command()) {
            (Some(host), Some(pid), Some(program)) => format!(
                ", program {} with process {pid} on {}, whose session is {state}",
                printable(program),
                printable(host)
            ),
            _ => format!(", whose session is {state}"),
        }
    }
}

/// The labels of a session; none if it did not describe itself.
pub(crate) fn labels(about: Option<&SessionMetadata>) -> BTreeMap<&str, &str> {
    let labels = about.into_iter().flat_map(|about| &about.labels);
    labels.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// The process of a session: `HOST/PID (COMMAND)`.
pub(crate) fn process(about: &SessionMetadata) -> String {
    format!("{}/{} ({})", printable(&about.host), about.pid, printable(command(about)))
}

/// The command that a process runs, if it says so, or else its program.
fn command(about: &SessionMetadata) -> &str {
    about.labels.get(COMMAND_LABEL).filter(|command| !command.is_empty()).unwrap_or(&about.program)
}
