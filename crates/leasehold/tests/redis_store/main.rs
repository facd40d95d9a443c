//! The Redis store against real servers: connecting and being refused, breaking and mending, messages, and what the
//! server says when it cannot.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "an outcome that was judged is done with")]

mod calls;
mod cluster;
mod cluster_tls;
mod connecting;
mod format;
mod hazards;
mod lent;
mod mending;
mod messages;
mod refusals;
mod resp2;
mod scene;
mod sessions;
mod tls;
#[path = "../common/warnings.rs"]
mod warnings;
