//! What a task uses: the world, its process, its client, and its random choices.

use crate::event::{Event, LockId, TaskEvent, TaskId};
use crate::world::Sim;
use crate::world::environment::ProcessEnvironment;
use leasehold::{Client, Owner};
use leasehold_testkit::Random;
use std::sync::Arc;
use std::time::Duration;

/// Runs one task. What it does is in [`task`](crate::workload::task).
pub(crate) struct TaskRunner {
    pub(crate) sim: Arc<Sim>,
    pub(crate) world: ProcessEnvironment,
    pub(crate) client: Client,
    pub(crate) task: TaskId,
    pub(crate) watchdog: Duration,
    pub(crate) random: Random,
    /// An owner of this task alone.
    pub(crate) own: Owner,
}

impl TaskRunner {
    pub(crate) fn new(
        sim: Arc<Sim>,
        world: ProcessEnvironment,
        client: Client,
        task: TaskId,
        watchdog: Duration,
        random: Random,
    ) -> Self {
        let own = client.new_owner();
        Self { sim, world, client, task, watchdog, random, own }
    }

    pub(crate) fn record(&self, lock: LockId, what: TaskEvent) {
        self.sim.record(&Event::Task(self.task, lock, what));
    }

    pub(crate) async fn pause(&self, most: Duration) {
        let us = self.random.below(u64::try_from(most.as_micros()).unwrap_or(1).max(1));
        self.sim.scheduler.sleep_until(self.sim.scheduler.now() + Duration::from_micros(us)).await;
    }
}
