//! The checks: what must hold in every history of correct locks.
//!
//! Each check is a file, knows nothing of the others, and says in its head what it demands and what faults excuse. All share the
//! [`Timeline`].

mod answers;
mod barriers;
mod counter;
mod exclusion;
mod latches;
mod left_behind;
mod order;
mod periods;
mod tokens;
mod wake_ups;

#[cfg(test)]
mod fixture;

use crate::fencing;
use crate::margins::Margins;
use crate::timeline::{Lock, Timeline};
use crate::verdict::{CheckOutcome, Violation};

/// A check, and how a reader is to understand its figures.
struct Check {
    name: &'static str,
    checks: &'static str,
    counts: &'static str,
    run: fn(&Timeline<'_>, &Margins) -> Findings,
}

/// What a check found.
#[derive(Debug, Default)]
struct Findings {
    judged: u64,
    excused: u64,
    violations: Vec<Violation>,
    note: Option<String>,
}

const CHECKS: [Check; 10] = [
    Check {
        name: "exclusion",
        checks: "no two holders that exclude each other believe at the same time that they hold the lock",
        counts: "holds",
        run: exclusion::check,
    },
    Check {
        name: "tokens",
        checks: "a later hold has a greater fencing token, and no two holds share one",
        counts: "holds with a token",
        run: tokens::check,
    },
    Check {
        name: "counter",
        checks: "no update of a guarded counter by a valid hold is lost or refused",
        counts: "writes of valid holds",
        run: counter::check,
    },
    Check {
        name: "order",
        checks: "waiters are served in the order in which they asked",
        counts: "grants with another waiter",
        run: order::check,
    },
    Check {
        name: "wake_ups",
        checks: "a lock that is free, or whose holder died, goes to a waiter in time",
        counts: "waits",
        run: wake_ups::check,
    },
    Check {
        name: "answers",
        checks: "every call returns within its limit, once, and what it says is true",
        counts: "calls and releases",
        run: answers::check,
    },
    Check {
        name: "latches",
        checks: "a latch opens after all arrivals, and not before",
        counts: "waits",
        run: latches::check,
    },
    Check {
        name: "barriers",
        checks: "a barrier admits full rounds, and at once",
        counts: "waits",
        run: barriers::check,
    },
    Check { name: "periods", checks: "a period has one turn at most", counts: "turns", run: periods::check },
    Check {
        name: "left_behind",
        checks: "nothing is left at the store at the end",
        counts: "inspections of the store",
        run: left_behind::check,
    },
];

/// Runs all checks.
pub(crate) fn run(timeline: &Timeline<'_>, margins: &Margins) -> (Vec<CheckOutcome>, Vec<Violation>) {
    let (mut outcomes, mut violations) = (Vec::new(), Vec::new());
    for Check { name, checks, counts, run } in CHECKS {
        let Findings { judged, excused, violations: found, note } = run(timeline, margins);
        let note = note.or_else(|| match (judged, excused) {
            (0, 0) => Some("the history shows nothing of it".to_owned()),
            (0, _) => Some("all of it happened in faults".to_owned()),
            _ => None,
        });
        let count = found.len() as u64;
        outcomes.push(CheckOutcome { name, checks, counts, judged, excused, violations: count, note });
        violations.extend(found.into_iter().map(|violation| Violation { check: name, ..violation }));
    }
    violations.sort_by_key(|violation| violation.at_us);
    (outcomes, violations)
}

/// A violation that involves these calls. [`run`] names the check.
fn violation(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    (at_us, until_us): (u64, Option<u64>),
    calls: &[usize],
    what: String,
) -> Violation {
    Violation {
        check: "",
        lock: Some(lock.spec.name.clone()),
        at_us,
        until_us,
        what,
        calls: calls.iter().map(|&call| timeline.record(&timeline.calls[call])).collect(),
        faults: timeline.faults_around(at_us, until_us.unwrap_or(at_us)),
        refused: Vec::new(),
        fencing: None,
    }
}

/// Says in a violation what a fencing check does with the writes of its holds, which are in order of their grants.
fn with_fencing(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    holds: &[usize],
    violation: Violation,
) -> Violation {
    let (refused, text) = fencing::against(timeline, lock, holds);
    Violation { refused, fencing: Some(text), ..violation }
}
