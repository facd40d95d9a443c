//! Signals go to the command, and the lock is released when it has ended.

use super::fixture::{Fixture, LIMIT, expect, runs, signal, start, status, until};
use leasehold_testkit::RedisServer;
use std::fs;
use std::process::Command;

#[test]
fn signals_are_passed_on_and_the_lock_is_free_when_the_command_has_ended() {
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let fixture = Fixture::sqlite();
        let script = format!(
            "trap 'echo got {name}; read line; exit 3' {name}; echo running; while :; do sleep 0.01; done"
        );
        let mut run = fixture.start(&[], &script);
        expect(&mut run, "running");
        signal(run.pid(), name);
        expect(&mut run, &format!("got {name}"));
        fixture.script(&["--try"], "true").check(75, "held by");
        run.send("go").expect("it reads");
        assert_eq!(status(&mut run), Some(3), "{name}");
        fixture.assert_free();
    }
}

#[test]
fn the_whole_group_is_signalled() {
    let fixture = Fixture::sqlite();
    let mut run = fixture.start(&[], "sleep 60 & echo child $!; wait");
    let child = expect(&mut run, "child");
    run.terminate().expect("it runs");
    assert_eq!(status(&mut run), Some(143));
    until("the command's own child has ended", || !runs(&child));
}

/// Whether a process ignores a signal.
fn ignores(pid: &str, signal: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let (_, mask) = status.split_once("SigIgn:").expect("there is a mask");
    let mask = mask.split_whitespace().next().expect("it has a value");
    u64::from_str_radix(mask, 16).expect("a number") & (1 << (signal - 1)) != 0
}

#[test]
fn what_was_ignored_stays_ignored() {
    for (name, number) in [("HUP", 1), ("INT", 2), ("QUIT", 3), ("TERM", 15)] {
        let fixture = Fixture::sqlite();
        let start_ignoring = |script: &str| {
            let mut command = Command::new("sh");
            let ignore = format!("trap '' {name}; exec \"$@\"");
            command.args(["-c", &ignore, "sh", env!("CARGO_BIN_EXE_leasehold"), "run", "job"]);
            command.args(["--", "sh", "-c", script]);
            command.env("LEASEHOLD_STORE", format!("sqlite:{}", fixture.path("locks.db").display()));
            start(command)
        };
        let mut run = start_ignoring("echo pid $$; read line; exit 5");
        let child = expect(&mut run, "pid");
        assert!(ignores(&run.pid().to_string(), number) && ignores(child.trim(), number), "{name}");
        signal(run.pid(), name);
        let mut waiter = start_ignoring("echo waited; exit 6");
        until("it waits", || fixture.status()["waiting"] == 1);
        signal(waiter.pid(), name);
        run.send("go").expect("it reads");
        assert_eq!(status(&mut run), Some(5), "{name}");
        expect(&mut waiter, "waited");
        assert_eq!(status(&mut waiter), Some(6), "{name}");
    }
}

#[test]
fn a_program_that_is_killed_takes_its_command_along() {
    let fixture = Fixture::sqlite();
    let mut run = fixture.start(&[], "echo pid $$; exec sleep 60");
    let child = expect(&mut run, "pid");
    assert!(runs(&child));
    run.kill().expect("it runs");
    until("the command is killed", || !runs(&child));
    // With SQLite the next client need not wait for the lease of 30 s.
    let next = fixture.script(&["--wait", "5s"], "echo free");
    next.check(0, "");
    assert_eq!(next.stdout, "free\n");
}

#[test]
fn a_killed_programs_lock_on_a_server_is_free_after_its_lease() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut run = fixture.start(&["--lease", "1s"], "echo pid $$; exec sleep 60");
    let child = expect(&mut run, "pid");
    run.kill().expect("it runs");
    until("the command is killed", || !runs(&child));
    let mut next = fixture.start(&["--wait", "10s"], "echo free");
    next.expect("free", LIMIT).expect("the lock is free");
    assert_eq!(status(&mut next), Some(0));
}
