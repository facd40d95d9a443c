//! The Redis store against real servers: connecting and refused connections, broken and replaced connections,
//! messages, and server errors.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "an outcome that was judged is done with")]

mod batches;
mod borrowed;
mod calls;
mod cluster;
mod cluster_tls;
mod connecting;
mod creation;
mod credentials;
mod damaged;
mod findings;
mod fixture;
mod format;
mod line;
mod messages;
mod optimistic;
mod permissions;
mod products;
mod recovery;
mod reentrant;
mod refusals;
mod resp2;
mod sessions;
mod shared;
mod tls;
