//! The cost of holding many locks: one process holds them, each with the default lease.
//!
//! Beside it, in the same rounds, on the same cores and with a server of its own, a bare client sends as many of the
//! same extends, in one pipeline for each interval. It shows how far the keeper is from the limit of the machine.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_replica, start_server, start_worker};
use crate::meter::{Machine, ServerStats, ThreadStats};
use crate::report::{Output, median, per, spread};
use crate::worker::renewal::PERIOD;
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;
/// The keeper's thread.
const KEEPER: &str = "leasehold-keeper";
/// The acceptable share of a core for 10 000 locks.
const CPU_LIMIT: f64 = 0.01;
/// The share of the due extends that a round must contain: one can fall just before it, or after it.
const SENT_AT_LEAST: f64 = 0.95;

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct RenewalReport {
    scenario: &'static str,
    /// Processor time of the server and of the client for an extend, the keeper's relative to the bare client's.
    server_ratio: f64,
    client_ratio: f64,
    server_ratio_spread: [f64; 2],
    client_ratio_spread: [f64; 2],
    /// Processor time divided by the elapsed time: 0.01 is 1 % of one core.
    server_cpu_share: f64,
    client_cpu_share: f64,
    keeper_cpu_share: f64,
    server_cpu_share_spread: [f64; 2],
    client_cpu_share_spread: [f64; 2],
    extends_per_s: f64,
    /// Calls of scripts, each of which extends many.
    requests_per_s: f64,
    /// Wake-ups of the keeper's thread.
    keeper_wakeups_per_s: f64,
    /// Microseconds for an extend: in the script, of the server's processor, of the client's.
    script_us: f64,
    server_us: f64,
    client_us: f64,
    bare_script_us: f64,
    bare_server_us: f64,
    bare_client_us: f64,
    /// The shortest remaining lease at the end.
    shortest_left_ms: u64,
    locks: u64,
    replicas: u32,
    rounds: usize,
    round_s: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// The counters of one client and its server.
#[derive(Clone, Copy)]
struct Meters {
    server: ServerStats,
    client: ThreadStats,
    keeper: ThreadStats,
}

/// A client with a server of its own.
struct Side {
    server: RedisServer,
    /// Ended with this.
    _replicas: Vec<RedisServer>,
    worker: Worker,
    /// How many expiries a renewal writes: one that is confirmed is written again for that.
    expiries_per_renewal: u64,
}

/// The usage in one round.
struct Round {
    took_ns: u64,
    ours: Meters,
    bare: Meters,
}

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many locks one process holds; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    locks: Vec<u64>,
    /// Over how many seconds they are acquired; 0 for as fast as possible.
    #[arg(long, default_value_t = 10)]
    over: u64,
    /// How many renewal periods are measured, at least three.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many replicas the server has, all of which must confirm each renewal (`?replicas=`).
    #[arg(long, default_value_t = 0)]
    replicas: u32,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds >= 3, "at least three renewal periods must be measured");
    let over = Duration::from_secs(options.over);
    let mut reports = Vec::new();
    for locks in &options.locks {
        let report = measure(*locks, over, options.rounds, options.replicas)?;
        options.output.print(&report, || report.sentence())?;
        reports.push(report);
    }
    options.output.draw("renewal", || chart(&reports))
}

fn measure(locks: u64, over: Duration, rounds: usize, replicas: u32) -> Result<RenewalReport> {
    let (locks_text, over_ms) = (locks.to_string(), over.as_millis().to_string());
    let mut ours = Side::start(replicas, |url| {
        start_worker(&["hold", "--url", url, "--locks", &locks_text, "--over-ms", &over_ms])
    })?;
    let mut bare = Side::start(0, |url| start_worker(&["extend", "--url", url, "--locks", &locks_text]))?;
    bare.worker.expect("ready", REPLY_TIMEOUT)?;
    ours.worker.expect("ready", REPLY_TIMEOUT)?;
    ours.worker.send("acquire")?;
    ours.worker.expect("held", REPLY_TIMEOUT + over)?;
    // After the first extend to the full lease, the next one is a renewal.
    let mut measured = Vec::new();
    for _ in 0..rounds {
        let (start, before) = (Instant::now(), (ours.read()?, bare.read()?));
        std::thread::sleep(PERIOD);
        let (ours, bare) = (ours.read()?, bare.read()?);
        let took_ns = u64::try_from(start.elapsed().as_nanos())?;
        measured.push(Round { took_ns, ours: ours.since(before.0), bare: bare.since(before.1) });
    }
    ours.worker.send("check")?;
    let checked = ours.worker.line(REPLY_TIMEOUT)?;
    let (held, shortest_left_ms) = checked.split_once(' ').context("two numbers")?;
    let (held, shortest_left_ms) = (held.parse::<u64>()?, shortest_left_ms.parse::<u64>()?);
    let report = report((locks, replicas), &measured, shortest_left_ms, Machine::with(&ours.server)?);
    ensure!(held == locks, "{} of {locks} locks were lost", locks - held);
    for round in &measured {
        let due = per(locks * round.took_ns, u64::try_from(PERIOD.as_nanos())?);
        let sent = round.ours.server.expiries;
        ensure!(per(sent, 1) >= due * SENT_AT_LEAST, "{sent} extends in a round, {due:.0} were due");
    }
    Ok(report)
}

impl Side {
    fn start(replicas: u32, start_worker: impl FnOnce(&str) -> Result<Worker>) -> Result<Self> {
        let server = start_server()?;
        let url = match replicas {
            0 => server.url(),
            replicas => format!("{}?replicas={replicas}", server.url()),
        };
        let replica = |_| start_replica(&server);
        let replicas = (0..replicas).map(replica).collect::<Result<Vec<_>>>()?;
        let worker = start_worker(&url)?;
        let expiries_per_renewal = if replicas.is_empty() { 1 } else { 2 };
        Ok(Self { server, _replicas: replicas, worker, expiries_per_renewal })
    }

    fn read(&self) -> Result<Meters> {
        let pid = self.worker.pid();
        let (client, keeper) = (ThreadStats::read(pid, None)?, ThreadStats::read(pid, Some(KEEPER))?);
        let mut server = ServerStats::read(&self.server)?;
        server.expiries /= self.expiries_per_renewal;
        Ok(Meters { server, client, keeper })
    }
}

impl Meters {
    fn since(self, earlier: Self) -> Self {
        Self {
            server: self.server.since(earlier.server),
            client: self.client.since(earlier.client),
            keeper: self.keeper.since(earlier.keeper),
        }
    }

    /// Microseconds for an extend: in the script, of the server, of the client.
    fn each_us(&self) -> [f64; 3] {
        let ServerStats { cpu_us, scripts_us, expiries, .. } = self.server;
        [per(scripts_us, expiries), per(cpu_us, expiries), per(self.client.cpu_ns, expiries) / 1000.0]
    }
}

fn report(
    (locks, replicas): (u64, u32),
    rounds: &[Round],
    shortest_left_ms: u64,
    machine: Machine,
) -> RenewalReport {
    let all = |figure: &dyn Fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(figure).collect() };
    let middle = |figure: &dyn Fn(&Round) -> f64| median(&all(figure));
    let each = |side: &dyn Fn(&Round) -> Meters, which: usize| middle(&|round| side(round).each_us()[which]);
    let ratio = |which: usize| all(&|round| round.ours.each_us()[which] / round.bare.each_us()[which]);
    let server_share = all(&|round| per(round.ours.server.cpu_us * 1000, round.took_ns));
    let client_share = all(&|round| per(round.ours.client.cpu_ns, round.took_ns));
    RenewalReport {
        scenario: "renewal",
        server_ratio: median(&ratio(1)),
        client_ratio: median(&ratio(2)),
        server_ratio_spread: spread(&ratio(1)),
        client_ratio_spread: spread(&ratio(2)),
        server_cpu_share: median(&server_share),
        client_cpu_share: median(&client_share),
        keeper_cpu_share: middle(&|round| per(round.ours.keeper.cpu_ns, round.took_ns)),
        server_cpu_share_spread: spread(&server_share),
        client_cpu_share_spread: spread(&client_share),
        extends_per_s: middle(&|round| per(round.ours.server.expiries * SECOND_NS, round.took_ns)),
        requests_per_s: middle(&|round| per(round.ours.server.scripts * SECOND_NS, round.took_ns)),
        keeper_wakeups_per_s: middle(&|round| per(round.ours.keeper.wake_ups * SECOND_NS, round.took_ns)),
        script_us: each(&|round| round.ours, 0),
        server_us: each(&|round| round.ours, 1),
        client_us: each(&|round| round.ours, 2),
        bare_script_us: each(&|round| round.bare, 0),
        bare_server_us: each(&|round| round.bare, 1),
        bare_client_us: each(&|round| round.bare, 2),
        shortest_left_ms,
        locks,
        replicas,
        rounds: rounds.len(),
        round_s: middle(&|round| per(round.took_ns, SECOND_NS)),
        machine,
    }
}

impl RenewalReport {
    fn sentence(&self) -> String {
        format!(
            "renewal: {} locks cost the server {:.2} % and the client {:.2} % of a core (its keeper {:.2} %), {:.2} x \
             and {:.2} x what bare extends cost; {:.0} extends a second in {:.1} requests, for which the keeper wakes \
             {:.1} times; an extend takes {:.1} us of the server ({:.1} in the script) and {:.1} us of the client, bare {:.1} ({:.1}) \
             and {:.1} us",
            self.locks,
            self.server_cpu_share * 100.0,
            self.client_cpu_share * 100.0,
            self.keeper_cpu_share * 100.0,
            self.server_ratio,
            self.client_ratio,
            self.extends_per_s,
            self.requests_per_s,
            self.keeper_wakeups_per_s,
            self.server_us,
            self.script_us,
            self.client_us,
            self.bare_server_us,
            self.bare_script_us,
            self.bare_client_us,
        )
    }
}

fn chart(reports: &[RenewalReport]) -> Chart {
    let line = |name: &str, figure: fn(&RenewalReport) -> (f64, [f64; 2])| {
        let point = |report: &RenewalReport| {
            let (median, [least, most]) = figure(report);
            #[allow(clippy::cast_precision_loss, reason = "a place on an axis")]
            (report.locks as f64, Spread { median, least, most })
        };
        Series { name: name.to_owned(), values: reports.iter().map(point).collect() }
    };
    Chart {
        title: "Many locks held by one process".to_owned(),
        note: reports.first().map(|report| report.machine.to_string()).unwrap_or_default(),
        y: Axis { label: "share of one core".to_owned(), log: true },
        kind: Kind::Lines {
            x: Axis { label: "locks".to_owned(), log: true },
            series: vec![
                line("server", |report| (report.server_cpu_share, report.server_cpu_share_spread)),
                line("client", |report| (report.client_cpu_share, report.client_cpu_share_spread)),
            ],
        },
        limits: vec![Limit { at: CPU_LIMIT, label: "1 %, for 10 000 locks".to_owned() }],
    }
}
