//! `run` without failures.

use super::fixture::{Fixture, Outcome, expect, finish, start, status, until};
use leasehold_testkit::{RedisServer, Stopwatch};
use std::time::Duration;

#[test]
fn a_command_runs_and_its_output_is_its_own() {
    let fixture = Fixture::sqlite();
    let outcome = fixture.run(&["run", "nightly", "--", "echo", "ok"]);
    outcome.check(0, "");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("ok\n", ""));
}

#[test]
fn durations_may_have_several_units_and_a_fraction() {
    let fixture = Fixture::sqlite();
    let options = [
        "--lease",
        "1m30s",
        "--wait",
        "1.5s",
        "--kill-grace",
        "0.5s",
        "--max-hold",
        "1h30m",
        "--session",
        "1m",
    ];
    fixture.script(&options, "exit 7").check(7, "");
    fixture.script(&["--once-per", "0.5h", "--at-most", "1h1.5m"], "exit 8").check(8, "");
}

#[test]
fn two_at_once_run_one_after_the_other() {
    let fixture = Fixture::sqlite();
    let script = "echo begin >> log; echo running; read line; echo end >> log";
    let mut first = fixture.start(&[], script);
    expect(&mut first, "running");
    let mut second = fixture.start(&[], script);
    until("the second waits", || fixture.status()["waiting"] == 1);
    assert_eq!(fixture.read("log"), "begin\n");
    first.send("go").expect("it reads");
    expect(&mut second, "running");
    assert_eq!(fixture.read("log"), "begin\nend\nbegin\n");
    second.send("go").expect("it reads");
    assert_eq!((status(&mut first), status(&mut second)), (Some(0), Some(0)));
    assert_eq!(fixture.read("log"), "begin\nend\nbegin\nend\n");
}

#[test]
fn a_job_of_low_priority_runs_after_one_that_came_later() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let script = "echo running; read line";
    let clients = || {
        let listed = fixture.run(&["ls", "--sessions", "--json"]);
        listed.check(0, "");
        listed.stdout.lines().count()
    };
    for command in ["run", "lead"] {
        let start_with = |options: &[&str]| {
            start(fixture.command(&[&[command, "job"], options, &["--", "sh", "-c", script]].concat()))
        };
        let mut holder = start_with(&[]);
        expect(&mut holder, "running");
        let mut low = start_with(&["--low-priority", "1h"]);
        until("the job of low priority has connected", || clients() == 2);
        let mut later = start_with(&[]);
        until("the later one waits", || clients() == 3 && fixture.status()["waiting"] == 1);
        holder.send("go").expect("it reads");
        expect(&mut later, "running");
        later.send("go").expect("it reads");
        expect(&mut low, "running");
        // A priority ages: by then it has a place in the queue.
        let mut aged = start_with(&["--low-priority", "100ms"]);
        until("it waits in the queue", || fixture.status()["waiting"] == 1);
        low.send("go").expect("it reads");
        expect(&mut aged, "running");
        aged.send("go").expect("it reads");
        for mut job in [holder, later, low, aged] {
            assert_eq!(status(&mut job), Some(0));
        }
    }
    let refused = |options: &[&str], text: &str| fixture.run(options).check(2, text);
    let several = ["run", "a", "b", "--low-priority", "1s", "--", "true"];
    refused(&several, "--low-priority takes one lock, and 2 are named");
    refused(&["run", "a", "--try", "--low-priority", "1s", "--", "true"], "cannot be used with");
}

#[test]
fn trying_or_waiting_in_vain_ends_with_75_and_names_the_holder() {
    let fixture = Fixture::sqlite();
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    let by = format!("/{}/leasehold", holder.pid());
    let tried = fixture.script(&["--try"], "echo never");
    tried.check(75, "leasehold: failed to acquire `job`: held by ");
    tried.check(75, &by);
    assert_eq!(tried.stdout, "");
    fixture.script(&["--try", "--conflict-exit-code", "0"], "echo never").check(0, &by);
    fixture.script(&["--wait", "0s", "--conflict-exit-code", "9"], "echo never").check(9, &by);
    // The time may end while the store works on a request: its outcome is unknown then (69).
    let tries = (0..20).map(|_| (Stopwatch::start(), fixture.script(&["--wait", "300ms"], "echo never")));
    let (watch, waited) =
        tries.into_iter().find(|(_, waited)| waited.status.code() != Some(69)).expect("a known outcome");
    waited.check(75, "timed out after ");
    waited.check(75, &by);
    assert!(watch.elapsed() >= Duration::from_millis(300), "{:?}", watch.elapsed());
    watch.assert_below(Duration::from_secs(5), "it waits no longer");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    fixture.assert_free();
}

#[test]
fn the_exit_status_is_that_of_the_command_or_of_shells() {
    let fixture = Fixture::sqlite();
    std::fs::write(fixture.path("plain"), "no program").expect("the directory is ours");
    fixture.script(&[], "exit 0").check(0, "");
    fixture.script(&[], "exit 7").check(7, "");
    fixture.script(&[], "exit 255").check(255, "");
    fixture.script(&[], "kill -KILL $$").check(137, "");
    fixture.script(&[], "kill -TERM $$").check(143, "");
    fixture.script(&[], "kill -34 $$").check(162, "");
    let not_found = "failed to start the command `./missing`: there is no such program";
    fixture.run(&["run", "job", "--", "./missing"]).check(127, not_found);
    fixture.run(&["run", "job", "--", "leasehold-no-such-program"]).check(127, "check its path, or PATH");
    fixture.run(&["run", "job", "--", "./plain"]).check(126, "check its mode");
    fixture.run(&["run", "job", "--", "/"]).check(126, "failed to start the command `/`");
    fixture.assert_free();
}

#[test]
fn the_command_receives_the_lock_and_a_growing_number() {
    let fixture = Fixture::sqlite();
    let mut last = 0;
    for _ in 0..3 {
        let outcome = fixture.script(&[], "echo $LEASEHOLD_NAME $LEASEHOLD_FENCE");
        let (name, fence) = outcome.stdout.trim().split_once(' ').expect("both are set");
        let fence: u64 = fence.parse().expect("it is a number");
        assert_eq!(name, "job");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn the_command_gets_standard_input_and_the_arguments_as_they_are() {
    let fixture = Fixture::sqlite();
    let read = finish(fixture.command(&["run", "job", "--", "cat"]), "one\ntwo\n");
    assert_eq!(read.stdout, "one\ntwo\n");
    let words = fixture.run(&["run", "job", "--", "printf", "%s|", "--lease", "", "a b", "--"]);
    assert_eq!(words.stdout, "--lease||a b|--|");
}

#[test]
fn the_command_leads_a_process_group_of_its_own() {
    let fixture = Fixture::sqlite();
    let outcome = fixture.script(&[], "echo $$; cut -d' ' -f5 /proc/$$/stat; cut -d' ' -f5 /proc/$PPID/stat");
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], lines[1], "its group has its id");
    assert_ne!(lines[1], lines[2], "which is not ours");
}

#[test]
fn a_long_grace_does_not_end_a_command_whose_lock_is_renewed() {
    let fixture = Fixture::sqlite();
    fixture.script(&["--lease", "6s", "--kill-grace", "4500ms"], "sleep 7; exit 4").check(4, "");
    fixture.script(&["--lease", "4s"], "sleep 5; exit 4").check(4, "");
}

#[test]
fn the_output_is_available_as_json() {
    let fixture = Fixture::sqlite();
    let outcome = fixture.run(&["run", "job", "-vv", "--log-format", "json", "--", "./missing"]);
    outcome.check(127, "failed to start the command");
    for line in outcome.stderr.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("every line is JSON");
        assert!(event["level"].is_string() && event["message"].is_string(), "{line}");
    }
}

#[test]
fn many_processes_hold_a_lock_one_after_the_other() {
    let fixture = Fixture::sqlite();
    let script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n";
    let runs: Vec<_> =
        (0..8).map(|_| start(fixture.command(&["run", "job", "--", "sh", "-c", script]))).collect();
    for mut run in runs {
        assert_eq!(status(&mut run), Some(0));
    }
    assert_eq!(fixture.read("n"), "8\n");
}

#[test]
fn a_run_is_reported_in_a_line_of_json_at_its_end() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let last = |outcome: &Outcome| -> serde_json::Value {
        let line = outcome.stderr.lines().next_back().expect("there is a line");
        serde_json::from_str(line).expect("it is JSON")
    };
    let ran = fixture.script(&["--json"], "echo $LEASEHOLD_FENCE; exit 3");
    ran.check(3, "");
    let report = last(&ran);
    let keys: Vec<_> = report.as_object().expect("it is an object").keys().map(String::as_str).collect();
    let fields = "acquired command_status count error fence locks name permits portion status";
    assert_eq!(keys, fields.split(' ').collect::<Vec<_>>());
    assert_eq!(format!("{}\n", report["fence"]), ran.stdout, "standard output is the command's");
    assert_eq!(
        (&report["acquired"], &report["command_status"], &report["status"]),
        (&true.into(), &3.into(), &3.into())
    );
    assert!(report["error"].is_null() && report["count"] == 1);
    assert!(report["portion"].is_null() && report["permits"].is_null(), "it is not shared");

    server.cli(&["SET", "job", "x", "PX", "60000"]).expect("it answers");
    let taken = fixture.script(&["--json", "--try", "--conflict-exit-code", "0"], "echo never");
    taken.check(0, "");
    let report = last(&taken);
    assert_eq!((&report["acquired"], &report["error"]["kind"]), (&false.into(), &"taken".into()));
    assert!(report["command_status"].is_null() && report["fence"].is_null() && report["count"].is_null());

    server.cli(&["DEL", "job"]).expect("it answers");
    let missing = fixture.run(&["run", "job", "--json", "--", "./missing"]);
    missing.check(127, "");
    assert_eq!(last(&missing)["error"]["kind"], "not_started");

    let script = format!("redis-cli -p {} DEL job >/dev/null", server.port());
    let lost = fixture.script(&["--json"], &script);
    lost.check(70, "");
    let report = last(&lost);
    assert_eq!((&report["error"]["kind"], &report["error"]["reason"]), (&"lost".into(), &"removed".into()));
    assert_eq!((&report["command_status"], &report["status"]), (&0.into(), &70.into()));
}

#[test]
fn several_locks_are_held_together_or_none_of_them() {
    let fixture = Fixture::sqlite();
    let script = "echo \"$LEASEHOLD_NAME\" | tr '\\n' '|'; echo \"$LEASEHOLD_FENCE\" | grep -c .";
    let outcome = fixture.run(&["run", "till", "stock", "till", "--json", "--", "sh", "-c", script]);
    outcome.check(0, "");
    assert_eq!(outcome.stdout, "stock|till|2\n");
    let report: serde_json::Value = serde_json::from_str(&outcome.stderr).expect("one line of JSON");
    assert_eq!(report["name"], "till");
    assert_eq!(report["locks"][0]["name"], "stock");
    assert_eq!(report["fence"], report["locks"][1]["fence"]);
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    let tried = fixture.run(&["run", "till", "job", "--try", "--", "true"]);
    tried.check(75, "failed to acquire `till`, `job`: `job` is held by ");
    fixture.run(&["run", "till", "--try", "--", "true"]).check(0, "");
    let waited = fixture.run(&["run", "till", "job", "--wait", "1s", "--", "true"]);
    waited.check(75, "timed out after ");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    fixture.run(&["run", "till", "job", "--", "true"]).check(0, "");
    fixture.run(&["run", "till", "bad\nname", "--", "true"]).check(2, "cannot be the name of a lock");
    fixture.assert_free();
}
