//! After a release has returned, the client sends nothing about its hold, unless it had no answer, connects again, or
//! begins another session.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, HostEvent, TaskEvent, claim_of};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HoldId, Op, SessionId, SessionOp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a request may wait for a connection, and the drift of the clock that measures it.
const CALL_TIMEOUT: Duration = Duration::from_millis(2200);

/// How often a release may be sent again after a connection was made again.
const REPEATED_PER_RECONNECT: u32 = 3;

/// After a release has returned, the client sends nothing about its hold. A release without an answer may go on.
/// Only when it has connected again, or begun another session, may it repeat the release: the store may have the hold again. A cached hold may be extended until its process begins to
/// release it. After a process has ended, or has ended its session, it sends no heartbeat.
#[derive(Debug, Default)]
pub struct AfterRelease {
    /// Holds whose release has returned.
    released: BTreeSet<HoldId>,
    /// Those of a guard on several locks whose release returned while the keeper had no connection. An idle hold is
    /// extended, and another task may release it with a request of its own: the extend waits for the connection.
    extend_may_wait: BTreeSet<HoldId>,
    /// Sessions that their process has ended.
    ended_sessions: BTreeSet<SessionId>,
    /// Processes that have ended, and whether a heartbeat of theirs may have been waiting for a connection.
    ended_hosts: BTreeMap<HostId, bool>,
    /// When the connection of each keeper came up last: what has waited for it is sent then.
    connected_at: BTreeMap<HostId, Instant>,
    /// The hold of each release that has no reply yet, by its message.
    releases: BTreeMap<u64, HoldId>,
    /// The last release of each hold that was sent, until it has a reply.
    last_unanswered: BTreeMap<HoldId, u64>,
    /// Holds of which a release had a reply.
    answered: BTreeSet<HoldId>,
    /// Holds whose release has failed.
    failed: BTreeSet<HoldId>,
    /// How often each process has connected again, perhaps to a store that has lost data, or begun another session.
    reconnects: BTreeMap<HostId, u32>,
    /// The session that each process began last, or tried to begin first.
    begun: BTreeMap<HostId, SessionId>,
    /// The session of each request to begin one that has no reply yet, by its message.
    begins: BTreeMap<u64, SessionId>,
    /// The same when a hold was first released, and how often its release has been sent since that returned.
    repeated: BTreeMap<HoldId, (u32, u32)>,
}

impl AfterRelease {
    /// A process begins to release a hold.
    fn is_releasing(&mut self, host: HostId, hold: HoldId) {
        let reconnects = self.reconnects.get(&host).copied().unwrap_or_default();
        self.repeated.entry(hold).or_insert((reconnects, 0));
    }

    /// Whether a release may be sent although one has returned.
    fn may_repeat(&mut self, host: HostId, hold: HoldId) -> bool {
        let goes_on = self.failed.contains(&hold) && !self.answered.contains(&hold);
        if goes_on || self.last_unanswered.contains_key(&hold) {
            return true;
        }
        let reconnects = self.reconnects.get(&host).copied().unwrap_or_default();
        let Some((before, repeated)) = self.repeated.get_mut(&hold) else { return false };
        *repeated += 1;
        *repeated <= (reconnects - *before) * REPEATED_PER_RECONNECT
    }
}

impl Check for AfterRelease {
    fn name(&self) -> &'static str {
        "after_release"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Task(task, _, TaskEvent::Releasing(guard_id, _)) => {
                if let Some(hold) = context.guards.hold(guard_id) {
                    self.is_releasing(task.host, hold);
                }
            }
            Event::Task(task, _, TaskEvent::Released(guard_id, left)) => {
                // A successful release that was not sent means that the hold is cached.
                let is_over = left.is_none() || context.guards.is_released(guard_id);
                let hold = context.guards.hold(guard_id).filter(|_| is_over);
                self.released.extend(hold);
                self.failed.extend(hold.filter(|_| left.is_none()));
                let is_multi = context.guards.get(guard_id).is_some_and(|known| known.is_multi);
                let extend_may_wait = is_multi && !context.keeper_is_connected(task.host);
                self.extend_may_wait.extend(hold.filter(|_| extend_may_wait));
            }
            Event::Host(host, HostEvent::Ended) => {
                let may_wait =
                    !context.keeper_is_connected(host) || self.connected_at.get(&host) == Some(&at);
                self.ended_hosts.insert(host, may_wait);
            }
            Event::Host(host, HostEvent::LinkUp { keeper: true }) => {
                self.connected_at.insert(host, at);
            }
            Event::Host(host, HostEvent::LinkUp { keeper: false }) => {
                *self.reconnects.entry(host).or_default() += 1;
            }
            Event::SessionSent { op: SessionOp::End(session), .. } => {
                self.ended_sessions.insert(*session);
            }
            Event::SessionSent { host, message, op: SessionOp::Heartbeat(heartbeat), .. } => {
                // A process that was about to begin another session begins and ends it.
                let is_over = heartbeat.begin.is_none() && self.ended_hosts.get(&host) == Some(&false);
                if is_over || self.ended_sessions.contains(&heartbeat.session) {
                    let session = heartbeat.session;
                    return Err(format!("{host} sends {message}, a heartbeat of {session}, which has ended"));
                }
                if heartbeat.begin.is_some() {
                    self.begun.entry(host).or_insert(heartbeat.session);
                    self.begins.insert(message, heartbeat.session);
                }
            }
            Event::SessionAnswered { host, message, reply } => {
                if let Some(session) = self.begins.remove(&message).filter(|_| reply.is_some())
                    && self.begun.insert(host, session) != Some(session)
                {
                    *self.reconnects.entry(host).or_default() += 1;
                }
            }
            Event::Answered { message, reply, .. } => {
                if let Some(hold) = self.releases.remove(&message).filter(|_| reply.is_some()) {
                    self.answered.insert(hold);
                    if self.last_unanswered.get(&hold) == Some(&message) {
                        self.last_unanswered.remove(&hold);
                    }
                }
            }
            Event::Sent { host, message, lock, op } => {
                let Some(hold) = claim_of(op).map(|claim| claim.hold) else { return Ok(()) };
                let is_extend = matches!(op, Op::Extend(_));
                let given_up = context.guards.given_up(&hold);
                // How long after the first release of the hold it may have waited is bounded below.
                let waited = is_extend && given_up.is_some() && self.extend_may_wait.contains(&hold);
                let is_release = matches!(op, Op::Release(_));
                let is_late = self.released.contains(&hold) && !waited;
                if is_late && !(is_release && self.may_repeat(host, hold)) {
                    return Err(format!(
                        "{host} sends {message} about {hold:?} of {lock}, whose release has returned"
                    ));
                }
                if is_release {
                    self.is_releasing(host, hold);
                    self.releases.insert(message, hold);
                    self.last_unanswered.insert(hold, message);
                }
                if is_extend
                    && !context.is_resuming(host, at)
                    && given_up.is_some_and(|since| at > since + CALL_TIMEOUT)
                {
                    return Err(format!(
                        "{host} sends {message} to extend {hold:?} of {lock}, which it releases"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{HOST, LOCK, context, hold};
    use leasehold_core::{Claim, Extend, Kind, Release, ReleaseAction};

    #[test]
    fn an_extend_that_has_waited_for_a_connection_may_be_sent_when_its_process_is_resumed() {
        let (mut context, claim) = (context(Kind::Mutex), Claim { hold: hold(1), value: None });
        let release = Op::Release(Release {
            claim: claim.clone(),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        });
        context.observe(Instant(0), &Event::Sent { host: HOST, message: 1, lock: LOCK, op: &release });
        assert_eq!(context.guards.given_up(&hold(1)), Some(Instant(0)));
        let op =
            Op::Extend(Extend { claim, lease_ms: 30_000, keep_record: false, reserve: None, fence: None });
        let (early, late, later) = (Instant(2_000_000), Instant(3_000_000), Instant(3_000_001));
        let mut check = AfterRelease::default();
        let mut send = |at, events: &[Event<'_>]| {
            for event in events {
                context.observe(at, event);
            }
            check.observe(at, &Event::Sent { host: HOST, message: 2, lock: LOCK, op: &op }, &context)
        };
        send(early, &[]).expect("its time limit has not passed");
        send(late, &[]).expect_err("it has");
        send(late, &[Event::Host(HOST, HostEvent::Resumed)]).expect("a stopped process has no time limit");
        send(later, &[]).expect_err("it runs again");
    }
}
