//! `leasehold ls`: the locks that are held, with their holders; or the sessions.

use crate::args::LsArgs;
use crate::output::exit::{Exit, Failure};
use crate::output::holders::{Counted, Having};
use crate::output::report::{json_line, millis, print};
use crate::output::session_info::{Behind, plain};
use crate::output::stamp::rfc3339;
use crate::store::Partition;
use leasehold::{LockInfo, SessionInfo};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Prints a line a lock, or a session.
pub(crate) async fn ls(args: &LsArgs) -> Result<Exit, Failure> {
    let client = Partition::of(&args.store)?.without_session().connect().await?;
    let failed = |error: leasehold::InspectError| {
        let what = if args.sessions { "sessions" } else { "locks" };
        Failure::new(
            Exit::UNAVAILABLE,
            anyhow::Error::new(error).context(format!("failed to list the {what}")),
        )
    };
    let text = if args.sessions {
        let mut sessions = client.sessions().await.map_err(failed)?;
        sessions.sort_by_key(|info| (info.since(), info.session.to_string()));
        let rows: Vec<_> = sessions.iter().map(SessionRow::of).collect();
        if args.json {
            rows.iter().map(json_line).collect()
        } else {
            table(&SESSIONS, rows.iter().map(SessionRow::cells))
        }
    } else {
        let locks = client.locks().await.map_err(failed)?;
        let rows: Vec<_> = locks.iter().map(LockRow::of).collect();
        if args.json {
            rows.iter().map(json_line).collect()
        } else {
            table(&LOCKS, rows.iter().flat_map(LockRow::lines))
        }
    };
    print(&text).map(|()| Exit::SUCCESS).map_err(|error| Failure::new(Exit::UNAVAILABLE, error))
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
    behind: Option<Behind<'a>>,
    #[serde(flatten)]
    counted: Counted,
    sharers: Vec<Having<'a>>,
}

const LOCKS: [&str; 9] = ["NAME", "KIND", "HOST", "PID", "PROGRAM", "SINCE", "LEFT", "WAITING", "HOLDER"];

impl<'a> LockRow<'a> {
    fn of(lock: &'a LockInfo) -> Self {
        let status = &lock.status;
        Self {
            name: lock.name.as_str(),
            kind: lock.kind.as_str(),
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(leasehold::Owner::as_str),
            count: status.count,
            since: status.since.map(rfc3339),
            remaining_ms: status.remaining.map(millis),
            fence: status.fence.map(leasehold::FencingToken::as_u64),
            waiting: status.waiting,
            behind: lock.behind.as_deref().map(Behind::of),
            counted: Counted::of(lock.kind, status),
            sharers: Having::all(status, |sharer| lock.shared_holder_session(sharer)),
        }
    }

    /// One line, or one for each holder.
    fn lines(&self) -> Vec<[String; 9]> {
        if self.sharers.is_empty() {
            let kind = self.kind.to_owned();
            let held = (self.since.as_deref(), self.remaining_ms, self.holder);
            return vec![self.cells(kind, self.behind.as_ref(), held)];
        }
        let line = |having: &Having<'_>| {
            let kind = format!("{} ({})", self.kind, having.what());
            self.cells(kind, having.behind.as_ref(), having.held())
        };
        self.sharers.iter().map(line).collect()
    }

    fn cells(
        &self,
        kind: String,
        behind: Option<&Behind<'_>>,
        (since, remaining_ms, holder): (Option<&str>, Option<u64>, Option<&str>),
    ) -> [String; 9] {
        let known = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), plain);
        [
            self.name.to_owned(),
            kind,
            known(behind.and_then(|behind| behind.host)),
            behind.and_then(|behind| behind.pid).map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            known(behind.and_then(|behind| behind.program)),
            known(since),
            remaining_ms.map_or_else(|| "for ever".to_owned(), left),
            self.waiting.to_string(),
            known(holder),
        ]
    }
}

/// A session. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct SessionRow<'a> {
    #[serde(flatten)]
    behind: Behind<'a>,
    locks: Vec<&'a str>,
}

const SESSIONS: [&str; 8] = ["SESSION", "HOST", "PID", "PROGRAM", "SINCE", "ALIVE", "LOCKS", "LABEL"];

impl<'a> SessionRow<'a> {
    fn of(info: &'a SessionInfo) -> Self {
        Self { behind: Behind::of(info), locks: info.locks.iter().map(|lock| lock.name.as_str()).collect() }
    }

    fn cells(&self) -> [String; 8] {
        let behind = &self.behind;
        let known = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), plain);
        [
            behind.session.clone(),
            known(behind.host),
            behind.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            known(behind.program),
            known(behind.started.as_deref()),
            match (behind.alive, behind.alive_ms) {
                (false, _) => "dead".to_owned(),
                (true, None) => "yes".to_owned(),
                (true, Some(ms)) => left(ms),
            },
            self.locks.len().to_string(),
            known(behind.label),
        ]
    }
}

/// A remaining time, in tenths of a second.
fn left(ms: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [["a", "1"], ["lönger", "2"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&["N", "W"], rows.into_iter()), "N       W\na       1\nlönger  2\n");
    }
}
