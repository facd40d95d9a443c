//! How Redis locks fail in practice, and that Leasehold's do not: a test for each row of docs/failure-modes.md that
//! concerns locks on one server. Every test names its row.
//!
//! Most tests use a Mutex; `entries` covers the ReentrantMutex, `together` and `sets` several locks at once.
//!
//! Behaviour common to all stores is tested in `tests/mutex` and `tests/reentrant`; the scripts in
//! `crates/redis/tests/scripts`.

mod cluster;
mod cluster_load;
mod counter;
mod dead;
mod entries;
mod errors;
mod findings;
mod page;
mod permits;
mod quorum;
mod readers;
mod renewal;
mod replicas;
mod replies;
mod scene;
mod sentinel;
mod servers;
mod sets;
mod shards;
mod storm;
mod together;
mod waiting;
