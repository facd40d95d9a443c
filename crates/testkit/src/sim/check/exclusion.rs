//! No two believe that they hold a lock at once.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, HostEvent, LockId, TaskEvent, TaskId};
use crate::sim::time::Instant;
use leasehold_core::FencingToken;
use std::collections::{BTreeMap, BTreeSet};

/// No two believe that they hold a lock at once, in true time. Strangers are believers, too. Whoever lost the lock by
/// force believes in vain until he hears of it, and does not count.
#[derive(Debug, Default)]
pub struct Exclusion {
    believers: BTreeMap<LockId, Vec<(Believer, Instant)>>,
    /// What was taken by force.
    freed: BTreeSet<(LockId, FencingToken)>,
    /// Which hold a task believes in.
    fences: BTreeMap<(LockId, TaskId), FencingToken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Believer {
    Task(TaskId),
    Stranger,
}

impl Exclusion {
    fn believe(&mut self, at: Instant, lock: LockId, who: Believer, until: Instant) -> Verdict {
        let believers = self.believers.entry(lock).or_default();
        believers.retain(|(other, _)| *other != who);
        believers.push((who, until));
        let other = believers.iter().find(|(other, until)| *other != who && *until > at);
        match other {
            Some((other, other_until)) if until > at => Err(format!(
                "{who:?} believes to hold {lock} until {until}, and {other:?} until {other_until}"
            )),
            _ => Ok(()),
        }
    }

    /// A lock was taken from its holder by force.
    fn freed(&mut self, lock: LockId, fence: Option<FencingToken>) {
        let Some(fence) = fence else { return self.stop(lock, Believer::Stranger) };
        self.freed.insert((lock, fence));
        let fences = &self.fences;
        let is_freed = |task: TaskId| fences.get(&(lock, task)) == Some(&fence);
        self.believers
            .entry(lock)
            .or_default()
            .retain(|(who, _)| !matches!(who, Believer::Task(task) if is_freed(*task)));
    }

    fn stop(&mut self, lock: LockId, who: Believer) {
        self.believers.entry(lock).or_default().retain(|(other, _)| *other != who);
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
                task,
                lock,
                TaskEvent::Acquired(fence, belief, _) | TaskEvent::Believes(fence, belief),
            ) => {
                self.fences.insert((lock, task), fence);
                if self.freed.contains(&(lock, fence)) {
                    return Ok(());
                }
                return self.believe(at, lock, Believer::Task(task), belief.until);
            }
            Event::Task(task, lock, TaskEvent::Lets(..)) => self.stop(lock, Believer::Task(task)),
            Event::Stranger(lock, Some(until)) => return self.believe(at, lock, Believer::Stranger, until),
            Event::Stranger(lock, None) => self.stop(lock, Believer::Stranger),
            Event::Host(host, HostEvent::Crashed) => {
                for believers in self.believers.values_mut() {
                    believers.retain(|(who, _)| !matches!(who, Believer::Task(task) if task.host == host));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
