//! A holder stops believing before the store does, and is told.

use super::{Check, Scene, Verdict};
use crate::event::{
    Event, Execution, Gain, Grip, Held, HostEvent, Keeping, LockId, ServerEvent, TaskEvent, TaskId, ends,
};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

/// How long a holder may go without being told that its lease has ended.
const TOLD_WITHIN: Duration = Duration::from_millis(60);
/// The same where the store said that it is gone: it is asked why first, for a second at most.
const TOLD_WHY_WITHIN: Duration = Duration::from_millis(1100);
/// How long after it is due a renewal may take, with a drift of clocks.
const RENEWAL_SLACK: Duration = Duration::from_millis(700);

/// Whoever believes in a hold has it at the store at that time, and for as long as he believes, and so lives the session
/// that it lives with. When he stops, he is told. Whoever lost the lock by force learns it by the next renewal.
#[derive(Debug, Default)]
pub struct Beliefs {
    held: BTreeMap<LockId, Vec<Held>>,
    believed: BTreeMap<Grip, Believed>,
    /// Holds that live with their sessions.
    sessions: BTreeSet<HoldId>,
    /// When sessions end at the store.
    ends: BTreeMap<SessionId, Instant>,
    /// What was taken by force, and when.
    freed: BTreeMap<(LockId, FencingToken), Instant>,
    /// Which tokens a hold has had: one that is taken by force can come back by another.
    tokens: BTreeMap<HoldId, BTreeSet<(LockId, FencingToken)>>,
    /// Holds that have the lock again: an acquire that came late brought them back after they were taken by force, and
    /// after another had ended since. Their holders are not told.
    returned: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    lock: LockId,
    task: TaskId,
    fence: FencingToken,
    until: Instant,
    /// When this was last heard.
    heard: Instant,
    told: bool,
    keeping: Keeping,
}

impl Beliefs {
    fn judge(&self, at: Instant, grip: Grip, believed: Believed, scene: &Scene) -> Verdict {
        let Believed { lock, task, fence, until, .. } = believed;
        let hold = scene.grips.hold(grip);
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

impl Check for Beliefs {
    fn name(&self) -> &'static str {
        "beliefs"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                self.executed(at, done);
                if scene.promises.exclusion {
                    let mut of_it = self.believed.iter().filter(|(_, believed)| believed.lock == done.lock);
                    of_it.try_for_each(|(grip, believed)| self.judge(at, *grip, *believed, scene))?;
                }
            }
            Event::Attended(done) => {
                self.ends = ends(done.sessions, done.clock);
                if scene.promises.exclusion {
                    self.believed
                        .iter()
                        .try_for_each(|(grip, believed)| self.judge(at, *grip, *believed, scene))?;
                }
            }
            Event::Stranger(lock, Some(_)) => drop(self.held.remove(&lock)),
            Event::Task(task, lock, TaskEvent::Acquired(grip, Gain { fence, belief, keeping, .. })) => {
                let until = belief.until;
                // The store knows a hold that was handed on by the token that it has given.
                let fence = scene.grips.get(grip).map_or(fence, |known| known.known_as);
                let believed = Believed { lock, task, fence, until, heard: at, told: false, keeping };
                self.believed.insert(grip, believed);
                if scene.promises.exclusion {
                    return self.judge(at, grip, believed, scene);
                }
            }
            Event::Task(_, _, TaskEvent::Believes(grip, belief)) => {
                let Some(believed) = self.believed.get_mut(&grip) else { return Ok(()) };
                (believed.until, believed.heard) = (belief.until, at);
                let believed = *believed;
                if scene.promises.exclusion {
                    return self.judge(at, grip, believed, scene);
                }
            }
            Event::Task(_, _, TaskEvent::Told(grip, _)) => {
                if let Some(believed) = self.believed.get_mut(&grip) {
                    believed.told = true;
                }
            }
            // What becomes of one that is made into another nobody sees until it is that.
            Event::Task(_, _, TaskEvent::Lets(grip, _) | TaskEvent::Shifts(grip)) => {
                self.believed.remove(&grip);
            }
            // A replica may bring back what was taken.
            Event::Server(ServerEvent::FailedOver) => self.freed.clear(),
            Event::Host(host, HostEvent::Crashed) => {
                self.believed.retain(|_, believed| believed.task.host != host);
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, scene: &Scene) -> Verdict {
        for (grip, believed) in self.believed.iter().filter(|(_, believed)| !believed.told) {
            let Believed { lock, task, fence, .. } = *believed;
            let Some(well_since) = scene.health(task.host).and_then(super::Health::stirs_since) else {
                continue;
            };
            if let Some(freed) = self.freed.get(&(lock, fence))
                && let Keeping::Renewed(lease) = believed.keeping
                && at > freed.max(&well_since).add(lease / 3 + RENEWAL_SLACK)
                && believed.until > at
                && scene.grips.hold(*grip).is_none_or(|hold| !self.returned.contains(&hold))
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
