//! When sessions end at the store.

use crate::event::session_ends;
use crate::world::time::{Clock, Instant};
use leasehold_core::SessionId;
use leasehold_core::model::Sessions;
use std::collections::BTreeMap;

/// When sessions end at the store, as its operations have shown.
#[derive(Debug, Default)]
pub(super) struct SessionEnds {
    known: BTreeMap<SessionId, Instant>,
    /// Sessions that the store has forgotten.
    forgotten: BTreeMap<SessionId, SessionEnd>,
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionEnd {
    pub(super) at: Instant,
    /// Set if its process ended it, which no waiter can foresee.
    pub(super) is_explicit: bool,
}

impl SessionEnds {
    /// The store knows these sessions now.
    pub(super) fn update(&mut self, at: Instant, sessions: &Sessions, clock: &Clock) {
        let now_ms = clock.reading_us(at) / 1000;
        // The store has no record that has expired, and then spares the session because of its holds.
        let has_expired = |session: &SessionId| {
            sessions.records.get(session).is_none_or(|record| record.expires_ms < now_ms)
        };
        let mut now = session_ends(sessions, clock);
        now.retain(|session, _| !has_expired(session));
        for (session, end) in self.known.iter().filter(|(session, _)| !now.contains_key(session)) {
            self.forgotten.insert(*session, SessionEnd { at: at.min(*end), is_explicit: at < *end });
        }
        self.known = now;
    }

    /// When a session ends or ended.
    pub(super) fn get(&self, session: SessionId) -> Option<SessionEnd> {
        let known = self.known.get(&session).map(|end| SessionEnd { at: *end, is_explicit: false });
        known.or_else(|| self.forgotten.get(&session).copied())
    }

    /// Whether the store knows the session.
    pub(super) fn is_known(&self, session: SessionId) -> bool {
        self.known.contains_key(&session)
    }

    /// The state of the store is unknown.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.forgotten.clear();
    }
}
