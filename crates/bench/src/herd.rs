//! Many tasks in 8 processes that take one lock again and again, with nothing to do inside: what a hand-over costs, however
//! many wait.
//!
//! A hand-over is a section: each has another holder than the one before. What is compared is one count of tasks with
//! another, in alternating rounds, each of them with a server and processes of its own.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::crowd::{Lap, Side, Span, alternate, posts};
use crate::meter::Machine;
use crate::report::{Output, per, quantile_us};
use crate::section::handovers_ns;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::Duration;

/// The processes, where there are as many tasks.
const PROCESSES: u32 = 8;
/// What the others are compared with.
const FEW: u32 = 8;
/// What the issue of a hand-over may ask of the server.
const REQUESTS_AT_MOST: f64 = 2.1;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many tasks contend.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 8, 64, 512, 4096, 10_000])]
    tasks: Vec<u32>,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many sections a round has at least with each count of tasks; as many as there are tasks, if those are more.
    #[arg(long, default_value_t = 5_000)]
    sections: u64,
    /// How many seconds a round has at most with each count of tasks.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// What one count of tasks measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct HerdReport {
    scenario: &'static str,
    /// Time a hand-over, to that with 8 tasks.
    time_ratio: f64,
    requests_per_handover: f64,
    longest_to_mean_wait: f64,
    time_ratio_spread: [f64; 2],
    requests_per_handover_spread: [f64; 2],
    longest_to_mean_wait_spread: [f64; 2],
    /// The time that went by, to the hand-overs in it.
    handover_us: f64,
    handover_us_spread: [f64; 2],
    handovers_per_s: f64,
    /// Of those from one process to another: how many of all, and how long each took.
    between_processes_share: f64,
    between_processes_p50_us: f64,
    between_processes_p99_us: f64,
    longest_wait_ms: f64,
    mean_wait_ms: f64,
    /// In all rounds.
    handovers: u64,
    tasks: u32,
    processes: u32,
    rounds: usize,
    #[serde(flatten)]
    machine: Machine,
}

/// One count of tasks in one round.
struct Turn {
    handover_us: f64,
    requests: f64,
    longest_ms: f64,
    mean_ms: f64,
    handovers: u64,
    between_share: f64,
    between_p50_us: f64,
    between_p99_us: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let counts = &options.tasks;
    ensure!(!counts.is_empty() && !counts.contains(&0), "how many tasks?");
    let sides: Vec<_> = counts.iter().map(|tasks| side(*tasks, options)).collect();
    let (turns, machine) = alternate(&sides, options.rounds, |_, lap| Turn::of(lap))?;
    let few = counts.iter().position(|count| *count == FEW).unwrap_or(0);
    let reports: Vec<_> = counts
        .iter()
        .zip(&turns)
        .map(|(tasks, rounds)| report(*tasks, rounds, &turns[few], machine.clone()))
        .collect();
    for report in &reports {
        options.output.print(report, || report.sentence())?;
    }
    options.output.draw("herd", || time_chart(&reports, &turns))?;
    options.output.draw("herd-requests", || requests_chart(&reports, &turns))
}

fn side(tasks: u32, options: &Options) -> Side {
    let most = Duration::from_secs(options.seconds);
    let least = Duration::from_millis(500);
    Side {
        sought: "mutex".to_owned(),
        posts: posts(tasks, PROCESSES, 0),
        // Until each task has acquired the lock once, and so waits from one of its sections to the next.
        warm_up: Span { sections: u64::from(tasks) + options.sections / 10, least, most },
        span: Span { sections: options.sections.max(u64::from(tasks)), least, most },
    }
}

impl Turn {
    fn of(lap: &mut Lap) -> Self {
        let between = handovers_ns(&mut lap.sections);
        let (longest_ms, mean_ms) = lap.waits_ms(|_| true);
        Self {
            handover_us: per(lap.took_ns, lap.count()) / 1000.0,
            requests: lap.requests_each(),
            longest_ms,
            mean_ms,
            handovers: lap.count(),
            between_share: per(between.len() as u64, lap.count()),
            between_p50_us: quantile_us(&between, 0.5),
            between_p99_us: quantile_us(&between, 0.99),
        }
    }
}

fn report(tasks: u32, rounds: &[Turn], few: &[Turn], machine: Machine) -> HerdReport {
    let middle = |figure: fn(&Turn) -> f64| Spread::over(rounds, figure).median;
    let ratios: Vec<_> =
        rounds.iter().zip(few).map(|(turn, few)| turn.handover_us / few.handover_us).collect();
    let time = Spread::of(&ratios);
    let requests = Spread::over(rounds, |turn| turn.requests);
    let wait = Spread::over(rounds, |turn| turn.longest_ms / turn.mean_ms);
    let each = Spread::over(rounds, |turn| turn.handover_us);
    HerdReport {
        scenario: "herd",
        time_ratio: time.median,
        requests_per_handover: requests.median,
        longest_to_mean_wait: wait.median,
        time_ratio_spread: time.ends(),
        requests_per_handover_spread: requests.ends(),
        longest_to_mean_wait_spread: wait.ends(),
        handover_us: each.median,
        handover_us_spread: each.ends(),
        handovers_per_s: 1e6 / each.median,
        between_processes_share: middle(|turn| turn.between_share),
        between_processes_p50_us: middle(|turn| turn.between_p50_us),
        between_processes_p99_us: middle(|turn| turn.between_p99_us),
        longest_wait_ms: middle(|turn| turn.longest_ms),
        mean_wait_ms: middle(|turn| turn.mean_ms),
        handovers: rounds.iter().map(|turn| turn.handovers).sum(),
        tasks,
        processes: PROCESSES.min(tasks),
        rounds: rounds.len(),
        machine,
    }
}

impl HerdReport {
    fn sentence(&self) -> String {
        format!(
            "herd: {} tasks in {} processes: {:.0} us a hand-over, {:.2} x that of {FEW}; {:.3} requests each; the longest wait \
             {:.1} ms, {:.2} x the mean; {:.0} % of the hand-overs go to another process, in {:.0} us (p50) and {:.0} us (p99)",
            self.tasks,
            self.processes,
            self.handover_us,
            self.time_ratio,
            self.requests_per_handover,
            self.longest_wait_ms,
            self.longest_to_mean_wait,
            self.between_processes_share * 100.0,
            self.between_processes_p50_us,
            self.between_processes_p99_us,
        )
    }
}

fn time_chart(reports: &[HerdReport], turns: &[Vec<Turn>]) -> Chart {
    let series = vec![
        line("in all", reports, turns, |turn| turn.handover_us),
        line("to another process (median)", reports, turns, |turn| turn.between_p50_us),
    ];
    chart("Time a hand-over, with many waiting", "microseconds a hand-over", reports, series, Vec::new())
}

fn requests_chart(reports: &[HerdReport], turns: &[Vec<Turn>]) -> Chart {
    let series = vec![line("requests a hand-over", reports, turns, |turn| turn.requests)];
    let limits = vec![Limit { at: REQUESTS_AT_MOST, label: "at most".to_owned() }];
    chart("What the server is asked, with many waiting", "requests a hand-over", reports, series, limits)
}

fn chart(
    title: &str,
    y: &str,
    reports: &[HerdReport],
    series: Vec<Series<(f64, Spread)>>,
    limits: Vec<Limit>,
) -> Chart {
    let x = Axis { label: "tasks that contend, in 8 processes".to_owned(), log: true };
    Chart {
        title: title.to_owned(),
        note: reports.first().map(|report| report.machine.to_string()).unwrap_or_default(),
        y: Axis { label: y.to_owned(), log: false },
        kind: Kind::Lines { x, series },
        limits,
    }
}

fn line(
    name: &str,
    reports: &[HerdReport],
    turns: &[Vec<Turn>],
    figure: fn(&Turn) -> f64,
) -> Series<(f64, Spread)> {
    let points = reports.iter().zip(turns);
    let values = points.map(|(report, rounds)| (f64::from(report.tasks), Spread::over(rounds, figure)));
    Series { name: name.to_owned(), values: values.collect() }
}
