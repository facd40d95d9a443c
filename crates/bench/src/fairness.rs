//! How evenly tasks share a lock: 64 tasks in 8 processes, with equal or unequal holds, and equal or unequal numbers of
//! tasks in the processes.
//!
//! There is no bound beside it: only shares are compared.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::contention::{Measurement, ProcessLoad, Variant, Window, measure_alternating, spread_tasks};
use crate::launch::Topology;
use crate::meter::Machine;
use crate::report::{Output, per};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many seconds each crowd of a round is measured.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
}

/// What one crowd measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct FairnessReport {
    scenario: &'static str,
    /// Jain's index of the tasks' sections: 1 if all are equal.
    jain: f64,
    longest_to_mean_wait: f64,
    jain_spread: [f64; 2],
    longest_to_mean_wait_spread: [f64; 2],
    /// The fewest and the most sections per task of a process, relative to an equal share.
    least_served: f64,
    most_served: f64,
    least_served_spread: [f64; 2],
    most_served_spread: [f64; 2],
    longest_wait_ms: f64,
    mean_wait_ms: f64,
    sections_per_s: f64,
    /// What is uneven.
    crowd: &'static str,
    tasks: u32,
    processes: usize,
    rounds: usize,
    seconds: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One crowd in one round.
struct Sample {
    jain: f64,
    longest_ms: f64,
    mean_ms: f64,
    least_served: f64,
    most_served: f64,
    sections_per_s: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let crowds = crowds();
    let variants: Vec<_> = crowds.iter().map(|(_, processes)| variant(processes, options.seconds)).collect();
    let (samples, machine) = measure_alternating(&variants, options.rounds, Sample::of)?;
    let reports: Vec<_> = crowds
        .iter()
        .zip(&samples)
        .map(|((crowd, processes), rounds)| {
            report(crowd, processes, rounds, options.seconds, machine.clone())
        })
        .collect();
    for report in &reports {
        options.output.print(report, || report.sentence())?;
    }
    options.output.draw("fairness", || chart(&reports, &samples))
}

/// 64 tasks in 8 processes: all equal; some processes hold the lock for longer than others; and a few processes have most
/// of the tasks.
fn crowds() -> [(&'static str, Vec<ProcessLoad>); 3] {
    let uneven_holds =
        [0, 0, 0, 0, 1, 1, 2, 4].map(|hold_ms| ProcessLoad { tasks: 8, hold_us: hold_ms * 1000 }).to_vec();
    let uneven_tasks = [1, 1, 1, 1, 4, 8, 16, 32].map(|tasks| ProcessLoad { tasks, hold_us: 0 }).to_vec();
    [("even", spread_tasks(64, 8, 0)), ("uneven holds", uneven_holds), ("uneven tasks", uneven_tasks)]
}

fn variant(processes: &[ProcessLoad], seconds: u64) -> Variant {
    Variant {
        topology: Topology::Single,
        lock: "mutex".to_owned(),
        processes: processes.to_vec(),
        warm_up: Window::of(Duration::from_millis(500)),
        window: Window::of(Duration::from_secs(seconds)),
    }
}

impl Sample {
    fn of(variant: &Variant, measurement: &mut Measurement) -> Self {
        let mut by_task = BTreeMap::new();
        for (process, load) in (0..).zip(&variant.processes) {
            by_task.extend((0..load.tasks).map(|task| ((process, task), 0_u64)));
        }
        for section in &measurement.sections {
            *by_task.entry((section.process, section.task)).or_default() += 1;
        }
        let served = (0..).zip(&variant.processes).map(|(process, load)| {
            let sections: u64 =
                by_task.range((process, 0)..(process + 1, 0)).map(|(_, sections)| sections).sum();
            per(sections * by_task.len() as u64, measurement.count() * u64::from(load.tasks))
        });
        let served = Spread::of(&served.collect::<Vec<_>>());
        let (longest_ms, mean_ms) = measurement.waits_ms(|_| true);
        Self {
            jain: jain(&by_task.into_values().collect::<Vec<_>>()),
            longest_ms,
            mean_ms,
            least_served: served.least,
            most_served: served.most,
            sections_per_s: measurement.sections_per_s(),
        }
    }
}

/// Jain's fairness index: 1 if all shares are equal, and 1/n if one of n has everything.
fn jain(shares: &[u64]) -> f64 {
    let sum: u64 = shares.iter().sum();
    let squares: u64 = shares.iter().map(|share| share * share).sum();
    per(sum * sum, squares * shares.len() as u64)
}

fn report(
    crowd: &'static str,
    processes: &[ProcessLoad],
    rounds: &[Sample],
    seconds: u64,
    machine: Machine,
) -> FairnessReport {
    let jain = Spread::over(rounds, |sample| sample.jain);
    let wait = Spread::over(rounds, |sample| sample.longest_ms / sample.mean_ms);
    let least = Spread::over(rounds, |sample| sample.least_served);
    let most = Spread::over(rounds, |sample| sample.most_served);
    FairnessReport {
        scenario: "fairness",
        jain: jain.median,
        longest_to_mean_wait: wait.median,
        jain_spread: jain.ends(),
        longest_to_mean_wait_spread: wait.ends(),
        least_served: least.median,
        most_served: most.median,
        least_served_spread: least.ends(),
        most_served_spread: most.ends(),
        longest_wait_ms: Spread::over(rounds, |sample| sample.longest_ms).median,
        mean_wait_ms: Spread::over(rounds, |sample| sample.mean_ms).median,
        sections_per_s: Spread::over(rounds, |sample| sample.sections_per_s).median,
        crowd,
        tasks: processes.iter().map(|process| process.tasks).sum(),
        processes: processes.len(),
        rounds: rounds.len(),
        seconds,
        machine,
    }
}

impl FairnessReport {
    fn sentence(&self) -> String {
        format!(
            "fairness, {}: Jain's index {:.4} by tasks; processes get {:.2} to {:.2} of their share; the longest wait {:.1} ms, \
             {:.2} x the mean; {:.0} sections a second, {} tasks in {} processes",
            self.crowd,
            self.jain,
            self.least_served,
            self.most_served,
            self.longest_wait_ms,
            self.longest_to_mean_wait,
            self.sections_per_s,
            self.tasks,
            self.processes,
        )
    }
}

fn chart(reports: &[FairnessReport], samples: &[Vec<Sample>]) -> Chart {
    let series = |name: &str, figure: fn(&Sample) -> f64| {
        let values = samples.iter().map(|rounds| Spread::over(rounds, figure)).collect();
        Series { name: name.to_owned(), values }
    };
    Chart {
        title: "Shares of one lock: 64 tasks in 8 processes".to_owned(),
        note: reports.first().map(|report| report.machine.to_string()).unwrap_or_default(),
        y: Axis { label: "1 is fair".to_owned(), log: false },
        kind: Kind::Bars {
            groups: reports.iter().map(|report| report.crowd.to_owned()).collect(),
            series: vec![
                series("Jain's index, by tasks", |sample| sample.jain),
                series("the process served least", |sample| sample.least_served),
                series("the process served most", |sample| sample.most_served),
                series("longest to mean wait", |sample| sample.longest_ms / sample.mean_ms),
            ],
        },
        limits: vec![Limit { at: 1.0, label: "fair".to_owned() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equal_shares() {
        let check = |shares: &[u64], wanted: f64| assert!((jain(shares) - wanted).abs() < 1e-9, "{shares:?}");
        check(&[5, 5, 5, 5], 1.0);
        check(&[9, 0, 0], 1.0 / 3.0);
        check(&[1, 3], 0.8);
    }

    #[test]
    fn all_crowds_have_64_tasks() {
        for (crowd, processes) in crowds() {
            assert_eq!(processes.iter().map(|process| process.tasks).sum::<u32>(), 64, "{crowd}");
        }
    }
}
