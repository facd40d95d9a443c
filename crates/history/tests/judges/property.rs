//! Honest histories are never condemned, and each defect is, by the check that is meant for it.

use crate::changes::CHANGES;
use crate::model::{BUGS, Settings, run};
use leasehold_history::{LockKind, judge};

const KINDS: [LockKind; 8] = [
    LockKind::Mutex,
    LockKind::Reentrant,
    LockKind::RwLock,
    LockKind::Semaphore,
    LockKind::Election,
    LockKind::Latch,
    LockKind::Barrier,
    LockKind::OncePer,
];

/// How many runs of each kind there are: `LEASEHOLD_SEEDS`, or this many.
fn seeds() -> u64 {
    std::env::var("LEASEHOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(25)
}

#[test]
fn an_honest_history_is_never_condemned() {
    let mut judged = std::collections::BTreeMap::new();
    for kind in KINDS {
        for seed in 0..seeds() {
            // Every third run has no faults.
            let settings = Settings { seed, kind, length_ms: 30_000, faults: seed % 3 * 2, bug: None };
            let verdict = judge(&run(settings));
            assert!(verdict.passed(), "{settings:?}: {:#?}", verdict.violations);
            for check in verdict.checks {
                *judged.entry(check.name).or_insert(0) += check.judged;
            }
        }
    }
    assert!(
        judged.values().all(|&judged| judged > 100),
        "a check that looks at little shows little: {judged:?}"
    );
}

#[test]
fn each_defect_is_found_by_its_check() {
    for (bug, kind, check) in BUGS {
        let found = (0..20).filter(|&seed| {
            let settings = Settings { seed, kind, length_ms: 30_000, faults: bug.faults(), bug: Some(bug) };
            judge(&run(settings)).violations.iter().any(|violation| violation.check == check)
        });
        let found = found.count();
        assert!(found >= 10, "{bug:?} of {kind:?} was found in {found} of 20 runs by {check}");
    }
}

#[test]
fn each_change_of_an_honest_history_is_found_by_its_check() {
    for (name, change, check) in CHANGES {
        let mut changed = 0;
        for seed in 0..20 {
            let settings = Settings { seed, kind: LockKind::Mutex, length_ms: 20_000, faults: 1, bug: None };
            let Some(history) = change(&run(settings), seed) else { continue };
            changed += 1;
            let verdict = judge(&history);
            let is_found = verdict.violations.iter().any(|violation| violation.check == check);
            assert!(is_found, "{name} of {settings:?} was not found by {check}: {:#?}", verdict.violations);
        }
        assert!(changed >= 15, "{name} could be done in {changed} of 20 histories");
    }
}
