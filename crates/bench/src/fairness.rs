//! How the tasks share a lock: 64 tasks in 8 processes, which hold it alike or not, and of which there are as many in each
//! process or not.
//!
//! There is no bound beside it: what counts are shares.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::crowd::{Lap, Post, Side, Span, alternate, posts};
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
    /// How many seconds each crowd of a round is watched.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
}

/// What one crowd measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct FairnessReport {
    scenario: &'static str,
    /// Jain's index of sections, by tasks: 1 if all had as many.
    jain: f64,
    longest_to_mean_wait: f64,
    jain_spread: [f64; 2],
    longest_to_mean_wait_spread: [f64; 2],
    /// The sections of the process that had the fewest, or the most, for its tasks, to what they would be if all had as many.
    least_served: f64,
    most_served: f64,
    least_served_spread: [f64; 2],
    most_served_spread: [f64; 2],
    longest_wait_ms: f64,
    mean_wait_ms: f64,
    sections_per_s: f64,
    /// In what the crowd is uneven.
    crowd: &'static str,
    tasks: u32,
    processes: usize,
    rounds: usize,
    seconds: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One crowd in one round.
struct Turn {
    jain: f64,
    longest_ms: f64,
    mean_ms: f64,
    least_served: f64,
    most_served: f64,
    each_s: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let crowds = crowds();
    let sides: Vec<_> = crowds.iter().map(|(_, posts)| side(posts, options.seconds)).collect();
    let (turns, machine) = alternate(&sides, options.rounds, Turn::of)?;
    let reports: Vec<_> = crowds
        .iter()
        .zip(&turns)
        .map(|((crowd, posts), rounds)| report(crowd, posts, rounds, options.seconds, machine.clone()))
        .collect();
    for report in &reports {
        options.output.print(report, || report.sentence())?;
    }
    options.output.draw("fairness", || chart(&reports, &turns))
}

/// 64 tasks in 8 processes: all alike; some processes holding the lock for longer than others; and most of the tasks in
/// a few processes.
fn crowds() -> [(&'static str, Vec<Post>); 3] {
    let uneven_holds =
        [0, 0, 0, 0, 1, 1, 2, 4].map(|hold_ms| Post { tasks: 8, hold_us: hold_ms * 1000 }).to_vec();
    let uneven_tasks = [1, 1, 1, 1, 4, 8, 16, 32].map(|tasks| Post { tasks, hold_us: 0 }).to_vec();
    [("even", posts(64, 8, 0)), ("uneven holds", uneven_holds), ("uneven tasks", uneven_tasks)]
}

fn side(posts: &[Post], seconds: u64) -> Side {
    Side {
        sought: "mutex".to_owned(),
        posts: posts.to_vec(),
        warm_up: Span::of(Duration::from_millis(500)),
        span: Span::of(Duration::from_secs(seconds)),
    }
}

impl Turn {
    fn of(side: &Side, lap: &mut Lap) -> Self {
        let mut by_task = BTreeMap::new();
        for (process, post) in (0..).zip(&side.posts) {
            by_task.extend((0..post.tasks).map(|task| ((process, task), 0_u64)));
        }
        for section in &lap.sections {
            *by_task.entry((section.process, section.task)).or_default() += 1;
        }
        let served = (0..).zip(&side.posts).map(|(process, post)| {
            let had: u64 = by_task.range((process, 0)..(process + 1, 0)).map(|(_, sections)| sections).sum();
            per(had * by_task.len() as u64, lap.count() * u64::from(post.tasks))
        });
        let served = Spread::of(&served.collect::<Vec<_>>());
        let (longest_ms, mean_ms) = lap.waits_ms(|_| true);
        Self {
            jain: jain(&by_task.into_values().collect::<Vec<_>>()),
            longest_ms,
            mean_ms,
            least_served: served.least,
            most_served: served.most,
            each_s: lap.each_s(),
        }
    }
}

/// 1 if all have as much; one to their number if one has all.
fn jain(shares: &[u64]) -> f64 {
    let sum: u64 = shares.iter().sum();
    let squares: u64 = shares.iter().map(|share| share * share).sum();
    per(sum * sum, squares * shares.len() as u64)
}

fn report(
    crowd: &'static str,
    posts: &[Post],
    rounds: &[Turn],
    seconds: u64,
    machine: Machine,
) -> FairnessReport {
    let jain = Spread::over(rounds, |turn| turn.jain);
    let wait = Spread::over(rounds, |turn| turn.longest_ms / turn.mean_ms);
    let least = Spread::over(rounds, |turn| turn.least_served);
    let most = Spread::over(rounds, |turn| turn.most_served);
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
        longest_wait_ms: Spread::over(rounds, |turn| turn.longest_ms).median,
        mean_wait_ms: Spread::over(rounds, |turn| turn.mean_ms).median,
        sections_per_s: Spread::over(rounds, |turn| turn.each_s).median,
        crowd,
        tasks: posts.iter().map(|post| post.tasks).sum(),
        processes: posts.len(),
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

fn chart(reports: &[FairnessReport], turns: &[Vec<Turn>]) -> Chart {
    let series = |name: &str, figure: fn(&Turn) -> f64| {
        let values = turns.iter().map(|rounds| Spread::over(rounds, figure)).collect();
        Series { name: name.to_owned(), values }
    };
    Chart {
        title: "Who gets how much of a lock: 64 tasks in 8 processes".to_owned(),
        note: reports.first().map(|report| report.machine.to_string()).unwrap_or_default(),
        y: Axis { label: "1 is fair".to_owned(), log: false },
        kind: Kind::Bars {
            groups: reports.iter().map(|report| report.crowd.to_owned()).collect(),
            series: vec![
                series("Jain's index, by tasks", |turn| turn.jain),
                series("the process served least", |turn| turn.least_served),
                series("the process served most", |turn| turn.most_served),
                series("longest to mean wait", |turn| turn.longest_ms / turn.mean_ms),
            ],
        },
        limits: vec![Limit { at: 1.0, label: "fair".to_owned() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_where_all_have_as_much() {
        let check = |shares: &[u64], wanted: f64| assert!((jain(shares) - wanted).abs() < 1e-9, "{shares:?}");
        check(&[5, 5, 5, 5], 1.0);
        check(&[9, 0, 0], 1.0 / 3.0);
        check(&[1, 3], 0.8);
    }

    #[test]
    fn all_crowds_have_as_many_tasks() {
        for (crowd, posts) in crowds() {
            assert_eq!(posts.iter().map(|post| post.tasks).sum::<u32>(), 64, "{crowd}");
        }
    }
}
