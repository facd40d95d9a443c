//! Where the sessions of a part of a store are at home: one server, or one slot of a cluster.
//!
//! Owns which of the keys and channels of [`KeySpace`] a session has there. A script that looks at a session does so beside
//! the lock, so in a cluster there is a record in each slot.

use leasehold_core::{KeySpace, Kind, LockKeys, SessionId};
use std::borrow::Cow;

/// Prefix of a channel that belongs to a slot, as `publish.lua` takes it. No name contains it.
const OF_SLOT: char = '\n';

/// The sessions of one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Home<'a> {
    pub(super) keys: &'a KeySpace,
    /// Set in a cluster.
    pub(super) slot: Option<u16>,
}

impl Home<'_> {
    /// The record of a session.
    pub(super) fn session(&self, session: SessionId) -> String {
        match self.slot {
            None => self.keys.session(session),
            Some(slot) => self.keys.session_in(slot, session),
        }
    }

    /// The index of all sessions.
    pub(super) fn sessions(&self) -> String {
        match self.slot {
            None => self.keys.sessions(),
            Some(slot) => self.keys.sessions_in(slot),
        }
    }

    /// The channel of a session's mailbox.
    pub(super) fn mailbox(&self, session: SessionId) -> String {
        match self.slot {
            None => self.keys.mailbox(session),
            Some(slot) => format!("{}{session}", self.keys.mailboxes_in(slot)),
        }
    }

    /// What the channels of all mailboxes begin with, as the scripts are told.
    pub(super) fn mailboxes(&self) -> Cow<'_, str> {
        match self.slot {
            None => self.keys.mailboxes().into(),
            Some(slot) => format!("{OF_SLOT}{}", self.keys.mailboxes_in(slot)).into(),
        }
    }

    /// The channel on which is said that a lock is free, or who leads; `None` for kinds of which nothing is said.
    pub(super) fn said(&self, kind: Kind, keys: &LockKeys) -> Option<String> {
        match kind {
            Kind::Reentrant => Some(keys.released_channel()),
            Kind::Election => Some(self.keys.leader_channel(keys)),
            _ => None,
        }
    }

    /// Another channel, as the scripts are told.
    pub(super) fn channel(&self, channel: String) -> String {
        match self.slot {
            None => channel,
            Some(_) => format!("{OF_SLOT}{channel}"),
        }
    }
}
