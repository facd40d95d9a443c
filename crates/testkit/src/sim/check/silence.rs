//! After a release has returned nothing is sent about its hold.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, HostEvent, TaskEvent, claim_of};
use crate::sim::kernel::HostId;
use crate::sim::time::Instant;
use leasehold_core::{HoldId, SessionId, SessionOp};
use std::collections::{BTreeMap, BTreeSet};

/// After a release has returned, with success or without, nothing is sent about its hold; and after a process has come to
/// its end, or has said that its session is over, the session does not beat.
#[derive(Debug, Default)]
pub struct Silence {
    over: BTreeSet<HoldId>,
    ended: BTreeSet<SessionId>,
    /// Processes that have come to their end, and whether a beat of theirs may have waited for a connection then.
    gone: BTreeMap<HostId, bool>,
}

impl Check for Silence {
    fn name(&self) -> &'static str {
        "silence"
    }

    fn observe(&mut self, _at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Task(_, _, TaskEvent::Released(grip, _)) => self.over.extend(scene.grips.hold(grip)),
            Event::Host(host, HostEvent::Ended) => {
                self.gone.insert(host, !scene.keeper_is_connected(host));
            }
            Event::Attends { op: SessionOp::End(session), .. } => drop(self.ended.insert(*session)),
            Event::Attends { host, message, op: SessionOp::Beat(beat), .. } => {
                // One that was about to begin another session begins it, and ends it then.
                let is_over = beat.begin.is_none() && self.gone.get(&host) == Some(&false);
                if is_over || self.ended.contains(&beat.session) {
                    let session = beat.session;
                    return Err(format!("{host} sends {message}, a beat of {session}, which has ended"));
                }
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
