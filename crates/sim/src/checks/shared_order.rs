//! Locks with several holders are granted first come, first served.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::{Acquired, HoldId, LockMode, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The waiter with the oldest unexpired queue entry is granted first, and no expired entry is granted. Exceptions: an
/// owner that already holds the lock, an upgrade, and arrivals at a latch.
///
/// Each hold has its own queue entry, so tasks of one process do not wait for each other.
#[derive(Debug, Default)]
pub struct SharedOrder {
    queues: BTreeMap<LockId, BTreeMap<HoldId, Partition>>,
    holders: BTreeMap<LockId, Vec<Held>>,
    enqueued: u64,
    /// Locks whose queue may have entries from before a data loss, in an unknown order.
    unknown: BTreeSet<LockId>,
}

/// A queue entry, as derived from replies.
#[derive(Debug, Clone, Copy)]
struct Partition {
    /// When it was created, counted in entries.
    taken: u64,
    /// The same, counted anew if it had expired before its waiter polled: others may overtake it until then.
    firm: u64,
    /// When it expires, in the store's milliseconds.
    kept_ms: u64,
    /// Set if it is that of an upgrade.
    upgrades: bool,
}

impl SharedOrder {
    fn executed(&mut self, done: &Execution<'_>, at: Instant) -> CheckResult {
        let places = done.state.record.as_ref().map(|record| &record.entries);
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
        // Whether an entry was removed rightly is not a question of order.
        there.extend(new.iter().map(|held| held.hold));
        queue.retain(|hold, _| there.contains(hold));
        // An upgrade without an upgradable read is refused, and has no entry. The read may have been granted by this
        // very operation.
        let upgrader = before.iter().find(|held| held.mode == LockMode::Upgradable && held.lasts(at));
        if upgrader.is_none() {
            queue.retain(|_, place| !place.upgrades);
        }
        for held in new {
            let own = |other: &&Held| other.hold != held.hold && other.owner == held.owner;
            let has_other = held.owner.is_some() && now.iter().chain(&before).any(|other| own(&other));
            let passes = match held.mode {
                LockMode::Read | LockMode::Upgradable => has_other,
                LockMode::Upgrade | LockMode::CountDown { .. } => true,
                _ => false,
            };
            let asked = done.acquires().is_some_and(|(ask, _)| ask.claim.hold == held.hold);
            granted(done, queue, held, now_ms, asked, passes)?;
        }
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(wanted) = &ask.queue
        {
            self.enqueued += 1;
            // An upgrade goes ahead of all waiters.
            let fresh = if ask.mode == LockMode::Upgrade { 0 } else { self.enqueued };
            let kept_ms = now_ms + wanted.ttl_ms;
            let place = queue.entry(ask.claim.hold).or_insert(Partition {
                taken: fresh,
                firm: fresh,
                kept_ms,
                upgrades: ask.mode == LockMode::Upgrade,
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
    queue: &mut BTreeMap<HoldId, Partition>,
    held: &Held,
    now_ms: u64,
    asked: bool,
    passes: bool,
) -> CheckResult {
    let hold = held.hold;
    let taken = match queue.remove(&hold) {
        // A poll revives its own entry, however long ago it expired.
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
    let passed = |(_, place): &(&HoldId, &Partition)| place.kept_ms >= now_ms && place.firm < taken;
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
            // Which entries expire is unknown once the clock is set.
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
