//! `leasehold ls`: the locks that are held, with their holders; or the sessions.

use crate::output::capacity::Capacity;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::holder_report::HolderReport;
use crate::output::log::{self, LogArgs};
use crate::output::printable::printable;
use crate::output::report::{json_line, millis, print};
use crate::output::session_report::SessionReport;
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use clap::Args;
use leasehold::{FencingToken, InspectError, Listing, LockInfo, Owner, SessionInfo};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// List the locks that are held, and their holders.
///
/// Lists what sessions report: the locks that they have held for longer than about a second. The current state of each
/// lock is read before it is printed. Not listed are locks that were just acquired, detached ones, and those of clients
/// without a session or of other libraries: look these up by name, with `leasehold show`. No scan goes through the
/// server's keys.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct LsArgs {
    /// List sessions instead of locks, alive or dead
    #[arg(long)]
    sessions: bool,

    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints a line for each lock, or for each session.
pub(crate) async fn ls(args: &LsArgs) -> Result<Exit, Failure> {
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let failed = |error: InspectError| {
        let what = if args.sessions { "sessions" } else { "locks" };
        Failure::unavailable(anyhow::Error::new(error).context(format!("failed to list the {what}")))
    };
    let (text, skipped) = if args.sessions {
        let Listing { items: mut sessions, skipped, .. } = client.sessions().await.map_err(failed)?;
        sessions.sort_by_key(|info| (info.since(), info.id.to_string()));
        let rows: Vec<_> = sessions.iter().map(SessionRow::new).collect();
        let text = if args.json {
            rows.iter().map(json_line).collect()
        } else {
            table(&SESSIONS, rows.iter().map(SessionRow::cells))
        };
        (text, skipped)
    } else {
        let Listing { items: locks, skipped, .. } = client.locks().await.map_err(failed)?;
        let rows: Vec<_> = locks.iter().map(LockRow::new).collect();
        let text = if args.json {
            rows.iter().map(json_line).collect()
        } else {
            table(&LOCKS, rows.iter().flat_map(LockRow::cells))
        };
        (text, skipped)
    };
    if !skipped.is_empty() {
        log::warning(&format!("the list is incomplete: {skipped}"));
    }
    print(&text).map(|()| Exit::SUCCESS)
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
}

const LOCKS: [&str; 9] = ["NAME", "KIND", "HOST", "PID", "PROGRAM", "SINCE", "LEFT", "WAITING", "HOLDER"];

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
        }
    }

    /// One row, or one for each holder.
    fn cells(&self) -> Vec<[String; 9]> {
        if self.holders.is_empty() {
            let (since, holder) = (self.since.as_deref(), self.holder);
            return vec![self.row(
                self.kind.to_owned(),
                self.session.as_ref(),
                since,
                self.remaining_ms,
                holder,
            )];
        }
        let row = |holder: &HolderReport<'_>| {
            let kind = format!("{} ({})", self.kind, holder.mode_text());
            let (since, label) = (holder.since.as_deref(), holder.holder);
            self.row(kind, holder.session.as_ref(), since, holder.remaining_ms, label)
        };
        self.holders.iter().map(row).collect()
    }

    fn row(
        &self,
        kind: String,
        session: Option<&SessionReport<'_>>,
        since: Option<&str>,
        remaining_ms: Option<u64>,
        holder: Option<&str>,
    ) -> [String; 9] {
        [
            printable(self.name),
            kind,
            or_dash(session.and_then(|session| session.host)),
            pid_or_dash(session.and_then(|session| session.pid)),
            or_dash(session.and_then(|session| session.program)),
            or_dash(since),
            remaining_ms.map_or_else(|| "for ever".to_owned(), tenths),
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

const SESSIONS: [&str; 8] = ["SESSION", "HOST", "PID", "PROGRAM", "SINCE", "ALIVE", "LOCKS", "LABEL"];

impl<'a> SessionRow<'a> {
    fn new(info: &'a SessionInfo) -> Self {
        let locks = info.locks.iter().map(|lock| lock.name.as_str()).collect();
        Self { session: SessionReport::new(info), locks }
    }

    fn cells(&self) -> [String; 8] {
        let session = &self.session;
        [
            session.session.clone(),
            or_dash(session.host),
            pid_or_dash(session.pid),
            or_dash(session.program),
            or_dash(session.started.as_deref()),
            match (session.alive, session.alive_ms) {
                (false, _) => "dead".to_owned(),
                (true, None) => "yes".to_owned(),
                (true, Some(ms)) => tenths(ms),
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

/// A remaining time, in tenths of a second.
fn tenths(ms: u64) -> String {
    format!("{:?}", Duration::from_millis(ms / 100 * 100))
}

/// Columns as wide as their content; the last one is not padded.
fn table<const N: usize>(head: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut all = vec![head.map(str::to_owned)];
    all.extend(rows);
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            write!(line, "{cell:<width$}  ").expect("writing to a string cannot fail");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

const AFTER_HELP: &str = "\
JSON (--json), one line for each lock; later versions may add fields:
  name, kind, holder, owner, count, since, remaining_ms, fence, waiting, behind,
  taken, limit, sharers: as with `show`

JSON (--sessions --json), one line for each session:
  session, alive, alive_ms, label, host, pid, program, version, started, labels;
  locks: an array of names

Exit status:
    0  the list is complete, but for what a warning counts
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or refuses the request

Examples:
  leasehold ls
  leasehold ls --json | jq -r 'select(.behind.host == \"web-3\") | .name'
  leasehold ls --sessions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [["a", "1"], ["lönger", "2"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&["N", "W"], rows.into_iter()), "N       W\na       1\nlönger  2\n");
    }
}
