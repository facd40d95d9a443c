//! A guard becomes invalid before the store ends its hold, and the loss is reported.

use super::{Check, CheckContext, CheckResult};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId, NewGuard, ServerEvent, TaskEvent,
    TaskId, session_ends,
};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long the report of an expired lease may take.
const REPORTED_WITHIN: Duration = Duration::from_millis(60);
/// The same if the store has reported the hold gone. The engine first requests the reason, within a second.
const REASON_REPORTED_WITHIN: Duration = Duration::from_millis(1100);
/// How long after its due time a renewal may take, with clock drift.
const RENEWAL_SLACK: Duration = Duration::from_millis(700);

/// The hold of a valid guard, and the session that it depends on, last at the store as long as the guard is valid. When
/// a guard becomes invalid, the loss is reported. The next renewal finds a forced release.
#[derive(Debug, Default)]
pub struct HolderValidity {
    held: BTreeMap<LockId, Vec<Held>>,
    guards: BTreeMap<GuardId, ValidGuard>,
    /// Holds that end with their sessions.
    sessions: BTreeSet<HoldId>,
    /// When sessions end at the store.
    session_ends: BTreeMap<SessionId, Instant>,
    /// Holds that were released by force, and when.
    force_released: BTreeMap<(LockId, FencingToken), Instant>,
    /// The tokens of each hold. A hold released by force can return with another token.
    tokens: BTreeMap<HoldId, BTreeSet<(LockId, FencingToken)>>,
    /// Holds that returned by a late acquire, after they were released by force and another hold had ended since.
    /// Their holders are not notified.
    returned: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct ValidGuard {
    lock: LockId,
    task: TaskId,
    fence: FencingToken,
    until: Instant,
    /// When its validity was last reported.
    reported_at: Instant,
    /// Whether its loss was reported.
    is_reported: bool,
    lease_policy: LeasePolicy,
}

impl HolderValidity {
    fn check_guard(
        &self,
        at: Instant,
        guard_id: GuardId,
        guard: ValidGuard,
        context: &CheckContext,
    ) -> CheckResult {
        let ValidGuard { lock, task, fence, until, .. } = guard;
        let hold = context.guards.hold(guard_id);
        if until <= at || self.force_released.contains_key(&(lock, fence)) {
            return Ok(());
        }
        if let Some(hold) = hold.filter(|hold| self.sessions.contains(hold)) {
            let end = self.session_ends.get(&hold.session()).copied();
            if end.is_none_or(|end| end < until) {
                return Err(format!(
                    "the guard of {task} on {lock} is valid until {until}, and its session until {end:?}"
                ));
            }
        }
        let held = self.held.get(&lock).map(Vec::as_slice).unwrap_or_default();
        match held.iter().find(|held| (Some(held.hold), held.fence) == (hold, fence)) {
            None if held.is_empty() => Err(format!(
                "the guard of {task} on {lock} is valid until {until}, and the store has no hold"
            )),
            None => Err(format!(
                "guard {fence} of {task} on {lock} is valid until {until}, and the store has {held:?}"
            )),
            Some(Held { until: Some(end), .. }) if *end < until => {
                Err(format!("the guard of {task} on {lock} is valid until {until}, and its hold until {end}"))
            }
            Some(_) => Ok(()),
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        self.session_ends = session_ends(done.sessions, done.clock);
        if let Some(Some(fence)) = done.force_released() {
            self.force_released.insert((done.lock, fence), at);
        }
        let holds = done.holds(at);
        for Held { hold, fence, liveness, .. } in &holds {
            if liveness.ends_with_session() {
                self.sessions.insert(*hold);
            }
            let tokens = self.tokens.entry(*hold).or_default();
            tokens.insert((done.lock, *fence));
            if tokens.iter().any(|old| old.1 != *fence && self.force_released.contains_key(old)) {
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
                    let mut of_lock = self.guards.iter().filter(|(_, guard)| guard.lock == done.lock);
                    of_lock
                        .try_for_each(|(guard_id, guard)| self.check_guard(at, *guard_id, *guard, context))?;
                }
            }
            Event::SessionExecuted(done) => {
                self.session_ends = session_ends(done.sessions, done.clock);
                if context.promises.exclusion {
                    self.guards
                        .iter()
                        .try_for_each(|(guard_id, guard)| self.check_guard(at, *guard_id, *guard, context))?;
                }
            }
            Event::Foreign(lock, Some(_)) => drop(self.held.remove(&lock)),
            Event::Task(
                task,
                lock,
                TaskEvent::Acquired(guard_id, NewGuard { fence, validity, lease_policy, .. }),
            ) => {
                let until = validity.until;
                // The store knows a hold that was handed off by its first token.
                let fence = context.guards.get(guard_id).map_or(fence, |known| known.hold_token);
                let guard = ValidGuard {
                    lock,
                    task,
                    fence,
                    until,
                    reported_at: at,
                    is_reported: false,
                    lease_policy,
                };
                self.guards.insert(guard_id, guard);
                if context.promises.exclusion {
                    return self.check_guard(at, guard_id, guard, context);
                }
            }
            Event::Task(_, _, TaskEvent::ValidityChanged(guard_id, validity)) => {
                let Some(guard) = self.guards.get_mut(&guard_id) else { return Ok(()) };
                (guard.until, guard.reported_at) = (validity.until, at);
                let guard = *guard;
                if context.promises.exclusion {
                    return self.check_guard(at, guard_id, guard, context);
                }
            }
            Event::Task(_, _, TaskEvent::LossReported(guard_id, _)) => {
                if let Some(guard) = self.guards.get_mut(&guard_id) {
                    guard.is_reported = true;
                }
            }
            // A conversion is not visible until it has ended.
            Event::Task(_, _, TaskEvent::Releasing(guard_id, _) | TaskEvent::Converting(guard_id)) => {
                self.guards.remove(&guard_id);
            }
            // A failover may restore a released hold.
            Event::Server(ServerEvent::FailedOver) => self.force_released.clear(),
            Event::Host(host, HostEvent::Crashed) => {
                self.guards.retain(|_, guard| guard.task.host != host);
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (guard_id, guard) in self.guards.iter().filter(|(_, guard)| !guard.is_reported) {
            let ValidGuard { lock, task, fence, .. } = *guard;
            let Some(healthy_since) =
                context.health(task.host).and_then(super::Health::background_healthy_since)
            else {
                continue;
            };
            if let Some(force_released) = self.force_released.get(&(lock, fence))
                && let LeasePolicy::Renewed(lease) = guard.lease_policy
                && at > renewal_due(*force_released.max(&healthy_since), guard.until, lease) + RENEWAL_SLACK
                && guard.until > at
                && context.guards.hold(*guard_id).is_none_or(|hold| !self.returned.contains(&hold))
            {
                return Err(format!(
                    "the guard of {task} on {lock} is still valid, and it was released by force at {force_released}"
                ));
            }
            // If a hold is found to be gone, its validity ends early.
            let (ended, within) = if guard.until < guard.reported_at {
                (guard.reported_at, REASON_REPORTED_WITHIN)
            } else {
                (guard.until, REPORTED_WITHIN)
            };
            if at > ended.max(healthy_since) + within {
                return Err(format!("the loss of {lock} at {ended} was not reported to {task}"));
            }
        }
        Ok(())
    }
}

/// When the guard is renewed at the latest, if it was last extended before `since`: a third of its lease later.
/// A hold handed off within the process may last longer than its new lease, and is renewed with two thirds of it left.
fn renewal_due(since: Instant, until: Instant, lease: Duration) -> Instant {
    since + (lease / 3).max(until.since(since + lease * 2 / 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_renewed_a_third_of_its_lease_later_or_with_two_thirds_left() {
        let at = |ms: u64| Instant(ms * 1000);
        let lease = Duration::from_secs(3);
        assert_eq!(renewal_due(at(10_000), at(11_000), lease), at(11_000));
        assert_eq!(renewal_due(at(10_000), at(13_000), lease), at(11_000));
        assert_eq!(renewal_due(at(10_000), at(40_000), lease), at(38_000));
    }
}
