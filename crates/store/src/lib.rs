//! Stores: each executes one typed operation atomically, and notifies sessions of their grants.
//!
//! A [`Store`] is narrow on purpose. [`leasehold_core::model`] defines what an operation means; the engine decides
//! how often it is sent again, and interprets its reply. A store never resends by itself. To write a store,
//! start from the operations, replies and the model in [`core`], and from `examples/toy_store.rs`.
//!
//! 1. An operation is executed, not executed, or unknown: [`Outcome`]. A fault never means that the
//!    operation does not apply: that is the reply [`Reply::Refused`].
//! 2. Every call ends within its time limit.
//! 3. Once [`Store::open_mailbox`] has returned, no grant to that session is missed silently: either it
//!    reaches the [`NotificationSink`], or the sink is notified that some may have been missed.

#[cfg(not(any(unix, windows)))]
compile_error!(
    "leasehold needs Unix or Windows: it has no clock for this system that counts during a suspend"
);

mod capabilities;
pub mod clock;
mod credentials;
mod diagnosis;
mod environment;
mod fault;
mod finding;
mod hold_watcher;
mod memory;
mod name_scan;
mod notification_sink;
mod outcome;
mod quorum;
mod shards;
mod store;
mod subscription;
#[doc(hidden)]
pub mod sync;
mod trial;
pub mod watched;

pub use capabilities::{Capabilities, SessionTracking};
pub use credentials::{Credentials, CredentialsProvider};
pub use diagnosis::{Diagnosis, Role};
pub use environment::{Environment, System, jitter};
pub use fault::{CredentialsFault, Fault, FaultKind, Phase, TlsFault};
pub use finding::{
    ClockDifference, Finding, FindingCode, FindingCodeError, FindingKind, ServerFinding, Severity,
};
pub use hold_watcher::HoldWatcher;
pub use leasehold_core as core;
pub use leasehold_core::{Executed, Lock, Notification, Op, Reply, SessionOp, SessionReply};
pub use memory::MemoryStore;
pub use name_scan::NameScan;
pub use notification_sink::NotificationSink;
pub use outcome::Outcome;
pub use quorum::{QuorumError, QuorumStore};
pub use shards::{Shards, ShardsError};
pub use store::Store;
pub use subscription::{Publisher, Subscription};
pub use trial::{Trial, TrialKind, TrialOutcome};
