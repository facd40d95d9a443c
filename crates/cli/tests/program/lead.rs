//! `lead` and `wait`.

use super::fixture::{Fixture, LIMIT, expect, runs, signal, start, start_with_errors, status, until};
use leasehold_testkit::{RedisServer, Sentinels, Worker};
use std::io;
use std::time::Duration;

/// Longer than a fail-over takes, and the longest pause of a program that tries again.
const OUTAGE: Duration = Duration::from_secs(60);

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

/// The primary dies, and the promoted replica has no replica of its own that could confirm anything: so the session lapses while
/// the program campaigns there. It campaigns on, and leads again when the old primary is back as a replica.
#[test]
fn row_52_a_leader_campaigns_on_when_its_hold_is_lost_unconfirmed() {
    const ROUNDS: u32 = 5;
    let mut sentinels = Sentinels::start(1).expect("there are servers");
    let fixture = Fixture::at(format!("{}?replicas=1", sentinels.url()));
    let script = "echo leads $$ $LEASEHOLD_FENCE; exec sleep 600";
    sentinels.wait_formed().expect("the Sentinels discover one another");
    let mut leader = start_with_errors(&fixture, &["lead", "job", "--", "sh", "-c", script]);
    let mut led = pid_and_fence(&expect(&mut leader, "leads"));
    let is_shown = (0..ROUNDS).any(|_| {
        sentinels.wait_formed().expect("a fail-over is possible");
        let old = sentinels.primary_index().expect("a primary");
        sentinels.servers()[old].kill().expect("killed");
        let new = sentinels.wait_promoted(old).expect("promoted");
        expect(&mut leader, "leasehold: lost `job`");
        assert!(!runs(&led.0), "the command of a leader that was deposed");
        // Not if the promotion took longer than the session: then the next round.
        let is_shown = leader.expect("leasehold: failed to lead `job`: before the acquire had ended", LIMIT);
        if let Err(error) = &is_shown {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
        let port = sentinels.servers()[new].port().to_string();
        let server = &mut sentinels.servers()[old];
        server.restart().expect("restarted");
        server.cli(&["REPLICAOF", "127.0.0.1", &port]).expect("a reply").ok().expect("it follows");
        let again = pid_and_fence(&leader.expect("leads", OUTAGE).expect("it leads again"));
        assert!(again.1 > led.1, "{led:?} {again:?}");
        led = again;
        is_shown.is_ok()
    });
    assert!(is_shown, "no hold was lost while it was to be confirmed, in {ROUNDS} rounds");
    leader.terminate().expect("it still runs");
    assert_eq!(status(&mut leader), Some(143));
}

/// What the command printed: its process id, and its fencing token.
fn pid_and_fence(line: &str) -> (String, u64) {
    let (pid, fence) = line.trim().split_once(' ').expect("two words");
    (pid.to_owned(), fence.parse().expect("a number"))
}
