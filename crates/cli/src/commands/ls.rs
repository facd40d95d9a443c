//! `leasehold ls`: the locks that are held, with their holders; or the sessions.

use crate::glob::Glob;
use crate::output::capacity::Capacity;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::holder_report::HolderReport;
use crate::output::log::{self, LogArgs};
use crate::output::printable::printable;
use crate::output::report::{json_line, millis};
use crate::output::session_report::SessionReport;
use crate::output::table::{Column, table};
use crate::output::times::{Clock, spoken};
use crate::output::timestamp::rfc3339;
use crate::output::watch::WatchArgs;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use leasehold::error::InspectError;
use leasehold::inspect::{Listing, LockInfo, SessionInfo};
use leasehold::store::FaultKind;
use leasehold::{Client, FencingToken, Owner};
use serde::Serialize;
use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

/// List the locks that are held, and their holders.
///
/// Lists what sessions report: the locks that they have held for longer than about a second. The current state of each
/// lock is read before it is printed. Not listed are locks that were just acquired, detached ones, and those of clients
/// without a session or of other libraries: look these up by name, with `leasehold show`, or scan for them with --foreign.
/// Without --foreign and --no-expiry, no scan goes through the server's keys.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct LsArgs {
    /// Only locks with such a name: * is any text, ? one character
    pattern: Option<String>,

    /// List sessions instead of locks, alive or dead
    #[arg(long)]
    sessions: bool,

    #[command(flatten)]
    scan: ScanArgs,

    /// Order of the locks
    #[arg(long, value_name = "KEY", value_enum, default_value_t = SortKey::Name, conflicts_with = "sessions")]
    sort: SortKey,

    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,

    /// Print exact times in UTC, and not how long ago they were
    #[arg(long)]
    utc: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

#[derive(Args)]
struct ScanArgs {
    /// Scan all keys for locks of other libraries, detached ones, and those without a session
    ///
    /// Goes through all keys of the server, or of every primary of a cluster, in small steps with pauses, for a minute at most,
    /// and reads those that the pattern names. To a server, a lock of another library is a string like any other, or
    /// with Redisson a hash with a count: name a pattern that only locks have. Not for a file (sqlite:), which other
    /// libraries do not use. The user of the server needs the right to send SCAN.
    #[arg(long, conflicts_with_all = ["sessions", "watch"])]
    foreign: bool,

    /// The same for keys without an expiry, which bar a lock for ever
    ///
    /// Such a lock was left by a client of another library. `leasehold run --adopt TIME` gives it an expiry and waits for
    /// that; `leasehold free` deletes it. Look at the key first: a number is no lock, but a counter or a semaphore.
    #[arg(long, conflicts_with_all = ["sessions", "watch"])]
    no_expiry: bool,
}

impl ScanArgs {
    const fn is_given(&self) -> bool {
        self.foreign || self.no_expiry
    }

    /// Whether what a scan found is to be listed.
    fn wants(&self, lock: &LockInfo) -> bool {
        let status = &lock.status;
        self.foreign && status.session.is_none() || self.no_expiry && status.remaining.is_none()
    }
}

/// The order of the locks. What is not known comes last. Descriptions for clap would make each help the long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortKey {
    Name,
    Kind,
    Host,
    // The longest first.
    Since,
    // The shortest first.
    Left,
    // The most first.
    Waiting,
    Holder,
}

impl SortKey {
    /// Sorts locks that are in the order of their names.
    fn sort(self, locks: &mut [LockInfo]) {
        match self {
            Self::Name => {}
            Self::Kind => locks.sort_by_key(|lock| lock.kind.as_str()),
            Self::Host => locks.sort_by_cached_key(|lock| {
                let about = lock.holder_session.as_ref().and_then(|session| session.metadata.as_ref());
                (about.is_none(), about.map(|about| about.host.clone()))
            }),
            Self::Since => locks.sort_by_key(|lock| (lock.status.since.is_none(), lock.status.since)),
            Self::Left => locks.sort_by_key(|lock| (lock.status.remaining.is_none(), lock.status.remaining)),
            Self::Waiting => locks.sort_by_key(|lock| Reverse(lock.status.waiting)),
            Self::Holder => {
                locks.sort_by_cached_key(|lock| (lock.status.holder.is_none(), lock.status.holder.clone()));
            }
        }
    }
}

/// How long a scan takes at most.
const SCAN: Duration = Duration::from_secs(60);

/// Prints a line for each lock, or for each session.
pub(crate) async fn ls(args: &LsArgs) -> Result<Exit, Failure> {
    let pattern = args.pattern.as_deref().map(Glob::new);
    let scan = match (args.scan.is_given(), &pattern) {
        (false, _) => None,
        (true, Some(pattern)) => Some(pattern),
        (true, None) => {
            return Err(Failure::usage(anyhow!(
                "--foreign and --no-expiry scan all keys of the server for names that you choose: write \
                 `leasehold ls 'orders:*' --foreign`, or '*' for all"
            )));
        }
    };
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let report = async |width: Option<usize>| {
        let clock = Clock::new(args.utc);
        match scan {
            Some(pattern) => scanned(&client, args, pattern, &clock, width).await,
            None if args.sessions => sessions(&client, args, pattern.as_ref(), &clock, width).await,
            None => {
                let Listing { items, skipped, .. } =
                    client.locks().await.map_err(|error| failed(error, "locks"))?;
                let is_named =
                    |lock: &LockInfo| pattern.as_ref().is_none_or(|all| all.matches(lock.name.as_str()));
                let locks = items.into_iter().filter(is_named).collect();
                Ok(locks_text(locks, args, &clock, width)
                    + &incomplete(&skipped.to_string(), skipped.is_empty(), args))
            }
        }
    };
    args.watch.print(args.json, report).await
}

/// What no session reports, as far as it is wanted.
async fn scanned(
    client: &Client,
    args: &LsArgs,
    pattern: &Glob,
    clock: &Clock,
    width: Option<usize>,
) -> Result<String, Failure> {
    let found = client.scan(&pattern.start(), SCAN, |name| pattern.matches(name.as_str())).await;
    let Listing { items, skipped, .. } = found.map_err(|error| match error.fault().kind {
        // A file, which other libraries do not use.
        FaultKind::Unusable(_) => Failure::usage(anyhow::Error::new(error).context("cannot scan")),
        _ => failed(error, "keys"),
    })?;
    let locks = items.into_iter().filter(|lock| args.scan.wants(lock)).collect();
    Ok(locks_text(locks, args, clock, width) + &incomplete(&skipped.to_string(), skipped.is_empty(), args))
}

fn failed(error: InspectError, what: &str) -> Failure {
    Failure::unavailable(anyhow::Error::new(error).context(format!("failed to list the {what}")))
}

/// Warns of what is left out. Where the list is drawn again and again, the warning is part of it.
fn incomplete(skipped: &str, is_empty: bool, args: &LsArgs) -> String {
    let warning = format!("the list is incomplete: {skipped}");
    match (is_empty, args.watch.watch && !args.json) {
        (true, _) => String::new(),
        (false, true) => format!("{}\n", printable(&warning)),
        (false, false) => {
            log::warning(&warning);
            String::new()
        }
    }
}

fn locks_text(mut locks: Vec<LockInfo>, args: &LsArgs, clock: &Clock, width: Option<usize>) -> String {
    args.sort.sort(&mut locks);
    let rows: Vec<_> = locks.iter().map(LockRow::new).collect();
    if args.json {
        return rows.iter().map(json_line).collect();
    }
    let cells: Vec<_> = rows.iter().flat_map(|row| row.cells(clock)).collect();
    table(&LOCKS, &cells, width)
}

async fn sessions(
    client: &Client,
    args: &LsArgs,
    pattern: Option<&Glob>,
    clock: &Clock,
    width: Option<usize>,
) -> Result<String, Failure> {
    let listed = client.sessions().await.map_err(|error| failed(error, "sessions"))?;
    let Listing { items: mut sessions, skipped, .. } = listed;
    if let Some(pattern) = pattern {
        sessions.retain(|info| info.locks.iter().any(|lock| pattern.matches(lock.name.as_str())));
    }
    sessions.sort_by_key(|info| (info.since(), info.id.to_string()));
    let rows: Vec<_> = sessions.iter().map(SessionRow::new).collect();
    let text = if args.json {
        rows.iter().map(json_line).collect()
    } else {
        let cells: Vec<_> = rows.iter().map(|row| row.cells(clock)).collect();
        table(&SESSIONS, &cells, width)
    };
    Ok(text + &incomplete(&skipped.to_string(), skipped.is_empty(), args))
}

/// A lock that is held. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct LockRow<'a> {
    name: &'a str,
    kind: &'static str,
    holder: Option<&'a str>,
    owner: Option<&'a str>,
    count: u64,
    since: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    waiting: u64,
    #[serde(rename = "behind")]
    session: Option<SessionReport<'a>>,
    #[serde(flatten)]
    capacity: Capacity,
    #[serde(rename = "sharers")]
    holders: Vec<HolderReport<'a>>,
    /// Whether a client of another library holds it.
    foreign: bool,
    #[serde(skip)]
    since_at: Option<SystemTime>,
}

/// What a list shows of a lock. The label of a holder usually repeats its host, process and program.
const LOCKS: [Column; 9] = [
    Column::text("NAME"),
    Column::omitted("KIND", 2),
    Column::text("HOST"),
    Column::omitted("PID", 3),
    Column::text("PROGRAM"),
    Column::new("SINCE"),
    Column::new("LEFT"),
    Column::new("WAITING"),
    Column::omitted("HOLDER", 1),
];

impl<'a> LockRow<'a> {
    fn new(lock: &'a LockInfo) -> Self {
        let status = &lock.status;
        Self {
            name: lock.name.as_str(),
            kind: lock.kind.as_str(),
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(Owner::as_str),
            count: status.count,
            since: status.since.map(rfc3339),
            remaining_ms: status.remaining.map(millis),
            fence: status.fence.map(FencingToken::as_u64),
            waiting: status.waiting,
            session: lock.holder_session.as_deref().map(SessionReport::new),
            capacity: Capacity::new(lock.kind, status),
            holders: HolderReport::all(status, |holder| lock.shared_holder_session(holder)),
            foreign: status.fence.is_none() && status.holder.is_none() && status.shared_holders.is_empty(),
            since_at: status.since,
        }
    }

    /// One row, or one for each holder.
    fn cells(&self, clock: &Clock) -> Vec<[String; 9]> {
        if self.holders.is_empty() {
            let holder = if self.foreign { Some("another library") } else { self.holder };
            let (kind, session) = (self.kind.to_owned(), self.session.as_ref());
            return vec![self.row(clock, kind, session, (self.since_at, self.remaining_ms), holder)];
        }
        let row = |holder: &HolderReport<'_>| {
            let kind = format!("{} ({})", self.kind, holder.mode_text());
            let times = (holder.since_at, holder.remaining_ms);
            self.row(clock, kind, holder.session.as_ref(), times, holder.holder)
        };
        self.holders.iter().map(row).collect()
    }

    fn row(
        &self,
        clock: &Clock,
        kind: String,
        session: Option<&SessionReport<'_>>,
        (since, remaining_ms): (Option<SystemTime>, Option<u64>),
        holder: Option<&str>,
    ) -> [String; 9] {
        [
            printable(self.name),
            kind,
            or_dash(session.and_then(|session| session.host)),
            pid_or_dash(session.and_then(|session| session.pid)),
            or_dash(session.and_then(SessionReport::command)),
            age_or_dash(since, clock),
            remaining_ms.map_or_else(|| "for ever".to_owned(), |ms| spoken(Duration::from_millis(ms))),
            self.waiting.to_string(),
            or_dash(holder),
        ]
    }
}

/// A session. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct SessionRow<'a> {
    #[serde(flatten)]
    session: SessionReport<'a>,
    locks: Vec<&'a str>,
}

const SESSIONS: [Column; 8] = [
    Column::omitted("SESSION", 2),
    Column::text("HOST"),
    Column::new("PID"),
    Column::text("PROGRAM"),
    Column::new("SINCE"),
    Column::new("ALIVE"),
    Column::new("LOCKS"),
    Column::omitted("LABEL", 1),
];

impl<'a> SessionRow<'a> {
    fn new(info: &'a SessionInfo) -> Self {
        let locks = info.locks.iter().map(|lock| lock.name.as_str()).collect();
        Self { session: SessionReport::new(info), locks }
    }

    fn cells(&self, clock: &Clock) -> [String; 8] {
        let session = &self.session;
        [
            session.session.clone(),
            or_dash(session.host),
            pid_or_dash(session.pid),
            or_dash(session.command()),
            age_or_dash(session.started_at, clock),
            match (session.alive, session.alive_ms) {
                (false, _) => "dead".to_owned(),
                (true, None) => "yes".to_owned(),
                (true, Some(ms)) => spoken(Duration::from_millis(ms)),
            },
            self.locks.len().to_string(),
            or_dash(session.label),
        ]
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), printable)
}

fn pid_or_dash(pid: Option<u32>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

fn age_or_dash(at: Option<SystemTime>, clock: &Clock) -> String {
    at.map_or_else(|| "-".to_owned(), |at| clock.age(at))
}

const AFTER_HELP: &str = "\
JSON (--json), one line for each lock; later versions may add fields:
  name, kind, holder, owner, count, since, remaining_ms, fence, waiting, behind,
  taken, limit, sharers: as with `show`; foreign: true if a client of another
  library holds it

JSON (--sessions --json), one line for each session:
  session, alive, alive_ms, label, host, pid, program, version, started, labels;
  locks: an array of names

Exit status:
    0  the list is complete, but for what a warning counts
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or refuses the request

Examples:
  leasehold ls
  leasehold ls 'orders:*' --sort waiting --watch
  leasehold ls 'orders:*' --no-expiry
  leasehold ls --json | jq -r 'select(.behind.host == \"web-3\") | .name'
  leasehold ls --sessions";
