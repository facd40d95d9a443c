//! Fencing tokens grow with every hold and every local hand-off.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, GuardId, Held, LockId, NewGuard, ServerEvent, TaskEvent, TaskId};
use crate::world::time::Instant;
use leasehold_core::{Extended, FencingToken, HoldId, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// Every hold has a greater fencing token than all holds and reservations of that lock before it, even after data
/// loss. Re-entrant holds of one tenure share a token. A task's token is one that the store gave to its process, or
/// reserved for it; it is greater than those of all earlier guards of the same hold. With one holder at a time, it is
/// greater than that of any earlier guard.
#[derive(Debug, Default)]
pub struct Tokens {
    /// The first hold of each token; of a reserved block, only its last token.
    granted: BTreeMap<LockId, BTreeMap<FencingToken, HoldId>>,
    /// The tokens of each hold. After data loss the store may grant it another.
    seen: BTreeSet<(HoldId, FencingToken)>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// The greatest token of a guard of a hold.
    of_hold: BTreeMap<HoldId, FencingToken>,
    /// The greatest token of a guard of a lock.
    of_lock: BTreeMap<LockId, FencingToken>,
    /// Holds that were released by force. A process may hand one off before it learns of that.
    force_released: BTreeSet<(LockId, FencingToken)>,
}

impl Tokens {
    fn executed(&mut self, lock: LockId, before: &[Held], after: &[Held], is_shared: bool) -> CheckResult {
        for Held { hold, fence, .. } in after {
            if self.seen.contains(&(*hold, *fence)) {
                // A failover may restore it.
                continue;
            }
            if let Some(old) = before.iter().find(|old| old.hold == *hold) {
                return Err(format!(
                    "the token of {hold:?} of {lock} changed to {fence}, and was {}",
                    old.fence
                ));
            }
            let granted = self.granted.entry(lock).or_default();
            let is_held =
                after.iter().find(|held| !is_shared && self.seen.contains(&(held.hold, held.fence)));
            let last = granted.last_key_value().filter(|(last, _)| is_held.is_none() && **last >= *fence);
            if let Some((last, old)) = last {
                return Err(format!("{lock} was granted with {fence} ({hold:?}) after {last} ({old:?})"));
            }
            granted.entry(*fence).or_insert(*hold);
            self.seen.insert((*hold, *fence));
        }
        Ok(())
    }

    /// Reserved tokens are greater than all before them.
    fn check_reservation(&mut self, done: &Execution<'_>) -> CheckResult {
        let Reply::Extend(Extended::Reserved { block, .. }) = done.reply else { return Ok(()) };
        let (lock, granted) = (done.lock, self.granted.entry(done.lock).or_default());
        let Some((first, claim)) = block.first().zip(done.claim()) else {
            return Err(format!("{block:?} of {lock} was reserved for {:?}", done.op));
        };
        if let Some((last, old)) = granted.last_key_value().filter(|(last, _)| **last >= first) {
            return Err(format!("{block:?} of {lock} was reserved after {last} ({old:?})"));
        }
        granted.insert(FencingToken::new(first.as_u64() + u64::from(block.remaining()) - 1), claim.hold);
        Ok(())
    }

    fn acquired(
        &mut self,
        task: TaskId,
        lock: LockId,
        guard_id: GuardId,
        new_guard: NewGuard,
        context: &CheckContext,
    ) -> CheckResult {
        let fence = new_guard.fence;
        let known = context.guards.get(guard_id).and_then(|known| Some((known.hold?, known)));
        let known = known.filter(|(hold, _)| context.host(hold.session()) == Some(task.host));
        let known = known.filter(|(hold, known)| self.seen.contains(&(*hold, known.hold_token)));
        let Some((hold, known)) = known else {
            let hold = context.guards.hold(guard_id);
            return Err(format!(
                "{task} has {fence} of {lock}, which the store did not grant to its hold {hold:?}"
            ));
        };
        if context.is_shared(lock) || context.is_reentrant(lock) {
            return Ok(());
        }
        let old = self.of_hold.insert(hold, fence);
        if let Some(old) = old.filter(|old| *old >= fence) {
            return Err(format!("{task} has {fence} of {lock} after {old} under the same hold: {known:?}"));
        }
        let last = self.of_lock.entry(lock).or_insert(fence);
        let is_smaller = *last > fence && context.promises.exclusion;
        if self.force_released.contains(&(lock, known.hold_token)) {
            return Ok(());
        }
        *last = fence.max(*last);
        if is_smaller { Err(format!("{task} has {fence} of {lock} after {last}")) } else { Ok(()) }
    }
}

impl Check for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => {
                let after = done.holds(at);
                let mut before = self.held.insert(done.lock, after.clone()).unwrap_or_default();
                before.retain(|held| held.lasts(at));
                self.force_released.extend(done.force_released().flatten().map(|fence| (done.lock, fence)));
                self.check_reservation(done)?;
                return self.executed(done.lock, &before, &after, context.is_shared(done.lock));
            }
            Event::Task(task, lock, TaskEvent::Acquired(guard_id, new_guard)) => {
                return self.acquired(task, lock, guard_id, new_guard, context);
            }
            // The holders are unknown.
            Event::Server(what) if what.makes_state_unknown() => self.held.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.held.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}
