//! How Redis locks fail in practice, and that ours do not: a test for each row of
//! docs/failure-modes.md that concerns a Mutex on one server. Every test names its row.
//!
//! What holds on every store alike is tested in `tests/mutex`; what a script does, in `tests/redis_model`.

mod counter;
mod dead;
mod errors;
mod renewal;
mod replies;
mod scene;
mod servers;
mod sets;
mod storm;
mod waiting;
