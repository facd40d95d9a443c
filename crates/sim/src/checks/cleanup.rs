//! Holds and queue entries that no task needs end soon, and every key expires.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{
    Event, Execution, GuardId, HostEvent, LockId, ReleaseMethod, ServerEvent, TaskEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{FIRST_LEASE, HoldId, HoldStatus, Kind, LockMode, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a healthy process may take to end holds and entries that it does not need.
const ENDED_WITHIN: Duration = Duration::from_millis(700);

/// How long a process may take to learn that a hold of its own was released, with the drift of clocks.
const RELEASED_WITHIN: Duration = Duration::from_secs(3);

/// After this time a process that was not healthy throughout may leave the rest to expiry.
const CLEANUP_ABANDONED_AFTER: Duration = Duration::from_secs(3);

/// A hold or queue entry that no task needs ends soon, unless its request was late or its release failed: then its
/// expiry ends it. Every key of a lock expires.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// The holds and queue entries at the store.
    stored: BTreeMap<LockId, BTreeMap<HoldId, StoredEntry>>,
    /// Holds that have expired, and that no operation has dropped yet.
    expired: BTreeMap<LockId, Vec<HoldId>>,
    /// The tasks that acquire a lock.
    acquiring: BTreeMap<(HostId, LockId), AcquiringTasks>,
    /// When guards ended; `None` while a task holds them.
    guards: BTreeMap<GuardId, Option<Instant>>,
    /// How long processes may cache the holds of guards.
    keep_for: BTreeMap<GuardId, Duration>,
    /// Until when guards with a lock delay are valid.
    delayed: BTreeMap<GuardId, Instant>,
    /// Holds that may last until they expire.
    excused: BTreeSet<HoldId>,
    /// When the release of an upgrade began. It ends with its source guard.
    releasing: BTreeMap<GuardId, Instant>,
    /// Holds that were released by force, or that were not held when their processes released them. A later request for
    /// one is stale, and a process does not remember a place in a queue that it has left.
    not_remembered: BTreeSet<HoldId>,
    /// Holds that their processes released: when the store first executed that, and until when it would have kept them.
    released: BTreeMap<HoldId, (Instant, Instant)>,
    /// Those of them that a fail-over may have restored.
    restorable: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct StoredEntry {
    host: HostId,
    is_hold: bool,
    since: Instant,
    until: Instant,
}

/// The tasks that acquire a lock.
#[derive(Debug, Default)]
struct AcquiringTasks {
    tasks: BTreeSet<TaskId>,
    /// Those that acquire it together with other locks. Their holds are not visible until they have all.
    with_others: BTreeSet<TaskId>,
    /// Until when there were such tasks.
    with_others_until: Instant,
    changed: Instant,
}

impl AcquiringTasks {
    fn remove(&mut self, at: Instant, task: TaskId) {
        self.tasks.remove(&task);
        if self.with_others.remove(&task) {
            self.with_others_until = at;
        }
    }

    /// Whether a released hold may have been handed off to a task that acquires several locks.
    fn may_have_received_it(&self, released_at: Instant) -> bool {
        !self.with_others.is_empty() || self.with_others_until > released_at
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
        if done.is_stale {
            self.excused.extend(done.claim().map(|claim| claim.hold));
            self.excused.extend(done.acquires().map(|(request, _)| request.claim.hold));
        }
        if let (Op::Release(release), Reply::Release(released)) = (done.op, done.reply) {
            // A task that stops waiting for others does not remember its arrival: that excludes no client.
            let excludes = !matches!(done.state.kind, Kind::Latch | Kind::Barrier);
            if released.status == HoldStatus::Held && excludes {
                let stored = self.stored.get(&done.lock).and_then(|stored| stored.get(&release.claim.hold));
                let until = stored.map_or(at, |entry| entry.until);
                self.released.entry(release.claim.hold).or_insert((at, until));
            } else if !self.released.contains_key(&release.claim.hold) {
                self.not_remembered.insert(release.claim.hold);
            }
        }
        let mut now = BTreeMap::new();
        let old = self.stored.entry(done.lock).or_default();
        let mut add = |hold: HoldId, is_hold: bool, until: Instant| {
            let Some(host) = context.host(hold.session()) else { return };
            let since = old.get(&hold).map_or(at, |entry| entry.since);
            now.insert(hold, StoredEntry { host, is_hold, since, until });
        };
        for entry in done.state.record.iter().flat_map(|record| record.entries.values()) {
            add(entry.claim.hold, false, done.clock.shows_at((entry.expires_ms + 1) * 1000));
        }
        let mut expired = Vec::new();
        for held in crate::event::holds(done.state, done.clock) {
            if held.lasts(at) {
                add(held.hold, true, held.until.unwrap_or(Instant(u64::MAX)));
            } else {
                expired.push(held.hold);
            }
        }
        if matches!(done.op, Op::ForceRelease(_)) {
            let holds = old.iter().filter(|(_, entry)| entry.is_hold).map(|(hold, _)| hold);
            self.not_remembered.extend(holds.filter(|hold| !now.contains_key(hold)));
        }
        self.expired.insert(done.lock, expired);
        *old = now;
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent, context: &CheckContext) {
        let acquiring_tasks = self.acquiring.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(method, _) => {
                acquiring_tasks.tasks.insert(task);
                acquiring_tasks.with_others.extend(method.is_multi_acquire().then_some(task));
            }
            TaskEvent::NotAcquired(_) | TaskEvent::Cancelled | TaskEvent::Admitted => {
                acquiring_tasks.remove(at, task);
            }
            TaskEvent::Acquired(guard_id, new_guard) => {
                acquiring_tasks.remove(at, task);
                self.guards.insert(guard_id, None);
                self.keep_for.extend(new_guard.keep_for.map(|keep_for| (guard_id, keep_for)));
                let is_delayed = !new_guard.lock_delay.is_zero();
                self.delayed.extend(is_delayed.then_some((guard_id, new_guard.validity.until)));
            }
            TaskEvent::ValidityChanged(guard_id, validity) => {
                self.delayed.entry(guard_id).and_modify(|until| *until = validity.until);
                return;
            }
            TaskEvent::Releasing(guard_id, ReleaseMethod::Release) => {
                let is_upgrade =
                    context.guards.get(guard_id).is_some_and(|known| known.mode == LockMode::Upgrade);
                self.releasing.extend(is_upgrade.then_some((guard_id, at)));
                return;
            }
            TaskEvent::Releasing(guard_id, ReleaseMethod::Drop) => {
                // It is released before its source guard. A dropped release does not report a failure.
                let healthy = context.health(task.host).and_then(Health::healthy_since);
                let began = self.releasing.remove(&guard_id);
                // With a lock delay, a hold that has ended before is left to expire.
                let is_left = self.delayed.get(&guard_id).is_some_and(|until| *until <= at);
                if is_left || began.is_some_and(|began| healthy.is_none_or(|healthy| healthy > began)) {
                    self.excused.extend(context.guards.hold(guard_id));
                }
                return self.end_guard(at, guard_id);
            }
            TaskEvent::Released(guard_id, reported) => {
                if reported.is_none() {
                    self.excused.extend(context.guards.hold(guard_id));
                }
                return self.end_guard(at, guard_id);
            }
            _ => return,
        }
        acquiring_tasks.changed = at;
    }

    fn end_guard(&mut self, at: Instant, guard_id: GuardId) {
        self.guards.insert(guard_id, Some(at));
    }

    /// Whether a hold that was restored would have ended so soon after its release that its process does not remember it.
    fn is_not_remembered(&self, hold: &HoldId) -> bool {
        let released = self.released.get(hold).filter(|_| self.restorable.contains(hold));
        released.is_some_and(|(released, until)| *until <= *released + FIRST_LEASE + RELEASED_WITHIN)
    }

    /// Since when no task needs an entry at the store.
    fn unneeded_since(
        &self,
        lock: LockId,
        hold: HoldId,
        host: HostId,
        context: &CheckContext,
    ) -> Option<Instant> {
        let guard_id = context.guards.of(&hold);
        match guard_id.and_then(|guard_id| Some((guard_id, self.guards.get(&guard_id)?))) {
            Some((guard_id, until)) => {
                let released_at = (*until)?;
                let given_up = context.guards.given_up(&hold).map(|since| since.max(released_at));
                let keep_for = self.keep_for.get(&guard_id).copied().unwrap_or_default();
                // Clocks may drift.
                let kept_until = released_at + keep_for + keep_for / 15;
                if let Some(acquiring_tasks) =
                    self.acquiring.get(&(host, lock)).filter(|all| all.may_have_received_it(released_at))
                {
                    let left = acquiring_tasks.with_others_until.max(kept_until);
                    return given_up.or(acquiring_tasks.with_others.is_empty().then_some(left));
                }
                Some(given_up.map_or(kept_until, |since| since.min(kept_until)))
            }
            None => match self.acquiring.get(&(host, lock)) {
                Some(acquiring_tasks) => acquiring_tasks.tasks.is_empty().then_some(acquiring_tasks.changed),
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
            Event::Host(host, HostEvent::Crashed) => self.acquiring.retain(|(other, _), _| *other != host),
            Event::Server(what) if what.makes_state_unknown() => {
                // A failover may restore holds that had ended: their process releases those again that it released. A clock
                // that is set back extends those that last, and those that have expired last again: their process releases
                // none that is over.
                self.excused.extend(&self.not_remembered);
                if what == ServerEvent::FailedOver {
                    self.restorable.extend(self.released.keys());
                } else {
                    self.excused.extend(self.released.keys());
                }
                self.excused.extend(self.stored.values().flat_map(BTreeMap::keys));
                self.excused.extend(self.expired.values().flatten());
                self.stored.clear();
                self.expired.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (lock, entries) in &self.stored {
            for (hold, entry) in entries {
                let Some(unneeded) = self.unneeded_since(*lock, *hold, entry.host, context) else { continue };
                let Some(healthy) = context.health(entry.host).and_then(Health::healthy_since) else {
                    continue;
                };
                let since = unneeded.max(entry.since);
                let is_excused = self.excused.contains(hold) || self.is_not_remembered(hold);
                let is_left = entry.until > at && !is_excused;
                if !is_left || healthy > since + CLEANUP_ABANDONED_AFTER {
                    continue;
                }
                if at > since.max(healthy) + ENDED_WITHIN {
                    return Err(format!(
                        "{hold:?} of {} is left at {lock} since {since}, and would expire at {}",
                        entry.host, entry.until
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{HOST, StoredLock, acquire, context, hold};
    use crate::event::ServerEvent;
    use leasehold_core::{Acquire, Claim, ForceRelease, Inspect, Label, ObservedHolder};

    fn permit(n: u8, lease_ms: u64) -> Op {
        let claim = Claim { hold: hold(n), value: None };
        Op::Acquire(Acquire { lease_ms, ..acquire(claim, LockMode::Permits { count: 1, total: 5 }) })
    }

    #[test]
    fn a_hold_that_has_expired_and_lasts_again_after_a_jump_is_excused() {
        let (mut check, mut stored) = (Cleanup::default(), StoredLock::new(Kind::Semaphore));
        let context = context(Kind::Semaphore);
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        for (ms, op) in [(0, permit(1, 500)), (0, permit(2, 60_000)), (1_000, inspect)] {
            let at = Instant(ms * 1000);
            stored
                .execute(
                    at,
                    &op,
                    |_| false,
                    |_, _| {},
                    |done| check.observe(at, &Event::Executed(done), &context),
                )
                .expect("nothing is left");
        }
        assert!(check.excused.is_empty(), "while the clock is right, each is to be released");
        let back = Event::Server(ServerEvent::Jumped(-10_000_000));
        check.observe(Instant(1_000_000), &back, &context).expect("nothing is left");
        assert!(check.excused.contains(&hold(1)), "it is in the store, and lasts again");
    }

    #[test]
    fn a_hold_released_by_force_is_excused_if_a_fail_over_restores_it() {
        let (mut check, mut stored) = (Cleanup::default(), StoredLock::new(Kind::Mutex));
        let mut context = context(Kind::Mutex);
        context.observe(Instant(0), &Event::Started(HOST, hold(1).session()));
        let claim = Claim { hold: hold(1), value: None };
        let mut execute = |op: &Op| {
            stored.execute(
                Instant(0),
                op,
                |_| false,
                |_, _| {},
                |done| {
                    check.observe(Instant(0), &Event::Executed(done), &context).expect("nothing is left");
                    done.holds(Instant(0)).first().map(|held| held.fence)
                },
            )
        };
        let fence = execute(&Op::Acquire(acquire(claim, LockMode::Exclusive))).expect("it is held");
        let actor = Label::new("an operator").expect("a plain text");
        let free = Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor });
        assert!(execute(&free).is_none(), "it was released");
        let back = Event::Server(ServerEvent::FailedOver);
        check.observe(Instant(0), &back, &context).expect("nothing is left");
        assert!(check.excused.contains(&hold(1)));
    }
}
