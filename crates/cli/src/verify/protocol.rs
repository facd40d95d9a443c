//! What the coordinator and a worker send to each other: one JSON object a line, by the worker's standard input and output.
//!
//! 1. A password is only in [`Setup`], which goes by standard input: neither arguments nor the environment have it.

use super::plan::Plan;
use leasehold_history::Event;
use serde::{Deserialize, Serialize};

/// The first line that a worker receives. It has no `Debug`, because it may contain a password (1).
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The number of the worker in the history.
    pub(crate) process: u32,
    /// The origin of the run's clock.
    pub(crate) origin_us: u64,
    pub(crate) url: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) prefix: Option<String>,
    /// The codes of the findings that the user has accepted.
    pub(crate) accepted: Vec<String>,
    /// The port of its relay, for a store with servers.
    pub(crate) relay: Option<u16>,
    pub(crate) plan: Plan,
}

/// What a worker receives after its [`Setup`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// The value of the guarded counter, for a call that read or wrote it.
    Value { call: u64, value: u64 },
    /// Keep what is held for so long, as far as it is valid.
    Linger { ms: u64 },
    /// Begin no further call, release everything, and end.
    Stop,
}

/// What a worker sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromWorker {
    Event(Event),
    /// Asks for the value of the guarded counter of a lock.
    Read {
        call: u64,
        lock: String,
    },
    /// Writes the value that follows the one that was read.
    Write {
        call: u64,
        lock: String,
        fence: u64,
        read: u64,
    },
    /// The machine did not run the worker.
    Stalled {
        from_us: u64,
        to_us: u64,
    },
    /// The worker cannot use the store, and ends.
    Unusable {
        error: String,
    },
}

/// An object as a line.
pub(crate) fn line(object: &impl Serialize) -> String {
    // Maps have keys that are strings, and no number is infinite.
    serde_json::to_string(object).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_history::What;

    #[test]
    fn an_event_survives_the_way_to_the_coordinator() {
        let event =
            Event { at_us: u64::MAX >> 11, process: 3, what: What::ReleaseAsked { call: 30_000_007 } };
        let text = line(&FromWorker::Event(event.clone()));
        let read = serde_json::from_str(&text).expect("it is JSON");
        assert!(matches!(read, FromWorker::Event(read) if read == event), "{text}");
    }
}
