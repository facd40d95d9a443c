//! Each case can fail: the built-in drivers pass all cases, and each fault in one of them, or in the requests of Leasehold's
//! clients, is found by the case that is meant to find it.

use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use Side::{Mutexes, Ours, Rlocks};

/// Where the fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// In a driver that locks as our Mutex does.
    Mutexes,
    /// In a driver that locks as Redisson does.
    Rlocks,
    /// In our own clients.
    Ours,
}

/// A fault, the case that finds it, and a part of its report; or several, separated by bars, if the order of its checks
/// varies.
type Mutant = (Side, &'static str, &'static str, &'static str);

const MUTANTS: &[Mutant] = &[
    (Mutexes, "ignores-taken", "ours-held", "was answered Got and not Taken"),
    (Mutexes, "ignores-taken", "ours-renewed", "was answered Got and not Taken"),
    (Mutexes, "ignores-taken", "contention", "two were in at once"),
    (Mutexes, "barges", "ours-held", "was answered Got and not Taken"),
    (Mutexes, "barges", "contention", "ours counts: the driver answers `error the lock was lost"),
    (Mutexes, "other-key", "theirs-held", "nothing is at the key"),
    (Mutexes, "other-key", "ours-held", "was answered Got and not Taken"),
    (Mutexes, "other-key", "contention", "two were in at once"),
    (Mutexes, "deletes-any", "their-late-release", "the hold of ours was ended"),
    (Mutexes, "deletes-any", "theirs-for-ever", "`release` was answered Ok and not Lost"),
    (Mutexes, "extends-any", "their-late-release", "they set our hold to end in"),
    (Mutexes, "keeps", "theirs-held", "we did not get the free lock"),
    (Mutexes, "gives-up", "ours-held", "too early"),
    (Mutexes, "gives-up", "our-late-release", "they gave up the lock that had expired"),
    (Ours, "ignores-taken", "theirs-held", "we got the lock although they hold it"),
    (Ours, "ignores-taken", "theirs-extended", "we got the lock although they hold it"),
    (Rlocks, "counts-once", "rlock-format", "\"1\"} and not {"),
    (
        Rlocks,
        "other-channel",
        "rlock-channel",
        "the last release published [\"redisson_lock__channel:{shop:{orders}:42}",
    ),
    (Rlocks, "silent", "rlock-channel", "the last release published []"),
    (Rlocks, "silent", "rlock-theirs-held", "that is polling"),
    (Rlocks, "publishes-early", "rlock-channel", "what leaves the lock held published"),
    (Rlocks, "no-renewal", "rlock-watchdog", "nothing is at the key"),
    (Rlocks, "no-renewal", "rlock-watchdogs", "they lost the lock | we got the lock although they hold it"),
    (Rlocks, "renews-late", "rlock-watchdog", "renewed after [1"),
    (
        Rlocks,
        "renews-given",
        "rlock-watchdog",
        "`as boris acquire shop:{orders}:42 30000 4000` was answered Taken",
    ),
    (Rlocks, "drops-fields", "rlock-fields", "and not {"),
    (Rlocks, "polls", "rlock-waits", "they run scripts for ever"),
    (Rlocks, "deaf", "rlock-waits", "anna did not get the free lock"),
    (Rlocks, "deaf", "rlock-ours-held", "anna did not get the free lock"),
    (Rlocks, "wakes-all", "rlock-messages", "`0` woke 3, `1` 3 and `7` 0"),
    (Rlocks, "keeps-longest", "rlock-same-owner", "and not in 10s"),
    (Rlocks, "overwrites", "rlock-other-type", "about a string was answered Ok(Got)"),
    (Rlocks, "lengthens-ours", "rlock-watchdogs", "our lease is another one"),
    (Rlocks, "lengthens-ours", "rlock-late", "anna did not get the free lock"),
    (Rlocks, "releases-any", "rlock-ours-held", "was answered Ok and not Lost"),
    (Rlocks, "releases-any", "rlock-late", "was answered Ok and not Lost"),
    (Rlocks, "frees-nothing", "rlock-force", "boris did not get the free lock"),
    (Rlocks, "ignores-taken", "rlock-ours-held", "was answered Got and not Taken"),
    (Rlocks, "ignores-taken", "contention", "two were in at once"),
    (Ours, "ignores-taken", "rlock-theirs-held", "we got the lock although they hold it"),
    (Ours, "ignores-owner", "rlock-counts", "another owner of ours got in"),
    (Ours, "ignores-owner", "contention", "two were in at once"),
    (Ours, "deaf", "rlock-theirs-held", "that is polling"),
    (Ours, "silent", "rlock-ours-held", "anna did not get the free lock"),
    (Ours, "other-channel", "rlock-ours-held", "anna did not get the free lock"),
    (Ours, "other-payload", "rlock-ours-held", "anna did not get the free lock"),
    (Ours, "publishes-early", "rlock-ours-held", "our release that kept the lock published"),
    (Ours, "counts-once", "rlock-ours-held", "we count 1 and 1"),
    (Ours, "no-owner", "rlock-ours-held", "we count 1 and 1"),
    (Ours, "forgets-theirs", "rlock-counts", "we count 2"),
    (Ours, "for-ever", "rlock-late", "anna did not get the free lock"),
    (Ours, "lengthens-theirs", "rlock-watchdogs", "their lease is another one"),
    (Ours, "writes-into-theirs", "rlock-watchdogs", "we wrote into their lock"),
    (Ours, "no-renewal", "rlock-watchdogs", "`as anna got` too early | ` counts {"),
    (Ours, "believes-for-ever", "rlock-force", "we believe in a hold that they have"),
    (Ours, "frees-nothing", "rlock-force", "anna did not get the free lock"),
    (Ours, "leaves-count", "rlock-ours-held", "anna did not get the free lock"),
    (Ours, "leaves-count", "rlock-counts", "was answered Ok and not Lost"),
    (Ours, "releases-any", "rlock-late", "our late release gave Ok(Free)"),
];

/// Runs some cases, or all, of a driver against our clients, which have a fault if one is given.
fn run(driver: &str, ours: Option<&str>, cases: &[&str]) -> Output {
    let mut interop = Command::new(env!("CARGO_BIN_EXE_leasehold-interop"));
    for case in cases {
        interop.args(["--case", case]);
    }
    if let Some(fault) = ours {
        interop.args(["--ours", fault]);
    }
    interop.args(["--sections", "25", driver]).output().expect("it starts")
}

/// What is wrong, unless the case finds the fault and reports it by these words.
fn missed(&(side, fault, case, words): &Mutant) -> Option<String> {
    let (driver, ours) = match side {
        Mutexes => (format!("plant:{fault}"), None),
        Rlocks => (format!("rlock:{fault}"), None),
        Ours if case.starts_with("rlock-") || case == "contention" => ("rlock:none".into(), Some(fault)),
        Ours => ("plant:none".into(), Some(fault)),
    };
    let output = run(&driver, ours, &[case]);
    let table = String::from_utf8_lossy(&output.stdout);
    let line = table.lines().next().unwrap_or_default();
    let found =
        !output.status.success() && line.starts_with(&format!("{driver} ")) && line.contains("VIOLATION");
    match (found, words.split(" | ").any(|words| line.contains(words))) {
        (true, true) => None,
        (true, false) => Some(format!("{side:?} {fault}: {case} found it by another sign: {line}")),
        (false, _) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Some(format!("{side:?} {fault}: {case} did not find it: {line}{errors}"))
        }
    }
}

/// Most of the time passes while leases end, so some run at once.
#[test]
fn each_fault_is_found_by_its_case() {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let missed = missed(mutant);
                    wrong.lock().expect("no thread panics with it").extend(missed);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics with it");
    assert!(wrong.is_empty(), "{} of {} faults:\n{}", wrong.len(), MUTANTS.len(), wrong.join("\n"));
}

/// A case that no fault makes fail proves nothing.
#[test]
fn each_case_has_a_fault_to_find() {
    let refusal = run("plant:none", None, &["no such case"]);
    let text = String::from_utf8_lossy(&refusal.stderr);
    let known = text.split_once("[possible values: ").and_then(|(_, rest)| rest.split_once(']'));
    let cases: Vec<_> = known.expect("it says which there are").0.split(", ").collect();
    assert_eq!(cases.len(), 22, "{cases:?}");
    for case in cases {
        assert!(MUTANTS.iter().any(|mutant| mutant.2 == case), "`{case}` has nothing to find");
    }
}

#[test]
fn a_driver_that_locks_as_a_mutex_and_without_a_fault_passes_all_cases() {
    passes("plant:none", 8);
}

#[test]
fn a_driver_that_locks_as_redisson_and_without_a_fault_passes_all_cases() {
    passes("rlock:none", 15);
}

fn passes(driver: &str, cases: usize) {
    let output = run(driver, None, &[]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table.lines().count(), cases, "{table}");
}
