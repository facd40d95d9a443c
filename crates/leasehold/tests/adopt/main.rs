//! Ten small programs, each written as a user of the library writes it at the first try, with a test of what it does.
//!
//! They use what the documentation shows first and nothing else. A change of the library that makes one of them longer, or
//! fail to compile, is a trap.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

mod cron;
#[path = "../../examples/fred_connection.rs"]
#[allow(dead_code, reason = "its `main` is run as an example")]
mod example;
mod five_at_a_time;
mod fred;
mod leader;
mod own_connection;
mod pool;
mod readers_and_writer;
mod service;
mod test_your_code;
mod threads;
mod unit_tests;
