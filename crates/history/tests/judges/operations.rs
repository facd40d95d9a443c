//! A Mutex and its guarded counter as operations on one object, for judges of linearizability. `drivers/porcupine` does the same.
//!
//! It reads events alone, and shares nothing with the checks of the crate:
//!
//! - *acquire*, from when it was asked until it was granted. It is possible if the lock is free, and if its token is greater than all before.
//! - *end* of the hold, from its last valid check until its release returned. Without a release that ended it, it may happen at any time
//!   from then on, or never. It is possible if the hold is there.
//! - *update* of the counter, at the instant at which a write arrives that its holder still believed in: it is possible if the counter has the
//!   value that the holder had read.
//! - *overwrite*: a late write that the fencing check let pass. It is always possible, and the next update may have read before it.
//!
//! A hold of which no check was valid, and what was not granted, are no operations. Refused writes change nothing, so a late one is
//! none either; one of a valid hold is an update that is never possible.

use leasehold_history::{Answer, History, LockKind, ReleaseAnswer, What};
use std::collections::BTreeMap;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Acquire { call: u64, fence: u64 },
    End { call: u64 },
    Update { call: u64, read: u64 },
    Overwrite { value: u64 },
    RefusedUpdate,
}

/// When an operation was called, when it returned, and by which process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interval {
    pub(crate) operation: Operation,
    pub(crate) process: u32,
    pub(crate) called_us: u64,
    /// None: it may never happen.
    pub(crate) returned_us: Option<u64>,
}

#[derive(Default)]
struct Hold {
    process: u32,
    asked_us: u64,
    granted: Option<(u64, u64)>,
    valid_us: u64,
    release_us: Option<u64>,
    released_us: Option<u64>,
}

/// The operations on the first Mutex of a history, in the order in which they were called.
pub(crate) fn of_mutex(history: &History) -> Vec<Interval> {
    let mut name = None;
    let mut holds: BTreeMap<u64, Hold> = BTreeMap::new();
    let mut writes = Vec::new();
    for event in history.events() {
        let at_us = event.at_us;
        match &event.what {
            What::Began { locks, .. } => {
                name = locks.iter().find(|lock| lock.kind == LockKind::Mutex).map(|lock| lock.name.as_str());
            }
            What::Asked { call, lock, .. } if Some(lock.as_str()) == name => {
                holds.insert(*call, Hold { process: event.process, asked_us: at_us, ..Hold::default() });
            }
            What::Answered { call, answer: Answer::Granted { fence } } => {
                if let Some(hold) = holds.get_mut(call) {
                    hold.granted.get_or_insert((at_us, fence.unwrap_or_default()));
                }
            }
            What::Checked { call, since_us, valid: true } => {
                if let Some(hold) = holds.get_mut(call) {
                    hold.valid_us = *since_us;
                }
            }
            What::ReleaseAsked { call } => {
                if let Some(hold) = holds.get_mut(call) {
                    hold.release_us.get_or_insert(at_us);
                }
            }
            What::Released { call, answer: ReleaseAnswer::Released } => {
                if let Some(hold) = holds.get_mut(call) {
                    hold.released_us.get_or_insert(at_us);
                }
            }
            What::Wrote { call, lock, read, fenced, .. } if Some(lock.as_str()) == name => {
                writes.push((at_us, *call, *read, *fenced));
            }
            _ => {}
        }
    }
    holds.retain(|_, hold| hold.granted.is_some_and(|(granted_us, _)| hold.valid_us > granted_us));
    let mut operations = Vec::new();
    for (&call, hold) in &holds {
        let Some((granted_us, fence)) = hold.granted else { continue };
        let process = hold.process;
        let ends_us = hold.release_us.map_or(hold.valid_us, |release| release.min(hold.valid_us));
        operations.push(Interval {
            operation: Operation::Acquire { call, fence },
            process,
            called_us: hold.asked_us,
            returned_us: Some(granted_us),
        });
        operations.push(Interval {
            operation: Operation::End { call },
            process,
            called_us: ends_us,
            returned_us: hold.released_us,
        });
    }
    for (at_us, call, read, fenced) in writes {
        let hold = holds.get(&call);
        let is_valid = hold.is_some_and(|hold| {
            hold.granted.is_some_and(|(granted_us, _)| granted_us <= at_us && at_us <= hold.valid_us)
        });
        let operation = match (is_valid, fenced) {
            (true, true) => Operation::Update { call, read },
            (true, false) => Operation::RefusedUpdate,
            (false, true) => Operation::Overwrite { value: read + 1 },
            (false, false) => continue,
        };
        let process = hold.map_or(0, |hold| hold.process);
        operations.push(Interval { operation, process, called_us: at_us, returned_us: Some(at_us) });
    }
    operations.sort_by_key(|interval| interval.called_us);
    operations
}
