//! The sessions whose death would bring the lock closer to a waiter.

use crate::{Moment, Predecessor, SessionId};
use std::time::Duration;

/// The sessions in the order of the last reply, and until when each is alive without another heartbeat; `None` if that is
/// not known yet.
#[derive(Debug, Default)]
pub(super) struct WatchedSessions(Vec<(SessionId, Option<Moment>)>);

impl WatchedSessions {
    /// Replaces the sessions with those that a reply named, to a request that was sent at `sent_at`.
    pub(super) fn update(
        &mut self,
        predecessor: Option<Predecessor>,
        others: impl Iterator<Item = SessionId>,
        sent_at: Moment,
    ) {
        let known = std::mem::take(&mut self.0);
        let until = |session| known.iter().find(|(other, _)| *other == session).and_then(|(_, until)| *until);
        let first = predecessor.map(|Predecessor { session, alive_ms }| {
            let reported = alive_ms.map(|alive_ms| sent_at + Duration::from_millis(alive_ms));
            (session, reported.or(until(session)))
        });
        self.0.extend(first);
        self.0.extend(others.map(|session| (session, until(session))));
    }

    /// The session to name in the next request, and until when it is alive: the first one of which that is not known, or
    /// else the one that would be dead first. The reply continues from that session, so naming the first also reaches
    /// holders beyond those of a single reply, of the holds that end first.
    pub(super) fn next(&self) -> Option<(SessionId, Option<Moment>)> {
        self.0.iter().min_by_key(|(_, alive_until)| *alive_until).copied()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
