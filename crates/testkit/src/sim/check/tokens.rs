//! Every stay has a greater token than all before it.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, Gain, Held, LockId, ServerEvent, TaskEvent};
use crate::sim::time::Instant;
use leasehold_core::{FencingToken, HoldId};
use std::collections::{BTreeMap, BTreeSet};

/// Every hold of a lock has a greater fencing token than all before it, also where the store has lost its data; but an
/// owner who enters a ReentrantMutex again has the one that he has already, for as long as he stays. And a task has the token that the
/// store gave to its process.
#[derive(Debug, Default)]
pub struct Tokens {
    /// To which hold a token was given first.
    given: BTreeMap<LockId, BTreeMap<FencingToken, HoldId>>,
    /// Which tokens a hold has had: a store that has forgotten it may give it another.
    seen: BTreeSet<(HoldId, FencingToken)>,
    held: BTreeMap<LockId, Vec<Held>>,
}

impl Tokens {
    fn executed(&mut self, lock: LockId, before: &[Held], after: &[Held], is_shared: bool) -> Verdict {
        for Held { hold, fence, .. } in after {
            if self.seen.contains(&(*hold, *fence)) {
                // Seen before; a replica may bring back what was over.
                continue;
            }
            if let Some(old) = before.iter().find(|old| old.hold == *hold) {
                return Err(format!("{hold:?} has {fence} of {lock} now, and had {}", old.fence));
            }
            let given = self.given.entry(lock).or_default();
            let stays = after.iter().find(|held| !is_shared && self.seen.contains(&(held.hold, held.fence)));
            let last = given.last_key_value().filter(|(last, _)| stays.is_none() && **last >= *fence);
            if let Some((last, old)) = last {
                return Err(format!("{lock} had {last} ({old:?}) before, and now {fence} ({hold:?})"));
            }
            given.entry(*fence).or_insert(*hold);
            self.seen.insert((*hold, *fence));
        }
        Ok(())
    }
}

impl Check for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                let after = done.holds(at);
                let mut before = self.held.insert(done.lock, after.clone()).unwrap_or_default();
                before.retain(|held| held.lasts(at));
                return self.executed(done.lock, &before, &after, scene.is_shared(done.lock));
            }
            Event::Task(task, lock, TaskEvent::Acquired(grip, Gain { fence, .. })) => {
                let hold = scene.grips.hold(grip);
                if hold.and_then(|hold| scene.host(hold.session())) != Some(task.host)
                    || hold.is_none_or(|hold| !self.seen.contains(&(hold, fence)))
                {
                    return Err(format!("{task} has {fence} of {lock}, which the store gave to {hold:?}"));
                }
            }
            // Who stays is not known any more.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.held.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.held.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}
