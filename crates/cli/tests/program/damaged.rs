//! Data in the store that no client of this library has written: it blinds no command of an operator.

use super::fixture::{Fixture, expect, start, start_with_errors, status, until};
use leasehold_testkit::{RedisServer, Worker};
use std::os::unix::process::CommandExt;

const INDEX: &str = "leasehold:{sessions}";

/// A command that holds the lock `job`, and that `ls` lists; and its session.
fn listed_holder(fixture: &Fixture, options: &[&str]) -> (Worker, String) {
    let mut holder = fixture.start(options, "echo running; read line");
    expect(&mut holder, "running");
    until("it is listed", || fixture.run(&["ls"]).stdout.contains("job "));
    let sessions = fixture.run(&["ls", "--sessions", "--json"]);
    let session: serde_json::Value = serde_json::from_str(&sessions.stdout).expect("one session");
    (holder, session["session"].as_str().expect("its id").to_owned())
}

/// Adds a lock to the record of a session, and gives it a record that no script can read.
fn damage_another_lock(server: &RedisServer, session: &str) {
    let record = format!("{INDEX}:{session}");
    call(server, &[b"HSET", record.as_bytes(), b"l:mutex:damaged", b"1"]);
    call(server, &[b"SET", b"damaged", b"leasehold"]);
    let lines = b"1\n7\n\n\nno holder";
    call(server, &[b"SET", b"leasehold:{damaged}:record:mutex:damaged", lines]);
}

fn call(server: &RedisServer, command: &[&[u8]]) {
    server.cli(command).expect("it answers").ok().expect("it works");
}

/// Checks that every command finds the lock and its holder; a listing warns with `warning`.
fn check_commands(fixture: &Fixture, holder: &Worker, warning: &str) {
    let pid = holder.pid().to_string();
    for arguments in [&["ls"][..], &["ls", "--json"], &["ls", "--sessions"]] {
        let listed = fixture.run(arguments);
        listed.check(0, warning);
        assert!(listed.stdout.contains(&pid), "{listed:?}");
        assert_eq!(listed.stderr.lines().count(), 1, "{listed:?}");
    }
    let shown = fixture.run(&["show", "job"]);
    shown.check(0, "");
    assert!(shown.stdout.contains(&format!("process  {pid}")) && shown.stderr.is_empty(), "{shown:?}");
    let mut monitor = start_monitor(fixture);
    expect(&mut monitor, &format!("leasehold: the check is incomplete: {warning}"));
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}

fn start_monitor(fixture: &Fixture) -> Worker {
    start_with_errors(fixture, &["monitor", "--every", "100ms"])
}

/// Frees the lock, and waits for the end of its holder.
fn free(fixture: &Fixture, holder: &mut Worker) {
    fixture.run(&["free", "job", "--yes"]).check(0, "");
    assert_eq!(status(holder), Some(70));
}

#[test]
fn a_member_of_the_index_that_is_no_session() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, _) = listed_holder(&fixture, &[]);
    call(&server, &[b"ZADD", INDEX.as_bytes(), b"9999999999999", b"\xff\xfe"]);
    check_commands(&fixture, &holder, "1 entry cannot be read: the index of the sessions has a member");
    free(&fixture, &mut holder);
}

#[test]
fn a_session_whose_record_is_no_record() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, session) = listed_holder(&fixture, &[]);
    let other = session.chars().rev().collect::<String>();
    let record = format!("{INDEX}:{other}");
    call(&server, &[b"ZADD", INDEX.as_bytes(), b"9999999999999", other.as_bytes()]);
    call(&server, &[b"SET", record.as_bytes(), &vec![b'x'; 30_000_000]]);
    let warning = format!("1 entry cannot be read: session {other}: its record is not a hash");
    check_commands(&fixture, &holder, &warning);
    free(&fixture, &mut holder);
}

#[test]
fn a_lock_whose_record_cannot_be_read_hides_no_other_lock() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, session) = listed_holder(&fixture, &[]);
    damage_another_lock(&server, &session);
    let listed = fixture.run(&["ls"]);
    listed.check(0, "1 entry cannot be read: the lock `damaged`: ");
    assert!(listed.stdout.contains("job "), "{listed:?}");
    free(&fixture, &mut holder);
}

#[test]
fn a_lock_whose_record_cannot_be_read_keeps_the_monitor_from_no_other_lock() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, session) = listed_holder(&fixture, &["--session", "2s", "--kill-grace", "100ms"]);
    damage_another_lock(&server, &session);
    holder.kill().expect("it runs");
    let mut monitor = start_monitor(&fixture);
    until("the lock is freed", || {
        let line = expect(&mut monitor, "");
        line.contains("evicted `job`")
    });
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}

#[test]
fn a_holder_whose_session_cannot_be_read_is_shown_and_freed() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (mut holder, session) = listed_holder(&fixture, &[]);
    let record = format!("{INDEX}:{session}");
    call(&server, &[b"HSET", record.as_bytes(), b"metadata", b"\xff\xfe"]);
    let shown = fixture.run(&["show", "job"]);
    shown.check(0, "leasehold: the lock is not shown completely: 1 entry cannot be read: session ");
    assert!(shown.stdout.contains("held     yes\n"), "{shown:?}");
    free(&fixture, &mut holder);
}

#[test]
fn a_lock_whose_holder_cannot_be_read_is_shown_without_it() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    fixture.run(&["acquire", "job", "--lease", "60s", "--token-file", "token"]).check(0, "");
    let record = b"1\n7\n\n\nno holder\x1b[2J";
    call(&server, &[b"SET", b"leasehold:{job}:record:mutex:job", record]);
    for options in [&[][..], &["--json"]] {
        let shown = fixture.run(&[&["show", "job"], options].concat());
        let warning =
            "leasehold: the lock is not shown completely: 1 entry cannot be read: a holder, `no holder";
        shown.check(0, warning);
        assert!(!shown.stderr.contains('\u{1b}') && shown.stderr.lines().count() == 1, "{shown:?}");
        assert!(
            shown.stdout.contains("held     yes\n") || shown.stdout.contains("\"held\":true"),
            "{shown:?}"
        );
    }
}

#[test]
fn a_shared_lock_with_a_holder_that_cannot_be_read_is_shown_with_the_others() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut holder = fixture.start(&["--permits", "3"], "echo running; read line");
    expect(&mut holder, "running");
    let pid = holder.pid().to_string();
    call(&server, &[b"HSET", b"job", b"\xff", b"no holder", b"x", b"\x1b[2J"]);
    let shown = fixture.run(&["show", "job"]);
    shown.check(
        0,
        "the lock is not shown completely: 2 entries cannot be read, the first of them: a holder, `",
    );
    assert!(!shown.stderr.contains('\u{1b}') && shown.stderr.lines().count() == 1, "{shown:?}");
    assert!(shown.stdout.contains("hold     1 permit by ") && shown.stdout.contains(&pid), "{shown:?}");
}

#[test]
fn lines_of_the_audit_that_cannot_be_read_are_counted() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let audit = b"1772368200000\tevicted\t7\t1\tworker\tmonitor\nnone \x1b[2J\n2\n";
    call(&server, &[b"SET", b"leasehold:{job}:audit:mutex:job", audit]);
    let shown = fixture.run(&["show", "job"]);
    let first = "the first of them: a line of the audit, `none ";
    shown.check(0, &format!("the lock is not shown completely: 2 entries cannot be read, {first}"));
    assert!(!shown.stderr.contains('\u{1b}') && shown.stderr.lines().count() == 1, "{shown:?}");
    assert!(shown.stdout.contains("evicted from worker (fence 7) by monitor\n"), "{shown:?}");
}

#[test]
fn invisible_characters_in_any_text_are_escaped_in_a_listing_and_by_the_monitor() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    // Without a command of its own, the program's is shown.
    let hold =
        ["run", "jo\u{200b}b", "--label", "", "--session", "2s", "--", "sh", "-c", "echo running; read line"];
    let mut command = fixture.command(&hold);
    // Its name is part of its session's label, too.
    command.arg0("pro\u{202e}gram");
    let mut holder = start(command);
    expect(&mut holder, "running");
    until("it is listed", || fixture.run(&["ls"]).stdout.contains(r"jo\u{200b}b "));
    let sessions = fixture.run(&["ls", "--sessions", "--json"]);
    let session: serde_json::Value = serde_json::from_str(&sessions.stdout).expect("one session");
    let record = format!("{INDEX}:{}", session["session"].as_str().expect("its id"));
    // Of another host.
    let stored = server.cli(&["HGET", &record, "metadata"]).expect("it answers");
    let mut metadata: serde_json::Value = serde_json::from_str(stored.text().expect("a text")).expect("JSON");
    metadata["host"] = "ho\u{2066}st".into();
    call(&server, &[b"HSET", record.as_bytes(), b"metadata", metadata.to_string().as_bytes()]);

    let escaped = [r" ho\u{2066}st ", r" pro\u{202e}gram ", r"/pro\u{202e}gram"];
    let is_hidden = |c: char| matches!(c, '\u{200b}' | '\u{202e}' | '\u{2066}');
    for (arguments, of_name) in [(&["ls"][..], r"jo\u{200b}b"), (&["ls", "--sessions"], "1 ")] {
        let listed = fixture.run(arguments);
        listed.check(0, "");
        for text in escaped.into_iter().chain([of_name]) {
            assert!(listed.stdout.contains(text), "{text}: {listed:?}");
        }
        assert!(!listed.stdout.contains(is_hidden), "{listed:?}");
        let json = fixture.run(&[arguments, &["--json"]].concat()).stdout;
        assert!(json.contains("ho\u{2066}st") && json.contains("pro\u{202e}gram"), "{json}");
    }
    holder.kill().expect("it runs");
    let mut monitor = start_monitor(&fixture);
    let mut evicted = String::new();
    until("the lock is freed", || {
        evicted = expect(&mut monitor, "");
        evicted.contains("evicted")
    });
    assert!(
        evicted.contains(r"evicted `jo\u{200b}b`") && evicted.contains(r"/pro\u{202e}gram, session"),
        "{evicted}"
    );
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}
