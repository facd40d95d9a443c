//! Session heartbeats: when they are due and what they report.
//!
//! A heartbeat reports locks held long enough to be extended, and locks no longer held, so that operators can list
//! them without a scan of the store. A lock that is held only briefly costs nothing here.
//!
//! 1. A session has at most one heartbeat in flight.
//! 2. What an unanswered heartbeat reported goes with the next one, unless it has changed by then.
//! 3. A client with holds in many partitions has a session in each. When one of them is due, those that are nearly due go
//!    along, so that many sessions cost few wake-ups and few writes. None is sent later for that.
//! 4. A store that has lost its data does not know the session any more, although it is alive by this clock. The next
//!    heartbeat begins it again, with the same id and all locks that it reports. A store that remembers that the session
//!    has lapsed refuses that, and then the session is over.
//! 5. The listing of sessions, by which people and monitors find the dead, takes half of a heartbeat's time at the store. A
//!    heartbeat that renews it is enough once in the life of a session.

use crate::engine::Session;
use crate::engine::keeper::renewal_batcher::BATCH;
use crate::store::{Executed, Outcome};
use leasehold_core::machine::heartbeat::{HeartbeatAction, HeartbeatSchedule};
use leasehold_core::{
    Heartbeat, HeartbeatReply, Lock, Moment, Partition, SessionOp, SessionReply, whole_millis,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval between heartbeats that are sent in order to report locks, or to check the session.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The largest number of locks in one heartbeat.
pub(super) const MAX_REPORTS: usize = 1000;

/// How long a session may be unused before it ends, in a store with several partitions: keeping it costs a heartbeat
/// every few seconds, beginning another one costs two round trips.
const IDLE: Duration = Duration::from_secs(30);

/// All sessions that need heartbeats, at most one per partition.
#[derive(Default)]
pub(in crate::engine) struct SessionHeartbeats {
    /// Each with the moment at which it is in `due`.
    by_partition: BTreeMap<Partition, (SessionHeartbeat, Moment)>,
    due: BTreeSet<(Moment, Partition)>,
}

impl SessionHeartbeats {
    pub(in crate::engine) fn insert(&mut self, heartbeat: SessionHeartbeat) {
        let (partition, at) = (heartbeat.session.partition, heartbeat.due());
        self.remove(partition);
        self.by_partition.insert(partition, (heartbeat, at));
        self.due.insert((at, partition));
    }

    pub(in crate::engine) fn remove(&mut self, partition: Partition) -> Option<SessionHeartbeat> {
        let (heartbeat, at) = self.by_partition.remove(&partition)?;
        self.due.remove(&(at, partition));
        Some(heartbeat)
    }

    pub(in crate::engine) fn session(&self, partition: Partition) -> Option<&Arc<Session>> {
        self.by_partition.get(&partition).map(|(heartbeat, _)| &heartbeat.session)
    }

    /// Applies a change to the session of a partition, if there is one.
    pub(in crate::engine) fn with<T>(
        &mut self,
        partition: Partition,
        change: impl FnOnce(&mut SessionHeartbeat) -> T,
    ) -> Option<T> {
        let (heartbeat, at) = self.by_partition.get_mut(&partition)?;
        let result = change(heartbeat);
        let before = std::mem::replace(at, heartbeat.due());
        if before != *at {
            self.due.remove(&(before, partition));
            self.due.insert((*at, partition));
        }
        Some(result)
    }

    /// The partitions whose session is due, and those whose session goes along (3): these only fill a batch.
    pub(in crate::engine) fn due(&self, now: Moment) -> Vec<DueSession> {
        let first = self.due.first().filter(|(at, _)| *at <= now);
        let Some((heartbeat, _)) = first.and_then(|(_, partition)| self.by_partition.get(partition)) else {
            return Vec::new();
        };
        // All sessions of a client live equally long.
        let ahead = heartbeat.schedule.max_ahead();
        let go = self.due.iter().enumerate();
        let go = go.take_while(|(taken, (at, _))| *at <= now || *taken < BATCH && *at <= now + ahead);
        go.map(|(_, (_, partition))| DueSession { partition: *partition, ahead }).collect()
    }

    /// When the next session is due.
    pub(in crate::engine) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes all.
    pub(in crate::engine) fn take(&mut self) -> impl Iterator<Item = SessionHeartbeat> + use<> {
        self.due.clear();
        std::mem::take(&mut self.by_partition).into_values().map(|(heartbeat, _)| heartbeat)
    }
}

/// A session whose heartbeat goes now.
pub(in crate::engine) struct DueSession {
    pub(in crate::engine) partition: Partition,
    /// How much earlier than due it may go.
    pub(in crate::engine) ahead: Duration,
}

/// A session that needs heartbeats.
pub(in crate::engine) struct SessionHeartbeat {
    pub(in crate::engine) session: Arc<Session>,
    /// Since when it has been seen unused.
    idle_since: Option<Moment>,
    schedule: HeartbeatSchedule,
    /// What the session begins with.
    metadata: Arc<str>,
    /// Set while the store does not know the session (4).
    is_forgotten: bool,
    /// Set until a heartbeat is sent that learns whether the store knows the session.
    must_check: bool,
    /// When the last heartbeat was sent.
    last_sent_at: Moment,
    /// When the last heartbeat that renewed its listing and was answered was sent.
    listed_at: Moment,
    /// Pending reports: whether a lock is held.
    reports: BTreeMap<Lock, bool>,
    /// The number of reported holds per lock. A session may have several holds of a shared or reentrant lock, and
    /// holds it until the last of them is over.
    holds: BTreeMap<Lock, usize>,
    /// What the tasks of the client wait for and hold, as a text, and whether it is still to be sent.
    activity: String,
    is_activity_pending: bool,
}

/// The next action for a session.
pub(in crate::engine) enum SessionAction {
    /// Send this heartbeat.
    Heartbeat(HeartbeatInFlight),
    /// End the session if the store has several partitions, and otherwise poll it as one in use.
    End,
    /// The session is over.
    Lapsed,
    /// Do nothing.
    Nothing,
}

/// A heartbeat to be sent.
pub(in crate::engine) struct HeartbeatInFlight {
    pub(in crate::engine) session: Arc<Session>,
    pub(in crate::engine) op: SessionOp,
    pub(in crate::engine) valid_until: Moment,
}

/// Heartbeats that are sent together.
pub(in crate::engine) struct HeartbeatBatch {
    pub(in crate::engine) requests: Vec<HeartbeatInFlight>,
    /// How long they may take.
    pub(in crate::engine) within: Duration,
}

impl HeartbeatBatch {
    /// Adds a heartbeat to the last batch, or to a new one. `call` is how long a request may take. A session that ends soon
    /// has a batch of its own: its short time must not limit the others.
    pub(in crate::engine) fn add(
        batches: &mut Vec<Self>,
        request: HeartbeatInFlight,
        now: Moment,
        call: Duration,
    ) {
        // Half of the remaining time, so that there is time for another attempt.
        let within = (request.valid_until.since(now) / 2).max(Duration::from_millis(1));
        let takes = |batch: &&mut Self| batch.within == call && batch.requests.len() < BATCH;
        match batches.last_mut().filter(takes) {
            Some(batch) if within >= call => batch.requests.push(request),
            _ => batches.push(Self { requests: vec![request], within: within.min(call) }),
        }
    }
}

impl SessionHeartbeat {
    pub(in crate::engine) fn new(
        session: Arc<Session>,
        schedule: HeartbeatSchedule,
        metadata: Arc<str>,
        now: Moment,
    ) -> Self {
        Self {
            session,
            idle_since: None,
            schedule,
            metadata,
            is_forgotten: false,
            must_check: false,
            last_sent_at: now,
            listed_at: now,
            reports: BTreeMap::new(),
            holds: BTreeMap::new(),
            activity: String::new(),
            is_activity_pending: false,
        }
    }

    /// Reports with a heartbeat as soon as possible what the tasks of the client wait for and hold: an empty text if that is
    /// nothing any more.
    pub(in crate::engine) fn report_activity(&mut self, activity: String) {
        (self.activity, self.is_activity_pending) = (activity, true);
    }

    /// A reported hold of a lock is over.
    pub(in crate::engine) fn report_released(&mut self, lock: &Lock) {
        let left = self.holds.get_mut(lock).map_or(0, |holds| {
            *holds = holds.saturating_sub(1);
            *holds
        });
        if left == 0 {
            self.holds.remove(lock);
            self.reports.insert(lock.clone(), false);
        }
    }

    /// Reports a hold of a lock with the next heartbeat.
    pub(in crate::engine) fn report_held(&mut self, lock: &Lock) {
        if self.count_held(lock) == 1 {
            self.reports.insert(lock.clone(), true);
        }
    }

    /// Reports a lock that the session began with, if no hold of it is left.
    pub(in crate::engine) fn report_if_released(&mut self, lock: &Lock) {
        if !self.holds.contains_key(lock) {
            self.reports.insert(lock.clone(), false);
        }
    }

    /// Counts a hold of a lock that the session began with. Returns how many there are.
    pub(in crate::engine) fn count_held(&mut self, lock: &Lock) -> usize {
        let holds = self.holds.entry(lock.clone()).or_default();
        *holds += 1;
        *holds
    }

    /// The next action, if a heartbeat may be sent so much earlier than due.
    pub(in crate::engine) fn poll(&mut self, now: Moment, ahead: Duration) -> SessionAction {
        if self.is_idle(now) { SessionAction::End } else { self.poll_in_use(now, ahead) }
    }

    /// The next action, if the session does not end because it is unused.
    pub(in crate::engine) fn poll_in_use(&mut self, now: Moment, ahead: Duration) -> SessionAction {
        let is_time = self.has_reason() && now.since(self.last_sent_at) >= REPORT_INTERVAL;
        if is_time || self.is_activity_pending {
            self.schedule.send_soon(now);
        }
        match self.schedule.poll(now, ahead) {
            HeartbeatAction::Heartbeat => {
                self.last_sent_at = now;
                self.must_check = false;
                SessionAction::Heartbeat(self.next_request())
            }
            HeartbeatAction::Lapsed => SessionAction::Lapsed,
            HeartbeatAction::Sleep(_) => SessionAction::Nothing,
        }
    }

    /// Sends a heartbeat soon, to learn whether the store knows the session: another one if one is in flight, whose reply
    /// may come from before.
    pub(in crate::engine) const fn check_soon(&mut self) {
        self.must_check = true;
    }

    /// Whether there is a reason for a heartbeat before it is due.
    fn has_reason(&self) -> bool {
        self.must_check || !self.reports.is_empty()
    }

    /// Whether the session has been unused for so long that it can end.
    fn is_idle(&mut self, now: Moment) -> bool {
        // The client's table and this one hold a clone each; a heartbeat in flight would hold another.
        if Arc::strong_count(&self.session) > 2 {
            self.idle_since = None;
            return false;
        }
        now.since(*self.idle_since.get_or_insert(now)) >= IDLE
    }

    /// When to poll next.
    pub(in crate::engine) fn due(&self) -> Moment {
        let at = self.schedule.due();
        // Nothing is sent while a heartbeat is in flight (1), and reports do not add requests to a store that does not
        // answer.
        if !self.schedule.can_send_soon() {
            at
        } else if self.is_activity_pending {
            self.last_sent_at
        } else if self.has_reason() {
            at.min(self.last_sent_at + REPORT_INTERVAL)
        } else {
            at
        }
    }

    fn next_request(&mut self) -> HeartbeatInFlight {
        let (mut acquired, mut released) = (Vec::new(), Vec::new());
        while acquired.len() + released.len() < MAX_REPORTS {
            let Some((lock, is_held)) = self.reports.pop_first() else { break };
            if is_held { acquired.push(lock) } else { released.push(lock) }
        }
        let (session, alive) = (self.session.id, self.schedule.alive());
        // Once in its life, which is every fourth heartbeat (5).
        let is_old = self.last_sent_at.since(self.listed_at) + alive / 8 >= alive;
        let renew_listing = is_old || self.is_forgotten;
        let begin = self.is_forgotten.then(|| self.metadata.to_string());
        let alive_ms = whole_millis(alive);
        let activity = std::mem::take(&mut self.is_activity_pending).then(|| self.activity.clone());
        HeartbeatInFlight {
            session: self.session.clone(),
            op: SessionOp::Heartbeat(Heartbeat {
                session,
                alive_ms,
                begin,
                acquired,
                released,
                renew_listing,
                activity,
            }),
            valid_until: self.schedule.valid_until(),
        }
    }

    /// Whether this heartbeat is one of the session.
    pub(in crate::engine) fn is_of(&self, op: &SessionOp) -> bool {
        matches!(op, SessionOp::Heartbeat(heartbeat) if heartbeat.session == self.session.id)
    }

    /// Records the result of a heartbeat that was sent at `sent_at`. Returns whether the store must be asked about each hold of
    /// the session: it has forgotten the session, or has begun it again (4).
    pub(in crate::engine) fn handle_outcome(
        &mut self,
        op: &SessionOp,
        outcome: Outcome<SessionReply>,
        sent_at: Moment,
        now: Moment,
        random: &mut dyn FnMut() -> u64,
    ) -> bool {
        match outcome {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                return self.handle_alive(op, sent_at, now);
            }
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => {
                if begins(op) || now >= self.schedule.valid_until() {
                    // The store says that the session is over.
                    self.schedule.handle_lapsed();
                } else {
                    self.handle_forgotten(now);
                    return true;
                }
            }
            other => {
                if let Outcome::Failed(executed, fault) = other {
                    tracing::debug!(%fault, "no reply to a heartbeat");
                    if begins(op) && executed != Executed::No {
                        self.session.begin_is_unanswered();
                    }
                }
                self.handle_fault(op, now, random);
            }
        }
        false
    }

    /// The store does not know the session: it begins again with all locks that it reports (4).
    fn handle_forgotten(&mut self, now: Moment) {
        self.is_forgotten = true;
        self.reports.retain(|_, is_held| !*is_held);
        self.reports.extend(self.holds.keys().map(|lock| (lock.clone(), true)));
        self.is_activity_pending = !self.activity.is_empty();
        self.schedule.handle_forgotten(now);
    }

    fn handle_alive(&mut self, op: &SessionOp, sent_at: Moment, now: Moment) -> bool {
        self.schedule.handle_alive(sent_at, now);
        if matches!(op, SessionOp::Heartbeat(Heartbeat { renew_listing: true, .. })) {
            self.listed_at = sent_at;
        }
        if now < self.schedule.valid_until() {
            self.session.extend(self.schedule.valid_until());
        }
        begins(op) && std::mem::take(&mut self.is_forgotten) && now < self.schedule.valid_until()
    }

    /// A heartbeat was not answered: its reports are sent again (2).
    fn handle_fault(&mut self, op: &SessionOp, now: Moment, random: &mut dyn FnMut() -> u64) {
        self.schedule.handle_fault(now, random);
        let SessionOp::Heartbeat(heartbeat) = op else { return };
        self.is_activity_pending |= heartbeat.activity.is_some();
        for (locks, is_held) in [(&heartbeat.acquired, true), (&heartbeat.released, false)] {
            for lock in locks {
                self.reports.entry(lock.clone()).or_insert(is_held);
            }
        }
    }
}

/// Whether a heartbeat begins its session.
pub(super) fn begins(op: &SessionOp) -> bool {
    matches!(op, SessionOp::Heartbeat(Heartbeat { begin: Some(_), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Liveness, SessionId};

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    /// Sessions that live for ten seconds and were begun at these milliseconds, each in a partition of its own.
    fn sessions(begun: impl IntoIterator<Item = u64>) -> SessionHeartbeats {
        let mut heartbeats = SessionHeartbeats::default();
        for (slot, begun) in (0..).zip(begun) {
            let (partition, alive) = (Partition::new(slot), Duration::from_secs(10));
            let id = SessionId::from_random([7; 12]);
            let liveness = Liveness::Session { alive_ms: 10_000 };
            let session = Arc::new(Session::new(partition, id, liveness, ms(begun) + alive));
            let schedule = HeartbeatSchedule::new(alive, ms(begun));
            heartbeats.insert(SessionHeartbeat::new(session, schedule, "{}".into(), ms(begun)));
        }
        heartbeats
    }

    /// Sends what goes now, and returns how many heartbeats that is.
    fn send(heartbeats: &mut SessionHeartbeats, now: Moment) -> usize {
        let due = heartbeats.due(now).into_iter();
        let sent = due.filter(|due| {
            let action = heartbeats.with(due.partition, |heartbeat| heartbeat.poll_in_use(now, due.ahead));
            matches!(action, Some(SessionAction::Heartbeat(_)))
        });
        sent.count()
    }

    #[test]
    fn heartbeats_that_are_nearly_due_go_along_when_one_is_due() {
        let mut heartbeats = sessions([0, 50, 100, 101, 300]);
        assert_eq!(send(&mut heartbeats, ms(2499)), 0, "none is due, whatever woke the keeper");
        assert_eq!(send(&mut heartbeats, ms(2500)), 3);
        assert_eq!(send(&mut heartbeats, ms(2600)), 0, "each goes once");
        assert_eq!(heartbeats.next(), Some(ms(2601)));
        assert_eq!(send(&mut heartbeats, ms(2601)), 1);
        assert_eq!(send(&mut heartbeats, ms(2800)), 1);
    }

    #[test]
    fn a_session_that_ends_soon_has_a_batch_of_its_own() {
        let call = Duration::from_secs(2);
        let mut batches = Vec::new();
        // All end at 9 898 ms, so at 5 898 ms half of the remaining time begins to be less than a call may take.
        for (n, at) in [(BATCH + 1, 5_000), (2, 5_900), (2, 5_898), (1, 9_898), (1, 12_000)] {
            let mut heartbeats = sessions(std::iter::repeat_n(0, n));
            for due in heartbeats.due(ms(6_000)) {
                let request = heartbeats.with(due.partition, SessionHeartbeat::next_request);
                HeartbeatBatch::add(&mut batches, request.expect("a session"), ms(at), call);
            }
        }
        let found: Vec<_> =
            batches.iter().map(|batch| (batch.requests.len(), batch.within.as_millis())).collect();
        let expected = [(BATCH, 2_000), (1, 2_000), (1, 1_999), (1, 1_999), (2, 2_000), (1, 1), (1, 1)];
        assert_eq!(found, expected);
    }

    /// Whether the heartbeat that is sent at this millisecond renews the listing. Its reply is `alive`, or none.
    fn renews(heartbeats: &mut SessionHeartbeats, at: u64, alive: bool) -> bool {
        let sent = heartbeats.with(Partition::new(0), |heartbeat| {
            let SessionAction::Heartbeat(request) = heartbeat.poll_in_use(ms(at), Duration::ZERO) else {
                panic!("no heartbeat at {at}");
            };
            if alive {
                heartbeat.handle_alive(&request.op, ms(at), ms(at));
            } else {
                heartbeat.handle_fault(&request.op, ms(at), &mut || u64::MAX);
            }
            matches!(request.op, SessionOp::Heartbeat(Heartbeat { renew_listing: true, .. }))
        });
        sent == Some(true)
    }

    #[test]
    fn every_fourth_heartbeat_renews_the_listing_and_so_does_the_next_if_it_has_no_reply() {
        let mut heartbeats = sessions([0]);
        let times =
            [(2_500, true), (5_000, true), (7_500, true), (10_000, false), (10_050, true), (12_550, true)];
        let renewed = times.map(|(at, alive)| renews(&mut heartbeats, at, alive));
        assert_eq!(renewed, [false, false, false, true, true, false]);
    }

    #[test]
    fn heartbeats_that_go_along_only_fill_a_batch() {
        let mut heartbeats = sessions(std::iter::repeat_n(1, BATCH - 1).chain([2, 2]));
        assert_eq!(send(&mut heartbeats, ms(2501)), BATCH);
        assert_eq!(send(&mut heartbeats, ms(2502)), 1);
        let mut many = sessions(std::iter::repeat_n(1, BATCH + 9).chain([2]));
        assert_eq!(send(&mut many, ms(2501)), BATCH + 9, "none that is due waits");
    }
}
