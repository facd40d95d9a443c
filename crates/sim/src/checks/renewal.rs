//! What the store said is told, a hold is renewed, and a given lease lasts as long as it was given for.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId, LossScope, NewGuard, TaskEvent, TaskId,
};
use crate::world::time::Instant;
use leasehold_core::{Ended, Extended, Fate, FencingToken, HoldId, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// By how much a given lease may fall short, beside an eighth of it, for what an extend would not be worth, and for the
/// drift of clocks: round trips.
const SHORT_BY: Duration = Duration::from_millis(150);

/// The longest life of a session without a beat, and the drift of clocks.
const SESSION: Duration = Duration::from_secs(11);

/// How long an answer may wait for the others of its batch.
const HEEDED_WITHIN: Duration = Duration::from_millis(60);

/// What the store said of a hold is what its task is told; a hold that is renewed is not lost where nothing went wrong; a
/// given lease is neither longer than it was given for, nor much shorter where nothing went wrong.
#[derive(Debug, Default)]
pub struct Renewal {
    kept: BTreeMap<GuardId, AnyGuard>,
    /// When it was that a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// What is asked by a message.
    asked: BTreeMap<u64, Asked>,
    /// What was last said of the release of a hold, and how often its owner has the lock yet.
    released: BTreeMap<HoldId, (Fate, u64)>,
    /// Who must not believe any more, once time goes on.
    refused: Vec<(Instant, HoldId)>,
    /// What was taken by force.
    freed: BTreeSet<(LockId, FencingToken)>,
    /// What was taken from sessions that were dead.
    evicted: BTreeSet<HoldId>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// What was given back, as it was.
    release_guard: BTreeMap<GuardId, (Instant, AnyGuard)>,
    /// The longest lease of an owner's stay: it rules for whoever enters again.
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
    /// Set to when it is to end if it is had together with others: how long it took until all were had nobody sees.
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
                self.released.insert(hold, (released.found, released.left));
            }
            _ => {}
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        if let Some(Some(fence)) = done.freed() {
            self.freed.insert((done.lock, fence));
        }
        let holds = done.holds(at);
        let entries = done.state.value.as_ref().and_then(|value| value.content.entries());
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
                // The drift is that of the whole lease, of which little may be left when the answer comes.
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

    /// What the store said of a release is what its task was told.
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
        // Its process keeps it, and the store was not asked. Of several that count as lost since one of them was the others may
        // be kept, and nobody sees whether the store was asked since.
        let is_asked = context.guards.is_released(guard_id);
        let may_be_kept =
            |at: Instant, kept: &AnyGuard| kept.ends.is_some() || (at < kept.until && !is_asked);
        let is_kept = told == Some(0)
            && self.release_guard.get(&guard_id).is_some_and(|(at, kept)| may_be_kept(*at, kept));
        let is_right = match said {
            Some((Fate::Held | Fate::Ended(Ended::Released), left)) => told == Some(left),
            _ => told.is_none(),
        };
        if is_right || is_kept {
            return Ok(());
        }
        Err(format!("{task} was told {told:?} of its release of {lock}, the store said {said:?}"))
    }

    /// A lease that was asked for in an owner's stay.
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

    /// A given lease is not believed for longer than it was given for, or another of the same stay.
    fn not_beyond(&self, guard_id: GuardId) -> CheckResult {
        let Some(kept) = self.kept.get(&guard_id) else { return Ok(()) };
        let AnyGuard { task, lock, until, bound, .. } = *kept;
        let is_given = matches!(kept.lease_policy, LeasePolicy::Given(_)) && !kept.is_extended;
        // A clock that runs slow lets it last a little longer in true time.
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
        // A read that a write was made into was had before the write was given back, and its task has it only then.
        let is_new = context.guards.get(guard_id).is_some_and(|known| !known.was_handed_off());
        let since = if is_new { kept.acquired.min(granted) } else { kept.acquired };
        let well = context.health(task.host).and_then(Health::well_since).is_some_and(|well| well <= since);
        if !well || context.upset_at.is_some_and(|upset| upset >= granted) {
            return Ok(());
        }
        // Where the store has forgotten a session, or its clock was set, it takes that for dead which does not know so yet.
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
