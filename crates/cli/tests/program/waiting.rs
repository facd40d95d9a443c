//! What a user sees while a lock is held: the queue, the line at a terminal, and what `--quiet` leaves.

use super::fixture::{Fixture, Outcome, expect, finish, finish_at_terminal, start, status, until};
use super::terminal::{recorded_terminal, terminal};
use leasehold_testkit::{RedisServer, Worker};
use serde_json::Value;
use std::time::Duration;

/// A holder of `job` that ends when a line is sent to it.
fn holder(fixture: &Fixture, options: &[&str]) -> Worker {
    let mut holder = fixture.start(options, "echo running; read line");
    expect(&mut holder, "running");
    holder
}

/// Sends the holder its line after a while.
fn end_after(mut holder: Worker, time: Duration) {
    std::thread::sleep(time);
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
}

fn queue(fixture: &Fixture) -> Vec<Value> {
    fixture.status()["queue"].as_array().expect("it is a list").clone()
}

#[test]
fn the_queue_is_shown_in_order_with_processes_and_commands() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut first = holder(&fixture, &[]);
        let mut waiters = Vec::new();
        for options in [&[][..], &["--label", ""], &["--label", "gpj\u{202e}exe"]] {
            let command = [&["run", "job"], options, &["--", "true", "secret"]].concat();
            waiters.push(start(fixture.command(&command)));
            until("it waits", || queue(&fixture).len() == waiters.len());
        }
        // A wait that lasts is reported with its start.
        until("it is known since when they wait", || {
            queue(&fixture).iter().all(|waiter| waiter["since"].is_string())
        });
        let listed = queue(&fixture);
        let since: Vec<_> = listed.iter().map(|waiter| waiter["since"].to_string()).collect();
        assert!(since.is_sorted() && since[0] < since[2], "{since:?}");
        let pids: Vec<_> = listed.iter().map(|waiter| waiter["behind"]["pid"].clone()).collect();
        assert_eq!(pids, waiters.iter().map(|waiter| waiter.pid().into()).collect::<Vec<Value>>());
        assert_eq!(listed[0]["behind"]["labels"]["command"], "true", "{listed:?}");
        assert_eq!(listed[1]["behind"]["labels"], serde_json::json!({}), "{listed:?}");
        assert!(!format!("{listed:?}").contains("secret"), "{listed:?}");
        let shown = fixture.run(&["show", "job"]).stdout;
        for (at, command) in ["true", "leasehold", r"gpj\u{202e}exe"].iter().enumerate() {
            let line = shown.lines().filter(|line| line.starts_with("queue ")).nth(at).unwrap_or_default();
            let process = format!("/{} ({command})", waiters[at].pid());
            let is_right = line.starts_with(&format!("queue    {}. ", at + 1))
                && line.contains(&format!("{process}, since "));
            assert!(is_right, "{at}: {shown}");
        }
        first.send("go").expect("it reads");
        for waiter in &mut waiters {
            assert_eq!(status(waiter), Some(0));
        }
    }
}

#[test]
fn the_session_names_sixty_characters_of_the_first_word_of_a_command() {
    let fixture = Fixture::sqlite();
    let long = format!("./{}", "ä".repeat(100));
    std::os::unix::fs::symlink("/bin/sh", fixture.path(&long)).expect("it is created");
    for command in [&["run", "job"][..], &["lead", "leader"]] {
        let mut job =
            start(fixture.command(&[command, &["--", &long, "-c", "echo running; read line"]].concat()));
        expect(&mut job, "running");
        let shown = fixture.run(&["show", command[1], "--json"]).stdout;
        let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
        assert_eq!(shown["behind"]["labels"]["command"], format!("./{}", "ä".repeat(58)), "{shown}");
        job.send("go").expect("it reads");
        assert_eq!(status(&mut job), Some(0));
    }
    fixture.run(&["run", "job", "--label", "two\nlines", "--", "true"]).check(2, "control characters");
}

#[test]
fn a_waiter_for_permits_is_listed_with_their_number() {
    let fixture = Fixture::sqlite();
    let mut first = holder(&fixture, &["--permits", "3", "--take", "2"]);
    let mut waiter = fixture.start(&["--permits", "3", "--take", "2", "--label", "upload"], "true");
    until("it waits", || queue(&fixture).len() == 1);
    let waiting = queue(&fixture).remove(0);
    assert_eq!((&waiting["portion"], &waiting["count"]), (&"permits".into(), &2.into()), "{waiting}");
    let shown = fixture.run(&["show", "job"]).stdout;
    assert!(shown.contains(&format!("/{} (upload), for 2 permits", waiter.pid())), "{shown}");
    first.send("go").expect("it reads");
    assert_eq!(status(&mut waiter), Some(0));
}

#[test]
fn over_a_quorum_the_line_of_a_node_is_shown() {
    let servers = [(); 3].map(|()| RedisServer::start().expect("there is a server"));
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let fixture = Fixture::at(format!("redlock://{}?min_uptime=0s", hosts.join(",")));
    let mut first = holder(&fixture, &[]);
    let mut waiter = fixture.start(&[], "true");
    until("it waits", || queue(&fixture).len() == 1);
    let json = fixture.status();
    assert!(json["queue"][0]["since"].is_string() && json["queue"][0]["label"].is_null(), "{json}");
    first.send("go").expect("it reads");
    assert_eq!(status(&mut waiter), Some(0));
}

/// Runs the program at a terminal, while the lock is held for so long.
fn at_terminal(fixture: &Fixture, script: &str, held: Duration) -> Option<Outcome> {
    let command = terminal(fixture, script)?;
    let first = holder(fixture, &[]);
    let ended = std::thread::spawn(move || end_after(first, held));
    let outcome = finish_at_terminal(command);
    ended.join().expect("it ends");
    Some(outcome)
}

#[test]
fn at_a_terminal_a_line_says_which_client_has_the_lock() {
    let server = RedisServer::start().expect("there is a server");
    let held = Duration::from_millis(4_500);
    for command in ["run job -- echo mine", "acquire job --lease 1m --token-file t", "wait job"] {
        let fixture = Fixture::redis(&server);
        server.cli(&["FLUSHALL"]).expect("it answers");
        let Some(outcome) = at_terminal(&fixture, &format!("exec $LEASEHOLD {command}"), held) else {
            return;
        };
        assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
        let shown = &outcome.stdout;
        assert!(shown.contains("\rwaiting for job: held by ") && shown.contains(" (sh) for "), "{outcome:?}");
        if command.starts_with("run") {
            assert!(shown.contains(", you are next\u{1b}[K"), "{outcome:?}");
        }
        let (_, after) = shown.rsplit_once("waiting for job").expect("it is shown");
        let (_, after) = after.split_once("\u{1b}[K").expect("the line ends");
        assert!(after.starts_with("\r\u{1b}[K"), "the line is cleared: {outcome:?}");
        let lines = shown.matches("waiting for job").count();
        assert!((2..=6).contains(&lines), "about one a second, and none in the first: {outcome:?}");
    }
    let fixture = Fixture::redis(&server);
    server.cli(&["FLUSHALL"]).expect("it answers");
    let mut leader = start(fixture.command(&["lead", "job", "--", "sh", "-c", "echo leading; read line"]));
    expect(&mut leader, "leading");
    let line = "waiting for job: held by ";
    let command = recorded_terminal(&fixture, "exec $LEASEHOLD lead job -- true", "shown");
    let Some(command) = command else { return };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // The file begins with the terminal.
            let shown = || std::fs::read(fixture.path("shown")).unwrap_or_default();
            until("it says what it waits for", || String::from_utf8_lossy(&shown()).contains(line));
            end_after(leader, Duration::ZERO);
        });
        let outcome = finish_at_terminal(command);
        assert!(outcome.status.success() && outcome.stdout.contains(line), "{outcome:?}");
    });
}

#[test]
fn the_line_fits_the_terminal_and_escapes_what_it_would_interpret() {
    let fixture = Fixture::sqlite();
    let name = "a\u{202e}long\u{200b}name of a lock";
    let mut first = start(fixture.command(&["run", name, "--", "sh", "-c", "echo running; sleep 3"]));
    expect(&mut first, "running");
    let script = format!("stty cols 40 rows 10; exec $LEASEHOLD run '{name}' -- true");
    let Some(command) = terminal(&fixture, &script) else { return };
    let outcome = finish_at_terminal(command);
    let line = outcome.stdout.split("\u{1b}[K").find(|line| line.contains("waiting for")).unwrap_or_default();
    assert_eq!(
        line.trim_start_matches(['\r', '\n']),
        "waiting for a\\u{202e}long\\u{200b}name …",
        "{outcome:?}"
    );
    assert_eq!(status(&mut first), Some(0));
}

#[test]
fn nothing_is_shown_in_the_first_second_with_quiet_or_without_a_terminal() {
    let fixture = Fixture::sqlite();
    for (script, held) in [
        ("exec $LEASEHOLD run job -- true", 300),
        ("exec $LEASEHOLD run job --quiet -- true", 2_500),
        ("TERM=dumb exec $LEASEHOLD run job -- true", 2_500),
        ("exec $LEASEHOLD run job -- true 2> errors", 2_500),
        ("exec $LEASEHOLD run job --log-format json -- true", 2_500),
    ] {
        let Some(outcome) = at_terminal(&fixture, script, Duration::from_millis(held)) else { return };
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(0), ""), "{script}");
    }
    assert_eq!(fixture.read("errors"), "");
}

#[test]
fn the_log_says_once_which_client_has_the_lock() {
    let fixture = Fixture::sqlite();
    let first = holder(&fixture, &[]);
    let ended = std::thread::spawn(move || end_after(first, Duration::from_secs(4)));
    let outcome = fixture.run(&["run", "job", "-v", "--", "true"]);
    ended.join().expect("it ends");
    outcome.check(0, "INFO leasehold::lock::waiting: waiting for job: held by ");
    assert_eq!(outcome.stderr.matches("waiting for job").count(), 1, "{outcome:?}");
}

/// What cron would mail is what a job prints.
#[test]
fn a_quiet_job_prints_nothing_when_it_works_or_when_another_holds_the_lock() {
    let server = RedisServer::start().expect("there is a server");
    // Not the fixture's URL: the warnings about this server are not accepted.
    let unaccepted = server.url();
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let quiet = |options: &[&str]| {
            let mut command =
                fixture.command(&[&["run", "job", "--quiet"], options, &["--", "true"]].concat());
            if fixture.url().starts_with("redis") {
                command.env("LEASEHOLD_STORE", &unaccepted);
            }
            finish(command, "")
        };
        let check = |outcome: Outcome, status: i32| {
            let printed = (outcome.stdout.as_str(), outcome.stderr.as_str());
            assert_eq!((outcome.status.code(), printed), (Some(status), ("", "")));
        };
        check(quiet(&["--try"]), 0);
        check(quiet(&[]), 0);
        let mut first = holder(&fixture, &[]);
        check(quiet(&["--try"]), 75);
        check(quiet(&["--wait", "1200ms"]), 75);
        check(quiet(&["--try", "--conflict-exit-code", "0"]), 0);
        first.send("go").expect("it reads");
        assert_eq!(status(&mut first), Some(0));
    }
}

#[test]
fn a_quiet_job_reports_its_own_failures_and_keeps_the_output_of_its_command() {
    let fixture = Fixture::sqlite();
    let outcome = fixture.run(&["run", "job", "-q", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(
        (outcome.status.code(), outcome.stdout.as_str(), outcome.stderr.as_str()),
        (Some(3), "out\n", "err\n")
    );
    fixture.run(&["run", "job", "-q", "--", "./missing"]).check(127, "failed to start the command");
    fixture.run(&["run", "job", "-q", "--store", "redis://127.0.0.1:1", "--", "true"]).check(69, "failed");
}
