//! What has been read of a fleet, put together.
//!
//! 1. A lock stays known while a session reports that it holds it or waits for it, while it is held as far as the last look
//!    says, and while it is on a screen.

use super::{Fleet, LockView, Totals};
use leasehold::core::{Lock, SessionId};
use leasehold::inspect::{Listing, LockInfo, SessionInfo, Status, WaitGraph};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The time over which changes are averaged.
const AVERAGED_OVER: Duration = Duration::from_secs(10);

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    sessions: HashMap<SessionId, Arc<SessionInfo>>,
    in_order: Vec<Arc<SessionInfo>>,
    locks: BTreeMap<Lock, KnownLock>,
    graph: Arc<WaitGraph>,
    read_at: Option<SystemTime>,
    /// Of each part: why it could not be read last.
    trouble: [Option<String>; Part::COUNT],
    incomplete: [Option<String>; 2],
}

/// A part of what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The list of sessions, with what each reports.
    List,
    /// The locks on a screen.
    Screen,
    /// What waits for what.
    Graph,
    /// All locks in turns.
    Others,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [Self::List, Self::Screen, Self::Graph, Self::Others];
    pub(super) const COUNT: usize = Self::ALL.len();
}

/// What left something out.
#[derive(Debug, Clone, Copy)]
enum LeftOut {
    Sessions,
    Graph,
}

#[derive(Debug, Default)]
struct KnownLock {
    seen: Option<(Instant, Arc<Status>)>,
    changes: Changes,
    reported_by: Option<Arc<SessionInfo>>,
    reported_waits: u64,
    waiting_since: Option<SystemTime>,
    /// Why it could not be read last.
    unreadable: Option<String>,
}

/// How often the holder of a lock is seen to change: an average in which older changes weigh less and less.
#[derive(Debug, Default)]
struct Changes {
    per_second: f64,
    /// How long it has been observed.
    observed: Duration,
}

impl Changes {
    fn add(&mut self, has_changed: bool, since_last: Duration) {
        let seconds = since_last.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let rate = f64::from(u8::from(has_changed)) / seconds;
        // Until it is observed for long enough, all looks weigh the same.
        self.observed = self.observed.saturating_add(since_last);
        let weight = seconds / self.observed.min(AVERAGED_OVER).as_secs_f64().max(seconds);
        self.per_second += (rate - self.per_second) * weight;
    }
}

impl KnownLock {
    fn is_reported(&self) -> bool {
        self.reported_by.is_some() || self.reported_waits > 0
    }

    fn view(&self, lock: &Lock, sessions: &HashMap<SessionId, Arc<SessionInfo>>) -> LockView {
        let status = self.seen.as_ref().map(|(_, status)| Arc::clone(status));
        let session = match &status {
            Some(status) => status.session.and_then(|id| sessions.get(&id)).cloned(),
            None => self.reported_by.clone(),
        };
        let queued = status.as_ref().map_or(0, |status| status.waiting);
        LockView {
            lock: lock.clone(),
            session,
            waiting: self.reported_waits.max(queued),
            waiting_since: self.waiting_since,
            changes_per_second: (self.changes.observed > Duration::ZERO).then_some(self.changes.per_second),
            status,
        }
    }
}

impl Known {
    /// The list of sessions, read at that time. Locks that are on a screen stay (1).
    pub(super) fn set_sessions(
        &mut self,
        list: Listing<SessionInfo>,
        read_at: SystemTime,
        on_screen: &HashSet<Lock>,
    ) {
        self.read_at = Some(read_at);
        self.incomplete[LeftOut::Sessions as usize] =
            (!list.skipped.is_empty()).then(|| list.skipped.to_string());
        self.in_order = list.items.into_iter().map(Arc::new).collect();
        self.in_order.sort_by_key(|session| session.id);
        self.sessions = self.in_order.iter().map(|session| (session.id, Arc::clone(session))).collect();
        for lock in self.locks.values_mut() {
            (lock.reported_by, lock.reported_waits, lock.waiting_since) = (None, 0, None);
        }
        for session in &self.in_order {
            for lock in &session.locks {
                let known = self.locks.entry(lock.clone()).or_default();
                known.reported_by.get_or_insert_with(|| Arc::clone(session));
            }
            // What a dead session reported is over, or will be.
            let waits = session.waits.iter().filter(|_| session.alive_for.is_some());
            for wait in waits {
                let known = self.locks.entry(wait.lock.clone()).or_default();
                known.reported_waits += 1;
                let since = known.waiting_since.get_or_insert(wait.since);
                *since = wait.since.min(*since);
            }
        }
        self.locks.retain(|lock, known| {
            let is_held = known.seen.as_ref().is_some_and(|(_, status)| status.held);
            known.is_reported() || is_held || on_screen.contains(lock)
        });
    }

    /// What a look at these locks has found. Those that were not found cannot be read, or have keys of another kind by now.
    pub(super) fn set_locks(&mut self, asked: &[Lock], list: Listing<LockInfo>, now: Instant) {
        let unreadable = (!list.skipped.is_empty()).then(|| list.skipped.to_string());
        let mut found: HashMap<_, _> = list
            .items
            .into_iter()
            .map(|info| (Lock { kind: info.kind, name: info.name }, info.status))
            .collect();
        for lock in asked {
            match found.remove(lock) {
                Some(status) => {
                    let known = self.locks.entry(lock.clone()).or_default();
                    if let Some((before_at, before)) = &known.seen {
                        let is_another = status.held && status.fence != before.fence;
                        known.changes.add(is_another, now.duration_since(*before_at));
                    }
                    known.seen = Some((now, Arc::new(status)));
                    known.unreadable = None;
                }
                // What was known of it stays.
                None if unreadable.is_some() => {
                    self.locks.entry(lock.clone()).or_default().unreadable.clone_from(&unreadable);
                }
                None => {
                    self.locks.remove(lock);
                }
            }
        }
    }

    pub(super) fn set_graph(&mut self, graph: WaitGraph) {
        let omitted = (graph.omitted > 0).then(|| format!("{} waits or holds are left out", graph.omitted));
        let skipped = (!graph.skipped.is_empty()).then(|| graph.skipped.to_string());
        self.incomplete[LeftOut::Graph as usize] = skipped.or(omitted);
        self.graph = Arc::new(graph);
    }

    /// Why a part cannot be read; `None` once it was.
    pub(super) fn set_trouble(&mut self, part: Part, trouble: Option<String>) {
        self.trouble[part as usize] = trouble;
    }

    /// Whether a session reports a wait.
    pub(super) fn has_waits(&self) -> bool {
        self.in_order.iter().any(|session| session.alive_for.is_some() && !session.waits.is_empty())
    }

    /// How many locks sessions report, each as often as it is reported.
    pub(super) fn size(&self) -> (usize, usize) {
        let reported = self.in_order.iter().map(|session| session.locks.len() + session.waits.len()).sum();
        (self.in_order.len(), reported)
    }

    /// Up to so many locks after that one, in a circle, without those that were looked at less than `age` ago.
    pub(super) fn next_to_see(
        &self,
        after: Option<&Lock>,
        most: usize,
        now: Instant,
        age: Duration,
    ) -> Vec<Lock> {
        let split = |lock: &&Lock| after.is_some_and(|after| *lock <= after);
        let (before, behind): (Vec<_>, Vec<_>) = self.locks.keys().partition(split);
        let is_due = |lock: &&&Lock| {
            let seen = self.locks.get(**lock).and_then(|known| known.seen.as_ref());
            seen.is_none_or(|(at, _)| now.duration_since(*at) >= age)
        };
        behind.iter().chain(&before).filter(is_due).take(most).map(|lock| (*lock).clone()).collect()
    }

    /// All of it.
    pub(super) fn fleet(&self) -> Fleet {
        let locks: Vec<_> = self.locks.iter().map(|(lock, known)| known.view(lock, &self.sessions)).collect();
        let alive = self.in_order.iter().filter(|session| session.alive_for.is_some()).count();
        let totals = Totals {
            held: locks.iter().filter(|lock| lock.is_held()).count(),
            waiting: locks.iter().map(|lock| lock.waiting).sum(),
            alive,
            dead: self.in_order.len() - alive,
            changes_per_second: locks.iter().filter_map(|lock| lock.changes_per_second).sum(),
        };
        let of_lock = self.locks.values().find_map(|known| known.unreadable.as_ref());
        let incomplete: Vec<_> =
            self.incomplete.iter().flatten().chain(of_lock).map(String::as_str).collect();
        Fleet {
            read_at: self.read_at,
            sessions: self.in_order.clone(),
            locks,
            graph: Arc::clone(&self.graph),
            totals,
            trouble: self.trouble.iter().flatten().next().cloned(),
            incomplete: (!incomplete.is_empty()).then(|| incomplete.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trouble_of_a_part_lasts_until_that_part_was_read() {
        let mut known = Known::default();
        known.set_trouble(Part::Graph, Some("no answer".to_owned()));
        known.set_trouble(Part::List, None);
        assert_eq!(known.fleet().trouble.as_deref(), Some("no answer"));
        known.set_trouble(Part::Graph, None);
        assert_eq!(known.fleet().trouble, None);
    }

    #[test]
    fn changes_are_averaged_over_the_last_seconds() {
        let mut changes = Changes::default();
        let half = Duration::from_millis(500);
        for number in 0..4 {
            changes.add(number % 2 == 0, half);
        }
        assert!((changes.per_second - 1.0).abs() < 1e-9, "all looks weigh the same: {changes:?}");
        for _ in 0..200 {
            changes.add(true, half);
        }
        assert!((1.9..=2.0).contains(&changes.per_second), "{changes:?}");
        for _ in 0..200 {
            changes.add(false, half);
        }
        assert!(changes.per_second < 0.01, "{changes:?}");
        changes.add(true, Duration::ZERO);
        assert!(changes.per_second < 0.01, "a look at the same instant says nothing: {changes:?}");
    }
}
