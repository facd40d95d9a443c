//! Store on a Redis or Valkey server: at a fixed address, behind Sentinels, or a cluster.
//!
//! Each operation is one Lua script (`lua/`). The scripts implement [`leasehold_core::model`]; the tests send the
//! same operations to both. The server's clock expires leases, the client's clock ends calls.
//!
//! Not here: resending within a caller's deadline and polling, which the engine does, and judging which sessions are
//! dead.

mod address;
mod borrowed;
mod certificates;
mod channels;
mod cluster;
mod config;
mod connect;
mod connector;
mod diagnose;
mod error_map;
mod fanout;
mod identify;
mod link;
mod lua;
mod mailbox;
mod messages;
mod open;
pub mod optimistic;
mod permissions;
mod quorum;
mod replicas;
mod reply;
mod reported;
mod script;
mod sentinel;
mod session_keys;
mod shards;
mod site;
mod store;
mod tls;
mod url;
mod version;

pub use config::RedisConfig;
pub use permissions::{Permissions, PermissionsError};
pub use quorum::QuorumConfig;
pub use store::RedisStore;
pub use url::UrlError;
pub use version::ServerVersion;
