//! `leasehold show`: the state of a lock.

use crate::args::ShowArgs;
use crate::look::{Looked, look};
use crate::output::exit::{Exit, Failure};
use crate::output::holders::{Counted, Having};
use crate::output::report::{json_line, millis, print};
use crate::output::session_info::{Behind, Taken, plain};
use crate::output::stamp::rfc3339;
use crate::store::Partition;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// Prints the state of the lock.
pub(crate) async fn show(args: &ShowArgs) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let client = Partition::of(&args.store)?.without_session().connect().await?;
    let looked = look(&client, &name).await?;
    let report = Report::of(name.as_str(), &looked, SystemTime::now());
    let text = if args.json { json_line(&report) } else { report.text() };
    print(&text).map(|()| Exit::SUCCESS).map_err(|error| Failure::new(Exit::UNAVAILABLE, error))
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
    behind: Option<Behind<'a>>,
    audit: Vec<Taken<'a>>,
    #[serde(flatten)]
    counted: Counted,
    sharers: Vec<Having<'a>>,
}

impl<'a> Report<'a> {
    fn of(name: &'a str, looked: &'a Looked, now: SystemTime) -> Self {
        let Looked { lock, details } = looked;
        let status = &details.status;
        let remaining = status.remaining.filter(|_| status.held);
        Self {
            name,
            kind: lock.kind().as_str(),
            held: status.held,
            rests: status.rests,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(leasehold::Owner::as_str),
            count: status.count,
            since: status.since.map(rfc3339),
            until: remaining.and_then(|time| now.checked_add(time)).map(rfc3339),
            remaining_ms: remaining.map(millis),
            fence: status.fence.filter(|_| status.held).map(leasehold::FencingToken::as_u64),
            waiting: status.waiting,
            behind: details.behind.as_ref().map(Behind::of),
            audit: details.audit.iter().map(Taken::of).collect(),
            counted: Counted::of(lock.kind(), status),
            sharers: Having::all(status, |sharer| details.shared_holder_session(sharer)),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: &str| {
            writeln!(text, "{label:<9}{value}").expect("writing to a string cannot fail");
        };
        line("name", self.name);
        line("kind", self.kind);
        if let Some(taken) = self.counted.text() {
            line("taken", &taken);
        }
        if !self.sharers.is_empty() {
            line("held", "yes");
            for having in &self.sharers {
                line("hold", &having.text());
            }
        } else if self.held {
            line(
                "held",
                if self.rests { "no longer, but left resting: no client can acquire it yet" } else { "yes" },
            );
            line(
                "holder",
                &self.holder.map_or_else(|| "unknown: the holder has recorded no label".to_owned(), plain),
            );
            if let Some(owner) = self.owner {
                let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
                line("owner", &format!("{}, {times}", plain(owner)));
            }
            line("since", self.since.as_deref().unwrap_or("unknown"));
            match (&self.until, self.remaining_ms) {
                (Some(until), Some(ms)) => {
                    let left = Duration::from_millis(ms);
                    let renewed = if self.rests { "" } else { ", unless it is renewed" };
                    line("until", &format!("{until} (in {left:?}{renewed})"));
                }
                _ => line("until", "for ever: it has no expiry"),
            }
            if let Some(behind) = &self.behind {
                line("session", &format!("{}, {}", behind.session, behind.state()));
                if let (Some(host), Some(pid), Some(program)) = (behind.host, behind.pid, behind.program) {
                    line("host", &plain(host));
                    line("process", &format!("{pid}, {}", plain(program)));
                }
                for (name, value) in &behind.labels {
                    line("label", &format!("{}={}", plain(name), plain(value)));
                }
            }
            line("fence", &self.fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string()));
        } else {
            line("held", "no");
        }
        line("waiting", &self.waiting.to_string());
        for taken in &self.audit {
            line("audit", &taken.text());
        }
        text
    }
}
