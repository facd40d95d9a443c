//! The sessions of a store.
//!
//! 1. A session that has lapsed is never alive again: only a fresh one can begin.
//! 2. A heartbeat only raises: a late one never brings the end closer.
//! 3. The record outlives the session for a while, so that another client can find and end what the dead
//!    session held.

use crate::model::StatisticsTable;
use crate::{
    DEAD_SESSION_TTL, Heartbeat, HeartbeatReply, Lock, SessionEntry, SessionId, SessionOp, SessionReply,
    Skipped, StatisticsList, whole_millis,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a store knows about the life of a session.
///
/// Returned by [`Sessions::status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStatus {
    /// It is alive for that many milliseconds without another heartbeat.
    Alive(u64),
    /// It has sent no heartbeat for too long, and its own client knows that as well.
    Lapsed,
    /// There is no record of it. It has not begun, since its client needs it only to extend a hold or to wait; or it ended,
    /// died long ago, or was forgotten. It counts as alive for as long as its client may rely on a hold that was never
    /// extended.
    Unknown,
}

/// Looks up the sessions of a store.
pub type SessionLookup<'a> = &'a dyn Fn(SessionId) -> SessionStatus;

/// Treats every session as alive.
///
/// See [`LockState`](super::LockState) for an example.
pub const fn all_alive(_: SessionId) -> SessionStatus {
    SessionStatus::Alive(u64::MAX)
}

/// All sessions of a store, and the statistics of their clients.
///
/// See [`SessionOp`] for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sessions {
    /// Their records.
    pub records: BTreeMap<SessionId, SessionRecord>,
    /// The statistics.
    pub statistics: StatisticsTable,
}

/// The record of a session.
///
/// Part of [`Sessions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Until when it is alive, in milliseconds of the store's clock.
    pub alive_until_ms: u64,
    /// When the record itself expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The description of its client.
    pub metadata: String,
    /// The locks that it holds.
    pub held: BTreeSet<Lock>,
    /// What its client reported that it does; empty if nothing.
    pub activity: String,
}

impl SessionRecord {
    /// How long the record is kept for a session that is alive for `alive_ms` (3).
    pub fn ttl_ms(alive_ms: u64) -> u64 {
        alive_ms.saturating_mul(2).saturating_add(whole_millis(DEAD_SESSION_TTL))
    }
}

impl Sessions {
    /// Executes one operation at `now_ms` milliseconds of the store's clock.
    pub fn apply(&mut self, now_ms: u64, op: &SessionOp) -> SessionReply {
        self.records.retain(|_, record| now_ms <= record.expires_ms);
        match op {
            SessionOp::Heartbeat(heartbeat) => SessionReply::Heartbeat(self.heartbeat(now_ms, heartbeat)),
            SessionOp::End(session) => {
                self.records.remove(session);
                SessionReply::End
            }
            SessionOp::List => SessionReply::List(self.list(now_ms).into()),
            SessionOp::Find(sessions) => {
                let mut found = self.list(now_ms);
                found.retain(|entry| sessions.contains(&entry.session));
                SessionReply::List(found.into())
            }
            SessionOp::MergeStatistics(merge) => {
                self.statistics.merge(now_ms, merge);
                SessionReply::MergeStatistics
            }
            SessionOp::ListStatistics => {
                self.statistics.expire(now_ms);
                let classes = self.statistics.classes.clone().into_iter().collect();
                SessionReply::Statistics(StatisticsList { classes, skipped: Skipped::default() })
            }
        }
    }

    /// How long a session is alive without another heartbeat, in milliseconds; `None` if it is dead.
    pub fn alive_ms(&self, now_ms: u64, session: SessionId) -> Option<u64> {
        // As in Redis, a key still exists in the millisecond in which it expires.
        self.records.get(&session)?.alive_until_ms.checked_sub(now_ms)
    }

    /// What is known about the life of a session at `now_ms`.
    ///
    /// ```
    /// use leasehold_core::SessionId;
    /// use leasehold_core::model::{Sessions, SessionStatus};
    ///
    /// assert_eq!(Sessions::default().status(1_000, SessionId::from_random([7; 12])), SessionStatus::Unknown);
    /// ```
    pub fn status(&self, now_ms: u64, session: SessionId) -> SessionStatus {
        match (self.alive_ms(now_ms, session), self.records.get(&session)) {
            (Some(alive_ms), _) => SessionStatus::Alive(alive_ms),
            (None, Some(record)) if now_ms <= record.expires_ms => SessionStatus::Lapsed,
            _ => SessionStatus::Unknown,
        }
    }

    fn heartbeat(&mut self, now_ms: u64, heartbeat: &Heartbeat) -> HeartbeatReply {
        let known = self.records.contains_key(&heartbeat.session);
        if (known || heartbeat.begin.is_none()) && self.alive_ms(now_ms, heartbeat.session).is_none() {
            return HeartbeatReply::Lapsed;
        }
        let record = self.records.entry(heartbeat.session).or_insert_with(|| SessionRecord {
            alive_until_ms: 0,
            expires_ms: 0,
            metadata: String::new(),
            held: BTreeSet::new(),
            activity: String::new(),
        });
        record.alive_until_ms = record.alive_until_ms.max(now_ms.saturating_add(heartbeat.alive_ms));
        record.expires_ms =
            record.expires_ms.max(now_ms.saturating_add(SessionRecord::ttl_ms(heartbeat.alive_ms)));
        if let Some(metadata) = &heartbeat.begin {
            record.metadata.clone_from(metadata);
        }
        for lock in &heartbeat.released {
            record.held.remove(lock);
        }
        record.held.extend(heartbeat.acquired.iter().cloned());
        if let Some(activity) = &heartbeat.activity {
            record.activity.clone_from(activity);
        }
        HeartbeatReply::Alive
    }

    fn list(&self, now_ms: u64) -> Vec<SessionEntry> {
        let entry = |(session, record): (&SessionId, &SessionRecord)| SessionEntry {
            session: *session,
            alive_ms: self.alive_ms(now_ms, *session),
            metadata: record.metadata.clone(),
            held: record.held.iter().cloned().collect(),
            activity: record.activity.clone(),
        };
        self.records.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE_MS: u64 = 10_000;
    const START_MS: u64 = 1_762_000_000_000;

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    fn heartbeat(alive_ms: u64) -> Heartbeat {
        Heartbeat {
            session: session(1),
            alive_ms,
            begin: None,
            acquired: Vec::new(),
            released: Vec::new(),
            renew_listing: false,
            activity: None,
        }
    }

    fn begin() -> Heartbeat {
        Heartbeat { begin: Some("{}".into()), ..heartbeat(ALIVE_MS) }
    }

    fn beaten(sessions: &mut Sessions, at_ms: u64, heartbeat: Heartbeat) -> HeartbeatReply {
        match sessions.apply(START_MS + at_ms, &SessionOp::Heartbeat(heartbeat)) {
            SessionReply::Heartbeat(beaten) => beaten,
            other => panic!("to a beat: {other:?}"),
        }
    }

    fn alive_ms(sessions: &Sessions, at_ms: u64) -> Option<u64> {
        sessions.alive_ms(START_MS + at_ms, session(1))
    }

    fn listed(sessions: &mut Sessions, at_ms: u64) -> Vec<SessionEntry> {
        match sessions.apply(START_MS + at_ms, &SessionOp::List) {
            SessionReply::List(list) => list.entries,
            other => panic!("to a list: {other:?}"),
        }
    }

    #[test]
    fn a_lapsed_session_stays_lapsed_whatever_arrives() {
        let mut sessions = Sessions::default();
        assert_eq!(beaten(&mut sessions, 0, begin()), HeartbeatReply::Alive);
        assert_eq!(
            alive_ms(&sessions, ALIVE_MS),
            Some(0),
            "it is still alive in the millisecond in which it ends"
        );
        assert_eq!(alive_ms(&sessions, ALIVE_MS + 1), None);
        for late in [heartbeat(ALIVE_MS), begin(), heartbeat(u64::MAX)] {
            assert_eq!(beaten(&mut sessions, ALIVE_MS + 1, late), HeartbeatReply::Lapsed);
            assert_eq!(alive_ms(&sessions, ALIVE_MS + 1), None);
        }
    }

    #[test]
    fn a_session_that_has_not_begun_is_not_alive() {
        let mut sessions = Sessions::default();
        assert_eq!(beaten(&mut sessions, 0, heartbeat(ALIVE_MS)), HeartbeatReply::Lapsed);
        assert_eq!(listed(&mut sessions, 0), []);
    }

    #[test]
    fn a_late_heartbeat_only_extends() {
        let mut sessions = Sessions::default();
        beaten(&mut sessions, 0, begin());
        beaten(&mut sessions, 4_000, heartbeat(ALIVE_MS));
        assert_eq!(beaten(&mut sessions, 4_000, heartbeat(1)), HeartbeatReply::Alive);
        assert_eq!(alive_ms(&sessions, 4_000), Some(ALIVE_MS), "nor does a shorter request shorten it");
        assert_eq!(
            beaten(&mut sessions, 5_000, begin()),
            HeartbeatReply::Alive,
            "a resent beginning is a heartbeat"
        );
        assert_eq!(alive_ms(&sessions, 5_000), Some(ALIVE_MS));
    }

    #[test]
    fn a_session_is_remembered_for_a_while_after_its_death() {
        let mut sessions = Sessions::default();
        beaten(&mut sessions, 0, begin());
        let ttl_ms = SessionRecord::ttl_ms(ALIVE_MS);
        assert!(ttl_ms > ALIVE_MS * 2, "as long again as it lived without a heartbeat, and more");
        let [dead] = listed(&mut sessions, ttl_ms).try_into().expect("it is remembered");
        assert_eq!((dead.session, dead.alive_ms, dead.metadata.as_str()), (session(1), None, "{}"));
        assert_eq!(listed(&mut sessions, ttl_ms + 1), [], "and not for ever");
    }

    #[test]
    fn an_orderly_end_leaves_nothing() {
        let mut sessions = Sessions::default();
        beaten(&mut sessions, 0, begin());
        assert_eq!(sessions.apply(START_MS, &SessionOp::End(session(2))), SessionReply::End);
        assert_eq!(alive_ms(&sessions, 0), Some(ALIVE_MS), "that was another session");
        assert_eq!(sessions.apply(START_MS, &SessionOp::End(session(1))), SessionReply::End);
        assert_eq!(listed(&mut sessions, 0), []);
        assert_eq!(beaten(&mut sessions, 0, heartbeat(ALIVE_MS)), HeartbeatReply::Lapsed);
    }

    #[test]
    fn a_heartbeat_reports_what_is_held() {
        let lock = |name: &str| Lock::mutex(name.parse().expect("a name"));
        let mut sessions = Sessions::default();
        beaten(&mut sessions, 0, Heartbeat { acquired: vec![lock("b"), lock("a")], ..begin() });
        beaten(
            &mut sessions,
            1,
            Heartbeat { acquired: vec![lock("c")], released: vec![lock("b")], ..heartbeat(ALIVE_MS) },
        );
        assert_eq!(listed(&mut sessions, 1)[0].held, [lock("a"), lock("c")]);
        // Released and acquired again between two heartbeats.
        beaten(
            &mut sessions,
            2,
            Heartbeat { acquired: vec![lock("a")], released: vec![lock("a")], ..heartbeat(ALIVE_MS) },
        );
        assert_eq!(listed(&mut sessions, 2)[0].held, [lock("a"), lock("c")]);
    }

    #[test]
    fn an_activity_stays_until_it_is_replaced() {
        let mut sessions = Sessions::default();
        let doing = |activity: Option<&str>| Heartbeat {
            activity: activity.map(str::to_owned),
            ..heartbeat(ALIVE_MS)
        };
        assert_eq!(beaten(&mut sessions, 0, doing(Some("early"))), HeartbeatReply::Lapsed);
        beaten(&mut sessions, 0, Heartbeat { activity: Some("waits".into()), ..begin() });
        for (activity, expected) in
            [(None, "waits"), (Some("works"), "works"), (None, "works"), (Some(""), ""), (None, "")]
        {
            beaten(&mut sessions, 1, doing(activity));
            assert_eq!(listed(&mut sessions, 1)[0].activity, expected, "after {activity:?}");
        }
    }
}
