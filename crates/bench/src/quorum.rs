//! Waiting for a lock that a quorum of independent servers holds: 16 clients that each work 5 ms under it.
//!
//! A quorum has no queue: a release names the client that has waited longest, as a hint. A single server, which has a queue,
//! is measured in the same rounds.

use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::contention::{Measurement, Variant, Window, measure_alternating, spread_tasks};
use crate::critical_section::CriticalSection;
use crate::launch::Topology;
use crate::meter::Machine;
use crate::report::{Output, mean_us, quantile_us};
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many servers the quorum has; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_values_t = [3, 5])]
    servers: Vec<usize>,
    /// How many clients contend, each a process with one task.
    #[arg(long, default_value_t = 16)]
    clients: u32,
    /// How long each works under the lock; timers are no finer than a millisecond.
    #[arg(long, default_value_t = 5000)]
    hold_us: u64,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many seconds each store of a round is measured.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// What one number of servers measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct QuorumReport {
    scenario: &'static str,
    /// The mean wait and sections per second, relative to those of a single server.
    mean_wait_ratio: f64,
    sections_ratio: f64,
    /// The 99th percentile of the wait to its mean.
    p99_to_mean_wait: f64,
    requests_per_section: f64,
    mean_wait_ratio_spread: [f64; 2],
    sections_ratio_spread: [f64; 2],
    p99_to_mean_wait_spread: [f64; 2],
    requests_per_section_spread: [f64; 2],
    mean_wait_ms: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
    longest_wait_ms: f64,
    sections_per_s: f64,
    /// The same of the single server.
    single_mean_wait_ms: f64,
    single_wait_p50_ms: f64,
    single_wait_p99_ms: f64,
    single_longest_wait_ms: f64,
    single_p99_to_mean_wait: f64,
    single_sections_per_s: f64,
    servers: usize,
    clients: u32,
    hold_us: u64,
    rounds: usize,
    seconds: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One store in one round.
struct Sample {
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
    sections_per_s: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    let quorums = options.servers.iter().map(|servers| Topology::Quorum(*servers));
    let stores: Vec<_> = std::iter::once(Topology::Single).chain(quorums).collect();
    let variants: Vec<_> = stores.iter().map(|topology| variant(*topology, options)).collect();
    let (samples, machine) =
        measure_alternating(&variants, options.rounds, |_, measurement| Sample::of(measurement))?;
    let [single, quorums @ ..] = &samples[..] else { bail!("no store was measured") };
    for (servers, quorum) in options.servers.iter().zip(quorums) {
        let report = report(*servers, options, quorum, single, machine.clone());
        options.output.print(&report, || report.sentence())?;
    }
    options.output.draw("quorum", || chart(options, &samples, &machine))
}

fn variant(topology: Topology, options: &Options) -> Variant {
    Variant {
        topology,
        lock: "mutex".to_owned(),
        processes: spread_tasks(options.clients, options.clients, options.hold_us),
        warm_up: Window::of(Duration::from_secs(options.seconds).mul_f64(0.1)),
        window: Window::of(Duration::from_secs(options.seconds)),
    }
}

impl Sample {
    fn of(measurement: &Measurement) -> Self {
        let waits: Vec<_> = measurement.sections.iter().map(CriticalSection::wait_ns).collect();
        Self {
            mean_ms: mean_us(&waits) / 1000.0,
            p50_ms: quantile_us(&waits, 0.5) / 1000.0,
            p99_ms: quantile_us(&waits, 0.99) / 1000.0,
            longest_ms: quantile_us(&waits, 1.0) / 1000.0,
            sections_per_s: measurement.sections_per_s(),
            requests: measurement.requests_per_section(),
        }
    }
}

fn report(
    servers: usize,
    options: &Options,
    quorum: &[Sample],
    single: &[Sample],
    machine: Machine,
) -> QuorumReport {
    let ratio = |figure: fn(&Sample) -> f64| {
        let ratios = quorum.iter().zip(single).map(|(quorum, single)| figure(quorum) / figure(single));
        Spread::of(&ratios.collect::<Vec<_>>())
    };
    let middle = |side: &[Sample], figure: fn(&Sample) -> f64| Spread::over(side, figure).median;
    let (wait, sections) = (ratio(|sample| sample.mean_ms), ratio(|sample| sample.sections_per_s));
    let p99 = Spread::over(quorum, |sample| sample.p99_ms / sample.mean_ms);
    let requests = Spread::over(quorum, |sample| sample.requests);
    QuorumReport {
        scenario: "quorum",
        mean_wait_ratio: wait.median,
        sections_ratio: sections.median,
        p99_to_mean_wait: p99.median,
        requests_per_section: requests.median,
        mean_wait_ratio_spread: wait.ends(),
        sections_ratio_spread: sections.ends(),
        p99_to_mean_wait_spread: p99.ends(),
        requests_per_section_spread: requests.ends(),
        mean_wait_ms: middle(quorum, |sample| sample.mean_ms),
        wait_p50_ms: middle(quorum, |sample| sample.p50_ms),
        wait_p99_ms: middle(quorum, |sample| sample.p99_ms),
        longest_wait_ms: Spread::over(quorum, |sample| sample.longest_ms).most,
        sections_per_s: middle(quorum, |sample| sample.sections_per_s),
        single_mean_wait_ms: middle(single, |sample| sample.mean_ms),
        single_wait_p50_ms: middle(single, |sample| sample.p50_ms),
        single_wait_p99_ms: middle(single, |sample| sample.p99_ms),
        single_longest_wait_ms: Spread::over(single, |sample| sample.longest_ms).most,
        single_p99_to_mean_wait: middle(single, |sample| sample.p99_ms / sample.mean_ms),
        single_sections_per_s: middle(single, |sample| sample.sections_per_s),
        servers,
        clients: options.clients,
        hold_us: options.hold_us,
        rounds: quorum.len(),
        seconds: options.seconds,
        machine,
    }
}

impl QuorumReport {
    fn sentence(&self) -> String {
        format!(
            "quorum of {}: the mean wait {:.1} ms, {:.2} x a single server's ({:.1}); p50 {:.1} ms ({:.1}), p99 {:.1} ms \
             ({:.1}), {:.2} x the mean ({:.2}), the longest {:.0} ms ({:.0}); {:.0} sections a second, {:.2} x ({:.0}); {:.1} \
             requests a section; {} clients that work {} us",
            self.servers,
            self.mean_wait_ms,
            self.mean_wait_ratio,
            self.single_mean_wait_ms,
            self.wait_p50_ms,
            self.single_wait_p50_ms,
            self.wait_p99_ms,
            self.single_wait_p99_ms,
            self.p99_to_mean_wait,
            self.single_p99_to_mean_wait,
            self.longest_wait_ms,
            self.single_longest_wait_ms,
            self.sections_per_s,
            self.sections_ratio,
            self.single_sections_per_s,
            self.requests_per_section,
            self.clients,
            self.hold_us,
        )
    }
}

fn chart(options: &Options, samples: &[Vec<Sample>], machine: &Machine) -> Chart {
    let names = std::iter::once("a single server".to_owned())
        .chain(options.servers.iter().map(|servers| format!("a quorum of {servers}")));
    let series = |(name, rounds): (String, &Vec<Sample>)| {
        let figures: [fn(&Sample) -> f64; 4] = [
            |sample| sample.mean_ms,
            |sample| sample.p50_ms,
            |sample| sample.p99_ms,
            |sample| sample.longest_ms,
        ];
        Series { name, values: figures.map(|figure| Spread::over(rounds, figure)).to_vec() }
    };
    Chart {
        title: format!("Waiting for one lock, {} clients that work {} us", options.clients, options.hold_us),
        note: machine.to_string(),
        y: Axis { label: "milliseconds".to_owned(), log: true },
        kind: Kind::Bars {
            groups: ["mean", "median", "99th percentile", "longest"].map(str::to_owned).to_vec(),
            series: names.zip(samples).map(series).collect(),
        },
        limits: Vec::new(),
    }
}
