//! The SQLite store between real processes, and what it refuses.
//!
//! The test binary runs itself again as a worker, which does what it reads from its standard input and
//! answers with lines that begin with `@`.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod between;
mod files;
mod party;
mod workers;
