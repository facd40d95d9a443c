//! `leasehold free`: takes a lock from its holder, on an operator's request.
//!
//! The request compares with the hold that the operator was shown: a client that has acquired the lock since then keeps
//! it.

use crate::lock::any_lock::{self, AnyLock, FoundLock};
use crate::output::capacity::Capacity;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::holder_report::{HolderReport, describe_holder};
use crate::output::log::LogArgs;
use crate::output::printable::{printable, printable_lines};
use crate::output::report::{json_line, print};
use crate::output::session_report::SessionReport;
use crate::output::times::Clock;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, flush};
use anyhow::{Context, anyhow};
use clap::Args;
use leasehold::core::MAX_SHARED_HOLDERS;
use leasehold::error::ForceReleaseError;
use leasehold::inspect::{FullStatus, ObservedHolder, SharedHolder};
use leasehold::{Client, FencingToken, Label, LockName, Owner};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::time::{Duration, SystemTime};

/// Take a lock from its holder by force.
///
/// Shows the holder, and asks for confirmation. The holder is notified at once, and the next waiter gets the lock.
/// Until the holder has received that notification, both may work: stop the holder first, if you can. A client that
/// acquired the lock after it was shown keeps it. All holds of a reentrant lock's owner end together. For a shared
/// lock, all holders that were shown lose it, or with --fence one of them. Of more than 4096 holders, the oldest are shown;
/// the others lose it as well, if they acquired it before the oldest had lost it. The audit of the lock records what was done:
/// see `leasehold show`.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct FreeArgs {
    /// Name of the lock
    name: String,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// End only the hold with this fencing token, if several clients share the lock; `show` prints the tokens
    #[arg(long, value_name = "TOKEN")]
    fence: Option<u64>,

    /// Label of the operator, for the audit of the lock [default: user@host]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// A held lock as an operator was shown it.
pub(crate) struct Proposal {
    name: LockName,
    found: FoundLock,
}

impl Proposal {
    /// Reads the lock; `None` if it is free.
    pub(crate) async fn read(client: &Client, name: &LockName) -> Result<Option<Self>, Failure> {
        let found = any_lock::find(client, name).await?;
        let is_held = !targets(&found.details, None).is_empty();
        Ok(is_held.then(|| Self { name: name.clone(), found }))
    }

    /// The name of the lock.
    pub(crate) const fn name(&self) -> &LockName {
        &self.name
    }

    /// What to ask the operator: the lock, its holder or holders, and what it means to take it from them. Several lines.
    pub(crate) fn question(&self) -> String {
        printable_lines(&Report::new(&self.name, &self.found, None).question())
    }

    /// Ends the holds that were shown, and no others. Returns what was done, in a sentence or several.
    ///
    /// Cancel safety: a request that was sent may still be executed.
    pub(crate) async fn force_release(&self, client: &Client) -> String {
        let mut freed = Freed::default();
        let all = targets(&self.found.details, None);
        freed.end_all(&self.found.lock, &all, all.len() >= MAX_SHARED_HOLDERS).await;
        flush(client, &self.name).await;
        let mut report = Report::new(&self.name, &self.found, None);
        (report.freed, report.freed_fences) = (freed.any, freed.fences);
        let mut text = report.result_text();
        let failed = freed.failed.map(Failure::unavailable);
        let changed = freed.changed.map(|error| Failure::new(Exit::CONFLICT, error));
        if let Some(failure) = failed.or(changed.filter(|_| !freed.any)) {
            text.push_str(&failure.failed_to("free", &self.name).message());
        }
        printable_lines(&text)
    }
}

/// Shows the holder, asks for confirmation, and takes the lock.
pub(crate) async fn free(args: &FreeArgs) -> Result<Exit, Failure> {
    let name = super::lock_name(&args.name)?;
    let label = args.label.clone().or_else(operator_label);
    let config = ClientConfig::from_args(&args.store)?.without_session().label(label.as_deref());
    if !args.yes && !is_interactive() {
        return Err(Failure::usage(anyhow!(
            "cannot ask for confirmation, because standard input and standard error are not a terminal: give --yes \
             to free `{name}` without a question"
        )));
    }
    let client = config.connect().await?;
    let found = any_lock::find(&client, &name).await?;
    found.warn_if_incomplete();
    let report = Report::new(&name, &found, args.fence);
    if found.details.observed.is_none() && found.details.status.shared_holders.is_empty() {
        report.print(args, &format!("`{name}` is already free\n"))?;
        return Ok(Exit::SUCCESS);
    }
    let targets = targets(&found.details, args.fence);
    if targets.is_empty() {
        report.print(args, "")?;
        let fence = args.fence.unwrap_or_default();
        let error =
            anyhow!("no hold of `{name}` has the fencing token {fence}: `leasehold show` prints the tokens");
        return Err(Failure::new(Exit::CONFLICT, error));
    }
    if !args.yes && !confirm(&report)? {
        return Err(Failure::new(Exit::DECLINED, anyhow!("`{name}` was left unchanged")));
    }
    let released = force_release(&found.lock, &targets, args, report).await;
    flush(&client, &name).await;
    released.map_err(|failure| failure.failed_to("free", &name))
}

/// The holds to end, as they were seen: all, or the one with a fencing token.
fn targets(details: &FullStatus, fence: Option<u64>) -> Vec<ObservedHolder> {
    let all: Vec<_> = match details.status.shared_holders.as_slice() {
        [] => details.observed.into_iter().collect(),
        holders => holders.iter().filter_map(SharedHolder::observed).collect(),
    };
    let is_target = |seen: &ObservedHolder| match (fence, seen) {
        (None, _) => true,
        (Some(fence), ObservedHolder::Hold(token)) => token.as_u64() == fence,
        (Some(_), ObservedHolder::Foreign(_)) => false,
    };
    all.into_iter().filter(is_target).collect()
}

/// Ends the holds that were seen, and those that a description had no room for.
async fn force_release(
    lock: &AnyLock,
    targets: &[ObservedHolder],
    args: &FreeArgs,
    mut report: Report<'_>,
) -> Result<Exit, Failure> {
    let is_cut = args.fence.is_none() && targets.len() >= MAX_SHARED_HOLDERS;
    let mut freed = Freed::default();
    freed.end_all(lock, targets, is_cut).await;
    report.freed = freed.any;
    report.freed_fences.clone_from(&freed.fences);
    // A lock that is not shared has its one hold in the report itself.
    let was_shown = |fence: u64| {
        report.fence == Some(fence) || report.holders.iter().any(|holder| holder.fence == Some(fence))
    };
    let rest = freed.fences.iter().filter(|fence| !was_shown(**fence));
    let rest = match rest.count() {
        0 => String::new(),
        count => format!("freed `{}`: {count} more holds, which were not shown\n", report.name),
    };
    report.print(args, &(report.result_text() + &rest))?;
    match (freed.failed, freed.changed) {
        (Some(error), _) => Err(Failure::unavailable(error)),
        (None, Some(error)) if !report.freed => Err(Failure::new(Exit::CONFLICT, error)),
        // A hold that has already ended needs no action.
        (None, _) => Ok(Exit::SUCCESS),
    }
}

/// What has become of the holds.
#[derive(Debug, Default)]
struct Freed {
    any: bool,
    fences: Vec<u64>,
    /// The first hold that had ended already.
    changed: Option<ForceReleaseError>,
    /// The first other failure.
    failed: Option<ForceReleaseError>,
}

impl Freed {
    /// Ends holds one by one: a failure for one does not stop the others. `is_cut`: the description of the lock had no room
    /// for more. Then it ends the others as well, as many at a time as a description has, but no hold that began after it
    /// ended the first: so this comes to an end, whatever clients acquire.
    async fn end_all(&mut self, lock: &AnyLock, targets: &[ObservedHolder], is_cut: bool) {
        let mut began = None;
        for seen in targets {
            self.end(lock, *seen).await;
            if is_cut && self.any && began.is_none() {
                began = self.last_ending(lock).await;
            }
        }
        let Some(began) = began else { return };
        while let Some(details) = self.inspect(lock).await {
            let holders = details.status.shared_holders.iter();
            let older = holders.filter(|holder| holder.since.is_some_and(|since| since < began));
            let (before, older) = (self.fences.len(), older.filter_map(SharedHolder::observed));
            for seen in older {
                self.end(lock, seen).await;
            }
            if self.fences.len() == before {
                return;
            }
        }
    }

    async fn end(&mut self, lock: &AnyLock, seen: ObservedHolder) {
        match lock.force_release(seen).await {
            Ok(()) => {
                self.any = true;
                if let ObservedHolder::Hold(fence) = seen {
                    self.fences.push(fence.as_u64());
                }
            }
            Err(error @ ForceReleaseError::Changed { .. }) => {
                self.changed.get_or_insert(error);
            }
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// When the last hold was ended by force, by the clock of the store.
    async fn last_ending(&mut self, lock: &AnyLock) -> Option<SystemTime> {
        let details = self.inspect(lock).await?;
        let last = details.audit.first()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_millis(last.at_ms))
    }

    async fn inspect(&mut self, lock: &AnyLock) -> Option<FullStatus> {
        match lock.inspect_full().await {
            Ok(details) => Some(details),
            Err(error) => {
                self.failed.get_or_insert(ForceReleaseError::Store(error.fault().clone()));
                None
            }
        }
    }
}

/// The report. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    kind: &'static str,
    freed: bool,
    held: bool,
    holder: Option<&'a str>,
    owner: Option<&'a str>,
    count: u64,
    fence: Option<u64>,
    waiting: u64,
    #[serde(rename = "behind")]
    session: Option<SessionReport<'a>>,
    #[serde(flatten)]
    capacity: Capacity,
    #[serde(rename = "sharers")]
    holders: Vec<HolderReport<'a>>,
    freed_fences: Vec<u64>,
    /// The fencing token of the one hold to end, if not all end.
    #[serde(skip)]
    target: Option<u64>,
}

impl<'a> Report<'a> {
    fn new(name: &'a LockName, found: &'a FoundLock, target: Option<u64>) -> Self {
        let FoundLock { lock, details } = found;
        let status = &details.status;
        Self {
            name: name.as_str(),
            kind: lock.kind().as_str(),
            freed: false,
            held: status.held,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(Owner::as_str),
            count: status.count,
            fence: status.fence.map(FencingToken::as_u64),
            waiting: status.waiting,
            session: details.holder_session.as_ref().map(SessionReport::new),
            capacity: Capacity::new(lock.kind(), status),
            holders: HolderReport::all(status, |holder| details.shared_holder_session(holder)),
            freed_fences: Vec::new(),
            target,
        }
    }

    fn print(&self, args: &FreeArgs, text: &str) -> Result<(), Failure> {
        print(&if args.json { json_line(self) } else { printable_lines(text) })
    }

    /// The holders of a shared lock whose holds are to end.
    fn target_holders(&self) -> impl Iterator<Item = &HolderReport<'a>> {
        self.holders.iter().filter(|holder| self.target.is_none() || holder.fence == self.target)
    }

    /// The question before the holds are ended.
    fn question(&self) -> String {
        let holders = if self.holders.is_empty() {
            format!("{}.", self.holder_text())
        } else {
            let clock = Clock::new(false);
            let lines: Vec<_> = self.target_holders().map(|holder| holder.text(&clock)).collect();
            format!("\n  {}", lines.join("\n  "))
        };
        format!(
            "`{}` is held by {holders}\n{} wait for it. If the holder is alive, two processes may use what the lock \
             protects at the same time.\n\
             Take the lock away? [y/N] ",
            self.name, self.waiting
        )
    }

    /// What was done; empty if nothing was.
    fn result_text(&self) -> String {
        let name = self.name;
        if !self.holders.is_empty() {
            return self.target_holders().map(|holder| self.holder_result(holder)).collect();
        }
        if !self.freed {
            return String::new();
        }
        let notice = notice(self.session.is_some());
        format!("freed `{name}`: taken from {}\n{notice}\n", self.holder_text())
    }

    fn holder_result(&self, holder: &HolderReport<'_>) -> String {
        let (name, mode, from) = (self.name, holder.mode_text(), holder.holder_text());
        if holder.fence.is_some_and(|fence| self.freed_fences.contains(&fence)) {
            let notice = notice(holder.session.is_some());
            format!("freed `{name}`: {mode} taken from {from}\n{notice}\n")
        } else {
            format!("`{name}`: {mode} was not taken from {from}\n")
        }
    }

    /// The holder of a lock that is not shared, on one line.
    fn holder_text(&self) -> String {
        let label = match (self.holder, self.fence) {
            (Some(holder), _) => printable(holder),
            (None, Some(_)) => "a client without a label".to_owned(),
            (None, None) => "a client of another library".to_owned(),
        };
        describe_holder(&label, self.session.as_ref(), self.owner, self.count, self.fence)
    }
}

/// How long a holder that lost the lock may continue. One without a session may be one that is never renewed: a turn of
/// `run --once-per` works on to its end.
const fn notice(has_session: bool) -> &'static str {
    if has_session {
        "The holder is notified, and may continue until it has received the notification."
    } else {
        "The holder cannot be notified: it may continue until it extends or releases the lock."
    }
}

/// The label of the operator for the audit: user and host, if both are known.
pub(crate) fn operator_label() -> Option<String> {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok())?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let label = printable(&format!("{user}@{host}"));
    Label::new(&label).is_ok().then_some(label)
}

/// Whether a user can be asked.
fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn confirm(report: &Report<'_>) -> Result<bool, Failure> {
    let ask = || -> io::Result<String> {
        io::stderr().write_all(printable_lines(&report.question()).as_bytes())?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().context("failed to ask at the terminal").map_err(Failure::unavailable)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

const AFTER_HELP: &str = "\
JSON (--json), one line, once the lock has been read; later versions may add
fields:
  name, kind, freed (true or false), held, holder, owner, count, fence, waiting,
  behind, taken, limit, sharers: as they were before; freed_fences: the tokens
  of the holds that this command has ended

Exit status:
    0  the lock was taken from its holder, or was free
    1  you answered no
    2  the name or a setting cannot be used, or --yes is not given and there is
       no terminal to ask at
   65  the name is in use for something that is no lock
   69  the store cannot be reached, or did not report whether it was done: check
       again
   75  the lock was no longer held as it was shown: no hold was ended

Examples:
  leasehold free nightly
  leasehold free nightly --yes --label 'ticket 4711'
  leasehold free index --fence 1772368200250117      one of several readers";

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::Semaphore;

    /// Two more than a description has.
    const HOLDERS: u32 = 4098;

    async fn holders(semaphore: &Semaphore) -> usize {
        semaphore.inspect().await.expect("an answer").shared_holders.len()
    }

    #[tokio::test]
    async fn more_holders_than_a_description_has_lose_the_lock() {
        let client = Client::connect("memory:").await.expect("in memory");
        let semaphore = client.semaphore("job", HOLDERS + 10).expect("a name");
        let mut permits = Vec::new();
        for _ in 0..HOLDERS {
            permits.push(semaphore.acquire().await.expect("there is a permit"));
        }
        let lock = AnyLock::Semaphore(semaphore.clone());
        let details = lock.inspect_full().await.expect("an answer");
        let targets = targets(&details, None);
        assert_eq!(targets.len(), MAX_SHARED_HOLDERS);
        // The next millisecond of the store's clock.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut all = Freed::default();
        all.end_all(&lock, &targets, true).await;
        assert_eq!(all.fences.len(), permits.len(), "{:?}", all.failed);
        assert!(all.changed.is_none() && all.failed.is_none());
        assert_eq!(holders(&semaphore).await, 0);
        let _later = semaphore.acquire().await.expect("there is a permit");
        Freed::default().end_all(&lock, &targets, true).await;
        assert_eq!(holders(&semaphore).await, 1, "a later holder keeps it");
    }
}
