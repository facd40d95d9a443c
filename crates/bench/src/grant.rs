//! Hand-overs of one lock among 8 processes, beside a bare direct grant: a minimal fair queue by hand, with the same client
//! library, runtime and processes.
//!
//! The bound shows what sessions, tokens, records and the engine cost a hand-off.

use crate::chart::{Axis, Chart, Kind, Limit, Series, Spread};
use crate::contention::{Measurement, Variant, Window, measure_alternating, spread_tasks};
use crate::critical_section::handovers_ns;
use crate::launch::Topology;
use crate::meter::Machine;
use crate::report::{Output, per, per_s, quantile_us};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::time::Duration;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many processes contend, with a task each.
    #[arg(long, default_value_t = 8)]
    processes: u32,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many milliseconds each side of a round is measured.
    #[arg(long, default_value_t = 3000)]
    round_ms: u64,
}

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct GrantReport {
    scenario: &'static str,
    /// Hand-overs per second, and the server's time in scripts for one, relative to those of the bare grant.
    ratio: f64,
    script_ratio: f64,
    requests_per_handover: f64,
    ratio_spread: [f64; 2],
    script_ratio_spread: [f64; 2],
    requests_per_handover_spread: [f64; 2],
    handovers_per_s: f64,
    bare_handovers_per_s: f64,
    /// From the call of the release to the next holder.
    handover_p50_us: f64,
    handover_p99_us: f64,
    bare_p50_us: f64,
    bare_p99_us: f64,
    /// Microseconds for a hand-off: in scripts, of the server's processor.
    script_us: f64,
    bare_script_us: f64,
    server_us: f64,
    bare_server_us: f64,
    processes: u32,
    rounds: usize,
    round_ms: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// One side of one round.
struct Sample {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    script_us: f64,
    server_us: f64,
    requests: f64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.processes >= 2, "a hand-off needs two processes");
    let variants = ["mutex", "bare"].map(|lock| variant(lock, options));
    let (samples, machine) =
        measure_alternating(&variants, options.rounds, |_, measurement| Sample::of(measurement))?;
    let [ours, bare] = &samples[..] else { bail!("a side was not measured") };
    let report = report(options, ours, bare, machine);
    options.output.print(&report, || report.sentence())?;
    options.output.draw("grant", || report.chart(ours, bare))
}

fn variant(lock: &str, options: &Options) -> Variant {
    Variant {
        topology: Topology::Single,
        lock: lock.to_owned(),
        processes: spread_tasks(options.processes, options.processes, 0),
        warm_up: Window::of(Duration::from_millis(options.round_ms / 4)),
        window: Window::of(Duration::from_millis(options.round_ms)),
    }
}

impl Sample {
    fn of(measurement: &mut Measurement) -> Self {
        let between = handovers_ns(&mut measurement.sections);
        let sections = measurement.count();
        Self {
            per_s: per_s(between.len() as u64, measurement.took_ns),
            p50_us: quantile_us(&between, 0.5),
            p99_us: quantile_us(&between, 0.99),
            script_us: per(measurement.server.scripts_us, sections),
            server_us: per(measurement.server.cpu_us, sections),
            requests: measurement.requests_per_section(),
        }
    }
}

fn report(options: &Options, ours: &[Sample], bare: &[Sample], machine: Machine) -> GrantReport {
    let middle = |side: &[Sample], figure: fn(&Sample) -> f64| Spread::over(side, figure).median;
    let handovers = ratio(ours, bare, |sample| sample.per_s);
    let script = ratio(ours, bare, |sample| sample.script_us);
    let requests = Spread::over(ours, |sample| sample.requests);
    GrantReport {
        scenario: "grant",
        ratio: handovers.median,
        script_ratio: script.median,
        requests_per_handover: requests.median,
        ratio_spread: handovers.ends(),
        script_ratio_spread: script.ends(),
        requests_per_handover_spread: requests.ends(),
        handovers_per_s: middle(ours, |sample| sample.per_s),
        bare_handovers_per_s: middle(bare, |sample| sample.per_s),
        handover_p50_us: middle(ours, |sample| sample.p50_us),
        handover_p99_us: middle(ours, |sample| sample.p99_us),
        bare_p50_us: middle(bare, |sample| sample.p50_us),
        bare_p99_us: middle(bare, |sample| sample.p99_us),
        script_us: middle(ours, |sample| sample.script_us),
        bare_script_us: middle(bare, |sample| sample.script_us),
        server_us: middle(ours, |sample| sample.server_us),
        bare_server_us: middle(bare, |sample| sample.server_us),
        processes: options.processes,
        rounds: ours.len(),
        round_ms: options.round_ms,
        machine,
    }
}

/// The ratio of a figure to that of the bare grant in the same round.
fn ratio(ours: &[Sample], bare: &[Sample], figure: fn(&Sample) -> f64) -> Spread {
    Spread::of(&ours.iter().zip(bare).map(|(ours, bare)| figure(ours) / figure(bare)).collect::<Vec<_>>())
}

impl GrantReport {
    fn sentence(&self) -> String {
        format!(
            "grant: {:.2} x the hand-offs a second of a bare direct grant ({:.0} and {:.0}) among {} processes; p50 {:.0} and \
             {:.0} us, p99 {:.0} and {:.0} us; the server's time in scripts {:.2} x ({:.1} and {:.1} us a hand-off, of its \
             processor {:.1} and {:.1}); {:.3} requests a hand-off",
            self.ratio,
            self.handovers_per_s,
            self.bare_handovers_per_s,
            self.processes,
            self.handover_p50_us,
            self.bare_p50_us,
            self.handover_p99_us,
            self.bare_p99_us,
            self.script_ratio,
            self.script_us,
            self.bare_script_us,
            self.server_us,
            self.bare_server_us,
            self.requests_per_handover,
        )
    }

    fn chart(&self, ours: &[Sample], bare: &[Sample]) -> Chart {
        let figures: [fn(&Sample) -> f64; 2] = [|sample| sample.per_s, |sample| sample.script_us];
        let values = figures.map(|figure| ratio(ours, bare, figure)).to_vec();
        Chart {
            title: format!("One lock among {} processes", self.processes),
            note: self.machine.to_string(),
            y: Axis { label: "relative to a bare direct grant".to_owned(), log: true },
            kind: Kind::Bars {
                groups: vec![
                    "hand-offs a second\n(more is better)".to_owned(),
                    "the server's time in scripts\na hand-off".to_owned(),
                ],
                series: vec![Series { name: "Leasehold".to_owned(), values }],
            },
            limits: vec![Limit { at: 1.0, label: "a bare direct grant".to_owned() }],
        }
    }
}
