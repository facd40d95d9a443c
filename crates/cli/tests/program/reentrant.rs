//! Reentrant locks, acquired again by nested commands.

use super::fixture::{Fixture, expect, finish, runs, signal, start, status, until};
use leasehold_testkit::{RedisServer, Worker};
use serde_json::Value;
use std::process::Command;

/// Runs a case with a file and with a server.
fn on_both(case: impl Fn(&Fixture)) {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        case(&fixture);
    }
}

/// `run` with a shell script as the command, which finds the program in `$LEASEHOLD`.
fn command(fixture: &Fixture, options: &[&str], script: &str) -> Command {
    let mut command = fixture.command(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat());
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    command
}

fn running(fixture: &Fixture, options: &[&str]) -> Worker {
    let mut holder = start(command(fixture, options, "echo running; read line"));
    expect(&mut holder, "running");
    holder
}

fn end(mut worker: Worker) {
    worker.send("go").expect("it reads");
    assert_eq!(status(&mut worker), Some(0));
}

#[test]
fn a_nested_command_enters_the_lock_of_its_parent() {
    on_both(|fixture| {
        // Only the outermost command is given an owner.
        let look = r#"echo "$0 $LEASEHOLD_FENCE $LEASEHOLD_OWNER"; $LEASEHOLD show job --json"#;
        let nest = |script: &str, depth: &str| {
            format!("{look}; exec $LEASEHOLD run job --reentrant -- sh -c '{script}' {depth}")
        };
        std::fs::write(fixture.path("third"), look).expect("the directory is ours");
        std::fs::write(fixture.path("second"), nest(". ./third", "third")).expect("the directory is ours");
        let outcome = finish(command(fixture, &["--reentrant"], &nest(". ./second", "second")), "");
        outcome.check(0, "");
        assert_eq!(outcome.stderr, "");
        let lines: Vec<_> = outcome.stdout.lines().collect();
        assert_eq!(lines.len(), 6, "{outcome:?}");
        let words: Vec<Vec<_>> = lines.iter().step_by(2).map(|line| line.split(' ').collect()).collect();
        assert_eq!((words[0][0], words[1][0], words[2][0]), ("sh", "second", "third"));
        for (count, line) in (1..).zip(lines.iter().skip(1).step_by(2)) {
            let shown: Value = serde_json::from_str(line).expect("it is JSON");
            assert_eq!((&shown["kind"], &shown["count"]), (&"reentrant".into(), &count.into()), "{shown}");
            let [_, fence, owner] = words[count - 1][..] else { panic!("{line}") };
            assert_eq!((&shown["owner"], shown["fence"].to_string()), (&owner.into(), fence.to_owned()));
            assert_eq!(words[count - 1][1..], words[0][1..], "one stay, one owner, one token");
        }
        assert_eq!(fixture.status()["held"], false);
        // The next run has another owner.
        let next = finish(command(fixture, &["--reentrant"], "echo $LEASEHOLD_OWNER"), "");
        next.check(0, "");
        assert_ne!(next.stdout.trim(), words[0][2]);
    });
}

#[test]
fn another_owner_waits() {
    on_both(|fixture| {
        let holder = running(fixture, &["--reentrant"]);
        for options in [&["--reentrant", "--try"][..], &["--owner", "another", "--try"]] {
            finish(command(fixture, options, "echo never"), "").check(75, "held by ");
        }
        let mut waiter = start(command(fixture, &["--owner", "another"], "echo mine $LEASEHOLD_OWNER"));
        until("it waits", || fixture.status()["waiting"] == 1);
        end(holder);
        assert_eq!(expect(&mut waiter, "mine"), "another");
        assert_eq!(status(&mut waiter), Some(0));
    });
}

#[test]
fn two_commands_of_one_owner_run_at_once_and_release_their_own_holds() {
    on_both(|fixture| {
        let first = running(fixture, &["--owner", "ci 4711/ü"]);
        let second = running(fixture, &["--owner", "ci 4711/ü"]);
        // An owner from the environment, which `--owner` overrides.
        let mut third = command(fixture, &["--reentrant", "--json"], "true");
        third.env("LEASEHOLD_OWNER", "ci 4711/ü");
        let third = finish(third, "");
        third.check(0, "");
        let report: Value = serde_json::from_str(&third.stderr).expect("one line of JSON");
        assert_eq!(report["count"], 3, "{report}");
        assert!(!third.stderr.contains("4711"), "no report contains the owner: {third:?}");
        let mut other = command(fixture, &["--owner", "another", "--try"], "echo never");
        other.env("LEASEHOLD_OWNER", "ci 4711/ü");
        finish(other, "").check(75, "held by");
        let shown = fixture.status();
        assert_eq!((&shown["owner"], &shown["count"]), (&"ci 4711/ü".into(), &2.into()), "{shown}");
        end(second);
        let shown = fixture.status();
        assert_eq!((&shown["held"], &shown["count"]), (&true.into(), &1.into()), "{shown}");
        finish(command(fixture, &["--reentrant", "--try"], "echo never"), "").check(75, "held by");
        end(first);
        assert_eq!(fixture.status()["held"], false);
    });
}

#[test]
fn a_killed_nested_command_leaves_the_lock_to_its_parent() {
    on_both(|fixture| {
        let inner = "$LEASEHOLD run job --reentrant --lease 1s -- sh -c 'echo inner $PPID $$; exec sleep 60'";
        let script = format!("{inner}; echo outer goes on; read line");
        let mut outer = start(command(fixture, &["--reentrant"], &script));
        let pids = expect(&mut outer, "inner");
        let (program, child) = pids.split_once(' ').expect("two numbers");
        assert_eq!(fixture.status()["count"], 2);
        signal(program, "KILL");
        expect(&mut outer, "outer goes on");
        until("the kernel kills its command", || !runs(child));
        // Its own lease ends it, not the 30 s of the outer one.
        let killed_at = std::time::Instant::now();
        until("its entry ends", || fixture.status()["count"] == 1);
        assert!(killed_at.elapsed() < std::time::Duration::from_secs(5), "{:?}", killed_at.elapsed());
        finish(command(fixture, &["--reentrant", "--try"], "echo never"), "").check(75, "held by");
        end(outer);
        assert_eq!(fixture.status()["held"], false);
    });
}

/// The hold of an owner from the environment does not belong to the session of `run`: it is not evicted with that
/// session, and an outage longer than the session does not end it.
#[test]
fn an_inherited_owner_has_no_session() {
    on_both(|fixture| {
        let mut inherited = command(fixture, &["--reentrant"], "echo running; read line");
        inherited.env("LEASEHOLD_OWNER", "from elsewhere");
        let mut inherited = start(inherited);
        expect(&mut inherited, "running");
        assert!(fixture.status()["behind"].is_null(), "{}", fixture.status());
        end(inherited);
        let own = running(fixture, &["--owner", "given"]);
        assert_eq!(fixture.status()["behind"]["pid"], own.pid());
        end(own);
    });
}

#[test]
fn the_kinds_are_distinguished() {
    on_both(|fixture| {
        let holder = running(fixture, &["--owner", "me"]);
        fixture.script(&["--try"], "echo never").check(65, "`leasehold run --reentrant` or `--owner ID`");
        let text = fixture.run(&["show", "job"]).stdout;
        for line in ["kind     reentrant\n", "owner    me, once\n"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        until("it is listed", || fixture.run(&["ls"]).stdout.contains("job   reentrant  "));
        let row: Value =
            serde_json::from_str(&fixture.run(&["ls", "--json"]).stdout).expect("one line of JSON");
        assert_eq!(
            (&row["kind"], &row["owner"], &row["count"]),
            (&"reentrant".into(), &"me".into(), &1.into())
        );
        end(holder);
        let mut plain = fixture.start(&[], "echo running; read line");
        expect(&mut plain, "running");
        let refused = finish(command(fixture, &["--reentrant", "--try"], "echo never"), "");
        refused.check(65, "acquires without --reentrant, --owner");
        assert_eq!(fixture.status()["kind"], "mutex");
        end(plain);
    });
}

#[test]
fn a_lock_that_was_entered_often_is_freed_as_a_whole() {
    on_both(|fixture| {
        let mut runs = [running(fixture, &["--owner", "me"]), running(fixture, &["--owner", "me"])];
        let freed = fixture.run(&["free", "job", "--yes", "--json", "--label", "ticket 4711"]);
        freed.check(0, "");
        let report: Value = serde_json::from_str(&freed.stdout).expect("one line of JSON");
        assert_eq!((&report["freed"], &report["kind"]), (&true.into(), &"reentrant".into()), "{report}");
        assert_eq!((&report["owner"], &report["count"]), (&"me".into(), &2.into()), "{report}");
        for run in &mut runs {
            assert_eq!(status(run), Some(70));
        }
        // It is free, and its last state is of that kind.
        let shown = fixture.status();
        assert_eq!((&shown["kind"], &shown["held"]), (&"reentrant".into(), &false.into()), "{shown}");
        assert_eq!(shown["audit"][0]["by"], "ticket 4711", "{shown}");
        assert_eq!(fixture.run(&["free", "job", "--yes"]).stdout, "`job` is already free\n");
        fixture.assert_free();
    });
}

#[test]
fn an_invalid_owner_of_the_environment_is_reported_and_not_shown() {
    let fixture = Fixture::sqlite();
    for text in ["leasehold", "two\nlines of hunter2"] {
        let mut run = command(&fixture, &["--reentrant"], "echo ran");
        run.env("LEASEHOLD_OWNER", text);
        let outcome = finish(run, "");
        outcome.check(2, "the environment variable LEASEHOLD_OWNER contains no owner: unset it");
        assert!(outcome.stdout.is_empty() && !outcome.stderr.contains("hunter2"), "{outcome:?}");
        // A plain run ignores the variable, and passes it on to its command.
        let mut plain = command(&fixture, &[], "echo \"$LEASEHOLD_OWNER\"");
        plain.env("LEASEHOLD_OWNER", text);
        assert_eq!(finish(plain, "").stdout.trim_end(), text);
    }
    let mut empty = command(&fixture, &["--reentrant"], "echo $LEASEHOLD_OWNER");
    empty.env("LEASEHOLD_OWNER", "");
    assert!(finish(empty, "").stdout.trim_end().ends_with(":1"), "a new one");
}
