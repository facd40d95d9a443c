//! Processes: how a run uses locks, and how a process configures its client. What a task does is in
//! [`task`](crate::workload::task).
//!
//! It does not check anything: it records events, which the checks evaluate.

pub(crate) mod admin;
pub(crate) mod burst;
mod dropped;
mod election;
pub(crate) mod guards;
pub(crate) mod once_per;
mod runner;
mod sharing;
pub(crate) mod task;

use crate::config::WorkloadConfig;
use crate::event::{Event, HostEvent, LockId, TaskId};
use crate::mutants::client::MutantStore;
use crate::workload::burst::{Burst, cached_mutexes};
use crate::workload::election::Observer;
use crate::workload::runner::TaskRunner;
use crate::world::Sim;
use crate::world::scheduler::HostId;
use crate::world::store::SimStore;
use futures_util::future::join_all;
use leasehold::error::ConnectError;
use leasehold::{Client, Owner};
use leasehold_testkit::Random;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// One process, from its start until its tasks have ended.
pub(crate) async fn process(sim: Arc<Sim>, host: HostId, random: Random) {
    let store = sim.store(host, &random);
    let (world, config) = (store.world.clone(), sim.config);
    let session_config = SessionConfig::draw(&random, config);
    let client = loop {
        match connect(&store, session_config).await {
            Ok(client) => break client,
            // The store did not reply. A supervisor restarts the process.
            Err(ConnectError::Store(_)) => {}
            Err(error) => return sim.fail("workload", format!("{host} cannot connect: {error}")),
        }
        let pause = Duration::from_micros(random.between(1_000, 300_000));
        sim.scheduler.sleep_until(sim.scheduler.now() + pause).await;
    };
    sim.record(&Event::Started(host, client.session_id()));
    let cached_mutexes = cached_mutexes(&sim, &client, &random);
    let mut session_ends = Vec::new();
    let shared = client.new_owner();
    if random.chance(config.shares_owner) {
        sim.publish_owner(host, shared.to_header());
    }
    for number in 0..config.tasks {
        let task = TaskId { host, number };
        let runner = TaskRunner::new(
            sim.clone(),
            world.clone(),
            client.clone(),
            task,
            session_config.watchdog,
            random.branch(),
        );
        let (done, end) = oneshot::channel();
        session_ends.push(end);
        let work = async move {
            runner.run().await;
            // The receiver is gone if the process has crashed.
            let _ = done.send(());
        };
        // Siblings inherit a shared owner; other tasks have no owner of their own.
        let is_sibling = random.chance(500);
        sim.scheduler.spawn(
            host,
            if is_sibling {
                Box::pin(shared.sync_scope(|| Owner::in_current_scope(work)))
            } else {
                Box::pin(work)
            },
        );
    }
    for (number, lock) in (config.tasks..).zip(Observer::elections(&sim)) {
        if random.chance(600) {
            let (task, random) = (TaskId { host, number }, random.branch());
            let observer = Observer { sim: sim.clone(), client: client.clone(), task, lock, random };
            let (done, end) = oneshot::channel();
            session_ends.push(end);
            sim.scheduler.spawn(
                host,
                Box::pin(async move {
                    observer.run().await;
                    // The receiver is gone if the process has crashed.
                    let _ = done.send(());
                }),
            );
        }
    }
    if Burst::is_enabled(&sim) && random.chance(700) {
        let (sim, world, client, random) = (sim.clone(), world.clone(), client.clone(), random.branch());
        let burst =
            Burst { sim: sim.clone(), world, client, host, watchdog: session_config.watchdog, random };
        let (done, end) = oneshot::channel();
        session_ends.push(end);
        sim.scheduler.spawn(
            host,
            Box::pin(async move {
                burst.run().await;
                // The receiver is gone if the process has crashed.
                let _ = done.send(());
            }),
        );
    }
    join_all(session_ends).await;
    drop(cached_mutexes);
    client.flush().await;
    sim.record(&Event::Host(host, HostEvent::Ended));
}

/// The lease and session of a process.
#[derive(Debug, Clone, Copy)]
struct SessionConfig {
    /// How long its session lives without a heartbeat, if it has one.
    session: Option<Duration>,
    watchdog: Duration,
}

impl SessionConfig {
    fn draw(random: &Random, config: WorkloadConfig) -> Self {
        if random.chance(config.without_session) {
            return Self { session: None, watchdog: config.watchdog };
        }
        let session = Duration::from_millis(random.between(1_000, 10_000));
        // With a session, leases may be long: no client waits for the lease of a crashed process.
        let longer = if random.chance(500) { 3 } else { 1 };
        Self { session: Some(session), watchdog: config.watchdog * longer }
    }
}

async fn connect(store: &SimStore, session_config: SessionConfig) -> Result<Client, ConnectError> {
    let config = store.world.sim.config;
    let builder = Client::with_store(MutantStore::new(store.clone(), store.world.sim.mutant))
        .environment(store.world.clone())
        .label(store.world.host.to_string())
        // Nothing of what is checked depends on them.
        .statistics(false)
        .watchdog_lease(session_config.watchdog)
        .call_timeout(config.call_timeout)
        .outage_limit(Duration::from_secs(20));
    match session_config.session {
        Some(alive) => builder.session_ttl(alive).connect().await,
        None => builder.without_session().connect().await,
    }
}

/// A foreign client that acquires by `SET NX PX` and releases by compare-and-delete.
pub(crate) async fn foreign_client(sim: Arc<Sim>, random: Random) {
    let pause = async |most_ms: u64| {
        let us = random.below(most_ms * 1000);
        sim.scheduler.sleep_until(sim.scheduler.now() + Duration::from_micros(us)).await;
    };
    let mut count = 0;
    while sim.scheduler.now() < sim.fault_plan.faults_end_at {
        pause(1_000).await;
        count += 1;
        let (lock, value) = (LockId(0), format!("foreign {count}"));
        let lease = Duration::from_millis(random.between(100, 3_000));
        if sim.foreign_set(lock, &value, lease) {
            // It releases before the lease expires, or lets it expire.
            pause(u64::try_from(lease.as_millis()).unwrap_or(1) / 2 + 1).await;
            if random.chance(800) {
                sim.foreign_delete(lock, &value);
            }
        }
    }
}
