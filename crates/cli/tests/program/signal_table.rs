//! The table of signals and streams in docs/reference/program.md, line by line: each line names its tests, most of which
//! are here.

use super::fixture::{Fixture, LIMIT, expect, finish, signal, start, status, until};
use leasehold_testkit::{Proxy, RedisServer, Worker, any_command};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The termination signals, with the status of a program that ends because of one.
const TERMINATION: [(&str, i32); 4] = [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131)];

const USER_DEFINED: [&str; 2] = ["USR1", "USR2"];

/// The three commands that wait for a lock, with a directory and store each, where a worker holds the lock.
fn waits() -> [(Fixture, Worker, Vec<&'static str>); 3] {
    let hold = "echo running; read line";
    let acquire = vec!["acquire", "job", "--lease", "1m", "--token-file", "token"];
    [
        ("run", vec!["run", "job", "--", "echo", "never"]),
        ("lead", vec!["lead", "job", "--", "echo", "never"]),
        ("run", acquire),
    ]
    .map(|(holder, waiter)| {
        let fixture = Fixture::sqlite();
        let mut holder = start(fixture.command(&[holder, "job", "--", "sh", "-c", hold]));
        expect(&mut holder, "running");
        (fixture, holder, waiter)
    })
}

/// Starts a program that waits for the lock. It leads a process group, which the kernel lets stop: its parent is in the
/// same session.
fn start_waiter(fixture: &Fixture, arguments: &[&str]) -> Worker {
    let mut command = fixture.command(arguments);
    command.process_group(0);
    let waiter = start(command);
    until("it waits", || fixture.status()["waiting"] == 1);
    waiter
}

/// Lets the holder end, and checks that the lock is free.
fn end_holder(mut holder: Worker, fixture: &Fixture) {
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    assert_eq!(fixture.status()["held"], false);
}

fn is_stopped(pid: impl std::fmt::Display) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Stops a program by Ctrl-Z, and continues it.
fn stop_and_continue(pid: u32) {
    signal(pid, "TSTP");
    until("it is stopped", || is_stopped(pid));
    signal(pid, "CONT");
    until("it continues", || !is_stopped(pid));
}

#[test]
fn a_termination_signal_ends_a_wait_and_leaves_the_queue() {
    for (fixture, holder, arguments) in waits() {
        for (name, code) in TERMINATION {
            let mut waiter = start_waiter(&fixture, &arguments);
            signal(waiter.pid(), name);
            assert_eq!(status(&mut waiter), Some(code), "{arguments:?} {name}");
            assert_eq!(fixture.status()["waiting"], 0, "{arguments:?} {name}");
            assert!(!fixture.path("token").exists(), "{name}");
        }
        end_holder(holder, &fixture);
    }
}

#[test]
fn user_signals_do_not_end_a_wait() {
    for (fixture, holder, arguments) in waits() {
        let mut waiter = start_waiter(&fixture, &arguments);
        for name in USER_DEFINED {
            signal(waiter.pid(), name);
        }
        assert_eq!(fixture.status()["waiting"], 1, "{arguments:?}");
        signal(waiter.pid(), "TERM");
        assert_eq!(status(&mut waiter), Some(143), "{arguments:?}");
        end_holder(holder, &fixture);
    }
}

#[test]
fn a_wait_can_be_stopped_and_continued() {
    for (fixture, holder, arguments) in waits() {
        let mut waiter = start_waiter(&fixture, &arguments);
        stop_and_continue(waiter.pid());
        assert_eq!(fixture.status()["waiting"], 1, "{arguments:?}");
        signal(waiter.pid(), "TERM");
        assert_eq!(status(&mut waiter), Some(143), "{arguments:?}");
        end_holder(holder, &fixture);
    }
}

#[test]
fn a_wait_that_is_stopped_until_its_session_lapses_queues_again() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let waits: [&[&str]; 2] = [
        &["run", "job", "--session", "1s", "--", "echo", "acquired"],
        &["lead", "job", "--session", "1s", "--", "sh", "-c", "echo acquired; exec sleep 60"],
    ];
    for arguments in waits {
        let mut holder =
            start(fixture.command(&[arguments[0], "job", "--", "sh", "-c", "echo running; read line"]));
        expect(&mut holder, "running");
        let mut waiter = start_waiter(&fixture, arguments);
        let sessions = || {
            let listed = fixture.run(&["ls", "--sessions", "--json"]);
            listed.check(0, "");
            listed.stdout.lines().count()
        };
        let before = sessions();
        signal(waiter.pid(), "TSTP");
        until("its session has lapsed", || sessions() < before);
        assert!(is_stopped(waiter.pid()), "{arguments:?}");
        signal(waiter.pid(), "CONT");
        until("it waits again, with another session", || {
            sessions() == before && fixture.status()["waiting"] == 1
        });
        holder.send("go").expect("it reads");
        assert_eq!(status(&mut holder), Some(0));
        expect(&mut waiter, "acquired");
        if arguments[0] == "lead" {
            signal(waiter.pid(), "TERM");
            assert_eq!(status(&mut waiter), Some(143));
        } else {
            assert_eq!(status(&mut waiter), Some(0));
        }
    }
}

#[test]
fn a_leader_that_campaigns_again_can_be_stopped_and_continued() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let lead = ["lead", "job", "--kill-grace", "200ms", "--", "sh", "-c", "echo leads; exec sleep 60"];
    let mut command = fixture.command(&lead);
    command.process_group(0);
    let mut first = start(command);
    expect(&mut first, "leads");
    let mut second = start_waiter(&fixture, &lead);
    fixture.run(&["free", "job", "--yes"]).check(0, "");
    expect(&mut second, "leads");
    until("the first campaigns again", || fixture.status()["waiting"] == 1);
    stop_and_continue(first.pid());
    signal(second.pid(), "TERM");
    assert_eq!(status(&mut second), Some(143));
    expect(&mut first, "leads");
    signal(first.pid(), "TERM");
    assert_eq!(status(&mut first), Some(143));
}

#[test]
fn a_termination_signal_is_passed_on_and_the_lock_is_held_until_the_command_ends() {
    for subcommand in ["run", "lead"] {
        for (name, _) in TERMINATION {
            let fixture = Fixture::sqlite();
            let script = format!(
                "trap 'echo got {name}; read line; exit 3' {name}; echo running; while :; do sleep 0.01; done"
            );
            let mut job = start(fixture.command(&[subcommand, "job", "--", "sh", "-c", &script]));
            expect(&mut job, "running");
            signal(job.pid(), name);
            expect(&mut job, &format!("got {name}"));
            assert_eq!(fixture.status()["held"], true, "{subcommand} {name}");
            job.send("go").expect("it reads");
            assert_eq!(status(&mut job), Some(3), "{subcommand} {name}");
            assert_eq!(fixture.status()["held"], false, "{subcommand} {name}");
        }
    }
}

#[test]
fn user_signals_reach_the_command_and_end_nothing() {
    let fixture = Fixture::sqlite();
    let traps = "for s in USR1 USR2 WINCH; do trap \"echo got $s\" $s; done";
    let mut run = fixture.start(&[], &format!("{traps}; echo running; while :; do sleep 0.01; done"));
    expect(&mut run, "running");
    for name in ["USR1", "USR2", "WINCH"] {
        signal(run.pid(), name);
        expect(&mut run, &format!("got {name}"));
    }
    run.terminate().expect("it runs");
    assert_eq!(status(&mut run), Some(143));
}

/// `arguments` of the program in a session of its own, so without a controlling terminal. The process id is that of the
/// program, because `setsid` need not fork.
fn start_detached(fixture: &Fixture, arguments: &[&str]) -> Worker {
    start(wrapped(fixture, &["setsid"], arguments))
}

/// The program with `arguments`, started by another program, `wrapper`.
fn wrapped(fixture: &Fixture, wrapper: &[&str], arguments: &[&str]) -> Command {
    let program = fixture.command(arguments);
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(program.get_program()).args(program.get_args());
    command.current_dir(fixture.path(""));
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn without_a_terminal_only_the_command_stops_and_the_lock_is_renewed() {
    let server = RedisServer::start().expect("there is a server");
    let proxy = Proxy::to_server(&server).expect("there is a port");
    let (near, far) = (Fixture::redis(&server), Fixture::at(proxy.url()));
    let script = "echo pid $$; read line; exit 5";
    let options = ["run", "job", "--lease", "2s", "--", "sh", "-c", script];
    let mut run = start_detached(&far, &options);
    let command = expect(&mut run, "pid").trim().to_owned();
    signal(run.pid(), "TSTP");
    until("the command is stopped", || is_stopped(&command));
    let before = proxy.count("EVALSHA");
    // One for the heartbeat of the session, and more than one lease of renewals.
    until("the lock is renewed", || proxy.count("EVALSHA") > before + 4);
    assert!(is_stopped(&command) && !is_stopped(run.pid()));
    assert_eq!(near.status()["held"], true);
    signal(run.pid(), "CONT");
    run.send("go").expect("it reads");
    assert_eq!(status(&mut run), Some(5));
}

#[test]
fn a_program_in_a_session_of_its_own_waits_runs_and_releases() {
    let fixture = Fixture::sqlite();
    let mut first = start_detached(&fixture, &["run", "job", "--", "sh", "-c", "echo running; read line"]);
    expect(&mut first, "running");
    let script = "[ \"$(ps -o tty= -p $$ | tr -d ' ')\" = '?' ] && echo no terminal; read line; exit 5";
    let mut second = start_detached(&fixture, &["run", "job", "--", "sh", "-c", script]);
    until("it waits", || fixture.status()["waiting"] == 1);
    first.send("go").expect("it reads");
    assert_eq!(status(&mut first), Some(0));
    expect(&mut second, "no terminal");
    second.send("go").expect("it reads");
    assert_eq!(status(&mut second), Some(5));
    fixture.assert_free();
    let mut held = start_detached(&fixture, &["run", "job", "--", "sh", "-c", "echo running; read line"]);
    expect(&mut held, "running");
    let mut free = start_detached(&fixture, &["free", "job"]);
    assert_eq!(status(&mut free), Some(2), "there is no terminal to ask at");
    held.terminate().expect("it runs");
    assert_eq!(status(&mut held), Some(143));
}

#[test]
fn a_signal_during_the_release_changes_nothing() {
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "TSTP", "CONT"] {
        let server = RedisServer::start().expect("there is a server");
        let proxy = Proxy::to_server(&server).expect("there is a port");
        let fixture = Fixture::at(proxy.url());
        let mut run = fixture.start(&[], "echo pid $$; read line; exit 5");
        let command = expect(&mut run, "pid").trim().to_owned();
        proxy.pause_requests(usize::MAX, any_command());
        run.send("go").expect("it reads");
        until("the command was reaped", || !Path::new("/proc").join(&command).exists());
        signal(run.pid(), name);
        proxy.clear_faults();
        let _ = proxy.resume_requests();
        assert_eq!(status(&mut run), Some(5), "{name}");
        assert_eq!(Fixture::redis(&server).status()["held"], false, "{name}");
    }
}

#[test]
fn a_termination_signal_ends_the_monitor_with_success() {
    let fixture = Fixture::sqlite();
    for (name, _) in TERMINATION {
        let mut monitor = start(fixture.command(&["monitor"]));
        monitor.line(LIMIT).expect("it has started");
        signal(monitor.pid(), name);
        assert_eq!(status(&mut monitor), Some(0), "{name}");
    }
}

#[test]
fn a_termination_signal_ends_a_command_that_holds_nothing() {
    let fixture = Fixture::sqlite();
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    for (name, code) in TERMINATION {
        let mut wait = start(fixture.command(&["wait", "job"]));
        signal(wait.pid(), name);
        let ended = wait.wait(LIMIT).expect("it ends");
        assert_eq!(ended.signal(), Some(code - 128), "{ended}");
    }
    assert_eq!(fixture.status()["waiting"], 0);
    end_holder(holder, &fixture);
    // Commands that end by themselves, in the middle of a request.
    let server = RedisServer::start().expect("there is a server");
    let proxy = Proxy::to_server(&server).expect("there is a port");
    let fixture = Fixture::at(proxy.url());
    for arguments in [&["ls"][..], &["show", "job"], &["doctor"]] {
        for (name, code) in TERMINATION {
            proxy.pause_requests(usize::MAX, any_command());
            let mut command = start(fixture.command(arguments));
            until("it has sent a request", || proxy.paused_requests() > 0);
            signal(command.pid(), name);
            let ended = command.wait(LIMIT).expect("it ends");
            assert_eq!(ended.signal(), Some(code - 128), "{arguments:?} {name}: {ended}");
            proxy.clear_faults();
            proxy.disconnect();
            until("nothing is left of it", || proxy.paused_requests() == 0);
        }
    }
}

#[test]
fn closed_streams_are_the_null_device_for_the_command_too() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        // In a child: some shells redirect their own streams for a command that is not.
        let script = "(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 > fds) & wait; exit 5";
        let closed = |arguments: &[&str]| {
            let shell = ["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"];
            finish(wrapped(&fixture, &shell, arguments), "").status.code()
        };
        assert_eq!(closed(&["run", "job", "-vvv", "--", "sh", "-c", script]), Some(5));
        assert_eq!(fixture.read("fds"), "/dev/null\n".repeat(3));
        let token = ["--lease", "1m", "--token-file", "token"];
        assert_eq!(closed(&[&["acquire", "job"], &token[..]].concat()), Some(0));
        assert_eq!(fixture.status()["held"], true, "nothing was written into the store");
        assert_eq!(closed(&["show", "job"]), Some(0));
        assert_eq!(closed(&["run", "job", "--try", "--", "true"]), Some(75));
        assert_eq!(closed(&["release", "--token-file", "token"]), Some(0));
        fixture.assert_free();
    }
}

/// The writing end of a pipe whose reading end is closed.
fn pipe_without_reader() -> Stdio {
    let (_, writer) = std::io::pipe().expect("there are descriptors");
    writer.into()
}

#[test]
fn a_pipe_without_a_reader_is_no_failure() {
    let fixture = Fixture::sqlite();
    let commands: [&[&str]; 7] = [
        &["acquire", "job", "--lease", "1m", "--token-file", "token"],
        &["show", "job"],
        &["ls", "--json"],
        &["extend", "--token-file", "token", "--lease", "2m", "--json"],
        &["release", "--token-file", "token"],
        &["wait", "job", "--json"],
        &["help", "run"],
    ];
    for arguments in commands {
        let mut command = fixture.command(arguments);
        let output = command.stdout(pipe_without_reader()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
        if arguments[0] == "acquire" {
            assert_eq!(fixture.status()["held"], true, "a lock whose token is in its file is held");
        }
    }
}

#[test]
fn the_command_gets_the_signal_of_a_broken_pipe() {
    let fixture = Fixture::sqlite();
    let mut command = fixture.command(&["run", "job", "--", "yes"]);
    let output = command.stdout(pipe_without_reader()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(141), "{output:?}");
    fixture.assert_free();
}

#[test]
fn messages_that_cannot_be_written_change_nothing() {
    let fixture = Fixture::sqlite();
    let check = |arguments: &[&str], expected: i32| {
        for stderr in [pipe_without_reader(), full()] {
            let mut command = fixture.command(arguments);
            let output = command.stderr(stderr).output().expect("it starts");
            assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {output:?}");
        }
    };
    for verbose in ["--log-format=text", "--log-format=json", "-vvv"] {
        check(&["run", "job", verbose, "--", "sh", "-c", "exit 5"], 5);
        check(&["run", "job", verbose, "--json", "--", "sh", "-c", "exit 5"], 5);
        check(&["run", "job", verbose, "--", "/no/such/program"], 127);
        check(&["show", "job", verbose, "--store", "what://is"], 2);
    }
    check(&["no-such-command"], 2);
    fixture.assert_free();
}

fn full() -> Stdio {
    fs::File::options().write(true).open("/dev/full").expect("there is /dev/full").into()
}

/// The rows of the table in the page, each with its tests.
fn rows() -> Vec<(String, BTreeSet<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/program.md");
    let page = fs::read_to_string(page).expect("there is a page");
    let (_, section) = page.split_once("## Signals and streams\n").expect("there is a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let row = |line: &str| {
        let tests = line.rsplit('|').nth(1).unwrap_or_default();
        (line.to_owned(), tests.split('`').skip(1).step_by(2).map(str::to_owned).collect())
    };
    rows.map(row).collect()
}

/// The names of the tests in a source.
fn tests(source: &str) -> BTreeSet<String> {
    let functions = source.split("#[test]\nfn ").skip(1);
    functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

#[test]
fn every_line_of_the_table_has_its_tests_and_every_test_here_its_line() {
    let mut others = BTreeSet::new();
    for file in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program")).expect("this directory")
    {
        let path = file.expect("a file").path();
        others.append(&mut tests(&fs::read_to_string(path).expect("a source")));
    }
    let rows = rows();
    assert!(rows.len() >= 17, "{rows:?}");
    for (row, named) in &rows {
        assert!(!named.is_empty(), "no test: {row}");
        let missing: Vec<_> = named.difference(&others).collect();
        assert!(missing.is_empty(), "no such test: {missing:?} in {row}");
    }
    let named: BTreeSet<_> = rows.into_iter().flat_map(|(_, named)| named).collect();
    let mut here = tests(include_str!("signal_table.rs"));
    here.remove("every_line_of_the_table_has_its_tests_and_every_test_here_its_line");
    let unnamed: Vec<_> = here.difference(&named).collect();
    assert!(unnamed.is_empty(), "without a line in the table: {unnamed:?}");
}
