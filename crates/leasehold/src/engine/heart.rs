//! What the keeper does for its sessions: beats, and what it tells with them.
//!
//! With a beat go the locks that have been held for so long that they were extended, and those that are not held any
//! more, so that people find them without a search through the store. A lock that is taken and given back within a
//! moment costs nothing here.
//!
//! 1. One beat of a session at a time is on its way.
//! 2. What went with a beat that was not answered goes with the next one, unless it is otherwise by then.

use super::Session;
use leasehold_core::pulse::{Duty, Pulse};
use leasehold_core::{Beat, Lock, Moment, Place, SessionOp, whole_millis};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How far apart two beats are at least that are sent to tell something.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// How many locks one beat tells of.
const TOLD_AT_ONCE: usize = 1000;

/// How long nothing refers to a session before it ends, in a store that has several places: it costs a beat every few
/// seconds, and another one two round trips.
const IDLE: Duration = Duration::from_secs(30);

/// All sessions that live by beats, at most one in a place.
#[derive(Default)]
pub(super) struct Hearts {
    /// Each with the moment at which it is in `due`.
    by_place: BTreeMap<Place, (Heart, Moment)>,
    due: BTreeSet<(Moment, Place)>,
}

impl Hearts {
    pub(super) fn insert(&mut self, heart: Heart) {
        let (place, at) = (heart.session.place, heart.due());
        self.remove(place);
        self.by_place.insert(place, (heart, at));
        self.due.insert((at, place));
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Heart> {
        let (heart, at) = self.by_place.remove(&place)?;
        self.due.remove(&(at, place));
        Some(heart)
    }

    pub(super) fn session(&self, place: Place) -> Option<&Arc<Session>> {
        self.by_place.get(&place).map(|(heart, _)| &heart.session)
    }

    /// Does something with that of a place, if there is one.
    pub(super) fn with<T>(&mut self, place: Place, change: impl FnOnce(&mut Heart) -> T) -> Option<T> {
        let (heart, at) = self.by_place.get_mut(&place)?;
        let result = change(heart);
        let before = std::mem::replace(at, heart.due());
        if before != *at {
            self.due.remove(&(before, place));
            self.due.insert((*at, place));
        }
        Some(result)
    }

    /// Where something is due.
    pub(super) fn due(&self, now: Moment) -> Vec<Place> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, place)| *place).collect()
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes all out.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Heart> + use<> {
        self.due.clear();
        std::mem::take(&mut self.by_place).into_values().map(|(heart, _)| heart)
    }
}

/// A session that lives by beats.
pub(super) struct Heart {
    pub(super) session: Arc<Session>,
    /// Since when nothing refers to it, as far as was seen.
    idle_since: Option<Moment>,
    pulse: Pulse,
    beaten_at: Moment,
    /// What is to be told: whether a lock is held.
    news: BTreeMap<Lock, bool>,
    /// How many holds of a lock people are told of: of one that several have, or that is entered again, a session may have
    /// many, and has the lock until the last of them is over.
    holds: BTreeMap<Lock, usize>,
}

/// What to do for the session now.
pub(super) enum Need {
    /// Send this.
    Beat(Throb),
    /// The session is over.
    Lapsed,
    /// Nothing.
    Rest,
}

/// A beat on its way.
pub(super) struct Throb {
    pub(super) session: Arc<Session>,
    pub(super) op: SessionOp,
    pub(super) valid_until: Moment,
}

impl Heart {
    pub(super) fn new(session: Arc<Session>, pulse: Pulse, now: Moment) -> Self {
        Self {
            session,
            idle_since: None,
            pulse,
            beaten_at: now,
            news: BTreeMap::new(),
            holds: BTreeMap::new(),
        }
    }

    /// A hold of a lock that was told of is over.
    pub(super) fn left(&mut self, lock: &Lock) {
        let left = self.holds.get_mut(lock).map_or(0, |holds| {
            *holds = holds.saturating_sub(1);
            *holds
        });
        if left == 0 {
            self.holds.remove(lock);
            self.news.insert(lock.clone(), false);
        }
    }

    /// Tells of a hold of a lock with the next beat.
    pub(super) fn tell(&mut self, lock: &Lock) {
        let holds = self.holds.entry(lock.clone()).or_default();
        *holds += 1;
        if *holds == 1 {
            self.news.insert(lock.clone(), true);
        }
    }

    /// What to do now.
    pub(super) fn poll(&mut self, now: Moment) -> Need {
        if !self.news.is_empty() && now.since(self.beaten_at) >= TELL_EVERY {
            self.pulse.hasten(now);
        }
        match self.pulse.poll(now) {
            Duty::Beat => {
                self.beaten_at = now;
                Need::Beat(self.throb())
            }
            Duty::Lapsed => Need::Lapsed,
            Duty::Rest(_) => Need::Rest,
        }
    }

    /// Whether nothing has referred to the session for so long that it can end. To be asked whenever a beat is due.
    pub(super) fn is_idle(&mut self, now: Moment) -> bool {
        // The client's table and this one have a clone each; a beat on its way would have another.
        if Arc::strong_count(&self.session) > 2 {
            self.idle_since = None;
            return false;
        }
        now.since(*self.idle_since.get_or_insert(now)) >= IDLE
    }

    /// When to poll next.
    pub(super) fn due(&self) -> Moment {
        let at = self.pulse.due();
        // While a beat is on its way nothing is told (1), and what a store does not answer is not asked more often for it.
        let tells = !self.news.is_empty() && self.pulse.is_calm();
        if tells { at.min(self.beaten_at + TELL_EVERY) } else { at }
    }

    fn throb(&mut self) -> Throb {
        let (mut held, mut left) = (Vec::new(), Vec::new());
        while held.len() + left.len() < TOLD_AT_ONCE {
            let Some((lock, is_held)) = self.news.pop_first() else { break };
            if is_held { held.push(lock) } else { left.push(lock) }
        }
        let (session, alive_ms) = (self.session.id, whole_millis(self.pulse.alive()));
        Throb {
            session: self.session.clone(),
            op: SessionOp::Beat(Beat { session, alive_ms, begin: None, held, left }),
            valid_until: self.pulse.valid_until(),
        }
    }

    /// A beat that was sent at `sent_at` has reached the store.
    pub(super) fn handle_beaten(&mut self, sent_at: Moment, now: Moment) {
        self.pulse.handle_beaten(sent_at, now);
        if now < self.pulse.valid_until() {
            self.session.raise(self.pulse.valid_until());
        }
    }

    /// The store says that the session is over.
    pub(super) fn handle_lapsed(&mut self) {
        self.pulse.handle_lapsed();
    }

    /// A beat was not answered: what it told is told again (2).
    pub(super) fn handle_fault(&mut self, op: &SessionOp, now: Moment, random: &mut dyn FnMut() -> u64) {
        self.pulse.handle_fault(now, random);
        let SessionOp::Beat(beat) = op else { return };
        for (locks, is_held) in [(&beat.held, true), (&beat.left, false)] {
            for lock in locks {
                self.news.entry(lock.clone()).or_insert(is_held);
            }
        }
    }
}
