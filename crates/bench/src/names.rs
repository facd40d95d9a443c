//! The cost of fresh names, on one server and in a cluster: 64 tasks of one client acquire and release each name once.
//!
//! Beside it, in alternating rounds: a plain lock by hand on as many fresh names. Requests are counted by kind in a run of
//! their own, because that slows the servers down; the same run shows what the client sends afterwards, and what the names
//! leave behind.
//!
//! `growth` measures how much memory the names take over time.

mod growth;
mod leftovers;

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::launch::{Deployment, REPLY_TIMEOUT, Topology, start_worker};
use crate::meter::{Machine, Metered};
use crate::monitor::RequestCounts;
use crate::report::{Output, per, per_s};
use anyhow::{Result, bail, ensure};
use growth::StoreKind;
use leasehold_testkit::{RedisServer, Worker};
use leftovers::Leftovers;
use serde::Serialize;
use std::time::Duration;

/// The servers of the cluster.
const NODES: usize = 3;
/// The sides, as the worker calls them.
const SIDES: [&str; 2] = ["ours", "plain"];
const PLAIN: usize = 1;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many names each side of a round uses.
    #[arg(long, default_value_t = 20_000)]
    names: u64,
    /// How many tasks acquire and release.
    #[arg(long, default_value_t = 64)]
    tasks: u32,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many seconds the idle client is measured.
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Use fresh names for this time instead, such as `5m`, and print how much memory they take.
    #[arg(long = "for", value_name = "TIME", value_parser = growth::parse_time)]
    time: Option<Duration>,
    /// With `--for`: the stores to measure, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "redis,sqlite,memory")]
    stores: Vec<StoreKind>,
}

/// What one topology measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct NamesReport {
    scenario: &'static str,
    topology: &'static str,
    /// Pairs per second, relative to those of the plain lock.
    ratio_plain: f64,
    /// Time of the servers in requests, and processor time of the client, for a pair, relative to those of the plain lock.
    server_time_ratio: f64,
    client_cpu_ratio: f64,
    /// Requests for a pair, in all and by kind.
    requests_per_pair: f64,
    lock_requests_per_pair: f64,
    session_requests_per_pair: f64,
    heartbeats_per_pair: f64,
    subscriptions_per_pair: f64,
    other_requests_per_pair: f64,
    /// Requests per second of the idle client, in all and those of heartbeats.
    idle_requests_per_s: f64,
    idle_heartbeats_per_s: f64,
    /// Bytes of all keys for each name: at once, and so long after the client has ended.
    bytes_per_name: f64,
    bytes_per_name_after_1_min: f64,
    bytes_per_name_after_61_min: f64,
    keys: u64,
    keys_after_1_min: u64,
    keys_after_61_min: u64,
    ratio_plain_spread: [f64; 2],
    server_time_ratio_spread: [f64; 2],
    client_cpu_ratio_spread: [f64; 2],
    pairs_per_s: f64,
    plain_pairs_per_s: f64,
    /// Microseconds for a pair: in requests as the servers count them, of the servers' processor, of the client's.
    request_us: f64,
    plain_request_us: f64,
    server_us: f64,
    plain_server_us: f64,
    client_us: f64,
    plain_client_us: f64,
    names: u64,
    tasks: u32,
    servers: usize,
    rounds: usize,
    idle_s: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
#[derive(Clone, Copy)]
struct Sample {
    pairs_per_s: f64,
    request_us: f64,
    server_us: f64,
    client_us: f64,
}

/// Each side in one round.
type Round = [Sample; SIDES.len()];

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(time) = options.time {
        return growth::run(&options.output, &options.stores, options.tasks, time);
    }
    let mut all = Vec::new();
    for topology in [Topology::Single, Topology::Cluster(NODES)] {
        let rounds = measure_rounds(topology, options)?;
        let left = leftovers::measure(topology, options)?;
        let report = report(topology, options, &rounds, &left);
        options.output.print(&report, || report.sentence())?;
        all.push((report, rounds));
    }
    options.output.draw("names", || chart(&all))
}

/// Measures both sides in each round, with servers and a client of its own.
fn measure_rounds(topology: Topology, options: &Options) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let store = topology.start()?;
        let mut worker = start_client(&store, options.tasks)?;
        for side in SIDES {
            // Each connection has been used once.
            Metered::request_of(&store.servers(), &mut worker, &format!("{side} {}", options.tasks * 4))?;
        }
        let mut samples = [None; SIDES.len()];
        for side in (0..SIDES.len()).map(|n| (n + round) % SIDES.len()) {
            samples[side] = Some(measure(&store.servers(), &mut worker, side, options.names)?);
        }
        let [Some(ours), Some(plain)] = samples else { bail!("a side was not measured") };
        rounds.push([ours, plain]);
    }
    Ok(rounds)
}

/// Starts the client of both sides.
fn start_client(store: &Deployment, tasks: u32) -> Result<Worker> {
    let nodes: Vec<_> = store.servers().iter().map(|server| server.url()).collect();
    let (url, tasks, nodes) = (store.url(), tasks.to_string(), nodes.join(","));
    let mut worker = start_worker(&["names", "--url", &url, "--tasks", &tasks, "--nodes", &nodes])?;
    worker.expect("ready", REPLY_TIMEOUT)?;
    Ok(worker)
}

/// Measures one side.
fn measure(servers: &[&RedisServer], worker: &mut Worker, side: usize, names: u64) -> Result<Sample> {
    let metered = Metered::request_of(servers, worker, &format!("{} {names}", SIDES[side]))?;
    let ([pairs, took_ns], server, client) = (metered.numbers()?, metered.server, metered.client);
    ensure!(pairs == names, "{} made {pairs} of {names} pairs", SIDES[side]);
    // Only the plain lock's SET is a request of its own; another is part of the script that runs it.
    let sets_us = if side == PLAIN { server.sets_us } else { 0 };
    Ok(Sample {
        pairs_per_s: per_s(pairs, took_ns),
        request_us: per(server.requests_us + sets_us, pairs),
        server_us: per(server.cpu_us, pairs),
        client_us: per(client.cpu_ns, pairs) / 1000.0,
    })
}

fn report(topology: Topology, options: &Options, rounds: &[Round], left: &Leftovers) -> NamesReport {
    let Options { names, tasks, idle, .. } = *options;
    let ratio = |figure: fn(&Sample) -> f64| {
        Spread::over(rounds, |[ours, plain]: &Round| figure(ours) / figure(plain))
    };
    let middle = |figure: fn(&Round) -> f64| Spread::over(rounds, figure).median;
    let pairs = ratio(|sample| sample.pairs_per_s);
    let server_time = ratio(|sample| sample.request_us);
    let client_cpu = ratio(|sample| sample.client_us);
    let RequestCounts { lock, renewal, session, heartbeat, subscribe, other } = left.used;
    NamesReport {
        scenario: "names",
        topology: topology.name(),
        ratio_plain: pairs.median,
        server_time_ratio: server_time.median,
        client_cpu_ratio: client_cpu.median,
        requests_per_pair: per(left.used.total(), names),
        lock_requests_per_pair: per(lock, names),
        session_requests_per_pair: per(session, names),
        heartbeats_per_pair: per(heartbeat, names),
        subscriptions_per_pair: per(subscribe, names),
        other_requests_per_pair: per(renewal + other, names),
        idle_requests_per_s: per(left.idle.total(), idle),
        idle_heartbeats_per_s: per(left.idle.heartbeat, idle),
        bytes_per_name: per(left.at_once.bytes, left.names),
        bytes_per_name_after_1_min: per(left.after_1_min.bytes, left.names),
        bytes_per_name_after_61_min: per(left.after_61_min.bytes, left.names),
        keys: left.at_once.keys,
        keys_after_1_min: left.after_1_min.keys,
        keys_after_61_min: left.after_61_min.keys,
        ratio_plain_spread: pairs.ends(),
        server_time_ratio_spread: server_time.ends(),
        client_cpu_ratio_spread: client_cpu.ends(),
        pairs_per_s: middle(|[ours, _]| ours.pairs_per_s),
        plain_pairs_per_s: middle(|[_, plain]| plain.pairs_per_s),
        request_us: middle(|[ours, _]| ours.request_us),
        plain_request_us: middle(|[_, plain]| plain.request_us),
        server_us: middle(|[ours, _]| ours.server_us),
        plain_server_us: middle(|[_, plain]| plain.server_us),
        client_us: middle(|[ours, _]| ours.client_us),
        plain_client_us: middle(|[_, plain]| plain.client_us),
        names,
        tasks,
        servers: left.servers,
        rounds: rounds.len(),
        idle_s: idle,
        machine: left.machine.clone(),
    }
}

impl NamesReport {
    fn place(&self) -> String {
        match self.servers {
            1 => "one server".to_owned(),
            servers => format!("a {} of {servers}", self.topology),
        }
    }

    fn sentence(&self) -> String {
        format!(
            "names, {}: {:.2} x the pairs a second of a plain lock ({:.0} and {:.0}); {:.3} requests a pair ({:.3} of \
             locks, {:.3} that begin sessions, {:.3} heartbeats, {:.3} subscriptions, {:.3} others); the servers' time in \
             requests {:.2} x ({:.1} and {:.1} us a pair, of their processor {:.1} and {:.1}), the client's processor {:.2} x \
             ({:.1} and {:.1}); idle: {:.1} requests a second, {:.1} of them heartbeats; {:.0} bytes a name at once, {:.0} \
             after 1 minute, {:.1} after 61 ({}, {} and {} keys)",
            self.place(),
            self.ratio_plain,
            self.pairs_per_s,
            self.plain_pairs_per_s,
            self.requests_per_pair,
            self.lock_requests_per_pair,
            self.session_requests_per_pair,
            self.heartbeats_per_pair,
            self.subscriptions_per_pair,
            self.other_requests_per_pair,
            self.server_time_ratio,
            self.request_us,
            self.plain_request_us,
            self.server_us,
            self.plain_server_us,
            self.client_cpu_ratio,
            self.client_us,
            self.plain_client_us,
            self.idle_requests_per_s,
            self.idle_heartbeats_per_s,
            self.bytes_per_name,
            self.bytes_per_name_after_1_min,
            self.bytes_per_name_after_61_min,
            self.keys,
            self.keys_after_1_min,
            self.keys_after_61_min,
        )
    }
}

fn chart(all: &[(NamesReport, Vec<Round>)]) -> Chart {
    let series = |(report, rounds): &(NamesReport, Vec<Round>)| {
        let figures: [fn(&Sample) -> f64; 3] =
            [|sample| sample.pairs_per_s, |sample| sample.request_us, |sample| sample.client_us];
        let ratio =
            |figure: fn(&Sample) -> f64| Spread::over(rounds, |[ours, plain]| figure(ours) / figure(plain));
        Series { name: report.place(), values: figures.map(ratio).to_vec() }
    };
    let groups =
        ["pairs a second\n(more is better)", "the servers' time\na pair", "the client's processor\na pair"];
    Chart {
        title: "A fresh name acquired and released, by 64 tasks".to_owned(),
        note: all.first().map(|(report, _)| report.machine.to_string()).unwrap_or_default(),
        y: Axis { label: "relative to SET NX PX and compare-and-delete".to_owned(), log: true },
        kind: Kind::Bars {
            groups: groups.map(str::to_owned).to_vec(),
            series: all.iter().map(series).collect(),
        },
        limits: vec![Limit { at: 1.0, label: "a plain lock by hand".to_owned() }],
    }
}
