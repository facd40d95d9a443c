//! A loss is reported only with a cause, holds are renewed, and a given lease lasts.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId, LossScope, NewGuard, TaskEvent, TaskId,
};
use crate::world::time::Instant;
use leasehold_core::{Ended, Extended, FencingToken, HoldId, HoldStatus, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// By how much a given lease may fall short, in addition to an eighth: extends that are not worthwhile, drift, and
/// round trips.
const MARGIN: Duration = Duration::from_millis(150);

/// The longest lifetime of a session without a heartbeat, and the drift of clocks.
const SESSION_LIFETIME: Duration = Duration::from_secs(11);

/// How long a reply may wait for the others of its batch.
const REPORTED_WITHIN: Duration = Duration::from_millis(60);

/// A release returns what the store replied. A renewed hold is not lost without a fault. A lease without renewal never
/// lasts longer than requested, and not much shorter without a fault.
#[derive(Debug, Default)]
pub struct Renewal {
    guards: BTreeMap<GuardId, HeldGuard>,
    /// When a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// The request of a message.
    sent: BTreeMap<u64, SentRequest>,
    /// The replies to the releases of a hold, and how many holds its owner has left. A process that connects again may
    /// repeat the release, and the replies arrive in any order.
    released: BTreeMap<HoldId, Vec<(HoldStatus, u64)>>,
    /// Holds of which a release had no reply.
    unanswered: BTreeSet<HoldId>,
    /// Holds that the store has refused to extend, and that must become invalid.
    refused: Vec<(Instant, HoldId)>,
    /// Holds that were released by force.
    force_released: BTreeSet<(LockId, FencingToken)>,
    /// Holds that were evicted from lapsed sessions.
    evicted: BTreeSet<HoldId>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// Holds that expired at the store before they did by the clock of their process. Where exclusion is promised, no
    /// clock drifts so far.
    outlived: BTreeSet<HoldId>,
    /// Guards that were released, as they were.
    released_at: BTreeMap<GuardId, (Instant, HeldGuard)>,
    /// The longest lease of an owner's term, which applies to all its holds.
    longest: BTreeMap<(LockId, FencingToken), Duration>,
}

#[derive(Debug, Clone, Copy)]
struct HeldGuard {
    task: TaskId,
    lock: LockId,
    /// The token by which the store knows the hold.
    hold_token: FencingToken,
    lease_policy: LeasePolicy,
    acquired: Instant,
    until: Instant,
    /// How long it may be valid, counted from its acquire.
    longest_validity: Duration,
    /// Set to the end of the lease for one of several locks: the duration of the whole acquire is not visible.
    session_ends: Option<Instant>,
    /// Set once its task has extended it. It may then last longer than its lease.
    is_extended: bool,
}

#[derive(Debug, Clone, Copy)]
enum SentRequest {
    Extend(HoldId),
    Release(HoldId),
}

impl Renewal {
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        match (self.sent.remove(&message), reply) {
            (Some(SentRequest::Extend(hold)), Some(Reply::Extend(Extended::NotHeld))) => {
                self.refused.push((at, hold));
            }
            (Some(SentRequest::Release(hold)), None) => {
                self.unanswered.insert(hold);
            }
            (Some(SentRequest::Release(hold)), Some(Reply::Release(released))) => {
                let reply = (released.status, released.remaining_holds);
                self.released.entry(hold).or_default().push(reply);
            }
            _ => {}
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) {
        if let Some(Some(fence)) = done.force_released() {
            self.force_released.insert((done.lock, fence));
        }
        let holds = done.holds(at);
        let entries = done.state.value.as_ref().and_then(|value| value.content.reentrant_holds());
        if let Some((fence, lease_ms)) = entries.and_then(|entries| Some((entries.fence?, entries.lease_ms)))
        {
            self.record_lease(done.lock, fence, Duration::from_millis(lease_ms));
        }
        for held in &holds {
            self.granted.entry(held.hold).or_insert(at);
        }
        let before = self.held.insert(done.lock, holds.clone()).unwrap_or_default();
        let gone = || before.iter().filter(|held| holds.iter().all(|now| now.hold != held.hold));
        if let Some(dead) = done.evicts() {
            self.evicted.extend(gone().map(|held| held.hold).filter(|hold| hold.session() == dead));
        }
        for held in gone().filter(|_| !context.promises.exclusion) {
            let guard = context.guards.of(&held.hold).and_then(|guard_id| self.guards.get(&guard_id));
            if guard.zip(held.until).is_some_and(|(guard, end)| end <= at && end < guard.until) {
                self.outlived.insert(held.hold);
            }
        }
    }

    fn task(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        what: TaskEvent,
        context: &CheckContext,
    ) -> CheckResult {
        match what {
            TaskEvent::Acquired(guard_id, NewGuard { fence, validity, lease_policy, is_multi, .. }) => {
                let (until, acquired) = (validity.until, at);
                let longest_validity = self.longest_validity(lock, fence, lease_policy);
                let session_ends = is_multi.then_some(until);
                let hold_token = context.guards.get(guard_id).map_or(fence, |known| known.hold_token);
                let guard = HeldGuard {
                    task,
                    lock,
                    hold_token,
                    lease_policy,
                    acquired,
                    until,
                    longest_validity,
                    session_ends,
                    is_extended: false,
                };
                self.guards.insert(guard_id, guard);
                return self.check_given_lease(guard_id);
            }
            TaskEvent::ValidityChanged(guard_id, validity) => {
                if let Some(guard) = self.guards.get_mut(&guard_id) {
                    guard.until = validity.until;
                }
                return self.check_given_lease(guard_id);
            }
            TaskEvent::Extending(guard_id) => {
                if let Some(guard) = self.guards.get_mut(&guard_id) {
                    guard.is_extended = true;
                }
            }
            TaskEvent::Extended(guard_id, until) => {
                let Some(guard) = self.guards.get(&guard_id) else { return Ok(()) };
                // It is valid no longer than its session.
                let session_until = context.health(task.host).and_then(Health::session_until);
                let until = session_until.map_or(until, |end| end.min(until));
                // Drift counts over the whole lease, of which little may be left when the reply arrives.
                let short = until.since(at) / 10 + Duration::from_millis(60);
                if guard.until + short < until {
                    return Err(format!(
                        "{task} extended {lock} until {until}, and its guard is valid until {}",
                        guard.until
                    ));
                }
            }
            TaskEvent::LossReported(guard_id, LossScope::This) => {
                return self.check_loss(at, guard_id, context);
            }
            TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id) => {
                let guard = self.guards.remove(&guard_id);
                self.released_at.extend(guard.map(|guard| (guard_id, (at, guard))));
            }
            TaskEvent::Released(guard_id, reported) => {
                return self.released_at(task, lock, guard_id, reported, context);
            }
            _ => {}
        }
        Ok(())
    }

    /// The task receives the store's reply to its release.
    fn released_at(
        &self,
        task: TaskId,
        lock: LockId,
        guard_id: GuardId,
        reported: Option<u64>,
        context: &CheckContext,
    ) -> CheckResult {
        let hold = context.guards.hold(guard_id);
        let replied = hold.and_then(|hold| self.released.get(&hold)).map_or(&[][..], Vec::as_slice);
        // The hold is cached, and no release was sent. Of several locks of which one was lost, the others may be
        // cached, and whether a release was sent is not visible.
        let is_sent = context.guards.is_released(guard_id);
        let may_be_cached =
            |at: Instant, guard: &HeldGuard| guard.session_ends.is_some() || (at < guard.until && !is_sent);
        let is_cached = reported == Some(0)
            && self.released_at.get(&guard_id).is_some_and(|(at, guard)| may_be_cached(*at, guard));
        // The reply may be that to a repetition by the keeper.
        let has_failed = reported.is_none() && hold.is_some_and(|hold| self.unanswered.contains(&hold));
        if is_answered(replied, reported) || has_failed || is_cached {
            return Ok(());
        }
        Err(format!(
            "the release of {lock} by {task} returned {reported:?}, and the store replied {replied:?}"
        ))
    }

    /// A lease requested within an owner's term.
    fn record_lease(&mut self, lock: LockId, fence: FencingToken, lease: Duration) {
        let longest = self.longest.entry((lock, fence)).or_default();
        *longest = lease.max(*longest);
    }

    /// How long a new guard may be valid unless it is extended.
    fn longest_validity(&mut self, lock: LockId, fence: FencingToken, lease_policy: LeasePolicy) -> Duration {
        let longest = self.longest.get(&(lock, fence)).copied().unwrap_or_default();
        let longest_validity = match lease_policy {
            LeasePolicy::Given(lease) | LeasePolicy::Renewed(lease) => lease.max(longest),
            LeasePolicy::Added(lease) => lease + longest,
        };
        self.record_lease(lock, fence, longest_validity);
        longest_validity
    }

    /// A guard is valid no longer than the longest lease of its owner's term.
    fn check_given_lease(&self, guard_id: GuardId) -> CheckResult {
        let Some(guard) = self.guards.get(&guard_id) else { return Ok(()) };
        let HeldGuard { task, lock, until, longest_validity, .. } = *guard;
        let is_given = matches!(guard.lease_policy, LeasePolicy::Given(_)) && !guard.is_extended;
        // A slow clock makes it last a little longer in true time.
        if is_given && until > guard.acquired + longest_validity + longest_validity / 15 {
            return Err(format!(
                "the guard of {task} on {lock} is valid until {until}, and its lease is {longest_validity:?}"
            ));
        }
        Ok(())
    }

    /// A reported loss has a cause: a fault since the acquire, or the end of the lease.
    fn check_loss(&self, at: Instant, guard_id: GuardId, context: &CheckContext) -> CheckResult {
        let Some(guard) = self.guards.get(&guard_id) else { return Ok(()) };
        let HeldGuard { task, lock, .. } = *guard;
        let hold = context.guards.hold(guard_id);
        let granted = hold.and_then(|hold| self.granted.get(&hold)).copied().unwrap_or(at);
        // The read of a downgrade is acquired before the write is released, and the task has its guard only afterwards.
        let is_new = context.guards.get(guard_id).is_some_and(|known| !known.was_handed_off());
        let since = if is_new { guard.acquired.min(granted) } else { guard.acquired };
        let healthy =
            context.health(task.host).and_then(Health::healthy_since).is_some_and(|healthy| healthy <= since);
        if !healthy || context.last_server_event.is_some_and(|event| event >= granted) {
            return Ok(());
        }
        // A store that has forgotten a session, or whose clock was set, may evict a session that its process takes for
        // alive.
        let is_forgotten = hold.is_some_and(|hold| self.evicted.contains(&hold))
            && context.last_server_event.is_some_and(|event| granted < event + SESSION_LIFETIME);
        let has_outlived = hold.is_some_and(|hold| self.outlived.contains(&hold));
        if is_forgotten || has_outlived || self.force_released.contains(&(lock, guard.hold_token)) {
            return Ok(());
        }
        let due = match guard.lease_policy {
            LeasePolicy::Renewed(_) => {
                return Err(format!("{task} lost {lock}, which should have been renewed"));
            }
            LeasePolicy::Given(lease) | LeasePolicy::Added(lease) => {
                guard.acquired + lease.saturating_sub(lease / 8 + MARGIN)
            }
        };
        let due = guard.session_ends.map_or(due, |session_ends| session_ends.min(due));
        if at < due { Err(format!("{task} lost {lock} before its lease ended at {due}")) } else { Ok(()) }
    }
}

/// Whether a release returned one of the replies to it, or an error if there was none.
fn is_answered(replied: &[(HoldStatus, u64)], reported: Option<u64>) -> bool {
    let is_that = |(status, left): &(HoldStatus, u64)| match status {
        HoldStatus::Held | HoldStatus::Ended(Ended::Released) => reported == Some(*left),
        _ => reported.is_none(),
    };
    if replied.is_empty() { reported.is_none() } else { replied.iter().any(is_that) }
}

impl Check for Renewal {
    fn name(&self) -> &'static str {
        "renewal"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => self.executed(at, done, context),
            Event::Sent { message, op: Op::Extend(extend), .. } => {
                self.sent.insert(message, SentRequest::Extend(extend.claim.hold));
            }
            Event::Sent { message, op: Op::Release(release), .. } => {
                self.sent.insert(message, SentRequest::Release(release.claim.hold));
            }
            Event::Answered { message, reply, .. } => self.answered(at, message, reply),
            Event::Task(task, lock, what) => return self.task(at, task, lock, what, context),
            Event::Host(host, HostEvent::Crashed) => self.guards.retain(|_, guard| guard.task.host != host),
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        let guards = &self.guards;
        let still_valid = |(received, hold): &(Instant, HoldId)| {
            let guard = context.guards.of(hold).and_then(|guard_id| guards.get(&guard_id));
            guard.filter(|guard| guard.until > at).map(|guard| (*received, guard.lock, guard.task))
        };
        self.refused.retain(|refused| still_valid(refused).is_some());
        for (received, lock, task) in self.refused.iter().filter_map(still_valid) {
            let healthy = context.health(task.host).and_then(Health::background_healthy_since);
            if healthy.is_some_and(|healthy| at > healthy.max(received) + REPORTED_WITHIN) {
                return Err(format!(
                    "the guard of {task} on {lock} is valid, and the store reported at {received} that its hold is gone"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_returns_any_of_the_replies_to_it() {
        let (released, vanished) = ((HoldStatus::Ended(Ended::Released), 0), (HoldStatus::Vanished, 0));
        assert!(is_answered(&[vanished, released], Some(0)), "a repetition was answered first");
        assert!(is_answered(&[vanished, released], None));
        assert!(!is_answered(&[vanished], Some(0)));
        assert!(!is_answered(&[released], None));
        assert!(!is_answered(&[released], Some(1)));
        assert!(is_answered(&[], None) && !is_answered(&[], Some(0)));
    }
}
