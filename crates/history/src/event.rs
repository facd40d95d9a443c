//! The events of a history.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, in microseconds since the run began, by the monotonic clock that all processes of the machine share.
    pub at_us: u64,
    /// The process that reports it: 0 is the coordinator, workers count from 1. A restarted worker gets a new number.
    pub process: u32,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The run begins. The first line of a history.
    Began {
        /// The version of the format: 1.
        format: u32,
        /// The seed of the workload and the faults.
        seed: u64,
        /// The kind of store, without addresses or passwords: `redis`, `cluster`, `sentinel`, `quorum`, `sqlite`.
        store: String,
        /// The wall clock, RFC 3339.
        started_at: String,
        /// The locks of the workload.
        locks: Vec<LockSpec>,
        /// The lease of a hold, in milliseconds.
        lease_ms: u64,
        /// How long a session lives without a heartbeat, in milliseconds.
        session_ms: u64,
        /// What else is known of the run, as text.
        settings: BTreeMap<String, String>,
    },
    /// A worker has started.
    Started {
        /// Its process id.
        pid: u32,
    },
    /// A worker's process is gone. Reported by the coordinator.
    Exited {
        /// The number of the worker.
        worker: u32,
        /// How it ended.
        how: String,
    },
    /// A task calls acquire.
    Asked {
        /// Identifies this call in the history.
        call: u64,
        /// The name of the lock.
        lock: String,
        /// How it is to be held.
        mode: Mode,
        /// How long the task is ready to wait, in milliseconds. None: without a limit.
        limit_ms: Option<u64>,
        /// The owner for which a re-entrant lock is acquired; calls of one owner do not exclude each other.
        owner: Option<u64>,
    },
    /// The call of acquire returns. A call without an answer was cut off by the end of its process.
    Answered {
        /// The call.
        call: u64,
        /// The answer.
        answer: Answer,
    },
    /// The holder asked its library whether the hold is valid, without a request to the store.
    Checked {
        /// The call that acquired the hold.
        call: u64,
        /// When the question began; `at_us` is when the answer came. A hold that is valid was valid at this instant.
        since_us: u64,
        /// The answer.
        valid: bool,
    },
    /// The library reports that the hold is lost.
    Lost {
        /// The call that acquired the hold.
        call: u64,
        /// The reason, as the library names it.
        reason: String,
    },
    /// The holder writes to the guarded counter of this lock, which the coordinator keeps. Reported by the coordinator, in the
    /// order in which the writes arrive.
    Wrote {
        /// The call that acquired the hold.
        call: u64,
        /// The lock whose counter it is.
        lock: String,
        /// The fencing token of the hold.
        fence: u64,
        /// The value that the holder read before.
        read: u64,
        /// The value that stood there when the write arrived.
        found: u64,
        /// Whether the counter's fencing check accepts the write: no write with a greater token came before.
        fenced: bool,
    },
    /// The holder begins to release its hold.
    ReleaseAsked {
        /// The call that acquired the hold.
        call: u64,
    },
    /// The release returns.
    Released {
        /// The call that acquired the hold.
        call: u64,
        /// The answer.
        answer: ReleaseAnswer,
    },
    /// A fault begins. Reported by the coordinator, before the fault is caused.
    FaultBegan {
        /// Identifies the fault in this history.
        fault: u64,
        /// Which fault.
        kind: FaultKind,
        /// The worker it hits. None: all, or the store.
        worker: Option<u32>,
        /// What it is, for a person.
        detail: String,
    },
    /// A fault ends: what it hit can recover from now on.
    FaultEnded {
        /// The fault.
        fault: u64,
    },
    /// The store's clock beside the monotonic one of the machine. Reported by the coordinator.
    Clock {
        /// The node, as a number; 0 if there is one.
        node: u32,
        /// When the question was sent, as `at_us`; the answer came at `at_us`.
        sent_us: u64,
        /// The store's clock, in microseconds since 1970.
        store_us: u64,
    },
    /// What the store holds under the prefix of the run once all is released and all leases have ended. Reported by the
    /// coordinator.
    Left {
        /// Keys (or rows) that are left, without secrets, and why each is wrong.
        keys: Vec<String>,
    },
    /// The workload has ended. A run that was interrupted has no such line.
    Ended,
}

/// A lock of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockSpec {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: LockKind,
    /// The permits of a semaphore, the count of a latch, the parties of a barrier.
    pub permits: Option<u32>,
    /// The period of a [`LockKind::OncePer`], in milliseconds. A release of a turn finishes it, so that the turn lasts for the
    /// rest of the period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u64>,
}

/// What a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// One holder.
    Mutex,
    /// One owner, with any number of holds.
    Reentrant,
    /// One writer, or readers.
    RwLock,
    /// Holds of one or more permits, of so many.
    Semaphore,
    /// One leader.
    Election,
    /// Opens once so many have counted down.
    Latch,
    /// Opens each time that so many have arrived.
    Barrier,
    /// At most one start in a period.
    OncePer,
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Alone: a Mutex, a re-entrant lock, an election, a turn of a period.
    Exclusive,
    /// To read.
    Read,
    /// To write.
    Write,
    /// So many permits.
    Permits(u32),
    /// Counts a latch down by one, and does not wait.
    CountDown,
    /// Waits for a latch, or for the other parties of a barrier.
    Wait,
}

/// How a call of acquire ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The lock is held, or the latch or barrier is open.
    Granted {
        /// The fencing token; a latch and a barrier give none.
        fence: Option<u64>,
    },
    /// It was not granted within the limit, or the period is not over.
    NotGranted,
    /// An error: whether the store granted it is not known to the caller.
    Failed {
        /// The error's text.
        error: String,
    },
}

/// How a release ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum ReleaseAnswer {
    /// The store ended the hold at this request.
    Released,
    /// The hold had ended before.
    NotHeld,
    /// An error: whether the store ended it is not known to the caller.
    Failed {
        /// The error's text.
        error: String,
    },
}

/// Which fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The worker's process is killed.
    Kill,
    /// The worker's process is stopped, and goes on later.
    Stop,
    /// The worker's connections are cut.
    Cut,
    /// The worker's bytes are delayed.
    Delay,
    /// Replies to the worker are swallowed, and then the connection is cut.
    SwallowReplies,
    /// No byte passes between the worker and the store.
    Partition,
    /// The command that the user allowed restarts the store.
    Restart,
    /// The command that the user allowed fails the store over.
    Failover,
}
