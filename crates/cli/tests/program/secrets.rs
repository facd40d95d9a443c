//! Passwords reach the server, and nothing else.

use super::fixture::{Fixture, expect, finish, runs, start, status, until};
use leasehold_testkit::{Quorum, RedisServer, Sentinels};
use std::fs;
use std::process::Command;

const PASSWORD: &str = "s3cr3t/with@odd:chars";

fn guarded() -> (RedisServer, Fixture) {
    let server = RedisServer::builder().password(PASSWORD).start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    (server, fixture)
}

/// The program, with the password in each possible way.
fn ways(server: &RedisServer, fixture: &Fixture, script: &str) -> Vec<Command> {
    let run =
        |options: &[&str]| fixture.command(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat());
    let mut variable = run(&["-vvv"]);
    variable.env("LEASEHOLD_PASSWORD", PASSWORD).env("LEASEHOLD_USERNAME", "default");
    let mut url = run(&["-vvv"]);
    let encoded = PASSWORD.replace('/', "%2F").replace('@', "%40").replace(':', "%3A");
    url.env("LEASEHOLD_STORE", format!("redis://:{encoded}@127.0.0.1:{}/", server.port()));
    fs::write(fixture.path("password"), format!("{PASSWORD}\n")).expect("the directory is ours");
    let file = run(&["-vvv", "--password-file", "password"]);
    vec![variable, url, file]
}

#[test]
fn a_password_is_in_no_argument_no_log_and_not_in_the_commands_environment() {
    let (server, fixture) = guarded();
    for command in ways(&server, &fixture, "env; cat /proc/$PPID/cmdline | tr '\\0' ' '; echo; echo done") {
        let outcome = finish(command, "");
        outcome.check(0, "");
        assert!(outcome.stdout.ends_with("done\n"), "{outcome:?}");
        for text in [&outcome.stdout, &outcome.stderr] {
            assert!(!text.contains("s3cr3t"), "{text}");
        }
    }
}

#[test]
fn a_store_without_a_password_stays_in_the_commands_environment() {
    let (server, fixture) = guarded();
    let mut command = fixture.command(&["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]);
    command.env("LEASEHOLD_PASSWORD", PASSWORD);
    assert_eq!(finish(command, "").stdout, server.url() + "?accept=lua_vulnerabilities\n");
}

#[test]
fn a_lock_within_a_lock_is_turned_away_rather_than_kept_elsewhere() {
    let (server, fixture) = guarded();
    let inner = format!("{} run job --try -- echo both run; echo status $?", env!("CARGO_BIN_EXE_leasehold"));
    let mut command = fixture.command(&["run", "job", "--", "sh", "-c", &inner]);
    let encoded = PASSWORD.replace('/', "%2F").replace('@', "%40").replace(':', "%3A");
    command.env("LEASEHOLD_STORE", format!("redis://:{encoded}@127.0.0.1:{}/?prefix=a", server.port()));
    let outcome = finish(command, "");
    outcome.check(0, "user or password are missing or wrong");
    assert_eq!(outcome.stdout, "status 69\n");
}

#[test]
fn a_store_that_ends_with_the_program_is_refused() {
    let fixture = Fixture::sqlite();
    for words in [
        &["run", "job", "--store", "memory:", "--", "echo", "never"][..],
        &["show", "job", "--store", "memory:x"],
    ] {
        let outcome = fixture.run(words);
        outcome.check(2, "ends with this program");
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn of_standard_input_one_line_is_the_password_and_the_rest_the_commands() {
    let (_server, fixture) = guarded();
    let command = fixture.command(&["run", "job", "--password-file", "-", "--", "cat"]);
    let outcome = finish(command, &format!("{PASSWORD}\none\ntwo\n"));
    outcome.check(0, "");
    assert_eq!(outcome.stdout, "one\ntwo\n");
}

/// Gives the user of the program's tests this password alone.
fn set_password(server: &RedisServer, password: &str) {
    let rule = format!(">{password}");
    let words = ["ACL", "SETUSER", "locks", "reset", "on", &rule, "~*", "&*", "+@all"];
    server.cli(&words).expect("a reply").ok().expect("set");
}

/// Runs a command under a lock whose lease is short, changes the password, and cuts all connections, several times. The
/// command must not be ended for a loss.
fn outlives_rotations(options: &[&str], mut change: impl FnMut(&Fixture, &str)) {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let secret = |number: usize| format!("s3cr3t-{number}");
    set_password(&server, &secret(0));
    change(&fixture, &secret(0));
    let words = [&["run", "job", "--lease", "3s"], options, &["--", "sh", "-c", "echo running; read line"]];
    let mut command = fixture.command(&words.concat());
    command.env("LEASEHOLD_USERNAME", "locks");
    let log = fs::File::create(fixture.path("log")).expect("the directory is ours");
    command.stderr(log);
    let mut holder = start(command);
    expect(&mut holder, "running");
    for number in 1..4 {
        set_password(&server, &secret(number));
        change(&fixture, &secret(number));
        server.cli(&["CLIENT", "KILL", "USER", "locks"]).expect("a reply");
        std::thread::sleep(std::time::Duration::from_millis(1200));
        assert_eq!(server.cli(&["EXISTS", "job"]).expect("a reply").integer(), Some(1), "{number}");
    }
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    assert_eq!(fixture.read("log"), "", "nothing is reported");
}

#[test]
fn a_password_file_that_changes_is_read_for_each_connection() {
    outlives_rotations(&["--password-file", "password"], |fixture, password| {
        fs::write(fixture.path("next"), format!("{password}\n")).expect("the directory is ours");
        fs::rename(fixture.path("next"), fixture.path("password")).expect("the directory is ours");
    });
}

/// Also while another command runs: this program reaps the one, and awaits the status of the other.
#[test]
fn a_password_command_runs_for_each_connection() {
    outlives_rotations(&["--password-command", "cat secret; echo run >> runs"], |fixture, password| {
        fs::write(fixture.path("secret"), format!("{password}\n")).expect("the directory is ours");
    });
}

#[test]
fn a_pipe_with_a_password_is_read_once() {
    let (_server, fixture) = guarded();
    let run = format!(
        "printf '%s\\n' '{PASSWORD}' | {} run job --password-file /dev/stdin -- echo ran",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let mut command = Command::new("sh");
    let template = fixture.command(&[]);
    command.args(["-c", &run]).current_dir(fixture.path("."));
    for (name, value) in template.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let outcome = finish(command, "");
    outcome.check(0, "");
    assert_eq!(outcome.stdout, "ran\n");
}

#[test]
fn a_password_command_that_fails_ends_with_69_and_its_reason() {
    let (_server, fixture) = guarded();
    let run = |command: &str| fixture.run(&["show", "job", "-vvv", "--password-command", command]);
    let fails = run("echo s3cr3t; echo reason >&2; exit 3");
    fails.check(69, "the provider of credentials failed: the password command ended with status 3");
    assert!(fails.stderr.contains("reason") && !fails.stderr.contains("s3cr3t"), "{fails:?}");
    run("true").check(69, "the password command printed no password: its first line is empty");
    let wrong = run("echo s3cr3t-wrong");
    wrong.check(69, "it rejects the user or the password that the provider of credentials gave");
    assert!(!wrong.stderr.contains("s3cr3t"), "{wrong:?}");
}

/// It is killed with its group, and does not have the standard input and the passwords of this program.
#[test]
fn a_password_command_that_hangs_is_killed() {
    let (_server, fixture) = guarded();
    let mut command = fixture.command(&[
        "show",
        "job",
        "--password-command",
        "cat; env > environment; sleep 1000 & echo $! > pid; wait",
    ]);
    command.env("LEASEHOLD_PASSWORD", PASSWORD);
    let outcome = finish(command, "for the program");
    outcome.check(69, "the password command did not end within 5s, and was killed");
    let pid = fixture.read("pid");
    until("the process that it left is killed", || !runs(pid.trim()));
    assert!(!fixture.read("environment").contains("s3cr3t"));
}

#[test]
fn a_wrong_password_or_none_ends_with_69_and_is_not_repeated() {
    let (_server, fixture) = guarded();
    fixture.script(&[], "echo never").check(69, "user or password are missing or wrong");
    let mut command = fixture.command(&["show", "job", "-vvv"]);
    command.env("LEASEHOLD_PASSWORD", "wr0ng");
    let outcome = finish(command, "");
    outcome.check(69, "user or password are missing or wrong");
    assert!(!outcome.stderr.contains("wr0ng"), "{outcome:?}");
}

#[test]
fn a_password_as_an_argument_is_refused_and_not_repeated() {
    let (server, fixture) = guarded();
    let url = format!("redis://:s3cr3t@127.0.0.1:{}/", server.port());
    let outcome = fixture.run(&["run", "job", "--store", &url, "--", "echo", "never"]);
    outcome.check(2, "give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE");
    assert!(!outcome.stderr.contains("s3cr3t") && outcome.stdout.is_empty(), "{outcome:?}");
    let mut broken = fixture.command(&["show", "job"]);
    broken.env("LEASEHOLD_STORE", "redis://h:s3cr3t");
    let outcome = finish(broken, "");
    outcome.check(2, "the store's URL cannot be used");
    assert!(!outcome.stderr.contains("s3cr3t"), "{outcome:?}");
}

/// `redlock://` with these credentials before its hosts, and nodes that vote at once.
fn quorum_url(quorum: &Quorum, credentials: &str) -> String {
    let hosts = quorum.url().replacen("redlock://", "", 1);
    format!("redlock://{credentials}{hosts}?min_uptime=0s&node_timeout=1s")
}

#[test]
fn a_quorum_password_in_the_url_does_not_reach_the_command() {
    let quorum = Quorum::with(3, &RedisServer::builder().password("s3cr3tPW")).expect("servers that boot");
    let fixture = Fixture::at(quorum_url(&quorum, ":s3cr3tPW@"));
    let outcome = fixture.run(&["run", "va", "-vvv", "--", "env"]);
    outcome.check(0, "");
    assert!(!format!("{outcome:?}").contains("s3cr3t"), "{outcome:?}");
    let expected = format!(
        "LEASEHOLD_STORE={}?accept=lua_vulnerabilities&min_uptime=0ms&node_timeout=1000ms",
        quorum.url()
    );
    assert!(outcome.stdout.lines().any(|line| line == expected), "{outcome:?}");
}

#[test]
fn a_quorum_takes_password_and_user_from_the_environment_or_a_file() {
    let quorum = Quorum::with(3, &RedisServer::builder().password(PASSWORD)).expect("servers that boot");
    let fixture = Fixture::at(quorum_url(&quorum, ""));
    let words = ["run", "va", "--try", "--", "sh", "-c", "env; echo ran"];
    fixture.run(&words).check(69, "user or password are missing or wrong");
    let with = |user: &str| {
        let mut command = fixture.command(&words);
        command.env("LEASEHOLD_PASSWORD", PASSWORD).env("LEASEHOLD_USERNAME", user);
        finish(command, "")
    };
    let ran = with("default");
    ran.check(0, "");
    assert!(ran.stdout.ends_with("ran\n") && !ran.stdout.contains("s3cr3t"), "{ran:?}");
    with("stranger").check(69, "user or password are missing or wrong");
    fs::write(fixture.path("password"), format!("{PASSWORD}\n")).expect("the directory is ours");
    let from_file = fixture.run(&["run", "va", "--try", "--password-file", "password", "--", "echo", "ran"]);
    from_file.check(0, "");
    assert_eq!(from_file.stdout, "ran\n");
}

#[test]
fn a_password_of_the_sentinels_does_not_reach_the_command() {
    let sentinels = Sentinels::start(0).expect("servers that boot");
    // The user `default` of these Sentinels needs no password, and accepts any.
    let credentials = "sentinel_user=default&sentinel_password=s3cr3tPW";
    let fixture = Fixture::at(format!("{}?{credentials}", sentinels.url()));
    let outcome = fixture.run(&["run", "va", "-vvv", "--", "env"]);
    outcome.check(0, "");
    assert!(!format!("{outcome:?}").contains("s3cr3t"), "{outcome:?}");
    let expected =
        format!("LEASEHOLD_STORE={}?accept=lua_vulnerabilities&sentinel_user=default", sentinels.url());
    assert!(outcome.stdout.lines().any(|line| line == expected), "{outcome:?}");
}

#[test]
fn a_url_that_is_not_used_is_redacted_as_well() {
    let fixture = Fixture::sqlite();
    let store = format!("sqlite:{}", fixture.path("locks.db").display());
    for (unused, passed_on) in [
        ("redlock://u:s3cr3t@a,b,c/1?prefix=p:", "redlock://u@a,b,c/1?prefix=p:"),
        ("redis+sentinel://a/m?sentinel_password=s3cr3t", "redis+sentinel://a/m"),
        ("redis+unix:///s?db=1&password=s3cr3t", "redis+unix:///s?db=1"),
        ("redis://h/?prefix=a%3Ab", "redis://h/?prefix=a%3Ab"),
        ("sqlite:other.db", "sqlite:other.db"),
        // A URL that does not parse may contain a secret anywhere.
        ("redis://h?auth=s3cr3t", "withheld:"),
        ("redis://h?sentinel_password=s3cr3t", "withheld:"),
        ("redlock://:s3cr3t@a,b", "withheld:"),
        ("redis://:x/s3cr3t@h", "withheld:"),
        ("REDIS://:s3cr3t@h", "withheld:"),
        ("valkey://:s3cr3t@h", "withheld:"),
        ("s3cr3t", "withheld:"),
    ] {
        let mut command =
            fixture.command(&["run", "job", "--store", &store, "--", "sh", "-c", "echo $LEASEHOLD_STORE"]);
        command.env("LEASEHOLD_STORE", unused);
        let outcome = finish(command, "");
        outcome.check(0, "");
        assert_eq!(outcome.stdout, format!("{passed_on}\n"), "{unused}");
    }
    // A withheld URL does not select another store.
    let mut command = fixture.command(&["show", "job"]);
    command.env("LEASEHOLD_STORE", "withheld:");
    finish(command, "").check(2, "the store's URL cannot be used");
}

#[test]
fn a_password_as_an_argument_is_refused_for_every_scheme() {
    let fixture = Fixture::sqlite();
    let refusal = "give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE";
    for (url, message) in [
        ("redis://:s3cr3t@h", refusal),
        ("rediss://u:s3cr3t@h", refusal),
        ("redis+unix:///s?password=s3cr3t", refusal),
        ("redis+sentinel://:s3cr3t@a/main", refusal),
        ("rediss+sentinel://a/main?sentinel_password=s3cr3t", refusal),
        ("redis+cluster://:s3cr3t@a,b", refusal),
        ("redis+shard://u:s3cr3t@a,b", refusal),
        ("rediss+shard://a,b?password=s3cr3t", refusal),
        ("redlock://:s3cr3t@a,b,c", refusal),
        ("redlocks://a,b,c?password=s3cr3t", refusal),
        ("redis://h?password=s3cr3t&password=", "change the password"),
        ("redis://h?auth=s3cr3t", "the store's URL cannot be used"),
        ("redlock://:s3cr3t@a,b", "the store's URL cannot be used"),
        ("valkey://:s3cr3t@h", "the store's URL cannot be used"),
        ("redis://:x/s3cr3t@h", "change the password"),
    ] {
        for words in [
            &["run", "job", "--store", url, "-vvv", "--", "echo", "never"][..],
            &["show", "job", "--store", url, "-vvv"],
            &["acl", "--store", url],
            &["doctor", "--store", url],
        ] {
            let outcome = fixture.run(words);
            outcome.check(2, message);
            assert!(!outcome.stderr.contains("s3cr3t") && outcome.stdout.is_empty(), "{url}: {outcome:?}");
        }
    }
}

#[test]
fn the_token_of_a_hold_is_never_shown() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut command =
        fixture.command(&["run", "job", "-vvv", "--", "sh", "-c", "env; echo running; read line"]);
    let log = fs::File::create(fixture.path("log")).expect("the directory is ours");
    command.stderr(log);
    let mut holder = start(command);
    let mut output = String::new();
    while !output.ends_with("running") {
        output = output + "\n" + &holder.line(super::fixture::LIMIT).expect("the command prints");
    }
    let token = server.cli(&["GET", "job"]).expect("it answers");
    let token = token.text().expect("the lock is held");
    assert!(token.len() > 16, "{token}");
    let shown = fixture.run(&["show", "job", "--json", "-vvv"]);
    let taken = fixture.script(&["--try", "-vvv"], "true");
    taken.check(75, "held by");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    for text in [output, fixture.read("log"), shown.stdout, shown.stderr, taken.stderr] {
        assert!(!text.contains(token), "{text}");
    }
}

#[test]
fn a_prefix_and_a_socket_are_heeded() {
    let server = RedisServer::builder().unix_socket().start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let url = server.unix_url().expect("it was built with one");
    let mut command = fixture.command(&["run", "job", "--store", &url, "--prefix", "app:"]);
    command.args(["--", "sh", "-c", "echo running; read line"]);
    let mut holder = start(command);
    expect(&mut holder, "running");
    assert_eq!(server.cli(&["EXISTS", "app:job"]).expect("it answers").integer(), Some(1));
    assert_eq!(server.cli(&["EXISTS", "job"]).expect("it answers").integer(), Some(0));
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
}
