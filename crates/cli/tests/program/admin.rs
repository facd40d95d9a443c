//! The operator's commands: list locks, take one by force, and free those of dead sessions.

use super::fixture::{Fixture, LIMIT, expect, finish, runs, signal, start, status, until};
use leasehold_testkit::{RedisServer, Worker};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A holder, once it is listed.
fn listed(fixture: &Fixture, options: &[&str]) -> (Worker, Value) {
    let mut holder = fixture.start(options, "echo running; read line");
    expect(&mut holder, "running");
    let mut row = Value::Null;
    until("it is listed", || {
        let outcome = fixture.run(&["ls", "--json"]);
        outcome.check(0, "");
        row = lines(&outcome.stdout).pop().unwrap_or_default();
        !row.is_null()
    });
    (holder, row)
}

#[test]
fn holders_are_listed_with_host_process_and_program() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let (mut holder, row) = listed(&fixture, &[]);
        assert_eq!((&row["name"], &row["waiting"]), (&"job".into(), &0.into()), "{row}");
        let behind = &row["behind"];
        assert_eq!(
            (&behind["pid"], &behind["program"]),
            (&holder.pid().into(), &"leasehold".into()),
            "{row}"
        );
        assert!(behind["host"].is_string() && behind["alive"] == true && row["fence"].is_u64(), "{row}");
        let shown = fixture.status();
        assert_eq!((&shown["behind"]["pid"], &shown["fence"]), (&behind["pid"], &row["fence"]), "{shown}");

        let text = fixture.run(&["ls"]).stdout;
        let [head, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("two lines: {text}") };
        assert!(head.starts_with("NAME  KIND   HOST") && line.starts_with("job   mutex  "), "{text}");
        assert!(line.contains(&format!(" {} ", holder.pid())), "{text}");
        let sessions = lines(&fixture.run(&["ls", "--sessions", "--json"]).stdout);
        assert_eq!(sessions.len(), 1, "a client that only inspects is not listed: {sessions:?}");
        assert_eq!((&sessions[0]["session"], &sessions[0]["locks"][0]), (&behind["session"], &"job".into()));
        assert!(fixture.run(&["show", "job"]).stdout.contains(&format!("process  {}, sh\n", holder.pid())));

        holder.send("go").expect("it reads");
        assert_eq!(status(&mut holder), Some(0));
        assert_eq!(fixture.run(&["ls", "--json"]).stdout, "");
    }
}

#[test]
fn a_lock_is_freed_its_holder_ends_at_once_and_the_audit_names_the_operator() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let (mut holder, row) = listed(&fixture, &["--lease", "10m"]);
        fixture.run(&["free", "job"]).check(2, "give --yes");
        assert_eq!(fixture.status()["held"], true);
        let freed_at = Instant::now();
        let freed = fixture.run(&["free", "job", "--yes", "--json", "--label", "ticket 4711"]);
        freed.check(0, "");
        let report = &lines(&freed.stdout)[0];
        assert_eq!((&report["freed"], &report["fence"]), (&true.into(), &row["fence"]), "{report}");
        assert_eq!(report["behind"]["pid"], holder.pid(), "{report}");
        assert_eq!(status(&mut holder), Some(70));
        assert!(freed_at.elapsed() < Duration::from_secs(8), "not only at its next renewal, in minutes");
        let shown = fixture.status();
        let audit = &shown["audit"][0];
        assert_eq!(
            (&audit["how"], &audit["by"]),
            (&"force_released".into(), &"ticket 4711".into()),
            "{shown}"
        );
        assert_eq!((&audit["fence"], &shown["held"]), (&row["fence"], &false.into()), "{shown}");
        let text = fixture.run(&["show", "job"]).stdout;
        assert!(text.contains("by ticket 4711\n"), "{text}");
        let again = fixture.run(&["free", "job", "--yes"]);
        again.check(0, "");
        assert_eq!(again.stdout, "`job` is already free\n");
    }
}

#[test]
fn an_operator_at_a_terminal_can_refuse() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: there is no `script` here");
        return;
    }
    let fixture = Fixture::sqlite();
    let (mut holder, _) = listed(&fixture, &["--lease", "10m"]);
    for (answer, wanted, held) in [("\n", "1\n", true), ("no\n", "1\n", true), ("y\n", "0\n", false)] {
        let mut command = Command::new("script");
        command.args(["--quiet", "--command", "$LEASEHOLD free job; echo $? > status", "/dev/null"]);
        command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).env("SHELL", "/bin/sh");
        command.env("LEASEHOLD_STORE", format!("sqlite:{}", fixture.path("locks.db").display()));
        command.current_dir(fixture.path(""));
        let output = finish(command, answer).stdout;
        assert!(
            output.contains(&format!("process {} on", holder.pid())) && output.contains("[y/N]"),
            "{output}"
        );
        assert_eq!(
            (fixture.read("status").as_str(), fixture.status()["held"].as_bool()),
            (wanted, Some(held))
        );
    }
    assert_eq!(status(&mut holder), Some(70));
}

#[test]
fn a_monitor_reports_its_evictions_and_ends_in_order() {
    // One server for each: on a shared one, the dead sessions of the first case would appear in the second.
    let servers = [(); 2].map(|()| RedisServer::start().expect("there is a server"));
    let [one, other] = servers.each_ref().map(Fixture::redis);
    for (fixture, json) in [(one, true), (other, false), (Fixture::sqlite(), true)] {
        let (mut holder, row) = listed(&fixture, &["--lease", "10m", "--session", "1s"]);
        let arguments = ["monitor", "--every", "200ms", "--label", "the monitor", "--json"];
        let mut monitor = start(fixture.command(&arguments[..if json { 6 } else { 5 }]));
        expect(&mut monitor, if json { "{\"event\":\"started\"" } else { "2" });
        holder.kill().expect("it runs");
        let fence = row["fence"].to_string();
        let line = monitor.line(LIMIT).expect("it prints a line");
        if json {
            let event: Value = serde_json::from_str(&line).expect("a line of JSON");
            assert_eq!((&event["event"], &event["name"]), (&"evicted".into(), &"job".into()), "{event}");
            assert_eq!((&event["fence"], &event["session"]), (&row["fence"], &row["behind"]["session"]));
        } else {
            assert!(line.contains(&format!("evicted `job` (fence {fence}) from ")), "{line}");
        }
        let shown = fixture.status();
        assert_eq!(
            (&shown["held"], &shown["audit"][0]["by"]),
            (&false.into(), &"the monitor".into()),
            "{shown}"
        );
        monitor.terminate().expect("it runs");
        assert_eq!(status(&mut monitor), Some(0));
    }
}

#[test]
fn a_monitor_outlives_an_outage_and_reports_it_once() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut monitor = start(fixture.command(&["monitor", "--every", "100ms", "--json"]));
    expect(&mut monitor, "{\"event\":\"started\"");
    server.stop().expect("it runs");
    expect(&mut monitor, "{\"event\":\"trouble\"");
    server.resume().expect("it is stopped");
    expect(&mut monitor, "{\"event\":\"recovered\"");
    signal(monitor.pid(), "INT");
    assert_eq!(status(&mut monitor), Some(0));
}

#[test]
fn the_next_does_not_wait_for_the_lease_of_a_program_that_was_killed() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut run = fixture.start(&["--lease", "10m", "--session", "1s"], "echo pid $$; exec sleep 60");
    let child = expect(&mut run, "pid");
    let mut next = fixture.start(&["--session", "1s"], "echo mine");
    until("it waits", || fixture.status()["waiting"] == 1);
    run.kill().expect("it runs");
    let killed_at = Instant::now();
    next.expect("mine", LIMIT).expect("the lock is free");
    assert!(killed_at.elapsed() < Duration::from_secs(4), "{:?}", killed_at.elapsed());
    assert!(!runs(&child));
    assert_eq!(status(&mut next), Some(0));
}

#[test]
fn without_a_session_the_lease_alone_ends_the_lock() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut run = fixture.start(&["--lease", "10m", "--no-session"], "echo running; exec sleep 60");
    expect(&mut run, "running");
    assert!(fixture.status()["behind"].is_null());
    run.kill().expect("it runs");
    assert_eq!(status(&mut run), None);
    fixture.script(&["--wait", "2s", "--session", "1s"], "true").check(75, "held by");
}

#[test]
fn a_server_that_is_silent_for_five_seconds_costs_nothing_by_default() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, _) = listed(&fixture, &[]);
    server.stop().expect("it runs");
    std::thread::sleep(Duration::from_secs(5));
    server.resume().expect("it is stopped");
    std::thread::sleep(Duration::from_secs(3));
    holder.send("go").expect("it runs still");
    assert_eq!(status(&mut holder), Some(0));
}
