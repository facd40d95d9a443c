//! Hints of the store that a hold may be gone: which holds they are about, and how fast they are followed.
//!
//! 1. A hint proves nothing (8): the hold is extended at once, and the store's reply decides. A hint that was wrong thus costs
//!    an extend.
//! 2. Hints that were wrong are limited: beyond the first [`BUDGET`], one is followed per [`INTERVAL`], over all holds. A hint
//!    that was right costs nothing of that. Others wait; the next renewal of the hold settles them.
//! 3. Each hold is extended early a few times a second at most, whatever the hints.

use super::renewal_batcher::BATCH;
use super::{KeeperHandle, Shared, State, TrackedHold, TrackingId};
use leasehold_core::{LockName, Moment};
use leasehold_store::HoldWatcher;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// How many hints that were wrong are followed at once (2): a batch of extends.
const BUDGET: usize = BATCH;
/// The time for which one more is followed: a tenth of what the renewals of 10 000 holds need.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long after its grant a hold is extended at the latest, because a store watches it from then on.
const FIRST_EXTEND_WITHIN: Duration = Duration::from_millis(100);

/// The hints that are to be followed.
#[derive(Debug)]
pub(super) struct Hints {
    /// Whether the store gives any.
    are_given: bool,
    /// The holds that they can be about, by the hash of their lock's name. Others with the same hash are extended in vain.
    by_name: BTreeSet<(u64, TrackingId)>,
    /// The holds that they are about.
    pending: BTreeSet<TrackingId>,
    /// How many are followed without a pause (2).
    budget: usize,
    /// When the budget last grew.
    grew_at: Moment,
}

impl Hints {
    pub(super) fn new() -> Self {
        let (by_name, pending) = (BTreeSet::new(), BTreeSet::new());
        Self { are_given: false, by_name, pending, budget: BUDGET, grew_at: Moment::ZERO }
    }

    /// A hold is tracked from now on. The store watches it once it is extended, so that is soon.
    pub(super) fn add(&mut self, id: TrackingId, tracked: &mut TrackedHold, now: Moment) {
        if !self.are_given || !tracked.hold.lock.kind.is_plain_string() {
            return;
        }
        self.by_name.insert((hash(&tracked.hold.lock.name), id));
        let first_extend = now + FIRST_EXTEND_WITHIN;
        // An extend would begin a session that a short hold does without.
        if tracked.hold.session.has_begun() && tracked.schedule.due() > first_extend {
            tracked.schedule.verify_soon(first_extend);
        }
    }

    /// A hold is not tracked any more.
    pub(super) fn remove(&mut self, id: TrackingId, name: &LockName) {
        if self.are_given {
            self.by_name.remove(&(hash(name), id));
            self.pending.remove(&id);
        }
    }

    /// A hold is being extended: that follows its hint.
    pub(super) fn settle(&mut self, id: TrackingId) {
        self.pending.remove(&id);
    }

    /// A hold is gone: its hint was right (2).
    pub(super) fn was_right(&mut self) {
        self.budget = BUDGET.min(self.budget + 1);
    }

    /// When the next one is followed.
    pub(super) fn next(&self) -> Option<Moment> {
        let at = if self.budget > 0 { Moment::ZERO } else { self.grew_at + INTERVAL };
        (!self.pending.is_empty()).then_some(at)
    }

    /// Takes a hold whose hint is followed now.
    fn take(&mut self, now: Moment) -> Option<TrackingId> {
        if self.pending.is_empty() {
            return None;
        }
        let grown = usize::try_from(now.since(self.grew_at).as_micros() / INTERVAL.as_micros());
        let grown = grown.unwrap_or(BUDGET);
        if grown > 0 {
            (self.budget, self.grew_at) = (BUDGET.min(self.budget.saturating_add(grown)), now);
        }
        self.budget = self.budget.checked_sub(1)?;
        self.pending.pop_first()
    }
}

impl State {
    /// Follows the hints for which there is a budget.
    pub(super) fn follow_hints(&mut self, now: Moment) {
        while let Some(id) = self.hints.take(now) {
            match self.tracked.get_mut(&id).filter(|tracked| !tracked.lost) {
                Some(tracked) if !tracked.schedule.is_verification_pending() => {
                    tracked.schedule.verify_soon(now);
                    self.reschedule(id);
                }
                // Nothing more is sent.
                _ => self.hints.was_right(),
            }
        }
    }
}

impl Shared {
    /// Has the store give hints, before the first hold is tracked.
    pub(super) fn watch_holds(self: &Arc<Self>) {
        let watcher = Arc::new(KeeperHandle(Arc::downgrade(self)));
        let are_given = self.store.watch_holds(watcher);
        self.state().hints.are_given = are_given;
    }
}

impl HoldWatcher for KeeperHandle {
    fn changed(&self, name: &LockName) {
        let Some(shared) = self.0.upgrade() else { return };
        let hash = hash(name);
        let mut state = shared.state();
        let Hints { by_name, pending, .. } = &mut state.hints;
        let before = pending.len();
        pending
            .extend(by_name.range((hash, TrackingId(0))..=(hash, TrackingId(u64::MAX))).map(|(_, id)| *id));
        let is_new = pending.len() > before;
        drop(state);
        if is_new {
            shared.wake.notify_one();
        }
    }

    fn all_changed(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut guard = shared.state();
        let State { hints, tracked, .. } = &mut *guard;
        hints.pending.extend(tracked.iter().filter(|(_, tracked)| !tracked.lost).map(|(id, _)| *id));
        drop(guard);
        shared.wake.notify_one();
    }
}

fn hash(name: &LockName) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn followed(hints: &mut Hints, now: Moment) -> usize {
        std::iter::from_fn(|| hints.take(now)).count()
    }

    #[test]
    fn wrong_hints_are_followed_at_a_limited_rate_and_right_ones_at_once() {
        let mut hints = Hints::new();
        hints.pending.extend((0..10_000).map(TrackingId));
        assert_eq!(followed(&mut hints, ms(10_000)), BUDGET);
        assert_eq!(hints.next(), Some(ms(10_010)));
        assert_eq!(followed(&mut hints, ms(10_009)), 0);
        assert_eq!(followed(&mut hints, ms(10_010)), 1);
        assert_eq!(followed(&mut hints, ms(11_010)), 100);
        (0..50).for_each(|_| hints.was_right());
        assert_eq!(hints.next(), Some(Moment::ZERO));
        assert_eq!(followed(&mut hints, ms(11_010)), 50);
        (0..2 * BUDGET).for_each(|_| hints.was_right());
        assert_eq!(followed(&mut hints, ms(11_010)), BUDGET);
    }

    #[test]
    fn without_a_hint_nothing_is_due() {
        let mut hints = Hints::new();
        assert_eq!((hints.next(), followed(&mut hints, ms(1))), (None, 0));
        hints.pending.insert(TrackingId(1));
        hints.settle(TrackingId(1));
        assert_eq!((hints.next(), followed(&mut hints, ms(1))), (None, 0));
    }
}
