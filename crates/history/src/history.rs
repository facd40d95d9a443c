//! A history: reads, writes and orders its events.
//!
//! Owns what makes a sequence of events a history at all. Whether the locks in it behaved is the checks' business.
//!
//! 1. The events are in order of `at_us`; events of one instant keep the order in which they were reported.
//! 2. The first line is `Began`, of a format that this version reads, and there is no other.
//! 3. What an event refers to (a call, a worker, a fault, a lock) was reported. An event may stand before what it refers to, since
//!    processes report on their own.

use crate::event::{Event, LockSpec, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, Write};

/// The version of the format that this crate reads and writes.
const FORMAT: u32 = 1;

/// The events of a run, in order of time.
///
/// ```
/// use leasehold_history::History;
///
/// let error = History::read(&b"{\"event\":\"ended\"}"[..]).expect_err("an event needs a time");
/// assert_eq!(error.to_string(), "line 1: no event: missing field `at_us` at line 1 column 17");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    events: Vec<Event>,
}

/// What the first event says of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beginning<'h> {
    pub(crate) seed: u64,
    pub(crate) store: &'h str,
    pub(crate) started_at: &'h str,
    pub(crate) locks: &'h [LockSpec],
    pub(crate) lease_us: u64,
    pub(crate) session_us: u64,
    pub(crate) settings: &'h BTreeMap<String, String>,
}

impl History {
    /// Makes a history of events in any order of time, the first of which is `Began`.
    ///
    /// # Errors
    ///
    /// [`HistoryError::Line`] with the number of the event, counted from 1, that belongs to no history: see the invariants of the
    /// format in `docs/reference/history.md`.
    pub fn from_events(mut events: Vec<Event>) -> Result<Self, HistoryError> {
        validate(&events)?;
        events.sort_by_key(|event| event.at_us);
        // A sort is stable, so that `Began`, which must have the smallest time, stays first.
        Ok(Self { events })
    }

    /// Reads JSON Lines: an event a line. Empty lines are skipped.
    ///
    /// # Errors
    ///
    /// [`HistoryError::Io`] if the reader fails; [`HistoryError::Line`] with the number of the first line that is no event of this format,
    /// or that belongs to no history.
    pub fn read(reader: impl BufRead) -> Result<Self, HistoryError> {
        let (mut events, mut lines) = (Vec::new(), Vec::new());
        for (index, line) in reader.lines().enumerate() {
            let line = line.map_err(HistoryError::Io)?;
            if line.trim().is_empty() {
                continue;
            }
            let event = serde_json::from_str(&line).map_err(|error| HistoryError::Line {
                line: index + 1,
                reason: format!("no event: {error}"),
            })?;
            events.push(event);
            lines.push(index + 1);
        }
        Self::from_events(events).map_err(|error| match error {
            HistoryError::Line { line, reason } => {
                HistoryError::Line { line: lines.get(line.wrapping_sub(1)).copied().unwrap_or(line), reason }
            }
            io => io,
        })
    }

    /// Writes it as JSON Lines, in order of time.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        for event in &self.events {
            serde_json::to_writer(&mut writer, event)?;
            writer.write_all(b"\n")?;
        }
        writer.flush()
    }

    /// The events, in order of time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Whether the workload ended. A run that was interrupted is judged as far as it went.
    pub fn has_ended(&self) -> bool {
        self.events.iter().any(|event| event.what == What::Ended)
    }

    /// The time of the last event, in microseconds since the run began.
    pub fn last_us(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at_us)
    }

    pub(crate) fn beginning(&self) -> Beginning<'_> {
        match &self.events[0].what {
            What::Began { seed, store, started_at, locks, lease_ms, session_ms, settings, .. } => Beginning {
                seed: *seed,
                store,
                started_at,
                locks,
                lease_us: lease_ms.saturating_mul(1000),
                session_us: session_ms.saturating_mul(1000),
                settings,
            },
            other => unreachable!("a history begins with `began`, not with {other:?}"),
        }
    }
}

/// Why something is no history.
///
/// ```
/// use leasehold_history::{History, HistoryError};
///
/// let error = History::from_events(Vec::new()).expect_err("a history begins");
/// assert!(matches!(error, HistoryError::Line { line: 1, .. }));
/// assert_eq!(error.to_string(), "line 1: a history begins with the event `began`");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum HistoryError {
    /// The reader failed.
    Io(io::Error),
    /// A line is no event of this format, or belongs to no history.
    Line {
        /// The number of the line, from 1; for [`History::from_events`] the number of the event.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the history cannot be read: {error}"),
            Self::Line { line, reason } => write!(f, "line {line}: {reason}"),
        }
    }
}

impl std::error::Error for HistoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Line { .. } => None,
        }
    }
}

/// What events can refer to.
#[derive(Default)]
struct Known<'e> {
    locks: BTreeSet<&'e str>,
    calls: BTreeSet<u64>,
    workers: BTreeSet<u32>,
    faults: BTreeSet<u64>,
}

fn validate(events: &[Event]) -> Result<(), HistoryError> {
    let refuse = |index: usize, reason: String| Err(HistoryError::Line { line: index + 1, reason });
    let Some(Event { at_us: first, what: What::Began { format, locks, .. }, .. }) = events.first() else {
        return refuse(0, "a history begins with the event `began`".to_owned());
    };
    if *format != FORMAT {
        return refuse(0, format!("the format is {format}, and this version reads format {FORMAT}"));
    }
    let mut known = Known::default();
    for lock in locks {
        if !known.locks.insert(&lock.name) {
            return refuse(0, format!("the lock {:?} is given twice", lock.name));
        }
    }
    for (index, event) in events.iter().enumerate() {
        let reason = if event.at_us < *first {
            Some("it is earlier than the beginning".to_owned())
        } else if index > 0 && matches!(event.what, What::Began { .. }) {
            Some("the run has begun before".to_owned())
        } else {
            known.insert(event)
        };
        if let Some(reason) = reason {
            return refuse(index, reason);
        }
    }
    for (index, event) in events.iter().enumerate() {
        if let Some(reason) = known.is_missing(event) {
            return refuse(index, reason);
        }
    }
    Ok(())
}

impl<'e> Known<'e> {
    /// Notes what an event makes known, or says why it cannot.
    fn insert(&mut self, event: &'e Event) -> Option<String> {
        match &event.what {
            What::Asked { call, .. } if !self.calls.insert(*call) => {
                Some(format!("call {call} is asked twice"))
            }
            What::Started { .. } if !self.workers.insert(event.process) => {
                Some(format!("process {} starts twice", event.process))
            }
            What::FaultBegan { fault, .. } if !self.faults.insert(*fault) => {
                Some(format!("fault {fault} begins twice"))
            }
            _ => None,
        }
    }

    /// What an event refers to although no event made it known.
    fn is_missing(&self, event: &Event) -> Option<String> {
        let lock = |name: &str| {
            let is_known = self.locks.contains(name);
            (!is_known).then(|| format!("the lock {name:?} is not among those of `began`"))
        };
        let call = |call: u64| {
            let is_known = self.calls.contains(&call);
            (!is_known).then(|| format!("call {call} was never asked"))
        };
        let worker = |worker: u32| {
            (!self.workers.contains(&worker)).then(|| format!("process {worker} never started"))
        };
        match &event.what {
            What::Asked { lock: name, .. } => lock(name).or_else(|| worker(event.process)),
            What::Wrote { call: id, lock: name, .. } => lock(name).or_else(|| call(*id)),
            What::Answered { call: id, .. }
            | What::Checked { call: id, .. }
            | What::Lost { call: id, .. }
            | What::ReleaseAsked { call: id }
            | What::Released { call: id, .. } => call(*id),
            What::Exited { worker: id, .. } | What::FaultBegan { worker: Some(id), .. } => worker(*id),
            What::FaultEnded { fault } => {
                (!self.faults.contains(fault)).then(|| format!("fault {fault} never began"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn refusal(lines: &str) -> String {
        History::read(lines.as_bytes()).expect_err("no history").to_string()
    }

    fn with(line: &str) -> String {
        let began = sample::TWO_HOLDERS.lines().next().expect("a line");
        format!("{began}\n\n{line}\n")
    }

    #[test]
    fn a_history_is_written_as_it_was_read() {
        let history = History::read(sample::TWO_HOLDERS.as_bytes()).expect("a history");
        let mut written = Vec::new();
        history.write(&mut written).expect("written");
        assert_eq!(History::read(&written[..]).expect("a history"), history);
        assert!(history.has_ended());
        assert_eq!(history.last_us(), 1_500_000);
    }

    #[test]
    fn an_error_names_the_line_of_the_file() {
        let cases = [
            (String::new(), "line 1: a history begins with the event `began`"),
            (with("{"), "line 3: no event: EOF while parsing an object at line 1 column 1"),
            (
                with(r#"{"at_us":5,"process":0,"event":"fault_ended","fault":9}"#),
                "line 3: fault 9 never began",
            ),
            (
                with(r#"{"at_us":5,"process":1,"event":"release_asked","call":3}"#),
                "line 3: call 3 was never asked",
            ),
            (
                with(
                    r#"{"at_us":5,"process":1,"event":"asked","call":3,"lock":"a","mode":"exclusive","limit_ms":1,"owner":null}"#,
                ),
                "line 3: the lock \"a\" is not among those of `began`",
            ),
            (
                with(
                    r#"{"at_us":5,"process":1,"event":"asked","call":3,"lock":"orders/42","mode":"exclusive","limit_ms":1,"owner":null}"#,
                ),
                "line 3: process 1 never started",
            ),
            (with(&with("")), "line 3: the run has begun before"),
            (
                with("").replace("\"format\":1", "\"format\":2"),
                "line 1: the format is 2, and this version reads format 1",
            ),
        ];
        for (lines, message) in cases {
            assert_eq!(refusal(&lines), message);
        }
    }

    #[test]
    fn events_are_put_in_order_of_time() {
        let mut lines: Vec<&str> = sample::TWO_HOLDERS.lines().collect();
        lines[1..].reverse();
        let history = History::read(lines.join("\n").as_bytes()).expect("a history");
        assert!(history.events().is_sorted_by_key(|event| event.at_us));
        assert!(matches!(history.events()[0].what, What::Began { .. }));
    }
}
