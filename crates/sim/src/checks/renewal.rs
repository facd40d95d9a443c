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
const SHORT_BY: Duration = Duration::from_millis(150);

/// The longest life of a session without a beat, and the drift of clocks.
const SESSION: Duration = Duration::from_secs(11);

/// How long an answer may wait for the others of its batch.
const HEEDED_WITHIN: Duration = Duration::from_millis(60);

/// Tasks receive what the store replied. A renewed hold is not lost without a fault. A given lease is never longer
/// than given, and not much shorter without a fault.
#[derive(Debug, Default)]
pub struct Renewal {
    kept: BTreeMap<GuardId, AnyGuard>,
    /// When it was that a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// The request of a message.
    asked: BTreeMap<u64, Asked>,
    /// The last reply to the release of a hold, and the holds that its owner has left.
    released: BTreeMap<HoldId, (HoldStatus, u64)>,
    /// Holds that the store has refused to extend, and that must become invalid.
    refused: Vec<(Instant, HoldId)>,
    /// Holds that were released by force.
    freed: BTreeSet<(LockId, FencingToken)>,
    /// Holds that were evicted from lapsed sessions.
    evicted: BTreeSet<HoldId>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// Guards that were released, as they were.
    release_guard: BTreeMap<GuardId, (Instant, AnyGuard)>,
    /// The longest lease of an owner's tenure, which applies to all its holds.
    longest: BTreeMap<(LockId, FencingToken), Duration>,
}

#[derive(Debug, Clone, Copy)]
struct AnyGuard {
    task: TaskId,
    lock: LockId,
    /// The token by which the store knows the hold.
    known_as: FencingToken,
    lease_policy: LeasePolicy,
    acquired: Instant,
    until: Instant,
    /// For how long it may be believed at most, as it was acquired.
    bound: Duration,
    /// Set to the end of the lease for one of several locks: the duration of the whole acquire is not visible.
    ends: Option<Instant>,
    /// Set once its user has lengthened it: then it lasts longer than it was given for.
    is_extended: bool,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Extend(HoldId),
    Release(HoldId),
}

impl Renewal {
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        match (self.asked.remove(&message), reply) {
            (Some(Asked::Extend(hold)), Some(Reply::Extend(Extended::NotHeld))) => {
                self.refused.push((at, hold));
            }
            (Some(Asked::Release(hold)), Some(Reply::Release(released))) => {
                self.released.insert(hold, (released.status, released.remaining_holds));
            }
            _ => {}
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        if let Some(Some(fence)) = done.freed() {
            self.freed.insert((done.lock, fence));
        }
        let holds = done.holds(at);
        let entries = done.state.value.as_ref().and_then(|value| value.content.reentrant_holds());
        if let Some((fence, lease_ms)) = entries.and_then(|entries| Some((entries.fence?, entries.lease_ms)))
        {
            self.rules(done.lock, fence, Duration::from_millis(lease_ms));
        }
        for held in &holds {
            self.granted.entry(held.hold).or_insert(at);
        }
        let before = self.held.insert(done.lock, holds.clone()).unwrap_or_default();
        if let Some(dead) = done.evicts() {
            let gone = before.iter().filter(|held| holds.iter().all(|now| now.hold != held.hold));
            self.evicted.extend(gone.map(|held| held.hold).filter(|hold| hold.session() == dead));
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
            TaskEvent::Acquired(guard_id, NewGuard { fence, belief, lease_policy, together, .. }) => {
                let (until, acquired) = (belief.until, at);
                let bound = self.bound(lock, fence, lease_policy);
                let ends = together.then_some(until);
                let known_as = context.guards.get(guard_id).map_or(fence, |known| known.known_as);
                let kept = AnyGuard {
                    task,
                    lock,
                    known_as,
                    lease_policy,
                    acquired,
                    until,
                    bound,
                    ends,
                    is_extended: false,
                };
                self.kept.insert(guard_id, kept);
                return self.not_beyond(guard_id);
            }
            TaskEvent::ValidityChanged(guard_id, belief) => {
                if let Some(kept) = self.kept.get_mut(&guard_id) {
                    kept.until = belief.until;
                }
                return self.not_beyond(guard_id);
            }
            TaskEvent::Extends(guard_id) => {
                if let Some(kept) = self.kept.get_mut(&guard_id) {
                    kept.is_extended = true;
                }
            }
            TaskEvent::Extended(guard_id, until) => {
                let Some(kept) = self.kept.get(&guard_id) else { return Ok(()) };
                // It is believed no longer than the session.
                let session_until = context.health(task.host).and_then(Health::session_until);
                let until = session_until.map_or(until, |end| end.min(until));
                // Drift counts over the whole lease, of which little may be left when the reply arrives.
                let short = until.since(at) / 10 + Duration::from_millis(60);
                if kept.until + short < until {
                    return Err(format!(
                        "{task} extended {lock} until {until}, and has it until {}",
                        kept.until
                    ));
                }
            }
            TaskEvent::LossReported(guard_id, LossScope::This) => return self.lost(at, guard_id, context),
            TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id) => {
                let kept = self.kept.remove(&guard_id);
                self.release_guard.extend(kept.map(|kept| (guard_id, (at, kept))));
            }
            TaskEvent::Released(guard_id, told) => {
                return self.release_guard(task, lock, guard_id, told, context);
            }
            _ => {}
        }
        Ok(())
    }

    /// The task receives the store's reply to its release.
    fn release_guard(
        &self,
        task: TaskId,
        lock: LockId,
        guard_id: GuardId,
        told: Option<u64>,
        context: &CheckContext,
    ) -> CheckResult {
        let hold = context.guards.hold(guard_id);
        let said = hold.and_then(|hold| self.released.get(&hold)).copied();
        // The hold is cached, and nothing was sent. Of several locks of which one was lost, the others may be cached,
        // and whether a release was sent is not visible.
        let is_asked = context.guards.is_released(guard_id);
        let may_be_kept =
            |at: Instant, kept: &AnyGuard| kept.ends.is_some() || (at < kept.until && !is_asked);
        let is_kept = told == Some(0)
            && self.release_guard.get(&guard_id).is_some_and(|(at, kept)| may_be_kept(*at, kept));
        let is_right = match said {
            Some((HoldStatus::Held | HoldStatus::Ended(Ended::Released), left)) => told == Some(left),
            _ => told.is_none(),
        };
        if is_right || is_kept {
            return Ok(());
        }
        Err(format!("{task} was told {told:?} of its release of {lock}, the store said {said:?}"))
    }

    /// A lease requested within an owner's tenure.
    fn rules(&mut self, lock: LockId, fence: FencingToken, lease: Duration) {
        let longest = self.longest.entry((lock, fence)).or_default();
        *longest = lease.max(*longest);
    }

    /// For how long a hold that was just acquired may be believed at most, if nothing lengthens it.
    fn bound(&mut self, lock: LockId, fence: FencingToken, lease_policy: LeasePolicy) -> Duration {
        let longest = self.longest.get(&(lock, fence)).copied().unwrap_or_default();
        let bound = match lease_policy {
            LeasePolicy::Given(lease) | LeasePolicy::Renewed(lease) => lease.max(longest),
            LeasePolicy::Added(lease) => lease + longest,
        };
        self.rules(lock, fence, bound);
        bound
    }

    /// A guard is valid no longer than the longest lease of its tenure.
    fn not_beyond(&self, guard_id: GuardId) -> CheckResult {
        let Some(kept) = self.kept.get(&guard_id) else { return Ok(()) };
        let AnyGuard { task, lock, until, bound, .. } = *kept;
        let is_given = matches!(kept.lease_policy, LeasePolicy::Given(_)) && !kept.is_extended;
        // A slow clock makes it last a little longer in true time.
        if is_given && until > kept.acquired + bound + bound / 15 {
            return Err(format!("{task} believes in {lock} until {until}, which was given for {bound:?}"));
        }
        Ok(())
    }

    /// A task lost its hold: something must have gone wrong since it was acquired, or its lease is over.
    fn lost(&self, at: Instant, guard_id: GuardId, context: &CheckContext) -> CheckResult {
        let Some(kept) = self.kept.get(&guard_id) else { return Ok(()) };
        let AnyGuard { task, lock, .. } = *kept;
        let hold = context.guards.hold(guard_id);
        let granted = hold.and_then(|hold| self.granted.get(&hold)).copied().unwrap_or(at);
        // A read from a downgrade was acquired before the write was released, but the task has it only afterwards.
        let is_new = context.guards.get(guard_id).is_some_and(|known| !known.was_handed_off());
        let since = if is_new { kept.acquired.min(granted) } else { kept.acquired };
        let well = context.health(task.host).and_then(Health::well_since).is_some_and(|well| well <= since);
        if !well || context.upset_at.is_some_and(|upset| upset >= granted) {
            return Ok(());
        }
        // Once the store has forgotten a session, or its clock was set, it takes for lapsed a session that does not
        // know so.
        let is_forgotten = hold.is_some_and(|hold| self.evicted.contains(&hold))
            && context.upset_at.is_some_and(|upset| granted < upset + SESSION);
        if is_forgotten || self.freed.contains(&(lock, kept.known_as)) {
            return Ok(());
        }
        let due = match kept.lease_policy {
            LeasePolicy::Renewed(_) => {
                return Err(format!("{task} lost {lock}, which should have been renewed"));
            }
            LeasePolicy::Given(lease) | LeasePolicy::Added(lease) => {
                kept.acquired + lease.saturating_sub(lease / 8 + SHORT_BY)
            }
        };
        let due = kept.ends.map_or(due, |ends| ends.min(due));
        if at < due { Err(format!("{task} lost {lock} before {due}, when its lease ends")) } else { Ok(()) }
    }
}

impl Check for Renewal {
    fn name(&self) -> &'static str {
        "renewal"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => self.executed(at, done),
            Event::Sent { message, op: Op::Extend(extend), .. } => {
                self.asked.insert(message, Asked::Extend(extend.claim.hold));
            }
            Event::Sent { message, op: Op::Release(release), .. } => {
                self.asked.insert(message, Asked::Release(release.claim.hold));
            }
            Event::Answered { message, reply, .. } => self.answered(at, message, reply),
            Event::Task(task, lock, what) => return self.task(at, task, lock, what, context),
            Event::Host(host, HostEvent::Crashed) => self.kept.retain(|_, kept| kept.task.host != host),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        let kept = &self.kept;
        let believes = |(heard, hold): &(Instant, HoldId)| {
            let kept = context.guards.of(hold).and_then(|guard_id| kept.get(&guard_id));
            kept.filter(|kept| kept.until > at).map(|kept| (*heard, kept.lock, kept.task))
        };
        self.refused.retain(|refused| believes(refused).is_some());
        for (heard, lock, task) in self.refused.iter().filter_map(believes) {
            let well = context.health(task.host).and_then(Health::stirs_since);
            if well.is_some_and(|well| at > well.max(heard) + HEEDED_WITHIN) {
                return Err(format!("{task} believes in {lock}, and was told at {heard} that it is gone"));
            }
        }
        Ok(())
    }
}
