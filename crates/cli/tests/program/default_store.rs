//! The store without `--store` and `LEASEHOLD_STORE`: one for each user, whatever the environment is.
//!
//! No test here writes to the default store of the user who runs the tests.

use super::fixture::{Fixture, Outcome, finish};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// `where` without a store, with variables of the environment.
fn default_store(fixture: &Fixture, variables: &[(&str, &str)]) -> Outcome {
    default_store_with(fixture, variables, &[])
}

/// The same, with options.
fn default_store_with(fixture: &Fixture, variables: &[(&str, &str)], options: &[&str]) -> Outcome {
    let mut command = fixture.command(&[&["where"], options].concat());
    for name in ["LEASEHOLD_STORE", "HOME", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    finish(command, "")
}

#[test]
fn the_environment_does_not_change_the_default_store() {
    let fixture = Fixture::sqlite();
    let wanted = default_store(&fixture, &[]);
    wanted.check(0, "");
    assert!(wanted.stdout.starts_with("sqlite:/") && wanted.stdout.ends_with("/locks.db\n"), "{wanted:?}");
    let other = fixture.path("home");
    let other = other.to_str().expect("a plain path");
    for variables in [
        &[("HOME", other)][..],
        &[("HOME", "")],
        &[("XDG_STATE_HOME", other)],
        &[("HOME", "/nonexistent"), ("XDG_STATE_HOME", other), ("USER", "daemon"), ("LOGNAME", "daemon")],
        &[("LEASEHOLD_STORE", "")],
    ] {
        let found = default_store(&fixture, variables);
        found.check(0, "");
        assert_eq!(found.stdout, wanted.stdout, "{variables:?}");
    }
    assert!(!fixture.path("home").exists(), "nothing is created");
}

#[test]
fn a_file_of_an_earlier_version_is_reported() {
    let fixture = Fixture::sqlite();
    let home = fixture.path("home");
    let earlier = home.join(".local/state/leasehold/locks.db");
    fs::create_dir_all(earlier.parent().expect("it has one")).expect("it can be created");
    fs::write(&earlier, "").expect("it can be written");
    let home = home.to_str().expect("a plain path");
    let by_xdg = format!("{home}/.local/state");
    for variables in [[("HOME", home)], [("XDG_STATE_HOME", &by_xdg)]] {
        let found = default_store(&fixture, &variables);
        found.check(0, &format!("kept the locks of this user in `{}`", earlier.display()));
        found.check(0, "remove that file once no process uses it");
        assert_eq!(found.stdout.lines().count(), 1, "{found:?}");
        let quiet = default_store_with(&fixture, &variables, &["--quiet"]);
        quiet.check(0, "");
        assert_eq!(
            (&*quiet.stdout, &*quiet.stderr),
            (&*found.stdout, ""),
            "the exception that its help names"
        );
    }
    let help = fixture.run(&["where", "--help"]).stdout;
    assert!(help.contains("warns of it, on\n  standard error, except with --quiet"), "{help}");
}

#[test]
fn where_prints_the_store_of_the_options_or_of_the_environment() {
    let fixture = Fixture::sqlite();
    let file = format!("sqlite:{}\n", fixture.path("locks.db").display());
    let check = |arguments: &[&str], wanted: &str| {
        let found = fixture.run(&[&["where"], arguments].concat());
        found.check(0, "");
        assert_eq!((&*found.stdout, &*found.stderr), (wanted, ""), "{arguments:?}");
    };
    check(&[], &file);
    check(&["--store", "redis://user@h:7/1"], "redis://user@h:7/1\n");
    check(&["--store", "redis://h?prefix=a:", "--prefix", "b:"], "redis://h?prefix=b:\n");
    check(&["--store", "redlock://a,b,c", "--prefix", "b:"], "redlock://a,b,c?prefix=b:\n");
    // The same text in another directory would be another store.
    check(&["--store", "sqlite:locks.db"], &file);

    let mut secret = fixture.command(&["where"]);
    secret.env("LEASEHOLD_STORE", "rediss://u:hunter2@h?ca=/ca");
    assert_eq!(finish(secret, "").stdout, "rediss://u@h?ca=/ca\n");
    fixture.run(&["where", "--store", "memory:"]).check(2, "no other process would see its locks");
    fixture.run(&["where", "--prefix", "a:"]).check(2, "it is for Redis");
}

/// A shell script as root of a namespace whose `/var/lib` is a directory of the test; `None` if that is not permitted.
fn as_root(fixture: &Fixture, script: &str) -> Option<Command> {
    let namespace = ["--user", "--map-root-user", "--mount"];
    let mounted = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(namespace).args(["sh", "-c", &format!("mount --bind lib /var/lib && {script}")]);
        command.current_dir(fixture.path("")).env_remove("LEASEHOLD_STORE");
        command
    };
    fs::create_dir_all(fixture.path("lib")).expect("it can be created");
    if !mounted("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: `unshare --mount` is not permitted here");
        return None;
    }
    Some(mounted(script))
}

#[test]
fn jobs_of_root_exclude_each_other_however_they_are_started() {
    let fixture = Fixture::sqlite();
    let Some(mut command) = as_root(
        &fixture,
        "HOME=$PWD $PROGRAM run job -- env -u HOME XDG_STATE_HOME=$PWD $PROGRAM run job --try -- echo both",
    ) else {
        return;
    };
    command.env("PROGRAM", env!("CARGO_BIN_EXE_leasehold"));
    let outcome = finish(command, "");
    outcome.check(75, "held by ");
    assert_eq!(outcome.stdout, "");
    let mode = |path| fs::metadata(fixture.path(path)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode("lib/leasehold"), 0o700);
    assert_eq!(mode("lib/leasehold/locks.db"), 0o600);
}

#[test]
fn a_command_that_uses_the_default_store_warns_in_one_line() {
    let fixture = Fixture::sqlite();
    let Some(mut command) = as_root(
        &fixture,
        "mkdir -p .local/state/leasehold && touch .local/state/leasehold/locks.db && HOME=$PWD $PROGRAM run job -- echo hi",
    ) else {
        return;
    };
    command.env("PROGRAM", env!("CARGO_BIN_EXE_leasehold"));
    let outcome = finish(command, "");
    outcome.check(0, "/.local/state/leasehold/locks.db`, and locks there do not exclude those in `/var/lib/leasehold/locks.db`");
    assert_eq!((outcome.stderr.lines().count(), &*outcome.stdout), (1, "hi\n"), "{outcome:?}");
}
