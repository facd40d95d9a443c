//! No two believe that they hold a lock at once.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, Gain, Grip, HostEvent, LockId, OwnerId, TaskEvent, TaskId};
use crate::sim::time::Instant;
use leasehold_core::FencingToken;
use std::collections::{BTreeMap, BTreeSet};

/// No two believe that they hold a lock at once, in true time, but for one owner's holds of a ReentrantMutex. Strangers
/// are believers, too. Whoever lost the lock by force believes in vain until he hears of it, and does not count.
#[derive(Debug, Default)]
pub struct Exclusion {
    believers: BTreeMap<LockId, Vec<Believer>>,
    /// What was taken by force.
    freed: BTreeSet<(LockId, FencingToken)>,
}

#[derive(Debug, Clone, Copy)]
struct Believer {
    /// `None` of a stranger.
    who: Option<(TaskId, Grip, FencingToken)>,
    /// For which owner, of a ReentrantMutex.
    owner: Option<OwnerId>,
    until: Instant,
}

impl Believer {
    fn grip(&self) -> Option<Grip> {
        self.who.map(|(_, grip, _)| grip)
    }

    /// Whether the two exclude each other.
    fn excludes(&self, other: &Self) -> bool {
        self.grip() != other.grip() && (self.owner.is_none() || self.owner != other.owner)
    }
}

impl Exclusion {
    fn believe(&mut self, at: Instant, lock: LockId, new: Believer) -> Verdict {
        self.stop(lock, new.grip());
        let believers = self.believers.entry(lock).or_default();
        let other = believers.iter().find(|other| other.excludes(&new) && other.until > at).copied();
        believers.push(new);
        match other {
            Some(other) if new.until > at => {
                Err(format!("two believe that they hold {lock}: {new:?}, and {other:?}"))
            }
            _ => Ok(()),
        }
    }

    /// A lock was taken from its holder by force.
    fn freed(&mut self, lock: LockId, fence: Option<FencingToken>) {
        let Some(fence) = fence else { return self.stop(lock, None) };
        self.freed.insert((lock, fence));
        let is_freed = |other: &Believer| other.who.is_some_and(|(_, _, token)| token == fence);
        self.believers.entry(lock).or_default().retain(|other| !is_freed(other));
    }

    /// A guard, or the stranger, does not count any more.
    fn stop(&mut self, lock: LockId, grip: Option<Grip>) {
        self.believers.entry(lock).or_default().retain(|other| other.grip() != grip);
    }
}

impl Check for Exclusion {
    fn name(&self) -> &'static str {
        "exclusion"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        if !scene.promises.exclusion {
            return Ok(());
        }
        match *event {
            Event::Executed(done) => {
                if let Some(fence) = done.freed() {
                    self.freed(done.lock, fence);
                }
            }
            Event::Task(
                _,
                lock,
                TaskEvent::Acquired(grip, Gain { belief, .. }) | TaskEvent::Believes(grip, belief),
            ) => {
                let Some(known) = scene.grips.get(grip) else { return Ok(()) };
                if self.freed.contains(&(lock, known.fence)) {
                    return Ok(());
                }
                let who = Some((known.task, grip, known.fence));
                return self.believe(at, lock, Believer { who, owner: known.owner, until: belief.until });
            }
            Event::Task(_, lock, TaskEvent::Lets(grip, _)) => self.stop(lock, Some(grip)),
            Event::Stranger(lock, Some(until)) => {
                return self.believe(at, lock, Believer { who: None, owner: None, until });
            }
            Event::Stranger(lock, None) => self.stop(lock, None),
            Event::Host(host, HostEvent::Crashed) => {
                for believers in self.believers.values_mut() {
                    believers.retain(|other| other.who.is_none_or(|(task, ..)| task.host != host));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
