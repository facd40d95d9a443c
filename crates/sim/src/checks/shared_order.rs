//! Locks with several holders are granted first come, first served.

use super::sharing::writes;
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
    queues: BTreeMap<LockId, BTreeMap<HoldId, QueuedWaiter>>,
    holders: BTreeMap<LockId, Vec<Held>>,
    last_number: u64,
    /// Locks whose queue may have entries from before a data loss, in an unknown order.
    unknown: BTreeSet<LockId>,
}

/// A queue entry, as derived from replies.
#[derive(Debug, Clone, Copy)]
struct QueuedWaiter {
    /// The number of the poll that created it.
    queued: u64,
    /// The number of the poll since which no later entry may overtake it. It is renewed if the entry had expired.
    fixed: u64,
    /// When it expires, in the store's milliseconds.
    expires_ms: u64,
    /// Set for an upgrade.
    upgrades: bool,
}

impl SharedOrder {
    fn executed(&mut self, done: &Execution<'_>, at: Instant) -> CheckResult {
        let entries = done.state.record.as_ref().map(|record| &record.entries);
        let mut present: BTreeSet<_> = entries
            .into_iter()
            .flat_map(|entries| entries.values())
            .map(|waiter| waiter.claim.hold)
            .collect();
        if self.unknown.contains(&done.lock) {
            if !present.is_empty() {
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
        // `Ownership` checks whether an entry may be removed.
        present.extend(new.iter().map(|held| held.hold));
        queue.retain(|hold, _| present.contains(hold));
        // An upgrade without an upgradable read is refused, and has no entry. This operation may have granted the read.
        let upgrader = before.iter().find(|held| held.mode == LockMode::Upgradable && held.lasts(at));
        if upgrader.is_none() {
            queue.retain(|_, waiter| !waiter.upgrades);
        }
        for held in new {
            let own = |other: &&Held| other.hold != held.hold && other.owner == held.owner;
            let has_other = held.owner.is_some() && now.iter().chain(&before).any(|other| own(&other));
            let may_overtake = match held.mode {
                LockMode::Read | LockMode::Upgradable => has_other,
                LockMode::Write => {
                    let mut all = now.iter().chain(&before);
                    held.owner.is_some() && all.any(|other| own(&other) && writes(other.mode))
                }
                LockMode::Upgrade | LockMode::CountDown { .. } => true,
                _ => false,
            };
            let requested = done.acquires().is_some_and(|(request, _)| request.claim.hold == held.hold);
            granted(done, queue, held, now_ms, requested, may_overtake)?;
        }
        if let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires()
            && let Some(wanted) = &request.queue
        {
            self.last_number += 1;
            // An upgrade goes ahead of all waiters.
            let number = if request.mode == LockMode::Upgrade { 0 } else { self.last_number };
            let expires_ms = now_ms + wanted.ttl_ms;
            let waiter = queue.entry(request.claim.hold).or_insert(QueuedWaiter {
                queued: number,
                fixed: number,
                expires_ms,
                upgrades: request.mode == LockMode::Upgrade,
            });
            if waiter.expires_ms < now_ms {
                waiter.fixed = number;
            }
            waiter.expires_ms = expires_ms;
        }
        Ok(())
    }
}

/// The lock was granted to a hold.
fn granted(
    done: &Execution<'_>,
    queue: &mut BTreeMap<HoldId, QueuedWaiter>,
    held: &Held,
    now_ms: u64,
    requested: bool,
    may_overtake: bool,
) -> CheckResult {
    let hold = held.hold;
    let queued = match queue.remove(&hold) {
        // A poll revives its own entry, however long ago it expired.
        Some(waiter) if waiter.expires_ms < now_ms && !requested => {
            return Err(format!(
                "{} was granted to {hold:?}, whose queue entry expired {} ms ago",
                done.lock,
                now_ms - waiter.expires_ms
            ));
        }
        Some(waiter) => waiter.queued,
        None => u64::MAX,
    };
    if may_overtake {
        return Ok(());
    }
    let overtaken =
        |(_, waiter): &(&HoldId, &QueuedWaiter)| waiter.expires_ms >= now_ms && waiter.fixed < queued;
    match queue.iter().find(overtaken) {
        Some((other, _)) => {
            Err(format!("{} was granted to {held:?} before {other:?}, which has waited longer", done.lock))
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
            Event::Server(what) if what.makes_state_unknown() => {
                self.unknown.extend(self.queues.keys());
                self.queues.clear();
                self.holders.clear();
            }
            // The queue stays, without the upgradable read that an upgrade in it depends on.
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.holders.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{LOCK, StoredLock, acquire, context, hold};
    use leasehold_core::{Acquire, Claim, Enqueue, Kind, Nonce, OwnValue, Release, ReleaseAction};

    /// A read and an upgradable read are granted; the upgrade waits, and behind it an upgradable read of the same owner and
    /// the read of another. An operator deletes the key, and the upgrade polls: all that waits behind it is granted.
    fn poll_an_upgrade_without_its_read(is_deleted: bool) -> CheckResult {
        let (mut check, mut stored) = (SharedOrder::default(), StoredLock::new(Kind::RwLock));
        let context = context(Kind::RwLock);
        let claim = |n: u8, owner: &str| Claim {
            hold: hold(n),
            value: Some(OwnValue::new(owner).expect("a plain text")),
        };
        let acquire = |n: u8, owner, mode| {
            let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 5_000 });
            Op::Acquire(Acquire { queue, lease_ms: 5_000, ..acquire(claim(n, owner), mode) })
        };
        let release = |n, owner| {
            Op::Release(Release {
                claim: claim(n, owner),
                action: ReleaseAction::Grant,
                next: None,
                history: 0,
            })
        };
        let upgrade = acquire(7, "first", LockMode::Upgrade);
        for op in [
            acquire(1, "writer", LockMode::Write),
            acquire(2, "first", LockMode::Upgradable),
            acquire(3, "reader", LockMode::Read),
            acquire(4, "other writer", LockMode::Write),
            acquire(5, "first", LockMode::Upgradable),
            acquire(6, "other reader", LockMode::Read),
            release(1, "writer"),
            upgrade.clone(),
            release(4, "other writer"),
        ] {
            let observe = |done: &Execution<'_>| check.observe(Instant(0), &Event::Executed(done), &context);
            stored.execute(Instant(0), &op, |_| false, |_, _| {}, observe)?;
        }
        stored.state.value = None;
        if is_deleted {
            check.observe(Instant(0), &Event::Server(ServerEvent::Deleted(LOCK)), &context)?;
        }
        let observe = |done: &Execution<'_>| check.observe(Instant(0), &Event::Executed(done), &context);
        stored.execute(Instant(0), &upgrade, |_| false, |_, _| {}, observe)
    }

    #[test]
    fn an_upgrade_waits_no_longer_once_its_read_was_deleted() {
        assert_eq!(poll_an_upgrade_without_its_read(true), Ok(()));
        poll_an_upgrade_without_its_read(false)
            .expect_err("a reader overtakes an upgrade that it has to wait for");
    }
}
