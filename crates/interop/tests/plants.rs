//! That the cases see what they are there for: a driver of ours passes them all, and each fault in it is found by the
//! case that is meant to find it.

use std::process::{Command, Output};

/// Puts a driver with a fault to some cases, or to all.
fn tried(fault: &str, cases: &[&str]) -> Output {
    let mut interop = Command::new(env!("CARGO_BIN_EXE_leasehold-interop"));
    for case in cases {
        interop.args(["--case", case]);
    }
    interop.args(["--sections", "25", &format!("plant:{fault}")]).output().expect("it starts")
}

/// Fails unless the case finds the fault, and says what is wrong by these words.
fn check(fault: &str, case: &str, words: &str) {
    let output = tried(fault, &[case]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{fault} was not found:\n{table}");
    let line = table.lines().next().unwrap_or_default();
    assert!(line.starts_with(&format!("plant:{fault} ")) && line.contains("VIOLATION"), "{table}");
    assert!(line.contains(words), "{fault} was found by another sign:\n{table}");
}

#[test]
fn a_driver_without_a_fault_passes_all_cases() {
    let output = tried("none", &[]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table.lines().count(), 8, "{table}");
}

#[test]
fn who_takes_a_refusal_for_the_lock_is_found() {
    check("ignores-taken", "ours-held", "was answered Got and not Taken");
    check("ignores-taken", "ours-renewed", "was answered Got and not Taken");
    check("ignores-taken", "contention", "two were in at once");
}

#[test]
fn who_overwrites_our_hold_is_found() {
    check("barges", "ours-held", "was answered Got and not Taken");
    check("barges", "contention", "ours counts: the driver says `error the lock was lost");
}

#[test]
fn who_locks_another_key_is_found() {
    check("other-key", "theirs-held", "nothing is at the key");
    check("other-key", "ours-held", "was answered Got and not Taken");
    check("other-key", "contention", "two were in at once");
}

#[test]
fn who_ends_our_hold_is_found() {
    check("deletes-any", "their-late-release", "the hold of ours was ended");
}

#[test]
fn who_extends_our_hold_is_found() {
    check("extends-any", "their-late-release", "they set our hold to end in");
}

#[test]
fn who_never_gives_back_is_found() {
    check("keeps", "theirs-held", "we did not get the free lock");
}

#[test]
fn who_does_not_wait_is_found() {
    check("gives-up", "ours-held", "too early");
}
