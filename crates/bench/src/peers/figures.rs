//! What was measured of a library, beside ours, and how it is printed.

use super::contestant::{Contestant, Round, TASKS};
use super::driver::Herd;
use super::machine::Machine;
use crate::report::{median, per, quantile_us, spread};
use serde::Serialize;
use std::str::FromStr;

/// The figures of a library. Every field is documented in docs/benchmarks.md.
#[derive(Debug, Serialize)]
pub(crate) struct Figures<'a> {
    scenario: &'static str,
    handover_p50_ratio: f64,
    herd_ratio: f64,
    crowd_ratio: f64,
    peer: &'a str,
    version: &'a str,
    handover_p50_us: f64,
    handover_p99_us: f64,
    handover_p50_ratio_spread: [f64; 2],
    requests_per_handover: f64,
    handovers: usize,
    handovers_per_s: f64,
    handovers_per_s_spread: [f64; 2],
    herd_ratio_spread: [f64; 2],
    sections_per_s: f64,
    served: f64,
    crowd_handovers_per_s: f64,
    crowd_handovers_per_s_spread: [f64; 2],
    crowd_ratio_spread: [f64; 2],
    crowd_sections_per_s: f64,
    crowd_served: f64,
    tasks: usize,
    rounds: usize,
    trouble: Option<&'a str>,
    #[serde(flatten)]
    machine: &'a Machine,
}

impl<'a> Figures<'a> {
    /// Of a library, in rounds that ours was in, too. Ratios are those of the rounds, and then their median.
    pub(crate) fn of(one: &'a Contestant, ours: &Contestant, herd_ms: u64, machine: &'a Machine) -> Self {
        let all: Vec<u64> = one.rounds.iter().flat_map(|round| round.handovers_ns.clone()).collect();
        let requests = one.rounds.iter().map(|round| round.requests).sum();
        let p50 = |round: &Round| Some(quantile_us(&round.handovers_ns, 0.5)).filter(|us| *us > 0.0);
        let herd = |round: &Round| round.herd.map(|herd| per(herd.handovers * 1000, herd_ms));
        let crowd = |round: &Round| round.crowd.map(|crowd| per(crowd.handovers * 1000, herd_ms));
        let p50_ratios = ratios(one, ours, p50);
        let (herd_ratios, crowd_ratios) = (ratios(ours, one, herd), ratios(ours, one, crowd));
        let (herds, crowds) = (each(one, herd), each(one, crowd));
        let sections = |of: fn(&Round) -> Option<Herd>| {
            median(&each(one, |round| of(round).map(|herd| per(herd.sections * 1000, herd_ms))))
        };
        let served = |of: fn(&Round) -> Option<Herd>| {
            median(&each(one, |round| of(round).map(|herd| per(herd.served, 1))))
        };
        Self {
            scenario: "peers",
            handover_p50_ratio: median(&p50_ratios),
            herd_ratio: median(&herd_ratios),
            crowd_ratio: median(&crowd_ratios),
            peer: &one.name,
            version: &one.version,
            handover_p50_us: quantile_us(&all, 0.5),
            handover_p99_us: quantile_us(&all, 0.99),
            handover_p50_ratio_spread: spread(&p50_ratios),
            requests_per_handover: per(requests, all.len() as u64),
            handovers: all.len(),
            handovers_per_s: median(&herds),
            handovers_per_s_spread: spread(&herds),
            herd_ratio_spread: spread(&herd_ratios),
            sections_per_s: sections(|round| round.herd),
            served: served(|round| round.herd),
            crowd_handovers_per_s: median(&crowds),
            crowd_handovers_per_s_spread: spread(&crowds),
            crowd_ratio_spread: spread(&crowd_ratios),
            crowd_sections_per_s: sections(|round| round.crowd),
            crowd_served: served(|round| round.crowd),
            tasks: TASKS,
            rounds: one.rounds.len(),
            trouble: one.trouble.as_deref(),
            machine,
        }
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).unwrap_or_default());
            return;
        }
        println!(
            "{} {}: hand-over {:.1} x ours at p50 ({:.0} us, p99 {:.0} us; {} measured), {:.2} requests each; \
             {} tasks in one process: {:.0} hand-overs a second, ours {:.1} x as many ({:.0} sections, {:.0} \
             tasks served); in 8 processes: {:.0} hand-overs a second, ours {:.1} x as many ({:.0} sections, \
             {:.0} tasks served){}",
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
            self.trouble.map(|why| format!("; NOT TO THE END: {why}")).unwrap_or_default(),
        );
    }
}

/// A figure of each round that has it.
fn each(one: &Contestant, figure: impl Fn(&Round) -> Option<f64>) -> Vec<f64> {
    one.rounds.iter().filter_map(figure).collect()
}

/// One's figure to another's, of each round in which both have it.
fn ratios(one: &Contestant, other: &Contestant, figure: impl Fn(&Round) -> Option<f64>) -> Vec<f64> {
    let both = one.rounds.iter().zip(&other.rounds);
    both.filter_map(|(one, other)| Some(figure(one)? / figure(other)?)).collect()
}

/// A library that cannot be measured on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skipped {
    peer: String,
    tool: String,
}

impl Skipped {
    pub(crate) fn print(&self, json: bool) {
        let why = format!("there is no `{}` on the path", self.tool);
        if json {
            let line = serde_json::json!({ "scenario": "peers", "peer": self.peer, "skipped": why });
            println!("{line}");
        } else {
            println!("{}: SKIPPED, {why}", self.peer);
        }
    }
}

impl FromStr for Skipped {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (peer, tool) = text.split_once(':').ok_or("it is PEER:TOOL")?;
        Ok(Self { peer: peer.to_owned(), tool: tool.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_skipped_is_read_with_what_is_missing() {
        let skipped = Skipped { peer: "redisson".into(), tool: "mvn".into() };
        assert_eq!("redisson:mvn".parse(), Ok(skipped));
        assert!("redisson".parse::<Skipped>().is_err());
    }
}
