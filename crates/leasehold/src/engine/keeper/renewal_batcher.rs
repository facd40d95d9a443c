//! Renewal batching: which holds are extended together, and when the keeper wakes for them.
//!
//! Each hold is due at the moment at which it needs attention. Holds with time to spare are extended together, so
//! that many holds cost few wake-ups and few requests; holds without are never delayed. What happens to a hold that
//! is due is up to the keeper.
//!
//! 1. A batch starts when a hold is due. Holds that are nearly due join it, where "nearly" depends on how long they
//!    last beyond their due time: an early extend costs a little, as the next one is due that much earlier.
//! 2. Only holds with seconds to spare are ever late, and only if there are more than one batch holds. The gaps
//!    between batches leave room for the server's other clients, and one lost reply does not hit every hold.
//! 3. No hold is later than its class allows, however many there are.

use crate::engine::TrackingId;
use leasehold_core::Moment;
use std::collections::BTreeSet;
use std::time::Duration;

/// The largest number of extends in a batch: one or two milliseconds of a server.
pub(in crate::engine) const BATCH: usize = 256;

/// The pause after a full batch.
const GAP: Duration = Duration::from_millis(5);

/// Timer granularity: holds due within this are treated as due.
const GRAIN: Duration = Duration::from_millis(2);

/// How early or late a hold may go, by how long it lasts beyond its due time.
struct Class {
    /// The hold lasts at least this long beyond its due time.
    left: Duration,
    /// How early it may go (1).
    early: Duration,
    /// How late it may go (2, 3).
    late: Duration,
}

/// Most urgent first. Going early means more extends: at most 2 % more with a lease of 30 s, less than a tenth with
/// one of a second.
const CLASSES: [Class; 4] = [
    Class { left: Duration::ZERO, early: GRAIN, late: Duration::ZERO },
    Class { left: Duration::from_millis(100), early: Duration::from_millis(10), late: Duration::ZERO },
    // The first lease of every hold.
    Class { left: Duration::from_millis(1500), early: Duration::from_millis(50), late: Duration::ZERO },
    Class {
        left: Duration::from_secs(5),
        early: Duration::from_millis(200),
        late: Duration::from_millis(300),
    },
];

/// When each hold is due.
#[derive(Debug)]
pub(in crate::engine) struct RenewalBatcher {
    /// The holds of each class, by due time.
    by_class: [BTreeSet<(Moment, TrackingId)>; CLASSES.len()],
    /// Holds that may be late do not start a batch before this (2).
    next_batch_at: Moment,
}

/// The position of a hold in its [`RenewalBatcher`].
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct BatchSlot {
    class: usize,
    due: Moment,
}

impl BatchSlot {
    /// Whether it is due by then.
    pub(in crate::engine) fn is_due_by(self, due: Moment) -> bool {
        self.due <= due
    }
}

/// A hold to be extended now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct DueHold {
    pub(in crate::engine) id: TrackingId,
    /// How much earlier than due it may go.
    pub(in crate::engine) ahead: Duration,
}

impl RenewalBatcher {
    pub(in crate::engine) fn new() -> Self {
        Self { by_class: Default::default(), next_batch_at: Moment::ZERO }
    }

    /// Adds a hold that is due at `due` and, if not extended, lasts until `until`.
    pub(in crate::engine) fn insert(&mut self, id: TrackingId, due: Moment, until: Moment) -> BatchSlot {
        let left = until.since(due);
        let class = CLASSES.iter().rposition(|class| class.left <= left).unwrap_or(0);
        self.by_class[class].insert((due, id));
        BatchSlot { class, due }
    }

    /// Removes a hold.
    pub(in crate::engine) fn remove(&mut self, id: TrackingId, slot: BatchSlot) {
        self.by_class[slot.class].remove(&(slot.due, id));
    }

    /// Removes and returns all holds to be extended now, the most urgent first.
    pub(in crate::engine) fn take(&mut self, now: Moment) -> Vec<DueHold> {
        let mut taken = Vec::new();
        let soon = now + GRAIN;
        for (class, holds) in CLASSES.iter().zip(&mut self.by_class) {
            let must_go = |due: Moment| due + class.late <= soon;
            let begins = |due: Moment| must_go(due) || (due <= soon && now >= self.next_batch_at);
            if !holds.first().is_some_and(|(due, _)| begins(*due)) {
                continue;
            }
            let before = taken.len();
            while let Some((due, id)) = holds.first().copied() {
                let is_full = taken.len() - before >= BATCH;
                // Holds that are not due yet, or may wait, only fill a batch.
                if !must_go(due) && (is_full || due > now + class.early) {
                    break;
                }
                holds.pop_first();
                taken.push(DueHold { id, ahead: class.early });
            }
            if !class.late.is_zero() && taken.len() - before >= BATCH {
                self.next_batch_at = now + GAP;
            }
        }
        taken
    }

    /// When the next hold is due.
    pub(in crate::engine) fn next(&self) -> Option<Moment> {
        let firsts = CLASSES.iter().zip(&self.by_class).filter_map(|(class, holds)| {
            let (due, _) = *holds.first()?;
            Some(due.max(self.next_batch_at.min(due + class.late)))
        });
        firsts.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(20);

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    /// Holds due at these milliseconds, which last `left` beyond that.
    fn batcher(dues: impl IntoIterator<Item = u64>, left: Duration) -> RenewalBatcher {
        let mut batcher = RenewalBatcher::new();
        for (id, due) in dues.into_iter().enumerate() {
            batcher.insert(TrackingId(id as u64), ms(due), ms(due) + left);
        }
        batcher
    }

    fn taken(batcher: &mut RenewalBatcher, now: Moment) -> usize {
        batcher.take(now).len()
    }

    #[test]
    fn a_batch_begins_when_a_hold_is_due_and_takes_those_nearly_due() {
        let mut calm = batcher([1000, 1100, 1199, 1300], LONG);
        assert_eq!(calm.next(), Some(ms(1000)));
        assert_eq!(taken(&mut calm, ms(900)), 0, "no hold is due, whatever woke the keeper");
        assert_eq!(taken(&mut calm, ms(1000)), 3);
        assert_eq!(taken(&mut calm, ms(1150)), 0);
        assert_eq!(calm.next(), Some(ms(1300)));
        assert_eq!(taken(&mut calm, ms(1300)), 1);
        assert_eq!(calm.next(), None);
    }

    #[test]
    fn what_goes_along_goes_early_by_a_small_part_of_what_it_has_left() {
        for class in &CLASSES[1..] {
            assert!(class.early * 10 <= class.left && class.late * 16 <= class.left);
        }
        for (left, early) in [(6, 2), (100, 10), (1999, 50), (5000, 200)] {
            let mut batcher = batcher([1000, 1000 + early, 1001 + early], left * MS);
            let due = batcher.take(ms(1000));
            assert_eq!(due.len(), 2, "{left} ms left");
            assert!(due.iter().all(|hold| hold.ahead == Duration::from_millis(early)));
        }
    }

    #[test]
    fn many_holds_go_in_batches_with_gaps_and_none_waits_for_long() {
        let crowd = 80 * BATCH;
        let mut batcher = batcher(std::iter::repeat_n(1000, crowd), LONG);
        let (mut now, mut sizes) = (ms(1000), Vec::new());
        while let Some(next) = batcher.next() {
            assert!(next >= now || sizes.is_empty(), "the keeper would not sleep");
            now = next;
            sizes.push(taken(&mut batcher, now));
        }
        let latest = CLASSES[3].late;
        assert_eq!(sizes.iter().sum::<usize>(), crowd);
        assert_eq!(now, ms(1000) + latest, "however many there are");
        let (last, before) = sizes.split_last().expect("there was a batch");
        assert!(before.iter().all(|size| *size == BATCH), "{before:?}");
        assert_eq!(before.len() as u128, latest.as_millis() / GAP.as_millis());
        assert!(*last >= BATCH, "the holds that have waited long enough");
    }

    #[test]
    fn urgent_holds_do_not_wait_for_others() {
        let mut batcher = batcher(std::iter::repeat_n(1000, 3 * BATCH), LONG);
        assert_eq!(taken(&mut batcher, ms(1000)), BATCH);
        let (hasty, first) = (TrackingId(u64::MAX), TrackingId(u64::MAX - 1));
        batcher.insert(hasty, ms(1001), ms(1007));
        batcher.insert(first, ms(1001), ms(3001));
        assert_eq!(batcher.next(), Some(ms(1001)), "before the next batch of the others");
        let due = batcher.take(ms(1001));
        assert_eq!(due.iter().map(|hold| hold.id).collect::<Vec<_>>(), [hasty, first]);
        assert_eq!(batcher.next(), Some(ms(1000) + GAP));
        let crowd_of_the_hasty = std::iter::repeat_n(2000, 3 * BATCH);
        assert_eq!(taken(&mut self::batcher(crowd_of_the_hasty, 6 * MS), ms(2000)), 3 * BATCH);
    }

    #[test]
    fn holds_that_go_early_do_not_make_a_batch_larger() {
        let mut batcher = batcher(std::iter::repeat_n(1000, BATCH).chain([1001]), 2000 * MS);
        batcher.insert(TrackingId(u64::MAX), ms(1010), ms(3010));
        assert_eq!(taken(&mut batcher, ms(1000)), BATCH + 1, "the holds that are due");
        assert_eq!(batcher.next(), Some(ms(1010)));
    }

    #[test]
    fn a_removed_hold_is_not_due() {
        let mut batcher = RenewalBatcher::new();
        let slot = batcher.insert(TrackingId(1), ms(1000), ms(1000) + LONG);
        batcher.insert(TrackingId(2), ms(1000), ms(1000) + LONG);
        batcher.remove(TrackingId(1), slot);
        let due = batcher.take(ms(1000));
        assert_eq!(due, [DueHold { id: TrackingId(2), ahead: CLASSES[3].early }]);
    }
}
