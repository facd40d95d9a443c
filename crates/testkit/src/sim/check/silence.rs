//! After a release has returned nothing is sent about its hold.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, LockId, TaskEvent, claim_of};
use crate::sim::time::Instant;
use leasehold_core::{FencingToken, HoldId};
use std::collections::{BTreeMap, BTreeSet};

/// After a release has returned, with success or without, nothing is sent about its hold.
#[derive(Debug, Default)]
pub struct Silence {
    holds: BTreeMap<(LockId, FencingToken), HoldId>,
    over: BTreeSet<HoldId>,
}

impl Check for Silence {
    fn name(&self) -> &'static str {
        "silence"
    }

    fn observe(&mut self, _at: Instant, event: &Event<'_>, _scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                if let Some((claim, fence, _)) = done.holder() {
                    self.holds.insert((done.lock, fence), claim.hold);
                }
            }
            Event::Task(_, lock, TaskEvent::Released(fence, _)) => {
                self.over.extend(self.holds.get(&(lock, fence)));
            }
            Event::Sent { host, message, lock, op } => {
                if let Some(claim) = claim_of(op).filter(|claim| self.over.contains(&claim.hold)) {
                    return Err(format!(
                        "{host} sends {message} about {:?} of {lock}, whose release has returned",
                        claim.hold
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
