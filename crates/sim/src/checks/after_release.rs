//! After a release has returned nothing is sent about its hold.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, HostEvent, TaskEvent, claim_of};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HoldId, Op, SessionId, SessionOp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a question may wait for a connection, and the drift of the clock that counts it.
const CALL: Duration = Duration::from_millis(2200);

/// After a release has returned, with success or without, nothing is sent about its hold, unless its process has kept that: it
/// is lengthened until the process begins to give it back, and no more from then on. After a process has come to its
/// end, or has said that its session is over, the session does not beat.
#[derive(Debug, Default)]
pub struct AfterRelease {
    over: BTreeSet<HoldId>,
    ended: BTreeSet<SessionId>,
    /// Processes that have come to their end, and whether a beat of theirs may have waited for a connection then.
    gone: BTreeMap<HostId, bool>,
}

impl Check for AfterRelease {
    fn name(&self) -> &'static str {
        "after_release"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Task(_, _, TaskEvent::Released(guard_id, told)) => {
                // A success of which the store was not asked is that of one whose hold is kept.
                let is_over = told.is_none() || context.guards.is_released(guard_id);
                self.over.extend(context.guards.hold(guard_id).filter(|_| is_over));
            }
            Event::Host(host, HostEvent::Ended) => {
                self.gone.insert(host, !context.keeper_is_connected(host));
            }
            Event::SessionSent { op: SessionOp::End(session), .. } => drop(self.ended.insert(*session)),
            Event::SessionSent { host, message, op: SessionOp::Beat(beat), .. } => {
                // One that was about to begin another session begins it, and ends it then.
                let is_over = beat.begin.is_none() && self.gone.get(&host) == Some(&false);
                if is_over || self.ended.contains(&beat.session) {
                    let session = beat.session;
                    return Err(format!("{host} sends {message}, a beat of {session}, which has ended"));
                }
            }
            Event::Sent { host, message, lock, op } => {
                let Some(hold) = claim_of(op).map(|claim| claim.hold) else { return Ok(()) };
                if self.over.contains(&hold) {
                    return Err(format!(
                        "{host} sends {message} about {hold:?} of {lock}, whose release has returned"
                    ));
                }
                let given_up = context.guards.given_up(&hold);
                if matches!(op, Op::Extend(_)) && given_up.is_some_and(|since| at > since + CALL) {
                    return Err(format!(
                        "{host} sends {message} to lengthen {hold:?} of {lock}, which it gives back"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
