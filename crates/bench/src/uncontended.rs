//! What it costs to acquire and release uncontended locks: 64 tasks of one process, each with a lock of its own.
//!
//! Beside it, in alternating rounds of the same process: a plain lock by hand, `SET NX PX` and a script that compares and
//! deletes; and the very requests of the library, as the server has received them, sent with nothing around them. The first
//! says what fencing, fairness and the rest cost; the second, what the library's own code does.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::handoff::{PATIENCE, worker};
use crate::meter::{Machine, Served, Threads};
use crate::pairs::{Heard, lock_of};
use crate::report::{Output, per, per_s};
use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::{RedisServer, Worker};
use serde::Serialize;

/// The sides, as the worker calls them.
const SIDES: [&str; 3] = ["ours", "plain", "same"];
const OURS: usize = 0;
const PLAIN: usize = 1;
const SAME: usize = 2;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many tasks take and release, each its own lock.
    #[arg(long, default_value_t = 64)]
    tasks: u32,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each side of a round takes.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
    /// The lease that the locks are asked for with.
    #[arg(long, default_value_t = 30_000)]
    lease_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct UncontendedReport {
    scenario: &'static str,
    /// Pairs a second, to those of the plain lock, and to those of the same requests.
    ratio_plain: f64,
    ratio_same: f64,
    /// Processor time of the client a pair, and time in commands a pair, to those of the plain lock.
    client_cpu_ratio: f64,
    server_time_ratio: f64,
    /// The same by the processor time of the server, which has what commands cost around them.
    server_cpu_ratio: f64,
    requests_per_pair: f64,
    ratio_plain_spread: [f64; 2],
    ratio_same_spread: [f64; 2],
    client_cpu_ratio_spread: [f64; 2],
    server_time_ratio_spread: [f64; 2],
    server_cpu_ratio_spread: [f64; 2],
    requests_per_pair_spread: [f64; 2],
    ours_pairs_per_s: f64,
    plain_pairs_per_s: f64,
    same_pairs_per_s: f64,
    /// Microseconds a pair: of the client's processor, of the server's, and in commands as the server counts it.
    ours_client_us: f64,
    plain_client_us: f64,
    same_client_us: f64,
    ours_server_us: f64,
    plain_server_us: f64,
    same_server_us: f64,
    ours_command_us: f64,
    plain_command_us: f64,
    same_command_us: f64,
    tasks: u32,
    rounds: usize,
    round_ms: u64,
    lease_ms: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
#[derive(Clone, Copy)]
struct Turn {
    pairs_per_s: f64,
    client_us: f64,
    server_us: f64,
    command_us: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { tasks, lease_ms, round_ms, .. } = *options;
    let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
    let (tasks_text, lease_text) = (tasks.to_string(), lease_ms.to_string());
    let mut worker =
        worker(&["pairs", "--url", &server.url(), "--tasks", &tasks_text, "--lease-ms", &lease_text])?;
    worker.expect("ready", PATIENCE)?;
    let warm_up_ms = round_ms / 3 + 1;
    // The first grant of a lock makes its record, which later ones find.
    turn(&server, &mut worker, OURS, warm_up_ms)?;
    let heard = overhear(&server, &mut worker)?;
    worker.send(&format!("heard {}", serde_json::to_string(&heard)?))?;
    for side in [PLAIN, SAME] {
        turn(&server, &mut worker, side, warm_up_ms)?;
    }
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut turns = [None; SIDES.len()];
        // Each is now the first, now the last.
        for side in (0..SIDES.len()).map(|n| (n + round) % SIDES.len()) {
            turns[side] = Some(turn(&server, &mut worker, side, round_ms)?);
        }
        let [Some(ours), Some(plain), Some(same)] = turns else { bail!("a side had no turn") };
        rounds.push([ours, plain, same]);
    }
    worker.send("stop")?;
    let report = report(options, &rounds, Machine::with(&server)?);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("uncontended", || report.chart(&rounds))
}

/// Lets one side take and release for a time.
fn turn(server: &RedisServer, worker: &mut Worker, side: usize, ms: u64) -> Result<Turn> {
    let (served, client) = (Served::of(server)?, Threads::of(worker.pid(), None)?);
    worker.send(&format!("{} {ms}", SIDES[side]))?;
    let line = worker.line(PATIENCE)?;
    let (served, client) =
        (Served::of(server)?.since(served), Threads::of(worker.pid(), None)?.since(client));
    let (pairs, took_ns) = line.split_once(' ').context("two numbers")?;
    let (pairs, took_ns) = (pairs.parse::<u64>()?, took_ns.parse::<u64>()?);
    ensure!(pairs > 0, "no pair of {} went by", SIDES[side]);
    // Only the plain lock's SET is a request of its own; another is part of the script that runs it.
    let (sets, sets_us) = if side == PLAIN { (served.sets, served.sets_us) } else { (0, 0) };
    Ok(Turn {
        pairs_per_s: per_s(pairs, took_ns),
        client_us: per(client.cpu_ns, pairs) / 1000.0,
        server_us: per(served.cpu_us, pairs),
        command_us: per(served.scripts_us + sets_us, pairs),
        requests: per(served.requests + sets, pairs),
    })
}

/// The requests of one pair, as the server receives them.
fn overhear(server: &RedisServer, worker: &mut Worker) -> Result<Heard> {
    let mut monitor = server.connect()?;
    monitor.call(&["MONITOR"])?.ok()?;
    worker.send("once")?;
    worker.expect("done", PATIENCE)?;
    let end = "that is all";
    server.cli(&["ECHO", end])?.ok()?;
    let mut heard = Vec::new();
    loop {
        let line = monitor.receive()?;
        let line = line.text().context("no line of MONITOR")?;
        let arguments = arguments(line);
        if arguments.get(1).is_some_and(|text| text == end) {
            break;
        }
        // Commands that scripts run are not sent by a client; of those that are sent, one pair is about this lock.
        let is_sent = !line.contains(" lua] ");
        if is_sent && arguments.get(3) == Some(&lock_of(0)) {
            heard.push(arguments);
        }
    }
    // Between them there may be an extend, where the lease is a long one.
    let (Some(acquire), Some(release)) = (heard.first().cloned(), heard.last().cloned()) else {
        bail!("no pair was heard");
    };
    ensure!(acquire[1] != release[1], "one script for both: {heard:?}");
    Ok(Heard { acquire, release })
}

/// The arguments of a command as MONITOR shows it: in quotes, with backslashes.
fn arguments(line: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut chars = line.chars();
    while chars.by_ref().any(|c| c == '"') {
        let mut argument = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            argument.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
        }
        arguments.push(argument);
    }
    arguments
}

/// What one side's figure is to another's in the same round.
fn ratio(rounds: &[[Turn; 3]], of: usize, to: usize, figure: fn(&Turn) -> f64) -> Spread {
    Spread::over(rounds, |round| figure(&round[of]) / figure(&round[to]))
}

fn report(options: &Options, rounds: &[[Turn; 3]], machine: Machine) -> UncontendedReport {
    let middle =
        |side: usize, figure: fn(&Turn) -> f64| Spread::over(rounds, |round| figure(&round[side])).median;
    let pairs_plain = ratio(rounds, OURS, PLAIN, |turn| turn.pairs_per_s);
    let pairs_same = ratio(rounds, OURS, SAME, |turn| turn.pairs_per_s);
    let client_cpu = ratio(rounds, OURS, PLAIN, |turn| turn.client_us);
    let server_time = ratio(rounds, OURS, PLAIN, |turn| turn.command_us);
    let server_cpu = ratio(rounds, OURS, PLAIN, |turn| turn.server_us);
    let requests = Spread::over(rounds, |round| round[OURS].requests);
    let pairs = |side| middle(side, |turn| turn.pairs_per_s);
    let client = |side| middle(side, |turn| turn.client_us);
    let server = |side| middle(side, |turn| turn.server_us);
    let command = |side| middle(side, |turn| turn.command_us);
    UncontendedReport {
        scenario: "uncontended",
        ratio_plain: pairs_plain.median,
        ratio_same: pairs_same.median,
        client_cpu_ratio: client_cpu.median,
        server_time_ratio: server_time.median,
        server_cpu_ratio: server_cpu.median,
        requests_per_pair: requests.median,
        ratio_plain_spread: pairs_plain.ends(),
        ratio_same_spread: pairs_same.ends(),
        client_cpu_ratio_spread: client_cpu.ends(),
        server_time_ratio_spread: server_time.ends(),
        server_cpu_ratio_spread: server_cpu.ends(),
        requests_per_pair_spread: requests.ends(),
        ours_pairs_per_s: pairs(OURS),
        plain_pairs_per_s: pairs(PLAIN),
        same_pairs_per_s: pairs(SAME),
        ours_client_us: client(OURS),
        plain_client_us: client(PLAIN),
        same_client_us: client(SAME),
        ours_server_us: server(OURS),
        plain_server_us: server(PLAIN),
        same_server_us: server(SAME),
        ours_command_us: command(OURS),
        plain_command_us: command(PLAIN),
        same_command_us: command(SAME),
        tasks: options.tasks,
        rounds: rounds.len(),
        round_ms: options.round_ms,
        lease_ms: options.lease_ms,
        machine,
    }
}

impl UncontendedReport {
    fn sentence(&self) -> String {
        format!(
            "uncontended: {:.2} x the pairs a second of a plain lock, {:.2} x those of the same requests ({:.0}, {:.0} and \
             {:.0}); the client's processor {:.2} x the plain lock's ({:.1}, {:.1} and {:.1} us a pair), the server's time in \
             commands {:.2} x ({:.1}, {:.1} and {:.1} us); {:.3} requests a pair; {} tasks",
            self.ratio_plain,
            self.ratio_same,
            self.ours_pairs_per_s,
            self.plain_pairs_per_s,
            self.same_pairs_per_s,
            self.client_cpu_ratio,
            self.ours_client_us,
            self.plain_client_us,
            self.same_client_us,
            self.server_time_ratio,
            self.ours_command_us,
            self.plain_command_us,
            self.same_command_us,
            self.requests_per_pair,
            self.tasks,
        )
    }
}

impl UncontendedReport {
    fn chart(&self, rounds: &[[Turn; 3]]) -> Chart {
        let series = |name: &str, side: usize| {
            let figures: [fn(&Turn) -> f64; 3] =
                [|turn| turn.pairs_per_s, |turn| turn.client_us, |turn| turn.command_us];
            let values = figures.map(|figure| ratio(rounds, side, PLAIN, figure)).to_vec();
            Series { name: name.to_owned(), values }
        };
        let groups = [
            "pairs a second\n(more is better)",
            "the client's processor\na pair",
            "the server's time\na pair",
        ];
        Chart {
            title: format!("A free lock taken and released, by {} tasks", self.tasks),
            note: self.machine.to_string(),
            y: Axis { label: "times that of SET NX PX and compare-and-delete".to_owned(), log: true },
            kind: Kind::Bars {
                groups: groups.map(str::to_owned).to_vec(),
                series: vec![series("Leasehold", OURS), series("its requests alone", SAME)],
            },
            limits: vec![Limit { at: 1.0, label: "a plain lock by hand".to_owned() }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_monitor_shows_is_taken_apart() {
        let line = r#"1762000000.123456 [0 127.0.0.1:4711] "EVALSHA" "sha" "1" "a \"b\"" "" "back\\slash""#;
        assert_eq!(arguments(line), ["EVALSHA", "sha", "1", "a \"b\"", "", "back\\slash"]);
    }
}
