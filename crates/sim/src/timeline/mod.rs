//! What happened in a run, as something to draw: lanes, messages, holds and faults beside the lines of the trace.
//!
//! Owns the parts of a time line. It does not know how they are shown (`html`), and judges nothing (`checks`).
//!
//! 1. Each line of the trace is one [`Entry`], in the same order. Everything else refers to entries by their numbers.
//! 2. Nothing is kept that a check does not see: a time line is as true as the events of the run.

mod one_server;
mod quorum;

pub(crate) use one_server::Collector;
pub(crate) use quorum::Collector as QuorumCollector;

use crate::world::time::Instant;

/// A row of the drawing: an index into [`Timeline::lanes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId(pub usize);

/// A line of the trace: an index into [`Timeline::entries`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(pub usize);

/// A run, as something to draw.
///
/// ```
/// use leasehold_sim::{Run, run};
///
/// let outcome = run(&Run { with_trace: true, ..Run::new(3) });
/// assert_eq!(outcome.timeline.entries.len(), outcome.trace.len());
/// assert!(outcome.timeline.lanes.iter().any(|lane| lane.name == "p0"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The servers and the processes.
    pub lanes: Vec<Lane>,
    /// The names of the locks, with their kinds as far as they are known.
    pub locks: Vec<String>,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// Messages between two lanes.
    pub arrows: Vec<Arrow>,
    /// Holds: at the clients that rely on them, and at the servers.
    pub bars: Vec<Bar>,
    /// Faults that last.
    pub bands: Vec<Band>,
}

impl Timeline {
    /// The lines of the trace.
    pub fn lines(&self) -> Vec<String> {
        self.entries.iter().map(|entry| format!("{}  {}", entry.at, entry.text)).collect()
    }
}

/// A server or a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its name in the trace.
    pub name: String,
    /// Set for a server or a node.
    pub is_server: bool,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When, in true time.
    pub at: Instant,
    /// Where; `None` if it concerns all.
    pub lane: Option<LaneId>,
    /// What kind of event it is.
    pub kind: EntryKind,
    /// The line of the trace, without its time.
    pub text: String,
}

/// What an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A message was sent.
    Sent,
    /// A server executed an operation.
    Executed,
    /// A message arrived at a client.
    Received,
    /// A message, a connection, a process or a server failed.
    Fault,
    /// A task began or ended something.
    Task,
    /// Anything else.
    Other,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrow {
    /// Which way it goes.
    pub kind: ArrowKind,
    /// Its sender.
    pub from: LaneId,
    /// When it was sent.
    pub sent_at: Instant,
    /// Its receiver.
    pub to: LaneId,
    /// What became of it.
    pub end: ArrowEnd,
    /// Set for a message that was late, a duplicate, or overtaken.
    pub is_stale: bool,
    /// What the trace says of it.
    pub entries: Vec<EntryId>,
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrowKind {
    /// From a client to a server.
    Request,
    /// Back.
    Reply,
    /// From a server to a mailbox.
    Notification,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrowEnd {
    /// It arrived at that time.
    Arrived(Instant),
    /// It was lost at that time, or never arrived if no time is known.
    Lost(Option<Instant>),
    /// It was under way when the run ended.
    InFlight,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// Where.
    pub lane: LaneId,
    /// On which lock: an index into [`Timeline::locks`].
    pub lock: usize,
    /// What it is there.
    pub kind: BarKind,
    /// From when.
    pub from: Instant,
    /// Until when; `None` if it has no end.
    pub until: Option<Instant>,
    /// A short name.
    pub name: String,
    /// A description.
    pub about: String,
    /// What the trace says of its begin, its changes and its end.
    pub entries: Vec<EntryId>,
}

/// What a hold is in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarKind {
    /// A guard, for as long as it is valid for its task.
    Guard,
    /// A hold at a server, for as long as the server keeps it.
    Hold,
    /// A hold of another library's client at a server.
    Foreign,
}

/// A fault that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    /// Where; `None` if it concerns all.
    pub lane: Option<LaneId>,
    /// From when.
    pub from: Instant,
    /// Until when; `None` if it lasted until the run ended.
    pub until: Option<Instant>,
    /// What it is.
    pub name: String,
    /// What the trace says of its begin and its end.
    pub entries: Vec<EntryId>,
}
