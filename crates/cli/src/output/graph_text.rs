//! What waits for what, as lines of text.

use crate::output::printable::printable;
use crate::output::session_report;
use crate::output::times::Clock;
use leasehold::Label;
use leasehold::inspect::{LockMode, SessionMetadata, WaitGraph, WaitHolder, WaitInfo};
use std::fmt::Write as _;

/// The graph as lines: cycles first, then all waits by lock. Times are as the clock writes them.
pub(crate) fn text(graph: &WaitGraph, clock: &Clock) -> String {
    let mut text = String::new();
    for (at, cycle) in graph.cycles.iter().enumerate() {
        let (number, count) = (at + 1, graph.cycles.len());
        push(&mut text, format_args!("DEADLOCK {number} of {count}: each waits for a lock of the next one"));
        for wait in &cycle.waits {
            push(
                &mut text,
                format_args!("  {} waits for `{}` ({})", waiter(wait), name(wait), what(wait, clock)),
            );
            for holder in &wait.holders {
                push(&mut text, format_args!("    held by {}", held_by(holder, clock)));
            }
        }
        text.push('\n');
    }
    if graph.waits.is_empty() {
        text.push_str("nothing waits\n");
    }
    let mut last = None;
    for wait in &graph.waits {
        if last != Some((&wait.lock, wait.kind)) {
            push(&mut text, format_args!("`{}` ({})", name(wait), wait.kind.as_str()));
            for holder in &wait.holders {
                push(&mut text, format_args!("  held by {}", held_by(holder, clock)));
            }
            last = Some((&wait.lock, wait.kind));
        }
        push(&mut text, format_args!("  {} waits ({})", waiter(wait), what(wait, clock)));
    }
    text
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

fn name(wait: &WaitInfo) -> String {
    printable(wait.lock.as_str())
}

/// What waits: the process, and what in it.
fn waiter(wait: &WaitInfo) -> String {
    let part = wait.waiter.rsplit('/').next().unwrap_or_default();
    let part = match part.split_at_checked(1) {
        Some(("t", task)) => format!(", task {task}"),
        Some(("h", _)) => String::new(),
        Some(("o", owner)) => format!(", owner #{owner}"),
        _ => format!(", {part}"),
    };
    format!("{}{}", process(wait.process.as_deref()), printable(&part))
}

/// How it waits, and since when.
fn what(wait: &WaitInfo, clock: &Clock) -> String {
    let since = clock.age(wait.since);
    match wait.mode.encode().as_str() {
        "-" => format!("since {since}"),
        _ => format!("{}, since {since}", mode(wait.mode)),
    }
}

fn held_by(holder: &WaitHolder, clock: &Clock) -> String {
    let mut text = holder_name(holder);
    if let Some(since) = holder.since {
        write!(text, " since {}", clock.age(since)).expect("writing to a string cannot fail");
    }
    if let Some(fence) = holder.fence {
        write!(text, ", fencing token {fence}").expect("writing to a string cannot fail");
    }
    text
}

/// A holder: its process, or else its label.
pub(crate) fn holder_name(holder: &WaitHolder) -> String {
    match (&holder.process, holder.label.as_ref().map(Label::as_str)) {
        (Some(about), _) => process(Some(about)),
        (None, Some("")) => "a client without a session".to_owned(),
        (None, Some(label)) => printable(label),
        (None, None) => "a client of another library".to_owned(),
    }
}

/// A process, as lists name it.
pub(crate) fn process(about: Option<&SessionMetadata>) -> String {
    about.map_or_else(|| "an unknown process".to_owned(), session_report::process)
}

fn mode(mode: LockMode) -> String {
    match mode {
        LockMode::Read => "to read".to_owned(),
        LockMode::Upgradable => "to read and perhaps write".to_owned(),
        LockMode::Write | LockMode::Upgrade => "to write".to_owned(),
        LockMode::Permits { count: 1, .. } => "1 permit".to_owned(),
        LockMode::Permits { count, .. } => format!("{count} permits"),
        _ => "exclusively".to_owned(),
    }
}
