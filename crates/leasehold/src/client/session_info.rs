//! The sessions of a store, as reported by their clients.

use crate::client::listing::Listing;
use crate::engine::Engine;
use crate::engine::activity::{ActivityReport, ReportedWait};
use crate::error::InspectError;
use crate::store::Fault;
use leasehold_core::{Lock, LockMode, Partition, SessionEntry, SessionId, SessionList, SessionMetadata};
use std::time::{Duration, SystemTime};

/// One session of a store, as reported by itself: [`Client::sessions`](crate::Client::sessions).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").session_label("zone", "eu-1").connect().await?;
/// for session in client.sessions().await? {
///     let Some(metadata) = &session.metadata else { continue };
///     let state = if session.alive_for.is_some() { "alive" } else { "dead" };
///     println!("{} on {} (process {}): {state}, {} locks", metadata.program, metadata.host, metadata.pid, session.locks.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id. In a store of several servers, a client's sessions share one id and are listed as
    /// one; those that have lapsed are listed separately.
    pub id: SessionId,
    /// The client's own description; `None` if another version wrote it in a format that this one cannot
    /// read.
    pub metadata: Option<SessionMetadata>,
    /// How long it lives without another heartbeat; `None` if it is dead, and not removed yet.
    /// [`Duration::MAX`] if the store itself knows which processes live, and no heartbeats are sent.
    pub alive_for: Option<Duration>,
    /// The locks it held at its last report.
    pub locks: Vec<Lock>,
    /// The waits of its tasks that it reports: those that last for 0.3 s or longer.
    pub waits: Vec<SessionWait>,
}

/// A wait for a lock that a session reports: [`SessionInfo::waits`].
///
/// ```
/// fn names(session: &leasehold::inspect::SessionInfo) -> Vec<&str> {
///     session.waits.iter().map(|wait| wait.lock.name.as_str()).collect()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionWait {
    /// The lock.
    pub lock: Lock,
    /// The mode in which it is requested.
    pub mode: LockMode,
    /// When the wait began, by the wall clock of the session's machine.
    pub since: SystemTime,
}

impl SessionWait {
    /// `None` if another version wrote it in a format that this one cannot read.
    fn from_report(wait: &ReportedWait) -> Option<Self> {
        Some(Self {
            lock: wait.lock()?,
            mode: LockMode::parse(&wait.mode)?,
            since: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(wait.since_ms))?,
        })
    }
}

impl SessionInfo {
    fn from_entry(entry: SessionEntry) -> Self {
        Self {
            id: entry.session,
            metadata: SessionMetadata::from_json(&entry.metadata),
            alive_for: entry.alive_ms.map(|ms| match ms {
                u64::MAX => Duration::MAX,
                ms => Duration::from_millis(ms),
            }),
            locks: entry.held,
            waits: ActivityReport::parse(&entry.activity)
                .0
                .iter()
                .flat_map(|report| &report.waits)
                .filter_map(SessionWait::from_report)
                .collect(),
        }
    }

    /// Since when it waits for a lock in that mode, by the wall clock of its machine: of each of its waits, the longest first.
    pub(crate) fn waits_since(&self, lock: &Lock, mode: LockMode) -> Vec<SystemTime> {
        let its = self.waits.iter().filter(|wait| wait.lock == *lock && wait.mode == mode);
        let mut since: Vec<_> = its.map(|wait| wait.since).collect();
        since.sort_unstable();
        since
    }

    /// Returns when it started, by the wall clock of its machine.
    pub fn since(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.metadata.as_ref()?.started_ms))
    }
}

/// The sessions of a store. A store that keeps none fails: an empty list would be false.
pub(crate) async fn sessions(engine: &Engine) -> Result<Listing<SessionInfo>, InspectError> {
    let list = engine.list_sessions().await.map_err(|failed| failed.fault)?;
    Ok(listing(list))
}

/// Looks some sessions of a partition up. Those that the store does not know are left out.
pub(crate) async fn find(
    engine: &Engine,
    partition: Partition,
    sessions: Vec<SessionId>,
) -> Result<Listing<SessionInfo>, Fault> {
    let list = engine.find_sessions(partition, sessions).await.map_err(|failed| failed.fault)?;
    Ok(listing(list))
}

fn listing(list: SessionList) -> Listing<SessionInfo> {
    Listing::new(list.entries.into_iter().map(SessionInfo::from_entry).collect(), list.skipped)
}
