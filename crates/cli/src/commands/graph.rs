//! `leasehold graph`: what waits for what in all processes, and which of them wait for each other.

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::graph_drawing::{dot, mermaid};
use crate::output::graph_text::text;
use crate::output::log::{self, LogArgs};
use crate::output::report::{json_line, print};
use crate::output::session_report::labels;
use crate::output::times::Clock;
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use clap::Args;
use leasehold::error::InspectError;
use leasehold::inspect::{LockMode, SessionMetadata, WaitCycle, WaitGraph, WaitHolder, WaitInfo};
use leasehold::{FencingToken, Label};
use serde::Serialize;
use std::collections::BTreeMap;

/// Show what waits for what, and what waits for each other
///
/// Shows the waits of all processes that have lasted for about half a second, and the holders of these locks. Cycles come first:
/// processes that wait for each other's locks, and go on only if one of them gives up. A cycle is looked at twice within a
/// second before it is shown. Of clients without a session, and of other libraries, no wait is known.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct GraphArgs {
    /// Print one line of JSON
    #[arg(long, conflicts_with_all = ["dot", "mermaid"])]
    json: bool,

    /// Print a graph for Graphviz
    #[arg(long, conflicts_with = "mermaid")]
    dot: bool,

    /// Print a graph for Mermaid, as in Markdown
    #[arg(long)]
    mermaid: bool,

    /// Exit with status 1 if there is a cycle
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints the graph.
pub(crate) async fn graph(args: &GraphArgs) -> Result<Exit, Failure> {
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let failed = |error: InspectError| {
        Failure::unavailable(anyhow::Error::new(error).context("failed to read what waits for what"))
    };
    let graph = client.wait_graph().await.map_err(failed)?;
    let text = if args.json {
        json_line(&GraphReport::new(&graph))
    } else if args.dot {
        dot(&graph)
    } else if args.mermaid {
        mermaid(&graph)
    } else {
        text(&graph, &Clock::new(true))
    };
    if !graph.skipped.is_empty() {
        log::warning(&format!("the graph is incomplete: {}", graph.skipped));
    }
    if graph.omitted > 0 {
        log::warning(&format!("the graph is incomplete: {} waits or holds are left out", graph.omitted));
    }
    print(&text)?;
    Ok(if args.check && !graph.cycles.is_empty() { Exit::FOUND } else { Exit::SUCCESS })
}

/// The graph. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct GraphReport<'a> {
    cycles: Vec<CycleReport<'a>>,
    waits: Vec<WaitReport<'a>>,
    skipped: u64,
    omitted: u64,
}

#[derive(Debug, Serialize)]
struct CycleReport<'a> {
    waits: Vec<WaitReport<'a>>,
}

#[derive(Debug, Serialize)]
struct WaitReport<'a> {
    name: &'a str,
    kind: &'static str,
    #[serde(rename = "portion")]
    mode: &'static str,
    permits: Option<u32>,
    waiter: &'a str,
    session: String,
    #[serde(flatten)]
    process: ProcessReport<'a>,
    since: String,
    refuses: bool,
    holders: Vec<HolderReport<'a>>,
}

#[derive(Debug, Serialize)]
struct HolderReport<'a> {
    holder: Option<&'a str>,
    session: Option<String>,
    #[serde(flatten)]
    process: ProcessReport<'a>,
    #[serde(rename = "portion")]
    mode: &'static str,
    permits: Option<u32>,
    since: Option<String>,
    fence: Option<u64>,
    waiters: &'a [String],
}

#[derive(Debug, Default, Serialize)]
struct ProcessReport<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    label: Option<&'a str>,
    /// With `command`, the command that the process runs under a lock.
    labels: BTreeMap<&'a str, &'a str>,
}

impl<'a> GraphReport<'a> {
    fn new(graph: &'a WaitGraph) -> Self {
        let cycle =
            |cycle: &'a WaitCycle| CycleReport { waits: cycle.waits.iter().map(WaitReport::new).collect() };
        Self {
            cycles: graph.cycles.iter().map(cycle).collect(),
            waits: graph.waits.iter().map(WaitReport::new).collect(),
            skipped: graph.skipped.count,
            omitted: graph.omitted,
        }
    }
}

impl<'a> WaitReport<'a> {
    fn new(wait: &'a WaitInfo) -> Self {
        let (mode, permits) = mode_word(wait.mode);
        Self {
            name: wait.lock.as_str(),
            kind: wait.kind.as_str(),
            mode,
            permits,
            waiter: &wait.waiter,
            session: wait.session.to_string(),
            process: ProcessReport::new(wait.process.as_deref()),
            since: rfc3339(wait.since),
            refuses: wait.refuses,
            holders: wait.holders.iter().map(HolderReport::new).collect(),
        }
    }
}

impl<'a> HolderReport<'a> {
    fn new(holder: &'a WaitHolder) -> Self {
        let (mode, permits) = mode_word(holder.mode);
        Self {
            holder: holder.label.as_ref().map(Label::as_str).filter(|label| !label.is_empty()),
            session: holder.session.map(|session| session.to_string()),
            process: ProcessReport::new(holder.process.as_deref()),
            mode,
            permits,
            since: holder.since.map(rfc3339),
            fence: holder.fence.map(FencingToken::as_u64),
            waiters: &holder.waiters,
        }
    }
}

impl<'a> ProcessReport<'a> {
    fn new(about: Option<&'a SessionMetadata>) -> Self {
        about.map_or_else(Self::default, |about| Self {
            host: Some(&about.host),
            pid: Some(about.pid),
            program: Some(&about.program),
            label: Some(about.label.as_str()),
            labels: labels(Some(about)),
        })
    }
}

/// The mode in a word, and its permits.
const fn mode_word(mode: LockMode) -> (&'static str, Option<u32>) {
    match mode {
        LockMode::Read => ("read", None),
        LockMode::Upgradable => ("upgradable_read", None),
        LockMode::Write => ("write", None),
        LockMode::Upgrade => ("upgraded_write", None),
        LockMode::Permits { count, .. } => ("permits", Some(count)),
        _ => ("exclusive", None),
    }
}

const AFTER_HELP: &str = "\
JSON (--json), one line; later versions may add fields:
  cycles: an array of {waits}, each waits for a lock of the next one
  waits: an array of all waits, each with
    name, kind, portion, permits, waiter, session, host, pid, program, label,
    labels (with command, the program that runs under a lock), since, refuses,
    holders: an array of {holder, session, host, pid, program, label, labels,
    portion, permits, since, fence, waiters}
  skipped, omitted: how many entries cannot be read, or are too many

Exit status:
    0  the graph was read; without --check also if there is a cycle
    1  with --check: there is a cycle
    2  the URL or another setting cannot be used
   69  the store cannot be reached, keeps no sessions, or refuses the request

Examples:
  leasehold graph
  leasehold graph --check --json > deadlock.json || page-someone
  leasehold graph --dot | dot -Tsvg > waits.svg";
