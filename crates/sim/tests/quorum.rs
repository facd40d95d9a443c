//! The simulated world of a quorum: no check fails, runs are reproducible, and each mutant is found.

use leasehold_sim::{Counts, FaultProfile, Mutant, Run, run};

fn describe(seed: u64, found: &leasehold_sim::Violation) -> String {
    let leasehold_sim::Violation { check, at, what } = found;
    format!("{check}: at {at}: {what}\nrepeat it with `cargo xtask sim --quorum --seed {seed}`")
}

/// The same as `cargo xtask sim --quorum --seeds 200`. The counters prove that the runs cover enough.
#[test]
fn nothing_is_violated_over_a_quorum() {
    let (mut sum, mut outvoted) = (Counts::default(), 0);
    for seed in 1..=200 {
        let outcome = run(&Run::with_quorum(seed));
        if let Some(found) = &outcome.violation {
            panic!("{}", describe(seed, found));
        }
        match outcome.profile {
            FaultProfile::DataLoss => outvoted += outcome.counts.outvoted,
            _ => assert_eq!(outcome.counts.outvoted, 0, "seed {seed}: each hold keeps its majority"),
        }
        sum += outcome.counts;
    }
    for (what, happened) in [
        ("executed", sum.executed / 1000),
        ("faults of messages", sum.message_faults / 100),
        ("acquired", sum.acquired / 10),
        ("lost", sum.lost),
        ("forgotten", sum.forgotten / 5),
        ("outvoted", outvoted),
        ("repaired", sum.repaired / 5),
    ] {
        assert!(happened >= 150, "{what} happened too rarely: {sum:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run_over_a_quorum() {
    let traced = |seed| run(&Run { with_trace: true, ..Run::with_quorum(seed) });
    for seed in [3, 17, 2507] {
        let (first, second) = (traced(seed), traced(seed));
        assert!(first.trace.len() > 20);
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
    assert_ne!(traced(3).trace, traced(4).trace);
}

/// The number of seeds within which a mutant must be found, and the check that must find it.
fn found_by(mutant: Mutant) -> (u64, &'static str) {
    match mutant {
        Mutant::RepairIsNotSent | Mutant::ForgottenVoteIsReported => (30, "votes"),
        Mutant::ExtendAcquiresAnew => (60, "votes"),
        Mutant::VoteIsTakenAway | Mutant::MissingVoteIsYes | Mutant::MinorityIsMajority => (30, "exclusion"),
        Mutant::TokenIsNotStored => (10, "tokens"),
        Mutant::LostVoteIsNotUndone | Mutant::ReleaseLeavesVotes => (10, "leftovers"),
        other => panic!("{other:?} is found in another world"),
    }
}

/// The first seed that is tried, where a mutant shows rarely.
const fn first_seed(mutant: Mutant) -> u64 {
    match mutant {
        // A hold without a majority for which no message is under way, and that is held on until the next renewal is due.
        Mutant::ExtendAcquiresAnew => 150,
        _ => 1,
    }
}

#[test]
fn each_mutant_of_a_quorum_is_found() {
    let mut odd = Vec::new();
    for mutant in Mutant::ALL.into_iter().filter(|mutant| mutant.is_of_quorum()) {
        let (seeds, check) = found_by(mutant);
        let from = first_seed(mutant);
        let violations =
            (from..from + seeds).filter_map(|seed| run(&Run::with_mutant(seed, mutant)).violation);
        let mut others = Vec::new();
        let is_found = violations.into_iter().any(|found| {
            let is_meant = found.check == check;
            others.extend((!is_meant).then_some(found.check));
            is_meant
        });
        if !is_found {
            odd.push(format!("{mutant:?} is not found by {check} in {seeds} seeds, but by {others:?}"));
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}
