//! Session heartbeats: when they are due and what they report.
//!
//! A heartbeat reports locks held long enough to be extended, and locks no longer held, so that operators can list
//! them without a scan of the store. Locks that are held for a moment only cost nothing here.
//!
//! 1. A session has at most one heartbeat in flight.
//! 2. What an unanswered heartbeat reported goes with the next one, unless it has changed by then.

use crate::engine::Session;
use leasehold_core::machine::heartbeat::{HeartbeatAction, HeartbeatSchedule};
use leasehold_core::{Heartbeat, Lock, Moment, Partition, SessionOp, whole_millis};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval between heartbeats that are sent in order to report locks.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// The largest number of locks in one heartbeat.
const TOLD_AT_ONCE: usize = 1000;

/// How long a session may be unused before it ends, in a store with several partitions: keeping it costs a heartbeat
/// every few seconds, beginning another one costs two round trips.
const IDLE: Duration = Duration::from_secs(30);

/// All sessions that need heartbeats, at most one per partition.
#[derive(Default)]
pub(in crate::engine) struct SessionHeartbeats {
    /// Each with the moment at which it is in `due`.
    by_place: BTreeMap<Partition, (SessionHeartbeat, Moment)>,
    due: BTreeSet<(Moment, Partition)>,
}

impl SessionHeartbeats {
    pub(in crate::engine) fn insert(&mut self, heart: SessionHeartbeat) {
        let (place, at) = (heart.session.place, heart.due());
        self.remove(place);
        self.by_place.insert(place, (heart, at));
        self.due.insert((at, place));
    }

    pub(in crate::engine) fn remove(&mut self, place: Partition) -> Option<SessionHeartbeat> {
        let (heart, at) = self.by_place.remove(&place)?;
        self.due.remove(&(at, place));
        Some(heart)
    }

    pub(in crate::engine) fn session(&self, place: Partition) -> Option<&Arc<Session>> {
        self.by_place.get(&place).map(|(heart, _)| &heart.session)
    }

    /// Applies a change to the session of a partition, if there is one.
    pub(in crate::engine) fn with<T>(
        &mut self,
        place: Partition,
        change: impl FnOnce(&mut SessionHeartbeat) -> T,
    ) -> Option<T> {
        let (heart, at) = self.by_place.get_mut(&place)?;
        let result = change(heart);
        let before = std::mem::replace(at, heart.due());
        if before != *at {
            self.due.remove(&(before, place));
            self.due.insert((*at, place));
        }
        Some(result)
    }

    /// The partitions whose session is due.
    pub(in crate::engine) fn due(&self, now: Moment) -> Vec<Partition> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, place)| *place).collect()
    }

    /// When the next session is due.
    pub(in crate::engine) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes all.
    pub(in crate::engine) fn take(&mut self) -> impl Iterator<Item = SessionHeartbeat> + use<> {
        self.due.clear();
        std::mem::take(&mut self.by_place).into_values().map(|(heart, _)| heart)
    }
}

/// A session that needs heartbeats.
pub(in crate::engine) struct SessionHeartbeat {
    pub(in crate::engine) session: Arc<Session>,
    /// Since when it has been seen unused.
    idle_since: Option<Moment>,
    pulse: HeartbeatSchedule,
    beaten_at: Moment,
    /// Pending reports: whether a lock is held.
    news: BTreeMap<Lock, bool>,
    /// The number of reported holds per lock. A session may have several holds of a shared or reentrant lock, and
    /// holds it until the last of them is over.
    holds: BTreeMap<Lock, usize>,
}

/// The next action for a session.
pub(in crate::engine) enum Need {
    /// Send this heartbeat.
    Heartbeat(HeartbeatInFlight),
    /// The session is over.
    Lapsed,
    /// Nothing.
    Rest,
}

/// A heartbeat to be sent.
pub(in crate::engine) struct HeartbeatInFlight {
    pub(in crate::engine) session: Arc<Session>,
    pub(in crate::engine) op: SessionOp,
    pub(in crate::engine) valid_until: Moment,
}

impl SessionHeartbeat {
    pub(in crate::engine) fn new(session: Arc<Session>, pulse: HeartbeatSchedule, now: Moment) -> Self {
        Self {
            session,
            idle_since: None,
            pulse,
            beaten_at: now,
            news: BTreeMap::new(),
            holds: BTreeMap::new(),
        }
    }

    /// A reported hold of a lock is over.
    pub(in crate::engine) fn left(&mut self, lock: &Lock) {
        let left = self.holds.get_mut(lock).map_or(0, |holds| {
            *holds = holds.saturating_sub(1);
            *holds
        });
        if left == 0 {
            self.holds.remove(lock);
            self.news.insert(lock.clone(), false);
        }
    }

    /// Reports a hold of a lock with the next heartbeat.
    pub(in crate::engine) fn tell(&mut self, lock: &Lock) {
        let holds = self.holds.entry(lock.clone()).or_default();
        *holds += 1;
        if *holds == 1 {
            self.news.insert(lock.clone(), true);
        }
    }

    /// The next action.
    pub(in crate::engine) fn poll(&mut self, now: Moment) -> Need {
        if !self.news.is_empty() && now.since(self.beaten_at) >= TELL_EVERY {
            self.pulse.send_soon(now);
        }
        match self.pulse.poll(now) {
            HeartbeatAction::Heartbeat => {
                self.beaten_at = now;
                Need::Heartbeat(self.throb())
            }
            HeartbeatAction::Lapsed => Need::Lapsed,
            HeartbeatAction::Sleep(_) => Need::Rest,
        }
    }

    /// Whether the session has been unused for so long that it can end. Call it whenever a heartbeat is due.
    pub(in crate::engine) fn is_idle(&mut self, now: Moment) -> bool {
        // The client's table and this one hold a clone each; a heartbeat in flight would hold another.
        if Arc::strong_count(&self.session) > 2 {
            self.idle_since = None;
            return false;
        }
        now.since(*self.idle_since.get_or_insert(now)) >= IDLE
    }

    /// When to poll next.
    pub(in crate::engine) fn due(&self) -> Moment {
        let at = self.pulse.due();
        // Nothing is reported while a heartbeat is in flight (1), and reports do not add requests to a store that
        // does not answer.
        let tells = !self.news.is_empty() && self.pulse.can_send_soon();
        if tells { at.min(self.beaten_at + TELL_EVERY) } else { at }
    }

    fn throb(&mut self) -> HeartbeatInFlight {
        let (mut held, mut left) = (Vec::new(), Vec::new());
        while held.len() + left.len() < TOLD_AT_ONCE {
            let Some((lock, is_held)) = self.news.pop_first() else { break };
            if is_held { held.push(lock) } else { left.push(lock) }
        }
        let (session, alive_ms) = (self.session.id, whole_millis(self.pulse.alive()));
        HeartbeatInFlight {
            session: self.session.clone(),
            op: SessionOp::Heartbeat(Heartbeat {
                session,
                alive_ms,
                begin: None,
                acquired: held,
                released: left,
            }),
            valid_until: self.pulse.valid_until(),
        }
    }

    /// A heartbeat sent at `sent_at` has reached the store.
    pub(in crate::engine) fn handle_beaten(&mut self, sent_at: Moment, now: Moment) {
        self.pulse.handle_alive(sent_at, now);
        if now < self.pulse.valid_until() {
            self.session.raise(self.pulse.valid_until());
        }
    }

    /// The store says that the session is over.
    pub(in crate::engine) fn handle_lapsed(&mut self) {
        self.pulse.handle_lapsed();
    }

    /// A heartbeat was not answered: its reports are sent again (2).
    pub(in crate::engine) fn handle_fault(
        &mut self,
        op: &SessionOp,
        now: Moment,
        random: &mut dyn FnMut() -> u64,
    ) {
        self.pulse.handle_fault(now, random);
        let SessionOp::Heartbeat(beat) = op else { return };
        for (locks, is_held) in [(&beat.acquired, true), (&beat.released, false)] {
            for lock in locks {
                self.news.entry(lock.clone()).or_insert(is_held);
            }
        }
    }
}
