//! Stores: each executes one typed operation atomically, and tells a session of its grants.
//!
//! The trait and the stores that need no server are in `leasehold-store`, those on servers and files in crates of their own.
//! For a store of one's own, operations, replies and the model are in [`leasehold::core`](crate::core).

pub(crate) use crate::client::connect::StoreConfig;
pub use crate::client::connect::{StoreKind, StoreUrl, StoreUrlError};

#[cfg(feature = "redis")]
pub use leasehold_redis::{
    Permissions, PermissionsError, QuorumConfig, RedisConfig, RedisStore, ServerVersion, UrlError,
};
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite::SqliteStore;
pub use leasehold_store::{
    Capabilities, ClockDifference, Diagnosis, Executed, Fault, FaultKind, Finding, FindingKind, Lock,
    MemoryStore, Notification, NotificationSink, Op, Outcome, Phase, Publisher, QuorumError, QuorumStore,
    Reply, Role, SessionOp, SessionReply, SessionTracking, Severity, Shards, ShardsError, Store,
    Subscription, TlsFault,
};
