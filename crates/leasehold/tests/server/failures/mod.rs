//! How Redis locks fail in practice, and that Leasehold's do not: tests for the rows of docs/reference/failure-modes.md. Each
//! names its row.
//!
//! Most tests use a Mutex; `reentrant` is about the ReentrantMutex, `multi` and `multi_load` about several locks at once.

mod cluster;
mod cluster_load;
mod counter;
mod dead_clients;
mod errors;
mod findings;
pub(crate) mod fixture;
mod lost_replies;
mod multi;
mod multi_load;
mod older_data;
mod page;
mod quorum;
mod reconnect;
mod reentrant;
mod renewal;
mod replicas;
mod rotation;
mod rwlock;
mod semaphore;
mod sentinel;
mod server;
mod shards;
mod split_brain;
mod tracking;
mod waiting;
