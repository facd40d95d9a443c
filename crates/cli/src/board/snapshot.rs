//! What the lists of the page show of a fleet: one part of them.

use crate::board::charts::{Point, unix_ms};
use crate::board::graph_layout::GraphLayout;
use crate::board::query::{ListQuery, PAGE};
use crate::fleet::{Fleet, LockView};
use crate::output::printable::printable;
use crate::output::session_report::SessionReport;
use leasehold::FencingToken;
use leasehold::core::Lock;
use leasehold::inspect::SessionInfo;
use serde::Serialize;
use std::time::SystemTime;

/// The state of the whole, which is above each view. The figures of now are sent with the charts.
#[derive(Debug, Serialize)]
pub(super) struct Head<'a> {
    /// When the fleet was last read, in milliseconds since 1970, if it does not answer now.
    read_at: Option<u64>,
    trouble: Option<&'a str>,
    incomplete: Option<&'a str>,
    is_read: bool,
    held: usize,
    waiting: u64,
    alive: usize,
    dead: usize,
    cycles: usize,
    changes_per_second: f64,
}

impl<'a> Head<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        let trouble = fleet.trouble.as_deref();
        Self {
            read_at: fleet.read_at.filter(|_| trouble.is_some()).map(unix_ms),
            trouble,
            incomplete: fleet.incomplete.as_deref(),
            is_read: fleet.read_at.is_some(),
            held: fleet.totals.held,
            waiting: fleet.totals.waiting,
            alive: fleet.totals.alive,
            dead: fleet.totals.dead,
            cycles: fleet.graph.cycles.len(),
            changes_per_second: rounded(fleet.totals.changes_per_second),
        }
    }
}

/// A part of a list.
#[derive(Debug, Serialize)]
pub(super) struct Part<T> {
    rows: Vec<T>,
    /// How many match the filter.
    total: usize,
    /// How many there are.
    all: usize,
    /// The part, counted from 0, and how many there are.
    page: usize,
    pages: usize,
}

impl<T> Part<T> {
    fn new<S>(matching: &[S], all: usize, page: usize, row: impl Fn(&S) -> T) -> Self {
        let pages = matching.len().div_ceil(PAGE).max(1);
        let page = page.min(pages - 1);
        let shown = matching.iter().skip(page * PAGE).take(PAGE);
        Self { rows: shown.map(row).collect(), total: matching.len(), all, page, pages }
    }
}

/// A lock in the list. Times are in milliseconds since 1970.
#[derive(Debug, Serialize)]
pub(super) struct LockRow<'a> {
    name: &'a str,
    /// The name without what changes how other characters are shown.
    shown: String,
    kind: &'static str,
    held: bool,
    holder: Option<String>,
    since: Option<u64>,
    waiting: u64,
    waiting_since: Option<u64>,
    rate: Option<f64>,
    fence: Option<u64>,
}

/// The locks that a query selects, in its order, and those of them that are on the page.
pub(super) fn locks<'a>(fleet: &'a Fleet, query: &ListQuery) -> (Part<LockRow<'a>>, Vec<Lock>) {
    let is_shown = |view: &&LockView| {
        let label = view.status.as_ref().and_then(|status| status.holder.as_deref());
        let host = view.session.as_deref().and_then(host);
        let texts = [Some(view.lock.name.as_str()), label, host];
        query.filter.matches(texts.into_iter().flatten())
    };
    let mut matching: Vec<_> = fleet.locks.iter().filter(is_shown).collect();
    matching.sort_by(|one, other| query.sort.compare(one, other));
    let rows = Part::new(&matching, fleet.locks.len(), query.page, |view| LockRow::new(view));
    let shown = matching.iter().skip(rows.page * PAGE).take(PAGE).map(|view| view.lock.clone()).collect();
    (rows, shown)
}

impl<'a> LockRow<'a> {
    fn new(view: &'a LockView) -> Self {
        let status = view.status.as_deref();
        let held = status.filter(|status| status.held);
        let label = || held?.holder.as_deref().filter(|label| !label.is_empty()).map(printable);
        let holders = held.map_or(0, |status| status.shared_holders.len());
        let holder = match (view.is_held(), holders) {
            (false, _) => None,
            (true, 0 | 1) => view.session.as_deref().and_then(process).or_else(label),
            (true, holders) => Some(format!("{holders} holders")),
        };
        Self {
            name: view.lock.name.as_str(),
            shown: printable(view.lock.name.as_str()),
            kind: view.lock.kind.as_str(),
            held: view.is_held(),
            holder,
            since: held.and_then(|status| status.since).map(unix_ms),
            waiting: view.waiting,
            waiting_since: view.waiting_since.map(unix_ms),
            rate: view.changes_per_second.map(rounded),
            fence: held.and_then(|status| status.fence).map(FencingToken::as_u64),
        }
    }
}

/// A session in the list.
#[derive(Debug, Serialize)]
pub(super) struct SessionRow {
    id: String,
    alive: bool,
    host: Option<String>,
    pid: Option<u32>,
    program: Option<String>,
    label: Option<String>,
    since: Option<u64>,
    locks: usize,
}

/// The sessions that a query selects, the oldest first.
pub(super) fn sessions(fleet: &Fleet, query: &ListQuery) -> Part<SessionRow> {
    let is_shown = |session: &&SessionInfo| {
        let about = session.metadata.iter();
        let texts =
            about.flat_map(|about| [about.host.as_str(), about.program.as_str(), about.label.as_str()]);
        let locks = session.locks.iter().map(|lock| lock.name.as_str());
        query.filter.matches(texts.chain(locks))
    };
    let mut matching: Vec<_> = fleet.sessions.iter().map(|session| &**session).filter(is_shown).collect();
    matching.sort_by_cached_key(|session| (session.since(), session.id.to_string()));
    Part::new(&matching, fleet.sessions.len(), query.page, |session| SessionRow::new(session))
}

impl SessionRow {
    fn new(info: &SessionInfo) -> Self {
        let report = SessionReport::new(info);
        Self {
            alive: report.alive,
            host: report.host.map(printable),
            pid: report.pid,
            program: report.command().map(printable),
            label: report.label.map(printable),
            since: report.started_at.map(unix_ms),
            locks: info.locks.len(),
            id: report.session,
        }
    }
}

/// What a message of a list contains.
#[derive(Debug, Serialize)]
#[serde(tag = "view", rename_all = "snake_case")]
pub(super) enum Content<'a> {
    Locks(Part<LockRow<'a>>),
    Sessions(Part<SessionRow>),
    Graph(&'a GraphLayout),
}

/// The figures of the last hour and of now.
#[derive(Debug, Serialize)]
pub(super) struct ChartsMessage {
    pub(super) points: Vec<Point>,
}

impl ChartsMessage {
    /// The points, and one for now.
    pub(super) fn new(mut points: Vec<Point>, fleet: &Fleet) -> Self {
        if fleet.read_at.is_some() {
            points.push(Point::of(fleet, SystemTime::now()));
        }
        Self { points }
    }
}

/// `HOST/PID (COMMAND)`.
fn process(session: &SessionInfo) -> Option<String> {
    SessionReport::new(session).process()
}

fn host(session: &SessionInfo) -> Option<&str> {
    Some(session.metadata.as_ref()?.host.as_str())
}

/// With two digits after the point, so that a figure that stays is the same text.
fn rounded(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}
