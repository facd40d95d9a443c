//! Stores: each executes one typed operation atomically, and tells a session of its grants.
//!
//! A [`Store`] is narrow on purpose. What an operation means is [`leasehold_core::model`]; how often it
//! is sent again, and what becomes of its reply, is the engine's. A store never resends by itself.
//! For a store of one's own, operations, replies and the model are in [`core`]. `examples/toy_store.rs` is a small one.
//!
//! 1. An operation is executed, not executed, or that is unknown: [`Outcome`]. A fault is never a "no".
//! 2. Every call ends within the time it was given.
//! 3. Once [`Store::open_mailbox`] has returned, no grant to that session is missed silently: either it
//!    reaches the [`NotificationSink`], or the postbox is told that some may have been missed.

#[cfg(not(unix))]
compile_error!("leasehold needs a Unix system: its clock and its files are of that kind");

mod capabilities;
pub mod clock;
mod environment;
mod examination;
mod fault;
mod finding;
mod listen;
mod memory;
mod outcome;
mod postbox;
mod quorum;
mod shards;
mod store;
#[doc(hidden)]
pub mod sync;
pub mod watched;

pub use capabilities::{Capabilities, SessionTracking};
pub use environment::{Environment, System, jitter};
pub use examination::{Diagnosis, Role};
pub use fault::{Fault, FaultKind, Phase, TlsFault};
pub use finding::{ClockDifference, Finding, FindingKind, Severity};
pub use leasehold_core as core;
pub use leasehold_core::{Executed, Lock, Notification, Op, Reply, SessionOp, SessionReply};
pub use listen::{Publisher, Subscription};
pub use memory::MemoryStore;
pub use outcome::Outcome;
pub use postbox::NotificationSink;
pub use quorum::{QuorumError, QuorumStore};
pub use shards::{Shards, ShardsError};
pub use store::Store;
