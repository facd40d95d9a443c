//! Every waiter is served.

use super::{Check, Limits};
use crate::checks::CheckResult;
use crate::quorum::event::{Event, TaskNo};
use crate::world::time::Instant;
use std::collections::BTreeSet;

/// Once the faults have ended, no acquire fails, and all tasks end in time.
#[derive(Debug)]
pub(crate) struct Progress {
    limits: Limits,
    running: BTreeSet<TaskNo>,
    faults_ended_at: Option<Instant>,
}

impl Progress {
    pub(crate) const fn new(limits: Limits) -> Self {
        Self { limits, running: BTreeSet::new(), faults_ended_at: None }
    }
}

impl Check for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::TaskBegan(task) => _ = self.running.insert(task),
            Event::TaskEnded(task) => _ = self.running.remove(&task),
            Event::FaultsEnded => self.faults_ended_at = Some(at),
            Event::TaskFailed(task, error) => {
                return Err(format!("{task} could not acquire a lock without faults: {error}"));
            }
            Event::Tick => {
                let is_late = self.faults_ended_at.is_some_and(|ended| at.since(ended) > self.limits.end);
                if let Some(task) = self.running.first().filter(|_| is_late) {
                    let (more, end) = (self.running.len() - 1, self.limits.end);
                    return Err(format!(
                        "{task} and {more} more tasks have not ended {end:?} after the last fault"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
