//! Stores. A store executes one typed operation atomically, and notifies a session of its grants.
//!
//! `leasehold-store` has the trait and the stores that need no server; each other store has a crate of its
//! own. To write a store, see [`leasehold::core`](crate::core) for operations, replies and the model.

pub(crate) use crate::client::store_url::StoreConfig;
pub use crate::client::store_url::{StoreKind, StoreUrl, StoreUrlError};

#[cfg(feature = "redis")]
pub use leasehold_redis::{
    LentConnection, LentError, LentPool, Permissions, PermissionsError, Purpose, QuorumConfig, RedisConfig,
    RedisStore, ServerVersion, UrlError,
};
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite::SqliteStore;
pub use leasehold_store::{
    Capabilities, ClockDifference, Credentials, CredentialsFault, CredentialsProvider, Diagnosis,
    Environment, Executed, Fault, FaultKind, Finding, FindingCode, FindingCodeError, FindingKind,
    HoldWatcher, Lock, MemoryStore, NameScan, Notification, NotificationSink, Op, Outcome, Phase, Publisher,
    QuorumError, QuorumStore, Reply, Role, ServerFinding, SessionOp, SessionReply, SessionTracking, Severity,
    Shards, ShardsError, Store, Subscription, TlsFault, Trial, TrialKind, TrialOutcome,
};
