//! A guard becomes invalid before the store ends its hold, and the loss is reported.

use super::{Check, CheckContext, CheckResult};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId, NewGuard, ServerEvent, TaskEvent,
    TaskId, ends,
};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

/// How long the report of an expired lease may take.
const TOLD_WITHIN: Duration = Duration::from_millis(60);
/// The same if the store has reported the hold gone. The engine first requests the reason, within a second.
const TOLD_WHY_WITHIN: Duration = Duration::from_millis(1100);
/// How long after it is due a renewal may take, with a drift of clocks.
const RENEWAL_SLACK: Duration = Duration::from_millis(700);

/// While a guard is valid, the store has its hold, for as long as the guard promises, and the session that it depends
/// on. When a guard becomes invalid, the loss is reported. A forced release is noticed by the next renewal.
#[derive(Debug, Default)]
pub struct HolderValidity {
    held: BTreeMap<LockId, Vec<Held>>,
    believed: BTreeMap<GuardId, Believed>,
    /// Holds that live with their sessions.
    sessions: BTreeSet<HoldId>,
    /// When sessions end at the store.
    ends: BTreeMap<SessionId, Instant>,
    /// Holds that were released by force, and when.
    freed: BTreeMap<(LockId, FencingToken), Instant>,
    /// The tokens that a hold received. A hold released by force can return with another token.
    tokens: BTreeMap<HoldId, BTreeSet<(LockId, FencingToken)>>,
    /// Holds that returned by a late acquire, after they were released by force and another hold had ended since.
    /// Their holders are not notified.
    returned: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    lock: LockId,
    task: TaskId,
    fence: FencingToken,
    until: Instant,
    /// When the task last learned of it.
    heard: Instant,
    told: bool,
    lease_policy: LeasePolicy,
}

impl HolderValidity {
    fn judge(
        &self,
        at: Instant,
        guard_id: GuardId,
        believed: Believed,
        context: &CheckContext,
    ) -> CheckResult {
        let Believed { lock, task, fence, until, .. } = believed;
        let hold = context.guards.hold(guard_id);
        if until <= at || self.freed.contains_key(&(lock, fence)) {
            return Ok(());
        }
        if let Some(hold) = hold.filter(|hold| self.sessions.contains(hold)) {
            let end = self.ends.get(&hold.session()).copied();
            if end.is_none_or(|end| end < until) {
                return Err(format!(
                    "{task} believes in {lock} until {until}, but its session lives until {end:?} only"
                ));
            }
        }
        let held = self.held.get(&lock).map(Vec::as_slice).unwrap_or_default();
        match held.iter().find(|held| (Some(held.hold), held.fence) == (hold, fence)) {
            None if held.is_empty() => {
                Err(format!("{task} believes in {lock} until {until}, but the store holds nothing of it"))
            }
            None => Err(format!(
                "{task} believes in {fence} of {lock} until {until}, but the store holds {held:?}"
            )),
            Some(Held { until: Some(end), .. }) if *end < until => {
                Err(format!("{task} believes in {lock} until {until}, but the store until {end} only"))
            }
            Some(_) => Ok(()),
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        self.ends = ends(done.sessions, done.clock);
        if let Some(Some(fence)) = done.freed() {
            self.freed.insert((done.lock, fence), at);
        }
        let holds = done.holds(at);
        for Held { hold, fence, life, .. } in &holds {
            if life.ends_with_session() {
                self.sessions.insert(*hold);
            }
            let tokens = self.tokens.entry(*hold).or_default();
            tokens.insert((done.lock, *fence));
            if tokens.iter().any(|old| old.1 != *fence && self.freed.contains_key(old)) {
                self.returned.insert(*hold);
            }
        }
        self.held.insert(done.lock, holds);
    }
}

impl Check for HolderValidity {
    fn name(&self) -> &'static str {
        "validity"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => {
                self.executed(at, done);
                if context.promises.exclusion {
                    let mut of_it = self.believed.iter().filter(|(_, believed)| believed.lock == done.lock);
                    of_it
                        .try_for_each(|(guard_id, believed)| self.judge(at, *guard_id, *believed, context))?;
                }
            }
            Event::SessionExecuted(done) => {
                self.ends = ends(done.sessions, done.clock);
                if context.promises.exclusion {
                    self.believed
                        .iter()
                        .try_for_each(|(guard_id, believed)| self.judge(at, *guard_id, *believed, context))?;
                }
            }
            Event::Foreign(lock, Some(_)) => drop(self.held.remove(&lock)),
            Event::Task(
                task,
                lock,
                TaskEvent::Acquired(guard_id, NewGuard { fence, belief, lease_policy, .. }),
            ) => {
                let until = belief.until;
                // The store knows a hold that was handed on by the token that it has given.
                let fence = context.guards.get(guard_id).map_or(fence, |known| known.known_as);
                let believed = Believed { lock, task, fence, until, heard: at, told: false, lease_policy };
                self.believed.insert(guard_id, believed);
                if context.promises.exclusion {
                    return self.judge(at, guard_id, believed, context);
                }
            }
            Event::Task(_, _, TaskEvent::ValidityChanged(guard_id, belief)) => {
                let Some(believed) = self.believed.get_mut(&guard_id) else { return Ok(()) };
                (believed.until, believed.heard) = (belief.until, at);
                let believed = *believed;
                if context.promises.exclusion {
                    return self.judge(at, guard_id, believed, context);
                }
            }
            Event::Task(_, _, TaskEvent::LossReported(guard_id, _)) => {
                if let Some(believed) = self.believed.get_mut(&guard_id) {
                    believed.told = true;
                }
            }
            // A conversion is not visible until it has ended.
            Event::Task(_, _, TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id)) => {
                self.believed.remove(&guard_id);
            }
            // A failover may bring back what was released.
            Event::Server(ServerEvent::FailedOver) => self.freed.clear(),
            Event::Host(host, HostEvent::Crashed) => {
                self.believed.retain(|_, believed| believed.task.host != host);
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (guard_id, believed) in self.believed.iter().filter(|(_, believed)| !believed.told) {
            let Believed { lock, task, fence, .. } = *believed;
            let Some(well_since) = context.health(task.host).and_then(super::Health::stirs_since) else {
                continue;
            };
            if let Some(freed) = self.freed.get(&(lock, fence))
                && let LeasePolicy::Renewed(lease) = believed.lease_policy
                && at > freed.max(&well_since).add(lease / 3 + RENEWAL_SLACK)
                && believed.until > at
                && context.guards.hold(*guard_id).is_none_or(|hold| !self.returned.contains(&hold))
            {
                return Err(format!("{task} still believes in {lock}, which was taken by force at {freed}"));
            }
            // A hold that is found to be gone ends before its time.
            let (ended, within) = if believed.until < believed.heard {
                (believed.heard, TOLD_WHY_WITHIN)
            } else {
                (believed.until, TOLD_WITHIN)
            };
            if at > ended.max(well_since) + within {
                return Err(format!("{task} was not told that its hold of {lock} ended at {ended}"));
            }
        }
        Ok(())
    }
}
