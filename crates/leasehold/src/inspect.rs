//! What can be observed of locks, sessions and clients. No item here acquires or changes anything.
//!
//! | To see … | call | returns |
//! |---|---|---|
//! | what prevents an acquisition | [`Mutex::try_acquire`](crate::Mutex::try_acquire) | [`Contention`], with the [`Holder`] |
//! | whether a lock is held | [`Mutex::inspect`](crate::Mutex::inspect) | [`Status`], with the [`ObservedHolder`] and [`SharedHolder`]s |
//! | also its queue, and how its holds ended | [`Mutex::inspect_full`](crate::Mutex::inspect_full) | [`FullStatus`], with [`QueuedWaiter`], [`AuditEntry`] and [`HistoryEntry`] |
//! | each hold of a lock end | [`Mutex::observe_ends`](crate::Mutex::observe_ends) | [`HoldEnds`], with [`HoldEnd`] and [`HoldEnding`] |
//! | the leader of an election, now and later | [`Election::leader`](crate::Election::leader), [`Election::observe`](crate::Election::observe) | [`Leader`], [`Leaders`] |
//! | all sessions, and all locks that are held | [`Client::sessions`](crate::Client::sessions), [`Client::locks`](crate::Client::locks) | [`Listing`] of [`SessionInfo`] and [`LockInfo`], with [`Skipped`] |
//! | which process waits for which | [`Client::wait_graph`](crate::Client::wait_graph) | [`WaitGraph`], with [`WaitInfo`], [`WaitHolder`] and [`WaitCycle`] |
//! | how long locks are held and waited for | [`Client::lock_statistics`](crate::Client::lock_statistics) | [`LockStatistics`], with [`TimeHistogram`] |
//! | what this client did | [`Client::stats`](crate::Client::stats) | [`Stats`], with [`Losses`] |
//! | whether the store replies | [`Client::health`](crate::Client::health) | [`Health`] |
//! | what a monitor freed | [`Monitor::run_once`](crate::Monitor::run_once) | [`MonitorReport`], with [`Eviction`] |
//!
//! Types of theirs: [`SessionId`], [`SessionMetadata`], [`SessionWait`], [`LockMode`], [`Ended`], [`Fingerprint`],
//! [`Votes`]; [`MAX_HISTORY`] limits [`Mutex::history`](crate::Mutex::history). Findings about servers are
//! in [`store`](crate::store); events of this client, as they happen, in [`telemetry`](mod@crate::telemetry).

pub use crate::client::health::Health;
pub use crate::client::inventory::LockInfo;
pub use crate::client::listing::Listing;
pub use crate::client::monitor::{Eviction, MonitorReport};
pub use crate::client::session_info::{SessionInfo, SessionWait};
pub use crate::client::statistics::LockStatistics;
pub use crate::client::stats::{Losses, Stats};
pub use crate::engine::{WaitCycle, WaitGraph, WaitHolder, WaitInfo};
pub use crate::guard::status::{FullStatus, QueuedWaiter, SharedHolder, Status};
pub use crate::lock::contention::Contention;
pub use crate::lock::election::{Leader, Leaders};
pub use crate::lock::observe_ends::{HoldEnd, HoldEnding, HoldEnds};
pub use leasehold_core::{
    AuditEntry, Ended, Fingerprint, HistoryEntry, Holder, LockMode, MAX_HISTORY, ObservedHolder, SessionId,
    SessionMetadata, Skipped, TimeHistogram, Votes,
};
