//! A holder stops believing before the store does, and is told.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, HostEvent, LockId, TaskEvent, TaskId};
use crate::sim::time::Instant;
use leasehold_core::FencingToken;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a holder may go without being told that its lease has ended.
const TOLD_WITHIN: Duration = Duration::from_millis(60);
/// The same where the store said that it is gone: it is asked why first, for a second at most.
const TOLD_WHY_WITHIN: Duration = Duration::from_millis(1100);

/// Whoever believes in a hold has it at the store at that time, and for as long as he believes. When he stops, he is
/// told.
#[derive(Debug, Default)]
pub struct Beliefs {
    held: BTreeMap<LockId, Held>,
    believed: BTreeMap<(LockId, TaskId), Believed>,
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
}

impl Beliefs {
    fn judge(&self, at: Instant, lock: LockId, task: TaskId, believed: Believed) -> Verdict {
        if believed.until <= at {
            return Ok(());
        }
        let (fence, until) = (believed.fence, believed.until);
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
            Event::Stranger(lock, Some(_)) => drop(self.held.remove(&lock)),
            Event::Task(
                task,
                lock,
                TaskEvent::Acquired(fence, belief, _) | TaskEvent::Believes(fence, belief),
            ) => {
                let told = self.believed.get(&(lock, task)).is_some_and(|old| old.told);
                let believed = Believed { fence, until: belief.until, heard: at, told };
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
            Event::Host(host, HostEvent::Crashed) => self.believed.retain(|(_, task), _| task.host != host),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, scene: &Scene) -> Verdict {
        for ((lock, task), believed) in self.believed.iter().filter(|(_, believed)| !believed.told) {
            let Some(well_since) = scene.health(task.host).and_then(super::Health::well_since) else {
                continue;
            };
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
