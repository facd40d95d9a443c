//! The engine over a store that hangs, fails and loses data on demand.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

mod detached;
mod environment;
mod faulty_store;
mod fixture;
mod handoff;
mod lock_delay;
mod loss;
mod multi;
mod paused_clock;
mod proclaim;
mod reentrant;
mod release;
mod renewal;
mod sessions;
mod shutdown;
mod statistics;
mod telemetry;
mod test_store;
mod unanswered_release;
#[path = "../common/until.rs"]
mod until;
mod waiting;
mod waits;
