//! stateright's judge of linearizability, which is not ours, over histories of a Mutex.
//!
//! The object is a lock with a register, as `operations.rs` describes it. The judge must agree with the checks `exclusion`, `tokens` and
//! `counter`, which look at nothing else.

use crate::changes::CHANGES;
use crate::model::{Bug, Settings, run};
use crate::operations::{Interval, Operation, of_mutex};
use leasehold_history::{History, LockKind, judge, sample};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// A lock, the last token that was granted, and the register that the lock guards.
#[derive(Debug, Clone, Default)]
struct LockAndRegister {
    holder: Option<u64>,
    fence: u64,
    value: u64,
    /// Whether a late write has changed the value, which the next holder may have read before.
    is_overwritten: bool,
}

impl SequentialSpec for LockAndRegister {
    type Op = Operation;
    /// Whether the operation is possible.
    type Ret = bool;

    fn invoke(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::Acquire { call, fence } => {
                let is_possible = self.holder.is_none() && fence > self.fence;
                (self.holder, self.fence) = (Some(call), fence);
                is_possible
            }
            Operation::End { call } => {
                let is_possible = self.holder == Some(call);
                if is_possible {
                    self.holder = None;
                }
                is_possible
            }
            Operation::Update { call, read } => {
                let was_overwritten = std::mem::take(&mut self.is_overwritten);
                let is_possible = self.holder == Some(call) && (read == self.value || was_overwritten);
                self.value = read + 1;
                is_possible
            }
            Operation::Overwrite { value } => {
                (self.value, self.is_overwritten) = (value, true);
                true
            }
            Operation::RefusedUpdate => false,
        }
    }
}

/// A process does one operation after the other. An end that may never happen is in a thread of its own.
type Thread = (u32, Option<u64>);

fn thread(interval: &Interval) -> Thread {
    match (interval.operation, interval.returned_us) {
        (Operation::End { call }, None) => (interval.process, Some(call)),
        (Operation::Overwrite { .. }, _) => (interval.process, Some(0)),
        _ => (interval.process, None),
    }
}

/// What happens at one instant happens in this order: two stretches of time that only meet do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    AtOnce,
    EndIsCalled,
    Returned,
    AcquireIsCalled,
}

fn is_linearizable(history: &History) -> bool {
    let intervals = of_mutex(history);
    let mut steps = Vec::new();
    for interval in &intervals {
        match interval.operation {
            Operation::Acquire { .. } => steps.push((interval.called_us, Step::AcquireIsCalled, interval)),
            Operation::End { .. } => steps.push((interval.called_us, Step::EndIsCalled, interval)),
            _ => {
                steps.push((interval.called_us, Step::AtOnce, interval));
                continue;
            }
        }
        steps.extend(interval.returned_us.map(|at_us| (at_us, Step::Returned, interval)));
    }
    steps.sort_by_key(|(at_us, step, _)| (*at_us, *step));
    let mut tester = LinearizabilityTester::new(LockAndRegister::default());
    for (_, step, interval) in steps {
        let (thread, operation) = (thread(interval), interval.operation);
        match step {
            Step::AtOnce => tester.on_invret(thread, operation, true),
            Step::Returned => tester.on_return(thread, true),
            Step::EndIsCalled | Step::AcquireIsCalled => tester.on_invoke(thread, operation),
        }
        .expect("a process has one operation at a time");
    }
    tester.is_consistent()
}

/// The same by the checks of the crate.
pub(crate) fn is_in_order(history: &History) -> bool {
    let of_the_object = ["exclusion", "tokens", "counter"];
    !judge(history).violations.iter().any(|violation| of_the_object.contains(&violation.check))
}

/// Short, since this judge tries all orders of what happened at the same time.
fn settings(seed: u64, bug: Option<Bug>) -> Settings {
    Settings { seed, kind: LockKind::Mutex, length_ms: 4_000, faults: bug.map_or(3, Bug::faults), bug }
}

#[test]
fn honest_histories_are_linearizable() {
    let mut operations = 0;
    for seed in 0..40 {
        let history = run(settings(seed, None));
        operations += of_mutex(&history).len();
        assert!(is_linearizable(&history), "{:?}", settings(seed, None));
    }
    assert!(operations > 1_000, "{operations} operations show little");
}

/// Histories with and without defects, each with a name: of the world with each bug that shows in the object, and changed ones.
pub(crate) fn planted(length_ms: u64) -> Vec<(String, History)> {
    let bugs = [Bug::Forgets, Bug::NeverLooks, Bug::BelievesTooLong, Bug::RestartsTokens, Bug::WritesStale];
    let mut planted = Vec::new();
    for seed in 0..20 {
        let honest = Settings { length_ms, ..settings(seed, None) };
        for bug in bugs {
            let history = run(Settings { length_ms, ..settings(seed, Some(bug)) });
            planted.push((format!("{bug:?}, seed {seed}"), history));
        }
        for (name, change, _) in CHANGES {
            planted
                .extend(change(&run(honest), seed).map(|history| (format!("{name}, seed {seed}"), history)));
        }
        planted.push((format!("honest, seed {seed}"), run(honest)));
    }
    let sample = History::read(sample::TWO_HOLDERS.as_bytes()).expect("a history");
    planted.push(("two holders".to_owned(), sample));
    planted
}

#[test]
fn the_judges_agree_on_planted_histories() {
    let (mut condemned, mut acquitted) = (0, 0);
    for (name, history) in planted(4_000) {
        assert_eq!(is_linearizable(&history), is_in_order(&history), "{name}");
        *if is_in_order(&history) { &mut acquitted } else { &mut condemned } += 1;
    }
    assert!(condemned > 80 && acquitted > 30, "{condemned} were condemned, and {acquitted} were not");
}
