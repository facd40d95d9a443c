//! No two believe that they hold a lock at once who do not get on with each other.

use super::sharing::excludes;
use super::{Check, Known, Scene, Verdict};
use crate::event::{Event, Execution, Gain, Grip, HostEvent, LockId, OwnerId, TaskEvent, TaskId};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, HoldId, Kind, Portion};
use std::collections::{BTreeMap, BTreeSet};

/// No two believe that they hold a lock at once, in true time, but for one owner's holds, and for those who may
/// have it side by side: readers, and as many permits as there are. Strangers are believers, too. Whoever lost the lock by force believes in vain until he hears of it, and does not count.
#[derive(Debug, Default)]
pub struct Exclusion {
    believers: BTreeMap<LockId, Vec<Believer>>,
    /// When a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// How many permits there were in all, and since when.
    limits: BTreeMap<LockId, Vec<(Instant, u32)>>,
    /// What was taken by force.
    freed: BTreeSet<(LockId, FencingToken)>,
}

#[derive(Debug, Clone, Copy)]
struct Believer {
    /// `None` of a stranger.
    who: Option<(TaskId, Grip, FencingToken)>,
    /// For which owner, of a ReentrantMutex or an RwLock.
    owner: Option<OwnerId>,
    /// What part it is.
    portion: Portion,
    until: Instant,
}

impl Believer {
    fn grip(&self) -> Option<Grip> {
        self.who.map(|(_, grip, _)| grip)
    }

    /// Whether the two exclude each other.
    fn excludes(&self, other: &Self) -> bool {
        let is_same = self.owner.is_some() && self.owner == other.owner;
        self.grip() != other.grip() && excludes(self.portion, other.portion, is_same)
    }
}

impl Exclusion {
    fn believe(&mut self, at: Instant, lock: LockId, new: Believer, scene: &Scene) -> Verdict {
        self.stop(lock, new.grip());
        let believers = self.believers.entry(lock).or_default();
        let other = believers.iter().find(|other| other.excludes(&new) && other.until > at).copied();
        believers.push(new);
        match other {
            Some(other) if new.until > at => {
                Err(format!("two believe that they hold {lock}: {new:?}, and {other:?}"))
            }
            _ => self.counted(at, lock, scene),
        }
    }

    /// No more permits are believed in than there were at any time since the first of them was given.
    fn counted(&self, at: Instant, lock: LockId, scene: &Scene) -> Verdict {
        let believers = self.believers.get(&lock).into_iter().flatten().filter(|other| other.until > at);
        let permits = believers.filter(|other| matches!(other.portion, Portion::Permits { .. }));
        let permits: Vec<_> = permits.collect();
        let sum: u64 = permits.iter().map(|other| u64::from(other.portion.count())).sum();
        let hold = |other: &&Believer| self.granted.get(&scene.grips.hold(other.grip()?)?).copied();
        let since = permits.iter().copied().filter_map(|other| hold(&other)).min().unwrap_or_default();
        let limits = self.limits.get(&lock).map(Vec::as_slice).unwrap_or_default();
        // That which was in force when the first was given, and those after it.
        let first = limits.partition_point(|(at, _)| *at <= since).saturating_sub(1);
        match limits[first..].iter().map(|(_, limit)| u64::from(*limit)).max() {
            Some(limit) if sum > limit => {
                Err(format!("{sum} permits of {lock} are believed in, and there are {limit}: {permits:?}"))
            }
            _ => Ok(()),
        }
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        if let Some(fence) = done.freed() {
            self.freed(done.lock, fence);
        }
        if done.state.kind != Kind::Semaphore {
            return;
        }
        for held in done.holds(at) {
            self.granted.entry(held.hold).or_insert(at);
        }
        if let Some(limit) = done.state.record.as_ref().and_then(|record| record.limit) {
            let limits = self.limits.entry(done.lock).or_default();
            if limits.last().is_none_or(|(_, last)| *last != limit) {
                limits.push((at, limit));
            }
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
            Event::Executed(done) => self.executed(at, done),
            Event::Task(
                _,
                lock,
                TaskEvent::Acquired(grip, Gain { belief, .. }) | TaskEvent::Believes(grip, belief),
            ) => {
                let Some(known) = scene.grips.get(grip) else { return Ok(()) };
                if self.freed.contains(&(lock, known.known_as)) {
                    return Ok(());
                }
                let who = Some((known.task, grip, known.known_as));
                let Known { owner, portion, .. } = *known;
                return self.believe(at, lock, Believer { who, owner, portion, until: belief.until }, scene);
            }
            // What becomes of it nobody sees until it is another, or back.
            Event::Task(_, lock, TaskEvent::Lets(grip, _) | TaskEvent::Shifts(grip)) => {
                self.stop(lock, Some(grip));
            }
            Event::Stranger(lock, Some(until)) => {
                return self.believe(
                    at,
                    lock,
                    Believer { who: None, owner: None, portion: Portion::Whole, until },
                    scene,
                );
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
