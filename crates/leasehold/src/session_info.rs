//! The sessions of a store, as they have told of themselves.

use crate::engine::Engine;
use crate::error::InspectError;
use leasehold_core::{Lock, SessionEntry, SessionId, SessionMetadata};
use std::time::{Duration, SystemTime};

/// One session of a store, as it has told of itself: [`Client::sessions`](crate::Client::sessions).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").session_label("zone", "eu-1").connect().await?;
/// for session in client.sessions().await? {
///     let Some(about) = &session.about else { continue };
///     let state = if session.alive_for.is_some() { "lives" } else { "is dead" };
///     println!("{} on {} (process {}) {state}, {} locks", about.program, about.host, about.pid, session.locks.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Which session. In a store of several servers those of one client have one name and are told as one: those that are
    /// alive, and beside them those that have lapsed.
    pub session: SessionId,
    /// Who is behind it; nothing, where another version has written it in a way that this one cannot read.
    pub about: Option<SessionMetadata>,
    /// How long it is alive if it beats no more; nothing if it is dead, and not forgotten yet.
    /// [`Duration::MAX`] where the store knows by itself who lives, and nobody beats.
    pub alive_for: Option<Duration>,
    /// The locks that it held when it last said so.
    pub locks: Vec<Lock>,
}

impl SessionInfo {
    fn of(entry: SessionEntry) -> Self {
        Self {
            session: entry.session,
            about: SessionMetadata::from_json(&entry.about),
            alive_for: entry.alive_ms.map(|ms| match ms {
                u64::MAX => Duration::MAX,
                ms => Duration::from_millis(ms),
            }),
            locks: entry.held,
        }
    }

    /// Since when it is there, by the wall clock of its machine.
    pub fn since(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.about.as_ref()?.started_ms))
    }
}

/// The sessions of a store. One that keeps none says so: that there were none would not be true.
pub(crate) async fn sessions(engine: &Engine) -> Result<Vec<SessionInfo>, InspectError> {
    let entries = engine.list_sessions().await.map_err(|failed| failed.fault)?;
    Ok(entries.into_iter().map(SessionInfo::of).collect())
}
