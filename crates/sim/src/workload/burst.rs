//! Local hand-off: bursts of tasks that acquire the same Mutex at once, and Mutex handles that a process keeps alive,
//! so that it may cache a hold.
//!
//! It does not check anything: it records events, which the checks evaluate.

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
pub(crate) fn cached_mutexes(sim: &Sim, client: &Client, random: &Random) -> Arc<[Mutex]> {
    let mutexes = sim.locks.iter().filter(|lock| lock.kind == Kind::Mutex);
    let guard = mutexes.filter(|_| random.chance(800));
    guard.filter_map(|lock| sim.expect("workload", client.mutex(lock.name.clone()))).collect()
}

/// What the bursts of a process share.
pub(crate) struct Burst {
    pub(crate) sim: Arc<Sim>,
    pub(crate) world: ProcessEnvironment,
    pub(crate) client: Client,
    pub(crate) host: HostId,
    pub(crate) watchdog: Duration,
    pub(crate) random: Random,
}

impl Burst {
    /// Whether this run has bursts.
    pub(crate) fn is_enabled(sim: &Sim) -> bool {
        sim.handoff.burst > 0 && !sim.mutexes().is_empty()
    }

    /// Starts bursts until faults end.
    pub(crate) async fn run(self) {
        let (sim, mutexes) = (&self.sim, self.sim.mutexes());
        while sim.scheduler.now() < sim.fault_plan.faults_end_at {
            let pause = Duration::from_micros(self.random.below(4_000_000));
            sim.scheduler.sleep_until(sim.scheduler.now() + pause).await;
            let (lock, rounds) = (*self.random.pick(&mutexes), self.random.between(1, 3));
            let longest = Duration::from_micros(*self.random.pick(&[0, 1_000, 20_000, 20_000, 60_000]));
            let many = self.random.between(2, sim.handoff.burst.into());
            let session_ends = (0..many).map(|number| self.send(number, lock, rounds, longest));
            join_all(session_ends.collect::<Vec<_>>()).await;
        }
    }

    /// Spawns one task.
    fn send(&self, number: u64, lock: LockId, rounds: u64, longest: Duration) -> oneshot::Receiver<()> {
        let task = TaskId { host: self.host, number: FIRST + u32::try_from(number).unwrap_or(0) };
        let (sim, world, client) = (self.sim.clone(), self.world.clone(), self.client.clone());
        let runner = TaskRunner::new(sim, world, client, task, self.watchdog, self.random.branch());
        let (done, end) = oneshot::channel();
        self.sim.scheduler.spawn(
            self.host,
            Box::pin(async move {
                runner.use_briefly(lock, rounds, longest).await;
                // The receiver is gone if the process has crashed.
                let _ = done.send(());
            }),
        );
        end
    }
}

impl TaskRunner {
    /// Acquires and releases a Mutex several times.
    async fn use_briefly(&self, lock: LockId, rounds: u64, longest: Duration) {
        for _ in 0..rounds {
            if let Some(got) = self.acquire_mutex(lock).await {
                let mut guards = vec![got];
                let pause = self.pause(longest);
                self.meanwhile(&mut guards, pause).await;
                self.release_all(guards).await;
            }
        }
    }
}
