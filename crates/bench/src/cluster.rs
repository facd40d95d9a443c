//! The cost of holding many locks over all slots of a cluster, beside as many on a single server.
//!
//! One client holds them on each side at the same time, with the default lease of 30 s. After whole renewal periods were
//! measured, the requests of one more period are counted by kind, because that slows the servers down.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::launch::{Deployment, REPLY_TIMEOUT, Topology, start_worker};
use crate::meter::{Machine, ServerStats, ThreadStats};
use crate::monitor::{Monitor, RequestCounts};
use crate::report::{Output, median, per};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::Worker;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The servers of the cluster.
const NODES: usize = 3;
/// A lease is renewed after every third of it.
const RENEWALS_PER_LEASE: u64 = 3;
/// How many periods are measured at least.
const ROUNDS_AT_LEAST: usize = 1;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many locks the client holds on each side.
    #[arg(long, default_value_t = 10_000)]
    locks: u64,
    /// The watchdog lease, in seconds.
    #[arg(long, default_value_t = 30)]
    lease: u64,
    /// How many renewal periods are measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct ClusterReport {
    scenario: &'static str,
    /// Requests per second and processor time, the cluster's relative to the single server's.
    requests_ratio: f64,
    servers_cpu_ratio: f64,
    client_cpu_ratio: f64,
    /// Requests per second, in all and by kind.
    requests_per_s: f64,
    renewals_per_s: f64,
    heartbeats_per_s: f64,
    other_requests_per_s: f64,
    single_requests_per_s: f64,
    single_renewals_per_s: f64,
    single_heartbeats_per_s: f64,
    single_other_requests_per_s: f64,
    /// Processor time divided by the elapsed time: of each server and of the client.
    server_cpu_shares: Vec<f64>,
    client_cpu_share: f64,
    single_server_cpu_share: f64,
    single_client_cpu_share: f64,
    servers_cpu_ratio_spread: [f64; 2],
    client_cpu_ratio_spread: [f64; 2],
    /// The shortest remaining lease at the end.
    shortest_left_ms: u64,
    locks: u64,
    servers: usize,
    lease_s: u64,
    rounds: usize,
    round_s: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// A client that holds locks, with its servers.
struct Side {
    store: Deployment,
    worker: Worker,
}

/// Shares of a core that one side has used in one period.
struct CpuShares {
    servers: Vec<f64>,
    client: f64,
}

/// What one side has sent in one period, and the time.
struct Sent {
    requests: RequestCounts,
    seconds: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds >= ROUNDS_AT_LEAST && options.lease >= RENEWALS_PER_LEASE, "no period to measure");
    let mut cluster = Side::start(Topology::Cluster(NODES), options)?;
    let mut single = Side::start(Topology::Single, options)?;
    let period = Duration::from_secs(options.lease) / 3;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let (start, before) = (Instant::now(), (cluster.cpu_ns()?, single.cpu_ns()?));
        std::thread::sleep(period);
        let (after, took_ns) =
            ((cluster.cpu_ns()?, single.cpu_ns()?), u64::try_from(start.elapsed().as_nanos())?);
        rounds.push([(after.0, before.0), (after.1, before.1)].map(|(after, before)| {
            let mut shares: Vec<_> =
                after.iter().zip(&before).map(|(after, before)| per(after - before, took_ns)).collect();
            let client = shares.pop().unwrap_or(f64::NAN);
            CpuShares { servers: shares, client }
        }));
    }
    let sent = [cluster.sent(period)?, single.sent(period)?];
    let left_ms = cluster.check(options.locks)?.min(single.check(options.locks)?);
    let report = report(options, &rounds, &sent, left_ms, Machine::of(&cluster.store)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("cluster", || report.chart(&rounds))
}

impl Side {
    /// Starts the servers and the client, which acquires all locks over a renewal period.
    fn start(topology: Topology, options: &Options) -> Result<Self> {
        let store = topology.start()?;
        let [locks, over_ms, lease_ms] =
            [options.locks, options.lease * 1000 / RENEWALS_PER_LEASE, options.lease * 1000]
                .map(|n| n.to_string());
        let (url, role) = (store.url(), ["hold", "--locks", &locks, "--over-ms", &over_ms]);
        let mut worker = start_worker(&[&role[..], &["--lease-ms", &lease_ms, "--url", &url]].concat())?;
        worker.expect("ready", REPLY_TIMEOUT)?;
        worker.send("acquire")?;
        worker.expect("held", REPLY_TIMEOUT + Duration::from_secs(options.lease))?;
        Ok(Self { store, worker })
    }

    /// Processor time in nanoseconds: of each server, and last of the client.
    fn cpu_ns(&self) -> Result<Vec<u64>> {
        let servers = self.store.servers().into_iter();
        let mut all =
            servers.map(|server| Ok(ServerStats::read(server)?.cpu_us * 1000)).collect::<Result<Vec<_>>>()?;
        all.push(ThreadStats::read(self.worker.pid(), None)?.cpu_ns);
        Ok(all)
    }

    /// Counts the requests of a period.
    fn sent(&self, period: Duration) -> Result<Sent> {
        let mut monitor = Monitor::start(&self.store.servers())?;
        monitor.take()?;
        let start = Instant::now();
        std::thread::sleep(period);
        let seconds = start.elapsed().as_secs_f64();
        Ok(Sent { requests: monitor.take()?, seconds })
    }

    /// Checks that all locks are held. Returns the shortest remaining lease in milliseconds.
    fn check(&mut self, locks: u64) -> Result<u64> {
        self.worker.send("check")?;
        let checked = self.worker.line(REPLY_TIMEOUT)?;
        let (held, left_ms) = checked.split_once(' ').context("two numbers")?;
        let held: u64 = held.parse()?;
        ensure!(held == locks, "{} of {locks} locks were lost", locks - held);
        Ok(left_ms.parse()?)
    }
}

impl CpuShares {
    fn all_servers(&self) -> f64 {
        self.servers.iter().sum()
    }
}

impl Sent {
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than the leading bits")]
    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// All requests, renewals, heartbeats, and others.
    fn rates(&self) -> [f64; 4] {
        let all = self.requests;
        let other = all.total() - all.renewal - all.heartbeat;
        [all.total(), all.renewal, all.heartbeat, other].map(|count| self.per_s(count))
    }
}

fn report(
    options: &Options,
    rounds: &[[CpuShares; 2]],
    sent: &[Sent; 2],
    shortest_left_ms: u64,
    machine: Machine,
) -> ClusterReport {
    let servers = Spread::over(rounds, |[cluster, single]| cluster.all_servers() / single.all_servers());
    let client = Spread::over(rounds, |[cluster, single]| cluster.client / single.client);
    let middle =
        |figure: &dyn Fn(&[CpuShares; 2]) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let [requests_per_s, renewals_per_s, heartbeats_per_s, other_requests_per_s] = sent[0].rates();
    let single = sent[1].rates();
    ClusterReport {
        scenario: "cluster",
        requests_ratio: requests_per_s / single[0],
        servers_cpu_ratio: servers.median,
        client_cpu_ratio: client.median,
        requests_per_s,
        renewals_per_s,
        heartbeats_per_s,
        other_requests_per_s,
        single_requests_per_s: single[0],
        single_renewals_per_s: single[1],
        single_heartbeats_per_s: single[2],
        single_other_requests_per_s: single[3],
        server_cpu_shares: (0..NODES).map(|at| middle(&|[cluster, _]| cluster.servers[at])).collect(),
        client_cpu_share: middle(&|[cluster, _]| cluster.client),
        single_server_cpu_share: middle(&|[_, single]| single.all_servers()),
        single_client_cpu_share: middle(&|[_, single]| single.client),
        servers_cpu_ratio_spread: servers.ends(),
        client_cpu_ratio_spread: client.ends(),
        shortest_left_ms,
        locks: options.locks,
        servers: NODES,
        lease_s: options.lease,
        rounds: rounds.len(),
        round_s: sent[0].seconds,
        machine,
    }
}

impl ClusterReport {
    fn sentence(&self) -> String {
        let shares: Vec<_> =
            self.server_cpu_shares.iter().map(|share| format!("{:.2}", share * 100.0)).collect();
        format!(
            "cluster: {} locks on {} servers take {:.0} requests a second, {:.1} x those on a single server ({:.0}): {:.0} \
             renewals ({:.0}), {:.0} heartbeats ({:.0}), {:.1} others ({:.1}); the servers {} % of a core, {:.1} x the single \
             server ({:.2} %), the client {:.2} %, {:.1} x ({:.2} %)",
            self.locks,
            self.servers,
            self.requests_per_s,
            self.requests_ratio,
            self.single_requests_per_s,
            self.renewals_per_s,
            self.single_renewals_per_s,
            self.heartbeats_per_s,
            self.single_heartbeats_per_s,
            self.other_requests_per_s,
            self.single_other_requests_per_s,
            shares.join(", "),
            self.servers_cpu_ratio,
            self.single_server_cpu_share * 100.0,
            self.client_cpu_share * 100.0,
            self.client_cpu_ratio,
            self.single_client_cpu_share * 100.0,
        )
    }

    fn chart(&self, rounds: &[[CpuShares; 2]]) -> Chart {
        let series = |name: &str, side: usize| {
            let servers = Spread::over(rounds, |round| round[side].all_servers());
            let client = Spread::over(rounds, |round| round[side].client);
            Series { name: name.to_owned(), values: vec![servers, client] }
        };
        Chart {
            title: format!("{} locks held by one client", self.locks),
            note: self.machine.to_string(),
            y: Axis { label: "share of one core".to_owned(), log: true },
            kind: Kind::Bars {
                groups: vec!["all servers".to_owned(), "the client".to_owned()],
                series: vec![series("a cluster of 3", 0), series("a single server", 1)],
            },
            limits: Vec::new(),
        }
    }
}
