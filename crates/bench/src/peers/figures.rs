//! The figures of a library, relative to Leasehold's, and how they are shown.

use super::peer::{Peer, Round, TASKS, Throughput};
use crate::chart::{Axis, Chart, Kind, Series, Spread};
use crate::meter::Machine;
use crate::report::{per, quantile_us};
use serde::Serialize;
use std::str::FromStr;

/// The figures of a library. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
pub(crate) struct Figures<'a> {
    scenario: &'static str,
    /// Times of the library relative to Leasehold, and rates of Leasehold relative to the library: the greater, the better
    /// Leasehold is.
    handover_p50_ratio: f64,
    herd_ratio: f64,
    crowd_ratio: f64,
    peer: &'a str,
    version: &'a str,
    handover_p50_ratio_spread: [f64; 2],
    handover_p50_us: f64,
    handover_p99_us: f64,
    requests_per_handover: f64,
    handovers: usize,
    herd_ratio_spread: [f64; 2],
    handovers_per_s: f64,
    handovers_per_s_spread: [f64; 2],
    sections_per_s: f64,
    served: f64,
    crowd_ratio_spread: [f64; 2],
    crowd_handovers_per_s: f64,
    crowd_handovers_per_s_spread: [f64; 2],
    crowd_sections_per_s: f64,
    crowd_served: f64,
    tasks: usize,
    rounds: usize,
    /// Why not all rounds were measured.
    #[serde(rename = "trouble")]
    failure: Option<&'a str>,
    #[serde(flatten)]
    machine: &'a Machine,
}

impl<'a> Figures<'a> {
    /// The figures of a library. Ratios are of the rounds that Leasehold completed, too.
    pub(crate) fn of(peer: &'a Peer, leasehold: &Peer, machine: &'a Machine) -> Self {
        let all: Vec<u64> = peer.rounds.iter().flat_map(|round| round.handovers_ns.clone()).collect();
        let requests = peer.rounds.iter().map(|round| round.requests).sum();
        let trials: usize = peer.rounds.iter().map(|round| round.trials).sum();
        let p50_ratio = ratio(peer, leasehold, |round| handover_us(round, 0.5));
        let herd_ratio = ratio(leasehold, peer, |round| one_process(round, |it| it.handovers_per_s));
        let crowd_ratio = ratio(leasehold, peer, |round| all_processes(round, |it| it.handovers_per_s));
        let of_one = |figure: fn(Throughput) -> f64| each(peer, |round| one_process(round, figure));
        let of_all = |figure: fn(Throughput) -> f64| each(peer, |round| all_processes(round, figure));
        let handovers = of_one(|it| it.handovers_per_s);
        let crowd_handovers = of_all(|it| it.handovers_per_s);
        Self {
            scenario: "peers",
            handover_p50_ratio: p50_ratio.median,
            herd_ratio: herd_ratio.median,
            crowd_ratio: crowd_ratio.median,
            peer: &peer.name,
            version: &peer.version,
            handover_p50_ratio_spread: p50_ratio.ends(),
            handover_p50_us: quantile_us(&all, 0.5),
            handover_p99_us: quantile_us(&all, 0.99),
            requests_per_handover: per(requests, trials as u64),
            handovers: all.len(),
            herd_ratio_spread: herd_ratio.ends(),
            handovers_per_s: handovers.median,
            handovers_per_s_spread: handovers.ends(),
            sections_per_s: of_one(|it| it.sections_per_s).median,
            served: of_one(|it| per(it.served, 1)).median,
            crowd_ratio_spread: crowd_ratio.ends(),
            crowd_handovers_per_s: crowd_handovers.median,
            crowd_handovers_per_s_spread: crowd_handovers.ends(),
            crowd_sections_per_s: of_all(|it| it.sections_per_s).median,
            crowd_served: of_all(|it| per(it.served, 1)).median,
            tasks: TASKS,
            rounds: peer.rounds.len(),
            failure: peer.failure.as_deref(),
            machine,
        }
    }

    pub(crate) fn sentence(&self) -> String {
        format!(
            "{} {}: p50 of a hand-off {:.1} x Leasehold's ({:.0} us, p99 {:.0} us; {} measured), {:.2} requests each\n  \
             {} tasks in one process: {:.0} hand-offs a second, Leasehold {:.1} x as many; {:.0} sections, {:.0} tasks \
             served\n  as many in 8 processes: {:.0} hand-offs a second, Leasehold {:.1} x as many; {:.0} sections, {:.0} \
             tasks served{}",
            self.peer,
            self.version,
            self.handover_p50_ratio,
            self.handover_p50_us,
            self.handover_p99_us,
            self.handovers,
            self.requests_per_handover,
            self.tasks,
            self.handovers_per_s,
            self.herd_ratio,
            self.sections_per_s,
            self.served,
            self.crowd_handovers_per_s,
            self.crowd_ratio,
            self.crowd_sections_per_s,
            self.crowd_served,
            self.failure.map(|failure| format!("\n  NOT ALL ROUNDS: {failure}")).unwrap_or_default(),
        )
    }
}

fn handover_us(round: &Round, share: f64) -> Option<f64> {
    Some(quantile_us(&round.handovers_ns, share)).filter(|us| *us > 0.0)
}

fn one_process(round: &Round, figure: impl Fn(Throughput) -> f64) -> Option<f64> {
    round.one_process.map(figure)
}

fn all_processes(round: &Round, figure: impl Fn(Throughput) -> f64) -> Option<f64> {
    round.all_processes.map(figure)
}

/// A figure of each round that has it.
fn each(peer: &Peer, figure: impl Fn(&Round) -> Option<f64>) -> Spread {
    Spread::of(&peer.rounds.iter().filter_map(figure).collect::<Vec<_>>())
}

/// The ratio of a figure of two peers, for each round in which both have it.
fn ratio(one: &Peer, other: &Peer, figure: impl Fn(&Round) -> Option<f64>) -> Spread {
    let both = one.rounds.iter().zip(&other.rounds);
    Spread::of(&both.filter_map(|(one, other)| Some(figure(one)? / figure(other)?)).collect::<Vec<_>>())
}

/// The times of hand-offs between processes.
pub(crate) fn handover_chart(all: &[Peer], machine: &Machine) -> Chart {
    let title = "A lock from one process to another that waits for it";
    bars(
        title,
        "microseconds",
        machine,
        all,
        vec![
            series("median", all, |round| handover_us(round, 0.5)),
            series("99th percentile", all, |round| handover_us(round, 0.99)),
        ],
    )
}

/// The rates of hand-offs between tasks.
pub(crate) fn herd_chart(all: &[Peer], machine: &Machine) -> Chart {
    let title = format!("{TASKS} tasks that contend for one lock");
    bars(
        &title,
        "hand-offs a second",
        machine,
        all,
        vec![
            series("all in one process", all, |round| one_process(round, |it| it.handovers_per_s)),
            series("in 8 processes", all, |round| all_processes(round, |it| it.handovers_per_s)),
        ],
    )
}

fn series(name: &str, all: &[Peer], figure: impl Fn(&Round) -> Option<f64>) -> Series<Spread> {
    Series { name: name.to_owned(), values: all.iter().map(|peer| each(peer, &figure)).collect() }
}

fn bars(title: &str, label: &str, machine: &Machine, all: &[Peer], series: Vec<Series<Spread>>) -> Chart {
    let groups = all.iter().map(|peer| format!("{}\n{}", peer.name, peer.version)).collect();
    Chart {
        title: title.to_owned(),
        note: machine.to_string(),
        y: Axis { label: label.to_owned(), log: true },
        kind: Kind::Bars { groups, series },
        limits: Vec::new(),
    }
}

/// A library that cannot be measured on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Skipped {
    scenario: &'static str,
    peer: String,
    /// The program that is not on the path.
    missing: String,
}

impl Skipped {
    pub(crate) fn sentence(&self) -> String {
        format!("{}: SKIPPED, there is no `{}` on the path", self.peer, self.missing)
    }
}

impl FromStr for Skipped {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (peer, tool) = text.split_once(':').ok_or("it is PEER:TOOL")?;
        Ok(Self { scenario: "peers", peer: peer.to_owned(), missing: tool.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_library_is_shown_with_what_is_missing() {
        let skipped: Skipped = "redisson:mvn".parse().expect("well-formed");
        assert_eq!(skipped.sentence(), "redisson: SKIPPED, there is no `mvn` on the path");
        let object = serde_json::to_string(&skipped).expect("plain data");
        assert_eq!(object, r#"{"scenario":"peers","peer":"redisson","missing":"mvn"}"#);
        assert!("redisson".parse::<Skipped>().is_err());
    }
}
