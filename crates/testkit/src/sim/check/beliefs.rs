//! A holder stops believing before the store does, and is told.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, HostEvent, Keeping, LockId, ServerEvent, TaskEvent, TaskId, ends};
use crate::sim::time::Instant;
use leasehold_core::{FencingToken, HoldId, Life, SessionId};
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
    held: BTreeMap<LockId, Held>,
    believed: BTreeMap<(LockId, TaskId), Believed>,
    /// Holds that live with their sessions.
    sessions: BTreeMap<(LockId, FencingToken), SessionId>,
    /// When sessions end at the store.
    ends: BTreeMap<SessionId, Instant>,
    /// What was taken by force, and when.
    freed: BTreeMap<(LockId, FencingToken), Instant>,
    /// Which hold a token was given to.
    holds: BTreeMap<(LockId, FencingToken), HoldId>,
    /// Holds that have the lock again: an acquire that came late brought them back after they were taken by force, and
    /// after another had ended since. Their holders are not told.
    returned: BTreeSet<HoldId>,
}

/// What the store holds, and until when.
#[derive(Debug, Clone, Copy)]
struct Held {
    fence: FencingToken,
    /// `None` if its key never expires.
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Believed {
    fence: FencingToken,
    until: Instant,
    /// When this was last heard.
    heard: Instant,
    told: bool,
    keeping: Keeping,
}

impl Beliefs {
    fn judge(&self, at: Instant, lock: LockId, task: TaskId, believed: Believed) -> Verdict {
        if believed.until <= at {
            return Ok(());
        }
        let (fence, until) = (believed.fence, believed.until);
        if self.freed.contains_key(&(lock, fence)) {
            return Ok(());
        }
        if let Some(session) = self.sessions.get(&(lock, fence)) {
            let end = self.ends.get(session).copied();
            if end.is_none_or(|end| end < until) {
                return Err(format!(
                    "{task} believes in {lock} until {until}, but its session lives until {end:?} only"
                ));
            }
        }
        match self.held.get(&lock) {
            Some(held) if held.fence != fence => Err(format!(
                "{task} believes in {fence} of {lock} until {until}, but the store holds {held:?}"
            )),
            Some(Held { until: Some(end), .. }) if *end < until => {
                Err(format!("{task} believes in {lock} until {until}, but the store until {end} only"))
            }
            Some(_) => Ok(()),
            None => {
                Err(format!("{task} believes in {lock} until {until}, but the store holds nothing of it"))
            }
        }
    }
}

impl Check for Beliefs {
    fn name(&self) -> &'static str {
        "beliefs"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                self.ends = ends(done.sessions, done.clock);
                if let Some(Some(fence)) = done.freed() {
                    self.freed.insert((done.lock, fence), at);
                }
                if let (Some((claim, fence, _)), Some(Life::Session { .. })) = (done.holder(), done.life()) {
                    self.sessions.insert((done.lock, fence), claim.hold.session());
                }
                if let Some((claim, fence, _)) = done.holder() {
                    self.holds.insert((done.lock, fence), claim.hold);
                    let is_freed = |((lock, old), _): (&(LockId, FencingToken), &Instant)| {
                        *lock == done.lock
                            && *old != fence
                            && self.holds.get(&(*lock, *old)) == Some(&claim.hold)
                    };
                    if self.freed.iter().any(is_freed) {
                        self.returned.insert(claim.hold);
                    }
                }
                match done.holder() {
                    Some((_, fence, until)) => self.held.insert(done.lock, Held { fence, until }),
                    None => self.held.remove(&done.lock),
                };
                if scene.promises.exclusion {
                    for ((lock, task), believed) in &self.believed {
                        if *lock == done.lock {
                            self.judge(at, *lock, *task, *believed)?;
                        }
                    }
                }
            }
            Event::Attended(done) => {
                self.ends = ends(done.sessions, done.clock);
                if scene.promises.exclusion {
                    for ((lock, task), believed) in &self.believed {
                        self.judge(at, *lock, *task, *believed)?;
                    }
                }
            }
            Event::Stranger(lock, Some(_)) => drop(self.held.remove(&lock)),
            Event::Task(
                task,
                lock,
                what @ (TaskEvent::Acquired(fence, belief, _) | TaskEvent::Believes(fence, belief)),
            ) => {
                let old = self.believed.get(&(lock, task));
                let told = old.is_some_and(|old| old.told);
                let keeping = match (what, old) {
                    (TaskEvent::Acquired(_, _, keeping), _) => keeping,
                    (_, Some(old)) => old.keeping,
                    (_, None) => return Ok(()),
                };
                let believed = Believed { fence, until: belief.until, heard: at, told, keeping };
                self.believed.insert((lock, task), believed);
                if scene.promises.exclusion {
                    return self.judge(at, lock, task, believed);
                }
            }
            Event::Task(task, lock, TaskEvent::Told(_)) => {
                if let Some(believed) = self.believed.get_mut(&(lock, task)) {
                    believed.told = true;
                }
            }
            Event::Task(task, lock, TaskEvent::Lets(..)) => drop(self.believed.remove(&(lock, task))),
            // A replica may bring back what was taken.
            Event::Server(ServerEvent::FailedOver) => self.freed.clear(),
            Event::Host(host, HostEvent::Crashed) => self.believed.retain(|(_, task), _| task.host != host),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, scene: &Scene) -> Verdict {
        for ((lock, task), believed) in self.believed.iter().filter(|(_, believed)| !believed.told) {
            let Some(well_since) = scene.health(task.host).and_then(super::Health::stirs_since) else {
                continue;
            };
            if let Some(freed) = self.freed.get(&(*lock, believed.fence))
                && let Keeping::Renewed(lease) = believed.keeping
                && at > freed.max(&well_since).add(lease / 3 + RENEWAL_SLACK)
                && believed.until > at
                && self.holds.get(&(*lock, believed.fence)).is_none_or(|hold| !self.returned.contains(hold))
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
