//! What a store can be asked about sessions, and what it answers: plain data.
//!
//! A session is one client for as long as it beats. Its record says who it is, until when it is alive if it beats no
//! more, and which locks it holds, for people to read. The meaning of every operation is
//! [`model::Sessions`](crate::model::Sessions).

use crate::{Label, Lock, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who is behind a session, for people to read.
///
/// ```
/// use leasehold_core::{About, Label};
///
/// let about = About {
///     label: Label::new("web-3/4711/billing")?,
///     host: "web-3".into(),
///     pid: 4711,
///     program: "billing".into(),
///     version: "1.4.0".into(),
///     started_ms: 1_762_000_000_123,
///     labels: [("zone".to_owned(), "eu-1".to_owned())].into(),
/// };
/// assert_eq!(About::from_json(&about.to_json()), Some(about));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// What others see of it where it holds a lock.
    pub label: Label,
    /// The name of its machine.
    pub host: String,
    /// The number of its process there.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The version of the library that it uses.
    pub version: String,
    /// When it began, by the wall clock of its machine, in milliseconds since 1970.
    pub started_ms: u64,
    /// What its user wants people to know beside that.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl About {
    /// The longest text that a store has to keep, in bytes.
    pub const MAX_LEN: usize = 4096;

    /// As a store keeps it.
    pub fn to_json(&self) -> String {
        // Nothing in it can fail: its keys are texts.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What [`to_json`](Self::to_json) wrote, here or by another version.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// One operation on the sessions of a store.
///
/// ```
/// use leasehold_core::model::Sessions;
/// use leasehold_core::{Beat, Beaten, SessionId, SessionOp, SessionReply};
///
/// let session = SessionId::from_random([7; 12]);
/// let beat = |begin| SessionOp::Beat(Beat { session, alive_ms: 10_000, begin, held: vec![], left: vec![] });
/// let mut sessions = Sessions::default();
///
/// // Nobody who has not begun, or has lapsed, is alive by a beat.
/// assert_eq!(sessions.apply(1_000, &beat(None)), SessionReply::Beat(Beaten::Lapsed));
/// assert_eq!(sessions.apply(1_000, &beat(Some("{}".into()))), SessionReply::Beat(Beaten::Alive));
/// assert_eq!(sessions.apply(9_000, &beat(None)), SessionReply::Beat(Beaten::Alive));
/// assert_eq!(sessions.alive_ms(10_000, session), Some(9_000));
/// assert_eq!(sessions.apply(19_001, &beat(None)), SessionReply::Beat(Beaten::Lapsed));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionOp {
    /// Begin a session, or keep it alive.
    Beat(Beat),
    /// End a session in order: it holds nothing any more.
    End(SessionId),
    /// Which sessions there are. Changes nothing.
    List,
}

/// Begin a session, or keep it alive.
///
/// [`SessionOp`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Which session.
    pub session: SessionId,
    /// How long it is alive from now, in milliseconds.
    pub alive_ms: u64,
    /// Set, to what people should read ([`About::to_json`]), to begin the session. Without it a session that has lapsed
    /// stays lapsed.
    pub begin: Option<String>,
    /// Locks that it holds since the last beat, for people to find.
    pub held: Vec<Lock>,
    /// Locks that it does not hold any more.
    pub left: Vec<Lock>,
}

/// What a store answers about sessions.
///
/// [`SessionOp`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionReply {
    /// To a [`SessionOp::Beat`].
    Beat(Beaten),
    /// To a [`SessionOp::End`].
    End,
    /// To a [`SessionOp::List`].
    List(Vec<SessionEntry>),
}

/// What became of a [`Beat`].
///
/// [`SessionOp`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beaten {
    /// The session is alive for as long as was asked, at least.
    Alive,
    /// It has lapsed, or the store has lost its data: whatever lived with it may be others' by now.
    Lapsed,
}

/// One session, as people see it.
///
/// ```
/// use leasehold_core::{SessionEntry, SessionId};
///
/// let entry = SessionEntry { session: SessionId::from_random([7; 12]), alive_ms: None, about: "{}".into(), held: vec![] };
/// assert!(entry.alive_ms.is_none(), "dead, and not forgotten yet");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEntry {
    /// Which session.
    pub session: SessionId,
    /// How long it is alive if it beats no more, in milliseconds; `None` if it is dead, or has ended and left a hold that
    /// [outlives it](crate::Life::Lease). A store that knows by itself who is alive, and needs no beats, says
    /// `Some(u64::MAX)` of the living.
    pub alive_ms: Option<u64>,
    /// Who is behind it ([`About::from_json`]); empty if it has never said so.
    pub about: String,
    /// The locks that it held when it last said so; those that it holds now, where the store knows by itself.
    pub held: Vec<Lock>,
}
