//! A lock's page: its holders, its queue, its audit and its history.

use crate::board::charts::unix_ms;
use crate::lock::any_lock::FoundLock;
use crate::output::capacity::Capacity;
use crate::output::holder_report::{mode_text, mode_word};
use crate::output::printable::printable;
use crate::output::session_report::SessionReport;
use leasehold::inspect::{
    AuditEntry, Ended, FullStatus, HistoryEntry, LockMode, QueuedWaiter, SessionInfo, SharedHolder,
};
use leasehold::{FencingToken, Label, LockName, Owner};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// More holders are counted, and not listed.
const MAX_HOLDERS: usize = 200;
/// More waiters are counted, and not listed.
const MAX_QUEUE: usize = 200;
/// Older entries of the audit and of the history are left out.
const MAX_ENTRIES: usize = 100;

/// The page. Times are in milliseconds since 1970.
#[derive(Debug, Serialize)]
pub(super) struct LockPage<'a> {
    name: &'a str,
    shown: String,
    kind: &'static str,
    held: bool,
    in_cooldown: bool,
    blocked_ms: Option<u64>,
    capacity: Option<String>,
    waiting: u64,
    holders: Vec<HolderRow>,
    more_holders: usize,
    queue: Vec<WaiterRow>,
    more_waiting: u64,
    audit: Vec<AuditRow>,
    history: Vec<HistoryRow>,
    incomplete: Option<String>,
}

#[derive(Debug, Serialize)]
struct HolderRow {
    mode: String,
    holder: String,
    process: Option<String>,
    session: Option<String>,
    alive: Option<bool>,
    owner: Option<String>,
    count: u64,
    since: Option<u64>,
    /// `None` if it has no expiry.
    until: Option<u64>,
    fence: Option<u64>,
}

#[derive(Debug, Serialize)]
struct WaiterRow {
    waiter: String,
    mode: Option<String>,
    since: Option<u64>,
    alive: Option<bool>,
    session: String,
}

#[derive(Debug, Serialize)]
struct AuditRow {
    at: u64,
    how: &'static str,
    whose: String,
    by: String,
    fence: Option<u64>,
}

#[derive(Debug, Serialize)]
struct HistoryRow {
    from: u64,
    to: u64,
    whose: String,
    fence: Option<u64>,
}

impl<'a> LockPage<'a> {
    pub(super) fn new(name: &'a LockName, found: &FoundLock, now: SystemTime) -> Self {
        let FoundLock { lock, details } = found;
        let status = &details.status;
        let (mut holders, mut more_holders) = (Vec::new(), 0);
        if !status.shared_holders.is_empty() {
            let listed = status.shared_holders.iter().take(MAX_HOLDERS);
            holders = listed.map(|holder| HolderRow::shared(holder, details, now)).collect();
            more_holders = status.shared_holders.len() - holders.len();
        } else if status.held {
            holders.push(HolderRow::exclusive(details, now));
        }
        let queue: Vec<_> =
            details.queue.iter().take(MAX_QUEUE).map(|waiter| WaiterRow::new(waiter, details)).collect();
        Self {
            name: name.as_str(),
            shown: printable(name.as_str()),
            kind: lock.kind().as_str(),
            held: status.held,
            in_cooldown: status.in_cooldown,
            blocked_ms: status.blocked.map(crate::output::report::millis),
            capacity: Capacity::new(lock.kind(), status).text(),
            waiting: status.waiting,
            holders,
            more_holders,
            more_waiting: status.waiting.saturating_sub(queue.len() as u64),
            queue,
            audit: details.audit.iter().take(MAX_ENTRIES).map(AuditRow::new).collect(),
            history: details.history.iter().take(MAX_ENTRIES).map(HistoryRow::new).collect(),
            incomplete: (!details.skipped.is_empty()).then(|| printable(&details.skipped.to_string())),
        }
    }
}

impl HolderRow {
    fn exclusive(details: &FullStatus, now: SystemTime) -> Self {
        let status = &details.status;
        let label = match (status.holder.as_deref().filter(|label| !label.is_empty()), status.fence) {
            (Some(label), _) => printable(label),
            (None, Some(_)) => "a client without a label".to_owned(),
            (None, None) => "a client of another library".to_owned(),
        };
        Self {
            mode: "exclusive".to_owned(),
            owner: status.owner.as_ref().map(Owner::as_str).map(printable),
            count: status.count,
            since: status.since.map(unix_ms),
            until: until(now, status.remaining),
            fence: status.fence.map(FencingToken::as_u64),
            ..Self::of_session(label, details.holder_session.as_ref())
        }
    }

    fn shared(holder: &SharedHolder, details: &FullStatus, now: SystemTime) -> Self {
        let label = holder.label.as_deref().filter(|label| !label.is_empty());
        let label = label.map_or_else(|| "a client without a label".to_owned(), printable);
        let (mode, count) = mode_word(holder.mode);
        Self {
            mode: mode_text(mode, count),
            owner: holder.owner.as_ref().map(Owner::as_str).map(printable),
            since: holder.since.map(unix_ms),
            until: until(now, holder.remaining),
            fence: holder.fence.map(FencingToken::as_u64),
            ..Self::of_session(label, details.shared_holder_session(holder))
        }
    }

    /// What is known by the session; the rest is filled in.
    fn of_session(holder: String, session: Option<&SessionInfo>) -> Self {
        let report = session.map(SessionReport::new);
        Self {
            mode: String::new(),
            holder,
            process: report.as_ref().and_then(SessionReport::process),
            alive: report.as_ref().map(|report| report.alive),
            session: report.map(|report| report.session),
            owner: None,
            count: 1,
            since: None,
            until: None,
            fence: None,
        }
    }
}

/// The end of a hold, in seconds: its milliseconds differ with each reading.
fn until(now: SystemTime, remaining: Option<Duration>) -> Option<u64> {
    let until = unix_ms(now.checked_add(remaining?)?);
    Some(until / 1_000 * 1_000)
}

impl WaiterRow {
    fn new(waiter: &QueuedWaiter, details: &FullStatus) -> Self {
        let about = details.waiter_session(waiter).map(SessionReport::new);
        let label = || waiter.label.as_deref().filter(|label| !label.is_empty()).map(printable);
        let session = waiter.session.to_string();
        let name = about.as_ref().and_then(SessionReport::process).or_else(label);
        let (mode, count) = mode_word(waiter.mode);
        Self {
            waiter: name.unwrap_or_else(|| format!("session {session}")),
            mode: (waiter.mode != LockMode::Exclusive).then(|| mode_text(mode, count)),
            since: waiter.since.map(unix_ms),
            alive: about.map(|about| about.alive),
            session,
        }
    }
}

impl AuditRow {
    fn new(entry: &AuditEntry) -> Self {
        let whose = entry.holder.as_ref().map(Label::as_str);
        Self {
            at: entry.at_ms,
            how: match entry.ended {
                Ended::ForceReleased => "force released",
                Ended::Evicted => "evicted",
                _ => "other",
            },
            whose: whose.map_or_else(|| "a client of another library".to_owned(), printable),
            by: printable(entry.actor.as_str()),
            fence: entry.fence.map(FencingToken::as_u64),
        }
    }
}

impl HistoryRow {
    fn new(entry: &HistoryEntry) -> Self {
        Self {
            from: entry.from_ms,
            to: entry.to_ms,
            whose: printable(entry.label.as_str()),
            fence: entry.fence.map(FencingToken::as_u64),
        }
    }
}
