//! The operations on sessions that a store executes, and their replies: plain data.
//!
//! A session is one client for as long as it sends heartbeats. Its record says what the client is, until when
//! it is alive without another heartbeat, and which locks it holds, for people to read. The meaning of every
//! operation is defined by [`model::Sessions`](crate::model::Sessions).

use crate::{Label, Lock, MergeStatistics, SessionId, Skipped, StatisticsList};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A description of the client behind a session, for people to read.
///
/// ```
/// use leasehold_core::{SessionMetadata, Label};
///
/// let metadata = SessionMetadata {
///     label: Label::new("web-3/4711/billing")?,
///     host: "web-3".into(),
///     pid: 4711,
///     program: "billing".into(),
///     version: "1.4.0".into(),
///     started_ms: 1_762_000_000_123,
///     labels: [("zone".to_owned(), "eu-1".to_owned())].into(),
/// };
/// assert_eq!(SessionMetadata::from_json(&metadata.to_json()), Some(metadata));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMetadata {
    /// The label that others see on the locks that it holds.
    pub label: Label,
    /// The name of its machine.
    pub host: String,
    /// The id of its process there.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The version of the library that it uses.
    pub version: String,
    /// When it started, by the wall clock of its machine, in milliseconds since 1970.
    pub started_ms: u64,
    /// Further labels from its user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl SessionMetadata {
    /// The longest JSON text that a store must accept, in bytes.
    pub const MAX_LEN: usize = 4096;

    /// The JSON text that a store keeps.
    pub fn to_json(&self) -> String {
        // Cannot fail: all keys are texts.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the output of [`to_json`](Self::to_json), of this or another version.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// One operation on the sessions of a store, or on its statistics.
///
/// ```
/// use leasehold_core::model::Sessions;
/// use leasehold_core::{Heartbeat, HeartbeatReply, SessionId, SessionOp, SessionReply};
///
/// let session = SessionId::from_random([7; 12]);
/// let beat = |begin| {
///     let (acquired, released, activity) = (vec![], vec![], None);
///     let (alive_ms, renew_listing) = (10_000, true);
///     SessionOp::Heartbeat(Heartbeat { session, alive_ms, begin, acquired, released, renew_listing, activity })
/// };
/// let mut sessions = Sessions::default();
///
/// // A heartbeat alone neither begins a session nor revives one that has lapsed.
/// assert_eq!(sessions.apply(1_000, &beat(None)), SessionReply::Heartbeat(HeartbeatReply::Lapsed));
/// assert_eq!(sessions.apply(1_000, &beat(Some("{}".into()))), SessionReply::Heartbeat(HeartbeatReply::Alive));
/// assert_eq!(sessions.apply(9_000, &beat(None)), SessionReply::Heartbeat(HeartbeatReply::Alive));
/// assert_eq!(sessions.alive_ms(10_000, session), Some(9_000));
/// assert_eq!(sessions.apply(19_001, &beat(None)), SessionReply::Heartbeat(HeartbeatReply::Lapsed));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionOp {
    /// Begin a session, or keep it alive.
    Heartbeat(Heartbeat),
    /// End a session in an orderly way: it holds nothing any more.
    End(SessionId),
    /// List the sessions. Changes nothing.
    List,
    /// Look some sessions of the partition up. Changes nothing.
    Find(Vec<SessionId>),
    /// Merge what a client has counted into the statistics of the store. The partition is [`Partition::ONLY`](crate::Partition::ONLY):
    /// a store with several keeps them in that one.
    MergeStatistics(MergeStatistics),
    /// List the statistics of the store, of the same partition. Changes nothing.
    ListStatistics,
}

/// Begin a session, or keep it alive.
///
/// See [`SessionOp`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The session.
    pub session: SessionId,
    /// How long it is alive from now, in milliseconds.
    pub alive_ms: u64,
    /// Set to a description for people ([`SessionMetadata::to_json`]) to begin the session. Without it, a session that
    /// the store does not know counts as lapsed. A session that is remembered as lapsed stays lapsed in either case.
    pub begin: Option<String>,
    /// Locks acquired since the last heartbeat, for people to find.
    pub acquired: Vec<Lock>,
    /// Locks released since the last heartbeat.
    pub released: Vec<Lock>,
    /// Whether to renew the place of the session in what [lists](SessionOp::List) sessions. A store may do so with every
    /// heartbeat, and does so when a session begins. Heartbeats within `alive_ms` after this one may leave it out, and
    /// lengthen the record of the session all the same, so the place must last for that much longer than the record.
    pub renew_listing: bool,
    /// Set to replace what the client reports that it does, for people to read; an empty text removes it. A store keeps the
    /// text as it is, of [`MAX_ACTIVITY`](Self::MAX_ACTIVITY) bytes at most, for as long as the record.
    pub activity: Option<String>,
}

impl Heartbeat {
    /// The longest activity that a store must accept, in bytes.
    pub const MAX_ACTIVITY: usize = 8192;
}

/// The reply of a store about sessions.
///
/// See [`SessionOp`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionReply {
    /// To a [`SessionOp::Heartbeat`].
    Heartbeat(HeartbeatReply),
    /// To a [`SessionOp::End`].
    End,
    /// To a [`SessionOp::List`] or a [`SessionOp::Find`].
    List(SessionList),
    /// To a [`SessionOp::MergeStatistics`].
    MergeStatistics,
    /// To a [`SessionOp::ListStatistics`].
    Statistics(StatisticsList),
}

/// Sessions of a store, and what was found in their place.
///
/// ```
/// use leasehold_core::{SessionList, Skipped};
///
/// let mut list = SessionList::default();
/// list.skipped.add(|| "the index has a member that is no session".into());
/// assert_eq!(list.skipped.count, 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionList {
    /// The sessions.
    pub entries: Vec<SessionEntry>,
    /// What is in the place of sessions and cannot be read.
    pub skipped: Skipped,
}

impl From<Vec<SessionEntry>> for SessionList {
    fn from(entries: Vec<SessionEntry>) -> Self {
        Self { entries, skipped: Skipped::default() }
    }
}

/// The result of a [`Heartbeat`].
///
/// See [`SessionOp`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// The session is alive for at least as long as requested.
    Alive,
    /// The session has lapsed: other clients may have what lived with it. Or, unless the heartbeat begins the session, the
    /// store does not know it, perhaps because it has lost its data.
    Lapsed,
}

/// One session in a listing.
///
/// ```
/// use leasehold_core::{SessionEntry, SessionId};
///
/// let (session, metadata, activity) = (SessionId::from_random([7; 12]), "{}".to_owned(), String::new());
/// let entry = SessionEntry { session, alive_ms: None, metadata, held: vec![], activity };
/// assert!(entry.alive_ms.is_none(), "dead, and not forgotten yet");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEntry {
    /// The session.
    pub session: SessionId,
    /// How long it is alive without another heartbeat, in milliseconds; `None` if it is dead, or has ended
    /// and left a hold that [outlives it](crate::Liveness::Lease). A store that tracks the life of sessions
    /// itself, without heartbeats, returns `Some(u64::MAX)` for live ones.
    pub alive_ms: Option<u64>,
    /// The description of its client ([`SessionMetadata::from_json`]); empty if it has never sent one.
    pub metadata: String,
    /// The locks that it held as of its last report, or that it holds now, if the store tracks them itself.
    pub held: Vec<Lock>,
    /// What its client reported that it does ([`Heartbeat::activity`]); empty if it reported nothing.
    pub activity: String,
}
