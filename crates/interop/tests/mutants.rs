//! Each case can fail: the built-in drivers pass all cases, and each fault in one of them, or in the requests of Leasehold's
//! clients, is found by the case that is meant to find it.

use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use Side::{Leasehold, MutexDriver, RlockDriver};

/// Where the fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// In the built-in driver that locks as a Mutex does.
    MutexDriver,
    /// In the built-in driver that locks as Redisson does.
    RlockDriver,
    /// In Leasehold's clients.
    Leasehold,
}

/// A fault, the case that finds it, and a part of its message, or several parts of which one must match.
type Fault = (Side, &'static str, &'static str, &'static str);

const FAULTS: &[Fault] = &[
    (MutexDriver, "ignores-taken", "leasehold-holds", "was answered Got and not Taken"),
    (MutexDriver, "ignores-taken", "leasehold-renews", "was answered Got and not Taken"),
    (MutexDriver, "ignores-taken", "contention", "two clients held the lock at once"),
    (MutexDriver, "overwrites-key", "leasehold-holds", "was answered Got and not Taken"),
    (
        MutexDriver,
        "overwrites-key",
        "contention",
        "leasehold counts: the driver answers `error the lock was lost",
    ),
    (MutexDriver, "other-key", "library-holds", "the key `shop:{orders}:42` does not exist"),
    (MutexDriver, "other-key", "leasehold-holds", "was answered Got and not Taken"),
    (MutexDriver, "other-key", "contention", "two clients held the lock at once"),
    (MutexDriver, "deletes-without-comparing", "library-expires", "the hold of Leasehold was ended"),
    (
        MutexDriver,
        "deletes-without-comparing",
        "library-without-expiry",
        "`release` was answered Ok and not Lost",
    ),
    (
        MutexDriver,
        "extends-without-comparing",
        "library-expires",
        "the library set Leasehold's hold to expire in",
    ),
    (MutexDriver, "releases-nothing", "library-holds", "Leasehold did not acquire the free lock"),
    (MutexDriver, "does-not-wait", "leasehold-holds", "too early"),
    (MutexDriver, "does-not-wait", "leasehold-expires", "the library gave up the lock that had expired"),
    (Leasehold, "ignores-taken", "library-holds", "Leasehold acquired the lock while the library held it"),
    (Leasehold, "ignores-taken", "library-extends", "Leasehold acquired the lock while the library held it"),
    (RlockDriver, "counts-once", "rlock-format", "\"1\"} and not {"),
    (
        RlockDriver,
        "other-channel",
        "rlock-channel",
        "the last release published [\"redisson_lock__channel:{shop:{orders}:42}",
    ),
    (RlockDriver, "publishes-nothing", "rlock-channel", "the last release published []"),
    (RlockDriver, "publishes-nothing", "rlock-library-holds", "that is polling"),
    (RlockDriver, "publishes-early", "rlock-channel", "a release that keeps the lock published"),
    (RlockDriver, "no-renewal", "rlock-watchdog", "the key `shop:{orders}:42` does not exist"),
    (
        RlockDriver,
        "no-renewal",
        "rlock-watchdogs",
        "the library lost the lock | Leasehold acquired the lock while the library held it",
    ),
    (RlockDriver, "renews-late", "rlock-watchdog", "renewed after [1"),
    (
        RlockDriver,
        "renews-given-lease",
        "rlock-watchdog",
        "`as boris acquire shop:{orders}:42 30000 4000` was answered Taken",
    ),
    (RlockDriver, "drops-fields", "rlock-fields", "and not {"),
    (RlockDriver, "polls", "rlock-waits", "the library does not stop running scripts"),
    (RlockDriver, "ignores-messages", "rlock-waits", "anna did not acquire the free lock"),
    (RlockDriver, "ignores-messages", "rlock-leasehold-holds", "anna did not acquire the free lock"),
    (RlockDriver, "wakes-all", "rlock-messages", "`0` woke 3, `1` 3 and `7` 0"),
    (RlockDriver, "keeps-longest-lease", "rlock-same-owner", "and not in 10s"),
    (RlockDriver, "overwrites-other-types", "rlock-other-type", "about a string was answered Ok(Got)"),
    (RlockDriver, "extends-when-refused", "rlock-watchdogs", "Leasehold's hold expires in"),
    (RlockDriver, "extends-when-refused", "rlock-expires", "anna did not acquire the free lock"),
    (RlockDriver, "releases-without-comparing", "rlock-leasehold-holds", "was answered Ok and not Lost"),
    (RlockDriver, "releases-without-comparing", "rlock-expires", "was answered Ok and not Lost"),
    (RlockDriver, "force-releases-nothing", "rlock-force-release", "boris did not acquire the free lock"),
    (RlockDriver, "ignores-taken", "rlock-leasehold-holds", "was answered Got and not Taken"),
    (RlockDriver, "ignores-taken", "contention", "two clients held the lock at once"),
    (
        Leasehold,
        "ignores-taken",
        "rlock-library-holds",
        "Leasehold acquired the lock while the library held it",
    ),
    (Leasehold, "ignores-owner", "rlock-hold-count", "another owner of Leasehold's acquired the lock"),
    (Leasehold, "ignores-owner", "contention", "two clients held the lock at once"),
    (Leasehold, "ignores-messages", "rlock-library-holds", "that is polling"),
    (Leasehold, "publishes-nothing", "rlock-leasehold-holds", "anna did not acquire the free lock"),
    (Leasehold, "other-channel", "rlock-leasehold-holds", "anna did not acquire the free lock"),
    (Leasehold, "other-payload", "rlock-leasehold-holds", "anna did not acquire the free lock"),
    (
        Leasehold,
        "publishes-early",
        "rlock-leasehold-holds",
        "Leasehold's release that kept the lock published",
    ),
    (Leasehold, "counts-once", "rlock-leasehold-holds", "Leasehold counts 1 and 1"),
    (Leasehold, "no-owner", "rlock-leasehold-holds", "Leasehold counts 1 and 1"),
    (Leasehold, "ignores-foreign-holds", "rlock-hold-count", "Leasehold counts 2"),
    (Leasehold, "no-expiry", "rlock-expires", "anna did not acquire the free lock"),
    (Leasehold, "extends-foreign-lock", "rlock-watchdogs", "the library's hold expires in"),
    (Leasehold, "writes-into-foreign-lock", "rlock-watchdogs", "Leasehold wrote into the library's lock"),
    (Leasehold, "no-renewal", "rlock-watchdogs", "`as anna got` too early | ` counts {"),
    (
        Leasehold,
        "ignores-loss",
        "rlock-force-release",
        "Leasehold's guard stays valid while the library holds the lock",
    ),
    (Leasehold, "force-releases-nothing", "rlock-force-release", "anna did not acquire the free lock"),
    (Leasehold, "keeps-count", "rlock-leasehold-holds", "anna did not acquire the free lock"),
    (Leasehold, "keeps-count", "rlock-hold-count", "was answered Ok and not Lost"),
    (
        Leasehold,
        "releases-without-comparing",
        "rlock-expires",
        "Leasehold's late release returned Ok(NoLongerHeld)",
    ),
];

/// Runs a driver through some cases, or all, against Leasehold's clients or a mutant of them.
fn run_cases(driver: &str, mutant: Option<&str>, cases: &[&str]) -> Output {
    let mut interop = Command::new(env!("CARGO_BIN_EXE_leasehold-interop"));
    for case in cases {
        interop.args(["--case", case]);
    }
    if let Some(mutant) = mutant {
        interop.args(["--mutant", mutant]);
    }
    interop.args(["--sections", "25", driver]).output().expect("it starts")
}

/// What is wrong unless the case finds the fault, and its message has one of these parts.
fn missed(&(side, fault, case, parts): &Fault) -> Option<String> {
    let (driver, mutant) = match side {
        MutexDriver => (format!("mutex:{fault}"), None),
        RlockDriver => (format!("rlock:{fault}"), None),
        Leasehold if case.starts_with("rlock-") || case == "contention" => ("rlock:none".into(), Some(fault)),
        Leasehold => ("mutex:none".into(), Some(fault)),
    };
    let output = run_cases(&driver, mutant, &[case]);
    let table = String::from_utf8_lossy(&output.stdout);
    let line = table.lines().next().unwrap_or_default();
    let is_found =
        !output.status.success() && line.starts_with(&format!("{driver} ")) && line.contains("VIOLATION");
    match (is_found, parts.split(" | ").any(|part| line.contains(part))) {
        (true, true) => None,
        (true, false) => Some(format!("{side:?} {fault}: {case} found it by another sign: {line}")),
        (false, _) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Some(format!("{side:?} {fault}: {case} did not find it: {line}{errors}"))
        }
    }
}

/// Most cases spend most of their time waiting for leases to end, so several run at once.
#[test]
fn each_fault_is_found_by_its_case() {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(fault) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let missed = missed(fault);
                    wrong.lock().expect("no thread panics with it").extend(missed);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics with it");
    assert!(wrong.is_empty(), "{} of {} faults:\n{}", wrong.len(), FAULTS.len(), wrong.join("\n"));
}

/// A case that no fault can make fail proves nothing.
#[test]
fn each_case_has_a_fault_to_find() {
    let refusal = run_cases("mutex:none", None, &["no such case"]);
    let text = String::from_utf8_lossy(&refusal.stderr);
    let known = text.split_once("[possible values: ").and_then(|(_, rest)| rest.split_once(']'));
    let cases: Vec<_> = known.expect("it says which there are").0.split(", ").collect();
    assert_eq!(cases.len(), 22, "{cases:?}");
    for case in cases {
        assert!(FAULTS.iter().any(|fault| fault.2 == case), "`{case}` has nothing to find");
    }
}

/// A driver that does not start proves nothing about locks.
#[test]
fn a_case_that_could_not_be_set_up_is_no_violation() {
    let output = run_cases("redsync", None, &["library-holds", "contention"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table.matches("could not be tested: ").count(), 2, "{table}");
    assert!(!table.contains("VIOLATION"), "{table}");
}

#[test]
fn a_driver_that_locks_as_a_mutex_and_without_a_fault_passes_all_cases() {
    passes("mutex:none", 8);
}

#[test]
fn a_driver_that_locks_as_redisson_and_without_a_fault_passes_all_cases() {
    passes("rlock:none", 15);
}

fn passes(driver: &str, cases: usize) {
    let output = run_cases(driver, None, &[]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table.lines().count(), cases, "{table}");
}
