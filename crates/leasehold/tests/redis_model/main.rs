//! The Lua scripts against the model: the same random operations to both, at the same times, and after each of them
//! the reply, all keys with their expiry, and all messages have to agree.
//!
//! The server runs by a clock that only moves when it is told. `LEASEHOLD_SEQUENCES` sets how many sequences are
//! tried, `LEASEHOLD_SEED` repeats one: a failure prints its own.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod play;
mod random;
mod scripts;
mod world;
mod written;
