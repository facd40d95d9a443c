//! Invalid input ends with 2 and a reason; a store that cannot be reached, with 69.

use super::fixture::Fixture;
use leasehold_testkit::{RedisServer, Stopwatch};
use std::time::Duration;

#[test]
fn what_cannot_be_used_ends_with_2_and_a_reason() {
    let fixture = Fixture::sqlite();
    let check = |arguments: &[&str], reason| {
        let outcome = fixture.run(arguments);
        outcome.check(2, reason);
        outcome.check(2, "leasehold: ");
        assert_eq!(outcome.stdout, "", "the command did not run");
    };
    let run = |options: &[&str], reason| {
        check(&[&["run", "job"], options, &["--", "echo", "ran"]].concat(), reason);
    };
    check(&["run", "", "--", "echo", "ran"], "a lock name needs at least one character");
    check(&["run", "a\nb", "--", "echo", "ran"], "no control characters");
    check(&["run", &"x".repeat(513), "--", "echo", "ran"], "at most 512 bytes");
    check(&["show", ""], "a lock name needs at least one character");
    check(&["run", "job"], "the command is missing");
    check(&["run", "job", "--"], "the command is missing after `--`");
    // Without `--`, all three words are names of locks.
    check(&["run", "job", "echo", "ran"], "the `--` before the command is missing");
    check(&["walk"], "unrecognized subcommand");
    run(&["--store", "postgres://h"], "there is no store of its scheme");
    run(&["--store", "locks.db"], "it has no scheme");
    run(&["--store", "sqlite:"], "needs the path of a file");
    run(&["--store", "sqlite:no/such/dir/locks.db"], "its directory does not exist");
    run(&["--store", "redis://"], "the URL names no host");
    run(&["--store", "redis://h:x"], "is not a port");
    run(&["--store", "redis://h?strict=yes"], "`strict` is 1 or 0");
    check(&["doctor", "--store", "memory:"], "so no other process would see its locks");
    check(&["doctor", "job"], "unexpected argument 'job'");
    run(&["--store", "redis://h?ca=f"], "without TLS no certificate is checked");
    run(&["--store", "rediss://h?cert=f"], "`cert` and `key` go together");
    run(
        &["--store", "rediss://h?ca=missing"],
        "the root certificate, `missing`, cannot be read: No such file",
    );
    run(&["--prefix", "app:"], "these are for Redis");
    run(&["--password-file", "missing"], "failed to read the password from `missing`");
    run(&["--lease", "30"], "30 has no unit");
    run(&["--lease", "soon"], "write numbers with units");
    run(&["--wait", "1.5x"], "write numbers with units");
    run(&["--kill-grace", "-1s"], "unexpected argument");
    run(&["--lease", "0s"], "too short");
    run(&["--lease", "400d"], "at most 366 days");
    run(&["--lease", "5s", "--kill-grace", "5s"], "is not shorter than the lease of 5s");
    run(&["--kill-grace", "30s"], "is not shorter than the lease of 30s");
    run(&["--lease", "10s", "--kill-grace", "9900ms"], "leaves no time to renew");
    run(&["--try", "--wait", "1s"], "cannot be used with");
    run(&["--conflict-exit-code", "256"], "--conflict-exit-code");
    run(&["--log-format", "xml"], "--log-format");
    run(&["--session", "1s", "--no-session"], "cannot be used with");
    run(&["--owner", ""], "invalid --owner: an owner has 1 to 256 bytes");
    run(&["--owner", &"x".repeat(257)], "this text of 257 bytes is none");
    run(&["--owner", "leasehold"], "the one text that no owner can have");
    check(&["run", "a", "b", "--reentrant", "--", "echo", "ran"], "take one lock, and 2 are named");
    check(&["run", "a", "a", "--owner", "me", "--", "echo", "ran"], "or nest them");
    run(&["--shared", "--exclusive"], "cannot be used with");
    run(&["--shared", "--permits", "2"], "cannot be used with");
    run(&["--exclusive", "--permits", "2"], "cannot be used with");
    run(&["--permits", "2", "--reentrant"], "cannot be used with");
    run(&["--permits", "2", "--owner", "me"], "cannot be used with");
    run(&["--permits", "0"], "--permits");
    run(&["--take", "2"], "--permits");
    run(&["--permits", "2", "--take", "3"], "--take 3 is more than --permits 2");
    check(&["run", "a", "b", "--shared", "--", "echo", "ran"], "take one lock, and 2 are named");
    check(&["acquire", "job", "--shared"], "unexpected argument '--shared'");
    check(&["ls", "--store", "sqlite:no/such/dir/locks.db"], "its directory does not exist");
    check(&["free", "job"], "cannot ask for confirmation");
    check(&["free", "", "--yes"], "a lock name needs at least one character");
    check(&["monitor", "--every", "2"], "2 has no unit");
    run(&["--bogus"], "unexpected argument '--bogus'");
}

#[test]
fn help_and_version_are_no_errors() {
    let fixture = Fixture::sqlite();
    for (arguments, text) in [
        (&["--help"][..], "leasehold run nightly -- ./backup.sh"),
        (&["run", "--help"], "leasehold run uploads --permits 3 -- ./upload.sh"),
        (&["help", "run"], "Exit status:"),
        (&["help", "run"], "Once per period:"),
        (&["help", "where"], "redis+sentinel://a,b,c/name"),
        (&["show", "--help"], "remaining_ms"),
        (&["ls", "--help"], "goes through the server's keys"),
        (&["free", "--help"], "Take a lock from its holder by force"),
        (&["monitor", "--help"], "contrib/systemd/leasehold-monitor.service"),
        (&["doctor", "--help"], "78  there is a warning"),
        (&["acl", "--help"], "leasehold acl --prefix app: --user app"),
        (&["--version"], concat!("leasehold ", env!("CARGO_PKG_VERSION"))),
    ] {
        let outcome = fixture.run(arguments);
        outcome.check(0, "");
        assert!(outcome.stdout.contains(text), "{outcome:?}");
    }
}

#[test]
fn a_store_that_is_not_there_ends_with_69_in_time() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let check = |reason, arguments: &[&str]| {
        let watch = Stopwatch::start();
        let outcome = fixture.run(arguments);
        outcome.check(69, reason);
        outcome.check(69, &server.port().to_string());
        watch.assert_below(Duration::from_secs(5), &format!("{arguments:?}"));
    };
    server.stop().expect("it runs");
    check("no answer in time", &["run", "job", "--try", "--", "true"]);
    check("no answer in time", &["run", "job", "--", "true"]);
    check("no answer in time", &["show", "job"]);
    check("no answer in time", &["ls"]);
    check("no answer in time", &["monitor"]);
    check("no answer in time", &["doctor"]);
    server.resume().expect("it is stopped");
    server.kill().expect("it runs");
    let outcome = fixture.run(&["run", "job", "--", "true"]);
    outcome.check(69, "cannot be reached: is it running, and is the address right?");
    fixture.run(&["show", "job"]).check(69, "cannot be reached");
}

#[test]
fn a_server_without_tls_ends_with_69_and_the_reason() {
    let server = RedisServer::start().expect("there is a server");
    let store = server.url().replace("redis:", "rediss:");
    let outcome = Fixture::redis(&server).run(&["show", "job", "--store", &store]);
    outcome.check(69, "it does not answer the TLS handshake: is this its `tls-port`?");
}

#[test]
fn a_key_that_is_something_else_is_left_alone() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    server.cli(&["LPUSH", "job", "x"]).expect("it answers");
    fixture.script(&[], "echo never").check(65, "failed to acquire `job`");
    fixture.run(&["show", "job"]).check(65, "the name is used for something else");
    assert_eq!(server.cli(&["LLEN", "job"]).expect("it answers").integer(), Some(1));
}
