//! `leasehold show`: the state of a lock.

use crate::lock::any_lock::{self, FoundLock};
use crate::output::audit_report::AuditReport;
use crate::output::capacity::Capacity;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::history_report::HistoryReport;
use crate::output::holder_report::{HolderReport, unless_extended};
use crate::output::lines::Lines;
use crate::output::log::LogArgs;
use crate::output::printable::printable;
use crate::output::report::{json_line, millis};
use crate::output::session_report::{COMMAND_LABEL, SessionReport};
use crate::output::times::{Clock, spoken};
use crate::output::timestamp::rfc3339;
use crate::output::waiter_report::WaiterReport;
use crate::output::watch::WatchArgs;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use clap::Args;
use leasehold::inspect::Votes;
use leasehold::{FencingToken, LockName, Owner};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// Show the holder of a lock, since when and until when it is held, its session, the waiters in their order, and the audit.
///
/// Works with a lock of any kind: a plain lock, a reentrant one (`run --reentrant`), an election (`lead`), or one that
/// several clients can hold at the same time (`run --shared`, `--permits`; also latches and barriers of programs), with
/// all holders.
///
/// The exit status is 0 whether or not the lock is held; 69 if the store cannot be reached, and 2 if the name or a
/// setting cannot be used.
#[derive(Args)]
#[command(about = "Show the holder of a lock", after_long_help = AFTER_HELP)]
pub(crate) struct ShowArgs {
    /// Name of the lock
    name: String,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// List the last holds that were released, if the lock keeps a history
    #[arg(long)]
    history: bool,

    /// Print exact times in UTC, and not those of this machine's time zone
    #[arg(long)]
    utc: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints the state of the lock.
pub(crate) async fn show(args: &ShowArgs) -> Result<Exit, Failure> {
    let name = super::lock_name(&args.name)?;
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let report = async |_: Option<usize>| {
        let found = any_lock::find(&client, &name).await?;
        if !args.watch.watch {
            found.warn_if_incomplete();
        }
        let clock = Clock::new(args.utc);
        let report = Report::new(name.as_str(), &found, &clock);
        Ok(if args.json { json_line(&report) } else { report.text(&clock, args.history) })
    };
    args.watch.print(args.json, report).await
}

/// The state of a lock as `show --history` prints it.
pub(crate) fn lock_text(name: &LockName, found: &FoundLock, clock: &Clock) -> String {
    Report::new(name.as_str(), found, clock).text(clock, true)
}

/// The report. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    kind: &'static str,
    held: bool,
    in_cooldown: bool,
    holder: Option<&'a str>,
    owner: Option<&'a str>,
    count: u64,
    since: Option<String>,
    until: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    votes: Option<VotesReport>,
    blocked_ms: Option<u64>,
    waiting: u64,
    queue: Vec<WaiterReport<'a>>,
    #[serde(rename = "behind")]
    session: Option<SessionReport<'a>>,
    audit: Vec<AuditReport<'a>>,
    history: Vec<HistoryReport<'a>>,
    #[serde(flatten)]
    capacity: Capacity,
    #[serde(rename = "sharers")]
    holders: Vec<HolderReport<'a>>,
    #[serde(skip)]
    since_at: Option<SystemTime>,
    #[serde(skip)]
    until_at: Option<SystemTime>,
    #[serde(skip)]
    has_session: bool,
}

impl<'a> Report<'a> {
    fn new(name: &'a str, found: &'a FoundLock, clock: &Clock) -> Self {
        let FoundLock { lock, details } = found;
        let status = &details.status;
        let remaining = status.remaining.filter(|_| status.held);
        let until_at = remaining.and_then(|time| clock.after(time));
        Self {
            name,
            kind: lock.kind().as_str(),
            held: status.held,
            in_cooldown: status.in_cooldown,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(Owner::as_str),
            count: status.count,
            since: status.since.map(rfc3339),
            until: until_at.map(rfc3339),
            remaining_ms: remaining.map(millis),
            fence: status.fence.filter(|_| status.held).map(FencingToken::as_u64),
            votes: status.votes.map(VotesReport::new),
            blocked_ms: status.blocked.map(millis),
            waiting: status.waiting,
            queue: WaiterReport::all(details),
            session: details.holder_session.as_ref().map(SessionReport::new),
            audit: details.audit.iter().map(AuditReport::new).collect(),
            history: details.history.iter().map(HistoryReport::new).collect(),
            capacity: Capacity::new(lock.kind(), status),
            holders: HolderReport::all(status, |holder| details.shared_holder_session(holder)),
            since_at: status.since,
            until_at,
            has_session: status.session.is_some(),
        }
    }

    fn text(&self, clock: &Clock, with_history: bool) -> String {
        let mut lines = Lines::default();
        lines.push("name", self.name);
        lines.push("kind", self.kind);
        if let Some(taken) = self.capacity.text() {
            lines.push("taken", &taken);
        }
        if !self.holders.is_empty() {
            lines.push("held", "yes");
            for holder in &self.holders {
                lines.push("hold", &holder.text(clock));
            }
        } else if self.held {
            self.push_hold(&mut lines, clock);
        } else {
            lines.push("held", "no");
            if let Some(ms) = self.blocked_ms {
                let left = Duration::from_millis(ms);
                let left = spoken(left);
                lines.push("blocked", &format!("for {left}: too few nodes of the quorum can grant it"));
            }
        }
        lines.push("waiting", &self.waiting.to_string());
        for (at, waiter) in self.queue.iter().enumerate() {
            lines.push("queue", &format!("{}. {}", at + 1, waiter.text(clock)));
        }
        match self.waiting.saturating_sub(self.queue.len() as u64) {
            0 => {}
            more => lines.push("queue", &format!("and {more} more")),
        }
        for entry in &self.audit {
            lines.push("audit", &entry.text(clock));
        }
        if with_history {
            for entry in &self.history {
                lines.push("history", &entry.text(clock));
            }
            if self.history.is_empty() {
                lines.push("history", "none: no client that releases it asks for one (LEASEHOLD_HISTORY)");
            }
        }
        lines.into_text()
    }

    /// The hold of a lock that is not shared.
    fn push_hold(&self, lines: &mut Lines, clock: &Clock) {
        let held =
            if self.in_cooldown { "no longer, but in cooldown: no client can acquire it yet" } else { "yes" };
        lines.push("held", held);
        let no_label = || "unknown: the holder has recorded no label".to_owned();
        lines.push("holder", &self.holder.map_or_else(no_label, printable));
        if let Some(owner) = self.owner {
            let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
            lines.push("owner", &format!("{}, {times}", printable(owner)));
        }
        lines.push(
            "since",
            &self.since_at.map_or_else(|| "unknown".to_owned(), |at| clock.instant_and_age(at)),
        );
        match (self.until_at, self.remaining_ms) {
            (Some(until), Some(ms)) => {
                let (until, remaining) = (clock.instant(until), spoken(Duration::from_millis(ms)));
                let unless = if self.in_cooldown { "" } else { unless_extended(self.has_session) };
                let comma = if unless.is_empty() { "" } else { ", " };
                lines.push("until", &format!("{until} (in {remaining}{comma}{unless})"));
            }
            _ => lines.push("until", "for ever: it has no expiry"),
        }
        if let Some(session) = &self.session {
            push_session(session, lines);
        }
        lines.push("fence", &self.fence.map_or_else(|| "none".to_owned(), |fence| fence.to_string()));
        if let Some(votes) = &self.votes {
            lines.push("votes", &votes.text());
        }
    }
}

/// The votes of a quorum for the hold.
#[derive(Debug, Serialize)]
struct VotesReport {
    held: u32,
    needed: u32,
    nodes: u32,
}

impl VotesReport {
    const fn new(votes: Votes) -> Self {
        Self { held: votes.held, needed: votes.needed(), nodes: votes.nodes }
    }

    fn text(&self) -> String {
        let Self { held, needed, nodes } = self;
        let bare = if held == needed { ", a bare majority" } else { "" };
        format!("{held} of {nodes} nodes{bare} ({needed} are needed)")
    }
}

fn push_session(session: &SessionReport<'_>, lines: &mut Lines) {
    lines.push("session", &format!("{}, {}", session.session, session.state()));
    if let (Some(host), Some(pid), Some(program)) = (session.host, session.pid, session.command()) {
        lines.push("host", &printable(host));
        lines.push("process", &format!("{pid}, {}", printable(program)));
    }
    for (name, value) in session.labels.iter().filter(|(name, _)| **name != COMMAND_LABEL) {
        lines.push("label", &format!("{}={}", printable(name), printable(value)));
    }
}

const AFTER_HELP: &str = "\
JSON (--json), one line; later versions may add fields:
  name          the name of the lock
  kind          mutex, reentrant, election, semaphore, rwlock, latch or barrier;
                of a free lock, mutex unless it is known to have been another
  held          true or false
  in_cooldown   true if the last holder has finished, and the lock stays taken
                until `until` (`run --once-per`)
  holder        the label of the holder, by default `host/pid/program`; null if
                the lock is free, or held by another library, which records no
                label
  owner         the owner, for which it can be acquired again; null if the lock
                is free, or a mutex
  count         the number of holds: 0 if it is free, 1 if a mutex is held
  since         when the hold began, by the clock of the store: RFC 3339 in UTC,
                or null
  until         when the lease ends unless it is extended, by the clock of this
                machine; null if the lock is free, or held without an expiry
  remaining_ms  the milliseconds until then, or null
  fence         the fencing token of the holder, a number of at most 53 bits, or
                null
  votes         over a quorum: held (nodes that report the holder), needed,
                nodes; else null
  blocked_ms    over a quorum: how long no client can acquire the free lock, or
                null
  waiting       how many processes wait
  queue         the first 256 of them, in their order: session, label, portion
                and count (as with sharers, or null), since (over a quorum, or
                null), behind
  behind        the session of the holder, or null: session, alive, alive_ms,
                label, host, pid, program, version, started, labels (with
                command, the program that runs under the lock)
  audit         the last holds that were ended by others, the latest first: at,
                how (force_released, evicted), fence, whose, by
  history       the last holds that were released, the latest first, if their
                clients ask for that (LEASEHOLD_HISTORY=20): from, to, held_ms,
                fence, whose
  taken         how many permits are taken, or how many have arrived; null for
                other kinds
  limit         the number of permits, arrivals or parties, or null
  sharers       all holders, for a kind that can be shared, the oldest first
                (4096 at most): portion, count (of permits or arrivals), holder,
                owner, since, remaining_ms, fence, behind. The holder above is
                the first

Examples:
  leasehold show nightly
  leasehold show nightly --watch
  leasehold show nightly --json | jq -r 'select(.held) | .holder'";
