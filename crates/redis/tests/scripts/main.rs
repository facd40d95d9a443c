//! Compares the Lua scripts with the model: both execute the same random operations at the same times, and after
//! each operation the reply, all keys with their expiry, and all messages must agree.
//!
//! The server's clock moves only when the test sets it. `LEASEHOLD_SEQUENCES` sets the number of sequences;
//! `LEASEHOLD_SEED` repeats a single one, and a failure prints its seed.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

mod cases;
mod encoding;
mod fixture;
mod generator;
#[path = "../support/lua_mutants.rs"]
mod lua_mutants;
mod multi;
mod mutation;
mod sequence;
mod tap;
