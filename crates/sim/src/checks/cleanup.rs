//! Holds and queue entries that no task needs end soon, and every key expires.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{
    Event, Execution, GuardId, HostEvent, LockId, ReleaseMethod, ServerEvent, TaskEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HoldId, LockMode, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a healthy process may take to undo what it does not need.
const GONE_WITHIN: Duration = Duration::from_millis(700);

/// How long after it lost interest a process may give up undoing, where it was not well all the time: from then on
/// leases do it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);

/// A hold or queue entry that no task needs ends soon, unless its request was late or its release failed: then its
/// expiry ends it. Every key of ours expires.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// The holds and queue entries of processes, with the time when they were first seen.
    there: BTreeMap<LockId, BTreeMap<HoldId, Thing>>,
    /// The tasks that acquire a lock.
    sought: BTreeMap<(HostId, LockId), Interest>,
    /// Guards that tasks hold, or when they ended.
    had: BTreeMap<GuardId, Option<Instant>>,
    /// How long processes may cache the holds of guards.
    keep_for: BTreeMap<GuardId, Duration>,
    /// Holds that end by themselves.
    excused: BTreeSet<HoldId>,
    /// When a guard was begun to be given back that ends with another.
    letting: BTreeMap<GuardId, Instant>,
    /// Holds that were given up. A later request for one was overtaken.
    given_up: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct Thing {
    host: HostId,
    since: Instant,
    until: Instant,
}

/// The tasks that acquire a lock.
#[derive(Debug, Default)]
struct Interest {
    tasks: BTreeSet<TaskId>,
    /// Those that acquire it together with other locks. What they hold meanwhile is not visible.
    with_others: BTreeSet<TaskId>,
    /// Until when there were any.
    with_others_until: Instant,
    changed: Instant,
}

impl Interest {
    fn leaves(&mut self, at: Instant, task: TaskId) {
        self.tasks.remove(&task);
        if self.with_others.remove(&task) {
            self.with_others_until = at;
        }
    }

    /// Whether a released hold may have been handed off to a task that acquires several locks.
    fn may_have_it(&self, release_guard: Instant) -> bool {
        !self.with_others.is_empty() || self.with_others_until > release_guard
    }
}

impl Cleanup {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        if let Some(value) = &done.state.value
            && value.expires_ms.is_none()
            && !done.holds(at).is_empty()
        {
            return Err(format!("the key of {} has no expiry", done.lock));
        }
        if done.out_of_time {
            self.excused.extend(done.claim().map(|claim| claim.hold));
            self.excused.extend(done.acquires().map(|(ask, _)| ask.claim.hold));
        }
        if let Op::Release(release) = done.op {
            self.given_up.insert(release.claim.hold);
        }
        let mut now = BTreeMap::new();
        let old = self.there.entry(done.lock).or_default();
        let mut add = |hold: HoldId, until: Instant| {
            let Some(host) = context.host(hold.session()) else { return };
            let since = old.get(&hold).map_or(at, |thing| thing.since);
            now.insert(hold, Thing { host, since, until });
        };
        for place in done.state.record.iter().flat_map(|record| record.entries.values()) {
            add(place.claim.hold, done.clock.shows_at((place.expires_ms + 1) * 1000));
        }
        for held in done.holds(at) {
            add(held.hold, held.until.unwrap_or(Instant(u64::MAX)));
        }
        *old = now;
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent, context: &CheckContext) {
        let interest = self.sought.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(way, _) => {
                interest.tasks.insert(task);
                interest.with_others.extend(way.is_for_several().then_some(task));
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled | TaskEvent::Admitted => {
                interest.leaves(at, task);
            }
            TaskEvent::Acquired(guard_id, gain) => {
                interest.leaves(at, task);
                self.had.insert(guard_id, None);
                self.keep_for.extend(gain.keep_for.map(|keep_for| (guard_id, keep_for)));
            }
            TaskEvent::Releasing(guard_id, ReleaseMethod::Release) => {
                let is_upgrade =
                    context.guards.get(guard_id).is_some_and(|known| known.mode == LockMode::Upgrade);
                self.letting.extend(is_upgrade.then_some((guard_id, at)));
                return;
            }
            TaskEvent::Releasing(guard_id, ReleaseMethod::Drop) => {
                // It is released before its source guard. A dropped release does not report a failure.
                let well = context.health(task.host).and_then(Health::well_since);
                let began = self.letting.remove(&guard_id);
                if began.is_some_and(|began| well.is_none_or(|well| well > began)) {
                    self.excused.extend(context.guards.hold(guard_id));
                }
                return self.lets(at, guard_id);
            }
            TaskEvent::Released(guard_id, told) => {
                if told.is_none() {
                    self.excused.extend(context.guards.hold(guard_id));
                }
                return self.lets(at, guard_id);
            }
            _ => return,
        }
        interest.changed = at;
    }

    fn lets(&mut self, at: Instant, guard_id: GuardId) {
        self.had.insert(guard_id, Some(at));
    }

    /// Since when no task needs an entry at the store.
    fn unwanted_since(
        &self,
        lock: LockId,
        hold: HoldId,
        host: HostId,
        context: &CheckContext,
    ) -> Option<Instant> {
        let guard_id = context.guards.of(&hold);
        match guard_id.and_then(|guard_id| Some((guard_id, self.had.get(&guard_id)?))) {
            Some((guard_id, until)) => {
                let release_guard = (*until)?;
                let given_up = context.guards.given_up(&hold).map(|since| since.max(release_guard));
                let keep_for = self.keep_for.get(&guard_id).copied().unwrap_or_default();
                // With the drift of clocks.
                let kept_until = release_guard + keep_for + keep_for / 15;
                if let Some(interest) =
                    self.sought.get(&(host, lock)).filter(|all| all.may_have_it(release_guard))
                {
                    let left = interest.with_others_until.max(kept_until);
                    return given_up.or(interest.with_others.is_empty().then_some(left));
                }
                Some(given_up.map_or(kept_until, |since| since.min(kept_until)))
            }
            None => match self.sought.get(&(host, lock)) {
                Some(interest) => interest.tasks.is_empty().then_some(interest.changed),
                None => None,
            },
        }
    }
}

impl Check for Cleanup {
    fn name(&self) -> &'static str {
        "cleanup"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.executed(at, done, context),
            Event::Task(task, lock, what) => self.change(at, task, lock, what, context),
            Event::Host(host, HostEvent::Crashed) => self.sought.retain(|(other, _), _| *other != host),
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                // A failover may bring back what had ended, and a clock set back extends what is there.
                self.excused.extend(&self.given_up);
                self.excused.extend(self.there.values().flat_map(BTreeMap::keys));
                self.there.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (lock, things) in &self.there {
            for (hold, thing) in things {
                let Some(unwanted) = self.unwanted_since(*lock, *hold, thing.host, context) else { continue };
                let Some(well) = context.health(thing.host).and_then(Health::well_since) else { continue };
                let since = unwanted.max(thing.since);
                let is_left = thing.until > at && !self.excused.contains(hold);
                if !is_left || well > since + GIVEN_UP_AFTER {
                    continue;
                }
                if at > since.max(well) + GONE_WITHIN {
                    return Err(format!(
                        "{hold:?} of {} is left at {lock} since {since}, and would be until {}",
                        thing.host, thing.until
                    ));
                }
            }
        }
        Ok(())
    }
}
