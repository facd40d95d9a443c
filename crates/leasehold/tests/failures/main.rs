//! How Redis locks fail in practice, and that ours do not: a test for each row of
//! docs/reference/failure-modes.md that concerns locks on one server. Every test names its row.
//!
//! Most are of a Mutex; `entries` is about the one that is entered again, `together` and `sets` about several at once.
//!
//! What holds on every store alike is tested in `tests/mutex` and `tests/reentrant`; what a script does, in `tests/redis_model`.

mod cluster;
mod cluster_load;
mod counter;
mod dead;
mod entries;
mod errors;
mod hazards;
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
#[path = "../common/warnings.rs"]
mod warnings;
