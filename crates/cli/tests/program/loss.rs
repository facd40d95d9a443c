//! A command whose lock is lost ends before another client can acquire the lock.

use super::fixture::{Fixture, LIMIT, expect, runs, start, start_with_errors, status, until};
use leasehold_testkit::{RedisServer, Stopwatch, Worker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A command that ignores SIGTERM, and records every few milliseconds that it runs.
const STUBBORN: &str =
    "trap 'echo term >> signals' TERM; echo pid $$; while :; do date +%s%N >> running; sleep 0.01; done";

fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos()
}

fn last_beat(fixture: &Fixture) -> u128 {
    let times = fixture.read("running");
    times.lines().filter_map(|line| line.parse().ok()).next_back().expect("the command ran")
}

fn start_stubborn(fixture: &Fixture, options: &[&str]) -> (Worker, String) {
    let mut run = fixture.start(options, STUBBORN);
    let pid = expect(&mut run, "pid");
    until("the command runs", || fixture.read("running").lines().count() > 3);
    (run, pid)
}

#[test]
fn a_server_that_falls_silent_costs_the_command_its_life_before_the_lease_has_ended() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut run, pid) = start_stubborn(&fixture, &["--lease", "3s", "--kill-grace", "1s"]);
    server.stop().expect("it runs");
    // Nothing is renewed from here on: the server grants the lock to no other client before this.
    let earliest_end = now_ns() + Duration::from_secs(3).as_nanos();
    assert_eq!(status(&mut run), Some(70));
    assert!(!runs(&pid));
    let beat = last_beat(&fixture);
    assert!(beat < earliest_end, "it ran {} ns too long", beat - earliest_end);
    assert_eq!(fixture.read("signals"), "term\n", "SIGTERM came first");
    server.resume().expect("it is stopped");
    fixture.script(&["--wait", "5s"], "true").check(0, "");
}

#[test]
fn a_server_that_falls_silent_leaves_a_willing_command_its_grace() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let script = "trap 'sleep 0.3; echo cleaned; exit 0' TERM; echo running; while :; do sleep 0.01; done";
    let mut run = fixture.start(&["--lease", "2s", "--kill-grace", "1s"], script);
    expect(&mut run, "running");
    server.stop().expect("it runs");
    expect(&mut run, "cleaned");
    assert_eq!(status(&mut run), Some(70));
}

#[test]
fn a_lock_that_was_taken_away_ends_the_command_by_term_and_then_by_kill() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut run, pid) = start_stubborn(&fixture, &["--lease", "6s", "--kill-grace", "1s"]);
    let deleted = server.cli(&["DEL", "job"]).expect("it answers");
    assert_eq!(deleted.integer(), Some(1));
    assert_eq!(status(&mut run), Some(70));
    assert!(!runs(&pid));
    assert_eq!(fixture.read("signals"), "term\n");
    fixture.assert_free();
}

#[test]
fn a_loss_that_is_noticed_only_at_the_end_is_reported() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut run = fixture.start(&[], "echo running; read line; exit 0");
    expect(&mut run, "running");
    // The command starts under a whole lease, so no renewal is due for ten seconds.
    server.cli(&["DEL", "job"]).expect("it answers");
    run.send("go").expect("it reads");
    assert_eq!(status(&mut run), Some(70));
}

#[test]
fn after_a_stop_past_the_lease_the_command_is_killed_at_once() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let (mut run, pid) = start_stubborn(&fixture, &["--lease", "6s", "--kill-grace", "4s"]);
        run.stop().expect("it runs");
        // The lease ends by the clock of the store, and another client gets the lock.
        let mut next = fixture.start(&[], "echo running; read line");
        next.expect("running", LIMIT).expect("the lease ends");
        let (since, watch) = (now_ns(), Stopwatch::start());
        run.resume().expect("it is stopped");
        assert_eq!(status(&mut run), Some(70));
        assert!(!runs(&pid));
        let delays = watch.elapsed().saturating_sub(watch.undisturbed());
        let late = Duration::from_nanos(
            u64::try_from(last_beat(&fixture).saturating_sub(since)).unwrap_or(u64::MAX),
        );
        // --kill-grace would give it four seconds, if its lease had not ended.
        assert!(
            late < Duration::from_millis(500) + delays,
            "it ran on for {late:?}, with {delays:?} of delays"
        );
        next.send("go").expect("it reads");
        assert_eq!(status(&mut next), Some(0), "the next holder was left alone");
    }
}

#[test]
fn what_is_left_of_the_group_is_killed_too() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    // It ends by itself eventually, because nothing else would end it if this test failed.
    let stubborn = "trap \"\" TERM; n=0; while test $n -lt 600; do n=$((n + 1)); sleep 0.05; done";
    let script = format!("sh -c '{stubborn}' & echo child $!; wait");
    let script = script.as_str();
    let mut run = fixture.start(&["--lease", "1s", "--kill-grace", "300ms"], script);
    let child = expect(&mut run, "child");
    server.cli(&["DEL", "job"]).expect("it answers");
    assert_eq!(status(&mut run), Some(70));
    until("the command's own child is killed", || !runs(&child));
}

#[test]
fn an_outage_shorter_than_the_lease_is_ridden_out() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut run =
        fixture.start(&["--lease", "3s", "--kill-grace", "500ms"], "echo running; read line; exit 6");
    expect(&mut run, "running");
    server.stop().expect("it runs");
    std::thread::sleep(Duration::from_millis(1300));
    server.resume().expect("it is stopped");
    std::thread::sleep(Duration::from_millis(2500));
    run.send("go").expect("it reads");
    assert_eq!(status(&mut run), Some(6));
    fixture.assert_free();
}

#[test]
fn a_command_that_hangs_is_ended_when_its_lock_has_been_held_for_as_long_as_it_may() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let options = ["--max-hold", "2s", "--kill-grace", "500ms"];
        let hung = fixture.script(&options, "echo running; while :; do sleep 0.01; done");
        hung.check(70, "held for as long as --max-hold allows");
        assert!(hung.stderr.contains("lost `job`, so the command was ended"), "{hung:?}");
        fixture.assert_free();
        fixture.script(&options, "exit 3").check(3, "");
        fixture.script(&["--max-hold", "2s", "--kill-grace", "3s"], "true").check(2, "--max-hold");
    }
}

#[test]
fn what_ended_a_command_under_a_cap_is_named() {
    let server = RedisServer::start().expect("there is a server");
    let options = ["--max-hold", "25s", "--session", "2s", "--kill-grace", "200ms"];
    let run = || {
        let fixture = Fixture::redis(&server);
        let script = "echo running; while :; do sleep 0.01; done";
        let arguments = [&["run", "job"], &options[..], &["--", "sh", "-c", script]].concat();
        let mut run = start_with_errors(&fixture, &arguments);
        expect(&mut run, "running");
        (fixture, run)
    };
    let (fixture, mut freed) = run();
    fixture.run(&["free", "job", "--yes"]).check(0, "");
    expect(&mut freed, "leasehold: `job` is lost (it was released by force): ending the command");
    assert_eq!(status(&mut freed), Some(70));
    let (_fixture, mut silenced) = run();
    server.stop().expect("it runs");
    expect(&mut silenced, "leasehold: `job` cannot be renewed in time: ending the command");
    assert_eq!(status(&mut silenced), Some(70));
    server.resume().expect("it is stopped");
}

/// Nothing but the lease and the delay ends the lock of a killed process, not even on SQLite, which notices its end at once.
#[test]
fn the_lock_of_a_killed_process_stays_taken_for_the_delay() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        for command in ["run", "lead"] {
            let options =
                ["--lease", "1s", "--lock-delay", "2s", "--", "sh", "-c", "echo started; read line"];
            let mut holder = start(fixture.command(&[&[command, "job"], &options[..]].concat()));
            expect(&mut holder, "started");
            holder.kill().expect("it runs");
            let killed = Stopwatch::start();
            // At once with a session on SQLite, and in 1 s at most without the delay.
            let next = fixture.run(&[command, "job", "--", "true"]);
            next.check(0, "");
            let waited = killed.elapsed();
            assert!(waited >= Duration::from_secs(2), "{command}: {waited:?}");
        }
    }
}

#[test]
fn a_command_that_ends_in_time_leaves_no_delay() {
    let fixture = Fixture::sqlite();
    fixture.script(&["--lock-delay", "1h"], "true").check(0, "");
    fixture.assert_free();
    let refused = |options: &[&str], text: &str| fixture.run(options).check(2, text);
    refused(
        &["run", "a", "b", "--lock-delay", "1s", "--", "true"],
        "--lock-delay takes one lock, and 2 are named",
    );
    refused(&["run", "a", "--once-per", "1h", "--lock-delay", "1s", "--", "true"], "cannot be used with");
    let keyed = ["--permits", "3", "--key", "k", "--per-key", "1"];
    refused(
        &[&["run", "a", "--lock-delay", "1s"], &keyed[..], &["--", "true"]].concat(),
        "cannot be used with",
    );
}

/// The server falls silent, and the command ends before the lease. Then the server answers again: the lock is not released.
#[test]
fn a_command_that_was_ended_because_of_its_lock_leaves_the_delay() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let options = ["--lease", "3s", "--kill-grace", "1s", "--lock-delay", "3s"];
    let (mut run, _) = start_stubborn(&fixture, &options);
    server.stop().expect("it runs");
    until("it gets SIGTERM", || fixture.read("signals") == "term\n");
    server.resume().expect("it is stopped");
    assert_eq!(status(&mut run), Some(70));
    fixture.script(&[], "true").check(0, "");
    let gap = now_ns() - last_beat(&fixture);
    assert!(gap >= Duration::from_secs(3).as_nanos(), "{gap} ns after the command");
}
