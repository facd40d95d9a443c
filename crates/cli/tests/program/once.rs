//! Commands that run once per period.

use super::fixture::{Fixture, expect, status, until};
use leasehold_testkit::RedisServer;

#[test]
fn one_of_many_runs_and_the_others_end_with_0() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut first = fixture.start(&["--once-per", "1h"], "echo running; read line; exit 3");
        expect(&mut first, "running");
        let second = fixture.script(&["--once-per", "1h"], "echo twice");
        second.check(0, "");
        assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""));
        first.send("go").expect("it reads");
        assert_eq!(status(&mut first), Some(3), "its own status");
        // Also a command that starts after the first has ended.
        let late = fixture.script(&["--once-per", "1h"], "echo twice");
        late.check(0, "");
        assert_eq!(late.stdout, "");
        fixture
            .script(&["--once-per", "1h", "--conflict-exit-code", "9"], "true")
            .check(9, "in cooldown for ");
        let shown = fixture.status();
        assert_eq!((&shown["held"], &shown["in_cooldown"]), (&true.into(), &true.into()), "{shown}");
        assert!(shown["remaining_ms"].as_u64().is_some_and(|ms| ms > 3_000_000), "{shown}");
        fixture.run(&["show", "job"]).check(0, "");
        assert!(fixture.run(&["show", "job"]).stdout.contains("in cooldown"), "`show` reports it");
        // An operator lets another machine run it.
        fixture.run(&["free", "job", "--yes"]).check(0, "");
        assert_eq!(fixture.script(&["--once-per", "1h"], "echo again").stdout, "again\n");
    }
}

/// A turn is never renewed, and a store does not tell it from another hold without a session.
#[test]
fn no_line_about_a_turn_says_that_it_is_renewed() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut turn = fixture.start(&["--once-per", "1h"], "echo running; read line");
        expect(&mut turn, "running");
        let shown = fixture.run(&["show", "job"]);
        shown.check(0, "");
        assert!(shown.stdout.contains(", unless its holder extends it)\n"), "{shown:?}");
        assert!(!shown.stdout.contains("renew"), "{shown:?}");
        let freed = fixture.run(&["free", "job", "--yes"]);
        freed.check(0, "");
        let notice =
            "The holder cannot be notified: it may continue until it extends or releases the lock.\n";
        assert!(freed.stdout.ends_with(notice), "{freed:?}");
        turn.send("go").expect("it reads");
        assert_eq!(status(&mut turn), Some(70), "it finds out when it releases the lock");
        // A hold that is renewed has a session, and so the line says that.
        let mut renewed = fixture.start(&[], "echo running; read line");
        expect(&mut renewed, "running");
        let shown = fixture.run(&["show", "job"]);
        assert!(shown.stdout.contains(", unless it is renewed)\n"), "{shown:?}");
        renewed.send("go").expect("it reads");
        assert_eq!(status(&mut renewed), Some(0));
    }
}

/// Otherwise one machine without the program would keep all others from running it, in every period.
#[test]
fn a_machine_without_the_command_gives_the_period_back() {
    let fixture = Fixture::sqlite();
    fixture.run(&["run", "job", "--once-per", "1h", "--", "no-such-command-anywhere"]).check(127, "");
    fixture.assert_free();
    assert_eq!(fixture.script(&["--once-per", "1h"], "echo ran").stdout, "ran\n");
}

#[test]
fn a_period_that_is_over_lets_the_next_run() {
    let fixture = Fixture::sqlite();
    fixture.script(&["--once-per", "3s"], "true").check(0, "");
    until("the period is over", || fixture.script(&["--once-per", "3s"], "echo ran").stdout == "ran\n");
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_at_most_gives_it_time() {
    let fixture = Fixture::sqlite();
    let options = ["--once-per", "1s", "--kill-grace", "200ms"];
    let hung = fixture.script(&options, "while :; do sleep 0.01; done");
    hung.check(70, "is held for as long as --at-most (or --once-per) allows");
    // Its turn is used, and the lock is in cooldown.
    fixture.run(&["wait", "job", "--wait", "15s"]).check(0, "");
    fixture.script(&["--once-per", "1s", "--at-most", "1m"], "sleep 1.2; exit 5").check(5, "");
    fixture.assert_free();
}

#[test]
fn the_json_of_a_skipped_run_reports_it() {
    let fixture = Fixture::sqlite();
    fixture.script(&["--once-per", "1h"], "true").check(0, "");
    let late = fixture.script(&["--once-per", "1h", "--json"], "echo twice");
    late.check(0, "");
    let report: serde_json::Value = serde_json::from_str(late.stderr.trim()).expect("one line of JSON");
    assert_eq!((&report["acquired"], &report["status"]), (&false.into(), &0.into()), "{report}");
    assert!(report["command_status"].is_null() && report["error"].is_null(), "{report}");
}

#[test]
fn what_does_not_go_with_a_period_is_refused() {
    let fixture = Fixture::sqlite();
    for options in [
        &["--once-per", "1h", "--wait", "1s"][..],
        &["--once-per", "1h", "--try"],
        &["--once-per", "1h", "--reentrant"],
        &["--once-per", "1h", "--lease", "1s"],
        &["--once-per", "1h", "--no-session"],
        &["--once-per", "1h", "--exclusive"],
        &["--once-per", "1h", "--shared"],
        &["--once-per", "1h", "--permits", "2"],
        &["--at-most", "1h"],
        &["--once-per", "10ms"],
    ] {
        fixture.script(options, "echo ran").check(2, "");
    }
    fixture.run(&["run", "a", "b", "--once-per", "1h", "--", "true"]).check(2, "--once-per takes one lock");
}
