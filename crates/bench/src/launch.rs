//! Starts the processes of a scenario: servers on one core, and workers on another.

use anyhow::{Context, Result, ensure};
use leasehold_testkit::{Cluster, Quorum, RedisServer, RedisServerBuilder, Worker};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long any reply of a worker may take, on a busy machine too.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// Which servers a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    /// A cluster of so many primaries.
    Cluster(usize),
    /// So many independent servers.
    Quorum(usize),
}

/// The running servers of a store, all on one core.
pub(crate) enum Deployment {
    Single(RedisServer),
    /// With the number of its nodes.
    Cluster(Cluster, usize),
    Quorum(Quorum),
}

impl Topology {
    /// Starts the servers.
    pub(crate) fn start(self) -> Result<Deployment> {
        self.start_with(&RedisServer::builder())
    }

    /// Starts the servers with these settings.
    pub(crate) fn start_with(self, settings: &RedisServerBuilder) -> Result<Deployment> {
        let settings = settings.clone().pinned(0);
        let started = match self {
            Self::Single => settings.start().map(Deployment::Single),
            Self::Cluster(nodes) => {
                Cluster::with(nodes, 0, &settings).map(|cluster| Deployment::Cluster(cluster, nodes))
            }
            Self::Quorum(servers) => Quorum::with(servers, &settings).map(Deployment::Quorum),
        };
        started.with_context(|| format!("failed to start redis-server for {self:?}"))
    }

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Cluster(_) => "cluster",
            Self::Quorum(_) => "quorum",
        }
    }
}

impl Deployment {
    /// The URL of the store.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster, _) => cluster.url(),
            // Otherwise a node votes once it has been up for a minute.
            Self::Quorum(quorum) => format!("{}?min_uptime=0s", quorum.url()),
        }
    }

    /// All servers. In a cluster, node `n` owns the slots of the `n`th part.
    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Cluster(cluster, nodes) => (0..*nodes).map(|at| cluster.node(at)).collect(),
            Self::Quorum(quorum) => quorum.iter().collect(),
        }
    }
}

/// A server on a core of its own.
pub(crate) fn start_server() -> Result<RedisServer> {
    RedisServer::builder().pinned(0).start().context("failed to start redis-server")
}

/// A replica of this server, on the core of the clients. Waits until it is in sync.
pub(crate) fn start_replica(of: &RedisServer) -> Result<RedisServer> {
    let at = format!("127.0.0.1 {}", of.port());
    of.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?.ok()?;
    let replica = RedisServer::builder().pinned(1).config("replicaof", at).start()?;
    let begun = Instant::now();
    while !replica.cli(&["INFO", "replication"])?.text().is_some_and(|info| info.contains("link_status:up")) {
        ensure!(begun.elapsed() < REPLY_TIMEOUT, "the replica is not in sync");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(replica)
}

/// This program again, in a role, on the core of the clients.
pub(crate) fn start_worker(role: &[&str]) -> Result<Worker> {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(std::env::current_exe()?).arg("worker").args(role);
    Worker::of_command(command).start().context("failed to start a worker (is `taskset` on the path?)")
}

/// Sends a request to all workers.
pub(crate) fn tell_all(workers: &mut [Worker], request: &str) -> Result<()> {
    Ok(workers.iter_mut().try_for_each(|worker| worker.send(request))?)
}
