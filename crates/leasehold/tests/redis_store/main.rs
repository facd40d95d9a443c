//! The Redis store against real servers: connecting and refused connections, broken and replaced connections,
//! messages, and server errors.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "an outcome that was judged is done with")]

mod calls;
mod cluster;
mod cluster_tls;
mod connecting;
mod findings;
mod format;
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
