//! Store on a Redis or Valkey server: at a fixed address, behind Sentinels, or a cluster.
//!
//! Each operation is one Lua script (`lua/`). The scripts implement [`leasehold_core::model`]; the tests send the
//! same operations to both. The server's clock expires leases, the client's clock ends calls.
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `connection-manager` | no | [`LentConnection`]s from a `redis::aio::ConnectionManager` |
//!
//! Not here: resending within a caller's deadline and polling, which the engine does, and judging which sessions are
//! dead.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cluster;
mod config;
mod confirm;
mod conn;
mod diagnose;
mod error_map;
mod location;
mod lua;
pub mod optimistic;
mod product;
mod reported_findings;
mod script;
mod session_keys;
mod shards;
mod store;
mod trials;

pub use config::RedisConfig;
pub use config::acl::{Permissions, PermissionsError, Purpose};
pub use config::quorum::QuorumConfig;
pub use config::url::UrlError;
pub use config::version::ServerVersion;
pub use conn::lent::{LentConnection, LentError, LentPool};
/// The client library, in the version that [`LentConnection`] is about.
pub use redis;
pub use store::RedisStore;
