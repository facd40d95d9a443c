//! The reference model: the meaning of every operation, as a pure function.
//!
//! [`LockState::apply`] takes the state of one lock, the store's time and an operation, and returns the reply
//! and the notifications to publish. The memory store is this model behind a mutex, the SQLite store is this model
//! with its state in a row, and tests compare the Lua scripts of the Redis store with it, operation by
//! operation. [`Sessions`] does the same for the sessions of a store.
//!
//! It deliberately does not know names, keys or sockets; one state is one lock. Databases store a state as JSON: a
//! field that was renamed keeps its name there.

mod acquire_all;
mod admission;
mod audit;
mod ended_holds;
mod eviction;
mod exclusive;
mod history;
mod holder;
mod lock;
mod record;
mod reentrant_holds;
mod session;
mod shared;
mod shared_holders;
mod statistics;
mod value;
mod watermark;

pub use audit::Audit;
pub use ended_holds::EndedHolds;
pub use history::History;
pub use lock::LockState;
pub use record::{QueueEntry, QueueEntryId, Record, RecordedHolder, Reserved};
pub use reentrant_holds::{ReentrantHold, ReentrantHolds};
pub use session::{SessionLookup, SessionRecord, SessionStatus, Sessions, all_alive};
pub use shared_holders::{SharedHold, SharedHolders};
pub use statistics::StatisticsTable;
pub use value::{Content, Value};
pub use watermark::Watermark;
