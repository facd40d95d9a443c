//! The races between a client's threads, each under thousands of schedules: `cargo xtask shuttle`. Every other build leaves
//! this crate empty.
//!
//! Tasks on several threads share a client with its keeper thread and the threads that deliver its messages. All of
//! them are shuttle threads, which shuttle schedules step by step; so are the connections to a server, which runs the
//! model. Weak memory orderings are not explored.
//!
//! Where no test advances the clock, polling, renewals and lease expiry cannot mask a missed wake-up: a task that
//! sleeps on is a deadlock, and a failure.
//!
//! It is a crate of its own since it needs little: the tests of the library need so much that building all of that once more, under
//! shuttle, took ten times as long as running the races.

#[cfg(all(test, shuttle))]
mod environment;
#[cfg(all(test, shuttle))]
mod explore;
#[cfg(all(test, shuttle))]
mod fixture;
#[cfg(all(test, shuttle))]
mod races;
#[cfg(all(test, shuttle))]
mod server;
