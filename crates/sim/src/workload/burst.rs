//! Local hand-off: bursts of tasks that acquire the same Mutex at once, and Mutex handles that a process keeps alive,
//! so that it may cache a hold.
//!
//! It deliberately judges nothing: it records what it does, and the checks do the rest.

use crate::event::{LockId, TaskId};
use crate::workload::runner::TaskRunner;
use crate::world::Sim;
use crate::world::environment::ProcessEnvironment;
use crate::world::scheduler::HostId;
use futures_util::future::join_all;
use leasehold::core::Kind;
use leasehold::{Client, Mutex};
use leasehold_testkit::Random;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The number of the first task of a burst. Other tasks of the process have smaller ones.
const FIRST: u32 = 100;

/// The Mutex handles that a process keeps alive. Without a handle, no state remains once no task holds or waits.
pub(crate) fn cached_mutexes(sim: &Sim, client: &Client, chance: &Random) -> Arc<[Mutex]> {
    let mutexes = sim.locks.iter().filter(|lock| lock.kind == Kind::Mutex);
    let kept = mutexes.filter(|_| chance.chance(800));
    kept.filter_map(|lock| sim.expect("workload", client.mutex(lock.name.clone()))).collect()
}

/// What the bursts of a process share.
pub(crate) struct Burst {
    pub(crate) sim: Arc<Sim>,
    pub(crate) world: ProcessEnvironment,
    pub(crate) client: Client,
    pub(crate) host: HostId,
    pub(crate) watchdog: Duration,
    pub(crate) chance: Random,
}

impl Burst {
    /// Whether there are any in this run.
    pub(crate) fn comes(sim: &Sim) -> bool {
        sim.handoff.crowd > 0 && !sim.mutexes().is_empty()
    }

    /// Comes now and then, until all is well.
    pub(crate) async fn run(self) {
        let (sim, mutexes) = (&self.sim, self.sim.mutexes());
        while sim.scheduler.now() < sim.fault_plan.faults_end_at {
            let pause = Duration::from_micros(self.chance.below(4_000_000));
            sim.scheduler.sleep_until(sim.scheduler.now() + pause).await;
            let (lock, rounds) = (*self.chance.pick(&mutexes), self.chance.between(1, 3));
            let longest = Duration::from_micros(*self.chance.pick(&[0, 1_000, 20_000, 20_000, 60_000]));
            let many = self.chance.between(2, sim.handoff.crowd.into());
            let ends = (0..many).map(|number| self.send(number, lock, rounds, longest));
            join_all(ends.collect::<Vec<_>>()).await;
        }
    }

    /// Spawns one task.
    fn send(&self, number: u64, lock: LockId, rounds: u64, longest: Duration) -> oneshot::Receiver<()> {
        let task = TaskId { host: self.host, number: FIRST + u32::try_from(number).unwrap_or(0) };
        let (sim, world, client) = (self.sim.clone(), self.world.clone(), self.client.clone());
        let runner = TaskRunner::new(sim, world, client, task, self.watchdog, self.chance.branch());
        let (done, end) = oneshot::channel();
        self.sim.scheduler.spawn(
            self.host,
            Box::pin(async move {
                runner.rush(lock, rounds, longest).await;
                // The receiver is gone if the process has crashed.
                let _ = done.send(());
            }),
        );
        end
    }
}

impl TaskRunner {
    /// Has a Mutex for a moment, several times.
    async fn rush(&self, lock: LockId, rounds: u64, longest: Duration) {
        for _ in 0..rounds {
            if let Some(got) = self.acquire_mutex(lock).await {
                let mut had = vec![got];
                let pause = self.pause(longest);
                self.meanwhile(&mut had, pause).await;
                self.release_all(had).await;
            }
        }
    }
}
