//! `leasehold free`: a lock is taken from its holder, by the will of a person.
//!
//! What is compared is what the person was shown: whoever has got the lock meanwhile keeps it.

use crate::args::FreeArgs;
use crate::exit::{Exit, Failure};
use crate::look::{AnyLock, Looked, look};
use crate::people::{Behind, plain};
use crate::report::{json_line, print};
use crate::store::Place;
use anyhow::{Context, anyhow};
use leasehold::{FreeError, LockName};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write as _};

/// Shows whom the lock would be taken from, asks, and takes it.
pub(crate) async fn free(args: &FreeArgs) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let label = args.label.clone().or_else(operator);
    let place = Place::of(&args.store)?.without_session().label(label.as_deref());
    if !args.yes && !can_ask() {
        let error = anyhow!(
            "nobody can be asked, since standard input and standard error are not a terminal: give --yes to free \
             `{name}` without a question"
        );
        return Err(Failure::new(Exit::USAGE, error));
    }
    let client = place.connect().await?;
    let looked = look(&client, &name).await?;
    let report = Report::of(&name, &looked);
    let Some(seen) = looked.details.seen else {
        say(args, &report, &format!("`{name}` is free already\n"))?;
        return Ok(Exit::SUCCESS);
    };
    if !args.yes && !ask(&name, &report)? {
        return Err(Failure::new(Exit::DECLINED, anyhow!("`{name}` was left as it is")));
    }
    take(&looked.lock, seen, args, report).await.map_err(|failure| failure.doing("free", &name))
}

async fn take(
    lock: &AnyLock,
    seen: leasehold::Seen,
    args: &FreeArgs,
    mut report: Report<'_>,
) -> Result<Exit, Failure> {
    match lock.free_by_force(seen).await {
        Ok(()) => {
            report.freed = true;
            let told = if report.behind.is_some() {
                "It is told so, and may work on until it has heard of it."
            } else {
                "Nobody can tell it so: it may work on until its next renewal."
            };
            let text = format!("freed `{}`: taken from {}\n{told}\n", report.name, report.whom());
            say(args, &report, &text)?;
            Ok(Exit::SUCCESS)
        }
        Err(error) => {
            let exit = match &error {
                FreeError::Changed { .. } => Exit::of(Exit::CONFLICT),
                _ => Exit::UNAVAILABLE,
            };
            say(args, &report, "")?;
            Err(Failure::new(exit, error))
        }
    }
}

/// What is printed, with the fields of its JSON, which stay as they are.
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
}

impl<'a> Report<'a> {
    fn of(name: &'a LockName, looked: &'a Looked) -> Self {
        let Looked { lock, details } = looked;
        let status = &details.status;
        Self {
            name: name.as_str(),
            kind: lock.kind().word(),
            freed: false,
            held: status.held,
            holder: status.holder.as_deref().filter(|label| !label.is_empty()),
            owner: status.owner.as_ref().map(leasehold::Owner::as_str),
            count: status.count,
            fence: status.fence.map(leasehold::FencingToken::as_u64),
            waiting: status.waiting,
            behind: details.behind.as_ref().map(Behind::of),
        }
    }

    /// Whom the lock is taken from, in one line.
    fn whom(&self) -> String {
        let mut text = match (self.holder, self.fence) {
            (Some(holder), _) => plain(holder),
            (None, Some(_)) => "somebody without a label".to_owned(),
            (None, None) => "a client of another library".to_owned(),
        };
        // Writing to a string cannot fail.
        if let Some(Behind { host: Some(host), pid: Some(pid), program: Some(program), .. }) = &self.behind {
            let _ = write!(text, ", program {} with process {pid} on {}", plain(program), plain(host));
        }
        match &self.behind {
            Some(behind) if !behind.alive => text.push_str(", which is dead"),
            Some(_) => text.push_str(", which lives"),
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

/// Who frees a lock, for its audit: the user and the machine, where both are known.
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
        "`{name}` is held by {}.\n{} wait for it. Whatever it guards may be worked on by two at once if the holder lives.\n\
         Take the lock away? [y/N] ",
        report.whom(),
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
