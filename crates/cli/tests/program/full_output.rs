//! Standard output that cannot be written: a full disk behind it, or `/dev/full`.

use super::fixture::{Fixture, Outcome};
use leasehold_testkit::RedisServer;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

const ACQUIRE: [&str; 6] = ["acquire", "job", "--lease", "60s", "--token-file", "token"];

/// Runs the program with a standard output on which every write fails.
fn run_into_full(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    let full = File::options().write(true).open("/dev/full").expect("there is /dev/full");
    let mut command = fixture.command(arguments);
    let output = command.stdout(full).output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

#[test]
fn a_lock_whose_token_cannot_be_printed_is_given_back() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        for options in [&[][..], &["--json"]] {
            let failed = run_into_full(&fixture, &[&ACQUIRE, options].concat());
            failed.check(69, "failed to acquire `job`: failed to write to standard output");
            assert_eq!(failed.stderr.lines().count(), 1, "{failed:?}");
            assert!(!fixture.path("token").exists());
            assert_eq!(fixture.status()["held"], false);
        }
    }
}

#[test]
fn a_token_file_of_the_user_is_empty_again_after_the_lock_was_given_back() {
    let fixture = Fixture::sqlite();
    fs::write(fixture.path("token"), "").expect("written");
    fs::set_permissions(fixture.path("token"), Permissions::from_mode(0o600)).expect("changed");
    run_into_full(&fixture, &ACQUIRE).check(69, "failed to write to standard output");
    assert!(fixture.path("token").exists());
    assert_eq!(fixture.read("token"), "");
    fixture.run(&ACQUIRE).check(0, "");
}

#[test]
fn an_extension_that_cannot_be_reported_is_a_failure_and_takes_nothing_away() {
    let fixture = Fixture::sqlite();
    fixture.run(&ACQUIRE).check(0, "");
    let extend = ["extend", "--token-file", "token", "--lease", "2m"];
    run_into_full(&fixture, &extend).check(0, "");
    let failed = run_into_full(&fixture, &[&extend[..], &["--json"]].concat());
    failed.check(69, "failed to report the extension of `job`: failed to write to standard output");
    assert_eq!(fixture.status()["held"], true);
    fixture.run(&["release", "--token-file", "token"]).check(0, "");
}

#[test]
fn what_is_only_printed_fails_if_it_cannot_be() {
    let fixture = Fixture::sqlite();
    let commands: [&[&str]; 9] = [
        &["show", "job"],
        &["show", "job", "--json"],
        &["ls"],
        &["ls", "--sessions"],
        &["free", "job", "--yes"],
        &["wait", "job", "--json"],
        &["doctor"],
        &["--version"],
        &["help", "run"],
    ];
    for arguments in commands {
        run_into_full(&fixture, arguments).check(69, "failed to write to standard output");
    }
}
