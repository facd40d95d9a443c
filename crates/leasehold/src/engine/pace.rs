//! Pace: in which batches holds are extended, and when the keeper wakes for them.
//!
//! Each hold has its turn, at the moment at which it needs attention. Who has time enough takes his turn together with
//! others, so that many holds cost few wake-ups and few requests; who has not is never kept waiting for anybody. What
//! is done when a turn has come is the keeper's.
//!
//! 1. A batch begins when somebody's turn has come. Those behind him go along if theirs is near, as measured by how
//!    long they last beyond it: a hold that goes early costs a little, and its next turn comes as much earlier.
//! 2. Only holds with seconds to spare are ever late, and only where there are more than one batch holds. Batches
//!    then leave room for what others ask of the server, and one lost reply does not hit everybody.
//! 3. Nobody is late by more than his class allows, however many there are.

use super::KeepId;
use leasehold_core::Moment;
use std::collections::BTreeSet;
use std::time::Duration;

/// How many extends go together at most: one or two milliseconds of a server.
pub(super) const BATCH: usize = 256;

/// How long the next batch waits after a full one.
const GAP: Duration = Duration::from_millis(5);

/// What would be late if it were waited for: timers are no finer than this.
const GRAIN: Duration = Duration::from_millis(2);

/// What a hold may be kept waiting for, by how long it lasts beyond its turn.
struct Class {
    /// The hold lasts for this much longer at least.
    left: Duration,
    /// It may go along that much before its turn (1).
    early: Duration,
    /// It may wait that much after its turn (2, 3).
    late: Duration,
}

/// From the hastiest to the calmest. Whoever goes early is extended more often: by 2 % at most with a lease of 30 s, by
/// less than a tenth with one of a second.
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

/// When which hold has its turn.
#[derive(Debug)]
pub(super) struct Pace {
    /// Those of each class, by their turns.
    turns: [BTreeSet<(Moment, KeepId)>; CLASSES.len()],
    /// Before this nobody goes who may be late (2).
    opens: Moment,
}

/// Where a hold stands in its [`Pace`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    class: usize,
    due: Moment,
}

impl Spot {
    /// Whether its turn comes by then.
    pub(super) fn is_by(self, due: Moment) -> bool {
        self.due <= due
    }
}

/// A hold whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) id: KeepId,
    /// It goes though its time comes only within this.
    pub(super) ahead: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { turns: Default::default(), opens: Moment::ZERO }
    }

    /// Enters a hold whose turn comes at `due`, and which lasts until `until` if it misses it.
    pub(super) fn enter(&mut self, id: KeepId, due: Moment, until: Moment) -> Spot {
        let left = until.since(due);
        let class = CLASSES.iter().rposition(|class| class.left <= left).unwrap_or(0);
        self.turns[class].insert((due, id));
        Spot { class, due }
    }

    /// Takes a hold out.
    pub(super) fn leave(&mut self, id: KeepId, place: Spot) {
        self.turns[place.class].remove(&(place.due, id));
    }

    /// Takes out all whose turn it is, the hastiest first.
    pub(super) fn take(&mut self, now: Moment) -> Vec<Turn> {
        let mut taken = Vec::new();
        let soon = now + GRAIN;
        for (class, turns) in CLASSES.iter().zip(&mut self.turns) {
            let must_go = |due: Moment| due + class.late <= soon;
            let begins = |due: Moment| must_go(due) || (due <= soon && now >= self.opens);
            if !turns.first().is_some_and(|(due, _)| begins(*due)) {
                continue;
            }
            let before = taken.len();
            while let Some((due, id)) = turns.first().copied() {
                let is_full = taken.len() - before >= BATCH;
                // Who is not due yet, or may wait, only fills a batch.
                if !must_go(due) && (is_full || due > now + class.early) {
                    break;
                }
                turns.pop_first();
                taken.push(Turn { id, ahead: class.early });
            }
            if !class.late.is_zero() && taken.len() - before >= BATCH {
                self.opens = now + GAP;
            }
        }
        taken
    }

    /// When somebody's turn comes next.
    pub(super) fn next(&self) -> Option<Moment> {
        let firsts = CLASSES.iter().zip(&self.turns).filter_map(|(class, turns)| {
            let (due, _) = *turns.first()?;
            Some(due.max(self.opens.min(due + class.late)))
        });
        firsts.min()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(20);

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    /// Holds that are due at these milliseconds, and last so much longer.
    fn pace(dues: impl IntoIterator<Item = u64>, left: Duration) -> Pace {
        let mut pace = Pace::new();
        for (id, due) in dues.into_iter().enumerate() {
            pace.enter(KeepId(id as u64), ms(due), ms(due) + left);
        }
        pace
    }

    fn taken(pace: &mut Pace, now: Moment) -> usize {
        pace.take(now).len()
    }

    #[test]
    fn a_batch_begins_when_somebody_is_due_and_takes_along_who_is_nearly() {
        let mut calm = pace([1000, 1100, 1199, 1300], LONG);
        assert_eq!(calm.next(), Some(ms(1000)));
        assert_eq!(taken(&mut calm, ms(900)), 0, "nobody is due, whatever woke the keeper");
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
            let mut pace = pace([1000, 1000 + early, 1001 + early], left * MS);
            let turns = pace.take(ms(1000));
            assert_eq!(turns.len(), 2, "{left} ms left");
            assert!(turns.iter().all(|turn| turn.ahead == Duration::from_millis(early)));
        }
    }

    #[test]
    fn a_crowd_goes_in_batches_with_gaps_and_nobody_waits_for_long() {
        let crowd = 80 * BATCH;
        let mut pace = pace(std::iter::repeat_n(1000, crowd), LONG);
        let (mut now, mut sizes) = (ms(1000), Vec::new());
        while let Some(next) = pace.next() {
            assert!(next >= now || sizes.is_empty(), "it would not sleep");
            now = next;
            sizes.push(taken(&mut pace, now));
        }
        let latest = CLASSES[3].late;
        assert_eq!(sizes.iter().sum::<usize>(), crowd);
        assert_eq!(now, ms(1000) + latest, "however many there are");
        let (last, before) = sizes.split_last().expect("there were some");
        assert!(before.iter().all(|size| *size == BATCH), "{before:?}");
        assert_eq!(before.len() as u128, latest.as_millis() / GAP.as_millis());
        assert!(*last >= BATCH, "those who have waited long enough");
    }

    #[test]
    fn who_has_no_time_waits_for_nobody() {
        let mut pace = pace(std::iter::repeat_n(1000, 3 * BATCH), LONG);
        assert_eq!(taken(&mut pace, ms(1000)), BATCH);
        let (hasty, first) = (KeepId(u64::MAX), KeepId(u64::MAX - 1));
        pace.enter(hasty, ms(1001), ms(1007));
        pace.enter(first, ms(1001), ms(3001));
        assert_eq!(pace.next(), Some(ms(1001)), "not only when the crowd goes on");
        let turns = pace.take(ms(1001));
        assert_eq!(turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), [hasty, first]);
        assert_eq!(pace.next(), Some(ms(1000) + GAP));
        let crowd_of_the_hasty = std::iter::repeat_n(2000, 3 * BATCH);
        assert_eq!(taken(&mut self::pace(crowd_of_the_hasty, 6 * MS), ms(2000)), 3 * BATCH);
    }

    #[test]
    fn those_who_go_early_do_not_make_a_batch_larger() {
        let mut pace = pace(std::iter::repeat_n(1000, BATCH).chain([1001]), 2000 * MS);
        pace.enter(KeepId(u64::MAX), ms(1010), ms(3010));
        assert_eq!(taken(&mut pace, ms(1000)), BATCH + 1, "those whose turn it is");
        assert_eq!(pace.next(), Some(ms(1010)));
    }

    #[test]
    fn who_has_left_has_no_turn() {
        let mut pace = Pace::new();
        let place = pace.enter(KeepId(1), ms(1000), ms(1000) + LONG);
        pace.enter(KeepId(2), ms(1000), ms(1000) + LONG);
        pace.leave(KeepId(1), place);
        let turns = pace.take(ms(1000));
        assert_eq!(turns, [Turn { id: KeepId(2), ahead: CLASSES[3].early }]);
    }
}
