//! The store on one Redis or Valkey server, wherever that is: at an address, or where Sentinels say; and on a cluster.
//!
//! Each operation is one Lua script (`lua/`), which implements [`leasehold_core::model`]: the tests send the same
//! operations to both. Expiry is the server's; deadlines of calls are ours.
//!
//! What is not here: resending (the engine's, and within its own deadline), polling (the engine's), and knowing who is
//! dead.

mod address;
mod certificates;
mod channels;
mod cluster;
mod config;
mod connector;
mod dial;
mod hazard;
mod home;
mod identify;
mod lent;
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
mod script;
mod sentinel;
mod shards;
mod site;
mod spread;
mod store;
mod tls;
mod told;
mod url;
mod verdict;
mod version;

pub use config::RedisConfig;
pub use permissions::{Permissions, PermissionsError};
pub use quorum::QuorumConfig;
pub use store::RedisStore;
pub use url::UrlError;
pub use version::ServerVersion;
