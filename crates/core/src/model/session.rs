//! The sessions of a store.
//!
//! 1. A session that has lapsed is never alive again: only a fresh one can begin.
//! 2. A beat only raises: a late one never brings the end nearer.
//! 3. The record outlives the session for a while, so that somebody can find and end what the dead one had.

use crate::{
    Beat, Beaten, Lock, SESSION_REMEMBERED, SessionEntry, SessionId, SessionOp, SessionReply, whole_millis,
};
use std::collections::{BTreeMap, BTreeSet};

/// How long a session is alive, in milliseconds; nothing if it is dead.
pub type Alive<'a> = &'a dyn Fn(SessionId) -> Option<u64>;

/// A world in which nobody dies.
///
/// [`MutexState`](super::MutexState) shows it in use.
pub const fn everybody(_: SessionId) -> Option<u64> {
    Some(u64::MAX)
}

/// All sessions of a store.
///
/// [`SessionOp`] shows it in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sessions {
    /// Their records.
    pub records: BTreeMap<SessionId, SessionRecord>,
}

/// What a store knows of a session.
///
/// [`Sessions`] has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Until when it is alive, in milliseconds of the store's clock.
    pub alive_until_ms: u64,
    /// When the record itself expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// Who is behind it.
    pub about: String,
    /// The locks that it holds.
    pub held: BTreeSet<Lock>,
}

impl SessionRecord {
    /// How long the record of a session is kept that is alive for `alive_ms` (3).
    pub fn kept_ms(alive_ms: u64) -> u64 {
        alive_ms.saturating_mul(2).saturating_add(whole_millis(SESSION_REMEMBERED))
    }
}

impl Sessions {
    /// Executes one operation at `now_ms` milliseconds of the store's clock.
    pub fn apply(&mut self, now_ms: u64, op: &SessionOp) -> SessionReply {
        self.records.retain(|_, record| now_ms <= record.expires_ms);
        match op {
            SessionOp::Beat(beat) => SessionReply::Beat(self.beat(now_ms, beat)),
            SessionOp::End(session) => {
                self.records.remove(session);
                SessionReply::End
            }
            SessionOp::List => SessionReply::List(self.list(now_ms)),
        }
    }

    /// How long a session is alive if it beats no more, in milliseconds; nothing if it is dead.
    pub fn alive_ms(&self, now_ms: u64, session: SessionId) -> Option<u64> {
        // As Redis does: what ends at an instant is still there in its millisecond.
        self.records.get(&session)?.alive_until_ms.checked_sub(now_ms)
    }

    fn beat(&mut self, now_ms: u64, beat: &Beat) -> Beaten {
        let known = self.records.contains_key(&beat.session);
        if (known || beat.begin.is_none()) && self.alive_ms(now_ms, beat.session).is_none() {
            return Beaten::Lapsed;
        }
        let record = self.records.entry(beat.session).or_insert_with(|| SessionRecord {
            alive_until_ms: 0,
            expires_ms: 0,
            about: String::new(),
            held: BTreeSet::new(),
        });
        record.alive_until_ms = record.alive_until_ms.max(now_ms.saturating_add(beat.alive_ms));
        record.expires_ms =
            record.expires_ms.max(now_ms.saturating_add(SessionRecord::kept_ms(beat.alive_ms)));
        if let Some(about) = &beat.begin {
            record.about.clone_from(about);
        }
        for lock in &beat.left {
            record.held.remove(lock);
        }
        record.held.extend(beat.held.iter().cloned());
        Beaten::Alive
    }

    fn list(&self, now_ms: u64) -> Vec<SessionEntry> {
        let entry = |(session, record): (&SessionId, &SessionRecord)| SessionEntry {
            session: *session,
            alive_ms: self.alive_ms(now_ms, *session),
            about: record.about.clone(),
            held: record.held.iter().cloned().collect(),
        };
        self.records.iter().map(entry).collect()
    }
}
