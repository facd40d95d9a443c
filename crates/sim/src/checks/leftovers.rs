//! What nobody wants any more is gone soon, and every key expires.

use super::{Check, Health, Scene, Verdict};
use crate::event::{Event, Execution, Grip, HostEvent, Letting, LockId, ServerEvent, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HoldId, Op, Portion};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a process that is well may take to undo what it does not want any more.
const GONE_WITHIN: Duration = Duration::from_millis(700);

/// How long after it lost interest a process may give up undoing, where it was not well all the time: from then on
/// leases do it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);

/// What nobody wants any more (a hold, a place) is gone soon, unless its message came out of time, or its release
/// failed: then it ends by itself. Every key of ours expires.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// What processes have at the store: holds and places, with the time when they were first seen.
    there: BTreeMap<LockId, BTreeMap<HoldId, Thing>>,
    /// Who seeks a lock.
    sought: BTreeMap<(HostId, LockId), Interest>,
    /// Guards that tasks have, or had until then.
    had: BTreeMap<Grip, Option<Instant>>,
    /// How long their processes may keep what they are of, for whoever comes.
    keep_for: BTreeMap<Grip, Duration>,
    /// Holds that end by themselves.
    excused: BTreeSet<HoldId>,
    /// When a guard was begun to be given back that ends with another.
    letting: BTreeMap<Grip, Instant>,
    /// Holds that were given up: what asks for them afterwards was overtaken.
    given_up: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct Thing {
    host: HostId,
    since: Instant,
    until: Instant,
}

/// Who seeks a lock.
#[derive(Debug, Default)]
struct Interest {
    tasks: BTreeSet<TaskId>,
    /// Those of them that seek it together with others: nobody sees what they have of it meanwhile.
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

    /// Whether what was given back then may have been handed on to one who seeks the lock together with others.
    fn may_have_it(&self, let_go: Instant) -> bool {
        !self.with_others.is_empty() || self.with_others_until > let_go
    }
}

impl Leftovers {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, scene: &Scene) -> Verdict {
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
            let Some(host) = scene.host(hold.session()) else { return };
            let since = old.get(&hold).map_or(at, |thing| thing.since);
            now.insert(hold, Thing { host, since, until });
        };
        for place in done.state.record.iter().flat_map(|record| record.places.values()) {
            add(place.claim.hold, done.clock.shows_at((place.expires_ms + 1) * 1000));
        }
        for held in done.holds(at) {
            add(held.hold, held.until.unwrap_or(Instant(u64::MAX)));
        }
        *old = now;
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent, scene: &Scene) {
        let interest = self.sought.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Seeks(way, _) => {
                interest.tasks.insert(task);
                interest.with_others.extend(way.is_for_several().then_some(task));
            }
            TaskEvent::Missed(_) | TaskEvent::Cancelled | TaskEvent::LetIn => {
                interest.leaves(at, task);
            }
            TaskEvent::Acquired(grip, gain) => {
                interest.leaves(at, task);
                self.had.insert(grip, None);
                self.keep_for.extend(gain.keep_for.map(|keep_for| (grip, keep_for)));
            }
            TaskEvent::Lets(grip, Letting::Release) => {
                let is_upgrade = scene.grips.get(grip).is_some_and(|known| known.portion == Portion::Upgrade);
                self.letting.extend(is_upgrade.then_some((grip, at)));
                return;
            }
            TaskEvent::Lets(grip, Letting::Drop) => {
                // It is released before what it was made of; who drops the release then is not told that it failed.
                let well = scene.health(task.host).and_then(Health::well_since);
                let began = self.letting.remove(&grip);
                if began.is_some_and(|began| well.is_none_or(|well| well > began)) {
                    self.excused.extend(scene.grips.hold(grip));
                }
                return self.lets(at, grip);
            }
            TaskEvent::Released(grip, told) => {
                if told.is_none() {
                    self.excused.extend(scene.grips.hold(grip));
                }
                return self.lets(at, grip);
            }
            _ => return,
        }
        interest.changed = at;
    }

    fn lets(&mut self, at: Instant, grip: Grip) {
        self.had.insert(grip, Some(at));
    }

    /// Since when nobody wants what is at the store.
    fn unwanted_since(&self, lock: LockId, hold: HoldId, host: HostId, scene: &Scene) -> Option<Instant> {
        let grip = scene.grips.of(&hold);
        match grip.and_then(|grip| Some((grip, self.had.get(&grip)?))) {
            Some((grip, until)) => {
                let let_go = (*until)?;
                let given_up = scene.grips.given_up(&hold).map(|since| since.max(let_go));
                let keep_for = self.keep_for.get(&grip).copied().unwrap_or_default();
                // With the drift of clocks.
                let kept_until = let_go + keep_for + keep_for / 15;
                if let Some(interest) = self.sought.get(&(host, lock)).filter(|all| all.may_have_it(let_go)) {
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

impl Check for Leftovers {
    fn name(&self) -> &'static str {
        "leftovers"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => return self.executed(at, done, scene),
            Event::Task(task, lock, what) => self.change(at, task, lock, what, scene),
            Event::Host(host, HostEvent::Crashed) => self.sought.retain(|(other, _), _| *other != host),
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                // A replica may bring back what was over, and a clock that is set back keeps what is there.
                self.excused.extend(&self.given_up);
                self.excused.extend(self.there.values().flat_map(BTreeMap::keys));
                self.there.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, scene: &Scene) -> Verdict {
        for (lock, things) in &self.there {
            for (hold, thing) in things {
                let Some(unwanted) = self.unwanted_since(*lock, *hold, thing.host, scene) else { continue };
                let Some(well) = scene.health(thing.host).and_then(Health::well_since) else { continue };
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
