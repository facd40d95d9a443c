//! `leasehold free`: takes a lock from its holder, on an operator's request.
//!
//! The request compares with the hold that the operator was shown: a client that has acquired the lock since then keeps
//! it.

use crate::args::FreeArgs;
use crate::commands::detached::settle;
use crate::look::{AnyLock, Looked, look};
use crate::output::exit::{Exit, Failure};
use crate::output::holders::{Counted, Having};
use crate::output::report::{json_line, print};
use crate::output::session_info::{Behind, plain};
use crate::store::Partition;
use anyhow::{Context, anyhow};
use leasehold::{ForceReleaseError, FullStatus, LockName, ObservedHolder, SharedHolder};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write as _};

/// Shows the holder, asks for confirmation, and takes the lock.
pub(crate) async fn free(args: &FreeArgs) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let label = args.label.clone().or_else(operator);
    let place = Partition::of(&args.store)?.without_session().label(label.as_deref());
    if !args.yes && !can_ask() {
        let error = anyhow!(
            "cannot ask for confirmation, because standard input and standard error are not a terminal: give --yes \
             to free `{name}` without a question"
        );
        return Err(Failure::new(Exit::USAGE, error));
    }
    let client = place.connect().await?;
    let looked = look(&client, &name).await?;
    let report = Report::of(&name, &looked, args.fence);
    if looked.details.seen.is_none() && looked.details.status.sharers.is_empty() {
        say(args, &report, &format!("`{name}` is already free\n"))?;
        return Ok(Exit::SUCCESS);
    }
    let meant = meant(&looked.details, args.fence);
    if meant.is_empty() {
        say(args, &report, "")?;
        let fence = args.fence.unwrap_or_default();
        let error =
            anyhow!("no hold of `{name}` has the fencing token {fence}: `leasehold show` prints the tokens");
        return Err(Failure::new(Exit::of(Exit::CONFLICT), error));
    }
    if !args.yes && !ask(&name, &report)? {
        return Err(Failure::new(Exit::DECLINED, anyhow!("`{name}` was left unchanged")));
    }
    let taken = take(&looked.lock, &meant, args, report).await;
    settle(&client, &name).await;
    taken.map_err(|failure| failure.doing("free", &name))
}

/// The holds to end, as they were seen.
fn meant(details: &FullStatus, fence: Option<u64>) -> Vec<ObservedHolder> {
    let all: Vec<_> = match details.status.sharers.as_slice() {
        [] => details.seen.into_iter().collect(),
        sharers => sharers.iter().filter_map(SharedHolder::seen).collect(),
    };
    let is_meant = |seen: &ObservedHolder| match (fence, seen) {
        (None, _) => true,
        (Some(fence), ObservedHolder::Hold(token)) => token.as_u64() == fence,
        (Some(_), ObservedHolder::Foreign(_)) => false,
    };
    all.into_iter().filter(is_meant).collect()
}

/// Ends the holds that were seen, one by one: a failure for one does not stop the others.
async fn take(
    lock: &AnyLock,
    meant: &[ObservedHolder],
    args: &FreeArgs,
    mut report: Report<'_>,
) -> Result<Exit, Failure> {
    let (mut gone, mut failed) = (None, None);
    for seen in meant {
        match lock.force_release(*seen).await {
            Ok(()) => {
                report.freed = true;
                if let ObservedHolder::Hold(fence) = seen {
                    report.freed_fences.push(fence.as_u64());
                }
            }
            Err(error @ ForceReleaseError::Changed { .. }) => gone = gone.or(Some(error)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    say(args, &report, &report.done())?;
    match (failed, gone) {
        (Some(error), _) => Err(Failure::new(Exit::UNAVAILABLE, error)),
        (None, Some(error)) if !report.freed => Err(Failure::new(Exit::of(Exit::CONFLICT), error)),
        // A hold that has already ended needs no action.
        (None, _) => Ok(Exit::SUCCESS),
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
    behind: Option<Behind<'a>>,
    #[serde(flatten)]
    counted: Counted,
    sharers: Vec<Having<'a>>,
    freed_fences: Vec<u64>,
    /// The one hold to end, if not all.
    #[serde(skip)]
    meant: Option<u64>,
}

impl<'a> Report<'a> {
    fn of(name: &'a LockName, looked: &'a Looked, meant: Option<u64>) -> Self {
        let Looked { lock, details } = looked;
        let status = &details.status;
        Self {
            name: name.as_str(),
            kind: lock.kind().as_str(),
            freed: false,
            held: status.held,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(leasehold::Owner::as_str),
            count: status.count,
            fence: status.fence.map(leasehold::FencingToken::as_u64),
            waiting: status.waiting,
            behind: details.behind.as_ref().map(Behind::of),
            counted: Counted::of(lock.kind(), status),
            sharers: Having::all(status, |sharer| details.shared_holder_session(sharer)),
            freed_fences: Vec::new(),
            meant,
        }
    }

    /// The holders of a shared lock that are to lose it.
    fn sharers_meant(&self) -> impl Iterator<Item = &Having<'a>> {
        self.sharers.iter().filter(|having| self.meant.is_none() || having.fence == self.meant)
    }

    /// The holders that are to lose the lock: one line, or one for each.
    fn victims(&self) -> String {
        if self.sharers.is_empty() {
            return format!("{}.", self.whom());
        }
        let mut text = "\n".to_owned();
        for having in self.sharers_meant() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}", having.text());
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// What was done; empty if nothing was.
    fn done(&self) -> String {
        let told = |behind: bool| {
            if behind {
                "It is notified, and may go on until it has received the notification."
            } else {
                "It cannot be notified: it may go on until its next renewal."
            }
        };
        let name = self.name;
        if self.sharers.is_empty() {
            let whole =
                || format!("freed `{name}`: taken from {}\n{}\n", self.whom(), told(self.behind.is_some()));
            return if self.freed { whole() } else { String::new() };
        }
        let mut text = String::new();
        for having in self.sharers_meant() {
            let ended = having.fence.is_some_and(|fence| self.freed_fences.contains(&fence));
            // Writing to a string cannot fail.
            let _ = if ended {
                let told = told(having.behind.is_some());
                writeln!(text, "freed `{name}`: {} taken from {}\n{told}", having.what(), having.whom())
            } else {
                writeln!(text, "`{name}`: {} was not taken from {}", having.what(), having.whom())
            };
        }
        text
    }

    /// The holder, on one line.
    fn whom(&self) -> String {
        let mut text = match (self.holder, self.fence) {
            (Some(holder), _) => plain(holder),
            (None, Some(_)) => "a client without a label".to_owned(),
            (None, None) => "a client of another library".to_owned(),
        };
        // Writing to a string cannot fail.
        if let Some(Behind { host: Some(host), pid: Some(pid), program: Some(program), .. }) = &self.behind {
            let _ = write!(text, ", program {} with process {pid} on {}", plain(program), plain(host));
        }
        match &self.behind {
            Some(behind) if !behind.alive => text.push_str(", whose session is dead"),
            Some(_) => text.push_str(", whose session is alive"),
            None => {}
        }
        if let Some(owner) = self.owner {
            let _ = write!(text, ", for the owner {}", plain(owner));
        }
        if self.count > 1 {
            let _ = write!(text, ", {} times", self.count);
        }
        if let Some(fence) = self.fence {
            let _ = write!(text, " (fence {fence})");
        }
        text
    }
}

/// The label of the operator for the audit: user and host, if both are known.
fn operator() -> Option<String> {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok())?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let label = plain(&format!("{user}@{host}"));
    leasehold::Label::new(&label).is_ok().then_some(label)
}

fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn ask(name: &LockName, report: &Report<'_>) -> Result<bool, Failure> {
    let question = format!(
        "`{name}` is held by {}\n{} wait for it. If the holder is alive, two processes may use what the lock protects \
         at the same time.\n\
         Take the lock away? [y/N] ",
        report.victims(),
        report.waiting
    );
    let asked = || -> io::Result<String> {
        io::stderr().write_all(question.as_bytes())?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = asked()
        .context("failed to ask at the terminal")
        .map_err(|error| Failure::new(Exit::UNAVAILABLE, error))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn say(args: &FreeArgs, report: &Report<'_>, text: &str) -> Result<(), Failure> {
    let said = if args.json { print(&json_line(report)) } else { print(text) };
    said.map_err(|error| Failure::new(Exit::UNAVAILABLE, error))
}
