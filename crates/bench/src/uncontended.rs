//! The cost of acquiring and releasing uncontended locks: 64 tasks of one process, each with a lock of its own; and one
//! task alone, whose pair is two round trips.
//!
//! Beside it, in alternating rounds of the same process: a plain lock by hand, `SET NX PX` and a script that compares and
//! deletes; the same requests as the library's, recorded at the server and sent by a bare client; and rslock, a library that
//! does what the plain lock does; and the library with metrics, which are recorded. The first shows the cost of fencing, fairness and the rest; the second, the cost of the
//! library's own code; the third, what another library costs; the last, what metrics cost.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, Metered};
use crate::monitor::sent_command;
use crate::report::{Output, per, per_s};
use crate::worker::uncontended::{RecordedRequests, lock_of};
use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The sides, as the worker calls them.
const SIDES: [&str; 5] = ["ours", "plain", "same", "rslock", "metrics"];
const OURS: usize = 0;
const PLAIN: usize = 1;
const SAME: usize = 2;
const RSLOCK: usize = 3;
const METRICS: usize = 4;

/// Each side in one round.
type Round = [Sample; SIDES.len()];

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many tasks acquire and release, each its own lock; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1])]
    tasks: Vec<u32>,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each side of a round runs.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
    /// The requested lease.
    #[arg(long, default_value_t = 30_000)]
    lease_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct UncontendedReport {
    scenario: &'static str,
    /// Pairs per second, relative to those of the plain lock, of the same requests, and of rslock.
    ratio_plain: f64,
    ratio_same: f64,
    ratio_rslock: f64,
    /// Pairs per second with metrics, relative to those without.
    ratio_metrics: f64,
    /// The same for the processor time of the client for a pair.
    metrics_cpu_ratio: f64,
    /// Processor time of the client for a pair, and time in commands, relative to those of the plain lock.
    client_cpu_ratio: f64,
    server_time_ratio: f64,
    /// The same for the processor time of the server, which includes the cost around commands.
    server_cpu_ratio: f64,
    requests_per_pair: f64,
    ratio_plain_spread: [f64; 2],
    ratio_same_spread: [f64; 2],
    ratio_rslock_spread: [f64; 2],
    ratio_metrics_spread: [f64; 2],
    metrics_cpu_ratio_spread: [f64; 2],
    client_cpu_ratio_spread: [f64; 2],
    server_time_ratio_spread: [f64; 2],
    server_cpu_ratio_spread: [f64; 2],
    requests_per_pair_spread: [f64; 2],
    ours_pairs_per_s: f64,
    plain_pairs_per_s: f64,
    same_pairs_per_s: f64,
    rslock_pairs_per_s: f64,
    metrics_pairs_per_s: f64,
    /// Microseconds from the start of a task's pair to its end.
    ours_pair_us: f64,
    plain_pair_us: f64,
    same_pair_us: f64,
    rslock_pair_us: f64,
    /// Microseconds for a pair: of the client's processor, of the server's, and in commands as the server counts them.
    ours_client_us: f64,
    plain_client_us: f64,
    same_client_us: f64,
    rslock_client_us: f64,
    metrics_client_us: f64,
    ours_server_us: f64,
    plain_server_us: f64,
    same_server_us: f64,
    rslock_server_us: f64,
    ours_command_us: f64,
    plain_command_us: f64,
    same_command_us: f64,
    rslock_command_us: f64,
    tasks: u32,
    rounds: usize,
    round_ms: u64,
    lease_ms: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
#[derive(Clone, Copy)]
struct Sample {
    pairs_per_s: f64,
    client_us: f64,
    server_us: f64,
    command_us: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    for tasks in &options.tasks {
        let (report, rounds) = measure_tasks(*tasks, options)?;
        options.output.print(&report, || report.sentence())?;
        let name = if *tasks == 1 { "uncontended-alone" } else { "uncontended" };
        options.output.draw(name, || report.chart(&rounds))?;
    }
    Ok(())
}

fn measure_tasks(tasks: u32, options: &Options) -> Result<(UncontendedReport, Vec<Round>)> {
    let Options { lease_ms, round_ms, .. } = *options;
    let server = start_server()?;
    let (tasks_text, lease_text) = (tasks.to_string(), lease_ms.to_string());
    let mut worker = start_worker(&[
        "uncontended",
        "--url",
        &server.url(),
        "--tasks",
        &tasks_text,
        "--lease-ms",
        &lease_text,
    ])?;
    worker.expect("ready", REPLY_TIMEOUT)?;
    let warm_up_ms = round_ms / 3 + 1;
    // The first grant of a lock creates its record.
    measure(&server, &mut worker, OURS, warm_up_ms)?;
    let recorded = record_requests(&server, &mut worker)?;
    worker.send(&format!("recorded {}", serde_json::to_string(&recorded)?))?;
    for side in [PLAIN, SAME, RSLOCK, METRICS] {
        measure(&server, &mut worker, side, warm_up_ms)?;
    }
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut samples = [None; SIDES.len()];
        // Each side is measured first, second and last in turn.
        for side in (0..SIDES.len()).map(|n| (n + round) % SIDES.len()) {
            samples[side] = Some(measure(&server, &mut worker, side, round_ms)?);
        }
        let [Some(ours), Some(plain), Some(same), Some(rslock), Some(metrics)] = samples else {
            bail!("a side was not measured")
        };
        rounds.push([ours, plain, same, rslock, metrics]);
    }
    worker.send("stop")?;
    Ok((report(tasks, options, &rounds, Machine::with(&server)?), rounds))
}

/// Measures one side for a time.
fn measure(server: &RedisServer, worker: &mut Worker, side: usize, ms: u64) -> Result<Sample> {
    let metered = Metered::request(server, worker, &format!("{} {ms}", SIDES[side]))?;
    let ([pairs, took_ns], server, client) = (metered.numbers()?, metered.server, metered.client);
    ensure!(pairs > 0, "{} made no pair", SIDES[side]);
    // Only the SETs of these are requests of their own; another is part of the script that runs it.
    let (sets, sets_us) =
        if [PLAIN, RSLOCK].contains(&side) { (server.sets, server.sets_us) } else { (0, 0) };
    Ok(Sample {
        pairs_per_s: per_s(pairs, took_ns),
        client_us: per(client.cpu_ns, pairs) / 1000.0,
        server_us: per(server.cpu_us, pairs),
        command_us: per(server.scripts_us + sets_us, pairs),
        requests: per(server.requests + sets, pairs),
    })
}

/// The requests of one pair, as the server receives them.
fn record_requests(server: &RedisServer, worker: &mut Worker) -> Result<RecordedRequests> {
    let mut monitor = server.connect()?;
    monitor.call(&["MONITOR"])?.ok()?;
    worker.send("once")?;
    worker.expect("done", REPLY_TIMEOUT)?;
    let end = "end of the recording";
    server.cli(&["ECHO", end])?.ok()?;
    let mut recorded = Vec::new();
    loop {
        let line = monitor.receive()?;
        let line = line.text().context("no line of MONITOR")?;
        let Some(command) = sent_command(line) else { continue };
        if command.get(1).is_some_and(|text| text == end) {
            break;
        }
        // Of the commands that clients send, one pair is about this lock.
        if command.get(3) == Some(&lock_of(0)) {
            recorded.push(command);
        }
    }
    // There may be an extend between them if the lease is long.
    let (Some(acquire), Some(release)) = (recorded.first().cloned(), recorded.last().cloned()) else {
        bail!("no pair was recorded");
    };
    ensure!(acquire[1] != release[1], "one script for both: {recorded:?}");
    Ok(RecordedRequests { acquire, release })
}

/// The ratio of one side's figure to another's in the same round.
fn ratio(rounds: &[Round], of: usize, to: usize, figure: fn(&Sample) -> f64) -> Spread {
    Spread::over(rounds, |round| figure(&round[of]) / figure(&round[to]))
}

fn report(tasks: u32, options: &Options, rounds: &[Round], machine: Machine) -> UncontendedReport {
    let middle =
        |side: usize, figure: fn(&Sample) -> f64| Spread::over(rounds, |round| figure(&round[side])).median;
    let pairs_plain = ratio(rounds, OURS, PLAIN, |sample| sample.pairs_per_s);
    let pairs_same = ratio(rounds, OURS, SAME, |sample| sample.pairs_per_s);
    let pairs_rslock = ratio(rounds, OURS, RSLOCK, |sample| sample.pairs_per_s);
    let pairs_metrics = ratio(rounds, METRICS, OURS, |sample| sample.pairs_per_s);
    let metrics_cpu = ratio(rounds, METRICS, OURS, |sample| sample.client_us);
    let client_cpu = ratio(rounds, OURS, PLAIN, |sample| sample.client_us);
    let server_time = ratio(rounds, OURS, PLAIN, |sample| sample.command_us);
    let server_cpu = ratio(rounds, OURS, PLAIN, |sample| sample.server_us);
    let requests = Spread::over(rounds, |round| round[OURS].requests);
    let pairs = |side| middle(side, |sample| sample.pairs_per_s);
    // Each task has one pair at a time.
    let pair = |side| f64::from(tasks) * 1e6 / pairs(side);
    let client = |side| middle(side, |sample| sample.client_us);
    let server = |side| middle(side, |sample| sample.server_us);
    let command = |side| middle(side, |sample| sample.command_us);
    UncontendedReport {
        scenario: "uncontended",
        ratio_plain: pairs_plain.median,
        ratio_same: pairs_same.median,
        ratio_rslock: pairs_rslock.median,
        ratio_metrics: pairs_metrics.median,
        metrics_cpu_ratio: metrics_cpu.median,
        client_cpu_ratio: client_cpu.median,
        server_time_ratio: server_time.median,
        server_cpu_ratio: server_cpu.median,
        requests_per_pair: requests.median,
        ratio_plain_spread: pairs_plain.ends(),
        ratio_same_spread: pairs_same.ends(),
        ratio_rslock_spread: pairs_rslock.ends(),
        ratio_metrics_spread: pairs_metrics.ends(),
        metrics_cpu_ratio_spread: metrics_cpu.ends(),
        client_cpu_ratio_spread: client_cpu.ends(),
        server_time_ratio_spread: server_time.ends(),
        server_cpu_ratio_spread: server_cpu.ends(),
        requests_per_pair_spread: requests.ends(),
        ours_pairs_per_s: pairs(OURS),
        plain_pairs_per_s: pairs(PLAIN),
        same_pairs_per_s: pairs(SAME),
        rslock_pairs_per_s: pairs(RSLOCK),
        metrics_pairs_per_s: pairs(METRICS),
        ours_pair_us: pair(OURS),
        plain_pair_us: pair(PLAIN),
        same_pair_us: pair(SAME),
        rslock_pair_us: pair(RSLOCK),
        ours_client_us: client(OURS),
        plain_client_us: client(PLAIN),
        same_client_us: client(SAME),
        rslock_client_us: client(RSLOCK),
        metrics_client_us: client(METRICS),
        ours_server_us: server(OURS),
        plain_server_us: server(PLAIN),
        same_server_us: server(SAME),
        rslock_server_us: server(RSLOCK),
        ours_command_us: command(OURS),
        plain_command_us: command(PLAIN),
        same_command_us: command(SAME),
        rslock_command_us: command(RSLOCK),
        tasks,
        rounds: rounds.len(),
        round_ms: options.round_ms,
        lease_ms: options.lease_ms,
        machine,
    }
}

impl UncontendedReport {
    fn sentence(&self) -> String {
        format!(
            "uncontended, {} tasks: {:.2} x the pairs a second of a plain lock, {:.2} x those of the same requests, {:.2} x \
             rslock's ({:.0}, {:.0}, {:.0} and {:.0}; a pair {:.1}, {:.1}, {:.1} and {:.1} us); the client's processor {:.2} x \
             the plain lock's ({:.1}, {:.1}, {:.1} and {:.1} us a pair), the server's time in commands {:.2} x ({:.1}, {:.1}, \
             {:.1} and {:.1} us); {:.3} requests a pair; with metrics {:.2} x the pairs a second, {:.2} x the client's processor",
            self.tasks,
            self.ratio_plain,
            self.ratio_same,
            self.ratio_rslock,
            self.ours_pairs_per_s,
            self.plain_pairs_per_s,
            self.same_pairs_per_s,
            self.rslock_pairs_per_s,
            self.ours_pair_us,
            self.plain_pair_us,
            self.same_pair_us,
            self.rslock_pair_us,
            self.client_cpu_ratio,
            self.ours_client_us,
            self.plain_client_us,
            self.same_client_us,
            self.rslock_client_us,
            self.server_time_ratio,
            self.ours_command_us,
            self.plain_command_us,
            self.same_command_us,
            self.rslock_command_us,
            self.requests_per_pair,
            self.ratio_metrics,
            self.metrics_cpu_ratio,
        )
    }

    fn chart(&self, rounds: &[Round]) -> Chart {
        let series = |name: &str, side: usize| {
            let figures: [fn(&Sample) -> f64; 3] =
                [|sample| sample.pairs_per_s, |sample| sample.client_us, |sample| sample.command_us];
            let values = figures.map(|figure| ratio(rounds, side, PLAIN, figure)).to_vec();
            Series { name: name.to_owned(), values }
        };
        let groups = [
            "pairs a second\n(more is better)",
            "the client's processor\na pair",
            "the server's time\na pair",
        ];
        Chart {
            title: match self.tasks {
                1 => "A free lock acquired and released, by one task".to_owned(),
                tasks => format!("A free lock acquired and released, by {tasks} tasks"),
            },
            note: self.machine.to_string(),
            y: Axis { label: "relative to SET NX PX and compare-and-delete".to_owned(), log: true },
            kind: Kind::Bars {
                groups: groups.map(str::to_owned).to_vec(),
                series: vec![
                    series("Leasehold", OURS),
                    series("its requests alone", SAME),
                    series("rslock", RSLOCK),
                ],
            },
            limits: vec![Limit { at: 1.0, label: "a plain lock by hand".to_owned() }],
        }
    }
}
