//! The real client over a simulated network: the `redis` crate's connections, [`ModelServer`] at the other end, and
//! the faults of networks and hosts. The same seed gives the same run, to the byte.
//!
//! `LEASEHOLD_SEEDS` sets how many seeds are tried. `LEASEHOLD_SEED` repeats one and prints everything that happens
//! in it; a failure names its seed.
//!
//! [`ModelServer`]: leasehold_sim::ModelServer

mod any_lock;
mod checks;
mod client;
mod connector;
mod environment;
mod fault;
mod late_bytes;
mod model_server;
mod simulation;
mod tap;
mod task;

use checks::{Rule, VIOLATION};
use leasehold_sim::ServerMutant;
use simulation::run;
use std::collections::BTreeMap;
use std::ops::Range;

const SEEDS: u64 = 40;
/// Within how many seeds a mutant of the server must be found.
const FOUND_WITHIN: u64 = 20;

/// What the seeds together must come across: a simulation without effect would prove nothing.
const COMMON: [&str; 28] = [
    "held",
    "handed off",
    "kept",
    "held a set",
    "asked together",
    "entered",
    "entered again",
    "entered again by many",
    "entered again from elsewhere",
    "held twice",
    "held by two",
    "released",
    "not released",
    "taken",
    "failed",
    "dropped",
    "lost",
    "served",
    "late",
    "partitioned",
    "requests lost",
    "held back",
    "client down",
    "server down",
    "messages lost",
    "overtaken",
    "given back",
    "given back of a set",
];

#[test]
fn no_rule_is_broken_under_faults() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        let run = run(seed, None);
        println!("{}{:?}", run.trace, run.seen);
        assert!(run.violations.is_empty(), "LEASEHOLD_SEED={seed}: {:?}", run.violations);
        return;
    }
    let seeds = number("LEASEHOLD_SEEDS").unwrap_or(SEEDS);
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let mut seen = BTreeMap::new();
            for seed in (half..seeds).step_by(2) {
                let run = run(seed, None);
                assert!(run.violations.is_empty(), "LEASEHOLD_SEED={seed}\n{}", up_to_the_first(&run.trace));
                for (what, times) in run.seen {
                    *seen.entry(what).or_insert(0) += times;
                }
            }
            seen
        })
    });
    let mut seen = BTreeMap::new();
    for half in halves {
        let half = half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (what, times) in half {
            *seen.entry(what).or_insert(0_u64) += times;
        }
    }
    println!("{seeds} seeds: {seen:?}");
    for what in COMMON {
        assert!(seen.contains_key(what) || seeds < SEEDS, "no seed came across `{what}`: {seen:?}");
    }
    // A lost message is made up for by polling. Without any messages, more than half of the grants are found late.
    let times = |when| seen.get(when).copied().unwrap_or(0);
    assert!(times("notified in time") >= 10 * times("notified late"), "waiters are not woken: {seen:?}");
}

/// A trace without the numbers of tasks, which go on from one run to the next.
fn without_tasks(trace: &str) -> String {
    const ACTOR: &str = "\\\"actor\\\":\\\"t";
    let mut parts = trace.split(ACTOR);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + ACTOR + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 2, 3] {
        let (one, two) = (without_tasks(&run(seed, None).trace), without_tasks(&run(seed, None).trace));
        let differs = one.lines().zip(two.lines()).find(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), two.len(), "seed {seed}");
    }
    assert_ne!(run(1, None).trace, run(2, None).trace);
}

/// Runs seeds until one of them detects the server's mutant as a violation of the rule.
fn is_found(mutant: ServerMutant, rule: Rule) {
    is_found_within(0..FOUND_WITHIN, mutant, rule);
}

fn is_found_within(seeds: Range<u64>, mutant: ServerMutant, rule: Rule) {
    let found = seeds.clone().find(|seed| run(*seed, Some(mutant)).violations.contains(&rule));
    println!("{mutant:?}: {found:?}");
    assert!(found.is_some(), "{mutant:?} breaks no {rule:?} within the seeds {seeds:?}");
}

#[test]
fn a_release_that_compares_nothing_is_found() {
    is_found(ServerMutant::ReleasesAnyHold, Rule::Exclusion);
    is_found(ServerMutant::ReleasesAnyHold, Rule::Belief);
}

#[test]
fn leases_that_end_early_are_found() {
    is_found(ServerMutant::EndsLeasesEarly, Rule::Exclusion);
    is_found(ServerMutant::EndsLeasesEarly, Rule::Belief);
}

#[test]
fn leases_that_never_end_are_found() {
    is_found(ServerMutant::NeverEndsLeases, Rule::Service);
    // Dead clients are usually evicted, with all their holds: this needs an abandoned hold that no client requests
    // any more.
    is_found_within(0..60, ServerMutant::NeverEndsLeases, Rule::Leftovers);
}

#[test]
fn tokens_that_fall_back_are_found() {
    is_found(ServerMutant::ForgetsTokens, Rule::Tokens);
}

#[test]
fn tokens_below_what_is_reserved_are_found() {
    is_found(ServerMutant::ReservesAhead, Rule::Tokens);
}

#[test]
fn a_release_that_is_forgotten_is_found() {
    is_found(ServerMutant::ReleasesNothing, Rule::Returned);
}

#[test]
fn an_entry_of_any_owner_is_found() {
    is_found(ServerMutant::AnyOwnerEnters, Rule::Exclusion);
}

#[test]
fn an_inner_release_that_frees_is_found() {
    is_found(ServerMutant::InnerReleaseFrees, Rule::Count);
    is_found(ServerMutant::InnerReleaseFrees, Rule::Belief);
}

#[test]
fn an_entry_by_a_token_of_its_own_is_found() {
    is_found(ServerMutant::EntryHasOwnToken, Rule::OneToken);
}

#[test]
fn a_part_of_a_set_is_found() {
    is_found(ServerMutant::AcquiresSomeOfMany, Rule::AllOrNone);
    is_found(ServerMutant::AcquiresSomeOfMany, Rule::Belief);
}

/// What led to the first broken rule.
fn up_to_the_first(trace: &str) -> String {
    let lines: Vec<_> = trace.lines().collect();
    let end = lines.iter().position(|line| line.contains(VIOLATION)).map_or(lines.len(), |at| at + 1);
    lines[end.saturating_sub(60)..end].join("\n")
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}
