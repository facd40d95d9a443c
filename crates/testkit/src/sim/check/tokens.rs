//! Every hold has a greater token than all before it.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, LockId, TaskEvent};
use crate::sim::time::Instant;
use leasehold_core::{FencingToken, HoldId};
use std::collections::BTreeMap;

/// Every hold of a lock has a greater fencing token than all before it, also where the store has lost its data; and a
/// task has the token that the store gave to its process.
#[derive(Debug, Default)]
pub struct Tokens {
    given: BTreeMap<LockId, BTreeMap<FencingToken, HoldId>>,
}

impl Check for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn observe(&mut self, _at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                let Some((claim, fence, _)) = done.holder() else { return Ok(()) };
                let given = self.given.entry(done.lock).or_default();
                if given.get(&fence) == Some(&claim.hold) {
                    // Seen before; a replica may bring back what was over.
                    return Ok(());
                }
                if let Some((last, hold)) = given.last_key_value().filter(|(last, _)| **last >= fence) {
                    let (lock, now) = (done.lock, claim.hold);
                    return Err(format!("{lock} had {last} ({hold:?}) before, and now {fence} ({now:?})"));
                }
                given.insert(fence, claim.hold);
            }
            Event::Task(task, lock, TaskEvent::Acquired(fence, ..)) => {
                let hold = self.given.get(&lock).and_then(|given| given.get(&fence));
                if hold.and_then(|hold| scene.host(hold.session())) != Some(task.host) {
                    return Err(format!("{task} has {fence} of {lock}, which the store gave to {hold:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
