//! The reference model: the meaning of every operation, as a pure function.
//!
//! [`LockState::apply`] takes the state of one lock, the store's time and an operation, and returns the reply
//! and the messages to publish. The memory store is this model behind a mutex, the SQLite store is this model
//! with its state in a row, and the Lua scripts of the Redis store are checked against it operation by
//! operation. [`Sessions`] does the same for the sessions of a store.
//!
//! It deliberately does not know names, keys or sockets; one state is one lock.

mod audit;
mod ended_holds;
mod lock;
mod record;
mod reentrant_holds;
mod session;
mod shared;
mod shared_holders;

pub use audit::Audit;
pub use ended_holds::EndedHolds;
pub use lock::{Content, LockState, Value};
pub use record::{QueueEntry, QueueEntryId, Record, RecordedHolder, Reserved};
pub use reentrant_holds::{ReentrantHold, ReentrantHolds};
pub use session::{SessionLookup, SessionRecord, SessionStatus, Sessions, all_alive};
pub use shared_holders::{SharedHold, SharedHolders};
