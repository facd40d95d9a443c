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

/// After a release has returned, the client sends nothing about its hold. A cached hold may be extended until its
/// process begins to release it. After a process has ended, or has ended its session, it sends no heartbeat.
#[derive(Debug, Default)]
pub struct AfterRelease {
    over: BTreeSet<HoldId>,
    ended: BTreeSet<SessionId>,
    /// Processes that have ended, and whether a heartbeat of theirs may have been waiting for a connection.
    gone: BTreeMap<HostId, bool>,
}

impl Check for AfterRelease {
    fn name(&self) -> &'static str {
        "after_release"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Task(_, _, TaskEvent::Released(guard_id, told)) => {
                // A successful release that was not sent means that the hold is cached.
                let is_over = told.is_none() || context.guards.is_released(guard_id);
                self.over.extend(context.guards.hold(guard_id).filter(|_| is_over));
            }
            Event::Host(host, HostEvent::Ended) => {
                self.gone.insert(host, !context.keeper_is_connected(host));
            }
            Event::SessionSent { op: SessionOp::End(session), .. } => drop(self.ended.insert(*session)),
            Event::SessionSent { host, message, op: SessionOp::Heartbeat(beat), .. } => {
                // A process that was about to begin another session begins and ends it.
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
