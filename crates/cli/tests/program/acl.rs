//! The output of `acl`: a line that a server accepts once it contains a password, and not before.

use super::fixture::Fixture;
use leasehold_testkit::{Quorum, RedisServer};

/// The words of the line. The prefix of these tests needs no quoting.
fn words(line: &str) -> Vec<&str> {
    line.trim_end().split(' ').collect()
}

#[test]
fn a_user_of_the_printed_line_can_use_locks() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let shown = fixture.run(&["acl", "--prefix", "app[1]:", "--user", "locks"]);
    shown.check(0, "leasehold: for ");
    let line = words(&shown.stdout);
    assert_eq!(line[..5], ["ACL", "SETUSER", "locks", "reset", "on"], "{shown:?}");
    assert!(line.contains(&"~app\\[1\\]:*") && line.contains(&"&app\\[1\\]:leasehold:*"), "{shown:?}");
    // As printed, the line lets no client log in.
    assert!(server.cli(&line).expect("it answers").ok().is_err(), "{shown:?}");
    let with_password: Vec<_> =
        line.iter().map(|word| if word.starts_with('#') { ">hunter2" } else { *word }).collect();
    server.cli(&with_password).expect("it answers").ok().expect("the server knows all that is in it");
    let run = |prefix: &str| {
        let mut command = fixture.command(&["run", "job", "--try", "--prefix", prefix, "--", "echo", "ran"]);
        command.env("LEASEHOLD_USERNAME", "locks").env("LEASEHOLD_PASSWORD", "hunter2");
        super::fixture::finish(command, "")
    };
    let ran = run("app[1]:");
    ran.check(0, "");
    assert_eq!(ran.stdout, "ran\n");
    run("app1:").check(69, "permission denied");
    // The list is also printed if this user is the only one.
    server.cli(&["ACL", "SETUSER", "default", "off"]).expect("it answers").ok().expect("it can be off");
    let mut command = fixture.command(&["acl", "--prefix", "app[1]:", "--user", "locks"]);
    command.env("LEASEHOLD_USERNAME", "locks").env("LEASEHOLD_PASSWORD", "hunter2");
    assert_eq!(super::fixture::finish(command, "").stdout, shown.stdout);
}

/// With the line of its purpose a user runs each command of the purpose, and no command of another.
#[test]
fn a_user_of_each_purpose_runs_its_commands() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    for purpose in ["locks", "operator", "operator-free", "monitor"] {
        let shown = fixture.run(&["acl", "--for", purpose, "--user", purpose]);
        shown.check(0, "leasehold: for ");
        let line: Vec<_> = words(&shown.stdout)
            .into_iter()
            .map(|word| if word.starts_with('#') { ">hunter2" } else { word })
            .collect();
        server.cli(&line).expect("it answers").ok().expect("the server knows all that is in it");
    }
    let run = |user: &str, arguments: &[&str]| {
        let mut command = fixture.command(arguments);
        command.env("LEASEHOLD_USERNAME", user).env("LEASEHOLD_PASSWORD", "hunter2");
        super::fixture::finish(command, "")
    };
    let acquire = || run("locks", &["acquire", "job", "--lease", "1m", "--token-file", "token"]);
    for arguments in [
        &["run", "one", "two", "--", "true"][..],
        &["run", "reentrant", "--reentrant", "--", "true"],
        &["run", "reader", "--shared", "--", "true"],
        &["run", "writer", "--exclusive", "--", "true"],
        &["run", "permits", "--permits", "2", "--", "true"],
        &["run", "period", "--once-per", "1m", "--", "true"],
        &["lead", "leader", "--", "true"],
        &["acquire", "job", "--lease", "1m", "--token-file", "token"],
        &["extend", "job", "--token-file", "token"],
        &["ls"],
        &["show", "job"],
        &["doctor"],
        &["release", "job", "--token-file", "token"],
        &["wait", "job", "--wait", "0s"],
    ] {
        run("locks", arguments).check(0, "");
    }
    acquire().check(0, "");
    let looks: [&[&str]; 5] =
        [&["ls"], &["show", "job"], &["show", "other", "--json"], &["doctor"], &["where"]];
    for arguments in looks {
        for user in ["operator", "operator-free"] {
            run(user, arguments).check(0, "");
        }
    }
    let shown = run("operator", &["show", "job"]);
    assert!(shown.stdout.contains("/leasehold"), "the holder is shown: {shown:?}");
    run("operator", &["wait", "other", "--wait", "0s"]).check(0, "");
    let denied = "permission denied";
    run("operator", &["free", "job", "--yes"]).check(69, denied);
    run("operator", &["run", "new", "--try", "--", "true"]).check(69, denied);
    run("operator", &["release", "job", "--token-file", "token"]).check(69, denied);
    run("operator-free", &["run", "new", "--try", "--", "true"]).check(69, denied);
    run("monitor", &["run", "new", "--try", "--", "true"]).check(69, denied);
    run("operator-free", &["free", "job", "--yes"]).check(0, "");
    run("locks", &["show", "job"]).check(0, "");
    let mut monitor = fixture.command(&["monitor", "--every", "20ms"]);
    monitor.env("LEASEHOLD_USERNAME", "monitor").env("LEASEHOLD_PASSWORD", "hunter2");
    let mut monitor = super::fixture::start(monitor);
    let mut holder = fixture.start(&["--session", "1s"], "echo running; read line");
    super::fixture::expect(&mut holder, "running");
    // The monitor frees what a session has reported.
    super::fixture::until("it is listed", || run("operator", &["ls"]).stdout.contains("job"));
    holder.kill().expect("it runs");
    let evicted = monitor.expect("", super::fixture::LIMIT).expect("it has started");
    assert!(evicted.contains("started"), "{evicted}");
    let evicted = monitor.expect("", super::fixture::LIMIT).expect("it reports");
    assert!(evicted.contains("evicted `job`"), "{evicted}");
}

#[test]
fn without_a_server_the_list_is_the_newest() {
    // A file has no users, and is not consulted.
    let shown = Fixture::sqlite().run(&["acl"]);
    shown.check(0, "for the newest servers");
    let line = words(&shown.stdout);
    assert_eq!(line[..3], ["ACL", "SETUSER", "leasehold"], "{shown:?}");
    for word in ["~*", "&leasehold:*", "+client|setinfo", "+evalsha"] {
        assert!(line.contains(&word), "{word}: {shown:?}");
    }
}

#[test]
fn an_acl_that_is_not_possible_is_reported() {
    let fixture = Fixture::sqlite();
    fixture.run(&["acl", "--prefix", "our app:"]).check(2, "choose another prefix");
    fixture.run(&["acl", "--prefix", "{app}"]).check(2, "neither braces nor control characters");
    fixture
        .run(&["acl", "--user", "two words"])
        .check(2, "invalid --user: the name of an ACL user is not empty");
    fixture.run(&["acl", "--store", "sqlite:locks.db"]).check(2, "only a server (redis://…) has users");
    fixture.run(&["acl", "--store", "redis://h?ca=/f"]).check(2, "`rediss://`");
    fixture.run(&["acl", "--password-file", "f"]).check(2, "--password-file");
    let mut server = RedisServer::start().expect("there is a server");
    server.kill().expect("it runs");
    Fixture::redis(&server)
        .run(&["acl"])
        .check(69, "failed to read the version of the server: connecting to 127.0.0.1");
}

#[test]
fn the_list_for_a_quorum_comes_from_its_nodes() {
    let settings = RedisServer::builder().password("hunter2");
    let mut quorum = Quorum::with(3, &settings).expect("servers that boot");
    let fixture = Fixture::at(format!("{}?prefix=app:&min_uptime=0s", quorum.url()));
    let acl = |password: &str| {
        let mut command = fixture.command(&["acl", "--user", "locks"]);
        command.env("LEASEHOLD_PASSWORD", password);
        super::fixture::finish(command, "")
    };
    let shown = acl("hunter2");
    shown.check(0, "leasehold: for ");
    assert!(!shown.stderr.contains("newest"), "{shown:?}");
    assert!(words(&shown.stdout).contains(&"~app:*"), "{shown:?}");
    acl("wr0ng").check(69, "user or password are missing or wrong");
    // A node that is down does not matter while another answers.
    quorum.servers()[0].kill().expect("it runs");
    assert_eq!(acl("hunter2").stdout, shown.stdout);
    let by_argument = fixture.run(&["acl", "--store", &quorum.url()]);
    by_argument.check(69, "failed to read the version of the server");
}
