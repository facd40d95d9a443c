//! `lead` and `wait`.

use super::fixture::{Fixture, expect, runs, signal, start, status, until};
use leasehold_testkit::{RedisServer, Worker};
use std::time::Duration;

fn lead(fixture: &Fixture, options: &[&str], script: &str) -> Worker {
    start(fixture.command(&[&["lead", "job"], options, &["--", "sh", "-c", script]].concat()))
}

#[test]
fn one_leads_and_the_next_follows() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let script = "echo leads $LEASEHOLD_NAME $LEASEHOLD_FENCE; read line; exit 4";
        let mut first = lead(&fixture, &["--label", "first"], script);
        let one = expect(&mut first, "leads job");
        let mut second = lead(&fixture, &[], script);
        until("the other one waits", || fixture.status()["waiting"] == 1);
        let shown = fixture.status();
        assert_eq!((&shown["kind"], &shown["holder"]), (&"election".into(), &"first".into()), "{shown}");
        first.send("go").expect("it reads");
        assert_eq!(status(&mut first), Some(4), "a command that ends by itself ends us");
        let two = expect(&mut second, "leads job");
        let fence = |text: &str| text.trim().rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
        assert!(fence(&two) > fence(&one) && fence(&one).is_some(), "{one} {two}");
        second.terminate().expect("it runs");
        assert_eq!(status(&mut second), Some(143), "the command got the signal");
        fixture.assert_free();
    }
}

#[test]
fn a_leader_that_is_deposed_is_ended_and_campaigns_again() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let script = "echo leads $$; while :; do sleep 0.01; done";
    let mut leader = lead(&fixture, &["--kill-grace", "200ms"], script);
    let first = expect(&mut leader, "leads");
    fixture.run(&["free", "job", "--yes"]).check(0, "");
    let again = expect(&mut leader, "leads");
    assert_ne!(first, again, "another command");
    until("the first command is gone", || !runs(first.trim().rsplit(' ').next().unwrap_or_default()));
    signal(leader.pid(), "TERM");
    assert_eq!(status(&mut leader), Some(143));
}

#[test]
fn a_signal_ends_a_campaign_and_removes_its_queue_entry() {
    let fixture = Fixture::sqlite();
    let mut leader = lead(&fixture, &[], "echo leads; read line");
    expect(&mut leader, "leads");
    let mut waiting = lead(&fixture, &[], "echo leads");
    until("the other one waits", || fixture.status()["waiting"] == 1);
    waiting.terminate().expect("it runs");
    assert_eq!(status(&mut waiting), Some(143));
    until("it has left the queue", || fixture.status()["waiting"] == 0);
    leader.send("go").expect("it reads");
    assert_eq!(status(&mut leader), Some(0));
}

#[test]
fn a_lock_of_another_kind_is_no_election() {
    let fixture = Fixture::sqlite();
    let mut run = fixture.start(&[], "echo running; read line");
    expect(&mut run, "running");
    fixture.run(&["lead", "job", "--", "true"]).check(65, "`job` is a plain lock (a mutex)");
    run.send("go").expect("it reads");
    assert_eq!(status(&mut run), Some(0));
    let report = fixture.run(&["lead", "job", "--json", "--", "sh", "-c", "exit 6"]);
    report.check(6, "");
    let report: serde_json::Value = serde_json::from_str(report.stderr.trim()).expect("one line of JSON");
    assert_eq!((&report["led"], &report["command_status"]), (&1.into(), &6.into()), "{report}");
}

#[test]
fn waiting_ends_when_the_lock_is_free() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        fixture.run(&["wait", "job", "--wait", "0s"]).check(0, "");
        let mut run = fixture.start(&[], "echo running; read line");
        expect(&mut run, "running");
        fixture
            .run(&["wait", "job", "--wait", "300ms"])
            .check(75, "failed to wait for `job`: timed out after ");
        fixture.run(&["wait", "job", "--wait", "0s", "--conflict-exit-code", "4"]).check(4, ": held by ");
        let mut waiting = start(fixture.command(&["wait", "job", "--json"]));
        std::thread::sleep(Duration::from_millis(300));
        run.send("go").expect("it reads");
        assert_eq!(status(&mut run), Some(0));
        let report = expect(&mut waiting, "{");
        assert!(report.contains("\"free\":true"), "{report}");
        assert_eq!(status(&mut waiting), Some(0));
        // A lock that ends with its lease alone is polled at that time.
        let path = fixture.path("token");
        let file = path.to_str().expect("a plain path");
        fixture.run(&["acquire", "job", "--lease", "2s", "--token-file", file]).check(0, "");
        fixture.run(&["wait", "job", "--wait", "15s"]).check(0, "");
        let _ = std::fs::remove_file(path);
    }
}
