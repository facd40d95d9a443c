//! As process 1 of a container, the program reaps orphans.

use super::fixture::{Fixture, finish};
use std::process::Command;

/// The program as process 1 of a namespace; `None` if that is not permitted.
fn as_init(fixture: &Fixture, script: &str) -> Option<Command> {
    let mut probe = Command::new("unshare");
    probe.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: `unshare --pid` is not permitted here");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
    command.args([env!("CARGO_BIN_EXE_leasehold"), "run", "job", "--", "sh", "-c", script]);
    command.env("LEASEHOLD_STORE", format!("sqlite:{}", fixture.path("locks.db").display()));
    command.current_dir(fixture.path(""));
    Some(command)
}

#[test]
fn orphans_are_reaped_and_the_commands_status_is_not_lost() {
    let fixture = Fixture::sqlite();
    // Each inner shell leaves a child that ends later, as an orphan of process 1.
    let script = "test $PPID = 1 || exit 99
        for i in 1 2 3 4 5; do sh -c 'sleep 0.05 & echo $! >> orphans'; done
        for pid in $(cat orphans); do
            n=0; while test -e /proc/$pid; do sleep 0.05; n=$((n + 1)); test $n -lt 200 || exit 98; done
        done
        exit 42";
    let Some(command) = as_init(&fixture, script) else { return };
    finish(command, "").check(42, "");
    assert_eq!(fixture.read("orphans").lines().count(), 5);
}

#[test]
fn process_1_passes_signals_on() {
    let fixture = Fixture::sqlite();
    let script = "trap 'exit 7' TERM; kill -TERM 1; while :; do sleep 0.01; done";
    let Some(command) = as_init(&fixture, script) else { return };
    finish(command, "").check(7, "");
}
