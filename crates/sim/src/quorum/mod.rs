//! The world of a quorum: clients whose store is a [`QuorumStore`] over five nodes.
//!
//! A quorum uses tokio's tasks and timers, so it runs on tokio's paused clock, on one thread. Each client is a
//! [`leasehold::Client`] with an environment of its own. Each node is a memory store with a clock of its own. What is between
//! them is simulated: messages take time, arrive late, are lost in either direction, or overtake others on a new connection;
//! links are cut, and nodes are down or silent for a while. A node also forgets: its data is gone, as after FLUSHALL, and it
//! votes on.
//!
//! In a part of the runs a node forgets only while a majority keeps all its holds without it. There no lock may ever have two
//! holders. In the others a hold that forgetful nodes have left to less than a majority is excused, as documented.
//!
//! The nodes publish no releases: the line of waiters would draw its pauses from the machine's randomness, and a seed would not
//! repeat. So waiters poll.

mod checks;
mod client_store;
mod config;
mod connection;
mod environment;
pub(crate) mod event;
pub(crate) mod holds;
mod network;
mod node;
mod observer;
mod recorder;
mod workload;
mod world;

use crate::checks::recorder::{Counts, Violation};
use crate::mutants::Mutant;
use crate::timeline::Timeline;
use crate::world::faults::FaultProfile;
use crate::world::time::Instant;
use checks::Limits;
use client_store::ClientStore;
use config::Config;
use connection::Connection;
use environment::ClientEnvironment;
use event::{ClientNo, NEEDED, NODES, NodeNo, TaskNo};
use futures_util::future::{Either, join_all, select};
use leasehold::store::{QuorumStore, Store};
use leasehold::{Client, Owner};
use leasehold_testkit::Random;
use network::{Link, Network};
use node::Node;
use observer::Nodes;
use recorder::Recorder;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use workload::Task;
use world::World;

/// How long tasks need at most to end once they begin nothing new: leases of dropped and lost guards may have to end before.
const TASKS_END_WITHIN: Duration = Duration::from_secs(60);
/// How long clients take to end, and the longest lease.
const ALL_IS_OVER_AFTER: Duration = Duration::from_secs(20);
/// How long a waiter without a limit waits for nodes that do not reply.
const OUTAGE_LIMIT: Duration = Duration::from_secs(20);

/// A finished run.
pub(crate) struct Finished {
    pub(crate) profile: FaultProfile,
    pub(crate) violation: Option<Violation>,
    pub(crate) counts: Counts,
    pub(crate) timeline: Timeline,
}

/// Runs the world once.
pub(crate) fn run(seed: u64, mutant: Option<Mutant>, with_trace: bool) -> Finished {
    let random = Random::from_seed(seed);
    let config = Config::draw(&random);
    let profile = config.profile;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => {
            let (violation, counts, timeline) =
                runtime.block_on(simulate(config, random, mutant, with_trace));
            Finished { profile, violation, counts, timeline }
        }
        Err(error) => {
            let what = format!("there is no runtime: {error}");
            let violation = Some(Violation { check: "world", at: Instant(0), what });
            Finished { profile, violation, counts: Counts::default(), timeline: Timeline::default() }
        }
    }
}

async fn simulate(
    config: Config,
    random: Random,
    mutant: Option<Mutant>,
    with_trace: bool,
) -> (Option<Violation>, Counts, Timeline) {
    let works_on = config.work_until.since(config.messages.end_at);
    let limits = Limits { call: config.call_timeout, end: works_on + TASKS_END_WITHIN };
    let recorder = Recorder::new(limits, with_trace);
    let world = World::new(config.clocks, config.locks.clone(), mutant, recorder);
    let all: Vec<_> = (0..NODES).map(|number| Node::new(NodeNo(number), world.clone())).collect();
    let (config, network) = (Arc::new(config), Network::new(world.clone()));
    let links = (0..config.clients).map(|client| {
        let link = |node: &Arc<Node>| Arc::new(Link::new(ClientNo(client), node.clone(), network.clone()));
        all.iter().map(link).collect()
    });
    let links: Vec<Vec<_>> = links.collect();
    let nodes = Nodes { world: world.clone(), all, links: links.iter().flatten().cloned().collect() };
    let clients = links.into_iter().zip(0..).map(|(links, client)| {
        run_client(world.clone(), config.clone(), ClientNo(client), links, random.branch())
    });
    let clients = join_all(clients.collect::<Vec<_>>());
    let faults = tokio::spawn(nodes.clone().inject_faults(config.clone(), random.branch()));
    let looks = tokio::spawn(nodes.clone().look());
    let deliveries = tokio::spawn(network.run());
    let whole = async {
        clients.await;
        // The faults have ended: tasks work for longer.
        _ = faults.await;
        tokio::time::sleep(ALL_IS_OVER_AFTER).await;
        nodes.report_remains();
    };
    if let Either::Left(_) = select(pin!(world.failed()), pin!(whole)).await {
        // The rest of the run is of no interest.
    }
    looks.abort();
    deliveries.abort();
    world.finish(|recorder| (recorder.violation.take(), recorder.counts, recorder.timeline()))
}

/// Runs a client and its tasks.
async fn run_client(
    world: Arc<World>,
    config: Arc<Config>,
    client: ClientNo,
    mut links: Vec<Arc<Link>>,
    random: Random,
) {
    if world.mutant == Some(Mutant::MinorityIsMajority) {
        links.rotate_left(usize::from(client.0) * 2 % NODES);
        links.truncate(NEEDED);
    }
    let connection = |link| Connection::new(link, config.messages, random.branch());
    let nodes = links.into_iter().map(|link| Arc::new(connection(link)) as Arc<dyn Store>);
    let quorum = match QuorumStore::new(nodes) {
        Ok(quorum) => quorum.node_timeout(config.node_timeout),
        Err(error) => return world.fail(format!("{client} has no quorum: {error}")),
    };
    let environment = ClientEnvironment { world: world.clone(), random: random.branch() };
    let connecting = Client::with_store(ClientStore::new(world.clone(), client, quorum))
        .environment(environment)
        .label(client.to_string())
        .instance_id(client.to_string())
        .statistics(false)
        .watchdog_lease(config.watchdog)
        .call_timeout(config.call_timeout)
        .outage_limit(OUTAGE_LIMIT)
        .connect();
    let connected = match connecting.await {
        Ok(connected) => connected,
        Err(error) => return world.fail(format!("{client} cannot connect: {error}")),
    };
    let no = client;
    // Tasks of one client share an owner, or do not; and so do clients.
    let shared = Owner::new("shared").ok().filter(|_| random.chance(400));
    let tasks = (0..config.tasks).map(|number| {
        let (world, config, client) = (world.clone(), config.clone(), connected.clone());
        let number = TaskNo(no, number);
        let owner = shared.clone().filter(|_| random.chance(600)).unwrap_or_else(|| client.new_owner());
        tokio::spawn(Task { world, config, client, number, random: random.branch(), owner }.run())
    });
    let tasks: Vec<_> = tasks.collect();
    for ended in join_all(tasks).await {
        if let Err(error) = ended {
            world.fail(format!("a task of {client} panicked: {error}"));
        }
    }
    if let Err(error) = connected.shutdown(OUTAGE_LIMIT).await {
        world.fail(format!("{client} did not shut down: {error}"));
    }
}
