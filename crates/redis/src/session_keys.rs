//! Keys and channels of sessions, and other keys that locks share, in one partition of a store: one server, or one slot
//! of a cluster.
//!
//! Chooses among the keys and channels of [`KeySpace`]. A script can read the record of a session only in the slot of
//! its lock, so in a cluster each slot has a record of its own.

use leasehold_core::{KeySpace, Kind, LockKeys, SessionId};
use std::borrow::Cow;

/// Prefix that makes the scripts publish with SPUBLISH: the channel belongs to a slot. No name contains it.
const SHARDED: char = '\n';

/// The sessions of one partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionKeys<'a> {
    pub(crate) keys: &'a KeySpace,
    /// Set in a cluster.
    pub(crate) slot: Option<u16>,
    /// Set while the slot moves and may have moved the watermark alone.
    pub(crate) without_watermark: bool,
}

impl SessionKeys<'_> {
    /// The record of a session.
    pub(crate) fn session(&self, session: SessionId) -> String {
        match self.slot {
            None => self.keys.session(session),
            Some(slot) => self.keys.session_in(slot, session),
        }
    }

    /// The index of all sessions.
    pub(crate) fn sessions(&self) -> String {
        match self.slot {
            None => self.keys.session_index(),
            Some(slot) => self.keys.session_index_in(slot),
        }
    }

    /// The statistics.
    pub(crate) fn statistics(&self) -> String {
        self.keys.statistics(self.slot)
    }

    /// The greatest fencing token of idle locks; the lock's own key for a script that is not to use it.
    pub(crate) fn watermark<'k>(&'k self, keys: &'k LockKeys) -> Cow<'k, str> {
        match self.slot {
            _ if self.without_watermark => keys.name().into(),
            None => self.keys.watermark().into(),
            Some(slot) => self.keys.watermark_in(slot).into(),
        }
    }

    /// The channel of a session's mailbox.
    pub(crate) fn mailbox(&self, session: SessionId) -> String {
        match self.slot {
            None => self.keys.mailbox(session),
            Some(slot) => format!("{}{session}", self.keys.mailbox_prefix_in(slot)),
        }
    }

    /// Prefix of all mailbox channels, as passed to the scripts.
    pub(crate) fn mailbox_prefix(&self) -> Cow<'_, str> {
        match self.slot {
            None => self.keys.mailbox_prefix().into(),
            Some(slot) => format!("{SHARDED}{}", self.keys.mailbox_prefix_in(slot)).into(),
        }
    }

    /// The channel on which the release of a lock, or the leader of an election, is published; `None` for other
    /// kinds.
    pub(crate) fn announcement_channel(&self, kind: Kind, keys: &LockKeys) -> Option<String> {
        match kind {
            Kind::Reentrant => Some(keys.redisson_channel()),
            Kind::Election => Some(self.keys.leader_channel(keys)),
            _ => None,
        }
    }

    /// Any other channel, as passed to the scripts.
    pub(crate) fn script_channel(&self, channel: String) -> String {
        match self.slot {
            None => channel,
            Some(_) => format!("{SHARDED}{channel}"),
        }
    }
}
