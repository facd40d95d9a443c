//! The cost of a hand-off with few and many waiters: tasks in 8 processes acquire and release one lock in a loop.
//!
//! Every section is a hand-off: it has another holder than the one before. Numbers of tasks are compared with each other in
//! alternating rounds, each with a server and processes of its own.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::contention::{Measurement, Variant, Window, measure_alternating, spread_tasks};
use crate::critical_section::handovers_ns;
use crate::launch::Topology;
use crate::meter::Machine;
use crate::report::{Output, per, quantile_us};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::Duration;

/// The number of processes; fewer if there are fewer tasks.
const PROCESSES: u32 = 8;
/// The number of tasks that the others are compared with.
const FEW: u32 = 8;
/// The highest acceptable number of requests for a hand-off.
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
    /// How many sections a round has at least with each number of tasks; at least as many as there are tasks.
    #[arg(long, default_value_t = 5_000)]
    sections: u64,
    /// How many seconds a round has at most with each number of tasks.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// What one number of tasks measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct HerdReport {
    scenario: &'static str,
    /// The time of a hand-off, relative to that with 8 tasks.
    time_ratio: f64,
    requests_per_handover: f64,
    longest_to_mean_wait: f64,
    time_ratio_spread: [f64; 2],
    requests_per_handover_spread: [f64; 2],
    longest_to_mean_wait_spread: [f64; 2],
    /// The elapsed time divided by the hand-offs.
    handover_us: f64,
    handover_us_spread: [f64; 2],
    handovers_per_s: f64,
    /// Hand-offs from one process to another: their share of all, and their times.
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

/// One number of tasks in one round.
struct Sample {
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
    ensure!(!counts.is_empty() && !counts.contains(&0), "each number of tasks must be at least 1");
    let variants: Vec<_> = counts.iter().map(|tasks| variant(*tasks, options)).collect();
    let (samples, machine) =
        measure_alternating(&variants, options.rounds, |_, measurement| Sample::of(measurement))?;
    let few = counts.iter().position(|count| *count == FEW).unwrap_or(0);
    let reports: Vec<_> = counts
        .iter()
        .zip(&samples)
        .map(|(tasks, rounds)| report(*tasks, rounds, &samples[few], machine.clone()))
        .collect();
    for report in &reports {
        options.output.print(report, || report.sentence())?;
    }
    options.output.draw("herd", || time_chart(&reports, &samples))?;
    options.output.draw("herd-requests", || requests_chart(&reports, &samples))
}

fn variant(tasks: u32, options: &Options) -> Variant {
    let most = Duration::from_secs(options.seconds);
    let least = Duration::from_millis(500);
    Variant {
        topology: Topology::Single,
        lock: "mutex".to_owned(),
        processes: spread_tasks(tasks, PROCESSES, 0),
        // Until each task has acquired the lock once, and so waits from one of its sections to the next.
        warm_up: Window { sections: u64::from(tasks) + options.sections / 10, least, most },
        window: Window { sections: options.sections.max(u64::from(tasks)), least, most },
    }
}

impl Sample {
    fn of(measurement: &mut Measurement) -> Self {
        let between = handovers_ns(&mut measurement.sections);
        let (longest_ms, mean_ms) = measurement.waits_ms(|_| true);
        Self {
            handover_us: per(measurement.took_ns, measurement.count()) / 1000.0,
            requests: measurement.requests_per_section(),
            longest_ms,
            mean_ms,
            handovers: measurement.count(),
            between_share: per(between.len() as u64, measurement.count()),
            between_p50_us: quantile_us(&between, 0.5),
            between_p99_us: quantile_us(&between, 0.99),
        }
    }
}

fn report(tasks: u32, rounds: &[Sample], few: &[Sample], machine: Machine) -> HerdReport {
    let middle = |figure: fn(&Sample) -> f64| Spread::over(rounds, figure).median;
    let ratios: Vec<_> =
        rounds.iter().zip(few).map(|(sample, few)| sample.handover_us / few.handover_us).collect();
    let time = Spread::of(&ratios);
    let requests = Spread::over(rounds, |sample| sample.requests);
    let wait = Spread::over(rounds, |sample| sample.longest_ms / sample.mean_ms);
    let each = Spread::over(rounds, |sample| sample.handover_us);
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
        between_processes_share: middle(|sample| sample.between_share),
        between_processes_p50_us: middle(|sample| sample.between_p50_us),
        between_processes_p99_us: middle(|sample| sample.between_p99_us),
        longest_wait_ms: middle(|sample| sample.longest_ms),
        mean_wait_ms: middle(|sample| sample.mean_ms),
        handovers: rounds.iter().map(|sample| sample.handovers).sum(),
        tasks,
        processes: PROCESSES.min(tasks),
        rounds: rounds.len(),
        machine,
    }
}

impl HerdReport {
    fn sentence(&self) -> String {
        format!(
            "herd: {} tasks in {} processes: {:.0} us a hand-off, {:.2} x that of {FEW}; {:.3} requests each; the longest wait \
             {:.1} ms, {:.2} x the mean; {:.0} % of the hand-offs go to another process, in {:.0} us (p50) and {:.0} us (p99)",
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

fn time_chart(reports: &[HerdReport], samples: &[Vec<Sample>]) -> Chart {
    let series = vec![
        line("in all", reports, samples, |sample| sample.handover_us),
        line("to another process (median)", reports, samples, |sample| sample.between_p50_us),
    ];
    chart(
        "Time of a hand-off, by the number of tasks",
        "microseconds a hand-off",
        reports,
        series,
        Vec::new(),
    )
}

fn requests_chart(reports: &[HerdReport], samples: &[Vec<Sample>]) -> Chart {
    let series = vec![line("requests a hand-off", reports, samples, |sample| sample.requests)];
    let limits = vec![Limit { at: REQUESTS_AT_MOST, label: "at most".to_owned() }];
    chart("Requests of a hand-off, by the number of tasks", "requests a hand-off", reports, series, limits)
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
    samples: &[Vec<Sample>],
    figure: fn(&Sample) -> f64,
) -> Series<(f64, Spread)> {
    let points = reports.iter().zip(samples);
    let values = points.map(|(report, rounds)| (f64::from(report.tasks), Spread::over(rounds, figure)));
    Series { name: name.to_owned(), values: values.collect() }
}
