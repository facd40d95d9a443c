//! `leasehold show`: the state of a lock.

use crate::args::ShowArgs;
use crate::lock::any_lock::{self, FoundLock};
use crate::output::audit_report::AuditReport;
use crate::output::capacity::Capacity;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::holder_report::HolderReport;
use crate::output::lines::Lines;
use crate::output::printable::printable;
use crate::output::report::{json_line, millis, print};
use crate::output::session_report::SessionReport;
use crate::output::timestamp::rfc3339;
use crate::store::client::ClientConfig;
use leasehold::{FencingToken, Owner};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// Prints the state of the lock.
pub(crate) async fn show(args: &ShowArgs) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let found = any_lock::find(&client, &name).await?;
    let report = Report::new(name.as_str(), &found, SystemTime::now());
    let text = if args.json { json_line(&report) } else { report.text() };
    print(&text).map(|()| Exit::SUCCESS)
}

/// The report. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    kind: &'static str,
    held: bool,
    rests: bool,
    holder: Option<&'a str>,
    owner: Option<&'a str>,
    count: u64,
    since: Option<String>,
    until: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    waiting: u64,
    #[serde(rename = "behind")]
    session: Option<SessionReport<'a>>,
    audit: Vec<AuditReport<'a>>,
    #[serde(flatten)]
    capacity: Capacity,
    #[serde(rename = "sharers")]
    holders: Vec<HolderReport<'a>>,
}

impl<'a> Report<'a> {
    fn new(name: &'a str, found: &'a FoundLock, now: SystemTime) -> Self {
        let FoundLock { lock, details } = found;
        let status = &details.status;
        let remaining = status.remaining.filter(|_| status.held);
        Self {
            name,
            kind: lock.kind().word(),
            held: status.held,
            rests: status.rests,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(Owner::as_str),
            count: status.count,
            since: status.since.map(rfc3339),
            until: remaining.and_then(|time| now.checked_add(time)).map(rfc3339),
            remaining_ms: remaining.map(millis),
            fence: status.fence.filter(|_| status.held).map(FencingToken::as_u64),
            waiting: status.waiting,
            session: details.behind.as_ref().map(SessionReport::new),
            audit: details.audit.iter().map(AuditReport::new).collect(),
            capacity: Capacity::new(lock.kind(), status),
            holders: HolderReport::all(status, |holder| details.shared_holder_session(holder)),
        }
    }

    fn text(&self) -> String {
        let mut lines = Lines::default();
        lines.push("name", self.name);
        lines.push("kind", self.kind);
        if let Some(taken) = self.capacity.text() {
            lines.push("taken", &taken);
        }
        if !self.holders.is_empty() {
            lines.push("held", "yes");
            for holder in &self.holders {
                lines.push("hold", &holder.text());
            }
        } else if self.held {
            self.push_hold(&mut lines);
        } else {
            lines.push("held", "no");
        }
        lines.push("waiting", &self.waiting.to_string());
        for entry in &self.audit {
            lines.push("audit", &entry.text());
        }
        lines.into_text()
    }

    /// The hold of a lock that is not shared.
    fn push_hold(&self, lines: &mut Lines) {
        let held =
            if self.rests { "no longer, but left resting: no client can acquire it yet" } else { "yes" };
        lines.push("held", held);
        let no_label = || "unknown: the holder has recorded no label".to_owned();
        lines.push("holder", &self.holder.map_or_else(no_label, printable));
        if let Some(owner) = self.owner {
            let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
            lines.push("owner", &format!("{}, {times}", printable(owner)));
        }
        lines.push("since", self.since.as_deref().unwrap_or("unknown"));
        match (&self.until, self.remaining_ms) {
            (Some(until), Some(ms)) => {
                let remaining = Duration::from_millis(ms);
                let renewed = if self.rests { "" } else { ", unless it is renewed" };
                lines.push("until", &format!("{until} (in {remaining:?}{renewed})"));
            }
            _ => lines.push("until", "for ever: it has no expiry"),
        }
        if let Some(session) = &self.session {
            push_session(session, lines);
        }
        lines.push("fence", &self.fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string()));
    }
}

fn push_session(session: &SessionReport<'_>, lines: &mut Lines) {
    lines.push("session", &format!("{}, {}", session.session, session.state()));
    if let (Some(host), Some(pid), Some(program)) = (session.host, session.pid, session.program) {
        lines.push("host", &printable(host));
        lines.push("process", &format!("{pid}, {}", printable(program)));
    }
    for (name, value) in &session.labels {
        lines.push("label", &format!("{}={}", printable(name), printable(value)));
    }
}
