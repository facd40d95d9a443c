//! Findings about a server while commands run: what is shown, how often, and what is accepted.

use super::fixture::{Fixture, Outcome, finish};
use leasehold_testkit::RedisServer;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// What a command shows of the finding on which these tests rely: a replica that accepts writes, as any server can be.
const SHOWN: &str = "it is a replica that accepts writes";

/// A server with that finding, and a primary of it that need not be there.
fn replica() -> RedisServer {
    let server = RedisServer::builder().config("replicaof", "127.0.0.1 1").config("replica-read-only", "no");
    server.config("replica-serve-stale-data", "yes").start().expect("there is a server")
}

fn warnings(outcome: &Outcome) -> usize {
    assert_eq!(
        outcome.stderr.lines().filter(|line| line.contains(SHOWN)).count(),
        outcome.stderr.lines().count()
    );
    outcome.stderr.lines().count()
}

#[test]
fn a_warning_is_shown_once_a_day_by_each_command_that_takes_locks() {
    let server = replica();
    for command in [
        &["run", "job", "--", "sh", "-c", "exit 7"][..],
        &["lead", "job", "--", "sh", "-c", "exit 7"],
        &["acquire", "job", "--lease", "1s", "--token-file", "token"],
        &["wait", "other"],
    ] {
        let fixture = Fixture::redis(&server);
        server.cli(&["FLUSHALL"]).expect("it answers").ok().expect("done");
        let first = fixture.run(command);
        let status = if command[0] == "run" || command[0] == "lead" { 7 } else { 0 };
        first.check(status, "connect to its primary");
        assert_eq!(warnings(&first), 1, "{first:?}");
        assert!(first.stderr.starts_with("leasehold: warning: 127.0.0.1:"), "{first:?}");
        assert!(first.stderr.contains("`leasehold doctor --accept replica`"), "{first:?}");
        let _ = fs::remove_file(fixture.path("token"));
        server.cli(&["FLUSHALL"]).expect("it answers").ok().expect("done");
        let second = fixture.run(command);
        assert_eq!((second.status.code(), &*second.stderr), (Some(status), ""), "{command:?}");
    }
}

#[test]
fn of_many_jobs_that_start_at_once_one_shows_a_warning() {
    let server = replica();
    let fixture = Fixture::redis(&server);
    let jobs: Vec<_> = (0..6)
        .map(|job| {
            let command = fixture.command(&["run", &format!("job-{job}"), "--", "true"]);
            std::thread::spawn(move || finish(command, ""))
        })
        .collect();
    let outcomes: Vec<_> = jobs.into_iter().map(|job| job.join().expect("no panic")).collect();
    for outcome in &outcomes {
        outcome.check(0, "");
    }
    assert_eq!(outcomes.iter().map(warnings).sum::<usize>(), 1, "{outcomes:?}");
}

#[test]
fn without_a_directory_each_command_shows_a_warning_and_none_fails() {
    let server = replica();
    let fixture = Fixture::redis(&server);
    let run = |state: &str| {
        let mut command = fixture.command(&["run", "job", "--", "true"]);
        command.env("LEASEHOLD_STATE_DIR", state);
        finish(command, "")
    };
    fs::write(fixture.path("file"), "").expect("written");
    let below_file = fixture.path("file/state");
    // No directory can be made there, by root either.
    for state in [below_file.to_str().expect("a plain path"), "/proc/leasehold"] {
        for _ in 0..2 {
            let outcome = run(state);
            outcome.check(0, SHOWN);
            assert_eq!(warnings(&outcome), 1);
        }
    }
    // What was reported can be read where it cannot be written.
    assert_eq!(warnings(&fixture.run(&["run", "job", "--", "true"])), 1);
    fs::set_permissions(fixture.path("state"), Permissions::from_mode(0o500)).expect("it is ours");
    assert_eq!(warnings(&fixture.run(&["run", "job", "--", "true"])), 0);
    fs::set_permissions(fixture.path("state"), Permissions::from_mode(0o700)).expect("it is ours");
}

#[test]
fn what_doctor_accepts_is_neither_shown_nor_refused() {
    let server = replica();
    let fixture = Fixture::redis(&server);
    let strict = format!("{}?strict=1&accept=lua_vulnerabilities", server.url());
    let run = |store: &str| fixture.run(&["run", "job", "--store", store, "--", "true"]);
    run(&strict).check(69, "rejected by the strict setting");
    fixture.run(&["doctor"]).check(78, "");
    let accepted = fixture.run(&["doctor", "--accept", "replica"]);
    let path = fixture.path("state/findings.json");
    accepted.check(
        0,
        &format!("replica of 127.0.0.1:{} accepted for this user, in `{}`", server.port(), path.display()),
    );
    assert!(
        accepted.stdout.contains("accepted replica: it is a replica that accepts writes"),
        "{accepted:?}"
    );
    let json = fixture.run(&["doctor", "--json"]);
    json.check(0, "");
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("it is JSON");
    let findings = json["hazards"].as_array().expect("a list").iter();
    let replica: Vec<_> = findings.filter(|found| found["hazard"] == "replica").collect();
    assert_eq!((&replica[0]["accepted"], &replica[0]["severity"]), (&true.into(), &"warning".into()));
    for store in [&strict, &format!("{}?accept=lua_vulnerabilities", server.url())] {
        let outcome = run(store);
        assert_eq!((outcome.status.code(), &*outcome.stderr), (Some(0), ""), "{store}");
    }
    // It is about this store, and for this user.
    let mut other = fixture.command(&["run", "job", "--store", &strict, "--", "true"]);
    other.env("LEASEHOLD_STATE_DIR", fixture.path("of-another"));
    finish(other, "").check(69, "rejected by the strict setting");
    let mode =
        |path: &str| fs::metadata(fixture.path(path)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode("state"), mode("state/findings.json")), (0o700, 0o600));
    fixture.run(&["doctor", "--accept", "evictions"]).check(2, "`eviction`, `eviction_unknown`, ");
    fixture.run(&["doctor", "--accept", "not_exclusive"]).check(2, "findings that can be accepted are ");
    Fixture::sqlite().run(&["doctor", "--accept", "replica"]).check(2, "it has no findings");
}

#[test]
fn no_secret_is_in_the_file() {
    let server = RedisServer::builder().config("replicaof", "127.0.0.1 1").config("replica-read-only", "no");
    let server = server.password("hunter2").start().expect("there is a server");
    let fixture = Fixture::sqlite();
    let mut command = fixture.command(&["run", "job", "--", "true"]);
    command.env("LEASEHOLD_STORE", server.url().replace("//", "//:hunter2@"));
    let outcome = finish(command, "");
    outcome.check(0, SHOWN);
    let file = fixture.read("state/findings.json");
    assert!(file.contains(&format!("127.0.0.1:{}", server.port())), "{file}");
    assert!(!format!("{file}{outcome:?}").contains("hunter2"), "{file}");
}

#[test]
fn with_v_and_as_json_a_warning_is_one_line_as_well() {
    let server = replica();
    let fixture = Fixture::redis(&server);
    for _ in 0..2 {
        let outcome = fixture.run(&["run", "job", "-v", "--", "true"]);
        assert_eq!(outcome.stderr.lines().filter(|line| line.contains(SHOWN)).count(), 1, "{outcome:?}");
    }
    let outcome = fixture.run(&["run", "job", "--log-format", "json", "--", "true"]);
    assert_eq!(warnings(&outcome), 1);
    let json: serde_json::Value = serde_json::from_str(&outcome.stderr).expect("it is JSON");
    assert_eq!(json["level"], "WARN", "{json}");
}
