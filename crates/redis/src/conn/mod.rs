//! Connections: made, made again when they break, lent by the application, found through Sentinels; and the messages that
//! they deliver.
//!
//! Nothing here sends an operation a second time, and nothing polls: both are the engine's.

pub(crate) mod batches;
pub(crate) mod borrowed;
pub(crate) mod bounded;
pub(crate) mod channels;
pub(crate) mod connect;
mod disk;
pub(crate) mod identify;
pub(crate) mod lent;
pub(crate) mod link;
pub(crate) mod mailbox;
pub(crate) mod messages;
pub(crate) mod open;
pub(crate) mod sentinel;
pub(crate) mod tracking;
