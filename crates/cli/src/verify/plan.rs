//! The workload of a run: its locks, and the times that all workers share.

use crate::output::report::millis;
use leasehold::store::{StoreKind, StoreUrl};
use leasehold_history::{FaultKind, LockKind, LockSpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How many worker processes there are at a time.
pub(crate) const WORKERS: usize = 4;

/// The lease of a hold that is renewed: short, so that a run has many that end.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// How long a session lives without a heartbeat.
pub(crate) const SESSION: Duration = Duration::from_millis(1500);

/// How long a call waits for a lock.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// The period of the job that runs once in each.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// How long each latch is in use.
pub(crate) const LATCH_ROUND: Duration = Duration::from_secs(4);

/// The longest history has so many latches. After them no latch is used.
const MAX_LATCHES: u64 = 500;

/// What a worker needs to know of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) locks: Vec<LockSpec>,
    /// How many calls of acquire a worker begins in a second.
    pub(crate) calls_per_second: f64,
}

/// The kind of a store as a history names it.
pub(crate) fn store_word(url: &StoreUrl) -> &'static str {
    match url.kind() {
        StoreKind::Sqlite => "sqlite",
        StoreKind::Quorum => "quorum",
        StoreKind::Shards => "shards",
        _ => {
            let scheme = url.redacted();
            match scheme.split(':').next() {
                Some("redis+cluster" | "rediss+cluster") => "cluster",
                Some("redis+sentinel" | "rediss+sentinel") => "sentinel",
                _ => "redis",
            }
        }
    }
}

/// The locks of a workload on this kind of store, for a run of this length.
pub(crate) fn locks(kind: StoreKind, length: Duration) -> Vec<LockSpec> {
    let lock = |name: &str, kind, permits| LockSpec { name: name.to_owned(), kind, permits, period_ms: None };
    let mut locks = vec![
        lock("mutex", LockKind::Mutex, None),
        lock("mutex-of-processes", LockKind::Mutex, None),
        lock("reentrant", LockKind::Reentrant, None),
        LockSpec { period_ms: Some(millis(PERIOD)), ..lock("once", LockKind::OncePer, None) },
    ];
    if kind == StoreKind::Quorum {
        return locks;
    }
    locks.extend([
        lock("rwlock", LockKind::RwLock, None),
        lock("semaphore", LockKind::Semaphore, Some(3)),
        lock("election", LockKind::Election, None),
        lock("barrier", LockKind::Barrier, Some(3)),
    ]);
    let rounds = (length.as_secs() / LATCH_ROUND.as_secs() + 1).min(MAX_LATCHES);
    locks.extend((0..rounds).map(|round| lock(&format!("latch-{round}"), LockKind::Latch, Some(3))));
    locks
}

/// The faults that can be caused to a worker on this kind of store.
pub(crate) fn faults(kind: StoreKind) -> &'static [FaultKind] {
    match kind {
        StoreKind::Sqlite => &[FaultKind::Kill, FaultKind::Stop],
        _ => &[
            FaultKind::Kill,
            FaultKind::Cut,
            FaultKind::Partition,
            FaultKind::Stop,
            FaultKind::SwallowReplies,
            FaultKind::Delay,
        ],
    }
}
