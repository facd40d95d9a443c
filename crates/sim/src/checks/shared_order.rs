//! Who is let in to a lock that several have side by side, and who waits: nobody is passed by one who came later.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, Op, Portion};
use std::collections::{BTreeMap, BTreeSet};

/// Whoever is let in has waited longest of those whose places have not lapsed; and nobody is let in by a place that has.
/// Past all of them go only an owner who has the lock already, who becomes its writer, and those who arrive at a latch.
///
/// Each hold has a place of its own, so that tasks of one process do not wait for one another.
#[derive(Debug, Default)]
pub struct SharedOrder {
    queues: BTreeMap<LockId, BTreeMap<HoldId, Place>>,
    holders: BTreeMap<LockId, Vec<Held>>,
    enqueued: u64,
    /// Locks whose queue may have places that were taken before the store forgot, in an order that nobody here knows.
    unknown: BTreeSet<LockId>,
}

/// A place, as those who look at the replies know it.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// When it was taken, counted in places.
    taken: u64,
    /// The same, but counted anew where it had lapsed before it was taken up again: until then others may pass it.
    firm: u64,
    /// Until when it is kept, in the store's milliseconds.
    kept_ms: u64,
    /// Set if it is that of an upgrade.
    upgrades: bool,
}

impl SharedOrder {
    fn executed(&mut self, done: &Execution<'_>, at: Instant) -> CheckResult {
        let places = done.state.record.as_ref().map(|record| &record.places);
        let mut there: BTreeSet<_> =
            places.into_iter().flat_map(|places| places.values()).map(|place| place.claim.hold).collect();
        if self.unknown.contains(&done.lock) {
            if !there.is_empty() {
                return Ok(());
            }
            self.unknown.remove(&done.lock);
        }
        let now_ms = done.clock.reading_us(at) / 1000;
        let now = done.holds(at);
        let before = self.holders.insert(done.lock, now.clone()).unwrap_or_default();
        let queue = self.queues.entry(done.lock).or_default();
        if let Op::Release(release) = done.op {
            queue.remove(&release.claim.hold);
        }
        let is_new = |held: &&Held| before.iter().all(|old| (old.hold, old.fence) != (held.hold, held.fence));
        let new: Vec<_> = now.iter().filter(is_new).collect();
        // Who has lost his place has it no more; whether he should have is not a question of turns.
        there.extend(new.iter().map(|held| held.hold));
        queue.retain(|hold, _| there.contains(hold));
        // Whoever has nothing to upgrade any more is told so, and has no place; he may have something by the end of this
        // very operation.
        let upgrader = before.iter().find(|held| held.portion == Portion::Upgradable && held.lasts(at));
        if upgrader.is_none() {
            queue.retain(|_, place| !place.upgrades);
        }
        for held in new {
            let own = |other: &&Held| other.hold != held.hold && other.owner == held.owner;
            let has_other = held.owner.is_some() && now.iter().chain(&before).any(|other| own(&other));
            let passes = match held.portion {
                Portion::Read | Portion::Upgradable => has_other,
                Portion::Upgrade | Portion::Arrive { .. } => true,
                _ => false,
            };
            let asked = done.acquires().is_some_and(|(ask, _)| ask.claim.hold == held.hold);
            granted(done, queue, held, now_ms, asked, passes)?;
        }
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(wanted) = &ask.queue
        {
            self.enqueued += 1;
            // He for whom all wait comes before all who wait.
            let fresh = if ask.portion == Portion::Upgrade { 0 } else { self.enqueued };
            let kept_ms = now_ms + wanted.kept_ms;
            let place = queue.entry(ask.claim.hold).or_insert(Place {
                taken: fresh,
                firm: fresh,
                kept_ms,
                upgrades: ask.portion == Portion::Upgrade,
            });
            if place.kept_ms < now_ms {
                place.firm = fresh;
            }
            place.kept_ms = kept_ms;
        }
        Ok(())
    }
}

/// A hold has just been let in.
fn granted(
    done: &Execution<'_>,
    queue: &mut BTreeMap<HoldId, Place>,
    held: &Held,
    now_ms: u64,
    asked: bool,
    passes: bool,
) -> CheckResult {
    let hold = held.hold;
    let taken = match queue.remove(&hold) {
        // Whoever asks lives, however long ago his place lapsed.
        Some(place) if place.kept_ms < now_ms && !asked => {
            return Err(format!(
                "{hold:?} was let in to {}, and its place lapsed {} ms ago",
                done.lock,
                now_ms - place.kept_ms
            ));
        }
        Some(place) => place.taken,
        None => u64::MAX,
    };
    if passes {
        return Ok(());
    }
    let passed = |(_, place): &(&HoldId, &Place)| place.kept_ms >= now_ms && place.firm < taken;
    match queue.iter().find(passed) {
        Some((other, _)) => {
            Err(format!("{held:?} was let in to {} before {other:?}, who has waited longer", done.lock))
        }
        None => Ok(()),
    }
}

impl Check for SharedOrder {
    fn name(&self) -> &'static str {
        "shared_order"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if context.is_shared(done.lock) => return self.executed(done, at),
            // Nor does anybody know which places lapse when the clock is set.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                self.unknown.extend(self.queues.keys());
                self.queues.clear();
                self.holders.clear();
            }
            _ => {}
        }
        Ok(())
    }
}
