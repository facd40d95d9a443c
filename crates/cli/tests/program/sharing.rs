//! Shared locks: readers and a writer, and permits.

use super::fixture::{Fixture, expect, finish, runs, start, status, until};
use leasehold_testkit::Worker;
use serde_json::Value;
use std::process::Command;

/// `run` with a shell script as the command, which finds the program in `$LEASEHOLD`.
fn command(fixture: &Fixture, options: &[&str], script: &str) -> Command {
    let mut command = fixture.command(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat());
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    command
}

/// A run that ends when the test writes a line, and its fencing token.
fn running(fixture: &Fixture, options: &[&str]) -> (Worker, u64) {
    let mut holder = start(command(fixture, options, "echo fence $LEASEHOLD_FENCE; read line"));
    let fence = expect(&mut holder, "fence");
    (holder, fence.parse().expect("it is a number"))
}

fn end(mut worker: Worker) {
    worker.send("go").expect("it reads");
    assert_eq!(status(&mut worker), Some(0));
}

fn taken(fixture: &Fixture, options: &[&str]) {
    finish(command(fixture, &[options, &["--try"]].concat(), "echo never"), "").check(75, "held by ");
}

fn line(text: &str) -> Value {
    serde_json::from_str(text).expect("one line of JSON")
}

#[test]
fn readers_run_beside_each_other_and_a_writer_alone() {
    let fixture = Fixture::sqlite();
    let ((one, first), (other, second)) =
        (running(&fixture, &["--shared"]), running(&fixture, &["--shared"]));
    assert!(first < second, "each has a token of its own");
    taken(&fixture, &["--exclusive"]);
    finish(command(&fixture, &["--exclusive", "--wait", "50ms"], "echo never"), "").check(75, "timed out");
    let mut writer = start(command(&fixture, &["--exclusive"], "echo alone; read line"));
    until("it waits", || fixture.status()["waiting"] == 1);
    // A reader waits for a writer that came earlier.
    taken(&fixture, &["--shared"]);
    end(one);
    end(other);
    expect(&mut writer, "alone");
    taken(&fixture, &["--shared"]);
    end(writer);
    let report = finish(command(&fixture, &["--shared", "--json"], "true"), "");
    report.check(0, "");
    let report = line(&report.stderr);
    assert_eq!((&report["portion"], &report["permits"]), (&"read".into(), &Value::Null), "{report}");
}

#[test]
fn another_number_of_permits_is_refused_or_replaces_that_of_the_others() {
    let fixture = Fixture::sqlite();
    let (old, _) = running(&fixture, &["--permits", "1"]);
    let advice = "the name is used with --permits 1 now: use that, or --resize to make it 2 for all";
    finish(command(&fixture, &["--permits", "2"], "echo never"), "").check(2, advice);
    let (new, _) = running(&fixture, &["--permits", "2", "--resize"]);
    assert_eq!(fixture.status()["limit"], 2);
    let advice = "the name is used with --permits 2 now: use that, or --resize to make it 1 for all";
    finish(command(&fixture, &["--permits", "1"], "echo never"), "").check(2, advice);
    end(old);
    end(new);
    let report = finish(command(&fixture, &["--permits", "3", "--take", "3"], "true"), "");
    report.check(0, "");
}

#[test]
fn as_many_run_at_a_time_as_there_are_permits() {
    let fixture = Fixture::sqlite();
    let three = ["--permits", "3"];
    let (one, _) = running(&fixture, &three);
    let (two, _) = running(&fixture, &["--permits", "3", "--take", "2"]);
    taken(&fixture, &three);
    let mut next = start(command(&fixture, &["--permits", "3", "--take", "2", "--json"], "true"));
    until("it waits", || fixture.status()["waiting"] == 1);
    // One free permit is not enough for it, and no other client passes it.
    end(one);
    taken(&fixture, &three);
    end(two);
    assert_eq!(status(&mut next), Some(0));
    let report = finish(command(&fixture, &["--permits", "3", "--take", "2", "--json"], "true"), "");
    let report = line(&report.stderr);
    assert_eq!((&report["portion"], &report["permits"]), (&"permits".into(), &2.into()), "{report}");
}

#[test]
fn a_nested_reader_of_the_owner_runs_and_a_nested_writer_is_refused() {
    let fixture = Fixture::sqlite();
    let script = "echo in; read line; $LEASEHOLD run job --shared --reentrant -- echo nested; \
                  $LEASEHOLD run job --exclusive --reentrant -- echo never; echo $?";
    let mut outer = start(command(&fixture, &["--shared", "--reentrant"], script));
    expect(&mut outer, "in");
    let mut writer = start(command(&fixture, &["--exclusive"], "true"));
    until("a writer waits", || fixture.status()["waiting"] == 1);
    outer.send("go").expect("it reads");
    // Past the writer, which waits for the outer run.
    expect(&mut outer, "nested");
    expect(&mut outer, "2");
    assert_eq!((status(&mut outer), status(&mut writer)), (Some(0), Some(0)));
    // A plain run does not pass its owner to the command.
    let plain = finish(command(&fixture, &["--shared"], "echo \"owner: $LEASEHOLD_OWNER.\""), "");
    assert_eq!(plain.stdout, "owner: .\n");
}

#[test]
fn all_holders_of_a_shared_lock_are_shown_and_listed() {
    let fixture = Fixture::sqlite();
    let (one, first) = running(&fixture, &["--shared", "--owner", "me"]);
    let (other, second) = running(&fixture, &["--shared"]);
    let shown = fixture.status();
    assert_eq!((&shown["kind"], &shown["fence"]), (&"rwlock".into(), &first.into()), "{shown}");
    let check = |at: usize, pid: u32, fence: u64| {
        let having = &shown["sharers"][at];
        assert_eq!((&having["portion"], &having["fence"]), (&"read".into(), &fence.into()), "{shown}");
        assert_eq!((&having["behind"]["pid"], &having["behind"]["alive"]), (&pid.into(), &true.into()));
        assert!(having["since"].is_string() && having["remaining_ms"].is_u64(), "{shown}");
    };
    check(0, one.pid(), first);
    check(1, other.pid(), second);
    assert_eq!(shown["sharers"][0]["owner"], "me", "{shown}");
    let text = fixture.run(&["show", "job"]).stdout;
    assert!(text.contains("kind     rwlock\nheld     yes\nhold     read by "), "{text}");
    assert!(text.contains(&format!("with process {} on ", other.pid())), "{text}");
    assert!(text.contains("for the owner me") && text.contains(&format!("(fence {second})")), "{text}");
    let row = line(&fixture.run(&["ls", "--json"]).stdout);
    assert_eq!((&row["kind"], &row["sharers"][1]["fence"]), (&"rwlock".into(), &second.into()), "{row}");
    let text = fixture.run(&["ls"]).stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("job   rwlock (read)  ")).count(), 2, "{text}");
    end(one);
    end(other);

    let (permits, _) = running(&fixture, &["--permits", "3", "--take", "2"]);
    let shown = fixture.status();
    assert_eq!((&shown["kind"], &shown["taken"]), (&"semaphore".into(), &2.into()), "{shown}");
    assert_eq!((&shown["limit"], &shown["sharers"][0]["count"]), (&3.into(), &2.into()), "{shown}");
    let text = fixture.run(&["show", "job"]).stdout;
    assert!(text.contains("taken    2 of 3\n") && text.contains("hold     2 permits by "), "{text}");
    // A plain lock of that name is another kind.
    finish(command(&fixture, &["--try"], "echo never"), "").check(65, "`leasehold run --permits 3`");
    end(permits);
    let free = fixture.status();
    assert_eq!((&free["held"], &free["sharers"]), (&false.into(), &Value::Array(Vec::new())), "{free}");
}

#[test]
fn a_shared_lock_is_freed_for_one_holder_or_for_all_that_were_seen() {
    let fixture = Fixture::sqlite();
    let [(mut one, first), (mut two, _), (mut three, _)] = [(); 3].map(|()| running(&fixture, &["--shared"]));
    fixture
        .run(&["free", "job", "--yes", "--fence", "4711"])
        .check(75, "no hold of `job` has the fencing token 4711");
    let token = first.to_string();
    let freed = fixture.run(&["free", "job", "--yes", "--json", "--fence", &token, "--label", "ticket 4711"]);
    freed.check(0, "");
    let report = line(&freed.stdout);
    assert_eq!((&report["freed"], &report["freed_fences"]), (&true.into(), &vec![first].into()), "{report}");
    assert_eq!(status(&mut one), Some(70));
    let shown = fixture.status();
    assert_eq!(shown["sharers"].as_array().map(Vec::len), Some(2), "{shown}");
    assert_eq!(
        (&shown["audit"][0]["fence"], &shown["audit"][0]["by"]),
        (&first.into(), &"ticket 4711".into())
    );
    let freed = fixture.run(&["free", "job", "--yes"]);
    freed.check(0, "");
    assert_eq!(freed.stdout.matches("freed `job`: read taken from ").count(), 2, "{freed:?}");
    assert!(freed.stdout.contains(&format!("process {} on", three.pid())), "{freed:?}");
    assert_eq!((status(&mut two), status(&mut three)), (Some(70), Some(70)));
    assert_eq!(fixture.run(&["free", "job", "--yes"]).stdout, "`job` is already free\n");
}

#[test]
fn a_monitor_evicts_shared_holds_of_dead_sessions_only() {
    let fixture = Fixture::sqlite();
    let (mut dead, fence) = running(&fixture, &["--permits", "2", "--lease", "10m"]);
    let (lives, _) = running(&fixture, &["--permits", "2", "--lease", "10m"]);
    let mut monitor = start(fixture.command(&["monitor", "--every", "100ms", "--label", "the monitor"]));
    expect(&mut monitor, "2");
    dead.kill().expect("it runs");
    until("it is taken", || {
        let shown = fixture.status();
        shown["taken"] == 1 && shown["audit"][0]["fence"] == fence
    });
    assert!(runs(&lives.pid().to_string()));
    end(lives);
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}

#[test]
fn a_command_ends_with_its_own_permit() {
    let fixture = Fixture::sqlite();
    let (other, _) = running(&fixture, &["--permits", "2"]);
    let options = ["--permits", "2", "--max-hold", "1s", "--kill-grace", "300ms", "--json"];
    let ended = finish(command(&fixture, &options, "exec sleep 60"), "");
    ended.check(70, "is held for as long as --max-hold allows");
    let report = line(ended.stderr.lines().last().expect("a line of JSON"));
    assert_eq!(report["error"]["reason"], "capped", "{report}");
    assert_eq!(fixture.status()["taken"], 1);
    end(other);
}

#[test]
fn permits_are_limited_for_each_key_and_in_all() {
    let fixture = Fixture::sqlite();
    let of = |key: &'static str| ["--permits", "3", "--key", key, "--per-key", "2"];
    let (one, first) = running(&fixture, &of("a"));
    let (two, second) = running(&fixture, &of("a"));
    assert!(first < second, "each has a token of its own");
    let full = finish(command(&fixture, &[&of("a")[..], &["--try"]].concat(), "echo never"), "");
    full.check(75, "all permits of this key are taken: held by ");
    let (three, _) = running(&fixture, &of("b"));
    let full = finish(command(&fixture, &[&of("b")[..], &["--try"]].concat(), "echo never"), "");
    full.check(75, "held by ");
    assert!(!full.stderr.contains("of this key"), "{full:?}");
    finish(command(&fixture, &[&of("c")[..], &["--wait", "50ms"]].concat(), "echo never"), "")
        .check(75, "timed out");
    assert_eq!(fixture.status()["taken"], 3);
    let shown = fixture.run(&["show", "job#key:a", "--json"]);
    assert_eq!(line(&shown.stdout)["taken"], 2, "{shown:?}");
    let mut next = start(command(&fixture, &[&of("a")[..], &["--json"]].concat(), "true"));
    until("it waits", || line(&fixture.run(&["show", "job#key:a", "--json"]).stdout)["waiting"] == 1);
    end(one);
    assert_eq!(status(&mut next), Some(0));
    let numbers = ["--permits", "3", "--key", "a", "--per-key", "1"];
    let advice = "the name is used with --per-key 2 now: use that, or --resize to make it 1 for all";
    finish(command(&fixture, &numbers, "echo never"), "").check(2, advice);
    end(two);
    end(three);
    let report = finish(command(&fixture, &[&of("a")[..], &["--take", "2", "--json"]].concat(), "true"), "");
    report.check(0, "");
    let report = line(&report.stderr);
    assert_eq!((&report["portion"], &report["permits"]), (&"permits".into(), &2.into()), "{report}");
    assert_eq!(
        (&report["name"], &report["locks"].as_array().map(Vec::len)),
        (&"job".into(), &Some(1)),
        "{report}"
    );
}

#[test]
fn options_for_keys_that_do_not_fit_are_refused() {
    let fixture = Fixture::sqlite();
    let refused = |options: &[&str], text: &str| {
        finish(command(&fixture, options, "echo never"), "").check(2, text);
    };
    refused(&["--permits", "3", "--key", "a"], "--per-key <M>");
    refused(&["--permits", "3", "--per-key", "2"], "--key <KEY>");
    refused(&["--key", "a", "--per-key", "2"], "--permits <N>");
    refused(&["--permits", "3", "--key", "a", "--per-key", "4"], "--per-key 4 is more than --permits 3");
    refused(
        &["--permits", "3", "--key", "a", "--per-key", "1", "--take", "2"],
        "--take 2 is more than --per-key 1",
    );
    refused(&["--permits", "3", "--key", "a", "--per-key", "0"], "0 is not in 1..=");
}
